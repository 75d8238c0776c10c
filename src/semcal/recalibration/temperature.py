"""Recalibrators that divide all logits by one temperature, and what their files hold (spec section 6).

Base, SE, TS and TS-grid. TS is the optimum of a convex loss (`optimum`). Nothing here imports torch before
there are tensors to recalibrate or to fit to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Self

import scipy
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, model_validator

from semcal.data.question import Role
from semcal.errors import FitError, UsageError, naming_extra, shown
from semcal.measures import MEASURES
from semcal.models.distribution import AnyRecalibrator, Temperature, TokenDistribution, temperature_of
from semcal.recalibration.optimum import T_MAX, T_MIN, Certificate, LossSums, check_loss, minimise
from semcal.recalibration.provenance import CHOSEN_BY, GradientSteps, Provenance, Schedule
from semcal.registry import check_name
from semcal.rows import Json

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from torch import Tensor

    from semcal.recalibration.losses import LossBatch


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
    resampled: tuple[float, ...] = field(repr=False)  # T of calibration sets with questions drawn again
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


class FittedMap(TokenDistribution, Protocol):
    """A recalibrator that is fitted and reads logits alone."""

    @property
    def loss(self) -> str:
        """What it was fitted or chosen by."""
        ...

    @property
    def alpha(self) -> float | None:
        """The α of selective smoothing."""
        ...


class GridTemperature(Temperature):
    """TS-grid: the temperature of a grid at which `measure` had the highest gain, or lowest Brier score."""

    alpha = None

    def __init__(self, temperature: float, *, measure: str, by: str = "gain") -> None:
        super().__init__(temperature, method="TS-grid")
        self.measure = measure
        #: What it was chosen by, as files have it: "gain" or "Brier".
        self.loss = {"gain": "gain", "brier": "Brier"}[check_name(by, CHOSEN_BY, what="rule of choice")]


class TemperatureScaling:
    """Temperature scaling (TS): one temperature, fitted exactly.

    Parameters
    ----------
    loss : {"NLL", "SS", "any"}
        Negative log-likelihood, selective smoothing, or any reference (fitted by `semcal.fit` alone).
    alpha : float, optional
        The α of selective smoothing, between 0 and 1; the paper tries 0.1, 0.25, 0.5 and 0.75.

    Attributes
    ----------
    temperature_ : float
        The fitted T, in [0.05, 20].
    certificate_ : Certificate
        Loss before and after, gradient and curvature at the optimum, whether T was clipped.
    n_tokens_ : int
        Tokens of positive weight in the data.
    sgd_ : GradientSteps or None
        The gradient steps that led to T; None for the exact solution.
    exact_ : TemperatureFit or None
        More about the exact solution (interval, loss curve); it is not saved.

    Examples
    --------
    A model that says 9 : 1 and is right three times in four is calibrated by T = 2:

    >>> import torch
    >>> logits = torch.tensor([[math.log(9.0), 0.0]] * 4)
    >>> ts = TemperatureScaling(loss="NLL").fit(logits, [0, 0, 0, 1])
    >>> round(ts.temperature_, 6)
    2.0
    """

    method = "TS"
    certificate_: Certificate
    temperature_: float
    n_tokens_: int
    sgd_: GradientSteps | None = None
    exact_: TemperatureFit | None = None

    def __init__(self, loss: str = "NLL", alpha: float | None = None) -> None:
        check_loss(loss, alpha, exact=True)
        self.loss = loss
        self.alpha = alpha

    @classmethod
    def from_fit(cls, fit: TemperatureFit) -> Self:
        """Return the result of `fit_temperatures` as the object that `fit` would have given."""
        return cls.from_certificate(
            fit.certificate, fit.temperature, loss=fit.loss, alpha=fit.alpha, n_tokens=fit.n_tokens, exact=fit
        )

    @classmethod
    def from_certificate(
        cls,
        certificate: Certificate,
        temperature: float,
        *,
        loss: str,
        alpha: float | None,
        n_tokens: int,
        sgd: GradientSteps | None = None,
        exact: TemperatureFit | None = None,
    ) -> Self:
        """Return a fitted object whose T was computed elsewhere: by gradient steps, or read from a file."""
        ts = cls(loss, alpha)
        ts.certificate_, ts.temperature_, ts.n_tokens_ = certificate, temperature, n_tokens
        ts.sgd_, ts.exact_ = sgd, exact
        return ts

    def fit(
        self, logits: ArrayLike | Tensor, targets: ArrayLike | Tensor, *, weights: ArrayLike | None = None
    ) -> Self:
        """Fit T to the frozen model's logits at answer positions and the reference tokens there.

        Parameters
        ----------
        logits : array or tensor, shape (N, V)
            Before recalibration.
        targets : array or tensor, shape (N,)
            Token ids.
        weights : array, shape (N,), optional
            Non-negative weight of each token; all 1 by default.

        Raises
        ------
        InputError
            If shapes, targets, weights or logits cannot be used; the message names the token.
        FitError
            If there is no token of positive weight.
        """
        with naming_extra("TemperatureScaling.fit"):
            from semcal.recalibration.losses import as_batch

        batch = as_batch(logits, targets, weights)
        return self.fit_batches(lambda: [batch])

    def fit_batches(self, batches: Callable[[], Iterable[LossBatch]]) -> Self:
        """Fit T to batches of (logits (N, V), targets (N,), weights (N,)), one in memory at a time.

        `batches` is called once for each Newton step.
        """
        with naming_extra("TemperatureScaling.fit_batches"):
            from semcal.recalibration.losses import sums_of_batches

        check_loss(self.loss, self.alpha)
        counted = {"tokens": 0}

        def evaluate(beta: float) -> LossSums:
            total, counted["tokens"] = sums_of_batches(beta, batches(), loss=self.loss, alpha=self.alpha)
            if total.n == 0:
                raise FitError("there is no answer token to fit a temperature to; give labelled questions")
            return total

        self.certificate_ = minimise(evaluate)
        self.temperature_ = self.certificate_.temperature
        self.n_tokens_ = counted["tokens"]
        return self

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return log softmax(logits / T) in float32, shape unchanged; FitError before `fit`."""
        if not hasattr(self, "temperature_"):
            raise FitError("this TemperatureScaling has no temperature yet; call fit first")
        return Temperature(self.temperature_).log_probs(logits)

    def __repr__(self) -> str:
        fitted = f", temperature_={self.temperature_:.6g}" if hasattr(self, "temperature_") else ""
        if self.sgd_ is not None:
            fitted += f", solver='sgd', steps={self.sgd_.steps}, exact={self.sgd_.exact_temperature:.6g}"
        return f"TemperatureScaling(loss={self.loss!r}, alpha={self.alpha}{fitted})"


def solver_of(recalibrator: AnyRecalibrator) -> str | None:
    """Return how a recalibrator was fitted, "exact", "sgd" or "grid"; None for one that was not.

    Examples
    --------
    >>> from semcal.recalibration import Base
    >>> solver_of(Base()), solver_of(TemperatureScaling().fit([[1.0, 0.0]] * 4, [0, 0, 0, 1]))
    (None, 'exact')
    """
    if getattr(recalibrator, "sgd_", None) is not None:
        return "sgd"
    if isinstance(recalibrator, GridTemperature):
        return "grid"
    return "exact" if isinstance(recalibrator, TemperatureScaling) else None


def single_temperature(recalibrator: AnyRecalibrator) -> float:
    """Return the one T by which a recalibrator divides every logit.

    Raises
    ------
    UsageError
        If it has none: ATS and Platt change each token's logits in their own way.
    FitError
        If it is not fitted yet.

    Examples
    --------
    >>> from semcal.recalibration import SE
    >>> single_temperature(SE())
    0.5
    """
    temperature = temperature_of(recalibrator)
    if temperature is not None:
        return temperature
    if isinstance(recalibrator, TemperatureScaling):
        raise FitError("this TemperatureScaling has no temperature yet; call fit first")
    raise UsageError(
        f"{recalibrator.method} has no single temperature, so it cannot be exported to another program; "
        "fit one with `semcal fit --method TS`, or sample with semcal itself"
    )


# ---- What their files hold

StoredCount = Annotated[int, Field(ge=0, lt=2**63)]
Text = Annotated[str, Field(min_length=1)]


class Strict(BaseModel):
    """Strict: 1 is no text, true no number. Unknown keys are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)


class _Message(Strict):
    role: Role
    content: Text


class _Example(Strict):
    question: str
    answer: Text
    context: str | None = None
    messages: list[_Message] = []

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not (self.question or self.messages):
            raise ValueError("an example holds a question or messages")
        return self


class _Prompt(Strict):
    few_shot: list[_Example] = []
    system: str | None = None
    user: str | None = None
    roles: list[Role] = []


class FitRecord(Strict):
    """What a recalibrator's provenance must hold so that the prompt in it can be asked with."""

    prompt: _Prompt
    n_questions: StoredCount
    seed: StoredCount = 0


class _Steps(Strict):
    schedule: Schedule
    steps: Annotated[int, Field(ge=1, lt=2**63)]
    drift_bound: Annotated[float, Field(ge=0)]
    losses: tuple[float, ...]
    exact_temperature: PositiveFloat | None = None


class Contents(Strict):
    """What the file of a method holds; each method has a class of its own."""

    keys: ClassVar[tuple[str, ...]] = ("loss", "alpha")  # those of the recalibrator itself, in their order

    method: str
    provenance: Provenance
    fit: FitRecord = Field(validation_alias="provenance")
    loss: str
    alpha: float | None
    sgd: _Steps | None = None

    @property
    def steps(self) -> GradientSteps | None:
        """The record of the training, if there was one."""
        return None if self.sgd is None else GradientSteps(**dict(self.sgd))

    @classmethod
    def described(cls, recalibrator: Any) -> Json:
        """The keys of a recalibrator's own in its file, by its attributes of these names (learnt: with _)."""
        values = {key: getattr(recalibrator, f"{key}_", getattr(recalibrator, key, None)) for key in cls.keys}
        return {
            key: asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
            for key, value in values.items()
        }

    def check(self) -> None:
        """Raise UsageError for what types do not say."""
        check_loss(self.loss, self.alpha)

    @classmethod
    def write_weights(cls, recalibrator: Any, path: Path) -> Json:  # noqa: ARG003
        """Write the tensors that a recalibrator has, and return what its file says of theirs."""
        path.unlink(missing_ok=True)  # of another method that was saved here before
        return {}

    def restored(self, weights: Path) -> Any:
        """The recalibrator; `weights` is the file of its tensors, if it has any."""
        raise NotImplementedError


class TSContents(Contents):
    """Temperature scaling."""

    keys = ("temperature", "loss", "alpha", "n_tokens", "certificate")

    temperature: PositiveFloat
    n_tokens: StoredCount
    certificate: Certificate

    def check(self) -> None:
        """The loss with its α, and the optimum beside gradient steps."""
        check_loss(self.loss, self.alpha, exact=self.sgd is None)
        if self.sgd is not None and self.sgd.exact_temperature is None:
            raise UsageError("sgd.exact_temperature is missing")

    def restored(self, weights: Path) -> TemperatureScaling:  # noqa: ARG002
        """TS as it was fitted."""
        return TemperatureScaling.from_certificate(
            self.certificate,
            self.temperature,
            loss=self.loss,
            alpha=self.alpha,
            n_tokens=self.n_tokens,
            sgd=self.steps,
        )


class GridContents(Contents):
    """A temperature that was chosen from a grid."""

    keys = ("temperature", "measure", "loss", "alpha")

    temperature: PositiveFloat
    measure: str
    loss: Literal["Brier", "gain"]  # what it was chosen by
    alpha: None

    def check(self) -> None:
        """The measure."""
        if self.measure not in MEASURES:
            raise UsageError(f"measure: expected one of {', '.join(MEASURES)}, got {shown(self.measure)}")

    def restored(self, weights: Path) -> GridTemperature:  # noqa: ARG002
        """The temperature as it was chosen."""
        return GridTemperature(self.temperature, measure=self.measure, by=self.loss.lower())
