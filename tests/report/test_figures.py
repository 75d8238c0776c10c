"""Figures are drawn from the stored rows, one colour a method and one marker a measure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_up_run import write_run
from matplotlib.colors import to_hex

from semcal.metrics import selective_accuracy
from semcal.report import read_run, reliability_figure, save_figures, scatter_figure, selective_figure
from semcal.report.figures import METHOD_COLOURS


def test_the_scatter_has_a_point_for_every_method_and_measure(small_run: Path) -> None:
    run = read_run(small_run)
    for axes, entry in zip(scatter_figure(run).axes, run.results["sets"]):
        wanted = {
            (METHOD_COLOURS[name], method["measures"][m]["ace"], method["measures"][m]["auroc"])
            for name, method in entry["methods"].items()
            for m in run.measures
        }
        drawn = [
            line for line in axes.lines if len(line.get_xdata()) == 1 and line.get_marker() in ("o", "s")
        ]
        points = {(to_hex(line.get_color()), line.get_xdata()[0], line.get_ydata()[0]) for line in drawn}
        assert points == wanted


def test_selective_accuracy_is_that_of_the_metrics(small_run: Path) -> None:
    run = read_run(small_run)
    axes = selective_figure(run, measures=("L-SC",)).axes[0]
    confidence, correct = run.outcomes("made-up-trivia", "TS", "L-SC")
    line = next(line for line in axes.lines if line.get_label() == "TS")
    wanted = selective_accuracy(confidence, correct, rejection=line.get_xdata()).accuracy
    np.testing.assert_allclose(line.get_ydata(), wanted)
    assert line.get_xdata()[[0, -1]] == pytest.approx([0, 0.9])


def test_reliability_has_a_panel_with_a_histogram_for_every_set_and_method(small_run: Path) -> None:
    figure = reliability_figure(read_run(small_run), measure="E-SC")
    assert len(figure.axes) == 2 * 2 * 3
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles[0] == "made-up-trivia, Base"
    assert len(titles) == 6


def test_outcomes_leave_out_questions_whose_measure_is_null(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, sets=("made-up-rare",), measures=("E-SC", "G-SC"), null="G-SC", n=5))
    assert len(run.outcomes("made-up-rare", "Base", "E-SC")[0]) == 5
    assert len(run.outcomes("made-up-rare", "Base", "G-SC")[0]) == 0


def test_figures_are_saved_for_print_without_a_date(tmp_path: Path) -> None:
    own_run = write_run(tmp_path, sets=("made-up-rare",), measures=("E-SC",), n=12)
    paths = save_figures(own_run)
    assert [path.name for path in paths[:4]] == [
        "scatter.pdf",
        "scatter.png",
        "selective-accuracy.pdf",
        "selective-accuracy.png",
    ]
    assert [path.name for path in paths[4:]] == ["reliability-E-SC.pdf", "reliability-E-SC.png"]
    for path, head in zip(paths, [b"%PDF", b"\x89PNG"] * 3):
        content = path.read_bytes()
        assert content.startswith(head)
        assert b"Date" not in content
