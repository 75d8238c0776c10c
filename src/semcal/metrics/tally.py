"""What every metric is a function of: how often each distinct confidence occurs, and how often it is right.

Working on the tally instead of the rows makes every metric independent of the order of the rows, pools ties
exactly, and makes a bootstrap resample nothing but other counts on the same values, so that B resamples are
one (B, U) array.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression

from semcal.arrays import as_numbers, as_option
from semcal.errors import InputError, UndefinedWarning

Floats = NDArray[np.float64]
Result = TypeVar("Result")

#: A probability outside [0, 1] by no more than this is a rounding error and is clipped.
OUTSIDE = 1e-6


@dataclass(frozen=True, eq=False)
class Tally:
    """Counts of N examples on U distinct values, for B data sets at once (B = 1 for the data themselves).

    Resamples share their values; data sets of their own have a row of values each, the shorter ones filled up
    with their largest value, counted zero times.
    """

    value: Floats  # [U] or [B, U], ascending
    count: Floats  # [B, U] examples with that value, N in each row
    right: Floats  # [B, U] correct ones among them

    kept: dict[Callable[[Tally], object], object] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def n(self) -> int:
        """Number of examples N, the same in every row."""
        return round(float(self.count[0].sum()))

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

        A value without examples takes the fit of the value below (before the first example, of the first).
        """
        fits = np.empty_like(self.count)
        there = self.count > 0
        below = np.maximum(np.cumsum(there, axis=-1) - 1, 0)
        for b, fit in enumerate(fits):
            rate, count = self.rate[b, there[b]], self.count[b, there[b]]
            fit[:] = isotonic_regression(rate, weights=count).x[below[b]]
        return fits

    def summed(self, index: NDArray[np.intp], total: Floats, cells: int) -> Floats:
        """Totals [B, U] of values in one cell summed, for an ascending index of cells, [U] or [B, U].

        Returns [B, cells], or with values in common perhaps fewer columns: those of the cells that occur.
        """
        if index.ndim == 1:
            return np.add.reduceat(total, np.unique(index, return_index=True)[1], axis=-1)
        rows = len(total)
        place = index + cells * np.arange(rows)[:, None]
        sums: Floats = np.bincount(place.ravel(), total.ravel(), rows * cells).astype(np.float64, copy=False)
        return sums.reshape(rows, cells)

    def at_least(self, thresholds: Floats) -> tuple[Floats, Floats]:
        """Examples of the first row with value >= each threshold, and the correct ones among them."""
        first = np.searchsorted(self.value, thresholds, side="left")
        count, right = (np.append(np.cumsum(row[0, ::-1])[::-1], 0.0) for row in (self.count, self.right))
        return count[first], right[first]


def probability_tally(confidence: ArrayLike, correct: ArrayLike) -> Tally:
    """Tally of probabilities; values outside [0, 1] by at most 1e-6 are clipped."""
    return tally(as_probabilities(confidence), as_correct(correct))


def score_tally(score: ArrayLike, correct: ArrayLike) -> Tally:
    """Tally of any real scores (larger is surer)."""
    return tally(as_scores(score, "score"), as_correct(correct))


def tally(values: Floats, correct: Floats) -> Tally:
    """Count checked values and outcomes."""
    check_same_length(values, correct)
    value, place = np.unique(values, return_inverse=True)
    count = np.bincount(place, minlength=len(value)).astype(np.float64)
    right = np.bincount(place, weights=correct, minlength=len(value)).astype(np.float64)
    return Tally(value, count[None], right[None])


def tallies(values: Floats, correct: Floats) -> Tally:
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
    return Tally(value, count.reshape(rows, width), right.reshape(rows, width))


def once_a_tally(function: Callable[[Tally], Result]) -> Callable[[Tally], Result]:
    """Keep what a function makes of a tally with that tally, for metrics that are parts of one whole."""

    @wraps(function)
    def kept(t: Tally) -> Result:
        found: dict[Callable[[Tally], object], object] = t.kept
        if function not in found:
            found[function] = function(t)
        return cast(Result, found[function])

    return kept


def check_same_length(values: Floats, correct: Floats) -> None:
    """Refuse outcomes that cannot belong to the values."""
    if len(values) != len(correct):
        raise InputError(
            f"there are {len(values)} confidences and {len(correct)} outcomes; give one outcome for each"
        )


def as_scores(score: ArrayLike, what: str) -> Floats:
    """A non-empty vector of numbers without NaN."""
    values = _vector(score, what)
    nan = np.flatnonzero(np.isnan(values))
    if len(nan):
        raise InputError(
            f"{what}[{nan[0]}] is NaN, which has no place in a ranking; leave the question out, "
            "or use a measure that is defined for it"
        )
    return values


def as_probabilities(confidence: ArrayLike) -> Floats:
    """A non-empty vector of probabilities, rounding errors clipped."""
    values = as_scores(confidence, "confidence")
    outside = np.flatnonzero((values < -OUTSIDE) | (values > 1 + OUTSIDE))
    if len(outside):
        raise InputError(
            f"confidence[{outside[0]}] is {values[outside[0]]}; expected a probability in [0, 1]: "
            "AUROC, AURAC, PRR and selective accuracy take any score, calibration metrics do not"
        )
    return np.clip(values, 0.0, 1.0)


def as_correct(correct: ArrayLike) -> Floats:
    """A non-empty vector of outcomes, 1 for correct and 0 for not."""
    values = _vector(correct, "correct")
    odd = np.flatnonzero((values != 0) & (values != 1))
    if len(odd):
        raise InputError(f"correct[{odd[0]}] is {values[odd[0]]}; expected true or false (1 or 0)")
    return values


def _vector(values: ArrayLike, what: str) -> Floats:
    """`values` as a one-dimensional, non-empty array of float64."""
    array = as_numbers(values, what)
    if array.ndim != 1:
        raise InputError(f"{what} has shape {array.shape}; expected one value a question, shape (N,)")
    if not len(array):
        raise InputError(f"{what} is empty; a metric needs at least one question")
    return array


def warn_undefined(message: str) -> None:
    """Warn, at the caller of the public function, that something is NaN."""
    warnings.warn(message, UndefinedWarning, stacklevel=3)


def check_bins(bins: int) -> int:
    """A positive number of bins."""
    return int(as_option(bins, "bins", "a positive whole number, such as 15", low=0, whole=True))
