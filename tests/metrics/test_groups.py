"""Clustered intervals and tests: against a plain implementation, in simulation, without groups as ever."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binomtest

from semcal import metrics
from semcal.errors import InputError, UndefinedWarning
from semcal.metrics import bootstrap, joint_bootstrap, summaries
from semcal.metrics.intervals import area_interval, slices
from semcal.metrics.overview import METRICS
from tests.metrics.plain_bootstrap import plain_resamples

Floats = NDArray[np.float64]


def clustered(
    seed: int, *, groups: int, tied: float = 0.9, flattery: float = 0.0
) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Confidences, outcomes and groups of 1 to 9 questions, most of which are right or wrong together."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 10, groups)
    label = np.repeat(np.arange(groups), sizes)
    shared, own = rng.random(groups)[label], rng.random(len(label))
    drawn = np.where(rng.random(len(label)) < tied, rng.random(groups)[label], rng.random(len(label)))
    chance = np.round(np.where(tied > 0, shared, own), 2)
    confidence = np.clip(chance + flattery, 0, 1)
    return confidence, (drawn < chance).astype(float), label


@pytest.mark.filterwarnings("ignore::semcal.errors.UndefinedWarning")
@pytest.mark.parametrize("groups", [6, 40])
def test_clustered_resamples_are_those_of_groups_written_out(groups: int) -> None:
    p, c, label = clustered(1, groups=groups)
    names = [f"passage {g}" for g in label]
    expected = plain_resamples([(p, c)], 80, np.random.default_rng(7), label)
    found = joint_bootstrap({"it": (p, c)}, groups=names, resamples=80, seed=7)
    single = bootstrap(p, c, groups=names, resamples=80, seed=7)
    for name in METRICS:
        values = expected[name]
        tolerance = 2e-4 if name == "smooth_ece" else 1e-12
        np.testing.assert_allclose(found.resampled["it"][name], values, atol=1e-12, err_msg=name)
        assert single[name].standard_error == pytest.approx(np.nanstd(values, ddof=1), abs=tolerance)
        interval = found.interval("it", name)
        for end in ("estimate", "low", "high", "standard_error", "resamples"):
            assert getattr(interval, end) == pytest.approx(getattr(single[name], end), abs=2e-4 + tolerance)


def drawn_together(label: NDArray[np.int64], draws: int, seed: int) -> Floats:
    """The numbers that decide outcomes under the null, one a group, after those of the resamples."""
    groups = int(label.max()) + 1
    rng = np.random.default_rng(seed)
    rng.integers(groups, size=(draws, groups))
    return rng.random((draws, groups))[:, label]


def test_the_null_of_clustered_errors_decides_the_members_of_a_group_by_one_number() -> None:
    p, c, label = clustered(2, groups=30)
    found = joint_bootstrap({"it": (p, c)}, groups=label, resamples=60, seed=3)
    outcomes = drawn_together(label, 60, 3) < p
    expected = summaries(np.tile(p, (60, 1)), outcomes)
    for name in (key for key, metric in METRICS.items() if metric.zero_if_calibrated):
        errors = found.if_calibrated("it", name)
        np.testing.assert_allclose(errors, expected[name], atol=1e-12, err_msg=name)


@pytest.mark.parametrize("groups", [60, 200])
def test_with_fewer_than_200_groups_the_lower_end_of_an_error_leaves_room_for_their_floor(
    groups: int,
) -> None:
    p, c, label = clustered(4, groups=groups, flattery=0.3)
    drawn = joint_bootstrap({0: (p, c)}, metrics=["ace"], groups=label, resamples=200)
    found, values = drawn.interval(0, "ace"), drawn.resampled[0]["ace"]
    plain = 2 * found.estimate - np.quantile(values, 0.975)
    floored = 2 * found.estimate - found.high - drawn.if_calibrated(0, "ace").mean()
    assert len(p) > 200
    assert 0 < floored < plain
    assert found.low == pytest.approx(floored if groups < 200 else plain)


def test_newcombes_interval_of_an_auroc_counts_a_group_as_one_question() -> None:
    label = np.repeat(np.arange(20), 10)
    p, c = np.linspace(0.1, 0.9, 200), np.arange(200) >= 100
    found = bootstrap(p, c, metrics=["auroc"], groups=label, resamples=50)["auroc"]
    assert (found.low, found.high) == (area_interval(1.0, 10, 10)[0], 1)


def test_groups_of_one_question_each_are_no_groups() -> None:
    p = np.round(np.random.default_rng(5).random(100), 2)
    c = np.random.default_rng(6).random(100) < p**1.5
    alone = [f"q{i}" for i in range(100)]
    expected, found = (bootstrap(p, c, groups=groups, resamples=50, seed=6) for groups in (None, alone))
    assert repr(found) == repr(expected)


def test_clustered_intervals_hold_the_true_calibration_error_and_plain_ones_are_too_narrow() -> None:
    chance = np.round(np.random.default_rng(0).random(200_000), 2)
    truth = float(np.abs(np.clip(chance + 0.3, 0, 1) - chance).mean())
    hits = np.zeros(2)
    for seed in range(80):
        p, c, label = clustered(seed, groups=60, flattery=0.3)
        for place, groups in enumerate((None, label)):
            found = bootstrap(p, c, metrics=["ace"], groups=groups, resamples=200, seed=seed)["ace"]
            hits[place] += found.low <= truth <= found.high
    plain, with_groups = hits / 80
    assert plain < 0.85
    assert with_groups >= 0.88


def test_questions_of_one_group_have_no_interval() -> None:
    with pytest.warns(UndefinedWarning, match="brier"):
        found = bootstrap([0.2, 0.8, 0.5], [0, 1, 1], metrics=["brier"], groups=["a", "a", "a"])
    assert np.isnan([found["brier"].low, found["brier"].high, found["brier"].standard_error]).all()


# ---- Slices: each is what its questions alone give, with the number of slices allowed for ------------------


def questions(n: int, seed: int = 0, *, too_sure: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p = rng.beta(3, 1.5, n)
    return p, rng.random(n) < np.clip(p - too_sure, 0, 1)


def test_a_slice_is_what_its_questions_alone_give() -> None:
    p, c = questions(300)
    names = ["a"] * 150 + ["b"] * 100 + ["c"] * 50
    answered = p > 0.6
    found = slices(p, c, names, answered=answered, risk_limit=0.2)
    assert [(one.value, one.n) for one in found] == [("a", 150), ("b", 100), ("c", 50)]
    for one in found:
        part = np.array(names) == one.value
        alone = metrics.summary(p[part], c[part], draws=1000)
        assert one.accuracy == pytest.approx(alone["accuracy"])
        assert one.mean_confidence == pytest.approx(alone["mean_confidence"])
        assert (one.ace, one.ace_floor) == pytest.approx((alone["ace"], alone["ace_floor"]), abs=0.01)
        assert one.excess == pytest.approx(one.mean_confidence - one.accuracy)
        n, errors = int((part & answered).sum()), int((part & answered & ~c).sum())
        expected = binomtest(errors, n).proportion_ci(1 - 0.05 / 3, method="exact")
        assert (one.answered, one.errors, one.risk) == (n, errors, errors / n)
        assert one.risk_interval == pytest.approx((expected.low, expected.high))
        assert one.kept == (expected.low <= 0.2)


def test_a_slice_that_is_too_sure_and_breaks_the_promise_is_found_and_no_other() -> None:
    (p, c), (q, d) = questions(400), questions(200, 1, too_sure=0.4)
    sure, right = np.concatenate([p, q]), np.concatenate([c, d])
    found = slices(sure, right, ["good"] * 400 + ["bad"] * 200, answered=sure > 0.6, risk_limit=0.3)
    assert [(one.value, one.calibrated, one.kept) for one in found] == [
        ("good", True, True),
        ("bad", False, False),
    ]
    low, high = found[1].excess_interval or (0, 0)
    assert low < 0.4 < high
    assert low > 0


def test_too_few_questions_or_groups_of_them_are_not_tested() -> None:
    p, c = questions(60)
    few, many = slices(p, c, ["a"] * 41 + ["b"] * 19)[::-1]
    assert (few.calibrated, few.excess_interval, few.kept) == (None, None, None)
    assert many.calibrated is not None
    groups = [number // 3 for number in range(60)]
    assert [one.calibrated is None for one in slices(p, c, ["a"] * 57 + ["b"] * 3, groups=groups)] == [
        True,
        True,
    ]
    (nothing,) = slices(p, c, ["a"] * 60, answered=[False] * 60, risk_limit=0.1)
    assert (nothing.answered, nothing.risk, nothing.kept) == (0, None, None)


def test_of_calibrated_confidences_all_slices_hold_as_often_as_the_level_says() -> None:
    all_hold = []
    for seed in range(60):
        p, c = questions(240, seed)
        found = slices(p, c, [str(i % 6) for i in range(240)], seed=seed)
        all_hold.append(all(one.calibrated for one in found))
    assert binomtest(sum(all_hold), 60, 0.95, alternative="less").pvalue > 0.001


@pytest.mark.parametrize("options", [{"values": ["a"]}, {"values": ["a", "b"], "answered": [True]}])
def test_another_number_of_values_is_refused(options: dict[str, list[object]]) -> None:
    with pytest.raises(InputError):
        slices([0.5, 0.6], [True, False], **options)
