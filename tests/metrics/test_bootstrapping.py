"""Intervals, tests and contrasts of several methods on the same resamples, against plain loops over these."""

from __future__ import annotations

import math
import pickle
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from semcal.errors import UndefinedWarning
from semcal.metrics import (
    Contrast,
    auroc,
    bootstrap,
    correlations,
    joint_bootstrap,
    prr,
    rank_volatility,
    summaries,
)
from semcal.metrics.frequencies import draw_counts, shared_table
from semcal.metrics.overview import METRICS, measure_rows
from tests.metrics.plain_bootstrap import plain_intervals, plain_resamples, plain_summary

COMPARED = ["accuracy", "ace", "brier", "auroc", "mcb", "resolution", "smooth_ece"]


def several(runs: int = 2, n: int = 60) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(3)
    chance = rng.uniform(size=n)
    shapes = {"calibrated": 1.0, "sharp": 0.3, "flat": 2.0}
    return {
        name: (
            np.round(np.tile(chance**power, (runs, 1)) ** rng.uniform(0.9, 1.1, (runs, n)), 2),
            rng.uniform(size=(runs, n)) < chance,
        )
        for name, power in shapes.items()
    }


def rounding(metric: str) -> float:
    """SmoothECE's width is one of 2^14, and rounding may decide which of two it is."""
    return 2**-13 if metric == "smooth_ece" else 1e-11


def test_intervals_are_those_of_resamples_written_out() -> None:
    methods = several()
    found = joint_bootstrap(methods, resamples=150, seed=5)
    for name, runs in methods.items():
        alone = bootstrap(*runs, resamples=150, seed=5)
        expected = plain_intervals(list(zip(*runs)), 150, 5)
        for metric, interval in alone.items():
            ends = (interval.low, interval.high, interval.standard_error)
            assert ends == pytest.approx(expected[metric], abs=rounding(metric)), metric
            assert astuple(found.interval(name, metric)) == astuple(interval)


@pytest.mark.parametrize("metric", COMPARED)
def test_tests_are_those_of_resamples_written_out(metric: str) -> None:
    methods = several()
    found = joint_bootstrap(methods, metrics=COMPARED, resamples=150, seed=5)
    pair = {name: methods[name] for name in ("calibrated", "sharp")}
    alone = joint_bootstrap(pair, metrics=[metric], resamples=150, seed=5)
    test = found.paired("sharp", "calibrated", metric)
    assert test == alone.paired("sharp", "calibrated", metric)
    runs = [list(zip(*methods[name])) for name in ("sharp", "calibrated")]
    first, second = (plain_summary(one)[metric] for one in runs)
    values = np.subtract(*(plain_resamples(one, 150, np.random.default_rng(5))[metric] for one in runs))
    difference, bias = first - second, values.mean() - (first - second)
    low, high = np.quantile(values, [0.025, 0.975]) - bias
    p = (1 + np.sum(np.abs(values - values.mean()) >= abs(difference))) / 151
    expected = (first, second, difference, low, high, values.std(ddof=1), p, 150)
    assert astuple(test) == pytest.approx(expected, abs=rounding(metric))


def test_contrasts_add_up_resample_by_resample() -> None:
    found = joint_bootstrap(several(), metrics=["brier"], resamples=50)
    sharp, flat = (found.contrast(name, "brier") for name in ("sharp", "flat"))
    half = Contrast.mean([sharp, flat])
    assert half.value == pytest.approx((sharp.value + flat.value) / 2)
    assert half.resampled == pytest.approx((sharp.resampled + flat.resampled) / 2)
    assert (sharp - sharp).p_value() == 1.0
    assert (half * 2.0).value == pytest.approx((sharp + flat).value)


def test_another_process_gets_tests_and_no_intervals_of_errors_that_need_the_questions() -> None:
    found = joint_bootstrap(several(), metrics=["brier", "ace"], resamples=50)
    sent = pickle.loads(pickle.dumps(found))
    assert sent.paired("sharp", "flat", "ace") == found.paired("sharp", "flat", "ace")
    assert sent.interval("sharp", "brier") == found.interval("sharp", "brier")
    with pytest.raises(RuntimeError, match="process"):
        sent.interval("sharp", "ace")


# ---- All resamples at once are each of them written out


ANSWERS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.5, 0.6, 0.9, 1.0]), st.booleans()), min_size=1, max_size=40
)


def drawn(n: int, resamples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of the questions of each resample, and their counts."""
    places = np.random.default_rng(seed).integers(n, size=(resamples, n))
    return places, draw_counts(n, resamples, np.random.default_rng(seed))


def checked(confidence: np.ndarray, correct: np.ndarray, resamples: int = 30) -> None:
    n = len(confidence)
    places, counts = drawn(n, resamples, 1)
    found = measure_rows(shared_table(confidence, correct, counts), METRICS, 15)
    for name, values in summaries(confidence[places], correct[places]).items():
        assert found[name] == pytest.approx(values, abs=1e-12, nan_ok=True), name
    outcomes = np.random.default_rng(2).random((resamples, n)) < confidence
    found = measure_rows(shared_table(confidence, outcomes), METRICS, 15)
    for name, values in summaries(np.tile(confidence, (resamples, 1)), outcomes).items():
        assert found[name] == pytest.approx(values, abs=1e-12, nan_ok=True), name


@settings(max_examples=60, deadline=None)
@given(ANSWERS)
def test_every_metric_equals_that_of_the_rows_written_out(answers: list[tuple[float, bool]]) -> None:
    checked(*(np.array(column, dtype=np.float64) for column in zip(*answers)))


@pytest.mark.parametrize("digits", [1, 2, 12])
def test_it_does_with_many_questions_with_ties_and_without(digits: int) -> None:
    rng = np.random.default_rng(digits)
    confidence = rng.beta(0.8, 0.6, 300)
    checked(np.round(confidence, digits), rng.random(300) < confidence)


def test_more_resamples_than_are_drawn_at_a_time_follow_one_another() -> None:
    places, counts = drawn(7, 137, 3)
    assert counts.tolist() == [np.bincount(one, minlength=7).tolist() for one in places]


@given(ANSWERS)
def test_prr_is_twice_auroc_less_one(answers: list[tuple[float, bool]]) -> None:
    score, correct = zip(*answers)
    if 0 < sum(correct) < len(correct):
        assert prr(score, correct) == pytest.approx(2 * auroc(score, correct) - 1, abs=1e-12)


# ---- Rank volatility and correlations ----------------------------------------------------------------------

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
