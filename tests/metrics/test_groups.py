"""Clustered intervals and tests: against a plain implementation, in simulation, without groups as ever."""

from __future__ import annotations

import warnings
from hashlib import blake2b

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from semcal.errors import InputError, UndefinedWarning
from semcal.metrics import bootstrap, joint_bootstrap, paired_test
from semcal.metrics.calibration import smooth_ece_of
from semcal.metrics.frequencies import frequency_table
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
        np.testing.assert_allclose(found.resampled["it"][name], values, atol=tolerance, err_msg=name)
        assert single[name].standard_error == pytest.approx(np.nanstd(values, ddof=1), abs=tolerance)
        interval = found.interval("it", name)
        for end in ("estimate", "low", "high", "standard_error", "resamples"):
            assert getattr(interval, end) == pytest.approx(getattr(single[name], end), abs=2e-4 + tolerance)


def plain_null(p: Floats, c: Floats, label: NDArray[np.int64], signs: Floats) -> dict[str, float]:
    """Errors of calibration with the residuals of whole groups turned, from the definitions."""
    right = p + signs[label] * (c - p)
    order = np.argsort(p, kind="stable")
    values = {v: right[p == v].mean() for v in np.unique(p)}
    pooled = np.array([values[v] for v in p])
    bins = np.array_split(pooled[order] - p[order], 15)  # ties are pooled before they are cut
    edges = np.clip(np.ceil((p - 1e-6) * 15) - 1, 0, 14)
    fit = isotonic_regression(pooled[order]).x
    return {
        "ece": sum(abs((right - p)[edges == b].sum()) for b in range(15)) / len(p),
        "ace": sum(abs(part.sum()) for part in bins) / len(p),
        "reliability": float(((pooled - p) ** 2).mean()),
        "mcb": float(((p - right) ** 2).mean() - ((right[order] - fit) ** 2).mean()),
    }


def test_the_null_of_clustered_errors_turns_the_residuals_of_whole_groups() -> None:
    p, c, label = clustered(2, groups=30)
    found = joint_bootstrap({"it": (p, c)}, groups=label, resamples=60, seed=3)
    rng = np.random.default_rng(3)
    rng.integers(30, size=(60, 30))
    signs = np.where(rng.random((60, 30)) < 0.5, -1.0, 1.0)
    expected = [plain_null(p, c, label, one) for one in signs]
    for name in ("ece", "ace", "reliability", "mcb"):
        np.testing.assert_allclose(
            found.if_calibrated("it", name), [one[name] for one in expected], atol=1e-12, err_msg=name
        )


def test_a_clustered_paired_test_is_that_of_the_joint_bootstrap() -> None:
    p, c, label = clustered(3, groups=30)
    other, also = p**0.5, c
    test = paired_test(p, c, other, also, metric="brier", groups=label, resamples=200, seed=4)
    both = joint_bootstrap({0: (p, c), 1: (other, also)}, groups=label, resamples=200, seed=4)
    common = both.paired(0, 1, "brier")
    for name in ("difference", "low", "high", "standard_error", "p_value", "resamples"):
        assert getattr(test, name) == pytest.approx(getattr(common, name), abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_signs_that_turn_nothing_are_no_evidence_however_they_are_rounded(seed: int) -> None:
    """The reliability of confidences that are all different is the same under any signs."""
    rng = np.random.default_rng(seed)
    p = rng.random(24)
    c, label = rng.random(24) < p, rng.integers(0, 8, 24)
    assert bootstrap(p, c, groups=label, resamples=60)["reliability"].low == 0
    both = joint_bootstrap({"it": (p, c)}, groups=label, resamples=60)
    assert both.interval("it", "reliability").low == 0


def test_groups_of_one_question_each_and_no_groups_give_the_same_bits_as_before_groups() -> None:
    rng = np.random.default_rng(5)
    p = np.round(rng.random(300), 2)
    c = rng.random(300) < p**1.5
    alone = [f"q{i}" for i in range(300)]
    digests, older = set(), [name for name in METRICS if name != "gain"]
    for groups in (None, alone):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UndefinedWarning)
            drawn = joint_bootstrap({"it": (p, c)}, groups=groups, resamples=100, seed=6)
            single = bootstrap(p, c, groups=groups, resamples=100, seed=6)
        content = [drawn.resampled["it"][name].round(12).tolist() for name in older if name != "smooth_ece"]
        content += [[round(single[name].low, 12), round(single[name].high, 12)] for name in older]
        digests.add(blake2b(repr(content).encode(), digest_size=8).hexdigest())
    assert digests == {"9f3858222f03f8da"}


def coverage(metric: str, truth: float, data: int, **how: object) -> tuple[float, float]:
    """Shares of data sets whose plain and clustered intervals hold the truth."""
    hits = np.zeros(2)
    for seed in range(data):
        p, c, label = clustered(seed, groups=60, **how)  # type: ignore[arg-type]
        for place, groups in enumerate((None, label)):
            found = bootstrap(p, c, metrics=[metric], groups=groups, resamples=200, seed=seed)[metric]
            hits[place] += found.low <= truth <= found.high
    plain, with_groups = hits / data
    return float(plain), float(with_groups)


def test_with_strong_clusters_plain_intervals_are_too_narrow_and_clustered_ones_are_not() -> None:
    plain, with_groups = coverage("accuracy", 0.5, 200)
    assert plain < 0.8
    assert 0.89 <= with_groups <= 0.99


@pytest.mark.parametrize("flattery", [0.0, 0.3])
def test_clustered_intervals_hold_the_true_calibration_error(flattery: float) -> None:
    chance = np.round(np.random.default_rng(0).random(200_000), 2)
    truth = float(np.abs(np.clip(chance + flattery, 0, 1) - chance).mean())
    plain, with_groups = coverage("ace", truth, 100, flattery=flattery)
    assert plain < 0.85
    assert with_groups >= 0.88


def test_groups_that_cannot_be_are_named() -> None:
    p, c = [0.2, 0.8, 0.5], [0, 1, 1]
    with pytest.raises(InputError, match="there are 2 groups for 3 questions"):
        bootstrap(p, c, groups=["a", "b"])
    with pytest.raises(InputError, match="groups holds something that is no label"):
        joint_bootstrap({"it": (p, c)}, groups=[["a"], ["b"], ["a"]])
    with pytest.raises(InputError, match="groups holds NaN"):
        paired_test(p, c, p, c, groups=[1.0, float("nan"), 1.0])


def test_questions_of_one_group_have_no_interval() -> None:
    with pytest.warns(UndefinedWarning, match="brier is undefined for these data or their resamples"):
        found = bootstrap([0.2, 0.8, 0.5], [0, 1, 1], metrics=["brier"], groups=["a", "a", "a"])
    assert np.isnan([found["brier"].low, found["brier"].high, found["brier"].standard_error]).all()


def test_smooth_ece_of_residuals_with_signs_is_that_of_a_table_with_such_outcomes() -> None:
    p, c, label = clustered(9, groups=25)
    found = joint_bootstrap({0: (p, c)}, metrics=["smooth_ece"], groups=label, resamples=50, seed=1)
    rng = np.random.default_rng(1)
    rng.integers(25, size=(50, 25))
    signs = np.where(rng.random((50, 25)) < 0.5, -1.0, 1.0)[:, label]
    expected = [smooth_ece_of(frequency_table(p, p + one * (c - p)))[0] for one in signs]
    np.testing.assert_allclose(found.if_calibrated(0, "smooth_ece"), expected, atol=2**-13)
