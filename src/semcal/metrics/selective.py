"""Selective answering: accuracy when the least sure questions are rejected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike

from semcal.arrays import as_numbers
from semcal.errors import UsageError
from semcal.metrics.argument_names import both_names
from semcal.metrics.calibration import running_sum_at
from semcal.metrics.frequencies import Floats, score_table, warn_undefined

if TYPE_CHECKING:
    from semcal.metrics.plots import Axes


@dataclass(frozen=True, eq=False)
class SelectiveAccuracy:
    """The share of questions answered and the accuracy among them, at P thresholds or rejection rates.

    Arrays of shape (P,); `points` are what `by` says, and accuracy is NaN where none is answered.
    """

    points: Floats
    coverage: Floats
    accuracy: Floats
    by: Literal["threshold", "rejection"]

    def plot(self, ax: Axes | None = None, *, threshold: float | None = None) -> Axes:
        """Draw accuracy, by threshold with the share answered, on a matplotlib Axes, a new one by default.

        A `threshold` that is in use is marked.
        """
        from semcal.metrics.plots import plot_selective

        return plot_selective(self, ax, threshold)


@both_names
def selective_accuracy(
    score: ArrayLike,
    correct: ArrayLike,
    *,
    threshold: ArrayLike | None = None,
    rejection: ArrayLike | None = None,
) -> SelectiveAccuracy:
    r"""Accuracy among the questions answered, by threshold or by rejection rate.

    At a threshold :math:`\eta` the questions with score >= :math:`\eta` are answered. At a rejection rate r
    the floor(N r) least sure are rejected; within a group of tied scores every choice is equally likely, and
    the accuracy is the exact expectation over these choices.

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

    Warns
    -----
    UndefinedWarning
        No question is answered at some point; its accuracy is NaN.

    Notes
    -----
    N r is taken as whole when it is within 1e-9 of a whole number, so that 0.29 of 100 questions are 29.

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
        raise UsageError("give either threshold or rejection, and not both")
    if threshold is not None:
        points = _points(threshold, "threshold")
        if np.isnan(points).any():
            raise UsageError("threshold holds NaN; expected numbers")
        answered, right = t.at_least(points)
    elif rejection is not None:
        points = _points(rejection, "rejection")
        answered = t.n - _rejected(t.n, points)
        right = running_sum_at(t.count[:, ::-1], t.right[:, ::-1], answered[None])[0]
    if not answered.all():
        warn_undefined(
            "selective accuracy is undefined (NaN) where no question is answered; answer more of them"
        )
    accuracy = np.divide(right, answered, out=np.full(len(points), np.nan), where=answered > 0)
    by: Literal["threshold", "rejection"] = "rejection" if threshold is None else "threshold"
    return SelectiveAccuracy(points, answered / t.n, accuracy, by)


def _rejected(n: Floats, rates: Floats) -> Floats:
    """floor(n r), with n r whole when within 1e-9 of a whole number."""
    outside = rates[~((rates >= 0) & (rates <= 1))]
    if len(outside):
        raise UsageError(f"rejection holds {outside[0]}; expected rates in [0, 1]")
    return np.floor(n * rates + 1e-9)


def _points(values: ArrayLike, what: str) -> Floats:
    """Points of a curve: one number, or a vector of them."""
    points = np.atleast_1d(as_numbers(values, what))
    if points.ndim != 1:
        raise UsageError(f"{what} has shape {points.shape}; expected one number, or several as a vector")
    return points
