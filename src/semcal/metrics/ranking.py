"""Discrimination: does a surer answer tend to be the right one? AUROC, AURAC and PRR, of any score."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from semcal.metrics.frequencies import Floats, FrequencyTable, score_table, warn_undefined

__all__ = ["aurac", "auroc", "prr"]


def auroc(score: ArrayLike, correct: ArrayLike) -> float:
    r"""Area under the ROC curve: the chance that a right answer scores above a wrong one, ties counted half.

    .. math:: \mathrm{AUROC} = \frac{1}{N_1 N_0} \sum_{i: c_i = 1} \sum_{j: c_j = 0}
              \bigl( \mathbf 1[s_i > s_j] + \tfrac12 \mathbf 1[s_i = s_j] \bigr)

    Parameters
    ----------
    score : array_like of float, shape (N,)
        Any real score, larger is surer: a confidence, or the negative of an entropy.
    correct : array_like of bool, shape (N,)

    Returns
    -------
    float
        In [0, 1]; 0.5 is chance, 1 is best. NaN, with an UndefinedWarning, when all or none are correct.

    Raises
    ------
    InputError
        Empty input, lengths that differ, a score that is NaN, an outcome that is not 0 or 1.

    References
    ----------
    Bradley (1997), The use of the area under the ROC curve, Pattern Recognition 30; Hanley and McNeil (1982),
    Radiology 143.

    Examples
    --------
    >>> auroc([0.9, 0.8, 0.8, 0.3], [1, 1, 0, 0])
    0.875
    """
    value = float(auroc_of(score_table(score, correct))[0])
    if np.isnan(value):
        warn_undefined(one_class("AUROC"))
    return value


def aurac(score: ArrayLike, correct: ArrayLike) -> float:
    r"""Area under the rejection-accuracy curve.

    .. math:: \mathrm{AURAC} = \frac1N \sum_{k=1}^N A(k)

    with A(k) the accuracy of the k most confident, the exact expectation over random breaking of ties.

    Larger is better, and a constant score has the accuracy itself. Parameters and errors are those of
    :func:`auroc`.

    References
    ----------
    Farquhar, Kossen, Kuhn and Gal (2024), Nature 630.

    Examples
    --------
    >>> aurac([0.9, 0.5], [1, 0])
    0.75
    """
    return float(aurac_of(score_table(score, correct))[0])


def prr(score: ArrayLike, correct: ArrayLike) -> float:
    r"""Prediction rejection ratio.

    Let E(k) be the errors left among all N questions when the k least confident are rejected (tie-averaged).
    The area under E(k)/N over k/N by trapezoids is compared with that of random rejection, the straight line,
    and with that of an oracle that rejects errors first:

    .. math:: \mathrm{PRR} = \frac{A_\text{random} - A_\text{actual}}{A_\text{random} - A_\text{oracle}}

    1 is the oracle, 0 is chance (a constant score), negative is worse than chance. Parameters, errors and
    warnings are those of :func:`auroc`: NaN when all or none are correct.

    References
    ----------
    Malinin and Gales (2021), Uncertainty Estimation in Autoregressive Structured Prediction, ICLR.

    Examples
    --------
    >>> prr([0.9, 0.8, 0.3], [1, 1, 0]), prr([0.5, 0.5, 0.5], [1, 1, 0])
    (1.0, 0.0)
    """
    value = float(prr_of(score_table(score, correct))[0])
    if np.isnan(value):
        warn_undefined(one_class("PRR"))
    return value


def auroc_of(t: FrequencyTable) -> Floats:
    """AUROC of each row; NaN for a row with one class."""
    wrong = t.count - t.right
    below = np.cumsum(wrong, -1) - wrong / 2
    pairs = t.right.sum(-1) * wrong.sum(-1)
    wins = (t.right * below).sum(-1)
    area: Floats = np.divide(wins, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)
    return area


def aurac_of(t: FrequencyTable) -> Floats:
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


def prr_of(t: FrequencyTable) -> Floats:
    """PRR of each row; NaN for a row with one class."""
    wrong = t.count - t.right
    errors = wrong.sum(-1)
    left = errors[:, None] - np.cumsum(wrong, -1)  # after rejecting up to and including each value
    actual = (t.count * (left + wrong / 2)).sum(-1)  # trapezoids, times N^2
    random, oracle = errors * t.n / 2, errors**2 / 2
    both = (errors > 0) & (errors < t.n)
    ratio: Floats = np.divide(random - actual, random - oracle, out=np.full(len(errors), np.nan), where=both)
    return ratio


def one_class(*metrics: str) -> str:
    """Why metrics that need both classes are undefined."""
    one = len(metrics) == 1
    return (
        f"{' and '.join(metrics)} {'is' if one else 'are'} undefined (NaN): all answers are correct, or none "
        f"is; {'it needs' if one else 'they need'} at least one of each"
    )
