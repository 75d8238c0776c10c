"""The Brier score, its decompositions (Murphy; CORP, by isotonic fit), gain, and the reliability diagram."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from semcal.arrays import as_generator, as_option
from semcal.metrics.argument_names import both_names
from semcal.metrics.calibration import equal_width_bin
from semcal.metrics.frequencies import Floats, FrequencyTable, check_bins, probability_table

if TYPE_CHECKING:
    from semcal.metrics.plots import Axes


@dataclass(frozen=True)
class BrierDecomposition:
    """Brier = reliability - resolution + uncertainty, over the unique confidence values."""

    brier: float
    reliability: float
    resolution: float
    uncertainty: float

    @property
    def refinement(self) -> float:
        """uncertainty - resolution: the Brier score that recalibration would leave."""
        return self.uncertainty - self.resolution


@dataclass(frozen=True)
class Corp:
    """Brier = MCB - DSC + UNC, with isotonic recalibration.

    `mcb` is miscalibration, what isotonic recalibration gains; `dsc` discrimination, what the recalibrated
    confidences gain over the mean correctness; `unc` uncertainty, the Brier score of the mean correctness.
    """

    brier: float
    mcb: float
    dsc: float
    unc: float


@dataclass(frozen=True, eq=False)
class ReliabilityDiagram:
    """Accuracy against confidence, in M bins and as the CORP curve over U distinct confidences.

    The bins (`bin_...`, shape (M,), the edges M + 1) hold the number of questions, mean confidence, accuracy
    and its consistency band, all but the number NaN where a bin is empty. The curve (shape (U,)) holds the
    distinct confidences in ascending order, the number of questions at each, the isotonic regression of
    correctness on confidence, and its band. Bands say where accuracies of calibrated confidences would lie,
    point by point at `level`: points outside them speak against calibration.
    """

    bin_edges: Floats
    bin_count: Floats
    bin_confidence: Floats
    bin_accuracy: Floats
    bin_low: Floats
    bin_high: Floats
    confidence: Floats
    count: Floats
    recalibrated: Floats
    band_low: Floats
    band_high: Floats
    level: float

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw bins, isotonic fit and band on a matplotlib Axes, a new one by default, and return it."""
        from semcal.metrics.plots import plot_reliability

        return plot_reliability(self, ax)


@both_names
def brier(confidence: ArrayLike, correct: ArrayLike) -> float:
    r"""Brier score, the mean squared error of the confidence.

    .. math:: \mathrm{BS} = \frac1N \sum_i (p_i - c_i)^2

    Parameters (confidences and outcomes of shape (N,)), result and errors are those of
    :func:`semcal.metrics.ece`.

    References
    ----------
    Brier (1950), Verification of forecasts expressed in terms of probability, Monthly Weather Review 78.

    Examples
    --------
    >>> brier([0.9, 0.6], [1, 0])
    0.185
    """
    return float(brier_of(probability_table(confidence, correct))[0])


@both_names
def gain(confidence: ArrayLike, correct: ArrayLike) -> float:
    r"""Gain, accuracy less Brier score: what confidences are worth to a user who may abstain.

    Whoever answers where :math:`p \ge t` and earns :math:`c - t` for it (t is the price of an answer, so a
    wrong one loses it) earns on average over prices t uniform on [0, 1]

    .. math:: \int_0^p (c - t)\,dt = pc - \tfrac12 p^2, \qquad
              \mathrm{gain} = \frac1N \sum_i \bigl(2 p_i c_i - p_i^2\bigr)
              = \frac1N \sum_i \bigl(c_i - (p_i - c_i)^2\bigr),

    half of the gain. For given answers it is a proper score, as the Brier score is. Unlike that, it compares
    methods that give different answers: a method that answers wrongly and knows it has gain 0, not the best.

    Parameters and errors are those of :func:`semcal.metrics.ece`.

    Returns
    -------
    float
        In [-1, 1]; larger is better. 0 is what confidence 0 everywhere has, 1 all answers right and sure,
        -1 all wrong and sure.

    References
    ----------
    Schervish (1989), A general method for comparing probability assessors, Annals of Statistics 17 (a proper
    score is a mixture of decisions at thresholds); Gneiting and Raftery (2007), Strictly proper scoring
    rules, prediction, and estimation, JASA 102.

    Examples
    --------
    >>> gain([0.9, 0.6], [1, 0])
    0.315
    >>> gain([0.0, 0.0], [0, 0]), gain([1.0, 0.0], [0, 0])
    (0.0, -0.5)
    """
    return float(gain_of(probability_table(confidence, correct))[0])


@both_names
def brier_decomposition(confidence: ArrayLike, correct: ArrayLike) -> BrierDecomposition:
    r"""Reliability, resolution and uncertainty over the unique confidence values.

    With :math:`n_v` examples at the value v, :math:`\bar c_v` their mean correctness and :math:`\bar c` that
    of all,

    .. math:: \mathrm{BS} = \underbrace{\tfrac1N \textstyle\sum_v n_v (v - \bar c_v)^2}_{\text{reliability}}
              - \underbrace{\tfrac1N \textstyle\sum_v n_v (\bar c_v - \bar c)^2}_{\text{resolution}}
              + \underbrace{\bar c (1 - \bar c)}_{\text{uncertainty}}

    exactly. With many distinct values nearly every group is one example and both terms overfit (reliability
    is then the Brier score itself): read :func:`corp` instead.

    Parameters and errors are those of :func:`semcal.metrics.ece`.

    References
    ----------
    Murphy (1973), A new vector partition of the probability score, Journal of Applied Meteorology 12.

    Examples
    --------
    >>> parts = brier_decomposition([0.8, 0.8, 0.8, 0.8, 0.2], [1, 1, 1, 0, 0])
    >>> round(parts.reliability, 4), round(parts.resolution, 4), round(parts.uncertainty, 4)
    (0.01, 0.09, 0.24)
    >>> round(parts.refinement, 4)
    0.15
    """
    t = probability_table(confidence, correct)
    parts = (brier_of, reliability_of, resolution_of, uncertainty_of)
    return BrierDecomposition(*(float(of(t)[0]) for of in parts))


@both_names
def corp(confidence: ArrayLike, correct: ArrayLike) -> Corp:
    r"""CORP decomposition of the Brier score: miscalibration, discrimination, uncertainty.

    With :math:`\tilde p` the isotonic regression of correctness on confidence (pool adjacent violators; ties
    in confidence pooled) and S the Brier score,

    .. math:: \mathrm{MCB} = S(p) - S(\tilde p), \quad \mathrm{DSC} = S(\bar c) - S(\tilde p), \quad
              \mathrm{UNC} = S(\bar c), \qquad S(p) = \mathrm{MCB} - \mathrm{DSC} + \mathrm{UNC}.

    MCB and DSC are never negative. Parameters and errors are those of :func:`semcal.metrics.ece`.

    References
    ----------
    Dimitriadis, Gneiting and Jordan (2021), Stable reliability diagrams for probabilistic classifiers, PNAS
    118.

    Examples
    --------
    >>> parts = corp([0.1, 0.4, 0.5, 0.9], [0, 1, 0, 1])
    >>> parts.mcb, parts.dsc, parts.unc
    (0.0325, 0.125, 0.25)
    """
    t = probability_table(confidence, correct)
    return Corp(*(float(of(t)[0]) for of in (brier_of, mcb_of, dsc_of, uncertainty_of)))


@both_names
def reliability_diagram(
    confidence: ArrayLike,
    correct: ArrayLike,
    *,
    bins: int = 15,
    level: float = 0.9,
    resamples: int = 1000,
    seed: int | np.random.Generator = 0,
) -> ReliabilityDiagram:
    """Bins, CORP curve and consistency bands of one set of confidences.

    The bins are those of ECE. The curve is the isotonic regression of correctness on confidence. For the
    bands, outcomes are drawn from the confidences themselves, as if these were calibrated, `resamples` times,
    and bins and curve computed from each; the bands hold the middle `level` of them, point by point.

    Parameters
    ----------
    confidence, correct
        As in :func:`semcal.metrics.ece`, and so are the errors.
    bins : int
        Number M of bins of equal width.
    level : float
        In (0, 1), else UsageError.
    resamples : int
    seed : int or numpy.random.Generator

    References
    ----------
    Dimitriadis, Gneiting and Jordan (2021), Stable reliability diagrams for probabilistic classifiers, PNAS
    118. Bröcker and Smith (2007), Increasing the Reliability of Reliability Diagrams, Weather and Forecasting
    22.

    Examples
    --------
    >>> diagram = reliability_diagram([0.1, 0.1, 0.8, 0.8], [0, 0, 1, 0], bins=2)
    >>> diagram.bin_confidence, diagram.bin_accuracy
    (array([0.1, 0.8]), array([0. , 0.5]))
    >>> diagram.confidence, diagram.recalibrated
    (array([0.1, 0.8]), array([0. , 0.5]))
    >>> diagram.bin_low, diagram.bin_high
    (array([0. , 0.5]), array([0.5, 1. ]))
    """
    level = as_option(level, "level", "a number between 0 and 1, such as 0.9", low=0, high=1)
    resamples = int(
        as_option(resamples, "resamples", "a positive whole number, such as 1000", low=0, whole=True)
    )
    t = probability_table(confidence, correct)
    calibrated = _if_calibrated(t, resamples, as_generator(seed))
    ends = [(1 - level) / 2, (1 + level) / 2]
    bins = check_bins(bins)
    bin_count, bin_confidence, bin_accuracy = _in_bins(t, bins)
    bin_low, bin_high = np.quantile(_in_bins(calibrated, bins)[2], ends, axis=0)
    band_low, band_high = np.quantile(calibrated.isotonic, ends, axis=0)
    return ReliabilityDiagram(
        bin_edges=np.arange(bins + 1) / bins,
        bin_count=bin_count[0],
        bin_confidence=bin_confidence[0],
        bin_accuracy=bin_accuracy[0],
        bin_low=bin_low,
        bin_high=bin_high,
        confidence=t.value,
        count=t.count[0],
        recalibrated=t.isotonic[0],
        band_low=band_low,
        band_high=band_high,
        level=level,
    )


def brier_of(t: FrequencyTable) -> Floats:
    """Brier score of each row."""
    return _squared_error(t, t.value)


def gain_of(t: FrequencyTable) -> Floats:
    """Gain of each row."""
    return t.accuracy - brier_of(t)


def reliability_of(t: FrequencyTable) -> Floats:
    """Reliability of each row."""
    error: Floats = (t.count * (t.value - t.rate) ** 2).sum(-1) / t.n
    return error


def resolution_of(t: FrequencyTable) -> Floats:
    """Resolution of each row."""
    spread: Floats = (t.count * (t.rate - t.accuracy[:, None]) ** 2).sum(-1) / t.n
    return spread


def uncertainty_of(t: FrequencyTable) -> Floats:
    """Uncertainty of each row, in either decomposition."""
    return t.accuracy * (1 - t.accuracy)


def mcb_of(t: FrequencyTable) -> Floats:
    """MCB of each row."""
    gained = brier_of(t) - _squared_error(t, t.isotonic)
    return np.maximum(gained, 0.0)  # rounding must not make it negative


def dsc_of(t: FrequencyTable) -> Floats:
    """DSC of each row."""
    spread: Floats = (t.count * (t.isotonic - t.accuracy[:, None]) ** 2).sum(-1) / t.n
    return spread


def _squared_error(t: FrequencyTable, forecast: Floats) -> Floats:
    """Mean squared error of a forecast at each value, [U] or [B, U] -> [B]."""
    error: Floats = (t.right * (1 - forecast) ** 2 + (t.count - t.right) * forecast**2).sum(-1) / t.n
    return error


def _if_calibrated(t: FrequencyTable, resamples: int, rng: np.random.Generator) -> FrequencyTable:
    """The same confidences with outcomes drawn from them."""
    right = rng.binomial(t.count[0].astype(np.int64), t.value, size=(resamples, len(t.value)))
    return FrequencyTable(t.value, np.broadcast_to(t.count, right.shape), right.astype(np.float64))


def _in_bins(t: FrequencyTable, bins: int) -> tuple[Floats, Floats, Floats]:
    """Count, mean confidence and accuracy in bins of equal width, NaN where empty: three [B, bins]."""
    index, starts = np.unique(equal_width_bin(t.value, bins), return_index=True)
    sums = np.zeros((3, len(t.count), bins))
    for total, row in zip(sums, (t.count, t.count * t.value, t.right)):
        total[:, index] = np.add.reduceat(row, starts, axis=1)
    empty = np.full(sums[0].shape, np.nan)
    mean, accuracy = (np.divide(s, sums[0], out=empty.copy(), where=sums[0] > 0) for s in sums[1:])
    return sums[0], mean, accuracy
