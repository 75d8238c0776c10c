"""The two calibration losses of the paper, as functions of the inverse temperature.

With logits z and β = 1/T both losses of one token have the same form,

    loss(β) = w · (logsumexp(β z) − β c),

which is convex in β. NLL has w = 1 and c = z_y. Selective smoothing (paper, equation "ss loss") has
w = 1 − α and c = z_y where the model's top token is the target, w = α and c = mean(z) where it is not;
the top token does not move with T, so neither does the case.

`mean_loss` is the same two losses of any recalibrated distribution, for training by gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from semcal.errors import InputError, UsageError
from semcal.registry import check_name

__all__ = [
    "LOSSES",
    "TokenTerms",
    "check_loss",
    "mean_loss",
    "token_losses",
    "token_terms",
    "weight_and_centre",
]

LOSSES = ("NLL", "SS")


@dataclass(frozen=True)
class TokenTerms:
    """What one batch of N tokens contributes to a loss, as a function of β.

    Attributes
    ----------
    logits : Tensor, shape (N, V), float64
        Logits less their row maximum, so that the largest is 0.
    weight : Tensor, shape (N,)
        The factor w of each token.
    centre : Tensor, shape (N,)
        The value c of each token, less the row maximum.
    """

    logits: Tensor
    weight: Tensor
    centre: Tensor


def check_loss(loss: str, alpha: float | None) -> None:
    """Raise UsageError unless (loss, alpha) is "NLL" without alpha or "SS" with 0 < alpha < 1."""
    check_name(loss, LOSSES, what="loss")
    if loss == "NLL" and alpha is not None:
        raise UsageError(f"NLL has no alpha, got alpha={alpha}; leave it out or use loss='SS'")
    if loss == "SS" and (alpha is None or not 0 < alpha < 1):
        raise UsageError(f"SS needs an alpha between 0 and 1 (the paper: 0.1, 0.25, 0.5, 0.75), got {alpha}")


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
    """Return the terms of `loss` for a batch of tokens.

    Parameters
    ----------
    logits : Tensor, shape (N, V)
        Logits before recalibration; −inf marks a token that cannot occur.
    targets : Tensor, shape (N,), integer
        The tokens that were to be predicted.
    loss : {"NLL", "SS"}
        Which loss.
    alpha : float or None
        The α of selective smoothing.

    Raises
    ------
    InputError
        If shapes disagree, a target lies outside the vocabulary or has logit −inf, a logit is NaN or
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
    """Return w and c of the module's formula, each (N,).

    Parameters
    ----------
    hit : Tensor, shape (N,), bool
        Where the top token is the target.
    target, mean : Tensor, shape (N,)
        The target's logit, and the mean of all logits.
    loss : {"NLL", "SS"}
        Which loss.
    alpha : float or None
        The α of selective smoothing.

    Examples
    --------
    >>> hit, target, mean = torch.tensor([True, False]), torch.tensor([0.0, -2.0]), torch.tensor([-3.0, -4.0])
    >>> weight_and_centre(hit, target, mean, loss="SS", alpha=0.25)
    (tensor([0.7500, 0.2500]), tensor([ 0., -4.]))
    """
    if loss == "NLL":
        return torch.ones_like(target), target
    assert alpha is not None
    return alpha + (1 - 2 * alpha) * hit.to(target.dtype), torch.where(hit, target, mean)


def token_losses(log_probs: Tensor, targets: Tensor, *, loss: str, alpha: float | None) -> Tensor:
    """Return the loss of each token under a recalibrated distribution (paper, "ce loss" and "ss loss").

    Parameters
    ----------
    log_probs : Tensor, shape (..., V)
        Recalibrated log-probabilities; the case of SS is decided by their own top token.
    targets : Tensor, shape (...), integer
        The tokens that were to be predicted.
    loss : {"NLL", "SS"}
        Which loss.
    alpha : float or None
        The α of selective smoothing.

    Returns
    -------
    Tensor, shape (...)
        Nats.

    Raises
    ------
    InputError
        If the loss of a token is infinite: its target has probability 0, or SS meets a miss with some
        token of probability 0.

    Examples
    --------
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
    """Return the weighted mean of `token_losses`; a position of weight 0 is counted nowhere.

    Parameters
    ----------
    log_probs, targets, loss, alpha
        As in `token_losses`. Where the weight is 0 both may be anything, NaN and −100 included.
    weights : Tensor, shape (...), optional
        Non-negative numbers, or a mask that is True where a position counts; all 1 by default.

    Raises
    ------
    InputError
        If no position counts, or the loss of one that does is infinite.
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
            f"the {loss} of token {int(odd.nonzero()[0])} is infinite at every T, for a logit that it needs "
            "is -inf, or is no number; leave the token out"
        )
