"""The summary: its keys, stored values on which libraries agree, the paper's examples, refused input."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import semcal.metrics as metrics
from semcal.errors import UndefinedWarning
from semcal.metrics import (
    ace,
    auroc,
    ece,
    selective_accuracy,
    smooth_ece,
    summaries,
    summary,
)

GOLDEN = ("a0_kten_overconf", "a1_kten_float32", "a2_mostly_one", "a3_half_continuous", "a4_kten_with_zero")
GOLDEN += ("e0_constant", "e1_n_lt_m", "e2_paper_ex1", "e3_paper_ex2")


@pytest.fixture(scope="session")
def golden(semcal_data):
    return json.loads((semcal_data / "golden_metrics.json").read_text())["cases"]


@pytest.mark.parametrize("case", GOLDEN)
def test_stored_values_are_met(golden, case):
    p, c = golden[case]["confidence"], golden[case]["correct"]
    expected = {name: entry["value"] for name, entry in golden[case]["values"].items()}
    got = summary(p, c)
    assert got["n"] == golden[case]["n"]
    for ours, theirs in (
        ("ece", "ece_15"),
        ("ace", "ace_15_tie_averaged"),
        ("brier", "brier"),
        ("auroc", "auroc"),
        ("aurac", "aurac_tie_averaged"),
        ("prr", "prr_malinin_gales_tie_averaged"),
    ):
        assert got[ours] == pytest.approx(expected[theirs], abs=1e-12), ours
    parts = [got[name] for name in ("mcb", "dsc", "unc")]
    assert parts == pytest.approx(expected["corp_mcb_dsc_unc"], abs=1e-12)
    parts = [got[name] for name in ("reliability", "resolution", "uncertainty")]
    assert parts == pytest.approx(expected["murphy_rel_res_unc_unique_values"], abs=1e-12)
    assert ece(p, c, bins=10) == pytest.approx(expected["ece_10_snapped"], abs=1e-12)
    curve = selective_accuracy(p, c, rejection=np.arange(10) / 10)
    stored = expected["selective_accuracy_reject_0_to_90pct_tie_averaged"]
    np.testing.assert_allclose(curve.accuracy, stored, atol=1e-12)
    # The stored value comes from a grid of 1/1000 and ten bisections of the width.
    assert got["smooth_ece"] == pytest.approx(expected["smece"], abs=1e-3)


def test_the_keys_are_those_of_the_command_in_order():
    expected = "n accuracy ece ace brier gain reliability resolution uncertainty mcb dsc unc auroc aurac prr"
    keys = [*expected.split(), "smooth_ece", "mean_confidence"]
    assert list(summary([0.2, 0.7], [0, 1], draws=0)) == keys
    for name in ("ece", "ace", "smooth_ece"):
        at = keys.index(name) + 1
        keys[at:at] = [f"{name}_floor", f"{name}_floor_95", f"{name}_p"]
    assert list(summary([0.2, 0.7], [0, 1])) == keys


def test_every_number_is_that_of_its_own_function():
    rng = np.random.default_rng(0)
    p = rng.choice(np.arange(11) / 10, 200)
    c = rng.uniform(size=200) < p
    numbers = summary(p, c, bins=7)
    assert numbers["n"] == 200
    assert numbers["accuracy"] == c.mean()
    assert numbers["mean_confidence"] == pytest.approx(p.mean())
    assert numbers["ece"] == ece(p, c, bins=7)
    assert numbers["ace"] == ace(p, c, bins=7)
    assert numbers["smooth_ece"] == smooth_ece(p, c)
    for name in ("ece", "ace", "smooth_ece"):
        floor = metrics.noise_floor(p, c, metric=name, bins=7)
        found = [numbers[f"{name}_{what}"] for what in ("floor", "floor_95", "p")]
        assert found == [floor.mean, floor.quantile_95, floor.p_value]
    for name in ("brier", "gain", "auroc", "aurac", "prr"):
        assert numbers[name] == getattr(metrics, name)(p, c)


def test_a_score_ranks_in_place_of_the_confidence():
    p, c, score = [0.9, 0.8, 0.2], [1, 0, 0], [-2.0, -0.1, -0.5]
    numbers = summary(p, c, score=score)
    assert numbers["auroc"] == auroc(score, c) == 0
    assert numbers["ece"] == ece(p, c)


@pytest.mark.parametrize("correct", [[1, 1], [0, 0]])
def test_one_class_leaves_auroc_and_prr_undefined_and_the_rest_defined(correct):
    with pytest.warns(UndefinedWarning, match="AUROC"):
        numbers = summary([0.3, 0.9], correct)
    assert {name for name, value in numbers.items() if math.isnan(value)} == {"auroc", "prr"}


def test_one_question_has_a_summary():
    with pytest.warns(UndefinedWarning):
        numbers = summary([1.0], [True])
    assert (numbers["n"], numbers["ece"], numbers["brier"], numbers["aurac"]) == (1, 0, 0, 1)


def test_rounding_errors_outside_the_unit_interval_are_clipped():
    assert summary([1 + 1e-6, -1e-6], [1, 0])["brier"] == 0


def test_input_is_not_changed():
    p, c = np.array([1 + 1e-7, 0.2]), np.array([True, False])
    summary(p, c)
    assert p[0] == 1 + 1e-7
    assert c.dtype == bool


# ---- The metrics of many data sets at once are those of each alone -----------------------------------------

#: Few values make ties, eighths make bin edges, 0 and 1 make ends.
CONFIDENCE = st.one_of(st.integers(0, 8).map(lambda k: k / 8), st.floats(0, 1, allow_subnormal=False))


@st.composite
def data_sets(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Up to six sets of one size, some with many distinct confidences and some with few."""
    rows, n = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    p = draw(st.lists(st.lists(CONFIDENCE, min_size=n, max_size=n), min_size=rows, max_size=rows))
    c = draw(st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=rows, max_size=rows))
    return np.array(p), np.array(c)


def one_by_one(p: np.ndarray, c: np.ndarray, **options) -> dict[str, list[float]]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of one class: NaN here as there
        each = [summary(*pair, **{"draws": 0} | options) for pair in zip(p, c)]
    return {name: [numbers[name] for numbers in each] for name in each[0] if name != "n"}


@settings(deadline=None)
@given(data_sets(), st.integers(1, 20))
def test_each_set_has_its_own_summary_whatever_its_company(sets, bins):
    found = summaries(*sets, bins=bins)
    expected = one_by_one(*sets, bins=bins)
    assert list(found) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-12, err_msg=name)


def test_runs_of_two_thousand_questions_agree_with_their_summaries():
    rng = np.random.default_rng(0)
    p = rng.beta(2, 1, (5, 2000))
    p[1] = np.round(p[1], 1)
    p[2, :500] = 1.0
    c = rng.random(p.shape) < p**2
    for name, values in one_by_one(p, c).items():
        np.testing.assert_allclose(summaries(p, c)[name], values, rtol=0, atol=1e-12, err_msg=name)
