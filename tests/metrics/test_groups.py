"""Clustered intervals and tests: against a plain implementation, in simulation, without groups as ever."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from semcal.errors import UndefinedWarning
from semcal.metrics import bootstrap, joint_bootstrap, paired_test, summaries
from semcal.metrics.intervals import area_interval
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


def test_a_clustered_paired_test_is_that_of_the_joint_bootstrap() -> None:
    p, c, label = clustered(3, groups=30)
    other, also = p**0.5, c
    test = paired_test(p, c, other, also, metric="brier", groups=label, resamples=200, seed=4)
    both = joint_bootstrap({0: (p, c), 1: (other, also)}, groups=label, resamples=200, seed=4)
    common = both.paired(0, 1, "brier")
    for name in ("difference", "low", "high", "standard_error", "p_value", "resamples"):
        assert getattr(test, name) == pytest.approx(getattr(common, name), abs=1e-12)


def test_intervals_of_calibrated_confidences_in_groups_begin_at_0() -> None:
    """Of answers mostly right: with sign flips one in seven began above 0."""
    above, label = 0, np.repeat(np.arange(60), 4)
    for seed in range(60):
        rng = np.random.default_rng(seed)
        p = rng.beta(6, 0.5, len(label))
        c = rng.random(60)[label] < p
        above += bootstrap(p, c, metrics=["ace"], groups=label, resamples=100, seed=seed)["ace"].low > 0
    assert above <= 4


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
    assert (found.low, found.high) == (area_interval(1.0, 10, 10, 0.95)[0], 1)


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
