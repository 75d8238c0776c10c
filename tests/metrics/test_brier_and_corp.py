"""The Brier score, gain and decompositions against scikit-learn, model-diagnostics and plain sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import brier_score_loss

from semcal.metrics import brier, brier_decomposition, corp, gain
from semcal.metrics.frequencies import isotonic_fit
from tests.metrics.examples import EXAMPLES, TENTHS


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


def test_gain_is_twice_the_mean_earnings_over_thresholds_of_one_who_answers_or_abstains():
    p, c = np.array([0.05, 0.35, 0.35, 0.8, 1.0, 0.0]), np.array([0, 1, 0, 1, 0, 1])
    prices = (np.arange(200_000) + 0.5) / 200_000
    earned = [np.where(one >= prices, right - prices, 0.0).mean() for one, right in zip(p, c)]
    assert gain(p, c) == pytest.approx(2 * np.mean(earned), abs=1e-5)


@given(EXAMPLES)
def test_reliability_minus_resolution_plus_uncertainty_is_the_brier_score(examples):
    parts = brier_decomposition(*examples)
    assert parts.reliability - parts.resolution + parts.uncertainty == pytest.approx(parts.brier, abs=1e-12)
    assert parts.reliability + parts.refinement == pytest.approx(parts.brier, abs=1e-12)


@given(EXAMPLES)
def test_the_parts_are_sums_over_unique_confidences(examples):
    p, c = examples
    parts = brier_decomposition(p, c)
    groups = [(value, c[p == value]) for value in set(p.tolist())]
    reliability = sum(len(g) * (value - g.mean()) ** 2 for value, g in groups) / len(p)
    resolution = sum(len(g) * (g.mean() - c.mean()) ** 2 for _, g in groups) / len(p)
    assert parts.reliability == pytest.approx(reliability, abs=1e-12)
    assert parts.resolution == pytest.approx(resolution, abs=1e-12)
    assert parts.uncertainty == pytest.approx(c.mean() * (1 - c.mean()), abs=1e-12)


@given(EXAMPLES)
def test_mcb_minus_dsc_plus_unc_is_the_brier_score(examples):
    parts = corp(*examples)
    assert parts.mcb - parts.dsc + parts.unc == pytest.approx(parts.brier, abs=1e-12)
    assert parts.mcb >= 0
    assert parts.dsc >= 0


@given(EXAMPLES)
def test_corp_recalibrates_by_scikit_learns_isotonic_regression(examples):
    p, c = np.round(examples[0], 6), examples[1]  # scikit-learn pools values closer than that
    recalibrated = IsotonicRegression().fit_transform(p, c)
    mean = np.full(len(c), c.mean())
    parts = corp(p, c)
    left = np.mean((recalibrated - c) ** 2)
    assert parts.mcb == pytest.approx(np.mean((p - c) ** 2) - left, abs=1e-9)
    assert parts.dsc == pytest.approx(np.mean((mean - c) ** 2) - left, abs=1e-9)
