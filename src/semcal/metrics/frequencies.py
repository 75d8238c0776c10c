"""What every metric is a function of: how often each distinct confidence occurs, and how often it is right.

As a function of this table a metric does not depend on the order of questions, and ties are pooled exactly.
A row is a data set, a resample of one, or one with outcomes drawn by chance: one definition serves for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from semcal.metrics.arguments import Floats, Groups, as_correct, as_pairs, as_scores, check_same_length

#: Numbers that are computed sooner than a part of scipy is imported for them.
FEW = 2000
#: Entries of a table that are computed at a time, so that the arrays stay in the processor's cache.
AT_A_TIME = 2**15
#: Resamples drawn at a time.
CHUNK = 50


@dataclass(frozen=True, eq=False)
class FrequencyTable:
    """Counts of examples on U distinct values, for B data sets at once (B = 1 for a single one).

    Data sets that differ in their outcomes alone, or in how often each example occurs (resamples), share
    their values; else each has a row of values, the shorter ones filled up with their largest value, counted
    zero times.
    """

    value: Floats  # [U] or [B, U], ascending
    count: Floats  # [B, U] examples with that value
    right: Floats  # [B, U] correct ones among them

    def parts(self) -> Iterator[FrequencyTable]:
        """The table, some rows at a time."""
        rows = max(1, AT_A_TIME // self.count.shape[1])
        for start in range(0, len(self.count), rows):
            part = slice(start, start + rows)
            value = self.value if self.value.ndim == 1 else self.value[part]
            yield FrequencyTable(value, self.count[part], self.right[part])

    @cached_property
    def n(self) -> Floats:
        """Number of examples of each row: [B]."""
        n: Floats = self.count.sum(-1)
        return n

    @cached_property
    def accuracy(self) -> Floats:
        """Share of correct examples: [B]."""
        share: Floats = self.right.sum(-1) / self.n
        return share

    @cached_property
    def mean(self) -> Floats:
        """Mean value: [B]."""
        total = self.count @ self.value if self.value.ndim == 1 else (self.count * self.value).sum(-1)
        mean: Floats = total / self.n
        return mean

    @cached_property
    def rate(self) -> Floats:
        """Share of correct examples at each value, 0 where there is none: [B, U]."""
        return np.divide(self.right, self.count, out=np.zeros_like(self.right), where=self.count > 0)

    @cached_property
    def isotonic(self) -> Floats:
        """Isotonic regression of correctness on value, by pool adjacent violators with ties pooled: [B, U].

        A value without examples takes the fit of the value below.
        """
        fits = np.empty_like(self.count)
        occurs = self.count > 0
        below = np.maximum(np.cumsum(occurs, axis=-1) - 1, 0)
        for b, fit in enumerate(fits):
            rate, count = self.rate[b, occurs[b]], self.count[b, occurs[b]]
            if self.count.size <= FEW:
                fit[:] = isotonic_fit(rate, count)[below[b]]
            else:
                fit[:] = scipy.optimize.isotonic_regression(rate, weights=count).x[below[b]]
        return fits

    def sum_by_bin(self, index: NDArray[np.intp], total: Floats, bins: int) -> Floats:
        """Sum totals [B, U] over the values of a bin, for an ascending index of bins, [U] or [B, U].

        Returns [B, bins], or with values in common perhaps fewer columns: those of the bins that occur.
        """
        if index.ndim == 1:
            return np.add.reduceat(total, np.unique(index, return_index=True)[1], axis=-1)
        rows = len(total)
        place = index + bins * np.arange(rows)[:, None]
        sums: Floats = np.bincount(place.ravel(), total.ravel(), rows * bins).astype(np.float64, copy=False)
        return sums.reshape(rows, bins)

    @cached_property
    def residual(self) -> Floats:
        """Sum of (correct - value) at each value: [B, U]."""
        return self.right - self.count * self.value

    def at_least(self, thresholds: Floats) -> tuple[Floats, Floats]:
        """Examples of the first row with value >= each threshold, and the correct ones among them."""
        first = np.searchsorted(self.value, thresholds, side="left")
        count, right = (np.append(np.cumsum(row[0, ::-1])[::-1], 0.0) for row in (self.count, self.right))
        return count[first], right[first]


def isotonic_fit(rates: Floats, weights: Floats) -> Floats:
    """Isotonic regression, to the bit that of `scipy.optimize`, which takes 0.5 s to import.

    Pool adjacent violators: a level that is not above the one before is pooled with it, then with those that
    follow as long as they are no higher, then with those before as long as they are no lower.
    """
    pooled: list[tuple[float, float, int]] = []  # level, weight and number of values
    ahead = [*zip(rates.tolist(), weights.tolist(), repeat(1))][::-1]
    while ahead:
        level, weight, size = ahead.pop()
        if pooled and pooled[-1][0] >= level:
            total = level * weight
            for pool, sign, most in ((pooled, 1, 1), (ahead, -1, len(ahead)), (pooled, 1, len(pooled))):
                while most and pool and sign * (pool[-1][0] - level) >= 0:
                    pool_level, mass, more = pool.pop()
                    total, weight, size, most = (
                        total + pool_level * mass,
                        weight + mass,
                        size + more,
                        most - 1,
                    )
                    level = total / weight
        pooled.append((level, weight, size))
    return np.repeat([level for level, _, _ in pooled], [size for _, _, size in pooled])


def probability_table(confidence: ArrayLike, correct: ArrayLike) -> FrequencyTable:
    """Count probabilities; values outside [0, 1] by at most 1e-6 are clipped."""
    return frequency_table(*as_pairs(confidence, correct))


def score_table(score: ArrayLike, correct: ArrayLike) -> FrequencyTable:
    """Count any real scores (larger is surer)."""
    return frequency_table(as_scores(score, "score"), as_correct(correct))


def frequency_table(values: Floats, correct: Floats) -> FrequencyTable:
    """Count checked values and outcomes."""
    check_same_length(values, correct)
    value, place = np.unique(values, return_inverse=True)
    count = np.bincount(place, minlength=len(value)).astype(np.float64)
    right = np.bincount(place, weights=correct, minlength=len(value)).astype(np.float64)
    return FrequencyTable(value, count[None], right[None])


def frequency_tables(values: Floats, correct: Floats) -> FrequencyTable:
    """Count the checked values and outcomes of B data sets, (B, N) each."""
    rows, n = values.shape
    order = (np.argsort(values, axis=1) + n * np.arange(rows)[:, None]).ravel()
    ascending = values.ravel()[order].reshape(rows, n)
    new = np.ones((rows, n), bool)
    np.not_equal(ascending[:, 1:], ascending[:, :-1], out=new[:, 1:])
    group = np.cumsum(new, axis=1) - 1  # [B, N] among the distinct values of its row
    width = int(group[:, -1].max()) + 1
    place = (group + width * np.arange(rows)[:, None]).ravel()
    value = np.repeat(ascending[:, -1:], width, axis=1)
    value.ravel()[place] = ascending.ravel()
    count = np.bincount(place, minlength=rows * width).astype(np.float64)
    right = np.bincount(place, correct.ravel()[order], rows * width).astype(np.float64, copy=False)
    return FrequencyTable(value, count.reshape(rows, width), right.reshape(rows, width))


def shared_table(
    values: Floats, correct: Floats | NDArray[np.bool_], counts: Floats | None = None
) -> FrequencyTable:
    """Count data sets of common values (N,): outcomes (N,) or (B, N), each as often as counts (B, N) say."""
    order = np.argsort(values, kind="stable")
    value, starts = np.unique(values[order], return_index=True)
    if counts is None:
        right = np.add.reduceat(np.atleast_2d(correct)[:, order], starts, axis=1, dtype=np.float64)
        count = np.diff(np.append(starts, len(values))).astype(np.float64)
        return FrequencyTable(value, np.broadcast_to(count, right.shape), right)
    counts = counts[:, order]
    right = np.add.reduceat(counts * correct[order], starts, axis=1)
    return FrequencyTable(value, np.add.reduceat(counts, starts, axis=1), right)


def draw_counts(n: int, resamples: int, rng: np.random.Generator, groups: Groups | None = None) -> Floats:
    """How often each of n questions is drawn with replacement, alone or with its group: [resamples, n]."""
    units = n if groups is None else int(groups.max()) + 1
    counts = np.empty((resamples, units))
    for start in range(0, resamples, CHUNK):
        rows = min(CHUNK, resamples - start)
        places = rng.integers(units, size=(rows, units)) + units * np.arange(rows)[:, None]
        times = np.bincount(places.ravel(), minlength=rows * units)
        counts[start : start + rows] = times.reshape(rows, units)
    return counts if groups is None else counts[:, groups]


def draw_uniforms(n: int, draws: int, rng: np.random.Generator, groups: Groups | None = None) -> Floats:
    """Uniform numbers, one for each question or group: [draws, n].

    If values are calibrated, a question is right where its number is below its value; members of a group are
    then right together as far as their values allow.
    """
    return rng.random((draws, n)) if groups is None else rng.random((draws, int(groups.max()) + 1))[:, groups]
