"""The metrics of many data sets at once are those of each alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semcal.metrics import calibration_errors, overview, summaries, summary
from semcal.metrics.frequencies import frequency_tables, probability_table

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
@given(data_sets(), st.integers(1, 20), st.integers(1, 4))
def test_each_set_has_its_own_summary_whatever_its_company(sets, bins, together):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overview, "ROWS", together)
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


def test_noise_floors_are_asked_for_and_those_of_each_summary():
    rng = np.random.default_rng(1)
    p = rng.random((3, 40)).round(1)
    c = rng.random(p.shape) < p
    expected, found = one_by_one(p, c, draws=50, seed=2), summaries(p, c, draws=50, seed=2)
    assert found.keys() == expected.keys()
    for name in ("ece_p", "ace_floor", "smooth_ece_floor_95"):
        assert found[name].tolist() == expected[name]
    assert not any("floor" in name for name in summaries(p, c))


@given(data_sets())
def test_a_row_of_a_table_counts_what_its_set_alone_counts(sets):
    p, c = sets
    many = frequency_tables(p, c.astype(np.float64))
    for row, (values, outcomes) in enumerate(zip(p, c)):
        one = probability_table(values, outcomes)
        distinct = len(one.value)
        np.testing.assert_array_equal(many.value[row, :distinct], one.value)
        np.testing.assert_array_equal(many.count[row, :distinct], one.count[0])
        np.testing.assert_array_equal(many.right[row, :distinct], one.right[0])
        assert not many.count[row, distinct:].any()
        assert (many.value[row, distinct:] == one.value[-1]).all()


@settings(deadline=None)
@given(data_sets(), st.sampled_from([0.5, 1.0]))
def test_the_width_of_smooth_ece_is_that_of_fourteen_bisections(sets, end_weight):
    seen = []

    def bisected(smoothing):
        low, high = np.zeros(len(smoothing.mass)), np.ones(len(smoothing.mass))
        for _ in range(14):
            middle = (low + high) / 2
            wider = smoothing.error(middle) > middle
            low, high = np.where(wider, middle, low), np.where(wider, high, middle)
        seen.append((low, high))
        return found(smoothing)

    found = calibration_errors.bracket_width
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            calibration_errors, "bracket_width", lambda given: kept.append(bisected(given)) or kept[-1]
        )
        kept: list = []
        calibration_errors.smooth_ece_of(frequency_tables(sets[0], sets[1].astype(np.float64)), end_weight)
    np.testing.assert_array_equal(kept, seen)
