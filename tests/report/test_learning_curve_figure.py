"""The learning curve is drawn as it was computed: means, spread over subsets, intervals over questions."""

from __future__ import annotations

import io

import numpy as np
import pytest

from semcal.errors import UsageError
from semcal.pipeline.learning_curve import CurvePoint, LearningCurve
from semcal.report import learning_curve_figure

SIZES = (0, 25, 2000)


@pytest.fixture
def curve() -> LearningCurve:
    points = [
        CurvePoint(measure, metric, n, 5, 0.2 - i / 50, 0.15 - i / 50, 0.27 - i / 50, 0.1, 0.3)
        for measure in ("E-SC", "L-SC")
        for metric in ("ace", "brier")
        for i, n in enumerate(SIZES)
    ]
    return LearningCurve(tuple(points), dict.fromkeys(SIZES, (1.5,)), 0)


def test_there_is_a_panel_for_each_metric_and_a_line_for_each_measure(curve) -> None:
    figure = learning_curve_figure(curve, measures=("E-SC", "L-SC"))
    assert [axes.get_ylabel().split()[0] for axes in figure.axes] == ["ACE", "Brier"]
    for axes in figure.axes:
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["none", "25", "2000"]
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["E-SC", "L-SC"]
        lines = [line for line in axes.lines if len(line.get_xdata()) == 3 and line.get_linestyle() == "-"]
        assert len(lines) == 2
        np.testing.assert_allclose(lines[0].get_ydata(), [0.2, 0.18, 0.16])


def test_the_band_spans_the_subsets_and_the_bars_the_interval(curve) -> None:
    axes = learning_curve_figure(curve, measures=("E-SC",)).axes[0]
    band, bars = axes.collections
    assert band.get_datalim(axes.transData).intervaly == pytest.approx([0.11, 0.27])
    assert [segment[:, 1].tolist() for segment in bars.get_segments()] == [pytest.approx([0.1, 0.3])] * 3


def test_it_can_be_written_and_a_missing_measure_is_named(curve) -> None:
    learning_curve_figure(curve, measures=("E-SC",)).savefig(buffer := io.BytesIO(), format="svg")
    assert b"labelled questions" in buffer.getvalue()
    with pytest.raises(UsageError, match="no curve of G-SC"):
        learning_curve_figure(curve)
