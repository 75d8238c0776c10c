"""The temperature at the minimum of a convex loss, found by Newton steps in β = 1/T, and its certificate.

With logits z both losses of the paper have the same form for one token,

    loss(β) = w · (logsumexp(β z) − β c),

which is convex in β. NLL has w = 1 and c = z_y. Selective smoothing (paper, equation "ss loss") has
w = 1 − α and c = z_y where the model's top token is the target, w = α and c = mean(z) where it is not;
the top token does not change with T, so neither does the case. Newton steps inside a shrinking bracket
find the minimum; slope and curvature come from one pass over the tokens (`losses.sums_at`):

    loss'(β) = Σ w (E_β[z] − c),    loss''(β) = Σ w Var_β[z].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from semcal.errors import UsageError
from semcal.registry import check_name

LOSSES = ("NLL", "SS", "any")
#: The range of temperatures that a fit may choose.
T_MIN, T_MAX = 0.05, 20.0
#: Newton stops when a step moves log T by less than this; quadratic convergence leaves far less.
TOLERANCE = 1e-8
MAX_STEPS = 100


@dataclass(frozen=True)
class LossSums:
    """Sums over tokens at one β: sample weights, weighted loss, and its two derivatives in β."""

    n: float
    loss: float
    slope: float
    curvature: float

    def __add__(self, other: LossSums) -> LossSums:
        slope, curvature = self.slope + other.slope, self.curvature + other.curvature
        return LossSums(self.n + other.n, self.loss + other.loss, slope, curvature)


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
