"""Reliability diagrams and selective accuracy, as numbers and as plots (which import matplotlib)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from semcal.arrays import Floats, as_generator, as_numbers, as_option
from semcal.errors import UsageError, naming_extra
from semcal.metrics.calibration_errors import equal_width_bin, running_sum_at
from semcal.metrics.frequencies import (
    FrequencyTable,
    check_bins,
    probability_table,
    score_table,
    warn_undefined,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Two of Okabe and Ito's colors, which are distinct for every type of color vision.
BLUE, VERMILION = "#0072b2", "#d55e00"


#: Probability that a point of the curve of calibrated confidences is in the band.
BAND = 0.9


@dataclass(frozen=True, eq=False)
class ReliabilityDiagram:
    """Accuracy against confidence, in M bins and as the CORP curve over U distinct confidences.

    The bins (`bin_...`, shape (M,)) hold the number of questions, mean confidence and accuracy, NaN in an
    empty bin. The curve (shape (U,)) holds the distinct confidences in ascending order, the number of
    questions at each, the isotonic regression of correctness on confidence, and its pointwise band, which
    contains the regression of calibrated confidences with a probability of 90%.
    """

    bin_count: Floats
    bin_confidence: Floats
    bin_accuracy: Floats
    confidence: Floats
    count: Floats
    recalibrated: Floats
    band_low: Floats
    band_high: Floats

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw bins, isotonic fit and band on a matplotlib Axes (a new one by default) and return it."""
        ax = _unit_axes(ax, "confidence", "share correct")
        ax.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--", label="calibrated")
        band = (self.confidence, self.band_low, self.band_high)
        ax.fill_between(*band, color="0.9", linewidth=0, label="90% band if calibrated")
        ax.plot(self.confidence, self.recalibrated, color=BLUE, linewidth=2, label="isotonic fit")
        dots: dict[str, Any] = {"color": VERMILION, "alpha": 0.6, "linewidth": 0}
        ax.scatter([], [], s=40, label="bins", **dots)
        sizes = 20 + 400 * self.bin_count / self.bin_count.sum()
        ax.scatter(self.bin_confidence, self.bin_accuracy, s=sizes, clip_on=False, zorder=3, **dots)
        ax.set_aspect("equal")
        return _with_legend(ax, "upper left")


def reliability_diagram(
    confidence: ArrayLike,
    correct: ArrayLike,
    *,
    bins: int = 15,
    resamples: int = 1000,
    seed: int | np.random.Generator = 0,
) -> ReliabilityDiagram:
    """Compute the bins, and the CORP curve with its consistency band, of one set of confidences.

    The bins are those of ECE. The curve is the isotonic regression of correctness on confidence. For the
    band, outcomes are sampled `resamples` times as if the confidences were calibrated. It holds the middle
    90% of their curves, point by point.

    `confidence`, `correct`, `bins` and errors are those of :func:`semcal.metrics.ece`. Sources: Dimitriadis,
    Gneiting and Jordan (2021), Stable reliability diagrams for probabilistic classifiers, PNAS 118; Bröcker
    and Smith (2007), Increasing the Reliability of Reliability Diagrams, Weather and Forecasting 22.

    >>> diagram = reliability_diagram([0.1, 0.1, 0.8, 0.8], [0, 0, 1, 0], bins=2)
    >>> diagram.bin_confidence, diagram.bin_accuracy
    (array([0.1, 0.8]), array([0. , 0.5]))
    >>> diagram.confidence, diagram.recalibrated
    (array([0.1, 0.8]), array([0. , 0.5]))
    """
    expected = "a positive whole number, such as 1000"
    resamples = int(as_option(resamples, "resamples", expected, low=0, whole=True))
    t = probability_table(confidence, correct)
    sampled = as_generator(seed).binomial(t.count[0].astype(np.int64), t.value, (resamples, len(t.value)))
    counts = np.broadcast_to(t.count, sampled.shape)
    calibrated = FrequencyTable(t.value, counts, sampled.astype(np.float64))
    bin_count, bin_confidence, bin_accuracy = _in_bins(t, check_bins(bins))
    band_low, band_high = np.quantile(calibrated.isotonic, [(1 - BAND) / 2, (1 + BAND) / 2], axis=0)
    return ReliabilityDiagram(
        bin_count=bin_count,
        bin_confidence=bin_confidence,
        bin_accuracy=bin_accuracy,
        confidence=t.value,
        count=t.count[0],
        recalibrated=t.isotonic[0],
        band_low=band_low,
        band_high=band_high,
    )


def _in_bins(t: FrequencyTable, bins: int) -> tuple[Floats, Floats, Floats]:
    """Return number, mean confidence and accuracy in bins of equal width, NaN where empty: three [bins]."""
    index = equal_width_bin(t.value, bins)
    rows = t.count[0], t.count[0] * t.value, t.right[0]
    count, total, right = (np.bincount(index, row, bins).astype(np.float64) for row in rows)
    filled = np.where(count > 0, count, np.nan)
    return count.astype(np.float64), total / filled, right / filled


@dataclass(frozen=True, eq=False)
class SelectiveAccuracy:
    """The coverage and the accuracy of the answered questions, at P thresholds or rejection rates.

    Arrays have shape (P,). `by` is the kind of `points`. Accuracy is NaN if no question is answered.
    """

    points: Floats
    coverage: Floats
    accuracy: Floats
    by: Literal["threshold", "rejection"]

    def plot(self, ax: Axes | None = None, *, threshold: float | None = None) -> Axes:
        """Draw accuracy (by threshold, coverage too) on a matplotlib Axes, a new one by default.

        `threshold` marks the threshold in use.
        """
        by_threshold = self.by == "threshold"
        ax = _unit_axes(ax, "threshold" if by_threshold else "share rejected", "share")
        order = np.argsort(self.points)
        points, marker = self.points[order], "." if len(order) < 30 else ""
        lines = [(self.accuracy, BLUE, "correct among the answered"), (self.coverage, VERMILION, "answered")]
        for share, color, label in lines if by_threshold else lines[:1]:
            ax.plot(points, share[order], color=color, label=label, linewidth=2, marker=marker)
        if by_threshold and len(points) and not 0 <= points[0] <= points[-1] <= 1:
            ax.set_xlim(points[0], points[-1])
        if by_threshold and threshold is not None:
            ax.axvline(threshold, color="0.4", linestyle=":", label=f"threshold {threshold:.2f}")
        return _with_legend(ax, "lower left")


def selective_accuracy(
    score: ArrayLike,
    correct: ArrayLike,
    *,
    threshold: ArrayLike | None = None,
    rejection: ArrayLike | None = None,
) -> SelectiveAccuracy:
    r"""Compute the accuracy of the answered questions, by threshold or by rejection rate.

    At a threshold :math:`\eta`, the questions with score >= :math:`\eta` are answered. At a rejection rate r,
    the floor(N r) questions with the lowest scores are rejected. The accuracy is the exact expectation over
    all ways to break ties.

    Parameters
    ----------
    score : array_like of float, shape (N,)
        Any real score, larger is surer.
    correct : array_like of bool, shape (N,)
    threshold : array_like of float, shape (P,) or a number
        Thresholds on the score. Give either these or `rejection`.
    rejection : array_like of float, shape (P,) or a number
        Rejection rates in [0, 1].

    Raises
    ------
    InputError
        As in :func:`semcal.metrics.auroc`.
    UsageError
        Both or neither of `threshold` and `rejection`; a rejection rate outside [0, 1].

    Notes
    -----
    N r within 1e-9 of a whole number counts as whole, so that 0.29 of 100 questions are 29. If no question is
    answered, accuracy is NaN, with an UndefinedWarning.

    Examples
    --------
    >>> curve = selective_accuracy([0.9, 0.5, 0.5, 0.2], [1, 1, 0, 0], rejection=[0, 0.25, 0.5])
    >>> curve.coverage, curve.accuracy.round(3)
    (array([1.  , 0.75, 0.5 ]), array([0.5  , 0.667, 0.75 ]))
    >>> selective_accuracy([0.9, 0.5, 0.5, 0.2], [1, 1, 0, 0], threshold=0.5).accuracy.round(3)
    array([0.667])
    """
    t = score_table(score, correct)
    if (threshold is None) == (rejection is None):
        raise UsageError("threshold and rejection: expected one of them. Give exactly one.")
    argument, given = ("rejection", rejection) if threshold is None else ("threshold", threshold)
    points = np.atleast_1d(as_numbers(given, argument))
    if points.ndim != 1:
        raise UsageError(f"{argument}: got shape {points.shape}. Pass one number, or several as a vector")
    in_range = ~np.isnan(points) if rejection is None else (points >= 0) & (points <= 1)
    if not in_range.all():
        expected = "numbers" if rejection is None else "rates in [0, 1]"
        raise UsageError(f"{argument}: got {points[~in_range][0]}. Pass {expected}")
    if rejection is None:
        answered, right = t.at_least(points)
    else:
        answered = t.n - np.floor(t.n * points + 1e-9)  # N r within 1e-9 of a whole number is whole
        right = running_sum_at(t.count[:, ::-1], t.right[:, ::-1], answered[None])[0]
    if not answered.all():
        warn_undefined("selective accuracy is NaN if no question is answered. Lower the threshold.")
    accuracy = np.divide(right, answered, out=np.full(len(points), np.nan), where=answered > 0)
    by: Literal["threshold", "rejection"] = "threshold" if rejection is None else "rejection"
    return SelectiveAccuracy(points, answered / t.n, accuracy, by)


def _with_legend(ax: Axes, place: Literal["upper left", "lower left"]) -> Axes:
    ax.legend(loc=place, fontsize="small", facecolor="white", edgecolor="none", framealpha=0.8)
    return ax


def _unit_axes(ax: Axes | None, x: str, y: str) -> Axes:
    if ax is None:
        with naming_extra("a plot"):
            import matplotlib.pyplot as plt

        ax = plt.subplots(figsize=(4.5, 4.5), layout="constrained")[1]
    ax.set(xlim=(0, 1), ylim=(0, 1.02), xlabel=x, ylabel=y)
    ax.spines[["top", "right"]].set_visible(False)
    return ax
