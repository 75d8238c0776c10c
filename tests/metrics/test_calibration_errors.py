"""ECE, ACE and SmoothECE against their definitions written out, and against relplot."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression
from scipy.stats import binom, kstest, norm
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import brier_score_loss

from semcal.errors import UndefinedWarning
from semcal.metrics import (
    NoiseFloor,
    ace,
    brier,
    ece,
    gain,
    noise_floor,
    smooth_ece,
    summaries,
    summary,
)
from semcal.metrics.frequencies import isotonic_fit
from semcal.metrics.overview import METRICS, dependent_noise_floor
from tests.metrics.examples import EXAMPLES, TENTHS


def plain_ece(p, c, bins):
    """Bin by bin, (l, r], the first closed on the left, values up to 1e-6 above an edge below it."""
    total = 0.0
    for b in range(bins):
        inside = [
            i
            for i in range(len(p))
            if (p[i] - 1e-6 > b / bins or b == 0) and (p[i] - 1e-6 <= (b + 1) / bins or b == bins - 1)
        ]
        if inside:
            gap = np.mean([c[i] for i in inside]) - np.mean([p[i] for i in inside])
            total += len(inside) / len(p) * abs(gap)
    return total


def plain_ace(p, c, bins):
    """Sort, let ties share their mean correctness, cut into equal parts."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    shared = [np.mean([c[j] for j in range(len(p)) if p[j] == p[i]]) for i in order]
    bins = min(bins, len(p))
    total, start = 0.0, 0
    for b in range(bins):
        size = len(p) // bins + (b < len(p) % bins)
        part = range(start, start + size)
        total += abs(sum(shared[i] - p[order[i]] for i in part)) / len(p)
        start += size
    assert start == len(p)
    return total


def plain_smooth_ece(p, c, cells=1500):
    """The integral by the midpoint rule, the kernel reflected by images, the fixed point by bisection."""
    t = (np.arange(cells) + 0.5) / cells
    weight = np.where((p == 0) | (p == 1), 0.5, 1.0)

    def at(width):
        images = [sign * p + 2 * j for j in (-2, -1, 0, 1, 2) for sign in (1, -1)]
        kernel = sum(norm.pdf(t[:, None] - image, scale=width) for image in images)
        return np.abs(kernel @ (weight * (c - p))).mean() / weight.sum()

    low, high = 1e-3, 1.0
    for _ in range(14):
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle) > middle else (low, middle)
    return at(low)


@given(EXAMPLES, st.integers(1, 20))
def test_ece_is_the_definition(examples, bins):
    assert ece(*examples, bins=bins) == pytest.approx(plain_ece(*examples, bins), abs=1e-12)


@given(EXAMPLES, st.integers(1, 20))
def test_ace_is_the_definition(examples, bins):
    assert ace(*examples, bins=bins) == pytest.approx(plain_ace(*examples, bins), abs=1e-12)


@pytest.mark.parametrize("seed", range(2))
def test_smooth_ece_is_the_definition(seed):
    rng = np.random.default_rng(seed)
    p = rng.choice(np.arange(11) / 10, 30) if seed % 2 else rng.uniform(size=30)
    c = (rng.uniform(size=30) < p**2).astype(float)
    assert smooth_ece(p, c) == pytest.approx(plain_smooth_ece(p, c), abs=1e-4)


@pytest.mark.parametrize("seed", range(2))
def test_smooth_ece_agrees_with_its_authors_package(seed):
    relplot = pytest.importorskip("relplot.metrics")
    rng = np.random.default_rng(seed)
    p = rng.beta(3, 1, 800)
    p = np.ceil(p * 10) / 10 if seed % 2 else p
    c = (rng.uniform(size=800) < p ** (1 + seed / 2)).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = relplot.smECE(p, c)
    assert smooth_ece(p, c) == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize(("above", "together"), [(9e-7, True), (1.2e-6, False)])
def test_a_value_up_to_a_millionth_above_an_edge_belongs_below_it(above, together):
    # Two residuals of opposite sign cancel in one bin and add up in two.
    p, c = [0.1, 0.2 + above], [1, 0]
    apart = (0.9 + 0.2 + above) / 2
    same = abs(1 - 0.3 - above) / 2
    assert ece(p, c, bins=5) == pytest.approx(same if together else apart)


# ---- The Brier score, gain and decompositions against scikit-learn, model-diagnostics and plain sums -------


@given(EXAMPLES)
def test_brier_is_the_mean_squared_error(examples):
    p, c = examples
    assert brier(p, c) == pytest.approx(np.mean((p - c) ** 2), abs=1e-14)
    assert brier(p, c) == pytest.approx(brier_score_loss(c.astype(int), p, labels=[0, 1]), abs=1e-14)


@given(st.lists(st.tuples(st.one_of(TENTHS, st.floats(-5, 5)), st.floats(1e-3, 1e3)), max_size=60))
def test_the_isotonic_fit_is_scipys_to_the_bit(pairs):
    rates, weights = (np.array([pair[k] for pair in pairs], float) for k in (0, 1))
    assert isotonic_fit(rates, weights).tolist() == isotonic_regression(rates, weights=weights).x.tolist()


@given(EXAMPLES)
def test_gain_is_the_mean_of_2pc_less_p_squared_and_accuracy_less_brier(examples):
    p, c = examples
    assert gain(p, c) == pytest.approx(np.mean(2 * p * c - p**2), abs=1e-12)
    assert gain(p, c) == pytest.approx(c.mean() - np.mean((p - c) ** 2), abs=1e-12)
    assert -1 <= gain(p, c) <= 1


def parts_of(p, c):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)  # of AUROC
        return summary(p, c, draws=0)


@given(EXAMPLES)
def test_the_parts_of_the_brier_score_are_sums_over_unique_confidences(examples):
    p, c = examples
    parts = parts_of(p, c)
    groups = [(value, c[p == value]) for value in set(p.tolist())]
    reliability = sum(len(g) * (value - g.mean()) ** 2 for value, g in groups) / len(p)
    resolution = sum(len(g) * (g.mean() - c.mean()) ** 2 for _, g in groups) / len(p)
    assert parts["reliability"] == pytest.approx(reliability, abs=1e-12)
    assert parts["resolution"] == pytest.approx(resolution, abs=1e-12)
    assert parts["uncertainty"] == pytest.approx(c.mean() * (1 - c.mean()), abs=1e-12)
    whole = parts["reliability"] - parts["resolution"] + parts["uncertainty"]
    assert whole == pytest.approx(parts["brier"], abs=1e-12)


@given(EXAMPLES)
def test_corp_recalibrates_by_scikit_learns_isotonic_regression(examples):
    p, c = np.round(examples[0], 6), examples[1]  # scikit-learn pools values closer than that
    parts, left = parts_of(p, c), np.mean((IsotonicRegression().fit_transform(p, c) - c) ** 2)
    assert parts["mcb"] == pytest.approx(np.mean((p - c) ** 2) - left, abs=1e-9)
    assert parts["dsc"] == pytest.approx(np.mean((c.mean() - c) ** 2) - left, abs=1e-9)
    assert parts["mcb"] - parts["dsc"] + parts["unc"] == pytest.approx(parts["brier"], abs=1e-12)
    assert min(parts["mcb"], parts["dsc"]) >= 0


# ---- Noise floors: against outcomes drawn one by one, and the test of calibration in simulation ------------


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
