"""Metrics of many methods in many resamples, from how often each question was drawn in each of them.

Equal to the metrics of the tallies (:mod:`semcal.metrics.table`) up to rounding, and ten times as fast: most
are sums over questions, and neighbours in the order of confidence that are all right or all wrong need not be
told apart. (Where rounding decides which width SmoothECE takes, the two differ by up to 2^-14.) Counts lie as
[N, B], so that every step adds whole rows of B resamples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import isotonic_regression

from semcal.metrics.calibration import equal_mass_edges, equal_width_bin, smooth_ece_of_sums
from semcal.metrics.resampling import Groups, Sorted, drawn_weights
from semcal.metrics.selective import harmonic_numbers
from semcal.metrics.tally import Floats

__all__ = ["Counts", "Recount"]

#: Up to so many questions all counts, and their products, are exact in single precision.
SINGLE = 4000


@dataclass(frozen=True, eq=False)
class Counts:
    """How often each of N questions was drawn in each of B resamples."""

    double: Floats  # [N, B]
    groups: Groups | None = None

    @classmethod
    def drawn(cls, n: int, resamples: int, rng: np.random.Generator, groups: Groups | None = None) -> Counts:
        """The resamples that `resampled` draws."""
        drawn = np.concatenate(list(drawn_weights(n, resamples, rng, groups)))
        return cls(np.ascontiguousarray(drawn.T), groups)

    @cached_property
    def n(self) -> int | Floats:
        """Questions of a resample; of each [B] where groups are drawn."""
        return len(self.double) if self.groups is None else self.double.sum(0)

    @property
    def once(self) -> Floats:
        """One for each question of the data: [N]."""
        return np.ones(len(self.double))

    @cached_property
    def exact(self) -> NDArray[Any]:
        """The same in the smallest type in which sums of whole numbers are exact: [N, B]."""
        return self.double.astype(np.float32) if np.max(self.n) <= SINGLE else self.double


@dataclass(frozen=True, eq=False)
class Recount:
    """The questions of one run in ascending order of value, in groups of equal value."""

    sample: Sorted
    counts: Counts
    bins: int

    def metric(self, name: str) -> Floats:
        """A metric in each resample: [B]."""
        return RECOUNTED[name](self)

    def calibrated_outcomes(self, numbers: Floats) -> Floats:
        """Outcomes as if the values were calibrated: question i is right where numbers [N, B] are below its
        value; with groups, numbers are signs of what is between outcome and value.
        """
        value, correct = np.empty((2, len(numbers), 1))
        value[self.sample.order, 0], correct[self.sample.order, 0] = self.value, self.sample.correct
        if self.counts.groups is None:
            return (numbers < value).astype(np.float64)
        turned: Floats = value + numbers * (correct - value)
        return turned

    def if_calibrated(self, name: str, right: Floats) -> Floats:
        """An error of calibration of outcomes [N, B], the questions as they are: [B]."""
        return (NULLS if self.counts.groups is None else NULLS | TURNED)[name](self, right)

    @cached_property
    def accuracy(self) -> Floats:
        """Share of right answers: [B]."""
        return self.total(self.sample.correct, self.counts.exact)

    @cached_property
    def brier(self) -> Floats:
        """Mean squared error: [B]."""
        return self.total((self.sample.correct - self.value) ** 2, self.counts.double)

    @cached_property
    def auroc(self) -> Floats:
        """AUROC, NaN with one class: [B]."""
        return _auroc(self)

    @cached_property
    def squares(self) -> Floats:
        """Sum over groups of right² / count, a question: [B]."""
        return _squares(self)

    @cached_property
    def fitted_squares(self) -> Floats:
        """Sum of count × fit² of the isotonic fit, a question: [B]."""
        return _fitted_squares(self)

    @cached_property
    def sizes(self) -> NDArray[np.intp]:
        """Questions in each group: [U]."""
        return np.diff(np.append(self.sample.starts, len(self.sample.order)))

    @cached_property
    def group(self) -> NDArray[np.intp]:
        """The group at each place: [N]."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @cached_property
    def value(self) -> Floats:
        """The value at each place: [N]."""
        return self.sample.value[self.group]

    @cached_property
    def right(self) -> NDArray[np.bool_]:
        """Whether a group is all right: [U]."""
        return np.asarray(np.add.reduceat(self.sample.correct, self.sample.starts) == self.sizes)

    @cached_property
    def wrong(self) -> NDArray[np.bool_]:
        """Whether a group is all wrong: [U]."""
        return np.asarray(np.add.reduceat(self.sample.correct, self.sample.starts) == 0)

    def sums(
        self, part: NDArray[Any], values: Floats, of: NDArray[Any], only: NDArray[np.bool_] | None = None
    ) -> NDArray[Any]:
        """Sum rows `of` [N, B], times a value each, over ascending parts [N] of the order: [parts, B]."""
        order = self.sample.order
        count = int(part[-1]) + 1
        if only is not None:
            part, values, order = part[only], values[only], order[only]
        ends = np.searchsorted(part, np.arange(count + 1))
        matrix = sparse.csr_matrix((values.astype(of.dtype), order, ends), shape=(count, len(of)))
        return np.asarray(matrix @ of)

    def counted(self, part: NDArray[Any], of: NDArray[Any], *, right: bool) -> NDArray[Any]:
        """How many right (or wrong) ones each part has in each resample: [parts, B]."""
        return self.sums(part, np.ones(len(part)), of, self.sample.correct == right)

    def total(self, values: Floats, of: NDArray[Any]) -> Floats:
        """Mean over the questions of a resample of one value each, given in their order: [B]."""
        found = self.sums(np.zeros(len(values), np.intp), values, of)[0]
        mean: Floats = found.astype(np.float64, copy=False) / self.counts.n
        return mean


def ece(run: Recount) -> Floats:
    """Sum over bins of equal width of the absolute residual."""
    bins = equal_width_bin(run.value, run.bins).astype(np.intp)
    return _absolute(run.sums(bins, run.sample.correct - run.value, run.counts.double), run.counts.n)


def ace(run: Recount) -> Floats:
    """Sum over bins of equal mass of the absolute residual, which runs on evenly within a group."""
    count = run.sums(run.group, run.counts.once, run.counts.exact)
    total = run.sums(run.group, run.sample.correct - run.value, run.counts.double)
    running = _running(count, total, _edges(run.counts.n, run.bins))
    return _absolute(np.diff(running, axis=0), run.counts.n)


def aurac(run: Recount) -> Floats:
    r"""With A(k) = S(k) / k, a right answer at rank i adds :math:`\sum_{k \ge i} 1/k` to the sum of A(k), in
    a group the mean over its ranks; so a run of right groups adds the sum over its ranks."""
    kind = np.where(run.right, 2, np.where(run.wrong, 0, 1))[::-1]
    new = np.append(True, kind[1:] != kind[:-1]) | (kind == 1)
    part = _parts(new)
    upwards = (part[-1] - part[::-1])[run.group]  # ascending, as the groups are
    count = run.sums(upwards, run.counts.once, run.counts.exact)[::-1]
    rank = np.concatenate([np.zeros((1, count.shape[1]), count.dtype), count])
    _add_up(rank)
    gained = np.diff(_tails(run.counts.n, rank.astype(np.intp)), axis=0)
    kinds = kind[np.flatnonzero(new)]
    area: Floats = gained[kinds == 2].sum(0) / run.counts.n
    if (kinds == 1).any():
        right = run.counted(upwards, run.counts.exact, right=True)[::-1]
        rate = _ratio(right[kinds == 1].astype(np.float64), count[kinds == 1])
        area += (gained[kinds == 1] * rate).sum(0) / run.counts.n
    return area


def smooth_ece(run: Recount) -> Floats:
    """SmoothECE, all resamples in one search."""
    count = run.sums(run.group, run.counts.once, run.counts.double)
    total = run.sums(run.group, run.sample.correct - run.value, run.counts.double)
    return smooth_ece_of_sums(run.sample.value, count, total)


def ece_if_calibrated(run: Recount, right: Floats) -> Floats:
    """ECE of outcomes [N, B]."""
    bins = equal_width_bin(run.value, run.bins).astype(np.intp)
    gaps = (
        run.sums(bins, np.ones(len(right)), right) - np.bincount(bins, run.value).astype(np.float64)[:, None]
    )
    return _absolute(gaps, len(right))


def ace_if_calibrated(run: Recount, right: Floats) -> Floats:
    """ACE of outcomes [N, B]: each question's share of each bin is the same for all of them."""
    edges = equal_mass_edges(len(right), run.bins)
    starts = run.sample.starts.astype(np.float64)
    low, high = np.maximum(edges[:-1, None], starts), np.minimum(edges[1:, None], starts + run.sizes)
    shares = (np.maximum(high - low, 0.0) / run.sizes)[:, run.group]
    of_question = np.empty_like(shares)
    of_question[:, run.sample.order] = shares
    return _absolute(sparse.csr_matrix(of_question) @ right - (shares @ run.value)[:, None], len(right))


def reliability_if_calibrated(run: Recount, right: Floats) -> Floats:
    """Reliability of outcomes [N, B]."""
    tied = run.sizes > 1
    squares = run.total(1.0 - 2 * run.value - tied[run.group], right)
    if tied.any():
        inside = tied[run.group]
        total = run.sums(_among(tied)[run.group], np.ones(len(right)), right, inside)
        squares = squares + (total**2 / run.sizes[tied, None]).sum(0) / len(right)
    return np.maximum(_mean_square(run) + squares, 0.0)


def mcb_if_calibrated(run: Recount, right: Floats) -> Floats:
    """MCB of outcomes [N, B]."""
    total = run.sums(run.group, np.ones(len(right)), right)
    fitted = _isotonic_squares(np.repeat(run.sizes[:, None].astype(np.float64), right.shape[1], 1), total)
    return np.maximum(_mean_square(run) - run.total(2 * run.value, right) + fitted / len(right), 0.0)


def smooth_ece_if_calibrated(run: Recount, right: Floats) -> Floats:
    """SmoothECE of outcomes [N, B]."""
    sizes = run.sizes[:, None].astype(np.float64)
    total = run.sums(run.group, np.ones(len(right)), right) - sizes * run.sample.value[:, None]
    return smooth_ece_of_sums(run.sample.value, sizes, total)


#: All metrics. PRR is 2 AUROC − 1: the area under its curve of errors, by trapezoids, is
#: the same sum over pairs.
RECOUNTED: dict[str, Callable[[Recount], Floats]] = {
    "accuracy": lambda run: run.accuracy,
    "ece": ece,
    "ace": ace,
    "brier": lambda run: run.brier,
    "reliability": lambda run: np.maximum(run.brier - run.accuracy + run.squares, 0.0),
    "resolution": lambda run: np.maximum(run.squares - run.accuracy**2, 0.0),
    "uncertainty": lambda run: run.accuracy * (1 - run.accuracy),
    "mcb": lambda run: np.maximum(run.brier - run.accuracy + run.fitted_squares, 0.0),
    "dsc": lambda run: np.maximum(run.fitted_squares - run.accuracy**2, 0.0),
    "unc": lambda run: run.accuracy * (1 - run.accuracy),
    "auroc": lambda run: run.auroc,
    "aurac": aurac,
    "prr": lambda run: 2 * run.auroc - 1,
    "smooth_ece": smooth_ece,
    "mean_confidence": lambda run: run.total(run.value, run.counts.double),
}
#: All errors of calibration, of outcomes [N, B], the questions themselves as they are.
NULLS: dict[str, Callable[[Recount, Floats], Floats]] = {
    "ece": ece_if_calibrated,
    "ace": ace_if_calibrated,
    "reliability": reliability_if_calibrated,
    "mcb": mcb_if_calibrated,
    "smooth_ece": smooth_ece_if_calibrated,
}


def turned_reliability(run: Recount, right: Floats) -> Floats:
    """Reliability of outcomes [N, B] that are any numbers."""
    gaps = run.sums(run.group, run.counts.once, right) - (run.sizes * run.sample.value)[:, None]
    return _mean_of_groups(gaps**2 / run.sizes[:, None], right)


def turned_mcb(run: Recount, right: Floats) -> Floats:
    """MCB of outcomes [N, B] within −1 and 2, all columns in one regression."""
    total, sizes = run.sums(run.group, run.counts.once, right), run.sizes[:, None].astype(np.float64)
    shift = 4.0 * np.arange(right.shape[1])
    rates, weights = (total / sizes + shift).T.ravel(), np.broadcast_to(sizes, total.shape).T.ravel()
    fit = isotonic_regression(rates, weights=weights).x.reshape(total.shape[::-1]).T - shift
    value = run.sample.value[:, None]
    return np.maximum(_mean_of_groups(sizes * (value**2 + fit**2) - 2 * value * total, right), 0.0)


#: Errors of calibration that outcomes other than 0 and 1 need computed in another way.
TURNED: dict[str, Callable[[Recount, Floats], Floats]] = {
    "reliability": turned_reliability,
    "mcb": turned_mcb,
}


def _mean_of_groups(squares: Floats, right: Floats) -> Floats:
    """Sum over groups [U, B], a question."""
    mean: Floats = squares.sum(0) / len(right)
    return mean


def _parts(new: NDArray[np.bool_]) -> NDArray[Any]:
    """The number of the part that each begins or goes on; the first one begins part 0."""
    return np.cumsum(np.append(False, new[1:]))


def _among(chosen: NDArray[np.bool_]) -> NDArray[Any]:
    """The number of each chosen one among them; it means nothing for the others."""
    return np.asarray(np.maximum(np.cumsum(chosen) - 1, 0))


def _add_up(rows: NDArray[Any]) -> None:
    """Running sums down the rows, in place; row by row is several times as fast as `cumsum`."""
    for above, row in pairwise(rows):
        row += above


def _ratio(right: Floats, count: Floats) -> Floats:
    """right / count, 0 where there is none."""
    return np.divide(right, count, out=np.zeros(right.shape), where=count > 0)


def _absolute(gaps: Floats, n: int | Floats) -> Floats:
    """Sum of the absolute gaps of bins [bins, B], a question."""
    found: Floats = np.abs(gaps).sum(0) / n
    return found


def _mean_square(run: Recount) -> float:
    return float(np.mean(run.value**2))


def _tails(n: int | Floats, rank: NDArray[np.intp]) -> Floats:
    """Sum over the first k ranks i of 1/i + … + 1/n, for the k of each rank [ranks, B]."""
    harmonic = harmonic_numbers(int(np.max(n)))
    if isinstance(n, int):
        tails: Floats = np.concatenate([[0.0], np.cumsum(harmonic[-1] - harmonic[:-1])])[rank]
        return tails
    before = np.concatenate([[0.0], np.cumsum(harmonic[:-1])])
    found: Floats = rank * harmonic[n.astype(np.intp)] - before[rank]
    return found


def _edges(n: int | Floats, bins: int) -> Floats:
    """`equal_mass_edges` of each resample: [edges, 1] or [edges, B]; bins that are too many are empty."""
    if isinstance(n, int):
        return equal_mass_edges(n, bins)[:, None]
    number, used = np.arange(bins)[:, None], np.minimum(n, bins)
    sizes = np.where(number < used, n // used + (number < n % used), 0.0)
    return np.concatenate([np.zeros((1, len(n))), np.cumsum(sizes, axis=0)])


def _running(count: NDArray[Any], total: Floats, edges: Floats) -> Floats:
    """Sum of `total` [U, B] over the first so many examples, linear within a group: [edges, B].

    `edges` are [edges, 1] or [edges, B]. Both `count` and `total` are added up in place.
    """
    _add_up(count)
    _add_up(total)
    columns = np.arange(count.shape[1])
    lowest, highest, inner = count.min(1), count.max(1), edges[1:-1]
    first = np.searchsorted(highest, inner.min(1), "right")
    last = np.searchsorted(lowest, inner.max(1), "right")
    beyond = np.empty((len(inner), len(columns)), np.intp)  # the first group that ends beyond each edge
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


def _auroc(run: Recount) -> Floats:
    """Wins of right ones over wrong ones, as a share of pairs; a run of wrong groups and the run of right
    ones above it are one block, for all its right ones are above all its wrong ones."""
    mixed = ~(run.right | run.wrong)
    new = mixed | (run.wrong & ~np.append(False, run.wrong[:-1])) | np.append(False, mixed[:-1])
    block = _parts(new)
    wrong = run.counted(block[run.group], run.counts.exact, right=False)
    right = run.counted(block[run.group], run.counts.exact, right=True)
    below = wrong.copy()
    _add_up(below)
    losses, wins = below[-1].astype(np.float64), right.sum(0, dtype=np.float64)
    ties = np.unique(block[mixed])
    below[ties] -= wrong[ties] / 2
    won = np.einsum("ub,ub->b", below, right).astype(np.float64)
    pairs = losses * wins
    area: Floats = np.divide(won, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)
    return area


def _squares(run: Recount) -> Floats:
    """Sum over groups of right² / count, a question."""
    pure = run.total(run.right[run.group].astype(np.float64), run.counts.exact)
    mixed = ~(run.right | run.wrong)
    if not mixed.any():
        return pure
    part = _among(mixed)[run.group]
    inside = mixed[run.group]
    count = run.sums(part, run.counts.once, run.counts.double, inside)
    right = run.sums(part, run.sample.correct, run.counts.double, inside)
    squares: Floats = pure + (_ratio(right, count) * right).sum(0) / run.counts.n
    return squares


def _fitted_squares(run: Recount) -> Floats:
    """Sum of count × fit² of the isotonic fit, a question.

    A group that is all wrong, or comes after one that is all right, is pooled with it in every resample.
    """
    new = ~(run.wrong | np.append(False, run.right[:-1]))
    block = _parts(new)[run.group]
    count = run.sums(block, run.counts.once, run.counts.exact)
    return _isotonic_squares(count, run.counted(block, run.counts.exact, right=True)) / run.counts.n


def _isotonic_squares(count: NDArray[Any], right: NDArray[Any]) -> Floats:
    """Sum of count × fit² of each column [U, B], all in one regression: columns are moved apart by 2.

    A group that is all wrong, or comes after one that is all right, is pooled with the one before.
    """
    column, weight, hits = np.repeat(np.arange(count.shape[1]), len(count)), count.T.ravel(), right.T.ravel()
    if not weight.all():
        column, weight, hits = (column[weight > 0], weight[weight > 0], hits[weight > 0])
    new = np.append(True, column[1:] != column[:-1])
    new[1:] |= (hits[1:] > 0) & (hits[:-1] < weight[:-1])
    starts = np.flatnonzero(new)
    weights = np.add.reduceat(weight, starts).astype(np.float64)
    shift = 2.0 * column[starts]
    fit = isotonic_regression(np.add.reduceat(hits, starts) / weights + shift, weights=weights).x - shift
    return np.bincount(column[starts], weights * fit**2, count.shape[1]).astype(np.float64, copy=False)
