"""Selective metrics: the exact expectation over random breaking of ties, checked by trying every order."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from scipy.stats import mannwhitneyu
from sklearn.metrics import roc_auc_score

from semcal.errors import UndefinedWarning
from semcal.metrics import aurac, auroc, prr, selective_accuracy

FEW = st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=5).map(
    lambda rows: tuple(np.array(column, float) for column in zip(*rows, strict=True))
)
MANY = st.lists(
    st.tuples(st.one_of(st.integers(-3, 3), st.floats(-1e3, 1e3)), st.booleans()), min_size=2, max_size=40
).map(lambda rows: tuple(np.array(column, float) for column in zip(*rows, strict=True)))


def orders(s, c):
    """Outcomes from most to least sure, for every order of the rows (ties fall as the rows do)."""
    for rows in permutations(range(len(s))):
        yield [c[i] for i in sorted(rows, key=lambda i: -s[i])]


def plain_aurac(outcomes):
    return np.mean([np.mean(outcomes[:k]) for k in range(1, len(outcomes) + 1)])


def plain_prr(outcomes):
    """Areas under errors left among all, by trapezoids."""
    n = len(outcomes)

    def area(rejected_first):
        left = [sum(1 - c for c in rejected_first[k:]) / n for k in range(n + 1)]
        return trapezoid(left, dx=1 / n)

    straight = (n - sum(outcomes)) / n / 2
    return (straight - area(outcomes[::-1])) / (straight - area(sorted(outcomes)))


@settings(max_examples=50)
@given(FEW)
def test_aurac_is_the_mean_over_all_ways_to_break_ties(scored):
    expected = np.mean([plain_aurac(outcomes) for outcomes in orders(*scored)])
    assert aurac(*scored) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=50)
@given(FEW, st.integers(0, 4))
def test_selective_accuracy_is_the_mean_over_all_ways_to_break_ties(scored, rejected):
    n = len(scored[0])
    assume(rejected < n)
    curve = selective_accuracy(*scored, rejection=rejected / n)
    expected = np.mean([np.mean(outcomes[: n - rejected]) for outcomes in orders(*scored)])
    assert curve.accuracy[0] == pytest.approx(expected, abs=1e-12)
    assert curve.coverage[0] == pytest.approx((n - rejected) / n)


@settings(max_examples=50)
@given(FEW)
def test_prr_is_the_mean_over_all_ways_to_break_ties(scored):
    assume(0 < scored[1].sum() < len(scored[1]))
    expected = np.mean([plain_prr(outcomes) for outcomes in orders(*scored)])
    assert prr(*scored) == pytest.approx(expected, abs=1e-12)


def test_a_threshold_keeps_what_is_at_least_as_sure():
    curve = selective_accuracy([0.2, 0.5, 0.5, 0.9], [0, 1, 0, 1], threshold=[0.0, 0.5, 0.9])
    np.testing.assert_allclose(curve.coverage, [1, 0.75, 0.25])
    np.testing.assert_allclose(curve.accuracy, [0.5, 2 / 3, 1])


def test_accuracy_without_an_answer_is_undefined():
    with pytest.warns(UndefinedWarning, match="answered"):
        curve = selective_accuracy([0.2, 0.5], [0, 1], threshold=[0.3, 0.6])
    np.testing.assert_array_equal(curve.accuracy, [1, np.nan])
    with pytest.warns(UndefinedWarning, match="answered"):
        assert np.isnan(selective_accuracy([0.2, 0.5], [0, 1], rejection=1.0).accuracy[0])


@pytest.mark.parametrize("n", [10, 100, 1000])
def test_a_rate_that_is_a_whole_number_of_questions_rejects_that_many(n):
    curve = selective_accuracy(np.arange(n), np.arange(n) % 2, rejection=np.arange(100) / 100)
    rejected = n - np.round(curve.coverage * n).astype(int)
    np.testing.assert_array_equal(rejected, [n * percent // 100 for percent in range(100)])


# ---- AUROC


@given(MANY)
def test_auroc_agrees_with_scikit_learn_and_mann_whitney(scored):
    s, c = scored
    assume(0 < c.sum() < len(c))
    assert auroc(s, c) == pytest.approx(roc_auc_score(c, s), abs=1e-12)
    u = mannwhitneyu(s[c == 1], s[c == 0], method="asymptotic").statistic
    assert auroc(s, c) == pytest.approx(u / (c.sum() * (1 - c).sum()), abs=1e-12)


def test_infinite_scores_have_their_place_in_the_ranking():
    assert auroc([-np.inf, 0, np.inf], [0, 1, 1]) == 1.0


@pytest.mark.parametrize("metric", [auroc, prr])
@pytest.mark.parametrize("correct", [[1, 1], [0, 0]])
def test_one_class_leaves_a_metric_undefined(metric, correct):
    with pytest.warns(UndefinedWarning, match=metric.__name__.upper()):
        assert math.isnan(metric([0.1, 0.9], correct))
