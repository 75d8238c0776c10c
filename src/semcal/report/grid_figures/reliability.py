"""Reliability: how often answers of a given confidence are right, before and after, and by measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from semcal import metrics
from semcal.experiment.analyses.columns import read_columns
from semcal.experiment.finished import FinishedRun
from semcal.report.figures import BAND, METHOD_LINES, QUIET, draw_reliability, method_colour, style
from semcal.report.grid_figures.lettering import shortened
from semcal.report.grid_figures.panels import panels

__all__ = ["before_after_figure", "reliability_figure"]

Floats = NDArray[np.float64]
#: Resamples for a consistency band: its edges are read off a plot, not off a table.
RESAMPLES = 500
#: What was read already: (file, when it was written) → confidence and correctness by measure.
_READ: dict[tuple[Path, int | None], tuple[Mapping[str, Floats], Mapping[str, Floats]]] = {}


def _scores(run: FinishedRun, model: str, dataset: str, method: str, measure: str) -> tuple[Floats, Floats]:
    """Confidence and correctness of the questions of all runs for which the measure is defined."""
    candidate = run.choice(model, dataset, method, measure)["candidate"]
    found = [_by_measure(run, model, dataset, candidate, number) for number in range(run.runs)]
    confidence, correct = (np.concatenate([one[i][measure] for one in found]) for i in (0, 1))
    known = ~(np.isnan(confidence) | np.isnan(correct))
    return confidence[known], correct[known]


def _by_measure(
    run: FinishedRun, model: str, dataset: str, candidate: str, number: int
) -> tuple[Mapping[str, Floats], Mapping[str, Floats]]:
    """Confidence and correctness by measure of a candidate in a run; a file is read once."""
    path = run.samples_path(model, dataset, candidate, number)
    key = (path, path.stat().st_mtime_ns if path.exists() else None)
    if key not in _READ:
        found = read_columns(run, model, dataset, candidate, number)
        _READ[key] = found.confidence, found.correct
    return _READ[key]


@style()
def before_after_figure(
    run: FinishedRun, model: str, dataset: str, methods: Sequence[str], measure: str
) -> Figure | None:
    """The CORP curves and bins of two methods on one data set; None where the measure is undefined."""
    found = {method: _scores(run, model, dataset, method, measure) for method in methods}
    known = {method: scores for method, scores in found.items() if len(scores[0])}
    if not known:
        return None
    figure, grid = panels(1, 1, panel=(2.55, 2.1), margins=(0.5, 0.1, 0.1, 0.42))
    axes = grid[0, 0]
    axes.plot([0, 1], [0, 1], color=QUIET, linewidth=0.7)
    for method, (confidence, correct) in known.items():
        _draw_curve(axes, method, confidence, correct, band=method == list(known)[-1])
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.set_xlabel(f"confidence ({measure})")
    axes.set_ylabel("share right")
    return figure


def _draw_curve(
    axes: Axes,
    method: str,
    confidence: Floats,
    correct: Floats,
    *,
    band: bool,
) -> None:
    diagram = metrics.reliability_diagram(confidence, correct, resamples=RESAMPLES if band else 1)
    colour = method_colour(method)
    if band:
        axes.fill_between(
            diagram.confidence, diagram.band_low, diagram.band_high, color=BAND, alpha=0.6, linewidth=0
        )
    line = METHOD_LINES.get(method, "-")
    axes.plot(diagram.confidence, diagram.recalibrated, color=colour, linestyle=line, linewidth=1.5)
    sizes = 8 + 90 * diagram.bin_count / len(confidence)
    axes.scatter(
        diagram.bin_confidence, diagram.bin_accuracy, s=sizes, color=colour, alpha=0.55, linewidths=0
    )


@style()
def reliability_figure(run: FinishedRun, model: str, measure: str) -> Figure:
    """Reliability diagrams of one model: a row a data set, a column a method, below each its histogram."""
    rows, columns = len(run.datasets), len(run.methods)
    width, height = 0.55 + 1.45 * columns, 0.3 + 2.0 * rows
    figure = Figure(figsize=(width, height))
    for i, dataset in enumerate(run.datasets):
        for j, method in enumerate(run.methods):
            left, bottom = 0.5 + 1.45 * j, height - 0.22 - 2.0 * i - 1.55
            upper = figure.add_axes((left / width, bottom / height, 1.3 / width, 1.3 / height))
            place = (left / width, (bottom - 0.32) / height, 1.3 / width, 0.24 / height)
            lower = figure.add_axes(place, sharex=upper)
            confidence, correct = _scores(run, model, dataset, method, measure)
            if len(confidence):
                draw_reliability(upper, lower, confidence, correct.astype(bool), method_colour(method))
            upper.set_title(shortened(f"{dataset}, {method}" if not j else method, 26), size=8, pad=3)
            for axes in (upper, lower):
                axes.tick_params(labelsize=7)
                if j:
                    axes.set_ylabel("")
                    axes.tick_params(labelleft=False)
            if i < rows - 1:
                lower.set_xlabel("")
    return figure
