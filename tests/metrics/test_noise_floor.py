"""Noise floors: against outcomes drawn one by one, and the test of calibration in simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, kstest, norm

from semcal.metrics import NoiseFloor, ace, ece, noise_floor, smooth_ece, summaries
from semcal.metrics.frequencies import shared_table
from semcal.metrics.overview import METRICS, dependent_noise_floor, measure_rows


def questions(n: int, seed: int, *, tenths: bool = False) -> np.ndarray:
    p = np.random.default_rng(seed).beta(2, 0.8, n)
    return np.round(p, 1) if tenths else p


@pytest.mark.parametrize("metric", sorted(name for name in METRICS if METRICS[name].zero_if_calibrated))
@pytest.mark.parametrize("tenths", [True, False])
def test_mean_and_quantile_are_those_of_outcomes_drawn_one_by_one(metric: str, tenths: bool) -> None:
    p, draws = questions(60, 1, tenths=tenths), 3000
    outcomes = np.random.default_rng(2).random((draws, 60)) < p
    errors = summaries(np.tile(p, (draws, 1)), outcomes)[metric]
    floor = noise_floor(p, metric=metric, draws=draws)
    deviation = errors.std() / math.sqrt(draws)
    assert floor.mean == pytest.approx(errors.mean(), abs=6 * deviation)
    assert np.mean(errors <= floor.quantile_95) == pytest.approx(0.95, abs=0.025)
    assert math.isnan(floor.p_value)
    assert math.isnan(floor.observed)


def test_one_confidence_everywhere_has_the_floor_of_a_binomial() -> None:
    n, p, right = 20, 0.7, 9
    exact = binom(n, p)
    gap = np.abs(np.arange(n + 1) / n - p)
    floor = noise_floor([p] * n, [True] * right + [False] * (n - right), draws=100_000)
    assert floor.observed == pytest.approx(0.25)
    assert floor.mean == pytest.approx(gap @ exact.pmf(np.arange(n + 1)), abs=0.001)
    expected = exact.pmf(np.arange(n + 1))[gap >= 0.25 - 1e-9].sum()
    assert floor.p_value == pytest.approx(expected, abs=0.003)


def test_p_is_uniform_if_the_confidences_are_calibrated() -> None:
    rng = np.random.default_rng(3)
    values = []
    for world in range(200):
        p = questions(40, world)
        values.append(noise_floor(p, rng.random(40) < p, metric="ace", draws=199, seed=world).p_value)
    assert kstest(values, "uniform").pvalue > 0.01


def test_groups_that_are_right_together_are_no_evidence_against_calibration() -> None:
    rng = np.random.default_rng(6)
    alone = grouped = 0
    for _ in range(100):
        p = np.repeat(rng.uniform(0.3, 0.9, 30), 8)
        c = np.repeat(rng.random(30), 8) < p
        label = np.repeat(np.arange(30), 8)
        alone += noise_floor(p, c, draws=199).p_value <= 0.05
        with_groups = noise_floor(p, c, groups=label, draws=199)
        grouped += with_groups.p_value <= 0.05
        assert with_groups.mean == noise_floor(p, c, draws=199).mean
    assert alone > 60
    assert grouped <= 14


@pytest.mark.parametrize(
    ("groups", "members", "alike", "shape"), [(10, 3, 1.0, (6, 0.5)), (20, 5, 0.5, (0.6, 0.3))]
)
def test_p_of_calibrated_groups_is_small_no_more_often_than_it_says(
    groups: int, members: int, alike: float, shape: tuple[float, float]
) -> None:
    """Of ten groups of three, mostly right, sign flips refused a third."""
    refused, label = 0, np.repeat(np.arange(groups), members)
    for world in range(200):
        rng = np.random.default_rng((world, groups))
        p = rng.beta(*shape, len(label))
        together = rng.random(len(label)) < alike
        c = np.where(together, rng.random(groups)[label], rng.random(len(label))) < p
        refused += noise_floor(p, c, groups=label, draws=99).p_value <= 0.05
    assert binom.sf(refused - 1, 200, 0.05) > 0.001


@pytest.mark.parametrize("metric", ["ace", "ece"])
def test_one_group_is_all_right_or_all_wrong_under_the_null(metric: str) -> None:
    p, label = [0.7] * 20, ["it"] * 20
    right = noise_floor(p, [True] * 20, metric=metric, groups=label, draws=20_000)
    assert (right.observed, right.p_value) == (pytest.approx(0.3), 1.0)
    wrong = noise_floor(p, [False] * 20, metric=metric, groups=label, draws=20_000)
    assert (wrong.observed, wrong.p_value) == (pytest.approx(0.7), pytest.approx(0.3, abs=0.012))
    assert wrong.mean == noise_floor(p, metric=metric, draws=20_000).mean


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others() -> None:
    p = questions(50, 7)
    one = noise_floor(p, p > 0.5, seed=1)
    assert one == noise_floor(p, p > 0.5, seed=1) == noise_floor(p, p > 0.5, seed=np.random.default_rng(1))
    assert one.mean != noise_floor(p, p > 0.5, seed=2).mean
    assert one == noise_floor(p[::-1], (p > 0.5)[::-1], seed=1)


def test_draws_in_parts_are_as_many_and_distributed_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    p = questions(50, 8)
    whole = noise_floor(p, p > 0.9, draws=3001)
    monkeypatch.setattr("semcal.metrics.overview.DRAWN", 50 * 7)
    for groups in (None, np.arange(50) // 2):
        parts = noise_floor(p, p > 0.9, groups=groups, draws=3001)
        assert parts.draws == 3001
        assert (parts.mean, parts.quantile_95) == pytest.approx((whole.mean, whole.quantile_95), rel=0.03)
        assert parts == noise_floor(p, p > 0.9, groups=groups, draws=3001)


@pytest.mark.parametrize("metric", ["ace", "ece", "smooth_ece"])
def test_confidences_of_0_and_1_leave_nothing_to_chance(metric: str) -> None:
    right = noise_floor([0.0, 1.0, 1.0], [0, 1, 1], metric=metric, draws=99)
    assert right == NoiseFloor(right.observed, 0.0, 0.0, 1.0, 99)
    assert right.observed == pytest.approx(0, abs=2**-14)
    wrong = noise_floor([0.0, 1.0, 1.0], [1, 1, 1], metric=metric, draws=99)
    assert (wrong.mean, wrong.quantile_95, wrong.p_value) == (0.0, 0.0, 0.01)


@pytest.mark.parametrize("function", [ace, ece, smooth_ece])
def test_what_is_observed_is_the_metric_itself(function) -> None:
    p = questions(80, 10, tenths=True)
    c = np.random.default_rng(11).random(80) < p**2
    floor = noise_floor(p, c, metric=function.__name__)
    assert floor.observed == pytest.approx(function(p, c), abs=2**-14)


def test_smooth_ece_of_more_confidences_than_grid_points_is_that_of_the_rows_written_out() -> None:
    p = questions(3000, 12)
    outcomes = np.random.default_rng(13).random((5, 3000)) < p**1.2
    expected = summaries(np.tile(p, (5, 1)), outcomes)["smooth_ece"]
    found = measure_rows(shared_table(p, outcomes), ["smooth_ece"], 15)["smooth_ece"]
    assert found == pytest.approx(expected, abs=1e-12)


def dependent_world(seed: int, dependence: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Calibrated confidences, and outcomes that depend on each other in 48 groups of 1 to 51 members."""
    rng = np.random.default_rng(seed)
    sizes = np.append(rng.integers(1, 12, 47), 51)
    groups = np.repeat(np.arange(48), sizes)
    p = 1 / (1 + np.exp(-rng.normal(0, 1.4, len(groups))))
    noise = np.sqrt(1 - dependence) * rng.normal(size=len(groups))
    shared = np.sqrt(dependence) * rng.normal(size=48)[groups]
    return p, (norm.cdf(shared + noise) < p).astype(float), groups


@pytest.mark.parametrize("dependence", [0.0, 0.6])
def test_the_floor_of_dependent_outcomes_is_their_mean_error(dependence: float) -> None:
    errors, floors, alone = [], [], []
    for seed in range(60):
        p, correct, groups = dependent_world(seed, dependence)
        floor = dependent_noise_floor(p, correct, groups, draws=100)
        errors.append(floor.observed)
        floors.append(floor.mean)
        alone.append(noise_floor(p, draws=100).mean)
    assert np.mean(errors) == pytest.approx(np.mean(floors), rel=0.07)
    assert (np.mean(errors) > 1.08 * np.mean(alone)) == (dependence > 0)


def test_overconfidence_does_not_raise_the_floor_of_dependent_outcomes() -> None:
    p, correct, groups = dependent_world(0, 0.0)
    floor = dependent_noise_floor(p**3, correct, groups)
    assert floor.mean == pytest.approx(noise_floor(p**3).mean, rel=0.15)
    assert floor.observed > 3 * floor.mean
    assert floor.p_value < 0.01


def test_outcomes_without_residuals_have_the_floor_of_independent_ones() -> None:
    p = np.array([0.0, 1.0] * 30)
    floor = dependent_noise_floor(p, p, np.repeat(np.arange(20), 3))
    assert (floor.observed, floor.mean) == (0, 0)
