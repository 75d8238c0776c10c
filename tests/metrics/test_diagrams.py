"""The data of a reliability diagram."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

from semcal.metrics import ece, reliability_diagram
from tests.metrics.examples import drawn


def test_the_bins_are_those_of_ece():
    p, c = drawn(0)
    diagram = reliability_diagram(p, c, bins=8, resamples=5)
    full = diagram.bin_count > 0
    gaps = np.abs(diagram.bin_accuracy - diagram.bin_confidence)[full]
    assert diagram.bin_count.sum() == 400
    assert (diagram.bin_count[full] * gaps).sum() / 400 == pytest.approx(ece(p, c, bins=8))
    np.testing.assert_allclose(diagram.bin_edges, np.arange(9) / 8)
    assert (diagram.bin_edges[:-1][full] <= diagram.bin_confidence[full]).all()
    assert (diagram.bin_confidence[full] <= diagram.bin_edges[1:][full]).all()


def test_empty_bins_are_null():
    diagram = reliability_diagram([0.1, 0.9], [0, 1], bins=5, resamples=5)
    np.testing.assert_array_equal(np.isnan(diagram.bin_accuracy), [False, True, True, True, False])
    np.testing.assert_array_equal(np.isnan(diagram.bin_low), [False, True, True, True, False])
    np.testing.assert_array_equal(diagram.bin_count, [1, 0, 0, 0, 1])


@pytest.mark.parametrize("tenths", [False, True])
def test_the_curve_is_the_isotonic_regression_at_each_distinct_confidence(tenths):
    p, c = drawn(1, tenths=tenths)
    diagram = reliability_diagram(p, c, resamples=5)
    np.testing.assert_array_equal(diagram.confidence, np.unique(p))
    expected = IsotonicRegression().fit(p, c).predict(diagram.confidence)
    np.testing.assert_allclose(diagram.recalibrated, expected, atol=1e-9)
    np.testing.assert_array_equal(diagram.count, np.unique(p, return_counts=True)[1])


def test_calibrated_confidences_lie_in_the_band_about_as_often_as_it_says():
    inside_curve, inside_bins = [], []
    for seed in range(40):
        p, c = drawn(seed, tenths=True)
        d = reliability_diagram(p, c, bins=10, resamples=200, level=0.9, seed=seed)
        inside_curve += ((d.band_low <= d.recalibrated) & (d.recalibrated <= d.band_high)).tolist()
        inside_bins += ((d.bin_low <= d.bin_accuracy) & (d.bin_accuracy <= d.bin_high)).tolist()
    assert 0.85 <= np.mean(inside_curve) <= 0.97
    assert 0.85 <= np.mean(inside_bins) <= 0.97


def test_the_bands_hold_the_diagonal_and_a_higher_level_is_wider():
    p, c = drawn(3, tenths=True)
    narrow, wide = (reliability_diagram(p, c, level=level) for level in (0.5, 0.99))
    assert (wide.band_low <= wide.confidence + 1e-12).all()
    assert (wide.band_high >= wide.confidence - 1e-12).all()
    assert (wide.band_low <= narrow.band_low).all()
    assert (wide.band_high >= narrow.band_high).all()


def test_certain_confidences_have_bands_without_width():
    diagram = reliability_diagram([0, 0, 1, 1], [0, 1, 1, 1], resamples=20)
    assert diagram.band_low.tolist() == diagram.band_high.tolist() == [0, 1]
