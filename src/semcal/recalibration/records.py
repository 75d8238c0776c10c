"""The losses of TS by name, their minimum over β = 1/T, and the records of fits (spec section 6).

With logits z both losses of the paper have the same form for one token,

    loss(β) = w · (logsumexp(β z) − β c),

which is convex in β. NLL has w = 1 and c = z_y. Selective smoothing (paper, equation "ss loss") has
w = 1 − α and c = z_y if the model's top token is the target, otherwise w = α and c = mean(z). The top token
does not change with T, so neither does the case. Newton steps inside a shrinking bracket find the minimum;
slope and curvature come from one pass over the tokens (`exact_solver.sums_at`):

    loss'(β) = Σ w (E_β[z] − c),    loss''(β) = Σ w Var_β[z].
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Literal, Protocol

import scipy
from pydantic import Field, PositiveFloat

from semcal.errors import FitError, SemcalWarning, UsageError
from semcal.models.protocols import StateReader, TokenDistribution
from semcal.registry import check_name
from semcal.rows import Json

LOSSES = ("NLL", "SS", "any")
#: The range of temperatures that a fit may choose.
T_MIN, T_MAX = 0.05, 20.0
#: Newton stops at a step of log T below this tolerance; with quadratic convergence the error is far smaller.
TOLERANCE = 1e-8
MAX_STEPS = 100


@dataclass(frozen=True)
class LossSums:
    """Sums over tokens at one β: token weights, weighted loss, and its two derivatives in β."""

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

    temperature: float  # the minimizer, clipped to [0.05, 20]
    loss: float  # loss at the minimizer
    loss_at_one: float  # loss at T = 1
    gradient: float  # first derivative of the mean loss with respect to 1/T at the minimizer
    curvature: float  # second derivative
    at_bound: bool  # True if T was clipped and the loss still decreases beyond the bound
    steps: int  # number of Newton or bisection steps


def check_loss(loss: str, alpha: float | None, *, exact: bool = False) -> None:
    """Raise UsageError unless the loss is "NLL", "SS" with 0 < alpha < 1, or "any" (only if `exact`)."""
    check_name(loss, LOSSES, what="loss")
    if loss != "SS" and alpha is not None:
        raise UsageError(f"alpha: got {alpha}, but {loss} has no alpha. Omit alpha, or use loss='SS'")
    if loss == "any" and not exact:
        raise UsageError("loss: any requires exact TS of a local model. Omit method and solver, or use NLL")
    if loss == "SS" and (alpha is None or not 0 < alpha < 1):
        raise UsageError(
            f"alpha: got {alpha}, expected a number between 0 and 1 for SS. Pass a value of the paper (0.1, "
            "0.25, 0.5 or 0.75)"
        )


def _step(beta: float, sums: LossSums, low: float, high: float) -> float:
    """Return the Newton step in log β if it stays inside the bracket, else the geometric middle."""
    slope, curvature = beta * sums.slope, beta * beta * sums.curvature + beta * sums.slope
    if curvature > 0:
        exponent = -slope / curvature
        if abs(exponent) < 10:
            proposal = beta * math.exp(exponent)
            if low < proposal < high:
                return proposal
    return math.sqrt(low * high)


def minimise(evaluate: Callable[[float], LossSums]) -> Certificate:
    """Return the certificate of the temperature in [0.05, 20] that minimizes a convex loss.

    `evaluate` returns the sums of the loss at β = 1/T. If the loss does not depend on T (all logits of every
    token are equal), T stays at 1.
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
    """Return the certificate of 1 / `beta` from the sums at `beta` and at T = 1."""
    return Certificate(
        temperature=1 / beta,
        loss=sums.loss / sums.n,
        loss_at_one=at_one.loss / at_one.n,
        gradient=sums.slope / sums.n,
        curvature=sums.curvature / sums.n,
        at_bound=at_bound,
        steps=steps,
    )


#: Rules of selection among candidates: the highest gain, or the lowest Brier score.
CHOSEN_BY = ("gain", "brier")
Loss = tuple[str, float | None]
"""A loss and its α: ("NLL", None), ("SS", 0.25) or ("any", None)."""
#: The losses in the paper.
PAPER_LOSSES: tuple[Loss, ...] = (("NLL", None), ("SS", 0.1), ("SS", 0.25), ("SS", 0.5), ("SS", 0.75))
#: Maximum points of a stored loss curve.
LOSSES_KEPT = 200


@dataclass(frozen=True)
class Schedule:
    """Settings of a training by gradient steps."""

    learning_rate: float  # maximum learning rate, at the end of the warm-up
    weight_decay: float = 0.0  # decoupled weight decay of AdamW
    max_norm: float | None = None  # maximum norm of gradients; None: no clipping
    epochs: int = 2  # passes over the labeled questions
    batch_size: int = 4  # questions per step; the paper does not report it
    warm_up: float = 0.1  # share of the first epoch in which the learning rate rises linearly
    references: Literal["drawn"] = "drawn"  # one random reference answer of each question per epoch
    seed: int = 0  # seed of the order of questions, the random references and the initial weights of ATS

    def __post_init__(self) -> None:
        counts = self.epochs >= 1 and self.batch_size >= 1 and self.seed >= 0
        norm = self.max_norm is None or self.max_norm > 0
        rates = 0 < self.learning_rate < math.inf and 0 <= self.weight_decay < math.inf
        if not (counts and norm and rates and 0 <= self.warm_up <= 1):
            raise UsageError(
                f"schedule: got {self}. Pass a positive learning rate, number of epochs, batch size and "
                "norm, a weight decay and a seed of at least 0, and a warm-up share in [0, 1]"
            )


def learning_rates(schedule: Schedule, steps: int) -> list[float]:
    """Return the learning rate of each step: a linear rise, then half a cosine down to 0."""
    rising = math.ceil(schedule.warm_up * steps / schedule.epochs)
    falling = steps - rising
    return [
        schedule.learning_rate
        * ((step + 1) / rising if step < rising else (1 + math.cos(math.pi * (step - rising) / falling)) / 2)
        for step in range(steps)
    ]


def block_means(losses: Sequence[float], count: int = LOSSES_KEPT) -> tuple[float, ...]:
    """Return at most `count` means of consecutive losses, over blocks of nearly equal size."""
    count = min(count, len(losses))
    edges = [len(losses) * i // count for i in range(count + 1)] if count else [0]
    return tuple(math.fsum(losses[a:b]) / (b - a) for a, b in pairwise(edges))


@dataclass(frozen=True)
class GradientSteps:
    """The record of a training, saved with the recalibrator."""

    schedule: Schedule
    steps: Annotated[int, Field(ge=1, lt=2**63)]
    #: Sum of the learning rates: approximate maximum change of a parameter by AdamW.
    drift_bound: Annotated[float, Field(ge=0)]
    losses: tuple[float, ...] = field(repr=False)  # mean nats per token over blocks of steps
    exact_temperature: PositiveFloat | None = None  # TS: optimum of the same loss over all references

    def distance(self, temperature: float) -> float | None:
        """Return the distance of log T from the exact solution; None without one."""
        if self.exact_temperature is None:
            return None
        return abs(math.log(temperature / self.exact_temperature))


@dataclass(frozen=True)
class TemperatureFit:
    """An exact temperature with its certificate and standard error.

    The standard error of T is a sandwich estimate, clustered by question (or group). As in the jackknife, the
    slope of each cluster is divided by the curvature of the other clusters. It is NaN at a bound or with a
    single cluster.
    """

    loss: str  # "NLL", "SS" or "any"
    alpha: float | None  # α of selective smoothing
    certificate: Certificate  # from exact sums
    standard_error: float
    n_tokens: int
    n_questions: int
    n_clusters: int  # groups of questions, or questions
    #: Mean Σ p(a) over the references of a question, at T = 1 and at the T of other folds (by cluster).
    right_draws: tuple[float, float] | None = None

    @property
    def temperature(self) -> float:
        """The fitted T."""
        return self.certificate.temperature

    def interval(self) -> tuple[float, float]:
        """Return the 95% interval of T, NaN without a standard error.

        It is log T ± its standard error times the quantile of Student's t with clusters − 1 degrees of
        freedom.
        """
        if math.isnan(self.standard_error):
            return math.nan, math.nan
        factor = float(scipy.special.stdtrit(self.n_clusters - 1, 0.975))
        away = math.exp(min(factor * self.standard_error / self.temperature, math.log(T_MAX / T_MIN)))
        return max(self.temperature / away, T_MIN), min(self.temperature * away, T_MAX)

    def report(self) -> Json:
        """Return losses, error and interval by name; if questions share groups, also the number of groups."""
        return {
            "loss_before": self.certificate.loss_at_one,
            "loss_after": self.certificate.loss,
            "at_bound": self.certificate.at_bound,
            "standard_error": self.standard_error,
            "interval": None if math.isnan(self.standard_error) else list(self.interval()),
            **({"right_draws": list(self.right_draws)} if self.right_draws else {}),
            **({"n_groups": self.n_clusters} if self.n_clusters < self.n_questions else {}),
        }


# ---- Recalibrators


class _Fitted(Protocol):
    @property
    def loss(self) -> str:
        """The loss of the fit, or the score of the selection."""

    @property
    def alpha(self) -> float | None:
        """The α of selective smoothing."""


class FittedMap(_Fitted, TokenDistribution, Protocol):
    """A fitted recalibrator that reads only logits."""


class FittedReader(_Fitted, StateReader, Protocol):
    """A fitted recalibrator that reads hidden states: ATS."""


Fitted = FittedMap | FittedReader
"""A fitted recalibrator, which can be sampled with and saved."""

#: Minimum number of labeled questions, and the number below which a warning follows.
FEWEST, FEW = 5, 50


def check_enough(questions: int, *, of: str = "to fit to") -> None:
    """Raise FitError below 5 labeled questions; `of` is a phrase for their use."""
    if questions < FEWEST:
        raise FitError(
            f"questions: got {questions} labeled question{'' if questions == 1 else 's'} {of}, expected at "
            f"least {FEWEST}. Label more questions ({FEW} for a usable fit, a few hundred for a reliable one)"
        )


def warn_if_few(questions: int, *, of: str = "to fit to", stacklevel: int = 3) -> None:
    """Warn below 50 labeled questions."""
    if questions < FEW:
        warnings.warn(
            f"questions: got only {questions} labeled questions {of}; with {questions} other questions the "
            f"result may be very different. Label {FEW} or more, preferably a few hundred",
            SemcalWarning,
            stacklevel=stacklevel,
        )
