"""The paper's two calibration losses, and the temperature that minimises them (spec section 6).

With logits z and β = 1/T both losses of one token have the same form,

    loss(β) = w · (logsumexp(β z) − β c),

which is convex in β. NLL has w = 1 and c = z_y. Selective smoothing (paper, equation "ss loss") has
w = 1 − α and c = z_y where the model's top token is the target, w = α and c = mean(z) where it is not;
the top token does not change with T, so neither does the case. Newton steps inside a shrinking bracket
find the minimum; slope and curvature come from one pass over the tokens:

    loss'(β) = Σ w (E_β[z] − c),    loss''(β) = Σ w Var_β[z].

`mean_loss` computes the same losses of any recalibrated distribution, for training by gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from semcal.errors import InputError, UsageError
from semcal.registry import check_name

LOSSES = ("NLL", "SS", "any")
#: The range of temperatures that a fit may choose.
T_MIN, T_MAX = 0.05, 20.0
#: Newton stops when a step moves log T by less than this; quadratic convergence leaves far less.
TOLERANCE = 1e-8
MAX_STEPS = 100
#: Stands for a logit of −inf: exp of it is 0 at every temperature, in float32 too.
SMALLEST = -1e5


@dataclass(frozen=True)
class TokenTerms:
    """The terms of a loss for a batch of N tokens, as functions of β."""

    logits: Tensor  # (N, V) float64, less the row maximum: the largest is 0
    weight: Tensor  # (N,), the factor w
    centre: Tensor  # (N,), the value c, less the row maximum


@dataclass(frozen=True)
class LossSums:
    """Sums over tokens at one β: sample weights, weighted loss, and its two derivatives in β."""

    n: float
    loss: float
    slope: float
    curvature: float

    def __add__(self, other: LossSums) -> LossSums:
        return LossSums(
            self.n + other.n,
            self.loss + other.loss,
            self.slope + other.slope,
            self.curvature + other.curvature,
        )


@dataclass(frozen=True)
class Certificate:
    """Evidence that a fitted temperature is the optimum; losses are means per token (any: per question)."""

    temperature: float  # the minimiser, clipped to [0.05, 20]
    loss: float  # at the minimiser
    loss_at_one: float  # at T = 1
    gradient: float  # first derivative of the mean loss with respect to 1/T at the minimiser
    curvature: float  # second derivative
    at_bound: bool  # whether the loss keeps falling beyond the bound at which T was clipped
    steps: int  # Newton or bisection steps taken


def check_loss(loss: str, alpha: float | None, *, exact: bool = False) -> None:
    """Raise UsageError unless it is "NLL", "SS" with 0 < alpha < 1, or "any" (`exact` TS, local model)."""
    check_name(loss, LOSSES, what="loss")
    if loss != "SS" and alpha is not None:
        raise UsageError(f"{loss} has no alpha, got alpha={alpha}; leave it out or use loss='SS'")
    if loss == "any" and not exact:
        raise UsageError(
            "any is a loss for exact TS of a local model; leave method and solver out, or take NLL"
        )
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


def _step(beta: float, sums: LossSums, low: float, high: float) -> float:
    """A Newton step in log β where it stays inside the bracket, else its geometric middle."""
    slope, curvature = beta * sums.slope, beta * beta * sums.curvature + beta * sums.slope
    if curvature > 0:
        exponent = -slope / curvature
        if abs(exponent) < 10:
            proposal = beta * math.exp(exponent)
            if low < proposal < high:
                return proposal
    return math.sqrt(low * high)


def minimise(evaluate: Callable[[float], LossSums]) -> Certificate:
    """Return the temperature in [0.05, 20] that minimises a convex loss, given its sums at any β = 1/T.

    A loss that does not depend on T (all logits of every token equal) leaves T at 1.
    """
    at_one = evaluate(1.0)
    low, high = 1 / T_MAX, 1 / T_MIN
    beta, sums, steps = 1.0, at_one, 0
    if at_one.slope == 0:
        return certify(beta, sums, at_one, at_bound=False, steps=0)
    bound = high if at_one.slope < 0 else low
    at_bound = evaluate(bound)
    if at_bound.slope * at_one.slope > 0:
        return certify(bound, at_bound, at_one, at_bound=True, steps=1)
    while steps < MAX_STEPS:
        low, high = (beta, high) if sums.slope < 0 else (low, beta)
        proposal = _step(beta, sums, low, high)
        steps += 1
        moved = abs(math.log(proposal / beta))
        beta, sums = proposal, evaluate(proposal)
        if moved < TOLERANCE or sums.slope == 0:
            break
    return certify(beta, sums, at_one, at_bound=False, steps=steps)


def certify(beta: float, sums: LossSums, at_one: LossSums, *, at_bound: bool, steps: int) -> Certificate:
    """Return the certificate of 1 / `beta` from the sums there and at T = 1."""
    return Certificate(
        temperature=1 / beta,
        loss=sums.loss / sums.n,
        loss_at_one=at_one.loss / at_one.n,
        gradient=sums.slope / sums.n,
        curvature=sums.curvature / sums.n,
        at_bound=at_bound,
        steps=steps,
    )
