"""Calibration errors (ECE, ACE, SmoothECE), the Brier score and its decompositions (Murphy, CORP), gain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from semcal.arrays import Floats
from semcal.metrics.frequencies import FrequencyTable, check_bins, probability_table

#: A value above a bin edge by no more than this belongs to the bin below: float32 must not change bins.
ABOVE_EDGE = 1e-6


def ece(confidence: ArrayLike, correct: ArrayLike, *, bins: int = 15) -> float:
    r"""Compute the expected calibration error (ECE) over bins of equal width.

    .. math::

        \mathrm{ECE} = \sum_{b=1}^{M} \frac{|B_b|}{N} \,\bigl|\mathrm{acc}(B_b) - \mathrm{conf}(B_b)\bigr|

    Bin b holds the confidences in ((b-1)/M, b/M]; the first bin also holds 0. A value above an edge by at
    most 1e-6 belongs to the bin below it, so that float32 does not change bins.

    Source: Naeini, Cooper and Hauskrecht (2015), Obtaining Well Calibrated Probabilities Using Bayesian
    Binning, AAAI.

    Parameters
    ----------
    confidence : array_like of float, shape (N,)
        Probabilities; values outside [0, 1] by at most 1e-6 are clipped.
    correct : array_like of bool, shape (N,)
    bins : int
        Number M of bins.

    Returns
    -------
    float
        In [0, 1]; 0 is best.

    Raises
    ------
    InputError
        Empty input, lengths that differ, a confidence outside [0, 1] or NaN, an outcome that is not 0 or 1.

    Examples
    --------
    >>> ece([0.9, 0.9, 0.9, 0.9, 0.2], [1, 1, 1, 0, 0])
    0.16
    """
    return float(ece_of(probability_table(confidence, correct), check_bins(bins))[0])


def ace(confidence: ArrayLike, correct: ArrayLike, *, bins: int = 15) -> float:
    r"""Compute the adaptive calibration error (ACE) over bins of equal mass.

    .. math:: \mathrm{ACE} = \sum_b \frac{|B_b|}{N} \,\bigl|\mathrm{acc}(B_b) - \mathrm{conf}(B_b)\bigr|

    The min(M, N) bins divide the examples in ascending order of confidence. Their sizes differ by at most
    one, and larger bins come first. Examples with equal confidence share their mean correctness, so the order
    of the rows does not matter. Parameters, result and errors are those of :func:`ece`. Source: Nixon et al.
    (2019), Measuring Calibration in Deep Learning, CVPR workshops.

    >>> ace([0.2, 0.4, 0.8, 1.0], [0, 1, 1, 1], bins=2)
    0.15
    """
    return float(ace_of(probability_table(confidence, correct), check_bins(bins))[0])


def smooth_ece(confidence: ArrayLike, correct: ArrayLike) -> float:
    r"""Compute the smooth calibration error (SmoothECE) with a Gaussian kernel of adaptive width.

    .. math:: \mathrm{smECE}_\sigma = \int_0^1 \Bigl|\frac1N \sum_i (c_i - p_i)\, K_\sigma(t, p_i)\Bigr| \,dt,
              \qquad \mathrm{smECE} = \mathrm{smECE}_{\sigma^*}, \quad \mathrm{smECE}_{\sigma^*} = \sigma^*,

    K is the Gaussian kernel reflected at 0 and 1. There is one fixed point, because the error falls with the
    width. Parameters, result and errors are those of :func:`ece`.

    Source: Błasiok and Nakkiran (2024), Smooth ECE: Principled Reliability Diagrams via Kernel Smoothing,
    ICLR.

    Notes
    -----
    The residuals are distributed over a grid of 1,025 points and smoothed in the cosine basis, in which the
    reflected kernel is diagonal. The fixed point is found to 2^-15. The error of the grid is below 1e-4.

    Confidences of 0 and 1 have half the weight, linearly up to the whole weight at a distance of 1/1024, as
    in the authors' package (relplot), which computed the published values. The kernel is the whole Gaussian.
    relplot cuts it off at a distance of 0.5, which increases its value if the width is above about 0.2.

    Examples
    --------
    >>> round(smooth_ece([0.9] * 10, [1] * 6 + [0] * 4), 4)
    0.3
    """
    return float(smooth_ece_of(probability_table(confidence, correct))[0])


def brier(confidence: ArrayLike, correct: ArrayLike) -> float:
    r"""Compute the Brier score, the mean squared error of the confidence.

    .. math:: \mathrm{BS} = \frac1N \sum_i (p_i - c_i)^2

    Parameters (confidences and outcomes of shape (N,)), result and errors are those of :func:`ece`. Source:
    Brier (1950), Verification of forecasts expressed in terms of probability, Monthly Weather Review 78.

    >>> brier([0.9, 0.6], [1, 0])
    0.185
    """
    return float(brier_of(probability_table(confidence, correct))[0])


def gain(confidence: ArrayLike, correct: ArrayLike) -> float:
    r"""Compute the gain, accuracy - Brier score: the value of confidences to a user who may abstain.

    A user answers if :math:`p \ge t` and then earns :math:`c - t`, where t is the price of an answer. The
    mean earning over prices t uniform on [0, 1] is half of the gain:

    .. math:: \int_0^p (c - t)\,dt = pc - \tfrac12 p^2, \qquad
              \mathrm{gain} = \frac1N \sum_i \bigl(2 p_i c_i - p_i^2\bigr)
              = \frac1N \sum_i \bigl(c_i - (p_i - c_i)^2\bigr).

    For given answers, the gain is a proper score, like the Brier score. Unlike the Brier score, it compares
    methods that give different answers: wrong answers with confidence 0 have gain 0, not the best value.
    The gain is in [-1, 1]; larger is better. It is 1 if all answers are correct with confidence 1, and -1 if
    all are wrong with confidence 1. Parameters and errors are those of :func:`ece`.

    Sources: Schervish (1989), A general method for comparing probability assessors, Annals of Statistics 17
    (a proper score is a mixture of decisions at thresholds); Gneiting and Raftery (2007), Strictly proper
    scoring rules, prediction, and estimation, JASA 102.

    >>> gain([0.0, 0.0], [0, 0]), gain([1.0, 0.0], [0, 0])
    (0.0, -0.5)
    """
    return float(gain_of(probability_table(confidence, correct))[0])


def ece_of(t: FrequencyTable, bins: int) -> Floats:
    """Return the ECE of each row."""
    index = equal_width_bin(t.value, bins)
    error: Floats = np.abs(t.sum_by_bin(index, t.residual, bins)).sum(-1) / t.n
    return error


def ace_of(t: FrequencyTable, bins: int) -> Floats:
    """Return the ACE of each row."""
    edges = equal_mass_edges(t.n, bins)
    error: Floats = np.abs(np.diff(running_sum_at(t.count, t.residual, edges))).sum(-1) / t.n
    return error


def smooth_ece_of(t: FrequencyTable) -> Floats:
    """Return the SmoothECE of each row: the error at the width that equals it."""
    low, high = bracket_width(smoothing := smoothing_of(t))
    return smoothing.error((low + high) / 2)


def brier_of(t: FrequencyTable) -> Floats:
    """Return the Brier score of each row."""
    return _squared_error(t, t.value)


def gain_of(t: FrequencyTable) -> Floats:
    """Return the gain of each row."""
    return t.accuracy - brier_of(t)


def reliability_of(t: FrequencyTable) -> Floats:
    r"""Return the reliability of each row, :math:`\frac1N \sum_v n_v (v - \bar c_v)^2` over unique values v.

    With resolution and uncertainty it decomposes the Brier score exactly: Murphy (1973), A new vector
    partition of the probability score, Journal of Applied Meteorology 12.
    """
    error: Floats = (t.count * (t.value - t.rate) ** 2).sum(-1) / t.n
    return error


def resolution_of(t: FrequencyTable) -> Floats:
    r"""Return the resolution of each row, :math:`\frac1N \sum_v n_v (\bar c_v - \bar c)^2`."""
    spread: Floats = (t.count * (t.rate - t.accuracy[:, None]) ** 2).sum(-1) / t.n
    return spread


def uncertainty_of(t: FrequencyTable) -> Floats:
    r"""Return the uncertainty :math:`\bar c (1 - \bar c)` of each row, equal in both decompositions."""
    return t.accuracy * (1 - t.accuracy)


def mcb_of(t: FrequencyTable) -> Floats:
    """Return the MCB of each row, the improvement of the Brier score by isotonic recalibration.

    Source: Dimitriadis, Gneiting and Jordan (2021), Stable reliability diagrams for probabilistic
    classifiers, PNAS 118.
    """
    gained = brier_of(t) - _squared_error(t, t.isotonic)
    return np.maximum(gained, 0.0)  # rounding must not make it negative


def dsc_of(t: FrequencyTable) -> Floats:
    """Return the DSC of each row, the improvement of the recalibrated values over the mean correctness."""
    spread: Floats = (t.count * (t.isotonic - t.accuracy[:, None]) ** 2).sum(-1) / t.n
    return spread


def _squared_error(t: FrequencyTable, forecast: Floats) -> Floats:
    """Mean squared error of a forecast at each value, [U] or [B, U] -> [B]."""
    error: Floats = (t.right * (1 - forecast) ** 2 + (t.count - t.right) * forecast**2).sum(-1) / t.n
    return error


def equal_width_bin(value: Floats, bins: int) -> NDArray[np.intp]:
    """Return the index of the bin (b/M, (b+1)/M] of each value."""
    index = np.clip(np.ceil((value - ABOVE_EDGE) * bins) - 1, 0, bins - 1)
    return np.asarray(index, np.intp)


def equal_mass_edges(n: Floats, bins: int) -> Floats:
    """Return 0 and the ranks at which min(bins, n) bins end, larger bins first: [B] -> [B, edges].

    Sizes differ by at most one. If n differs between rows, the last bins of small rows are empty.
    """
    number, total = np.arange(min(bins, int(n.max()))), n[:, None]
    number_used = np.minimum(total, bins)
    sizes = np.where(number < number_used, total // number_used + (number < total % number_used), 0.0)
    return np.concatenate([np.zeros((len(n), 1)), np.cumsum(sizes, axis=1)], axis=1)


def running_sum_at(count: Floats, total: Floats, ranks: Floats) -> Floats:
    """Sum `total` over the first `rank` examples, linear in a tie group: [B, U], [B, U], [B, R] -> [B, R].

    One interpolation serves all rows: each row is shifted beyond the end of the row before.
    """
    rows = len(count)
    length = count.sum(-1) + 1
    shift = (np.cumsum(length) - length)[:, None]
    x = np.concatenate([np.zeros((rows, 1)), np.cumsum(count, -1)], axis=1) + shift
    y = np.concatenate([np.zeros((rows, 1)), np.cumsum(total, -1)], axis=1)
    at: Floats = np.interp((ranks + shift).ravel(), x.ravel(), y.ravel()).reshape(rows, -1)
    return at


# ---- Residuals smoothed by a Gaussian kernel ---------------------------------------------------------------
#: Number of cells of the grid on [0, 1] on which residuals are smoothed.
CELLS = 1024
#: The error of the width is at most 1 / (2 WIDTHS).
WIDTHS = 2**14
#: A cosine times exp of less than this is lost in rounding.
NEGLIGIBLE = -45.0
#: Minimum number of cells per width of the kernel on which smoothed residuals are integrated.
FINENESS = 12
#: Smallest width at which the search begins, as narrow kernels need fine grids.
BEGIN = WIDTHS // 32

_DECAY = -0.5 * (np.pi * np.arange(CELLS + 1)) ** 2


@dataclass(frozen=True, eq=False)
class SmoothedResiduals:
    """Residuals of B data sets in the cosine basis, in which a kernel of any width is a factor."""

    cosines: Floats  # [B, CELLS + 1]
    mass: Floats  # [B] weight of all examples

    def error(self, width: Floats, rows: NDArray[np.intp] | slice = slice(None)) -> Floats:
        """Return the integral at one width for each of the rows, on the coarsest sufficient grid."""
        places = np.arange(len(self.mass))[rows]
        cells = np.minimum(2 ** np.ceil(np.log2(FINENESS / width)).astype(np.intp), CELLS)
        total = np.empty(len(width))
        for count in np.unique(cells):
            places_alike = np.flatnonzero(cells == count)
            chosen, widths = places[places_alike], width[places_alike]
            needed = 1 + min(int(np.sqrt(-2 * NEGLIGIBLE) / (np.pi * widths.min())), int(count))
            smoothed = np.zeros((len(chosen), count + 1))
            smoothed[:, :needed] = self.cosines[chosen, :needed] * np.exp(
                _DECAY[:needed] * widths[:, None] ** 2
            )
            values = np.abs(_cosine_transform(smoothed)) / (2 * count)
            integral = values[:, 1:-1].sum(-1) + (values[:, 0] + values[:, -1]) / 2  # by trapezoids
            total[places_alike] = integral / self.mass[chosen]
        return total


def smoothing_of(t: FrequencyTable) -> SmoothedResiduals:
    """Transform the residuals of each data set of a table into the cosine basis.

    The ends of the grid are half cells. Residuals there would count twice, and have half the weight.
    """
    residuals, count = (_on_grid(t, mass) for mass in (t.residual, t.count))
    count[:, [0, -1]] /= 2
    return SmoothedResiduals(_cosine_transform(residuals), count.sum(-1))


def bracket_width(smoothing: SmoothedResiduals) -> tuple[Floats, Floats]:
    """Return the two neighboring widths k / WIDTHS that enclose each row's fixed point.

    Regula falsi on whole k finds the result of 14 bisections of [0, 1] in about four steps. By the Illinois
    rule, an end that stays twice in a row counts half. The search begins at the gap between mean confidence
    and accuracy, below which no width takes the error, unless the gap is very small.
    """
    gap = np.abs(smoothing.cosines[:, 0]) / (2 * smoothing.mass)  # the smallest error at any width
    low = np.zeros(len(gap))
    high = low + WIDTHS
    above, below = gap, gap - 1.0  # error less width, at low and at high
    side = np.zeros(len(gap))
    rows, least = np.arange(len(gap)), BEGIN
    while len(rows):
        share = above[rows] / (above[rows] - below[rows])
        k = np.rint(low[rows] + (high[rows] - low[rows]) * share)
        k = np.clip(k, np.maximum(low[rows] + 1, least), high[rows] - 1)
        error = smoothing.error(k / WIDTHS, rows)
        excess, last = error - k / WIDTHS, side[rows]
        wider, unseen = excess > 0, low[rows] == 0
        low[rows], high[rows] = np.where(wider, k, low[rows]), np.where(wider, high[rows], k)
        above_high = np.where(unseen, error, np.where(last < 0, above[rows] / 2, above[rows]))
        above[rows] = np.where(wider, excess, above_high)
        below[rows] = np.where(wider, np.where(last > 0, below[rows] / 2, below[rows]), excess)
        side[rows] = np.where(wider, 1.0, -1.0)
        rows, least = rows[high[rows] - low[rows] > 1], 0
    return low / WIDTHS, high / WIDTHS


def _cosine_transform(rows: Floats) -> Floats:
    """DCT-I of each row, bit by bit equal to `scipy.fft`, which takes 0.3 s to import."""
    return np.ascontiguousarray(np.fft.rfft(np.concatenate([rows, rows[:, -2:0:-1]], axis=1)).real)


def _on_grid(t: FrequencyTable, mass: Floats) -> Floats:
    """Divide the mass at each value between its two neighboring grid points: [B, U] -> [B, CELLS + 1]."""
    point = np.minimum((t.value * CELLS).astype(np.intp), CELLS - 1)
    to_right = t.value * CELLS - point
    points = point[np.diff(point, prepend=-1) > 0] if point.ndim == 1 else slice(CELLS)
    beside = points + 1 if isinstance(points, np.ndarray) else slice(1, CELLS + 1)
    grid = np.zeros((len(mass), CELLS + 1))
    grid[:, points] = t.sum_by_bin(point, mass * (1 - to_right), CELLS)
    grid[:, beside] += t.sum_by_bin(point, mass * to_right, CELLS)
    return grid
