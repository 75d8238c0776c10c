"""Recalibrators that divide all logits by one fitted temperature: TS and TS-grid (spec section 6).

This module imports torch only for tensors to recalibrate or to fit to.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from pydantic import PositiveFloat

from semcal.errors import FitError, UsageError, naming_extra, shown
from semcal.measures import MEASURES
from semcal.models.distribution import Temperature, temperature_of
from semcal.models.protocols import AnyRecalibrator
from semcal.recalibration.files import Contents, StoredCount
from semcal.recalibration.fit import Fit, fit_estimator
from semcal.recalibration.records import (
    CHOSEN_BY,
    Certificate,
    GradientSteps,
    TemperatureFit,
    check_loss,
    minimise,
)
from semcal.registry import check_name

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from torch import Tensor

    from semcal.data.datasets import Questions
    from semcal.inputs import ModelLike
    from semcal.models.prompting import PromptConfig


class GridTemperature(Temperature):
    """TS-grid: the temperature of a grid with the highest gain, or lowest Brier score, of `measure`."""

    alpha = None

    def __init__(self, temperature: float, *, measure: str, by: str = "gain") -> None:
        super().__init__(temperature, method="TS-grid")
        self.measure = measure
        #: The rule of selection, as in files: "gain" or "Brier".
        self.loss = {"gain": "gain", "brier": "Brier"}[check_name(by, CHOSEN_BY, what="rule of choice")]


class TemperatureScaling:
    """Temperature scaling (TS; paper, "Token-Level Recalibration"): one temperature, fitted exactly.

    Parameters
    ----------
    loss : {"NLL", "SS", "any"}
        Negative log-likelihood, selective smoothing, or any reference (only with `semcal.fit`).
    alpha : float, optional
        The α of selective smoothing, between 0 and 1; the paper uses 0.1, 0.25, 0.5 and 0.75.

    Attributes
    ----------
    temperature_ : float
        The fitted T, in [0.05, 20].
    certificate_ : Certificate
        Loss before and after, gradient and curvature at the optimum, and a flag for a clipped T.
    n_tokens_ : int
        Number of tokens of the data.
    sgd_ : GradientSteps or None
        The gradient steps that led to T; None for the exact solution.

    Examples
    --------
    A model with odds of 9 : 1 that is right three times in four is calibrated by T = 2:

    >>> import math, torch
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

    def __init__(self, loss: str = "NLL", alpha: float | None = None) -> None:
        check_loss(loss, alpha, exact=True)
        self.loss = loss
        self.alpha = alpha

    @classmethod
    def from_fit(cls, fit: TemperatureFit) -> Self:
        """Return the fitted recalibrator for a result of `fit_temperatures`."""
        return cls.from_certificate(
            fit.certificate, fit.temperature, loss=fit.loss, alpha=fit.alpha, n_tokens=fit.n_tokens
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
    ) -> Self:
        """Return a fitted recalibrator with a given T, from gradient steps or a file."""
        ts = cls(loss, alpha)
        ts.certificate_, ts.temperature_, ts.n_tokens_ = certificate, temperature, n_tokens
        ts.sgd_ = sgd
        return ts

    @overload
    def fit(  # type: ignore[overload-overlap]
        self, model: ModelLike, labeled: Questions, *, prompt: PromptConfig | None = None, **options: Any
    ) -> Fit: ...

    @overload
    def fit(self, model: ArrayLike | Tensor, labeled: ArrayLike | Tensor) -> Self: ...

    def fit(
        self,
        model: Any,
        labeled: Any,
        *,
        prompt: PromptConfig | None = None,
        **options: Any,
    ) -> Fit | Self:
        """Fit T to labeled questions, or to logits and the reference tokens at their positions.

        Parameters
        ----------
        model : LanguageModel, ServerModel, str or Path; or array or tensor, shape (N, V)
            The frozen model as in `semcal.fit`; or its logits at answer positions.
        labeled : file, DataFrame, dicts or Questions; or array or tensor, shape (N,)
            Labeled questions; for logits, the token ids.
        prompt : PromptConfig, optional
            The template, and the examples before every question.
        **options
            Further keywords of `semcal.fit`: `solver`, `seed`, `learning_rate`, …

        Returns
        -------
        Fit or TemperatureScaling
            The fit with its prompt and model, as from `semcal.fit`; for logits, this object.

        Raises
        ------
        InputError
            If shapes, targets or logits are invalid; the message names the token.
        FitError
            If there is no token.
        """
        if isinstance(model, str | Path) or hasattr(model, "capabilities"):
            return fit_estimator(self, model, labeled, prompt, **options)
        with naming_extra("TemperatureScaling.fit"):
            from semcal.recalibration.exact_solver import as_logits, sums_of_logits

        check_loss(self.loss, self.alpha)
        logits, targets = as_logits(model, labeled)
        if not len(targets):
            raise FitError("labeled: no answer token to fit a temperature to. Pass labeled questions")
        self.certificate_ = minimise(
            lambda beta: sums_of_logits(beta, logits, targets, loss=self.loss, alpha=self.alpha)
        )
        self.temperature_ = self.certificate_.temperature
        self.n_tokens_ = len(targets)
        return self

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return log softmax(logits / T) in float32, shape unchanged; FitError before `fit`."""
        if not hasattr(self, "temperature_"):
            raise FitError("TemperatureScaling is not fitted. Call fit first")
        return Temperature(self.temperature_).log_probs(logits)

    def __repr__(self) -> str:
        fitted = f", temperature_={self.temperature_:.6g}" if hasattr(self, "temperature_") else ""
        if self.sgd_ is not None:
            fitted += f", solver='sgd', steps={self.sgd_.steps}, exact={self.sgd_.exact_temperature:.6g}"
        return f"TemperatureScaling(loss={self.loss!r}, alpha={self.alpha}{fitted})"


def solver_of(recalibrator: AnyRecalibrator) -> str | None:
    """Return the solver of a recalibrator, "exact", "sgd" or "grid"; None without a fit."""
    if getattr(recalibrator, "sgd_", None) is not None:
        return "sgd"
    if isinstance(recalibrator, GridTemperature):
        return "grid"
    return "exact" if isinstance(recalibrator, TemperatureScaling) else None


def single_temperature(recalibrator: AnyRecalibrator) -> float:
    """Return the single T by which a recalibrator divides every logit.

    UsageError without a single T (ATS and Platt); FitError before a fit.
    """
    temperature = temperature_of(recalibrator)
    if temperature is not None:
        return temperature
    if isinstance(recalibrator, TemperatureScaling):
        raise FitError("TemperatureScaling is not fitted. Call fit first")
    raise UsageError(
        f"{recalibrator.method} has no single temperature, so it cannot be exported to another program. "
        "Fit a temperature with `semcal fit --method TS`, or sample with semcal"
    )


class TSContents(Contents):
    """The contents of the file of TS."""

    keys = ("temperature", "loss", "alpha", "n_tokens", "certificate")

    temperature: PositiveFloat
    n_tokens: StoredCount
    certificate: Certificate

    def check(self) -> None:
        """Check the loss with its α, and the recorded optimum for gradient steps."""
        check_loss(self.loss, self.alpha, exact=self.sgd is None)
        if self.sgd is not None and self.sgd.exact_temperature is None:
            raise UsageError("sgd.exact_temperature is missing")

    def restored(self, weights: Path) -> TemperatureScaling:  # noqa: ARG002
        """Return the fitted TS."""
        return TemperatureScaling.from_certificate(
            self.certificate,
            self.temperature,
            loss=self.loss,
            alpha=self.alpha,
            n_tokens=self.n_tokens,
            sgd=self.sgd,
        )


class GridContents(Contents):
    """The contents of the file of TS-grid."""

    keys = ("temperature", "measure", "loss", "alpha")

    temperature: PositiveFloat
    measure: str
    loss: Literal["Brier", "gain"]  # rule of selection
    alpha: None

    def check(self) -> None:
        """Check the measure."""
        if self.measure not in MEASURES:
            raise UsageError(f"measure: expected one of {', '.join(MEASURES)}, got {shown(self.measure)}")

    def restored(self, weights: Path) -> GridTemperature:  # noqa: ARG002
        """Return the selected temperature."""
        return GridTemperature(self.temperature, measure=self.measure, by=self.loss.lower())
