"""The data of a reliability diagram: bins, the CORP curve, and consistency bands around the diagonal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from semcal.arrays import as_generator, as_option
from semcal.metrics.calibration import equal_width_bin
from semcal.metrics.tally import Floats, Tally, check_bins, probability_tally

__all__ = ["ReliabilityDiagram", "reliability_diagram"]


@dataclass(frozen=True, eq=False)
class ReliabilityDiagram:
    """Accuracy against confidence, in M bins and as the CORP curve over U distinct confidences.

    The bands say where accuracies of calibrated confidences would lie: points outside them speak against
    calibration.

    Attributes
    ----------
    bin_edges : ndarray of float64, shape (M + 1,)
    bin_count : ndarray of float64, shape (M,)
        Questions in each bin.
    bin_confidence, bin_accuracy : ndarray of float64, shape (M,)
        Means in each bin; NaN where it is empty.
    bin_low, bin_high : ndarray of float64, shape (M,)
        Consistency band of the accuracy in each bin; NaN where it is empty.
    confidence : ndarray of float64, shape (U,)
        Distinct confidences, ascending.
    count : ndarray of float64, shape (U,)
        Questions at each.
    recalibrated : ndarray of float64, shape (U,)
        Isotonic regression of correctness on confidence.
    band_low, band_high : ndarray of float64, shape (U,)
        Consistency band of the curve.
    level : float
        Pointwise level of the bands.
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
    confidence : array_like of float, shape (N,)
        Probabilities; values outside [0, 1] by at most 1e-6 are clipped.
    correct : array_like of bool, shape (N,)
    bins : int
        Number M of bins of equal width.
    level : float
        In (0, 1).
    resamples : int
    seed : int or numpy.random.Generator

    Returns
    -------
    ReliabilityDiagram

    Raises
    ------
    InputError
        Empty input, lengths that differ, a confidence outside [0, 1] or NaN, an outcome that is not 0 or 1.
    UsageError
        A level outside (0, 1), no resamples.

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
    t = probability_tally(confidence, correct)
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


def _if_calibrated(t: Tally, resamples: int, rng: np.random.Generator) -> Tally:
    """The same confidences with outcomes drawn from them."""
    right = rng.binomial(t.count[0].astype(np.int64), t.value, size=(resamples, len(t.value)))
    return Tally(t.value, np.broadcast_to(t.count, right.shape), right.astype(np.float64))


def _in_bins(t: Tally, bins: int) -> tuple[Floats, Floats, Floats]:
    """Count, mean confidence and accuracy in bins of equal width, NaN where empty: three [B, bins]."""
    index, starts = np.unique(equal_width_bin(t.value, bins).astype(np.intp), return_index=True)
    sums = np.zeros((3, len(t.count), bins))
    for total, row in zip(sums, (t.count, t.count * t.value, t.right)):
        total[:, index] = np.add.reduceat(row, starts, axis=1)
    empty = np.full(sums[0].shape, np.nan)
    mean, accuracy = (np.divide(s, sums[0], out=empty.copy(), where=sums[0] > 0) for s in sums[1:])
    return sums[0], mean, accuracy
