"""Recalibrators that treat every position alike (spec section 6), and greedy.

Base, SE, TS and TS-grid divide all logits by one temperature; Platt is a diagonal affine map of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, Self

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from semcal.errors import FitError, InputError, UsageError
from semcal.recalibration.exact_fit import TemperatureFit
from semcal.recalibration.losses import Certificate, LossSums, check_loss, minimise, sums_at, token_terms
from semcal.recalibration.provenance import CHOSEN_BY, GradientSteps
from semcal.registry import check_name

#: Logits (N, V), targets (N,) and a weight for each token (N,).
Batch = tuple[Tensor, Tensor, Tensor]
#: Logits held in float64 at once while fitting: what stays in a processor's cache.
CHUNK = 128_000


class Recalibrator(Protocol):
    """A map from logits to the token distribution that is sampled and scored.

    Every recalibrator keeps two promises: the result is a distribution over the whole vocabulary
    (its exponentials sum to 1), and a row's result depends on that row alone.
    """

    @property
    def method(self) -> str:
        """The paper's name of the method: "Base", "SE", "TS"."""
        ...

    def log_probs(self, logits: Tensor) -> Tensor:
        """Map logits (..., V) of any float dtype to float32 log-probabilities (..., V)."""
        ...


class FittedMap(Protocol):
    """What is fitted and reads logits alone."""

    @property
    def method(self) -> str:
        """The name of its method."""
        ...

    @property
    def loss(self) -> str:
        """What it was fitted or chosen by."""
        ...

    @property
    def alpha(self) -> float | None:
        """The α of selective smoothing."""
        ...

    def log_probs(self, logits: Tensor) -> Tensor:
        """As of `Recalibrator`."""
        ...


class Temperature:
    """softmax(z / T) at a given temperature, reported as `method`.

    Raises
    ------
    UsageError
        If the temperature is not a positive finite number.

    Examples
    --------
    >>> Temperature(2.0).log_probs(torch.tensor([0.0, 2 * math.log(3)])).exp()
    tensor([0.2500, 0.7500])
    """

    def __init__(self, temperature: float, *, method: str = "T") -> None:
        if isinstance(temperature, str) or not (math.isfinite(temperature) and temperature > 0):
            raise UsageError(f"a temperature is a positive number, got {temperature!r}")
        self.temperature = float(temperature)
        self.method = method

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return log softmax(logits / T) in float32, shape unchanged."""
        return torch.log_softmax(logits.float() / self.temperature, dim=-1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(temperature={self.temperature:.6g})"


class Base(Temperature):
    """The model's own distribution, T = 1."""

    def __init__(self) -> None:
        super().__init__(1.0, method="Base")


class SE(Temperature):
    """The temperature usual for semantic entropy, T = 0.5 (Kuhn et al., 2023)."""

    def __init__(self) -> None:
        super().__init__(0.5, method="SE")


class GridTemperature(Temperature):
    """TS-grid: the temperature of a grid at which `measure` had the highest gain, or lowest Brier score."""

    alpha = None

    def __init__(self, temperature: float, *, measure: str, by: str = "gain") -> None:
        super().__init__(temperature, method="TS-grid")
        self.measure = measure
        #: What it was chosen by, as files have it: "gain" or "Brier".
        self.loss = {"gain": "gain", "brier": "Brier"}[check_name(by, CHOSEN_BY, what="rule of choice")]


@dataclass(frozen=True)
class Greedy:
    """Greedy decoding as a distribution, so that greedy answers are drawn in the same pass as samples.

    All probability lies on the most likely token of `of`, by default the model's own. No temperature changes
    which token that is; Platt can.

    Examples
    --------
    >>> Greedy().log_probs(torch.tensor([0.5, 2.0, 1.0])).exp()
    tensor([0., 1., 0.])
    """

    of: Recalibrator = field(default_factory=Base)
    method = "greedy"

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return 0 at the first of the most likely tokens and -inf elsewhere; NaN where a row has NaN."""
        log_probs = self.of.log_probs(logits)
        top = log_probs.argmax(-1, keepdim=True)
        sure = log_probs.gather(-1, top)
        return torch.full_like(log_probs, -torch.inf).scatter_(-1, top, sure - sure)


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
        z, y = torch.as_tensor(logits), _whole(torch.as_tensor(targets))
        w = torch.ones_like(y, dtype=torch.float64) if weights is None else torch.as_tensor(weights).double()
        return self.fit_batches(lambda: iter([(z, y, w)]))

    def fit_batches(self, batches: Callable[[], Iterable[Batch]]) -> Self:
        """Fit T to batches of (logits (N, V), targets (N,), weights (N,)), one in memory at a time.

        `batches` is called once for each Newton step.
        """
        check_loss(self.loss, self.alpha)
        counted = {"tokens": 0}

        def evaluate(beta: float) -> LossSums:
            total, counted["tokens"] = LossSums(0.0, 0.0, 0.0, 0.0), 0
            for logits, targets, weights in _chunks(batches()):
                total += sums_at(
                    beta, token_terms(logits, targets, loss=self.loss, alpha=self.alpha), weights
                )
                counted["tokens"] += int((weights > 0).sum())
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


def _chunks(batches: Iterable[Batch]) -> Iterator[Batch]:
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


class TrainedModule(nn.Module):
    """What ATS and Platt share: weights that are trained with a loss, and a record of the training."""

    method: str
    sgd_: GradientSteps | None = None

    def __init__(self, loss: str, alpha: float | None) -> None:
        super().__init__()
        check_loss(loss, alpha)
        self.loss, self.alpha = loss, alpha

    def freeze(self, sgd: GradientSteps | None) -> Self:
        """End the training that `sgd` records: weights on the CPU, without gradients."""
        self.sgd_ = sgd
        return self.requires_grad_(False).cpu()


class Platt(TrainedModule):
    """softmax(w ⊙ z + b), w = 1 and b = 0 before training.

    A logit of −inf stays −inf whatever w and b are: what the model rules out cannot come back. `weight` and
    `bias` are w and b, (V,) float32; `loss` and `alpha` are what it is fitted with.

    Examples
    --------
    >>> platt = Platt(2)
    >>> _ = platt.bias.data.copy_(torch.tensor([0.0, 3.0]).log1p())
    >>> platt.log_probs(torch.zeros(2)).exp().detach()
    tensor([0.2000, 0.8000])
    """

    method = "Platt"

    def __init__(self, vocabulary: int, *, loss: str = "NLL", alpha: float | None = None) -> None:
        super().__init__(loss, alpha)
        self.weight = nn.Parameter(torch.ones(vocabulary))
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return log softmax(w ⊙ logits + b) in float32, shape (..., V) unchanged."""
        impossible = logits == -torch.inf
        z = self.weight * logits.float().masked_fill(impossible, 0.0) + self.bias
        return torch.log_softmax(z.masked_fill(impossible, -torch.inf), dim=-1)

    def extra_repr(self) -> str:
        """Return what its repr shows."""
        return f"vocabulary={len(self.weight)}, loss={self.loss!r}, alpha={self.alpha}"


def temperature_of(recalibrator: Recalibrator | TrainedModule) -> float | None:
    """Return the one T by which a recalibrator divides every logit; None where there is none (yet)."""
    temperature = getattr(recalibrator, "temperature_", getattr(recalibrator, "temperature", None))
    return temperature if isinstance(temperature, float) else None


def solver_of(recalibrator: Recalibrator | TrainedModule) -> str | None:
    """Return how a recalibrator was fitted, "exact", "sgd" or "grid"; None for one that was not.

    Examples
    --------
    >>> solver_of(Base()), solver_of(TemperatureScaling().fit([[1.0, 0.0]] * 4, [0, 0, 0, 1]))
    (None, 'exact')
    """
    if getattr(recalibrator, "sgd_", None) is not None:
        return "sgd"
    if isinstance(recalibrator, GridTemperature):
        return "grid"
    return "exact" if isinstance(recalibrator, TemperatureScaling) else None


def single_temperature(recalibrator: Recalibrator | TrainedModule) -> float:
    """Return the one T by which a recalibrator divides every logit.

    Raises
    ------
    UsageError
        If it has none: ATS and Platt change each token's logits in their own way.
    FitError
        If it is not fitted yet.

    Examples
    --------
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
