"""Plots without a screen: what is drawn are the numbers, on the axes that were given."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from semcal.metrics import reliability_diagram, selective_accuracy

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

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
    plt.close(ax.figure)


def test_by_rejection_it_has_one_line_and_scores_beyond_0_and_1_have_their_own_axis() -> None:
    ax = selective_accuracy(P, C, rejection=[0.0, 0.5]).plot(Figure().subplots())
    assert (ax.get_xlabel(), len(ax.lines)) == ("share rejected", 1)
    ax = selective_accuracy(-5 * P, C, threshold=[-4.0, -5.0]).plot(Figure().subplots())
    assert ax.get_xlim() == (-5, -4)


def test_matplotlib_is_loaded_when_something_is_drawn() -> None:
    code = """
import sys
from semcal.metrics import reliability_diagram
diagram = reliability_diagram([.5, 1], [0, 1], resamples=5)
assert 'matplotlib' not in sys.modules
import matplotlib
matplotlib.use('Agg')
diagram.plot()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
