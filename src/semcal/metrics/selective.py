"""Selective answering: accuracy among the questions that are answered when the least sure are rejected."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from semcal.arrays import as_numbers
from semcal.errors import UsageError
from semcal.metrics.calibration import running_sum_at
from semcal.metrics.ranking import one_class
from semcal.metrics.tally import Floats, Tally, score_tally, warn_undefined

__all__ = ["SelectiveAccuracy", "aurac", "prr", "selective_accuracy"]


@dataclass(frozen=True, eq=False)
class SelectiveAccuracy:
    """Accuracy among answered questions, at P thresholds or rejection rates.

    Attributes
    ----------
    points : ndarray of float64, shape (P,)
        The thresholds or the rejection rates.
    coverage : ndarray of float64, shape (P,)
        Share of questions answered.
    accuracy : ndarray of float64, shape (P,)
        Accuracy among them; NaN where none is answered.
    """

    points: Floats
    coverage: Floats
    accuracy: Floats


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

    Returns
    -------
    SelectiveAccuracy

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
    t = score_tally(score, correct)
    if (threshold is None) == (rejection is None):
        raise UsageError("give either threshold or rejection, and not both")
    if threshold is not None:
        points = _points(threshold, "threshold")
        if np.isnan(points).any():
            raise UsageError("threshold holds NaN; expected numbers")
        answered, right = t.at_least(points)
    elif rejection is not None:
        points = _points(rejection, "rejection")
        answered = t.n - rejected(t.n, points)
        right = most_sure(t, answered)[0]
    if not answered.all():
        warn_undefined(
            "selective accuracy is undefined (NaN) where no question is answered; answer more of them"
        )
    accuracy = np.divide(right, answered, out=np.full(len(points), np.nan), where=answered > 0)
    return SelectiveAccuracy(points, answered / t.n, accuracy)


def _points(values: ArrayLike, what: str) -> Floats:
    """Points of a curve: one number, or a vector of them."""
    points = np.atleast_1d(as_numbers(values, what))
    if points.ndim != 1:
        raise UsageError(f"{what} has shape {points.shape}; expected one number, or several as a vector")
    return points


def aurac(score: ArrayLike, correct: ArrayLike) -> float:
    r"""Area under the rejection-accuracy curve.

    .. math:: \mathrm{AURAC} = \frac1N \sum_{k=1}^N A(k)

    with A(k) the accuracy of the k most confident, the exact expectation over random breaking of ties.

    Parameters
    ----------
    score : array_like of float, shape (N,)
        Any real score, larger is surer.
    correct : array_like of bool, shape (N,)

    Returns
    -------
    float
        In [0, 1]; larger is better, and a constant score has the accuracy itself.

    Raises
    ------
    InputError
        As in :func:`semcal.metrics.auroc`.

    References
    ----------
    Farquhar, Kossen, Kuhn and Gal (2024), Nature 630.

    Examples
    --------
    >>> aurac([0.9, 0.5], [1, 0])
    0.75
    """
    return float(aurac_of(score_tally(score, correct))[0])


def prr(score: ArrayLike, correct: ArrayLike) -> float:
    r"""Prediction rejection ratio.

    Let E(k) be the errors left among all N questions when the k least confident are rejected (tie-averaged).
    The area under E(k)/N over k/N by trapezoids is compared with that of random rejection, the straight line,
    and with that of an oracle that rejects errors first:

    .. math:: \mathrm{PRR} = \frac{A_\text{random} - A_\text{actual}}{A_\text{random} - A_\text{oracle}}

    Parameters
    ----------
    score : array_like of float, shape (N,)
        Any real score, larger is surer.
    correct : array_like of bool, shape (N,)

    Returns
    -------
    float
        1 is the oracle, 0 is chance (a constant score), negative is worse than chance. NaN when all or none
        are correct.

    Raises
    ------
    InputError
        As in :func:`semcal.metrics.auroc`.

    Warns
    -----
    UndefinedWarning
        All or none are correct.

    References
    ----------
    Malinin and Gales (2021), Uncertainty Estimation in Autoregressive Structured Prediction, ICLR.

    Examples
    --------
    >>> prr([0.9, 0.8, 0.3], [1, 1, 0]), prr([0.5, 0.5, 0.5], [1, 1, 0])
    (1.0, 0.0)
    """
    value = float(prr_of(score_tally(score, correct))[0])
    if np.isnan(value):
        warn_undefined(one_class("PRR"))
    return value


def aurac_of(t: Tally) -> Floats:
    """AURAC of each row.

    Among the most confident, a tie group spans ranks K0 < k <= K with S0 correct before it and rate a within:
    A(k) = (S0 + a (k - K0)) / k = a + (S0 - a K0) / k, whose sum over k needs only harmonic numbers.
    """
    count, right, rate = t.count[:, ::-1], t.right[:, ::-1], t.rate[:, ::-1]
    rank, hits = np.cumsum(count, -1), np.cumsum(right, -1)
    harmonic = harmonic_numbers(t.n)
    reciprocals = harmonic[rank.astype(np.intp)] - harmonic[(rank - count).astype(np.intp)]
    area: Floats = (right + (hits - right - rate * (rank - count)) * reciprocals).sum(-1) / t.n
    return area


@lru_cache(maxsize=8)
def harmonic_numbers(n: int) -> Floats:
    """H(0) = 0, H(1), ..., H(n)."""
    numbers = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, n + 1))])
    numbers.flags.writeable = False
    return numbers


def prr_of(t: Tally) -> Floats:
    """PRR of each row; NaN for a row with one class."""
    wrong = t.count - t.right
    errors = wrong.sum(-1)
    left = errors[:, None] - np.cumsum(wrong, -1)  # after rejecting up to and including each value
    actual = (t.count * (left + wrong / 2)).sum(-1)  # trapezoids, times N^2
    random, oracle = errors * t.n / 2, errors**2 / 2
    both = (errors > 0) & (errors < t.n)
    ratio: Floats = np.divide(random - actual, random - oracle, out=np.full(len(errors), np.nan), where=both)
    return ratio


def rejected(n: int, rates: Floats) -> Floats:
    """floor(n r), with n r whole when within 1e-9 of a whole number."""
    outside = rates[~((rates >= 0) & (rates <= 1))]
    if len(outside):
        raise UsageError(f"rejection holds {outside[0]}; expected rates in [0, 1]")
    return np.floor(n * rates + 1e-9)


def most_sure(t: Tally, ranks: Floats) -> Floats:
    """Expected number of correct answers among the `rank` most sure: [R] -> [B, R]."""
    return running_sum_at(t.count[:, ::-1], t.right[:, ::-1], ranks, t.n)
