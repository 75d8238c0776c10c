"""The data of a reliability diagram, and plots without a screen: what is drawn are the numbers."""

from __future__ import annotations

import matplotlib.pyplot
import numpy as np
import pytest
from matplotlib.figure import Figure
from sklearn.isotonic import IsotonicRegression

from semcal.metrics import ece, reliability_diagram, selective_accuracy
from tests.metrics.examples import drawn

matplotlib.use("Agg")


def test_the_bins_are_those_of_ece():
    p, c = drawn(0)
    diagram = reliability_diagram(p, c, bins=8, resamples=5)
    full = diagram.bin_count > 0
    gaps = np.abs(diagram.bin_accuracy - diagram.bin_confidence)[full]
    assert diagram.bin_count.sum() == 400
    assert (diagram.bin_count[full] * gaps).sum() / 400 == pytest.approx(ece(p, c, bins=8))
    edges = np.arange(9) / 8
    assert (edges[:-1][full] <= diagram.bin_confidence[full]).all()
    assert (diagram.bin_confidence[full] <= edges[1:][full]).all()


def test_empty_bins_are_null():
    diagram = reliability_diagram([0.1, 0.9], [0, 1], bins=5, resamples=5)
    np.testing.assert_array_equal(np.isnan(diagram.bin_accuracy), [False, True, True, True, False])
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
    inside = []
    for seed in range(40):
        p, c = drawn(seed, tenths=True)
        d = reliability_diagram(p, c, resamples=200, seed=seed)
        inside += ((d.band_low <= d.recalibrated) & (d.recalibrated <= d.band_high)).tolist()
    assert 0.85 <= np.mean(inside) <= 0.97


def test_certain_confidences_have_bands_without_width():
    diagram = reliability_diagram([0, 0, 1, 1], [0, 1, 1, 1], resamples=20)
    assert diagram.band_low.tolist() == diagram.band_high.tolist() == [0, 1]


# ---- Plots

P = np.array([0.1, 0.3, 0.3, 0.8, 0.9, 0.95])
C = np.array([0, 0, 1, 1, 0, 1])


def line(ax, label: str) -> np.ndarray:
    return next(one for one in ax.lines if one.get_label() == label).get_xydata()


def test_a_reliability_diagram_draws_bins_and_fit_on_the_axes_given() -> None:
    diagram = reliability_diagram(P, C, bins=5, resamples=20)
    ax = Figure().subplots()
    assert diagram.plot(ax) is ax
    assert line(ax, "isotonic fit").T.tolist() == [diagram.confidence.tolist(), diagram.recalibrated.tolist()]
    dots = np.ma.getdata(ax.collections[-1].get_offsets())
    there = diagram.bin_count > 0
    assert dots[there].T.tolist() == [
        diagram.bin_confidence[there].tolist(),
        diagram.bin_accuracy[there].tolist(),
    ]
    assert ax.get_xlabel() == "confidence"
    ax.figure.savefig("/dev/null", format="png")


def test_selective_accuracy_by_threshold_has_a_threshold_axis_and_the_share_answered() -> None:
    curve = selective_accuracy(P, C, threshold=[0.9, 0.0, 0.5])
    ax = curve.plot()
    assert ax.get_xlabel() == "threshold"
    assert line(ax, "answered").tolist() == [[0.0, 1.0], [0.5, 0.5], [0.9, pytest.approx(1 / 3)]]
    assert line(ax, "correct among the answered")[:, 1].tolist() == pytest.approx([0.5, 2 / 3, 0.5])
    assert ax.get_xlim() == (0, 1)
    matplotlib.pyplot.close(ax.figure)


def test_by_rejection_it_has_one_line_and_scores_beyond_0_and_1_have_their_own_axis() -> None:
    ax = selective_accuracy(P, C, rejection=[0.0, 0.5]).plot(Figure().subplots())
    assert (ax.get_xlabel(), len(ax.lines)) == ("share rejected", 1)
    ax = selective_accuracy(-5 * P, C, threshold=[-4.0, -5.0]).plot(Figure().subplots())
    assert ax.get_xlim() == (-5, -4)
