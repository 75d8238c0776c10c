"""Residuals smoothed by a reflected Gaussian kernel that chooses its own width, for SmoothECE.

The kernel is diagonal in the cosine basis, which makes it the whole Gaussian: relplot cuts its own at ±0.5. A
residual is shared between the two points beside it on a grid of 1025, and the result of smoothing is
integrated on a grid that is just fine enough for the width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dct, idct

from semcal.metrics.frequencies import Floats, FrequencyTable

#: Cells of the grid on which residuals are smoothed, between 0 and 1.
CELLS = 1024
#: The width is found to half a part in so many.
WIDTHS = 2**14
#: A cosine times exp of less than this is lost in rounding.
NEGLIGIBLE = -45.0
#: Smoothed residuals are integrated on a grid of at least so many cells in the width of the kernel.
FINENESS = 12
#: The search for the width begins no lower, as narrow kernels need fine grids.
BEGIN = WIDTHS // 32
#: Cosines that are computed first; a narrow kernel asks for more.
FIRST = 64
#: Default weight of the end points of the grid.
END_WEIGHT = 0.5

_DECAY = -0.5 * (np.pi * np.arange(CELLS + 1)) ** 2
#: cos(π j / CELLS) for all j of a period.
_PERIOD = np.cos(np.pi * np.arange(2 * CELLS) / CELLS)


@dataclass(frozen=True, eq=False)
class SmoothedResiduals:
    """Residuals of B data sets in the cosine basis, in which a kernel of any width is a factor."""

    cosines: Callable[[int], Floats]  # at least the first k of them: [B, k or more]
    mass: Floats  # [B] weight of all examples

    @property
    def gap(self) -> Floats:
        """Absolute sum of the residuals, an example: the least error at any width."""
        gap: Floats = np.abs(self.cosines(1)[:, 0]) / (2 * self.mass)
        return gap

    def error(self, width: Floats, rows: NDArray[np.intp] | slice = slice(None)) -> Floats:
        """The integral at one width for each of the rows, on the coarsest grid that the width allows."""
        places = np.arange(len(self.mass))[rows]
        cells = np.minimum(2 ** np.ceil(np.log2(FINENESS / width)).astype(np.intp), CELLS)
        total = np.empty(len(width))
        for count in np.unique(cells):
            alike = np.flatnonzero(cells == count)
            chosen, widths = places[alike], width[alike]
            needed = 1 + min(int(np.sqrt(-2 * NEGLIGIBLE) / (np.pi * widths.min())), int(count))
            cosines = self.cosines(needed)[chosen, :needed]
            total[alike] = _integral(cosines, widths, int(count)) / self.mass[chosen]
        return total


def smoothing_of_tables(t: FrequencyTable, end_weight: float) -> SmoothedResiduals:
    """The residuals of each data set of a table, by one cosine transform."""
    ends = _weighted_ends(end_weight)
    residuals, count = (_on_grid(t, mass) for mass in (residual(t), t.count))
    cosines: Floats = dct(ends * residuals, type=1)
    return SmoothedResiduals(lambda _: cosines, (_ENDS_HALVED * ends * count).sum(-1))


def smoothing_of_sums(value: Floats, count: Floats, total: Floats) -> SmoothedResiduals:
    """Many sums of residuals at common values: as many cosines as are asked for, by one matrix product.

    `value` [U], `count` of examples at each [U, B] or [U, 1], `total` of their residuals [U, B].
    """
    known = np.empty((total.shape[1], 0))

    def cosines(wanted: int) -> Floats:
        nonlocal known
        have = known.shape[1]
        if wanted > have:
            more = range(have, min(max(wanted, 2 * have, FIRST), CELLS + 1))
            known = np.concatenate([known, total.T @ _cosines(value, more)], axis=1)
        return known

    mass = (count.T @ _cosines(value, range(1)))[:, 0] / 2
    return SmoothedResiduals(cosines, np.broadcast_to(mass, total.shape[1:]))


def smooth_error(smoothing: SmoothedResiduals) -> Floats:
    """The integral of each data set at the width that equals it: [B]."""
    low, high = bracket_width(smoothing)
    return smoothing.error((low + high) / 2)


def bracket_width(smoothing: SmoothedResiduals) -> tuple[Floats, Floats]:
    """The two neighbouring widths k / WIDTHS between which each row's fixed point lies.

    The result of 14 bisections of [0, 1], in about four steps of regula falsi on whole k (the Illinois rule:
    an end that stays twice in a row counts half). The search begins at the gap between mean confidence and
    accuracy (no width takes the error below it) unless that is very small; the error is largest at width 0.
    """
    gap = smoothing.gap
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
        kept = np.where(unseen, error, np.where(last < 0, above[rows] / 2, above[rows]))
        above[rows] = np.where(wider, excess, kept)
        below[rows] = np.where(wider, np.where(last > 0, below[rows] / 2, below[rows]), excess)
        side[rows] = np.where(wider, 1.0, -1.0)
        rows, least = rows[high[rows] - low[rows] > 1], 0
    return low / WIDTHS, high / WIDTHS


def residual(t: FrequencyTable) -> Floats:
    """Sum of (correct - confidence) at each value: [B, U]."""
    return t.right - t.count * t.value


def _integral(cosines: Floats, width: Floats, cells: int) -> Floats:
    """The integral of |smoothed| by trapezoids on so many cells, from the first cosines [B, k]."""
    smoothed = np.zeros((len(cosines), cells + 1))
    k = cosines.shape[1]
    smoothed[:, :k] = cosines * np.exp(_DECAY[:k] * width[:, None] ** 2)
    values = np.abs(idct(smoothed, type=1))
    total: Floats = values[:, 1:-1].sum(-1) + (values[:, 0] + values[:, -1]) / 2
    return total


def _weighted_ends(weight: float) -> Floats:
    """Weights of the grid points, the ends as half cells: with weight 1 they count whole."""
    weights = np.ones(CELLS + 1)
    weights[[0, -1]] = 2 * weight
    return weights


_ENDS_HALVED = _weighted_ends(0.25)


def _split(value: Floats) -> tuple[NDArray[np.intp], Floats]:
    """The grid point to the left of each value, and the share that goes to the one on the right."""
    left = np.minimum((value * CELLS).astype(np.intp), CELLS - 1)
    return left, value * CELLS - left


def _cosines(value: Floats, which: range) -> Floats:
    """Some of the cosines (DCT-I) of an example at each value, split between grid points: [U, which]."""
    left, to_right = _split(value)
    weights = 2 * _ENDS_HALVED * _weighted_ends(END_WEIGHT)
    at_left, at_right = (
        weights[point, None] * _PERIOD[np.multiply.outer(point, np.asarray(which)) % (2 * CELLS)]
        for point in (left, left + 1)
    )
    cosines: Floats = (1 - to_right)[:, None] * at_left + to_right[:, None] * at_right
    return cosines


def _on_grid(t: FrequencyTable, mass: Floats) -> Floats:
    """Share the mass at each value between the two grid points beside it: [B, U] -> [B, CELLS + 1]."""
    left, to_right = _split(t.value)
    points = np.unique(left) if left.ndim == 1 else slice(CELLS)
    beside = points + 1 if isinstance(points, np.ndarray) else slice(1, CELLS + 1)
    grid = np.zeros((len(mass), CELLS + 1))
    grid[:, points] = t.sum_by_bin(left, mass * (1 - to_right), CELLS)
    grid[:, beside] += t.sum_by_bin(left, mass * to_right, CELLS)
    return grid
