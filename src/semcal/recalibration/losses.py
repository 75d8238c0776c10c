"""The losses of the paper on logits, and of any recalibrated distribution (spec section 6).

`token_terms` and `sums_at` are those of one temperature as functions of β = 1/T (`optimum`); `mean_loss`
computes the same losses of any recalibrated distribution, for training by gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from semcal.errors import InputError
from semcal.recalibration.optimum import LossSums

#: Stands for a logit of −inf: exp of it is 0 at every temperature, in float32 too.
SMALLEST = -1e5
#: Logits (N, V), targets (N,) and a weight for each token (N,).
LossBatch = tuple[Tensor, Tensor, Tensor]
#: Logits held in float64 at once while fitting: what stays in a processor's cache.
CHUNK = 128_000


@dataclass(frozen=True)
class TokenTerms:
    """The terms of a loss for a batch of N tokens, as functions of β."""

    logits: Tensor  # (N, V) float64, less the row maximum: the largest is 0
    weight: Tensor  # (N,), the factor w
    centre: Tensor  # (N,), the value c, less the row maximum


def _check_batch(logits: Tensor, targets: Tensor) -> None:
    if logits.ndim != 2 or targets.shape != logits.shape[:1]:
        raise InputError(
            f"expected logits (N, V) and targets (N,), got {tuple(logits.shape)} and {tuple(targets.shape)}"
        )
    size = logits.shape[1]
    outside = (targets < 0) | (targets >= size)
    if outside.any():
        row = int(outside.nonzero()[0])
        raise InputError(f"target {int(targets[row])} of token {row} is outside the vocabulary of {size}")
    bad = logits.isnan().any(1) | (logits == torch.inf).any(1) | (logits == -torch.inf).all(1)
    if bad.any():
        raise InputError(f"the logits of token {int(bad.nonzero()[0])} hold NaN or +inf, or are all -inf")


def token_terms(logits: Tensor, targets: Tensor, *, loss: str, alpha: float | None) -> TokenTerms:
    """Return the terms of a loss for logits (N, V) before recalibration and targets (N,).

    InputError if shapes disagree, a target lies outside the vocabulary or has logit −inf, a logit is NaN or
    +inf, or SS meets a logit of −inf (its loss is infinite at every temperature).
    """
    _check_batch(logits, targets)
    z = logits.double()
    z = z - z.amax(1, keepdim=True)
    target = z.gather(1, targets[:, None])[:, 0]
    hit = z.argmax(1) == targets
    weight, centre = weight_and_centre(hit, target, z.mean(1), loss=loss, alpha=alpha)
    _check_finite(centre, loss)
    return TokenTerms(z, weight, centre)


def weight_and_centre(
    hit: Tensor, target: Tensor, mean: Tensor, *, loss: str, alpha: float | None
) -> tuple[Tensor, Tensor]:
    """Return w and c (N,) from hit (the top token is the target), the target's logit and the mean logit.

    >>> hit, target, mean = torch.tensor([True, False]), torch.tensor([0.0, -2.0]), torch.tensor([-3.0, -4.0])
    >>> weight_and_centre(hit, target, mean, loss="SS", alpha=0.25)
    (tensor([0.7500, 0.2500]), tensor([ 0., -4.]))
    """
    if loss != "SS":
        return torch.ones_like(target), target
    assert alpha is not None
    return alpha + (1 - 2 * alpha) * hit.to(target.dtype), torch.where(hit, target, mean)


def token_losses(log_probs: Tensor, targets: Tensor, *, loss: str, alpha: float | None) -> Tensor:
    """Return the loss (nats) of each token under a recalibrated distribution (paper, "ce loss", "ss loss").

    `log_probs` (..., V) are recalibrated, `targets` (...) the reference tokens; the case of SS is decided by
    the top token of `log_probs`. InputError if the loss of a token is infinite: its target has probability 0,
    or SS meets a miss with some token of probability 0.

    >>> log_probs = torch.tensor([[0.5, 0.25, 0.25]]).log()
    >>> token_losses(log_probs, torch.tensor([1]), loss="NLL", alpha=None)
    tensor([1.3863])
    >>> token_losses(log_probs, torch.tensor([1]), loss="SS", alpha=0.3)
    tensor([0.3466])
    """
    losses = -log_probs.gather(-1, targets[..., None])[..., 0]
    if loss == "SS":
        assert alpha is not None
        hit = log_probs.argmax(-1) == targets
        losses = torch.where(hit, (1 - alpha) * losses, -alpha * log_probs.mean(-1))
    _check_finite(losses, loss)
    return losses


def mean_loss(
    log_probs: Tensor, targets: Tensor, weights: Tensor | None = None, *, loss: str, alpha: float | None
) -> Tensor:
    """Return the weighted mean of `token_losses`; positions of weight 0 are skipped, and may hold anything.

    `weights` (...) are non-negative numbers, or a mask that is True where a position counts; by default 1.
    InputError if all of them are 0, or the loss of a position that counts is infinite.
    """
    if weights is None:
        weights = torch.ones_like(targets)
    counted = weights > 0
    if not counted.any():
        raise InputError("no position counts: the mean loss of nothing is undefined; leave this batch out")
    losses = token_losses(log_probs[counted], targets[counted], loss=loss, alpha=alpha)
    w = weights[counted].to(losses.dtype)
    return (w * losses).sum() / w.sum()


def _check_finite(values: Tensor, loss: str) -> None:
    odd = ~values.flatten().isfinite()
    if odd.any():
        raise InputError(
            f"the {loss} of token {int(odd.nonzero()[0])} is infinite at every T, because a logit that it "
            "needs is -inf or NaN; leave the token out"
        )


def moments(beta: float, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return logsumexp(β z), E_β[z] and Var_β[z] of each row of logits (N, V), whose largest is 0."""
    z = logits.masked_fill(logits == -torch.inf, SMALLEST)  # its weight is 0, and 0 times a number is 0
    weighted = torch.exp(beta * z)
    total = weighted.sum(1)
    mean = weighted.mul_(z).sum(1) / total
    return total.log(), mean, weighted.mul_(z).sum(1) / total - mean.square()


def sums_at(beta: float, terms: TokenTerms, sample_weight: Tensor) -> LossSums:
    """Return the sums of one batch at inverse temperature `beta`."""
    log_partition, mean, variance = moments(beta, terms.logits)
    w = terms.weight * sample_weight
    return LossSums(
        n=float(sample_weight.sum()),
        loss=float((w * (log_partition - beta * terms.centre)).sum()),
        slope=float((w * (mean - terms.centre)).sum()),
        curvature=float((w * variance).sum()),
    )


def sums_of_batches(
    beta: float, batches: Iterable[LossBatch], *, loss: str, alpha: float | None
) -> tuple[LossSums, int]:
    """Return the sums of all batches at `beta`, and how many of their tokens have a positive weight."""
    total, tokens = LossSums(0.0, 0.0, 0.0, 0.0), 0
    for logits, targets, weights in _chunks(batches):
        total += sums_at(beta, token_terms(logits, targets, loss=loss, alpha=alpha), weights)
        tokens += int((weights > 0).sum())
    return total, tokens


def as_batch(
    logits: ArrayLike | Tensor, targets: ArrayLike | Tensor, weights: ArrayLike | None = None
) -> LossBatch:
    """Return logits (N, V), targets (N,) and weights (N,), by default 1, as tensors."""
    y = _whole(torch.as_tensor(targets))
    w = torch.ones_like(y, dtype=torch.float64) if weights is None else torch.as_tensor(weights).double()
    return torch.as_tensor(logits), y, w


def _chunks(batches: Iterable[LossBatch]) -> Iterator[LossBatch]:
    """Cut batches so that the float64 copies of a chunk stay small."""
    for logits, targets, weights in batches:
        if weights.shape != targets.shape or not bool(((weights >= 0) & weights.isfinite()).all()):
            raise InputError("weights must be one finite non-negative number for each token")
        size = max(1, CHUNK // max(1, logits.shape[-1])) if logits.ndim == 2 else max(1, len(targets))
        for start in range(0, len(targets), size):
            stop = start + size
            yield logits[start:stop], targets[start:stop], weights[start:stop].double()


def _whole(targets: Tensor) -> Tensor:
    """Token ids as int64."""
    odd = (targets != targets.long()).nonzero()
    if len(odd):
        raise InputError(f"target {odd[0].tolist()} is {targets[tuple(odd[0])].item()}, which is no token id")
    return targets.long()
