"""Bootstrap resamples of the questions, and every metric in all of them at once.

Up to rounding the values are those of the plain definitions on each resample written out, ten times as fast:
most metrics are sums over questions, and neighbouring tie groups that are all right or all wrong need not be
kept apart. (Where rounding decides the width that SmoothECE takes, the two differ by up to 2^-14.) Counts lie
as [N, B], so that every step adds whole rows of B resamples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import numpy as np
import scipy
from numpy.typing import NDArray

from semcal.metrics.calibration import equal_mass_edges, equal_width_bin, smooth_error, smoothing_of_sums
from semcal.metrics.frequencies import Floats, Groups
from semcal.metrics.ranking import harmonic_numbers

#: Resamples drawn at a time, so that the arrays stay in the processor's cache.
CHUNK = 50
#: Up to so many questions all counts, and their products, are exact in single precision.
SINGLE = 4000


def draw_counts(n: int, resamples: int, rng: np.random.Generator, groups: Groups | None = None) -> Floats:
    """How often each of n questions is drawn with replacement, alone or with its group: [n, resamples]."""
    units = n if groups is None else int(groups.max()) + 1
    counts = np.empty((units, resamples))
    for start in range(0, resamples, CHUNK):
        rows = min(CHUNK, resamples - start)
        places = rng.integers(units, size=(rows, units)) + units * np.arange(rows)[:, None]
        found = np.bincount(places.ravel(), minlength=rows * units).reshape(rows, units)
        counts[:, start : start + rows] = found.T
    return counts if groups is None else counts[groups]


@dataclass(frozen=True, eq=False)
class Resamples:
    """How often each of N questions occurs in each of B resamples."""

    counts: Floats  # [N, B]
    groups: Groups | None = None

    @cached_property
    def n(self) -> Floats:
        """Questions in a resample: [1], or [B] where whole groups are drawn."""
        return np.array([float(len(self.counts))]) if self.groups is None else self.counts.sum(0)

    @cached_property
    def exact(self) -> NDArray[Any]:
        """The counts in the smallest type in which sums of whole numbers are exact: [N, B]."""
        return self.counts.astype(np.float32) if self.n.max() <= SINGLE else self.counts

    def draw_calibration(self, rng: np.random.Generator) -> Floats:
        """The numbers of `ResampledRun.calibrated_gaps`, uniform, one for each question or group: [N, B]."""
        n, resamples = self.counts.shape
        if self.groups is None:
            return np.ascontiguousarray(rng.random((resamples, n)).T)
        return np.ascontiguousarray(rng.random((resamples, int(self.groups.max()) + 1))[:, self.groups].T)


@dataclass(frozen=True, eq=False)
class ResampledRun:
    """The questions of one run in ascending order of value, in U groups of equal value ("ties")."""

    order: NDArray[np.intp]  # [N] question at each place
    starts: NDArray[np.intp]  # [U] first place of each tie
    levels: Floats  # [U] distinct values
    correct: Floats  # [N] outcomes in order
    resamples: Resamples
    bins: int

    @classmethod
    def of(cls, values: Floats, correct: Floats, resamples: Resamples, bins: int) -> Self:
        """Sort the values and outcomes of the questions."""
        order = np.argsort(values, kind="stable")
        levels, starts = np.unique(values[order], return_index=True)
        return cls(order, starts, levels, correct[order], resamples, bins)

    @cached_property
    def sizes(self) -> NDArray[np.intp]:
        """Questions in each tie: [U]."""
        return np.diff(np.append(self.starts, len(self.order)))

    @cached_property
    def tie(self) -> NDArray[np.intp]:
        """The tie at each place: [N]."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @cached_property
    def values(self) -> Floats:
        """The value at each place: [N]."""
        return self.levels[self.tie]

    @cached_property
    def all_right(self) -> NDArray[np.bool_]:
        """Whether all questions of a tie are right: [U]."""
        return np.asarray(np.add.reduceat(self.correct, self.starts) == self.sizes)

    @cached_property
    def all_wrong(self) -> NDArray[np.bool_]:
        """Whether all questions of a tie are wrong: [U]."""
        return np.asarray(np.add.reduceat(self.correct, self.starts) == 0)

    @cached_property
    def mixed(self) -> NDArray[np.bool_]:
        """Whether a tie holds right and wrong ones: [U]."""
        return ~(self.all_right | self.all_wrong)

    def sums(
        self,
        part: NDArray[Any],
        weights: Floats | float,
        counts: NDArray[Any],
        only: NDArray[np.bool_] | None = None,
    ) -> NDArray[Any]:
        """Weighted sums of rows of counts [N, B] over parts [N], numbered in ascending order: [parts, B]."""
        order, number = self.order, int(part[-1]) + 1
        weights = np.broadcast_to(weights, part.shape)
        if only is not None:
            part, weights, order = part[only], weights[only], order[only]
        ends = np.searchsorted(part, np.arange(number + 1))
        matrix = scipy.sparse.csr_matrix(
            (weights.astype(counts.dtype), order, ends), shape=(number, len(counts))
        )
        return np.asarray(matrix @ counts)

    def numbers_of(self, part: NDArray[Any], *, right: bool) -> NDArray[Any]:
        """Right (or wrong) questions in each part of each resample: [parts, B]."""
        return self.sums(part, 1.0, self.resamples.exact, self.correct == right)

    def mean(self, values: Floats, counts: NDArray[Any]) -> Floats:
        """Mean over the questions of a resample of one value each [N], in order: [B]."""
        total = self.sums(np.zeros(len(values), np.intp), values, counts)[0]
        mean: Floats = total.astype(np.float64, copy=False) / self.resamples.n
        return mean

    @cached_property
    def accuracy(self) -> Floats:
        """Share of right answers: [B]."""
        return self.mean(self.correct, self.resamples.exact)

    @cached_property
    def brier(self) -> Floats:
        """Mean squared error: [B]."""
        return self.mean((self.correct - self.values) ** 2, self.resamples.counts)

    @cached_property
    def auroc(self) -> Floats:
        """AUROC, NaN with one class: [B].

        Pairs in which the right one is above, as a share of all. Wrong ties and the right ones above them are
        one block, as all its right ones are above all its wrong ones.
        """
        starts_wrong = self.all_wrong & ~np.append(False, self.all_wrong[:-1])
        block = _numbered(self.mixed | starts_wrong | np.append(False, self.mixed[:-1]))
        wrong, right = (self.numbers_of(block[self.tie], right=which) for which in (False, True))
        below = wrong.copy()
        _accumulate(below)
        losses, wins = below[-1].astype(np.float64), right.sum(0, dtype=np.float64)
        ties = np.unique(block[self.mixed])
        below[ties] -= wrong[ties] / 2
        won = np.einsum("ub,ub->b", below, right).astype(np.float64)
        pairs = losses * wins
        area: Floats = np.divide(won, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)
        return area

    @cached_property
    def squared_rates(self) -> Floats:
        """Mean of the squared share of right answers within ties: [B]."""
        squares = self.mean(self.all_right[self.tie].astype(np.float64), self.resamples.exact)
        if self.mixed.any():
            part, inside = np.maximum(np.cumsum(self.mixed) - 1, 0)[self.tie], self.mixed[self.tie]
            count = self.sums(part, 1.0, self.resamples.counts, inside)
            right = self.sums(part, self.correct, self.resamples.counts, inside)
            squares = squares + (_ratio(right, count) * right).sum(0) / self.resamples.n
        return squares

    @cached_property
    def squared_fits(self) -> Floats:
        """Mean of the squared isotonic fit: [B].

        A tie that is all wrong, or comes after one that is all right, is pooled with it in every resample.
        """
        block = _numbered(~(self.all_wrong | np.append(False, self.all_right[:-1])))[self.tie]
        count = self.sums(block, 1.0, self.resamples.exact)
        return _isotonic_squares(count, self.numbers_of(block, right=True)) / self.resamples.n

    def calibrated_gaps(self, numbers: Floats) -> Floats:
        """Sum of (outcome - value) of each tie if the values were calibrated, from [N, B] numbers: [U, B].

        A question is right if its uniform number is below its value; a group has one number, so that its
        members are right together as far as their values allow.
        """
        values = np.empty((len(numbers), 1))
        values[self.order, 0] = self.values
        counted = np.float32 if len(numbers) <= SINGLE else np.float64
        right = self.sums(self.tie, 1.0, (numbers < values).astype(counted))
        return right.astype(np.float64, copy=False) - (self.sizes * self.levels)[:, None]


def ece(run: ResampledRun) -> Floats:
    """Sum over bins of equal width of the absolute gap."""
    bins = equal_width_bin(run.values, run.bins)
    gaps = run.sums(bins, run.correct - run.values, run.resamples.counts)
    return _absolute(gaps, run.resamples.n)


def ace(run: ResampledRun) -> Floats:
    """Sum over bins of equal mass of the absolute gap, which is spread evenly within a tie."""
    count = run.sums(run.tie, 1.0, run.resamples.exact)
    total = run.sums(run.tie, run.correct - run.values, run.resamples.counts)
    running = _running_sums(count, total, equal_mass_edges(run.resamples.n, run.bins))
    return _absolute(np.diff(running, axis=0), run.resamples.n)


def aurac(run: ResampledRun) -> Floats:
    r"""With A(k) = S(k) / k, a right answer at rank i adds :math:`\sum_{k \ge i} 1/k` to the sum of A(k), in
    a tie the mean over its ranks; so a series of right ties adds the sum over its ranks."""
    kind = np.where(run.all_right, 2, np.where(run.all_wrong, 0, 1))[::-1]
    new = np.append(True, kind[1:] != kind[:-1]) | (kind == 1)
    part = _numbered(new)
    ascending = (part[-1] - part[::-1])[run.tie]
    count = run.sums(ascending, 1.0, run.resamples.exact)[::-1]
    rank = np.concatenate([np.zeros((1, count.shape[1]), count.dtype), count])
    _accumulate(rank)
    gained = np.diff(_tail_sums(run.resamples.n, rank.astype(np.intp)), axis=0)
    kinds = kind[np.flatnonzero(new)]
    area: Floats = gained[kinds == 2].sum(0) / run.resamples.n
    if (kinds == 1).any():
        right = run.numbers_of(ascending, right=True)[::-1]
        rate = _ratio(right[kinds == 1].astype(np.float64), count[kinds == 1])
        area += (gained[kinds == 1] * rate).sum(0) / run.resamples.n
    return area


def smooth_ece(run: ResampledRun) -> Floats:
    """SmoothECE, all resamples in one search for the width."""
    count = run.sums(run.tie, 1.0, run.resamples.counts)
    total = run.sums(run.tie, run.correct - run.values, run.resamples.counts)
    return smooth_error(smoothing_of_sums(run.levels, count, total))


#: Every metric of a run: [B]. PRR is 2 AUROC − 1: the area under its curve of errors, by trapezoids, is the
#: same sum over pairs.
RESAMPLED: dict[str, Callable[[ResampledRun], Floats]] = {
    "accuracy": lambda run: run.accuracy,
    "ece": ece,
    "ace": ace,
    "brier": lambda run: run.brier,
    "gain": lambda run: run.accuracy - run.brier,
    "reliability": lambda run: np.maximum(run.brier - run.accuracy + run.squared_rates, 0.0),
    "resolution": lambda run: np.maximum(run.squared_rates - run.accuracy**2, 0.0),
    "uncertainty": lambda run: run.accuracy * (1 - run.accuracy),
    "mcb": lambda run: np.maximum(run.brier - run.accuracy + run.squared_fits, 0.0),
    "dsc": lambda run: np.maximum(run.squared_fits - run.accuracy**2, 0.0),
    "unc": lambda run: run.accuracy * (1 - run.accuracy),
    "auroc": lambda run: run.auroc,
    "aurac": aurac,
    "prr": lambda run: 2 * run.auroc - 1,
    "smooth_ece": smooth_ece,
    "mean_confidence": lambda run: run.mean(run.values, run.resamples.counts),
}


def calibrated_ece(run: ResampledRun, gaps: Floats) -> Floats:
    """ECE from the gaps of ties [U, B]."""
    bins = equal_width_bin(run.levels, run.bins)
    inside = np.split(gaps, np.flatnonzero(np.diff(bins)) + 1)
    return _absolute(np.stack([part.sum(0) for part in inside]), len(run.order))


def calibrated_ace(run: ResampledRun, gaps: Floats) -> Floats:
    """ACE from the gaps of ties [U, B], of which each bin has the same share in all of them."""
    edges = equal_mass_edges(len(run.order), run.bins)[:, None]
    low, high = np.maximum(edges[:-1], run.starts), np.minimum(edges[1:], run.starts + run.sizes)
    return _absolute((np.maximum(high - low, 0.0) / run.sizes) @ gaps, len(run.order))


def calibrated_reliability(run: ResampledRun, gaps: Floats) -> Floats:
    """Reliability from the gaps of ties [U, B]."""
    mean: Floats = (gaps**2 / run.sizes[:, None]).sum(0) / len(run.order)
    return mean


def calibrated_mcb(run: ResampledRun, gaps: Floats) -> Floats:
    """MCB from the gaps of ties [U, B], by one regression of all columns, moved apart by 2."""
    sizes, levels = run.sizes[:, None].astype(np.float64), run.levels[:, None]
    shift = 2.0 * np.arange(gaps.shape[1])
    rates, weights = (gaps / sizes + levels + shift).T.ravel(), np.broadcast_to(sizes, gaps.shape).T.ravel()
    fit = scipy.optimize.isotonic_regression(rates, weights=weights).x.reshape(gaps.shape[::-1]).T - shift
    gained = (sizes * (fit**2 - levels**2) - 2 * levels * gaps).sum(0)
    error: Floats = np.maximum(gained / len(run.order), 0.0)
    return error


def calibrated_smooth_ece(run: ResampledRun, gaps: Floats) -> Floats:
    """SmoothECE from the gaps of ties [U, B]."""
    return smooth_error(smoothing_of_sums(run.levels, run.sizes[:, None].astype(np.float64), gaps))


#: The errors of calibration of data that are calibrated, the questions themselves as they are: [B].
CALIBRATED: dict[str, Callable[[ResampledRun, Floats], Floats]] = {
    "ece": calibrated_ece,
    "ace": calibrated_ace,
    "reliability": calibrated_reliability,
    "mcb": calibrated_mcb,
    "smooth_ece": calibrated_smooth_ece,
}


def _numbered(new: NDArray[np.bool_]) -> NDArray[Any]:
    """The number of the part that each begins or continues; the first one begins part 0."""
    return np.cumsum(np.append(False, new[1:]))


def _accumulate(rows: NDArray[Any]) -> None:
    """Running sums down the rows, in place; row by row is several times as fast as `cumsum`."""
    for above, row in pairwise(rows):
        row += above


def _ratio(right: Floats, count: Floats) -> Floats:
    """right / count, 0 where there is none."""
    return np.divide(right, count, out=np.zeros(right.shape), where=count > 0)


def _absolute(gaps: Floats, n: Floats | int) -> Floats:
    """Sum of the absolute gaps of bins [bins, B], a question."""
    error: Floats = np.abs(gaps).sum(0) / n
    return error


def _tail_sums(n: Floats, rank: NDArray[np.intp]) -> Floats:
    """Sum over the first k ranks i of 1/i + … + 1/n, for the k of each rank [ranks, B]."""
    harmonic = harmonic_numbers(int(n.max()))
    if len(n) == 1:
        tails: Floats = np.concatenate([[0.0], np.cumsum(harmonic[-1] - harmonic[:-1])])[rank]
        return tails
    before = np.concatenate([[0.0], np.cumsum(harmonic[:-1])])
    found: Floats = rank * harmonic[n.astype(np.intp)] - before[rank]
    return found


def _running_sums(count: NDArray[Any], total: Floats, edges: Floats) -> Floats:
    """Sum of `total` [U, B] over the first so many questions, linear within a tie: [edges, B].

    `edges` are [edges, 1] or [edges, B]. Both `count` and `total` are accumulated in place.
    """
    _accumulate(count)
    _accumulate(total)
    columns = np.arange(count.shape[1])
    lowest, highest, inner = count.min(1), count.max(1), edges[1:-1]
    first = np.searchsorted(highest, inner.min(1), "right")
    last = np.searchsorted(lowest, inner.max(1), "right")
    beyond = np.empty((len(inner), len(columns)), np.intp)  # the first tie that ends beyond each edge
    for found, low, high, edge in zip(beyond, first, last, inner):
        found[:] = low + np.add.reduce(count[low:high] <= edge, axis=0, dtype=np.int32)
    np.minimum(beyond, len(count) - 1, out=beyond)  # an edge at the very end
    before = np.maximum(beyond - 1, 0) * len(columns) + columns
    (start, low), (end, high) = (
        [np.where(beyond > 0, sums.take(before), 0.0) for sums in (count, total)],
        [sums.take(beyond * len(columns) + columns) for sums in (count, total)],
    )
    share = np.divide(inner - start, end - start, out=np.ones(end.shape), where=end > start)
    inside = low + share * (high - low)
    return np.concatenate([np.zeros((1, len(columns))), inside, total[-1:]])


def _isotonic_squares(count: NDArray[Any], right: NDArray[Any]) -> Floats:
    """Sum of count × fit² of each column [U, B], all in one regression: columns are moved apart by 2.

    A part that is all wrong, or comes after one that is all right, is pooled with the one before.
    """
    column, weight, hits = np.repeat(np.arange(count.shape[1]), len(count)), count.T.ravel(), right.T.ravel()
    if not weight.all():
        column, weight, hits = (column[weight > 0], weight[weight > 0], hits[weight > 0])
    new = np.append(True, column[1:] != column[:-1])
    new[1:] |= (hits[1:] > 0) & (hits[:-1] < weight[:-1])
    starts = np.flatnonzero(new)
    weights = np.add.reduceat(weight, starts).astype(np.float64)
    shift = 2.0 * column[starts]
    fit = (
        scipy.optimize.isotonic_regression(np.add.reduceat(hits, starts) / weights + shift, weights=weights).x
        - shift
    )
    return np.bincount(column[starts], weights * fit**2, count.shape[1]).astype(np.float64, copy=False)
