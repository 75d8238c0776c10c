"""What every metric is a function of: how often each distinct confidence occurs, and how often it is right.

Working on the tally instead of the rows makes every metric independent of the order of the rows, pools ties
exactly, and makes a bootstrap resample nothing but other counts on the same values, so that B resamples are
one (B, U) array.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression

from semcal.errors import InputError, UndefinedWarning, UsageError

Floats = NDArray[np.float64]

#: A probability outside [0, 1] by no more than this is a rounding error and is clipped.
OUTSIDE = 1e-6


@dataclass(frozen=True, eq=False)
class Tally:
    """Counts of N examples on U distinct values, for B data sets at once (B = 1 for the data themselves)."""

    value: Floats  # [U] ascending
    count: Floats  # [B, U] examples with that value, N in each row
    right: Floats  # [B, U] correct ones among them

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
        mean: Floats = self.count @ self.value / self.n
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
        for fit, rate, count in zip(fits, self.rate, self.count):
            there = np.flatnonzero(count)
            below = np.maximum(np.searchsorted(there, np.arange(len(count)), side="right") - 1, 0)
            fit[:] = isotonic_regression(rate[there], weights=count[there]).x[below]
        return fits

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
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} holds something that is no number ({error}); expected numbers") from error
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
    if not 1 <= bins < math.inf or bins != int(bins):
        raise UsageError(f"bins is {bins}; expected a positive whole number, such as 15")
    return int(bins)
