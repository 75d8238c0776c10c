"""Calibration errors: ECE (equal width), ACE (equal mass), SmoothECE (no bins)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.fft import dct, idct

from semcal.metrics.tally import (
    Floats,
    Tally,
    as_correct,
    as_probabilities,
    check_bins,
    check_same_length,
    probability_tally,
)

__all__ = ["ace", "ace_in_row_order", "ece", "smooth_ece"]

#: A value above a bin edge by no more than this belongs to the bin below: 0.3 stored as float32 must not
#: change bins.
ABOVE_EDGE = 1e-6

#: Cells of the grid on which SmoothECE smooths, between 0 and 1.
CELLS = 1024
#: SmoothECE's width is found to half a part in so many.
WIDTHS = 2**14
#: A cosine times exp of less than this is lost in rounding.
SILENT = -45.0
#: A smoothed residual is integrated on a grid of so many cells in the width of its kernel, or a few more.
FINENESS = 12


def ece(confidence: ArrayLike, correct: ArrayLike, *, bins: int = 15) -> float:
    r"""Expected calibration error over bins of equal width.

    .. math:: \mathrm{ECE} = \sum_{b=1}^{M} \frac{|B_b|}{N} \,\bigl|\mathrm{acc}(B_b) -
    \mathrm{conf}(B_b)\bigr|

    Bin b holds the confidences in ((b-1)/M, b/M]; the first bin holds 0 as well. A value above an edge by at
    most 1e-6 belongs to the bin below it, so that float32 does not change bins.

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

    References
    ----------
    Naeini, Cooper and Hauskrecht (2015), Obtaining Well Calibrated Probabilities Using Bayesian Binning,
    AAAI.

    Examples
    --------
    >>> ece([0.9, 0.9, 0.9, 0.9, 0.2], [1, 1, 1, 0, 0])
    0.16
    """
    return float(ece_of(probability_tally(confidence, correct), check_bins(bins))[0])


def ace(confidence: ArrayLike, correct: ArrayLike, *, bins: int = 15) -> float:
    r"""Adaptive calibration error: bins of equal mass.

    The examples in ascending order of confidence are cut into min(M, N) bins whose sizes differ by at most
    one, the larger ones first, and

    .. math:: \mathrm{ACE} = \sum_b \frac{|B_b|}{N} \,\bigl|\mathrm{acc}(B_b) - \mathrm{conf}(B_b)\bigr|.

    Examples tied in confidence share the mean correctness of their tie group, so a bin edge that falls into
    the group cuts it into equal parts and the order of the rows plays no part.

    Parameters
    ----------
    confidence, correct
        As in :func:`ece`.
    bins : int
        Number M of bins.

    Returns
    -------
    float
        In [0, 1]; 0 is best.

    Raises
    ------
    InputError
        As in :func:`ece`.

    Notes
    -----
    With R(x) the cumulative sum of (correctness - confidence) over the x least confident examples, linear
    within a tie group, the bin between ranks x and y contributes \|R(y) - R(x)\| / N; so the bins cost one
    interpolation.

    References
    ----------
    Nixon et al. (2019), Measuring Calibration in Deep Learning, CVPR workshops.

    Examples
    --------
    >>> ace([0.2, 0.4, 0.8, 1.0], [0, 1, 1, 1], bins=2)
    0.15
    """
    return float(ace_of(probability_tally(confidence, correct), check_bins(bins))[0])


def ace_in_row_order(confidence: ArrayLike, correct: ArrayLike, *, bins: int = 15) -> float:
    r"""ACE as the paper's authors compute it: ties stay in the order of the rows, and bins are not weighted.

    .. math:: \frac1M \sum_{b=1}^{M} \bigl|\mathrm{acc}(B_b) - \mathrm{conf}(B_b)\bigr|

    The rows are sorted by confidence, rows of equal confidence as they come, and cut into min(M, N) bins
    whose sizes differ by at most one, the larger ones first. Other orders of the same rows give other
    values, so this is for comparison with published figures alone (preset `reference`); use :func:`ace`.

    Parameters
    ----------
    confidence, correct, bins
        As in :func:`ace`.

    Returns
    -------
    float
        In [0, 1]; 0 is best.

    Raises
    ------
    InputError
        As in :func:`ece`.

    Examples
    --------
    >>> ace_in_row_order([0.5, 0.5, 0.5, 0.5], [1, 0, 1, 0], bins=2)
    0.0
    >>> ace_in_row_order([0.5, 0.5, 0.5, 0.5], [1, 1, 0, 0], bins=2)
    0.5
    """
    values, outcomes = as_probabilities(confidence), as_correct(correct)
    check_same_length(values, outcomes)
    order = np.argsort(values, kind="stable")
    cut = np.array_split((outcomes - values)[order], min(check_bins(bins), len(values)))
    return float(np.mean([abs(part.mean()) for part in cut]))


def smooth_ece(confidence: ArrayLike, correct: ArrayLike, *, end_weight: float = 0.5) -> float:
    r"""Smooth calibration error: the residuals smoothed by a Gaussian kernel that chooses its own width.

    .. math:: \mathrm{smECE}_\sigma = \int_0^1 \Bigl|\frac1N \sum_i (c_i - p_i)\, K_\sigma(t, p_i)\Bigr| \,dt,
              \qquad \mathrm{smECE} = \mathrm{smECE}_{\sigma^*}, \quad \mathrm{smECE}_{\sigma^*} = \sigma^*,

    with K the Gaussian kernel reflected at 0 and 1. The left side falls and the right side rises with the
    width, so there is one fixed point.

    Parameters
    ----------
    confidence, correct
        As in :func:`ece`.
    end_weight : float
        Weight of confidences of exactly 0 or 1. The formula says 1. The authors' package (relplot), with
        which published values are computed, reflects its grid without doubling the end points and so weighs
        them 0.5: the default, for values that compare. The two differ where much of the data has confidence
        1.

    Returns
    -------
    float
        In [0, 1]; 0 is best.

    Raises
    ------
    InputError
        As in :func:`ece`.

    Notes
    -----
    The reflected Gaussian is diagonal in the cosine basis, so the residuals are shared out on a grid of 1025
    points and each width costs one cosine transform, on fewer points where it is wide; the fixed point is
    found to 2^-15. The error of the grids is
    below 1e-4.

    References
    ----------
    Błasiok and Nakkiran (2024), Smooth ECE: Principled Reliability Diagrams via Kernel Smoothing, ICLR.

    Examples
    --------
    >>> round(smooth_ece([0.9] * 10, [1] * 6 + [0] * 4), 4)
    0.3
    """
    return float(smooth_ece_of(probability_tally(confidence, correct), end_weight)[0])


def ece_of(t: Tally, bins: int) -> Floats:
    """ECE of each row."""
    index = equal_width_bin(t.value, bins).astype(np.intp)
    error: Floats = np.abs(t.summed(index, residual(t), bins)).sum(-1) / t.n
    return error


def ace_of(t: Tally, bins: int) -> Floats:
    """ACE of each row."""
    edges = equal_mass_edges(t.n, bins)
    error: Floats = np.abs(np.diff(running_sum_at(t.count, residual(t), edges, t.n))).sum(-1) / t.n
    return error


def smooth_ece_of(t: Tally, end_weight: float = 0.5) -> Floats:
    """SmoothECE of each row."""
    residuals, count = _on_grid(t, [residual(t), t.count])
    mass = (_ENDS_HALVED * _weighted_ends(end_weight) * count).sum(-1)
    smoothing = _Smoothing(_weighted_ends(end_weight) * residuals, mass)
    low, high = _bracketed(smoothing)
    return smoothing.error((low + high) / 2)


@dataclass(frozen=True, eq=False)
class _Smoothing:
    """Residuals on the grid, and the sum of absolute values that is left when they are smoothed."""

    residuals: Floats  # [B, CELLS + 1]
    mass: Floats  # [B] weight of all examples

    @cached_property
    def cosines(self) -> Floats:
        cosines: Floats = dct(self.residuals, type=1)
        return cosines

    def error(self, width: Floats, rows: NDArray[np.intp] | slice = slice(None)) -> Floats:
        """The integral at one width for each of the rows, on the coarsest grid that the width allows."""
        cosines, mass = self.cosines[rows], self.mass[rows]
        cells = np.minimum(2 ** np.ceil(np.log2(FINENESS / width)).astype(np.intp), CELLS)
        total = np.empty(len(width))
        for count in np.unique(cells):
            alike = cells == count
            total[alike] = _integral(cosines[alike], width[alike], int(count)) / mass[alike]
        return total


def _integral(cosines: Floats, width: Floats, cells: int) -> Floats:
    """The integral of |smoothed| by trapezoids on so many cells; what the kernel wipes out is left out."""
    heard = 1 + min(int(np.sqrt(-2 * SILENT) / (np.pi * width.min())), cells)
    smoothed = np.zeros((len(cosines), cells + 1))
    smoothed[:, :heard] = cosines[:, :heard] * np.exp(_DECAY[:heard] * width[:, None] ** 2)
    values = np.abs(idct(smoothed, type=1))
    total: Floats = values[:, 1:-1].sum(-1) + (values[:, 0] + values[:, -1]) / 2
    return total


def _bracketed(smoothing: _Smoothing) -> tuple[Floats, Floats]:
    """The two neighbouring widths k / WIDTHS between which each row's fixed point lies.

    What 14 bisections of [0, 1] find, by regula falsi on whole k (the Illinois rule: an end that stays
    twice in a row counts half), in about four steps. No smoothing takes the error below the gap between
    mean confidence and accuracy, where the search begins.
    """
    gap = np.abs(smoothing.residuals @ _ENDS_HALVED) / smoothing.mass
    low = np.zeros(len(gap))
    high = low + WIDTHS
    above, below = gap, gap - 1.0  # error less width, at low and at high
    side = np.zeros(len(gap))
    rows = np.arange(len(gap))
    while len(rows):
        share = above[rows] / (above[rows] - below[rows])
        k = np.clip(np.rint(low[rows] + (high[rows] - low[rows]) * share), low[rows] + 1, high[rows] - 1)
        excess = smoothing.error(k / WIDTHS, rows) - k / WIDTHS
        wider, last = excess > 0, side[rows]
        low[rows], high[rows] = np.where(wider, k, low[rows]), np.where(wider, high[rows], k)
        above[rows] = np.where(wider, excess, np.where(last < 0, above[rows] / 2, above[rows]))
        below[rows] = np.where(wider, np.where(last > 0, below[rows] / 2, below[rows]), excess)
        side[rows] = np.where(wider, 1.0, -1.0)
        rows = rows[high[rows] - low[rows] > 1]
    return low / WIDTHS, high / WIDTHS


def _weighted_ends(weight: float) -> Floats:
    """Weights of the grid points, the ends as half cells: with weight 1 they count whole."""
    weights = np.ones(CELLS + 1)
    weights[[0, -1]] = 2 * weight
    return weights


_ENDS_HALVED = _weighted_ends(0.25)
_DECAY = -0.5 * (np.pi * np.arange(CELLS + 1)) ** 2


def residual(t: Tally) -> Floats:
    """Sum of (correct - confidence) at each value: [B, U]."""
    return t.right - t.count * t.value


def equal_width_bin(value: Floats, bins: int) -> Floats:
    """Index of the bin ((b)/M, (b+1)/M] that each value belongs to."""
    index: Floats = np.clip(np.ceil((value - ABOVE_EDGE) * bins) - 1, 0, bins - 1)
    return index


def equal_mass_edges(n: int, bins: int) -> Floats:
    """0, then the ranks at which min(bins, n) bins end; sizes differ by at most one, larger ones first."""
    bins = min(bins, n)
    sizes = n // bins + (np.arange(bins) < n % bins)
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.float64)


def running_sum_at(count: Floats, total: Floats, ranks: Floats, n: int) -> Floats:
    """Sum of `total` over the first `rank` examples, linear within a tie group: [B, U], [B, U], [R] -> [B,
    R].

    One interpolation serves all rows: row b is moved to the abscissae b(n+1) .. b(n+1) + n.
    """
    rows = len(count)
    shift = np.arange(rows)[:, None] * (n + 1.0)
    x = np.concatenate([np.zeros((rows, 1)), np.cumsum(count, -1)], axis=1) + shift
    y = np.concatenate([np.zeros((rows, 1)), np.cumsum(total, -1)], axis=1)
    at: Floats = np.interp((ranks + shift).ravel(), x.ravel(), y.ravel()).reshape(rows, -1)
    return at


def _on_grid(t: Tally, masses: Sequence[Floats]) -> list[Floats]:
    """Share each mass at each value between the two grid points beside it: [B, U] -> [B, CELLS + 1]."""
    left = np.minimum((t.value * CELLS).astype(np.intp), CELLS - 1)
    to_right = t.value * CELLS - left
    points = np.unique(left) if left.ndim == 1 else slice(CELLS)
    beside = points + 1 if isinstance(points, np.ndarray) else slice(1, CELLS + 1)
    grids = []
    for mass in masses:
        grid = np.zeros((len(mass), CELLS + 1))
        grid[:, points] = t.summed(left, mass * (1 - to_right), CELLS)
        grid[:, beside] += t.summed(left, mass * to_right, CELLS)
        grids.append(grid)
    return grids
