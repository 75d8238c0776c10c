"""Reliability diagrams: before and after on one panel, and every method and data set by measure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_up_grid import Grid, write_grid

from semcal.experiment.finished import FinishedRun, read_finished
from semcal.experiment.report.report_figures import before_after_figure, reliability_figure
from semcal.metrics import reliability_diagram

TWO = Grid(models=("a",), methods=("Base", "SE", "TS"), runs=2, n=20, counts=(), null="G-SC")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Two data sets; G-SC is null for the first question."""
    return read_finished(write_grid(tmp_path_factory.mktemp("run") / "run", TWO))


def scores(run: FinishedRun, method: str, measure: str) -> tuple[list[float], list[bool]]:
    found = [
        row
        for number in range(2)
        for row in run.rows(
            "a", "made-up-trivia", run.choice("a", "made-up-trivia", method, measure)["candidate"], number
        )
    ]
    known = [row for row in found if row["confidence"][measure] is not None]
    return [row["confidence"][measure] for row in known], [row["correct"][measure] for row in known]


def test_before_and_after_are_the_curves_of_the_rows_of_all_runs(run: FinishedRun) -> None:
    figure = before_after_figure(run, (), "a", "made-up-trivia")
    assert figure is not None
    _, *curves = figure.axes[0].lines
    for method, line in zip(("Base", "TS"), curves, strict=True):
        diagram = reliability_diagram(*scores(run, method, "E-SC"), resamples=1)
        np.testing.assert_allclose(line.get_xdata(), diagram.confidence)
        np.testing.assert_allclose(line.get_ydata(), diagram.recalibrated)


def test_there_is_a_panel_with_a_histogram_for_every_data_set_and_method(run: FinishedRun) -> None:
    figure = reliability_figure(run, (), "a", "E-SC")
    assert len(figure.axes) == 2 * 2 * 3
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles[:3] == ["made-up-trivia, Base", "SE", "TS"]


def test_questions_whose_measure_is_null_are_left_out(run: FinishedRun) -> None:
    assert len(scores(run, "Base", "G-SC")[0]) == 2 * 19
    assert len(reliability_figure(run, (), "a", "G-SC").axes) == 2 * 2 * 3


def test_rows_that_are_written_again_are_read_again(tmp_path: Path) -> None:
    grid = Grid(models=("a",), datasets={"d": False}, methods=("Base",), runs=1, n=8, counts=())
    for seed in (0, 1):
        run = read_finished(write_grid(tmp_path / "run", Grid(**{**vars(grid), "seed": seed})))
        figure = before_after_figure(run, (), "a", "d")
        assert figure is not None
        confidence = [row["confidence"]["E-SC"] for row in run.rows("a", "d", "Base")]
        np.testing.assert_allclose(figure.axes[0].lines[1].get_xdata(), np.unique(confidence))
