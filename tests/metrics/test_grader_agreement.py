"""Graders against people: agreement, confusion, Cohen's kappa and their intervals."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.metrics import cohen_kappa_score, confusion_matrix

from semcal.errors import UndefinedWarning
from semcal.metrics import agreement

PAIRS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=40)


def pair(n: int, flips: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """What people say of n answers, and a grader that errs on a share of them."""
    rng = np.random.default_rng(seed)
    human = rng.random(n) < 0.6
    return human ^ (rng.random(n) < flips), human


@given(PAIRS)
def test_counts_and_kappa_are_those_of_scikit_learn(pairs):
    verdicts, human = zip(*pairs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)
        found = agreement(verdicts, human)
    (both_wrong, grader_only), (human_only, both_right) = confusion_matrix(
        human, verdicts, labels=[False, True]
    )
    assert found.counts == {
        "both_right": both_right,
        "grader_only": grader_only,
        "human_only": human_only,
        "both_wrong": both_wrong,
    }
    kappa = found.figures["kappa"].estimate
    if len(set(human)) == 1:
        assert math.isnan(kappa)
    else:
        assert kappa == pytest.approx(cohen_kappa_score(verdicts, human), abs=1e-12)
    assert found.figures["agreement"].estimate == pytest.approx(np.mean(np.equal(verdicts, human)))
    difference = np.mean(verdicts) - np.mean(human)
    assert found.figures["accuracy_difference"].estimate == pytest.approx(difference, abs=1e-12)


@given(PAIRS, st.randoms(use_true_random=False))
def test_every_interval_holds_its_estimate_within_its_range(pairs, random):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)
        found = agreement(*zip(*pairs), seed=random.randrange(100))
    for name, one in found.figures.items():
        if not math.isnan(one.low):
            assert (-1.0 if name in ("kappa", "accuracy_difference") else 0.0) <= one.low
            assert one.low <= one.estimate <= one.high <= 1.0


def test_kappa_is_undefined_where_people_gave_one_verdict():
    with pytest.warns(UndefinedWarning, match="kappa"):
        found = agreement([1, 0, 1, 1], [1, 1, 1, 1])
    assert math.isnan(found.figures["kappa"].estimate)
    assert found.figures["agreement"].estimate == 0.75


def test_perfect_agreement_on_a_few_answers_is_not_certain():
    found = agreement([1, 0] * 10, [1, 0] * 10).figures
    expected = binomtest(20, 20).proportion_ci(method="wilson")
    assert found["agreement"].low == pytest.approx(expected.low)
    assert found["agreement"].high == 1.0
    assert found["kappa"].estimate == 1.0
    assert found["kappa"].low == pytest.approx(2 * expected.low - 1)  # e = 1/2
    assert found["grader_only"].high == pytest.approx(1 - expected.low)


def test_groups_count_once_where_few_answers_disagree():
    once, five_times = (
        agreement([1, 0] * 10, [1, 0] * 10),
        agreement([1, 0] * 50, [1, 0] * 50, groups=[k % 20 for k in range(100)]),
    )
    assert five_times.groups == 20
    assert five_times.figures["agreement"].low == pytest.approx(once.figures["agreement"].low)


def test_intervals_are_those_of_the_bootstrap_where_there_are_many_answers():
    verdicts, human = pair(2000, 0.13)
    found = agreement(verdicts, human).figures
    p = found["agreement"].estimate
    error = math.sqrt(p * (1 - p) / 2000)
    assert found["agreement"].standard_error == pytest.approx(error, rel=0.1)
    assert found["agreement"].low == pytest.approx(p - 1.96 * error, abs=0.3 * error)
    # the delta method (Fleiss, Cohen and Everitt, 1969), with the marginals of both close to equal
    kappa, e = found["kappa"].estimate, (p - found["kappa"].estimate) / (1 - found["kappa"].estimate)
    assert found["kappa"].standard_error == pytest.approx(error / (1 - e), rel=0.1)
    assert found["kappa"].low < kappa < found["kappa"].high


def test_one_group_has_no_interval():
    with pytest.warns(UndefinedWarning, match="group"):
        found = agreement([1, 0, 1], [1, 0, 0], groups=["a", "a", "a"])
    assert found.figures["agreement"].estimate == pytest.approx(2 / 3)
    assert math.isnan(found.figures["agreement"].low)
    assert math.isnan(found.figures["kappa"].high)
