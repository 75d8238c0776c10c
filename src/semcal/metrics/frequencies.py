"""Checks of the arguments of metrics, and the frequency table that every metric is computed from.

The table holds the number of questions, and of correct answers, at each distinct confidence. A metric of the
table does not depend on the order of questions, and ties are pooled exactly. A row of the table is a data
set, a resample, or a data set with simulated outcomes, so that one definition serves for all.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import currentframe
from itertools import repeat
from typing import Any, Self

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from semcal.arrays import Floats, as_numbers, as_option
from semcal.errors import InputError, UndefinedWarning

GroupLabels = Sequence[Hashable] | NDArray[Any]
Groups = NDArray[np.intp]
"""The number of each question's group: 0, 1, … in order of first appearance."""

#: A probability outside [0, 1] by no more than this is a rounding error and is clipped.
OUTSIDE = 1e-6
#: Up to this size, own code is faster than the import of a part of scipy.
FEW = 2000
#: Number of table entries per part, so that the arrays stay in the processor's cache.
AT_A_TIME = 2**15
#: Number of resamples per call of the random generator.
CHUNK = 50


def check_same_length(values: Floats, correct: Floats) -> None:
    """Raise InputError unless there is one outcome for each value."""
    if len(values) != len(correct):
        raise InputError(f"got {len(values)} confidences and {len(correct)} outcomes. Give one outcome each.")


def as_scores(score: ArrayLike, argument: str) -> Floats:
    """Return a non-empty vector of numbers without NaN."""
    values = _vector(score, argument)
    nan = np.flatnonzero(np.isnan(values))
    if len(nan):
        raise InputError(
            f"{argument}[{nan[0]}] is NaN. Leave the question out, or use a measure that is defined for it."
        )
    return values


def as_probabilities(confidence: ArrayLike) -> Floats:
    """Return a non-empty vector of probabilities, with rounding errors clipped."""
    values = as_scores(confidence, "confidence")
    outside = np.flatnonzero((values < -OUTSIDE) | (values > 1 + OUTSIDE))
    if len(outside):
        raise InputError(
            f"confidence[{outside[0]}] is {values[outside[0]]}; expected a probability in [0, 1]. "
            "Use AUROC, AURAC, PRR or selective accuracy for other scores."
        )
    return np.clip(values, 0.0, 1.0)


def as_correct(correct: ArrayLike) -> Floats:
    """Return a non-empty vector of outcomes, 1 for correct and 0 for incorrect."""
    values = _vector(correct, "correct")
    odd = np.flatnonzero((values != 0) & (values != 1))
    if len(odd):
        raise InputError(f"correct[{odd[0]}] is {values[odd[0]]}; expected true or false (1 or 0)")
    return values


def as_pairs(confidence: ArrayLike, correct: ArrayLike) -> tuple[Floats, Floats]:
    """Return probabilities and outcomes of one length."""
    p, c = as_probabilities(confidence), as_correct(correct)
    check_same_length(p, c)
    return p, c


def is_missing(label: object) -> bool:
    """Return whether a label is None, NaN or `pandas.NA`, which has no truth value."""
    try:
        return label is None or bool(label != label)
    except TypeError:
        return True


def as_groups(labels: GroupLabels | None, n: int) -> Groups | None:
    """Return the group numbers of n questions, None if no two questions share a group."""
    if labels is None:
        return None
    members = labels.tolist() if isinstance(labels, np.ndarray) else list(labels)
    if len(members) != n:
        raise InputError(f"groups has {len(members)} labels for {n} questions. Give one label each.")
    first: dict[Hashable, int] = {}
    try:
        numbers = np.array([first.setdefault(label, len(first)) for label in members], np.intp)
    except TypeError as error:
        raise InputError(f"groups: got an invalid label ({error}). Pass texts or numbers") from error
    if any(map(is_missing, first)):
        raise InputError("groups: got NaN or None. Pass a text or a number for each question")
    return None if len(first) == n else numbers


@dataclass(frozen=True, eq=False)
class ScoredRuns:
    """Values and outcomes of R runs on the same N questions."""

    confidences: Sequence[Floats]  # R times [N]; the scores if any score is allowed
    scores: Sequence[Floats]  # R times [N], for rankings
    correct: Sequence[Floats]

    @classmethod
    def of(
        cls,
        confidence: ArrayLike,
        correct: ArrayLike,
        score: ArrayLike | None = None,
        *,
        any_score: bool = False,
    ) -> Self:
        """Check arrays of shape (N,) or (R, N)."""
        outcomes = [as_correct(row) for row in _rows(correct, "correct")]
        scores = [as_scores(row, "score") for row in _rows(confidence if score is None else score, "score")]
        probabilities = scores
        if not any_score:
            probabilities = [as_probabilities(row) for row in _rows(confidence, "confidence")]
            scores = probabilities if score is None else scores
        for values in (scores, probabilities):
            if len(values) != len(outcomes):
                raise InputError(
                    f"got confidences of {len(values)} runs and outcomes of {len(outcomes)}. Give as many."
                )
            for pair in zip(values, outcomes):
                check_same_length(*pair)
        return cls(probabilities, scores, outcomes)

    @property
    def n(self) -> int:
        """Number of questions."""
        return len(self.correct[0])


def _rows(values: ArrayLike, argument: str) -> list[Floats]:
    array = as_numbers(values, argument)
    if array.ndim not in (1, 2) or not array.size:
        raise InputError(
            f"{argument} has shape {array.shape}; expected (N,) for one run or (R, N) for several"
        )
    return list(np.atleast_2d(array))


def _vector(values: ArrayLike, argument: str) -> Floats:
    array = as_numbers(values, argument)
    if array.ndim != 1:
        raise InputError(f"{argument} has shape {array.shape}; expected one value per question, shape (N,)")
    if not len(array):
        raise InputError(f"{argument} is empty. Give at least one question.")
    return array


def warn_undefined(message: str) -> None:
    """Warn of an undefined value at the line that called this package."""
    frame, level = currentframe(), 1
    while frame is not None and frame.f_globals["__name__"].startswith("semcal.metrics"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UndefinedWarning, stacklevel=level)


def check_bins(bins: int) -> int:
    """Return a checked number of bins."""
    return int(as_option(bins, "bins", "a positive whole number, such as 15", low=0, whole=True))


# ---- The table ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class FrequencyTable:
    """Counts of examples at U distinct values, for B data sets (B = 1 for one).

    Data sets that differ only in their outcomes, or in the frequency of each example (resamples), share their
    values. Otherwise each has a row of values; shorter rows repeat their largest value with count 0.
    """

    value: Floats  # [U] or [B, U], ascending
    count: Floats  # [B, U] examples with that value
    right: Floats  # [B, U] correct examples with that value

    def parts(self) -> Iterator[FrequencyTable]:
        """Yield the table, some rows at a time."""
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
        """Share of correct examples at each value, 0 without examples: [B, U]."""
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
        """Sum totals [B, U] over the values of each bin, for an ascending index of bins, [U] or [B, U].

        The result is [B, bins]; if the data sets share their values, only the bins that occur have columns.
        """
        if index.ndim == 1:
            return np.add.reduceat(total, np.flatnonzero(np.diff(index, prepend=-1)), axis=-1)
        rows = len(total)
        place = index + bins * np.arange(rows)[:, None]
        sums: Floats = np.bincount(place.ravel(), total.ravel(), rows * bins).astype(np.float64, copy=False)
        return sums.reshape(rows, bins)

    @cached_property
    def residual(self) -> Floats:
        """Sum of (correct - value) at each value: [B, U]."""
        return self.right - self.count * self.value

    def at_least(self, thresholds: Floats) -> tuple[Floats, Floats]:
        """Count examples, and correct examples, of the first row with value >= each threshold."""
        first = np.searchsorted(self.value, thresholds, side="left")
        count, right = (np.append(np.cumsum(row[0, ::-1])[::-1], 0.0) for row in (self.count, self.right))
        return count[first], right[first]


def isotonic_fit(rates: Floats, weights: Floats) -> Floats:
    """Compute the isotonic regression, bit by bit equal to `scipy.optimize`, which takes 0.5 s to import.

    Pool adjacent violators: a level that is not above the previous level is pooled with it, then with the
    following levels that are not higher, then with the previous levels that are not lower.
    """
    pooled: list[tuple[float, float, int]] = []  # level, weight and number of values
    ahead = [*zip(rates.tolist(), weights.tolist(), repeat(1))][::-1]
    while ahead:
        level, weight, size = ahead.pop()
        if pooled and pooled[-1][0] >= level:
            total = level * weight
            for pool, sign, most in ((pooled, 1, 1), (ahead, -1, len(ahead)), (pooled, 1, len(pooled))):
                while most and pool and sign * (pool[-1][0] - level) >= 0:
                    pool_level, mass, values = pool.pop()
                    total, weight = total + pool_level * mass, weight + mass
                    size, most, level = size + values, most - 1, total / weight
        pooled.append((level, weight, size))
    return np.repeat([level for level, _, _ in pooled], [size for _, _, size in pooled])


def probability_table(confidence: ArrayLike, correct: ArrayLike) -> FrequencyTable:
    """Count probabilities. Values outside [0, 1] by at most 1e-6 are clipped."""
    return shared_table(*as_pairs(confidence, correct))


def score_table(score: ArrayLike, correct: ArrayLike) -> FrequencyTable:
    """Count real scores (larger means surer)."""
    values, outcomes = as_scores(score, "score"), as_correct(correct)
    check_same_length(values, outcomes)
    return shared_table(values, outcomes)


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
    """Count data sets with common values (N,), outcomes (N,) or (B, N), and frequencies `counts` (B, N)."""
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
    """Draw n questions, or their groups, with replacement, and count each question: [resamples, n]."""
    units = n if groups is None else int(groups.max()) + 1
    counts = np.empty((resamples, units))
    for start in range(0, resamples, CHUNK):
        rows = min(CHUNK, resamples - start)
        places = rng.integers(units, size=(rows, units)) + units * np.arange(rows)[:, None]
        times = np.bincount(places.ravel(), minlength=rows * units)
        counts[start : start + rows] = times.reshape(rows, units)
    return counts if groups is None else counts[:, groups]


def draw_uniforms(n: int, draws: int, rng: np.random.Generator, groups: Groups | None = None) -> Floats:
    """Draw uniform numbers, one for each question or group: [draws, n].

    A simulated answer is correct if its number is below its value. Members of a group share their number.
    """
    return rng.random((draws, n)) if groups is None else rng.random((draws, int(groups.max()) + 1))[:, groups]
