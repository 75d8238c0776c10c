"""Rank volatility and correlations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from semcal.errors import UndefinedWarning
from semcal.metrics import correlations, rank_volatility

TABLES = st.tuples(st.integers(1, 5), st.integers(1, 4)).flatmap(
    lambda shape: st.tuples(*[arrays(float, shape, elements=st.integers(0, 4).map(float))] * 2)
)


def plain_ranks(column):
    """Rank of each value, ties at their mean rank."""
    return [sum(y < x for y in column) + (sum(y == x for y in column) + 1) / 2 for x in column]


@given(TABLES)
def test_rank_volatility_is_the_mean_change_of_rank_within_measures(tables):
    before, after = (np.array([plain_ranks(column) for column in table.T]).T for table in tables)
    result = rank_volatility(*tables)
    np.testing.assert_allclose(result.per_method, np.abs(before - after).mean(axis=1))
    assert result.mean == pytest.approx(np.abs(before - after).mean())


def test_an_undefined_metric_leaves_the_volatility_undefined():
    with pytest.warns(UndefinedWarning, match="rank volatility"):
        result = rank_volatility([[0.1, math.nan], [0.2, 0.3]], [[0.1, 0.2], [0.2, 0.3]])
    assert math.isnan(result.mean)


def test_correlations_are_numpys():
    table = np.random.default_rng(0).uniform(size=(4, 50))
    result = correlations(dict(zip("abcd", table, strict=True)))
    assert result.names == tuple("abcd")
    assert result.n == 50
    np.testing.assert_allclose(result.matrix, np.corrcoef(table), atol=1e-12)
    np.testing.assert_array_equal(np.diag(result.matrix), 1)


def test_a_constant_measure_correlates_with_nothing():
    with pytest.warns(UndefinedWarning, match="b"):
        matrix = correlations({"a": [0.1, 0.2, 0.4], "b": [1, 1, 1]}).matrix
    np.testing.assert_array_equal(np.isnan(matrix), [[False, True], [True, True]])


def test_questions_that_are_null_under_a_measure_are_left_out():
    result = correlations({"a": [0.1, 0.5, math.nan, 0.9], "b": [0.2, 0.4, 0.3, 0.9]})
    assert result.n == 3
    assert result.matrix[0, 1] == pytest.approx(np.corrcoef([0.1, 0.5, 0.9], [0.2, 0.4, 0.9])[0, 1])
