"""Recalibrators that treat every position alike, their losses, and what their files hold (spec section 6).

Base, SE, TS and TS-grid divide all logits by one temperature; Platt is a diagonal affine map of them.

With logits z and β = 1/T both losses of the paper have the same form for one token,

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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self

import scipy
import torch
from numpy.typing import ArrayLike
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from semcal.errors import FitError, InputError, UsageError, shown
from semcal.measures import MEASURES
from semcal.recalibration.provenance import CHOSEN_BY, GradientSteps, Provenance, Schedule
from semcal.registry import check_name
from semcal.rows import Json

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


#: Logits (N, V), targets (N,) and a weight for each token (N,).
Batch = tuple[Tensor, Tensor, Tensor]
#: Logits held in float64 at once while fitting: what stays in a processor's cache.
CHUNK = 128_000


# ---- Recalibrators


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


class FittedMap(Recalibrator, Protocol):
    """A recalibrator that is fitted and reads logits alone."""

    @property
    def loss(self) -> str:
        """What it was fitted or chosen by."""
        ...

    @property
    def alpha(self) -> float | None:
        """The α of selective smoothing."""
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
        """Return log softmax(w ⊙ logits + b) in float32, shape (..., V) unchanged, on the logits' device."""
        impossible = logits == -torch.inf
        weight, bias = self.weight.to(logits.device), self.bias.to(logits.device)
        z = weight * logits.float().masked_fill(impossible, 0.0) + bias
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


# ---- What their files hold

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Text = Annotated[str, Field(min_length=1)]


class _Strict(BaseModel):
    """Strict: 1 is no text, true no number. Unknown keys are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)


class _Example(_Strict):
    question: Text
    answer: Text
    context: str | None = None


class _Prompt(_Strict):
    few_shot: list[_Example] = []


class FitRecord(_Strict):
    """What a recalibrator's provenance must hold so that the prompt in it can be asked with."""

    prompt: _Prompt
    n_questions: Count
    seed: Count = 0


class _Steps(_Strict):
    schedule: Schedule
    steps: Annotated[int, Field(ge=1, lt=2**63)]
    drift_bound: Annotated[float, Field(ge=0)]
    losses: tuple[float, ...]
    exact_temperature: Positive | None = None


class _Weights(_Strict):
    file: Literal["model.safetensors"]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Contents(_Strict):
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

    def restored(self, weights: Path) -> Any:
        """The recalibrator; `weights` is the file of its tensors, if it has any."""
        raise NotImplementedError


class TSContents(Contents):
    """Temperature scaling."""

    keys = ("temperature", "loss", "alpha", "n_tokens", "certificate")

    temperature: Positive
    n_tokens: Count
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

    temperature: Positive
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


class ModuleContents(Contents):
    """A module whose weights lie in a file of their own."""

    weights: _Weights

    def module(self) -> Any:
        """The module of these settings, its weights yet to be loaded."""
        raise NotImplementedError


class _Vocabulary(_Strict):
    vocabulary: Annotated[int, Field(ge=1, lt=2**31)]


class PlattContents(ModuleContents):
    """Platt scaling."""

    shape: _Vocabulary

    @classmethod
    def described(cls, recalibrator: Platt) -> Json:
        """The size of the vocabulary, and what it was fitted by."""
        return {"shape": {"vocabulary": len(recalibrator.weight)}, **super().described(recalibrator)}

    def module(self) -> Platt:
        """The affine map."""
        return Platt(self.shape.vocabulary, loss=self.loss, alpha=self.alpha)
