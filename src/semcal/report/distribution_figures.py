"""Confidences of a run: their reliability, how they are distributed, and how the measures correlate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from semcal import metrics
from semcal.experiment.analyses.columns import read_columns
from semcal.experiment.finished import FinishedRun
from semcal.experiment.grid_settings import CALIBRATED
from semcal.report.figures import BAND, INK, METHOD_LINES, QUIET, method_colour, panels, shortened, style

Floats = NDArray[np.float64]
Row = Mapping[str, Any]

# ---- Figures 0 and 11: reliability, before and after, and by measure -------------------------------------

#: Resamples for a consistency band: its edges are read off a plot, not off a table.
RESAMPLES = 500
#: What was read already: (file, when it was written) → confidence and correctness by measure.
_READ: dict[tuple[Path, int | None], tuple[Mapping[str, Floats], Mapping[str, Floats]]] = {}


def _scores(run: FinishedRun, model: str, dataset: str, method: str, measure: str) -> tuple[Floats, Floats]:
    """Confidence and correctness of the questions of all runs for which the measure is defined."""
    if method == CALIBRATED:
        return _calibrated(run, model, dataset, "probability")
    chosen = run.selections[model, dataset]["methods"].get(method, {}).get(measure)
    if chosen is None:  # a server cannot serve it
        return np.zeros(0), np.zeros(0)
    candidate = chosen["candidate"]
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


def _calibrated(run: FinishedRun, model: str, dataset: str, key: str) -> tuple[Floats, Floats]:
    """The share of Base's answers or their calibrated probability, and correctness, of all runs."""
    rows = [row for number in range(run.runs) for row in run.calibrated_rows(model, dataset, number)]
    confidence, correct = (
        np.array([row[name] for row in rows], dtype=np.float64) for name in (key, "correct")
    )
    return confidence, correct


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


@style()
def threshold_figure(run: FinishedRun, model: str, dataset: str) -> Figure:
    """Reliability of Base and of Calibrated; below, what a threshold on the latter answers and gets wrong."""
    (share, correct), (p, _) = (_calibrated(run, model, dataset, key) for key in ("share", "probability"))
    figure, grid = panels(2, 1, panel=(2.55, 1.7), gaps=(0.0, 0.78), margins=(0.5, 0.1, 0.1, 0.42))
    above, below = grid[:, 0]
    above.plot([0, 1], [0, 1], color=QUIET, linewidth=0.7)
    for method, confidence in (("Base", share), (CALIBRATED, p)):
        _draw_curve(above, method, confidence, correct, band=method == CALIBRATED)
    above.set_xlabel("confidence")
    above.set_ylabel("share right")
    _draw_threshold(below, p, correct, run.calibration(model, dataset)["threshold"])
    for axes in (above, below):
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.02)
        axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    return figure


def _draw_threshold(axes: Axes, p: Floats, correct: Floats, found: Mapping[str, Any] | None) -> None:
    """The share that is answered from each threshold on, and the share of these answers that is wrong."""
    thresholds = np.unique(p)
    answered = p[:, None] >= thresholds
    share = answered.mean(axis=0)
    wrong = (answered * (1 - correct[:, None])).sum(axis=0) / answered.sum(axis=0)
    at = np.concatenate([[0.0], thresholds])  # up to the smallest of them everything is answered
    axes.step(at, share[[0, *range(len(share))]], where="pre", color=QUIET, linewidth=1.2, label="answered")
    axes.step(
        at,
        wrong[[0, *range(len(wrong))]],
        where="pre",
        color=method_colour(CALIBRATED),
        linewidth=1.5,
        label="wrong of these",
    )
    if found is not None:
        limit, threshold = found["risk_limit"], found["threshold"]
        axes.axhline(limit, color=INK, linewidth=0.7, linestyle=(0, (1, 1.5)), label=f"limit {limit:.3g}")
        if threshold is not None:
            axes.axvline(threshold, color=INK, linewidth=1.0, label=f"threshold {threshold:.2f}")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=7, handlelength=1.6)
    axes.set_xlabel("answer from this probability on")
    axes.set_ylabel("share")


def _draw_curve(axes: Axes, method: str, confidence: Floats, correct: Floats, *, band: bool) -> None:
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
    methods = [*run.methods, *[CALIBRATED] * (run.calibrated and measure == "E-SC")]
    rows, columns = len(run.datasets), len(methods)
    width, height = 0.55 + 1.45 * columns, 0.3 + 2.0 * rows
    figure = Figure(figsize=(width, height))
    for i, dataset in enumerate(run.datasets):
        for j, method in enumerate(methods):
            left, bottom = 0.5 + 1.45 * j, height - 0.22 - 2.0 * i - 1.55
            upper = figure.add_axes((left / width, bottom / height, 1.3 / width, 1.3 / height))
            place = (left / width, (bottom - 0.32) / height, 1.3 / width, 0.24 / height)
            lower = figure.add_axes(place, sharex=upper)
            confidence, correct = _scores(run, model, dataset, method, measure)
            if len(confidence):
                _draw_reliability(upper, lower, confidence, correct.astype(bool), method_colour(method))
            upper.set_title(shortened(f"{dataset}, {method}" if not j else method, 26), size=8, pad=3)
            for axes in (upper, lower):
                axes.tick_params(labelsize=7)
                if j:
                    axes.set_ylabel("")
                    axes.tick_params(labelleft=False)
            if i < rows - 1:
                lower.set_xlabel("")
    return figure


def _draw_reliability(
    axes: Axes, below: Axes, confidence: NDArray[np.float64], correct: NDArray[np.bool_], colour: str
) -> None:
    """Draw the share of right answers against confidence, and below it how often each confidence occurs."""
    diagram = metrics.reliability_diagram(confidence, correct, resamples=RESAMPLES)
    axes.fill_between(
        diagram.confidence, diagram.band_low, diagram.band_high, color=BAND, alpha=0.7, linewidth=0
    )
    axes.plot([0, 1], [0, 1], color=QUIET, linewidth=0.7)
    axes.plot(diagram.confidence, diagram.recalibrated, color=colour, linewidth=1.5)
    axes.scatter(
        diagram.bin_confidence,
        diagram.bin_accuracy,
        s=8 + 90 * diagram.bin_count / len(confidence),
        color=colour,
        alpha=0.55,
        linewidths=0,
    )
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.tick_params(labelbottom=False)
    axes.set_ylabel("share right")
    shares, edges = np.histogram(confidence, bins=20, range=(0, 1))
    below.stairs(shares / len(confidence), edges, color=colour, alpha=0.55, fill=True)
    below.set_ylim(0, 1)
    below.set_yticks([0, 1], ["0 %", "100 %"])
    below.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    below.set_xlabel("confidence")


# ---- Figures 9 and 10: distributions and correlations ----------------------------------------------------


@style()
def distribution_figure(entries: Sequence[Row], measures: Sequence[str]) -> Figure:
    """Histograms of the top meaning's confidence: a row a method, a column a measure; line: the median."""
    methods = list(dict.fromkeys(entry["method"] for entry in entries))
    figure, grid = panels(
        len(methods),
        len(measures),
        panel=(0.74, 0.52),
        gaps=(0.12, 0.16),
        margins=(0.82, 0.1, 0.24, 0.44),
        sharex=True,
        sharey=True,
    )
    grid[0, 0].set_xlim(0, 1)
    drawn = [
        (grid[methods.index(entry["method"]), measures.index(entry["measure"])], entry)
        for entry in entries
        if entry["measure"] in measures
    ]
    for axes, entry in drawn:
        axes.stairs(entry["share"], entry["edges"], color=method_colour(entry["method"]), fill=True)
        axes.tick_params(labelsize=7)
    for axes, entry in drawn:  # a line asks for the limits, which each histogram of the figure moves
        axes.axvline(entry["median"], color=INK, linewidth=0.8, linestyle=(0, (3, 1.5)))
    for axes, method in zip(grid[:, 0], methods):
        axes.set_ylabel(method)
    for axes, measure in zip(grid[0], measures):
        axes.set_title(measure, pad=4)
    first = grid[0, 0]
    first.set_ylim(0, None)
    first.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    first.yaxis.set_major_locator(MaxNLocator(3))
    first.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    figure.supxlabel("confidence in the top meaning", size=8.5, y=0.01)
    figure.supylabel("questions", size=8.5, x=0.008)
    return figure


@style()
def correlation_figure(entries: Sequence[Row]) -> Figure:
    """Pearson correlations between the measures' confidences: an annotated matrix for each method.

    The darker, the higher, from the lowest of the figure to 1.
    """
    matrices = [np.array(entry["matrix"], dtype=np.float64) for entry in entries]
    lowest = min((float(np.nanmin(matrix)) for matrix in matrices if np.isfinite(matrix).any()), default=0.0)
    figure, ((*grid,),) = panels(
        1, len(entries), panel=(2, 2), gaps=(0.1, 0), margins=(0.46, 0.06, 0.24, 0.46)
    )
    for axes, entry, matrix in zip(grid, entries, matrices):
        _matrix(axes, matrix, entry["measures"], lowest)
        mean = "" if entry["mean"] is None else f", mean {entry['mean']:.2f}"
        axes.set_title(f"{entry['method']}{mean}")
    for axes in grid[1:]:
        axes.tick_params(labelleft=False)
    return figure


def _matrix(axes: Axes, matrix: Any, names: Sequence[str], lowest: float) -> None:
    """Cells with their numbers; their colours do not follow the page's, as their letters are set on them."""
    axes.pcolormesh(
        np.nan_to_num(matrix, nan=lowest),
        cmap=matplotlib.colormaps["Blues"],
        vmin=lowest - 0.1,
        vmax=1.1,
        edgecolor="white",
        linewidth=0.6,
    )
    for (i, j), value in np.ndenumerate(matrix):
        ink = "#fefefe" if value > (1 + lowest) / 2 else "#111111"
        axes.text(j + 0.5, i + 0.5, _number(value), ha="center", va="center", size=6.2, color=ink)
    places = np.arange(len(names)) + 0.5
    axes.set_xticks(places, names, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(places, names)
    axes.tick_params(length=0, labelsize=7)
    axes.invert_yaxis()
    axes.set_aspect("equal")
    axes.spines[:].set_visible(False)


def _number(value: float) -> str:
    """Two decimals without the leading zero.

    >>> _number(0.931), _number(-0.2), _number(1.0), _number(float("nan"))
    ('.93', '−.20', '1.00', '–')
    """
    return "–" if np.isnan(value) else f"{value:.2f}".replace("0.", ".").replace("-", "−")
