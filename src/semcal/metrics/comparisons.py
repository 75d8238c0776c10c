"""Comparisons across methods and measures: rank volatility, correlations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from semcal.arrays import as_numbers
from semcal.errors import InputError
from semcal.metrics.frequencies import Floats, warn_undefined

__all__ = ["Correlations", "RankVolatility", "correlations", "rank_volatility"]


@dataclass(frozen=True, eq=False)
class RankVolatility:
    """How much the ranking of methods depends on the metric: mean absolute change of rank over measures."""

    per_method: Floats  # (M,)
    mean: float  # over methods


@dataclass(frozen=True, eq=False)
class Correlations:
    """Pearson correlations between the confidences of several measures."""

    names: tuple[str, ...]
    matrix: Floats  # (S, S), symmetric, ones on the diagonal; NaN where a measure is constant
    n: int  # questions used: those where no measure is null


def rank_volatility(first: ArrayLike, second: ArrayLike) -> RankVolatility:
    r"""Mean absolute change of rank when one metric replaces another (paper, table "Ranking Volatility").

    With :math:`r_{ij}` the rank of method i among the methods within measure j under the first metric and
    :math:`r'_{ij}` under the second (ties share their mean rank), method i has volatility
    :math:`\frac1S \sum_j |r_{ij} - r'_{ij}|`.

    Parameters
    ----------
    first, second : array_like of float, shape (M methods, S measures)
        Unrounded means over runs of two metrics with the same better direction (negate one if they differ).
        Where one is NaN, so are the ranks within its measure and all results, with an UndefinedWarning;
        shapes that differ or are not two-dimensional are an InputError.

    Examples
    --------
    Under the second metric the first two methods swap ranks within the second measure:

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
        warn_undefined("rank volatility is NaN: a metric is NaN; leave that measure or method out")
    per_method: Floats = np.abs(_ranks(tables[0]) - _ranks(tables[1])).mean(axis=1)
    return RankVolatility(per_method, float(per_method.mean()))


def correlations(confidences: Mapping[str, ArrayLike]) -> Correlations:
    r"""Pearson correlations between measures, over questions.

    .. math:: \rho_{ab} = \frac{\sum_i (a_i - \bar a)(b_i - \bar b)}
              {\sqrt{\sum_i (a_i - \bar a)^2 \sum_i (b_i - \bar b)^2}}

    Parameters
    ----------
    confidences : mapping of str to array_like of float, each of shape (N,)
        The confidence of the same N questions under each measure; NaN where a measure is null. Questions with
        a null are left out for all measures.

    Raises
    ------
    InputError
        No measures, lengths that differ, or fewer than two questions without nulls. (The correlations of a
        measure that is constant are NaN, with an UndefinedWarning.)

    Examples
    --------
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
            f"{table.shape[1]} questions have no null confidence; a correlation needs at least two"
        )
    return Correlations(names, _pearson(table, names), table.shape[1])


def _ranks(table: Floats) -> Floats:
    """Rank of each row within each column, ties at their mean rank; NaN in a column that holds one."""
    below = (table[None] < table[:, None]).sum(axis=1)
    tied = (table[None] == table[:, None]).sum(axis=1)
    return np.where(np.isnan(table).any(axis=0), np.nan, below + (tied + 1) / 2)


def _pearson(table: Floats, names: tuple[str, ...]) -> Floats:
    """Correlation of the rows; NaN for constant ones."""
    constant = table.max(axis=1) == table.min(axis=1)
    if constant.any():
        which = ", ".join(name for name, flag in zip(names, constant) if flag)
        warn_undefined(
            f"the correlations of {which} are undefined (NaN): the confidence is the same for every question"
        )
    centred = table - table.mean(axis=1, keepdims=True)
    scale = np.where(constant, np.nan, np.sqrt((centred**2).sum(axis=1)))
    matrix: Floats = np.clip((centred / scale[:, None]) @ (centred / scale[:, None]).T, -1.0, 1.0)
    np.fill_diagonal(matrix, np.where(constant, np.nan, 1.0))
    return matrix
