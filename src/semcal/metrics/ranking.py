"""Discrimination of any score (AUROC, AURAC, PRR), rank volatility of methods, correlations of measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import ArrayLike

from semcal.arrays import Floats, as_numbers
from semcal.errors import InputError
from semcal.metrics.frequencies import FrequencyTable, score_table, warn_undefined


def auroc(score: ArrayLike, correct: ArrayLike) -> float:
    r"""Compute AUROC: the probability that a correct answer scores above a wrong one; ties count half.

    .. math:: \mathrm{AUROC} = \frac{1}{N_1 N_0} \sum_{i: c_i = 1} \sum_{j: c_j = 0}
              \bigl( \mathbf 1[s_i > s_j] + \tfrac12 \mathbf 1[s_i = s_j] \bigr)

    Source: Bradley (1997), The use of the area under the ROC curve, Pattern Recognition 30; Hanley and McNeil
    (1982), Radiology 143.

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
    r"""Compute the area under the rejection-accuracy curve (AURAC).

    .. math:: \mathrm{AURAC} = \frac1N \sum_{k=1}^N A(k)

    A(k) is the accuracy of the k most confident answers, the exact expectation over random breaking of ties.
    Larger is better; the AURAC of a constant score is the accuracy. Parameters and errors are those of
    :func:`auroc`. Source: Farquhar, Kossen, Kuhn and Gal (2024), Nature 630.

    >>> aurac([0.9, 0.5], [1, 0])
    0.75
    """
    return float(aurac_of(score_table(score, correct))[0])


def prr(score: ArrayLike, correct: ArrayLike) -> float:
    r"""Compute the prediction rejection ratio (PRR).

    Let E(k) be the number of errors that remain after rejecting the k least confident answers (averaged over
    ties). The area under E(k)/N over k/N, by trapezoids, is compared with the area of random rejection (a
    straight line) and the area of an oracle that rejects errors first:

    .. math:: \mathrm{PRR} = \frac{A_\text{random} - A_\text{actual}}{A_\text{random} - A_\text{oracle}}

    1 is the oracle, 0 is chance (a constant score), negative is worse than chance. Parameters, errors and
    warnings are those of :func:`auroc`: NaN when all or none are correct. Source: Malinin and Gales (2021),
    Uncertainty Estimation in Autoregressive Structured Prediction, ICLR.

    >>> prr([0.9, 0.8, 0.3], [1, 1, 0]), prr([0.5, 0.5, 0.5], [1, 1, 0])
    (1.0, 0.0)
    """
    value = float(prr_of(score_table(score, correct))[0])
    if np.isnan(value):
        warn_undefined(one_class("PRR"))
    return value


def auroc_of(t: FrequencyTable) -> Floats:
    """Return the AUROC of each row, NaN for a row with one class."""
    wrong = t.count - t.right
    below = np.cumsum(wrong, -1) - wrong / 2
    pairs = t.right.sum(-1) * wrong.sum(-1)
    wins = (t.right * below).sum(-1)
    area: Floats = np.divide(wins, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)
    return area


def aurac_of(t: FrequencyTable) -> Floats:
    """Return the AURAC of each row.

    Among the most confident, a tie group spans ranks K0 < k <= K with S0 correct before it and rate a within:
    A(k) = (S0 + a (k - K0)) / k = a + (S0 - a K0) / k, whose sum over k needs only harmonic numbers.
    """
    count, right, rate = t.count[:, ::-1], t.right[:, ::-1], t.rate[:, ::-1]
    rank, hits = np.cumsum(count, -1), np.cumsum(right, -1)
    harmonic = harmonic_numbers(int(t.n.max()))
    reciprocals = harmonic[rank.astype(np.intp)] - harmonic[(rank - count).astype(np.intp)]
    area: Floats = (right + (hits - right - rate * (rank - count)) * reciprocals).sum(-1) / t.n
    return area


@lru_cache(maxsize=8)
def harmonic_numbers(n: int) -> Floats:
    """Return H(0) = 0, H(1), ..., H(n)."""
    numbers = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, n + 1))])
    numbers.flags.writeable = False
    return numbers


def prr_of(t: FrequencyTable) -> Floats:
    """Return the PRR of each row, NaN for a row with one class."""
    wrong = t.count - t.right
    errors = wrong.sum(-1)
    remaining = errors[:, None] - np.cumsum(wrong, -1)  # after rejecting up to and including each value
    actual = (t.count * (remaining + wrong / 2)).sum(-1)  # trapezoids, times N^2
    random, oracle = errors * t.n / 2, errors**2 / 2
    defined = (errors > 0) & (errors < t.n)
    ratio: Floats = np.full(len(errors), np.nan)
    np.divide(random - actual, random - oracle, out=ratio, where=defined)
    return ratio


def one_class(*metrics: str) -> str:
    """Return the warning for metrics that need correct and wrong answers."""
    names, verb = " and ".join(metrics), "is" if len(metrics) == 1 else "are"
    return f"{names} {verb} undefined (NaN): all answers are correct, or none is. Add the other kind."


# ---- Comparisons across methods and measures ---------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RankVolatility:
    """Mean absolute change of each method's rank, over measures, when one metric replaces another."""

    per_method: Floats  # (M,)
    mean: float  # over methods


@dataclass(frozen=True, eq=False)
class Correlations:
    """Pearson correlations between the confidences of several measures."""

    names: tuple[str, ...]
    matrix: Floats  # (S, S), symmetric, ones on the diagonal; NaN for a constant measure
    n: int  # questions without a null in any measure


def rank_volatility(first: ArrayLike, second: ArrayLike) -> RankVolatility:
    r"""Compute the mean absolute change of rank between two metrics (paper, table "Ranking Volatility").

    With :math:`r_{ij}` the rank of method i among the methods within measure j under the first metric and
    :math:`r'_{ij}` under the second (ties share their mean rank), method i has volatility
    :math:`\frac1S \sum_j |r_{ij} - r'_{ij}|`.

    `first` and `second`, of shape (M methods, S measures), are unrounded means over runs of two metrics with
    the same better direction (negate one if they differ). A NaN makes all results NaN, with an
    UndefinedWarning. InputError if the shapes differ or are not two-dimensional.

    In the second metric, the first two methods swap ranks within the second measure:

    >>> ace = [[0.30, 0.20], [0.20, 0.10], [0.10, 0.05]]
    >>> mcb = [[0.09, 0.02], [0.04, 0.03], [0.01, 0.01]]
    >>> result = rank_volatility(ace, mcb)
    >>> result.per_method, round(result.mean, 3)
    (array([0.5, 0.5, 0. ]), 0.333)
    """
    tables = [as_numbers(table, name) for table, name in ((first, "first"), (second, "second"))]
    if tables[0].ndim != 2 or tables[0].shape != tables[1].shape or not tables[0].size:
        raise InputError(
            f"the tables have shapes {tables[0].shape} and {tables[1].shape}; "
            "expected the same (methods, measures) twice"
        )
    if np.isnan(tables).any():
        warn_undefined("rank volatility is NaN: a metric is NaN. Leave that measure or method out.")
    ranks = [scipy.stats.rankdata(table, axis=0) for table in tables]
    per_method: Floats = np.abs(ranks[0] - ranks[1]).mean(axis=1)
    return RankVolatility(per_method, float(per_method.mean()))


def correlations(confidences: Mapping[str, ArrayLike]) -> Correlations:
    r"""Compute the Pearson correlations between measures, over questions.

    .. math:: \rho_{ab} = \frac{\sum_i (a_i - \bar a)(b_i - \bar b)}
              {\sqrt{\sum_i (a_i - \bar a)^2 \sum_i (b_i - \bar b)^2}}

    `confidences` maps each measure to the confidences (N,) of the same N questions. A question with a NaN is
    left out for all measures. InputError for no measures, lengths that differ, or fewer than two questions
    without NaN. The correlations of a constant measure are NaN, with an UndefinedWarning.

    >>> result = correlations({"E-SC": [0.2, 0.5, 0.9], "L-SC": [0.3, 0.5, 0.8]})
    >>> result.names, result.matrix.round(3)
    (('E-SC', 'L-SC'), array([[1.   , 0.999], [0.999, 1.   ]]))
    """
    names = tuple(confidences)
    columns = [as_numbers(values, f"the confidence of {name}") for name, values in confidences.items()]
    if len({column.shape for column in columns}) != 1 or columns[0].ndim != 1:
        shapes = ", ".join(f"{name} {column.shape}" for name, column in zip(names, columns))
        raise InputError(
            f"expected measures of the same N questions, shape (N,) each; got {shapes or 'none'}"
        )
    table = np.stack(columns)
    table = table[:, ~np.isnan(table).any(axis=0)]
    if table.shape[1] < 2:
        raise InputError(
            f"{table.shape[1]} questions have all confidences. Give at least two for a correlation."
        )
    constant = table.max(axis=1) == table.min(axis=1)
    if constant.any():
        flat = ", ".join(name for name, flag in zip(names, constant) if flag)
        warn_undefined(
            f"the correlations of {flat} are undefined (NaN): the confidence is the same for every question"
        )
    table[constant] = np.nan
    matrix: Floats = np.atleast_2d(np.corrcoef(table))
    np.fill_diagonal(matrix, np.where(constant, np.nan, 1.0))
    return Correlations(names, matrix, table.shape[1])
