"""Errors over runs, bootstrap intervals, paired tests: transcriptions, known errors, simulated coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import sem

import semcal.metrics as metrics
from semcal.errors import UndefinedWarning
from semcal.metrics import (
    ace,
    bootstrap,
    joint_bootstrap,
    mean_and_standard_error,
)
from semcal.metrics.intervals import area_interval
from semcal.metrics.overview import METRICS
from tests.metrics.examples import drawn


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=9))
def test_the_error_over_runs_is_scipys(values):
    result = mean_and_standard_error(values)
    assert result.mean == pytest.approx(np.mean(values), abs=1e-12)
    assert result.standard_error == pytest.approx(sem(values), abs=1e-12)
    assert result.runs == len(values)


@pytest.mark.parametrize(
    ("values", "mean", "named"),
    [([0.7], 0.7, "single run"), ([0.7, math.nan, 0.8], math.nan, "run 1 is NaN")],
)
def test_one_run_has_no_error_and_an_undefined_run_is_named_and_not_dropped(values, mean, named):
    with pytest.warns(UndefinedWarning, match=named):
        result = mean_and_standard_error(values)
    assert [result.mean, result.standard_error] == pytest.approx([mean, math.nan], nan_ok=True)


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(5, 60), st.booleans())
def test_every_interval_holds_its_estimate_within_the_metrics_range(seed, n, tenths):
    p, c = drawn(seed, n, tenths=tenths)
    c[:2] = [True, False]
    for name, interval in bootstrap(p, c, resamples=15).items():
        assert interval.low <= interval.estimate <= interval.high <= 1, name
        assert interval.low >= METRICS[name].least, name


@pytest.mark.parametrize(("metric", "gap"), [("ace", 0.0), ("ace", 0.15), ("ece", 0.03)])
def test_the_corrected_interval_covers_the_true_error(metric, gap):
    """Of confidences that are too high by a constant gap."""
    covered = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        p = gap + (1 - gap) * rng.beta(2, 0.8, 300)
        c = rng.uniform(size=300) < p - gap
        interval = bootstrap(p, c, metrics=[metric], resamples=150, seed=seed)[metric]
        covered += interval.low <= gap <= interval.high
    assert covered >= 0.85 * 60


def test_a_score_ranks_in_place_of_the_confidence():
    p, c = drawn(6, 100)
    intervals = bootstrap(p, c, metrics=["auroc", "ace"], score=-p, resamples=20)
    assert intervals["auroc"].estimate == pytest.approx(1 - metrics.auroc(p, c))
    assert intervals["ace"].estimate == pytest.approx(ace(p, c))


def test_a_seed_decides_everything_and_nothing_global_is_touched():
    p, c = drawn(7, 100)
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    a, b = (bootstrap(p, c, metrics=["ace"], resamples=30, seed=5)["ace"] for _ in range(2))
    assert a == b
    assert a == bootstrap(p, c, metrics=["ace"], resamples=30, seed=np.random.default_rng(5))["ace"]
    assert a != bootstrap(p, c, metrics=["ace"], resamples=30, seed=6)["ace"]
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


@pytest.mark.parametrize(("correct", "estimate"), [([1, 1], math.nan), ([0, 1], 1)])
def test_a_metric_undefined_for_the_data_or_nearly_all_resamples_has_no_interval(correct, estimate):
    # With two questions, half of the resamples hold one of them twice; this seed draws two of those.
    with pytest.warns(UndefinedWarning, match="auroc"):
        interval = bootstrap([0.2, 0.7], correct, metrics=["auroc"], resamples=2, seed=0)["auroc"]
    assert [interval.estimate] == pytest.approx([estimate], nan_ok=True)
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)


def test_resamples_without_both_classes_are_left_out_and_not_counted():
    p = np.linspace(0.1, 0.9, 8)
    interval = bootstrap(p, [0, 1, 1, 1, 1, 1, 1, 1], metrics=["auroc"], resamples=200)["auroc"]
    assert 100 < interval.resamples < 200
    assert interval.low <= interval.estimate == interval.high == 1.0


def paired_test(first, second, metric, **options):
    methods = {"first": first, "second": second}
    return joint_bootstrap(methods, metrics=[metric], **options).paired("first", "second", metric)


class TestPairedTest:
    def test_a_method_does_not_differ_from_itself(self):
        p, c = drawn(0, 100)
        for metric in METRICS:
            result = paired_test((p, c), (p, c), metric, resamples=30)
            assert (result.difference, result.low, result.high, result.p_value) == (0, 0, 0, 1)

    def test_equally_good_methods_are_seldom_found_to_differ(self):
        found = 0
        for seed in range(60):
            rng = np.random.default_rng(seed)
            chance, c = drawn(rng, 200)
            noisy = [np.clip(chance + rng.normal(0, 0.15, 200), 0, 1) for _ in range(2)]
            found += paired_test((noisy[0], c), (noisy[1], c), "ace", resamples=99).p_value <= 0.05
        assert found <= 8

    def test_an_undefined_metric_leaves_the_test_undefined(self):
        with pytest.warns(UndefinedWarning, match="auroc"):
            result = paired_test(([0.1, 0.2], [1, 1]), ([0.1, 0.2], [0, 1]), "auroc", resamples=10)
        assert math.isnan(result.p_value)
        assert math.isnan(result.difference)


def share_held(metric, n, draw, worlds=150):
    """How often the interval holds the mean over outcomes of `draw` (n, rng) → confidences and chances."""
    p, chance = draw(300_000, np.random.default_rng(0))
    if_right, if_wrong = {
        "accuracy": (1 + 0 * p, 0 * p),
        "brier": ((1 - p) ** 2, p**2),
        "gain": (2 * p - p**2, -(p**2)),
    }[metric]
    truth, held = (chance * if_right + (1 - chance) * if_wrong).mean(), 0
    for world in range(worlds):
        rng = np.random.default_rng((world, n))
        p, chance = draw(n, rng)
        found = bootstrap(p, rng.random(n) < chance, metrics=[metric], resamples=60, seed=world)[metric]
        held += found.low <= truth + 1e-9 and truth - 1e-9 <= found.high
    return held / worlds


class TestOutcomesThatAreSeldom:
    @pytest.mark.parametrize(
        ("metric", "mean", "power", "n"),
        [("accuracy", 0.98, 1, 10), ("brier", 0.02, 3, 10), ("gain", 0.95, 1 / 3, 30)],
    )
    def test_nine_in_ten_intervals_hold_the_truth(self, metric, mean, power, n):
        """.03 to .83 of the bootstrap's do."""

        def draw(number, rng):
            chance = rng.beta(4 * mean, 4 * (1 - mean), number)
            return chance**power, chance

        assert share_held(metric, n, draw) >= 0.9


class TestFewQuestions:
    @pytest.mark.parametrize(
        ("area", "right", "wrong"), [(0.8, 20, 10), (0.5, 3, 40), (0.97, 200, 2), (1.0, 10, 5), (0.0, 10, 5)]
    )
    def test_the_interval_of_an_auroc_holds_the_values_that_newcombes_test_does_not_refuse(
        self, area, right, wrong
    ):
        true = np.linspace(0, 1, 200_001)[1:-1]
        q1, q2 = true / (2 - true), 2 * true**2 / (1 + true)  # Hanley and McNeil's, as they write it
        half = (right + wrong) / 2 - 1
        variance = (true * (1 - true) + half * (q1 + q2 - 2 * true**2)) / (right * wrong)
        kept = true[np.abs(area - true) <= 1.959964 * np.sqrt(variance)]
        assert area_interval(area, right, wrong) == pytest.approx((kept.min(), kept.max()), abs=2e-5)
