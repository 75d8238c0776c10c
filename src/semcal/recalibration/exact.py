"""The exact fit of one temperature (spec section 6, solver `exact`).

The loss is convex in β = 1/T, so Newton steps inside a shrinking bracket reach its minimum;
slope and curvature come from a pass over the tokens:

    loss'(β) = Σ w (E_β[z] − c),    loss''(β) = Σ w Var_β[z].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from semcal.recalibration.losses import TokenTerms

__all__ = ["T_MAX", "T_MIN", "Certificate", "Sums", "certify", "minimise", "moments", "sums_at"]

T_MIN, T_MAX = 0.05, 20.0
#: Newton stops when a step moves log T by less than this; quadratic convergence leaves far less.
TOLERANCE = 1e-8
MAX_STEPS = 100
#: Stands for a logit of −inf: exp of it is 0 at every temperature, in float32 too.
SMALLEST = -1e5


@dataclass(frozen=True)
class Sums:
    """Weighted sums over tokens at one β: their weight, the loss, its slope and its curvature in β."""

    n: float
    loss: float
    slope: float
    curvature: float

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.n + other.n,
            self.loss + other.loss,
            self.slope + other.slope,
            self.curvature + other.curvature,
        )


@dataclass(frozen=True)
class Certificate:
    """What shows that a fitted temperature is the optimum.

    Attributes
    ----------
    temperature : float
        The minimiser, clipped to [0.05, 20].
    loss, loss_at_one : float
        Mean loss per token (nats) at the minimiser and at T = 1.
    gradient, curvature : float
        First and second derivative of the mean loss with respect to 1/T at the minimiser.
    at_bound : bool
        True when the loss keeps falling beyond the bound at which T was clipped.
    steps : int
        Newton or bisection steps taken.
    """

    temperature: float
    loss: float
    loss_at_one: float
    gradient: float
    curvature: float
    at_bound: bool
    steps: int


def moments(beta: float, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return logsumexp(β z), E_β[z] and Var_β[z] of each row of logits (N, V), whose largest is 0.

    Examples
    --------
    >>> log_partition, mean, variance = moments(1.0, torch.tensor([[0.0, 0.0, -torch.inf]]))
    >>> float(log_partition.exp()), float(mean), float(variance)
    (2.0, 0.0, 0.0)
    """
    z = logits.masked_fill(logits == -torch.inf, SMALLEST)  # its weight is 0, and 0 times a number is 0
    weighted = torch.exp(beta * z)
    total = weighted.sum(1)
    mean = weighted.mul_(z).sum(1) / total
    return total.log(), mean, weighted.mul_(z).sum(1) / total - mean.square()


def sums_at(beta: float, terms: TokenTerms, sample_weight: Tensor) -> Sums:
    """Return the sums of one batch at inverse temperature `beta`."""
    log_partition, mean, variance = moments(beta, terms.logits)
    w = terms.weight * sample_weight
    return Sums(
        n=float(sample_weight.sum()),
        loss=float((w * (log_partition - beta * terms.centre)).sum()),
        slope=float((w * (mean - terms.centre)).sum()),
        curvature=float((w * variance).sum()),
    )


def _step(beta: float, here: Sums, low: float, high: float) -> float:
    """A Newton step in log β where it stays inside the bracket, else its geometric middle."""
    slope, curvature = beta * here.slope, beta * beta * here.curvature + beta * here.slope
    if curvature > 0:
        exponent = -slope / curvature
        if abs(exponent) < 10:
            proposal = beta * math.exp(exponent)
            if low < proposal < high:
                return proposal
    return math.sqrt(low * high)


def minimise(evaluate: Callable[[float], Sums]) -> Certificate:
    """Return the temperature in [0.05, 20] that minimises a convex loss of β = 1/T.

    Parameters
    ----------
    evaluate : callable
        β → the `Sums` over all tokens at that β.

    Notes
    -----
    A loss that does not depend on T (all logits of every token equal) leaves T at 1.
    """
    one = evaluate(1.0)
    low, high = 1 / T_MAX, 1 / T_MIN
    beta, here, steps = 1.0, one, 0
    if one.slope == 0:
        return certify(beta, here, one, at_bound=False, steps=0)
    bound = high if one.slope < 0 else low
    at_bound = evaluate(bound)
    if at_bound.slope * one.slope > 0:
        return certify(bound, at_bound, one, at_bound=True, steps=1)
    while steps < MAX_STEPS:
        low, high = (beta, high) if here.slope < 0 else (low, beta)
        proposal = _step(beta, here, low, high)
        steps += 1
        moved = abs(math.log(proposal / beta))
        beta, here = proposal, evaluate(proposal)
        if moved < TOLERANCE or here.slope == 0:
            break
    return certify(beta, here, one, at_bound=False, steps=steps)


def certify(beta: float, here: Sums, one: Sums, *, at_bound: bool, steps: int) -> Certificate:
    """Return the certificate of 1 / `beta` from the sums there and at T = 1."""
    return Certificate(
        temperature=1 / beta,
        loss=here.loss / here.n,
        loss_at_one=one.loss / one.n,
        gradient=here.slope / here.n,
        curvature=here.curvature / here.n,
        at_bound=at_bound,
        steps=steps,
    )
