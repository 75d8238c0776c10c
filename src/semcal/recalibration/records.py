"""The losses of TS by name, their minimum over β = 1/T, and the records of fits (spec section 6).

With logits z both losses of the paper have the same form for one token,

    loss(β) = w · (logsumexp(β z) − β c),

which is convex in β. NLL has w = 1 and c = z_y. Selective smoothing (paper, equation "ss loss") has
w = 1 − α and c = z_y where the model's top token is the target, w = α and c = mean(z) where it is not;
the top token does not change with T, so neither does the case. Newton steps inside a shrinking bracket find
the minimum; slope and curvature come from one pass over the tokens (`exact_solver.sums_at`):

    loss'(β) = Σ w (E_β[z] − c),    loss''(β) = Σ w Var_β[z].
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, Protocol

import scipy

from semcal.errors import FitError, SemcalWarning, UsageError
from semcal.models.protocols import StateReader, TokenDistribution
from semcal.registry import check_name
from semcal.rows import Json

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


#: What the best of several candidates is found by: the highest gain, or the lowest Brier score.
CHOSEN_BY = ("gain", "brier")
Loss = tuple[str, float | None]
"""A loss and its α: ("NLL", None), ("SS", 0.25) or ("any", None)."""
#: The losses that the paper tries.
PAPER_LOSSES: tuple[Loss, ...] = (("NLL", None), ("SS", 0.1), ("SS", 0.25), ("SS", 0.5), ("SS", 0.75))
REFERENCES = ("drawn", "all")
#: Points of a loss curve that are kept.
LOSSES_KEPT = 200


@dataclass(frozen=True)
class Schedule:
    """Settings of a training by gradient steps."""

    learning_rate: float  # highest learning rate, reached at the end of the warm-up
    weight_decay: float = 0.0  # of AdamW, decoupled
    max_norm: float | None = None  # gradients are clipped to this norm; None leaves them as they are
    epochs: int = 2  # passes over the labeled questions
    batch_size: int = 4  # questions per step; the paper does not state it
    warm_up: float = 0.1  # share of the first epoch in which the learning rate rises linearly
    #: One reference answer of each question, drawn anew in each epoch, or all of them with equal weights.
    references: Literal["drawn", "all"] = "drawn"
    seed: int = 0  # of the order of questions, the drawn references and the initial weights of ATS

    def __post_init__(self) -> None:
        check_name(self.references, REFERENCES, what="choice of references")
        if self.epochs < 1 or self.batch_size < 1 or self.seed < 0:
            raise UsageError(
                "a schedule has at least one epoch, one question for each step and a seed of 0 or more, got "
                f"epochs={self.epochs}, batch_size={self.batch_size}, seed={self.seed}"
            )
        rate, decay, norm = self.learning_rate, self.weight_decay, self.max_norm
        if not (0 < rate < math.inf and 0 <= decay < math.inf and 0 <= self.warm_up <= 1):
            raise UsageError(
                "a schedule has a positive learning rate, a weight decay of 0 or more and a warm-up share in "
                f"[0, 1], got {rate}, {decay} and {self.warm_up}"
            )
        if norm is not None and not norm > 0:
            raise UsageError(f"max_norm is a positive number or None, got {norm}")


def learning_rates(schedule: Schedule, steps: int) -> list[float]:
    """Return the learning rate of each step: a linear rise, then half a cosine down towards 0."""
    rising = math.ceil(schedule.warm_up * steps / schedule.epochs)
    falling = steps - rising
    return [
        schedule.learning_rate
        * ((step + 1) / rising if step < rising else (1 + math.cos(math.pi * (step - rising) / falling)) / 2)
        for step in range(steps)
    ]


def block_means(losses: Sequence[float], count: int = LOSSES_KEPT) -> tuple[float, ...]:
    """Return at most `count` means of consecutive losses, in blocks as equal as can be.

    >>> block_means([4.0, 2.0, 3.0, 1.0, 1.0], count=2)
    (3.0, 1.6666666666666667)
    """
    count = min(count, len(losses))
    edges = [len(losses) * i // count for i in range(count + 1)] if count else [0]
    return tuple(math.fsum(losses[a:b]) / (b - a) for a, b in pairwise(edges))


@dataclass(frozen=True)
class GradientSteps:
    """The record of a training, which is saved with the recalibrator."""

    schedule: Schedule
    steps: int
    drift_bound: float  # sum of the learning rates: about how far AdamW can have moved a parameter
    losses: tuple[float, ...] = field(repr=False)  # mean nats per token of equal shares of steps
    exact_temperature: float | None = None  # TS: optimum of the same loss over all references

    @classmethod
    def from_losses(
        cls, schedule: Schedule, losses: Sequence[float], exact_temperature: float | None = None
    ) -> GradientSteps:
        """Return the record of a training with these losses (nats), one for each step."""
        bound = sum(learning_rates(schedule, len(losses)))
        return cls(schedule, len(losses), bound, block_means(losses), exact_temperature)

    def distance(self, temperature: float) -> float | None:
        """Return how far log T is from that of the exact solution; None where there is none."""
        if self.exact_temperature is None:
            return None
        return abs(math.log(temperature / self.exact_temperature))


@dataclass(frozen=True)
class LossCurve:
    """Mean loss per token (any: per question; nats) at the tabulated temperatures, for a plot."""

    temperature: tuple[float, ...]
    loss: tuple[float, ...]


@dataclass(frozen=True)
class TemperatureFit:
    """An exact temperature with its certificate, standard error and resampled values.

    The standard error of T is the sandwich, clustered by question (or group) and each cluster's slope taken
    with the curvature of the others alone, as in the jackknife; NaN at a bound or with a single cluster.
    """

    loss: str  # "NLL", "SS" or "any"
    alpha: float | None  # of selective smoothing
    certificate: Certificate  # from exact sums
    log_temperature_step: float  # how far a further Newton step would move log T: the remaining error
    standard_error: float
    resampled: tuple[float, ...] = field(repr=False)  # T of sets of questions drawn again
    curve: LossCurve = field(repr=False)
    n_tokens: int
    n_questions: int
    n_clusters: int  # groups of questions, or questions
    #: Mean Σ p(a) over a question's references, at T = 1 and, out of fold (by cluster), at the fitted T.
    right_draws: tuple[float, float] | None = None

    @property
    def temperature(self) -> float:
        """The fitted T."""
        return self.certificate.temperature

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the interval of T, NaN where there is none: log T ± its standard error times the quantile of
        Student's t with clusters − 1 degrees of freedom.
        """
        if math.isnan(self.standard_error):
            return math.nan, math.nan
        factor = float(scipy.special.stdtrit(self.n_clusters - 1, (1 + level) / 2))
        away = math.exp(min(factor * self.standard_error / self.temperature, math.log(T_MAX / T_MIN)))
        return max(self.temperature / away, T_MIN), min(self.temperature * away, T_MAX)

    def report(self, *, grouped: bool = False) -> Json:
        """Return losses, error and interval by name, of `grouped` questions also the number of groups."""
        return {
            "loss_before": self.certificate.loss_at_one,
            "loss_after": self.certificate.loss,
            "at_bound": self.certificate.at_bound,
            "standard_error": self.standard_error,
            "interval": None if math.isnan(self.standard_error) else list(self.interval()),
            **({"right_draws": list(self.right_draws)} if self.right_draws else {}),
            **({"n_groups": self.n_clusters} if grouped else {}),
        }


# ---- Recalibrators


class _Fitted(Protocol):
    @property
    def loss(self) -> str:
        """The loss or score that it was fitted or chosen by."""

    @property
    def alpha(self) -> float | None:
        """The α of selective smoothing."""


class FittedMap(_Fitted, TokenDistribution, Protocol):
    """A recalibrator that is fitted and reads logits alone."""


class FittedReader(_Fitted, StateReader, Protocol):
    """A recalibrator that is fitted and reads hidden states: ATS."""


Fitted = FittedMap | FittedReader
"""What a fit gives: it can be sampled with, and saved."""

#: Fewer labelled questions are refused; fewer than FEW raise a warning.
FEWEST, FEW = 5, 50


def check_enough(questions: int, *, of: str = "to fit to") -> None:
    """Raise FitError below 5 labelled questions; `of` says what they are for.

    Examples
    --------
    >>> check_enough(2)
    Traceback (most recent call last):
    semcal.errors.FitError: there are 2 labelled questions to fit to, and at least 5 are needed: ...
    """
    if questions < FEWEST:
        raise FitError(
            f"there {'is' if questions == 1 else 'are'} {questions or 'no'} labelled "
            f"question{'' if questions == 1 else 's'} {of}, and at least {FEWEST} are needed: label more "
            f"({FEW} give a usable fit, a few hundred a reliable one)"
        )


def warn_if_few(questions: int, *, of: str = "to fit to", stacklevel: int = 3) -> None:
    """Warn below 50 labelled questions."""
    if questions < FEW:
        warnings.warn(
            f"there are only {questions} labelled questions {of}: {questions} others may give a very "
            f"different result; label {FEW} or more, better a few hundred",
            SemcalWarning,
            stacklevel=stacklevel,
        )
