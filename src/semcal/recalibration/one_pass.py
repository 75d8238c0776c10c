"""Exact temperatures for every loss at once (spec section 6, solver `exact`), with errors and intervals.

Each loss is Σ w (L(β) − β c) with tabulated L (see `tables`), so a sum of tables is one curve of β. Its
minimum is found on the curve, then corrected by Newton steps on exact sums, for all losses in common passes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import stdtrit
from torch import Tensor

from semcal.errors import FitError, InputError, UndefinedWarning
from semcal.recalibration.enough import check_enough
from semcal.recalibration.exact import T_MAX, T_MIN, Certificate, Sums, certify, moments
from semcal.recalibration.losses import check_loss
from semcal.recalibration.suffixes import Head, Suffixes
from semcal.recalibration.tables import NODES, Tables, logit_chunks, series, tabulate
from semcal.recalibration.temperature import TemperatureScaling

__all__ = ["PAPER_LOSSES", "Curve", "LossCurve", "Point", "TemperatureFit", "curve_of", "fit_temperatures"]

Point = tuple[str, float | None]
"""A loss and its α: ("NLL", None) or ("SS", 0.25)."""

#: The losses that the paper tries.
PAPER_LOSSES: tuple[Point, ...] = (("NLL", None), ("SS", 0.1), ("SS", 0.25), ("SS", 0.5), ("SS", 0.75))
#: An exact Newton step that moves log T by less than this confirms the optimum.
CONFIRMED = 5e-7
MAX_PASSES = 20
#: Slope of the mean loss in log β, nats, below which the tables cannot tell its sign.
FLAT = 1e-5
BISECTIONS = 60
#: Temperatures from 1 / USUAL to USUAL are tabulated first.
USUAL = 4.0
#: Resampled counts held at once.
RESAMPLED = 4_000_000


@dataclass(frozen=True)
class Curve:
    """One loss of a calibration set as a function of β, question by question.

    Attributes
    ----------
    weight : Tensor, shape (S,), float64
        The factor of each position's L(β), summed over the tokens that it predicts.
    question : Tensor, shape (S,)
        The question of each position.
    centre : Tensor, shape (Q,), float64
        Σ w c of each question.
    n : Tensor, shape (Q,), float64
        Σ of the token weights of each question.
    coefficients : Tensor, shape (Q, K), float64
        Chebyshev coefficients of Σ w L(β) of each question.
    low, high : float
        The range of β.
    """

    weight: Tensor
    question: Tensor
    centre: Tensor
    n: Tensor
    coefficients: Tensor
    low: float
    high: float

    def minimum(self, counts: Tensor | None = None) -> Tensor:
        """Return the β (B,) that minimise the loss with each question counted `counts` (B, Q) times.

        Bisection of the slope, to rounding. A loss that falls all the way to a bound of the range gives it,
        and so does one that from some β on is flat to what the tables can tell.
        """
        counts = torch.ones(1, len(self.n), dtype=torch.float64) if counts is None else counts
        coefficients, centre = counts @ self.coefficients, counts @ self.centre
        flat = FLAT * counts @ self.n

        def falls(u: Tensor, slack: Tensor | float = 0.0) -> Tensor:
            _, slope, _ = series(coefficients, u.exp(), low=self.low, high=self.high)
            return slope - u.exp() * centre < slack

        low = torch.full_like(centre, math.log(self.low))
        high = torch.full_like(centre, math.log(self.high))
        bottom, top = ~falls(low), falls(high, flat)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            down = falls(middle)
            low, high = torch.where(down, middle, low), torch.where(down, high, middle)
        beta = ((low + high) / 2).exp()
        return beta.masked_fill(top, self.high).masked_fill(bottom, self.low)

    def sums(self, beta: float) -> Sums:
        """Return the sums over all tokens at β, from the tables."""
        at = torch.tensor([beta], dtype=torch.float64)
        value, first, second = (
            float(t) for t in series(self.coefficients.sum(0), at, low=self.low, high=self.high)
        )
        centre = float(self.centre.sum())
        return Sums(
            float(self.n.sum()),
            value - beta * centre,
            first / beta - centre,
            (second - first) / beta**2,
        )


@dataclass(frozen=True)
class LossCurve:
    """Mean loss per token (nats) against the temperatures that were tabulated, for a plot."""

    temperature: tuple[float, ...]
    loss: tuple[float, ...]


@dataclass(frozen=True)
class TemperatureFit:
    """An exact temperature with what is known about it.

    Attributes
    ----------
    loss : str
        "NLL" or "SS".
    alpha : float or None
        The α of selective smoothing.
    certificate : Certificate
        Temperature, loss, gradient and curvature from exact sums, and whether a bound was hit.
    log_temperature_step : float
        How far a further Newton step would move log T: the error that is left.
    standard_error : float
        Of T: the sandwich, clustered by question (or group) and each cluster's slope taken with the curvature
        of the others alone, as in the jackknife; NaN at a bound or with a single cluster.
    resampled : tuple of float
        T of calibration sets with questions drawn with replacement.
    curve : LossCurve
        For a plot.
    n_tokens, n_questions, n_clusters : int
        What it was fitted to; clusters are the groups of questions, or the questions.
    """

    loss: str
    alpha: float | None
    certificate: Certificate
    log_temperature_step: float
    standard_error: float
    resampled: tuple[float, ...] = field(repr=False)
    curve: LossCurve = field(repr=False)
    n_tokens: int
    n_questions: int
    n_clusters: int

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
        factor = float(stdtrit(self.n_clusters - 1, (1 + level) / 2))
        away = math.exp(min(factor * self.standard_error / self.temperature, math.log(T_MAX / T_MIN)))
        return max(self.temperature / away, T_MIN), min(self.temperature * away, T_MAX)

    def recalibrator(self) -> TemperatureScaling:
        """Return it as the fitted TemperatureScaling that `TemperatureScaling.fit` would have given."""
        ts = TemperatureScaling(self.loss, self.alpha)
        ts.certificate_, ts.temperature_, ts.n_tokens_ = self.certificate, self.temperature, self.n_tokens
        ts.exact_ = self
        return ts


def curve_of(suffixes: Suffixes, tables: Tables, *, loss: str, alpha: float | None) -> Curve:
    """Sum the tables of all tokens into the curve of one loss, all references of a question weighted equally.

    Parameters
    ----------
    suffixes : Suffixes
        The calibration set.
    tables : Tables
        From `tabulate` of the same set.
    loss : {"NLL", "SS"}
        Which loss.
    alpha : float or None
        The α of selective smoothing.
    """
    factor, centre = tables.terms(loss=loss, alpha=alpha)
    sample = suffixes.token_weights()
    of_token = suffixes.answer_question[suffixes.token_answer()]
    of_position = torch.empty_like(tables.rows).scatter_(0, tables.position, of_token)
    weight = torch.zeros(len(tables.rows), dtype=torch.float64)
    weight.index_add_(0, tables.position, factor * sample)
    questions = len(suffixes.prompt_start)
    coefficients = torch.zeros(questions, tables.coefficients.shape[1], dtype=torch.float64)
    for part in torch.split(torch.arange(len(weight)), RESAMPLED // coefficients.shape[1]):
        added = weight[part, None] * tables.coefficients[part]
        coefficients.index_add_(0, of_position[part], added)
    nothing = torch.zeros(questions, dtype=torch.float64)
    centres = nothing.index_add(0, of_token, factor * sample * centre)
    n = nothing.index_add(0, of_token, sample)
    return Curve(weight, of_position, centres, n, coefficients, tables.low, tables.high)


def _exact(
    suffixes: Suffixes, tables: Tables, head: Head, curves: Sequence[Curve], betas: Sequence[float]
) -> tuple[list[Sums], list[Tensor]]:
    """One pass over the logits: for each curve its sums at its β, slope and curvature of each question."""
    unique = sorted(set(betas))
    found = torch.empty(len(unique), 3, len(tables.rows), dtype=torch.float64)
    for part, logits in logit_chunks(suffixes.states, tables.rows, head):
        z = logits.double()
        for i, beta in enumerate(unique):
            found[i, :, part] = torch.stack(moments(beta, z)).cpu()
    sums, parts = [], []
    for curve, beta in zip(curves, betas):
        log_partition, mean, variance = found[unique.index(beta)] * curve.weight
        slope = (-curve.centre).index_add(0, curve.question, mean)
        loss = float(log_partition.sum() - beta * curve.centre.sum())
        sums.append(Sums(float(curve.n.sum()), loss, float(slope.sum()), float(variance.sum())))
        parts.append(torch.stack([slope, torch.zeros_like(slope).index_add(0, curve.question, variance)]))
    return sums, parts


def _newton(beta: float, here: Sums) -> float:
    """The Newton step of log β on exact sums, 0 where a bound or a flat loss stops it."""
    slope, curvature = beta * here.slope, beta * beta * here.curvature + beta * here.slope
    if slope == 0 or (beta <= 1 / T_MAX and slope > 0) or (beta >= 1 / T_MIN and slope < 0):
        return 0.0
    step = -slope / curvature if curvature > 0 else -math.copysign(0.5, slope)
    return max(-0.5, min(0.5, step))


def fit_temperatures(
    suffixes: Suffixes,
    head: Head,
    *,
    points: Sequence[Point] = PAPER_LOSSES,
    tables: Tables | None = None,
    groups: ArrayLike | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> tuple[TemperatureFit, ...]:
    """Fit TS exactly for several losses at once.

    Parameters
    ----------
    suffixes : Suffixes
        The calibration set; all references of a question count equally and add up to one.
    head : callable
        States (n, d) → logits (n, V).
    points : sequence of (str, float or None)
        Losses and their α; by default the paper's five.
    tables : Tables, optional
        From `tabulate`, where they are there already. Otherwise they are made of T in [1/4, 4], and if a loss
        or a resample has its optimum at an end, of all T: losses are convex in β, so one inside is that of
        all.
    groups : array_like of int, shape (Q,), optional
        A label for each question; those of one group are not taken as independent. Each its own by default.
    resamples : int
        Calibration sets to resample, question by question; they cost no pass.
    seed : int
        Of the resampling.

    Returns
    -------
    tuple of TemperatureFit
        In the order of `points`. log T is within 1e-6 of the optimum by exact sums, not by the tables.

    Raises
    ------
    FitError
        If there is no answer token, there are fewer than 5 labelled questions, or exact sums do not confirm
        an optimum.
    InputError
        If logits, targets or a loss of −inf cannot be used.
    UsageError
        If a point is no loss.

    Warns
    -----
    UndefinedWarning
        If a standard error is NaN: T is at its bound, or all questions are of one group.
    """
    for loss, alpha in points:
        check_loss(loss, alpha)
    if len(suffixes.targets):  # without any, the tables say so
        check_enough(suffixes.labelled_questions())
    cluster = _clusters(groups, len(suffixes.prompt_start), suffixes.answer_question)
    known = tables or _usual(suffixes, head)
    curves, drawn, at_end = _drawn(suffixes, known, points, resamples, seed)
    if tables is None and at_end:  # of the usual temperatures: there may be more beyond
        known = tabulate(suffixes, head)
        curves, drawn, _ = _drawn(suffixes, known, points, resamples, seed)
    ones, betas, sums, parts, passes = _polished(suffixes, known, head, curves)
    fits = []
    for (loss, alpha), curve, resampled, beta, here, part, one in zip(
        points, curves, drawn, betas, sums, parts, ones
    ):
        at_bound = here.slope != 0 and beta in (1 / T_MAX, 1 / T_MIN) and _newton(beta, here) == 0
        certificate = certify(beta, here, one, at_bound=at_bound, steps=passes)
        fits.append(
            TemperatureFit(
                loss,
                alpha,
                certificate=certificate,
                log_temperature_step=abs(_newton(beta, here)),
                standard_error=math.nan if at_bound else _sandwich(beta, part, cluster),
                resampled=resampled,
                curve=_plotted(curve),
                n_tokens=len(suffixes.targets),
                n_questions=len(curve.n),
                n_clusters=int(cluster.max()) + 1,
            )
        )
    if any(math.isnan(fit.standard_error) for fit in fits):
        warnings.warn(
            "a temperature at its bound, of a flat loss or from a single group of questions has no standard "
            "error; it is null",
            UndefinedWarning,
            stacklevel=2,
        )
    return tuple(fits)


def _drawn(
    suffixes: Suffixes, tables: Tables, points: Sequence[Point], resamples: int, seed: int
) -> tuple[list[Curve], list[tuple[float, ...]], bool]:
    """The curve of each loss, T of resampled sets, and whether any T is at an end of the tables."""
    curves = [curve_of(suffixes, tables, loss=loss, alpha=alpha) for loss, alpha in points]
    drawn = [_resampled(curve, resamples, seed) for curve in curves]
    found = {1 / float(curve.minimum()) for curve in curves}.union(*drawn)
    return curves, drawn, not found.isdisjoint((1 / tables.low, 1 / tables.high))


def _usual(suffixes: Suffixes, head: Head) -> Tables:
    """Tables of the usual temperatures, with as many nodes as those of all have in such a range."""
    nodes = math.ceil(NODES * math.log(USUAL**2) / math.log(T_MAX / T_MIN))
    return tabulate(suffixes, head, nodes=nodes, low=1 / USUAL, high=USUAL)


def _polished(
    suffixes: Suffixes, tables: Tables, head: Head, curves: Sequence[Curve]
) -> tuple[list[Sums], list[float], list[Sums], list[Tensor], int]:
    """Sums at β = 1; then β, sums, parts of questions and passes, once exact Newton steps confirm each β.

    The curves share their passes. A loss that does not depend on T stays at β = 1.
    """
    count, betas = len(curves), [float(curve.minimum()) for curve in curves]
    sums, parts = _exact(suffixes, tables, head, [*curves, *curves], [1.0] * count + betas)
    ones, sums, parts = sums[:count], sums[count:], parts[count:]
    for i, one in enumerate(ones):
        if one.slope == 0 == one.curvature:
            betas[i], sums[i] = 1.0, one
    for passes in range(1, MAX_PASSES + 1):
        steps = [_newton(beta, here) for beta, here in zip(betas, sums)]
        if max(map(abs, steps)) <= CONFIRMED:
            return ones, betas, sums, parts, passes
        betas = [max(1 / T_MAX, min(1 / T_MIN, beta * math.exp(step))) for beta, step in zip(betas, steps)]
        sums, parts = _exact(suffixes, tables, head, curves, betas)
    raise FitError(
        f"exact sums did not confirm a temperature in {MAX_PASSES} passes (a step of "
        f"{max(map(abs, steps)):.1e} in log T was left); fit each loss with TemperatureScaling.fit_batches"
    )


def _clusters(groups: ArrayLike | None, questions: int, labelled: Tensor) -> Tensor:
    """The number of each question's cluster: its group, or itself; questions without answers are in none.

    They are numbered −1, and contribute nothing.
    """
    labels = np.arange(questions) if groups is None else np.asarray(groups)
    if labels.shape != (questions,):
        raise InputError(f"groups has shape {labels.shape}; give a label for each of {questions} questions")
    found = np.full(questions, -1)
    used = np.unique(labelled.numpy())
    found[used] = np.unique(labels[used], return_inverse=True)[1]
    return torch.from_numpy(found)


def _sandwich(beta: float, parts: Tensor, cluster: Tensor) -> float:
    """Standard error of T = 1/β from slope and curvature of each question (2, Q), independent by cluster.

    One Newton step from β says where it would lie without a cluster, by the slope and the curvature of the
    others: to first order the jackknife (CR3), which is not too small with few clusters as the plain sandwich
    is.
    """
    count = int(cluster.max()) + 1
    used = cluster >= 0
    slope, curvature = torch.zeros(2, count, dtype=torch.float64).index_add(1, cluster[used], parts[:, used])
    others = curvature.sum() - curvature
    if count < 2 or not bool((others > 0).all()):
        return math.nan
    moved = slope / others
    spread = float((moved - moved.mean()).square().sum()) * (count - 1) / count
    return math.sqrt(spread) / beta**2


def _resampled(curve: Curve, resamples: int, seed: int) -> tuple[float, ...]:
    """T of sets of as many questions, drawn with replacement."""
    rng, questions = np.random.default_rng(seed), len(curve.n)
    found: list[float] = []
    size = max(1, RESAMPLED // questions)
    for start in range(0, resamples, size):
        count = min(size, resamples - start)
        counts = rng.multinomial(questions, np.full(questions, 1 / questions), size=count)
        found += (1 / curve.minimum(torch.as_tensor(counts, dtype=torch.float64))).tolist()
    return tuple(found)


def _plotted(curve: Curve, count: int = 121) -> LossCurve:
    """The loss on temperatures equally spaced in log T over the range of the tables."""
    beta = torch.logspace(math.log10(curve.low), math.log10(curve.high), count, dtype=torch.float64)
    value, _, _ = series(curve.coefficients.sum(0), beta, low=curve.low, high=curve.high)
    loss = (value - beta * curve.centre.sum()) / curve.n.sum()
    return LossCurve(tuple((1 / beta).flip(0).tolist()), tuple(loss.flip(0).tolist()))
