"""The figures of a run (analyses.md, figures 3 to 5, and reliability diagrams), drawn from stored rows.

Every figure is made of panels; a `draw_*` function draws one panel on given axes, so that the page can
show the panels apart and a printed figure can show them side by side. One colour is one method and one
marker is one measure, everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from semcal import metrics
from semcal.records import atomic_write
from semcal.report.run import Run, read_run

__all__ = [
    "INK",
    "MEASURE_MARKERS",
    "METHOD_COLOURS",
    "method_colour",
    "reliability_figure",
    "save_figures",
    "scatter_figure",
    "selective_figure",
]

#: A name of matplotlib's, or an offset with lengths of dashes and gaps.
LineStyle = str | tuple[float, tuple[float, ...]]

#: Okabe and Ito's colours, which people with any kind of colour vision can tell apart.
METHOD_COLOURS = {
    "Base": "#d55e00",
    "SE": "#cc79a7",
    "TS": "#0072b2",
    "ATS": "#009e73",
    "Platt": "#e69f00",
    "TS-grid": "#56b4e9",
}

#: Lines differ as well, for print without colour.
METHOD_LINES: dict[str, LineStyle] = {
    "Base": (0, (4, 1.5)),
    "SE": (0, (1, 1.2)),
    "TS": "-",
    "ATS": (0, (6, 1, 1, 1)),
    "Platt": (0, (3, 1, 1, 1, 1, 1)),
}

MEASURE_MARKERS = {
    "E-SC": "o",
    "L-SC": "s",
    "ML-SC": "D",
    "B-SC": "^",
    "T-SC": "v",
    "IC-SC": "P",
    "G-SC": "X",
}

INK, QUIET, RULE, BAND, OTHER = "#1f2328", "#656b73", "#d6dade", "#c3c9d0", "#767676"

#: The rejection rates at which selective accuracy is drawn: beyond 90 % too few questions are left.
REJECTION = np.linspace(0, 0.9, 46)

RELIABILITY_NOTE = (
    "How often answers of a given confidence are right. Calibrated answers lie on the diagonal; the grey "
    "band is where chance alone would put the line of a calibrated confidence nine times in ten. "
    "Line: isotonic (CORP) estimate. Points: bins of equal width, larger where they hold more questions. "
    "Below: how often each confidence occurs."
)

#: Resamples for a consistency band: its edges are read off a plot, not off a table.
RESAMPLES = 500

#: How the figures are set; held while a figure is made and while it is written.
STYLE: dict[Any, Any] = {
    "axes.edgecolor": QUIET,
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.labelsize": 8.5,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9,
    "axes.titley": 1.0,  # above no ticks, so that no place has to be found for it
    "figure.facecolor": "none",
    "font.size": 8,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "semcal",
    "text.color": INK,
    "xtick.color": QUIET,
    "xtick.labelcolor": INK,
    "xtick.major.width": 0.6,
    "ytick.color": QUIET,
    "ytick.labelcolor": INK,
    "ytick.major.width": 0.6,
}


@contextmanager
def style() -> Iterator[None]:
    """Set figures as `STYLE` says while the block (or the decorated function) runs."""
    with matplotlib.rc_context(STYLE):
        yield


def method_colour(method: str) -> str:
    """The colour of a method, grey for one without a colour of its own."""
    return METHOD_COLOURS.get(method, OTHER)


def measure_marker(measure: str) -> str:
    """The marker of a measure, a star for one without a marker of its own."""
    return MEASURE_MARKERS.get(measure, "*")


def draw_scatter(axes: Axes, entry: Mapping[str, Any], measures: Sequence[str]) -> None:
    """Draw ACE (x) against AUROC (y) of one set of results.json, a point a method and measure."""
    for method, figures in entry["methods"].items():
        for measure in measures:
            point = figures["measures"].get(measure) or {}
            if point.get("ace") is None or point.get("auroc") is None:
                continue
            errors = point.get("se") or {}
            axes.errorbar(
                point["ace"],
                point["auroc"],
                xerr=errors.get("ace"),
                yerr=errors.get("auroc"),
                fmt=measure_marker(measure),
                color=method_colour(method),
                markersize=5.5,
                markeredgewidth=0,
                elinewidth=0.7,
                alpha=0.85,
            )
    axes.set_xlabel("ACE (lower is better)")
    axes.set_ylabel("AUROC (higher is better)")
    axes.grid(color=RULE, linewidth=0.5)
    axes.set_axisbelow(True)


def scatter_limits(results: Mapping[str, Any]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Limits of ACE and of AUROC that hold every point of every set with its error bar."""
    spans: dict[str, list[float]] = {"ace": [], "auroc": []}
    for entry in results["sets"]:
        for method in entry["methods"].values():
            for point in filter(None, method["measures"].values()):
                for key, span in spans.items():
                    if point.get(key) is not None:
                        error = (point.get("se") or {}).get(key) or 0.0
                        span += [point[key] - error, point[key] + error]
    return padded(spans["ace"]), padded(spans["auroc"])


def padded(values: Sequence[float]) -> tuple[float, float]:
    """Limits of an axis that leave some room around the values."""
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or 0.05
    return low - margin, high + margin


def selective_curve(
    confidence: NDArray[np.float64], correct: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Rejection rates, the accuracy of the rest, and its binomial standard error."""
    n = len(confidence)
    curve = metrics.selective_accuracy(confidence, correct, rejection=REJECTION[n * (1 - REJECTION) >= 1])
    error = np.sqrt(curve.accuracy * (1 - curve.accuracy) / (curve.coverage * n))
    return curve.points, curve.accuracy, error


def draw_selective(axes: Axes, run: Run, set_name: str, measure: str) -> None:
    """Draw accuracy among answered questions against the rate of rejection, a line a method."""
    for method in run.methods:
        confidence, correct = run.outcomes(set_name, method, measure)
        if not len(confidence):
            continue
        rates, accuracy, error = selective_curve(confidence, correct)
        colour = method_colour(method)
        axes.fill_between(rates, accuracy - error, accuracy + error, color=colour, alpha=0.13, linewidth=0)
        axes.plot(
            rates,
            accuracy,
            color=colour,
            linestyle=METHOD_LINES.get(method, "-"),
            linewidth=1.5,
            label=method,
        )
    axes.set_xlim(0, REJECTION[-1])
    axes.set_ylim(*selective_limits(run, set_name))
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xlabel("rejected, least confident first")
    axes.set_ylabel("accuracy of the rest")
    axes.grid(axis="y", color=RULE, linewidth=0.5)
    axes.set_axisbelow(True)


def selective_limits(run: Run, set_name: str) -> tuple[float, float]:
    """Limits of accuracy that hold the curves of all methods and measures of a set."""
    values: list[float] = []
    for method in run.methods:
        for measure in run.measures:
            confidence, correct = run.outcomes(set_name, method, measure)
            if len(confidence):
                _, accuracy, error = selective_curve(confidence, correct)
                values += [float((accuracy - error).min()), float((accuracy + error).max())]
    low, high = padded(values)
    return max(0.0, low), min(1.02, high)


def draw_reliability(
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


# ---- Single panels, for the page -----------------------------------------------------------------------


def _panel(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height))
    return figure, figure.add_axes((0.52 / width, 0.42 / height, 1 - 0.6 / width, 1 - 0.52 / height))


@style()
def scatter_panel(results: Mapping[str, Any], set_name: str) -> Figure:
    """ACE against AUROC of one set, on scales that all sets of the run share."""
    figure, axes = _panel(3.4, 2.7)
    entry = next(entry for entry in results["sets"] if entry["name"] == set_name)
    draw_scatter(axes, entry, results["measures"])
    _share_scatter_scales(axes, results)
    return figure


def _share_scatter_scales(axes: Axes, results: Mapping[str, Any]) -> None:
    across, up = scatter_limits(results)
    axes.set_xlim(*across)
    axes.set_ylim(*up)


@style()
def selective_panel(run: Run, set_name: str, measure: str) -> Figure:
    """Selective accuracy of one set under one measure, a line a method."""
    figure, axes = _panel(3.4, 2.5)
    draw_selective(axes, run, set_name, measure)
    return figure


@style()
def reliability_panel(run: Run, set_name: str, method: str, measure: str) -> Figure | None:
    """Reliability of one set, method and measure; None where the measure is undefined."""
    confidence, correct = run.outcomes(set_name, method, measure)
    if not len(confidence):
        return None
    figure = Figure(figsize=(3.2, 3.3))
    axes = figure.add_axes((0.16, 0.325, 0.81, 0.655))
    below = figure.add_axes((0.16, 0.13, 0.81, 0.155), sharex=axes)
    draw_reliability(axes, below, confidence, correct, method_colour(method))
    return figure


# ---- Whole figures, for print ----------------------------------------------------------------------------


@style()
def scatter_figure(run: Run) -> Figure:
    """ACE (x) against AUROC (y): a panel a set, colour = method, marker = measure, ± standard errors.

    Closer to the top left is better. The panels share their scales.

    Parameters
    ----------
    run : Run
        As `read_run` returns it.

    Returns
    -------
    Figure
        For print; `save_figures` writes it as PDF and PNG.
    """
    n = len(run.sets)
    figure = Figure(figsize=(2.6 * n + 0.4, 3.1), layout="constrained")
    grid = np.atleast_1d(figure.subplots(1, n, sharey=True))
    for axes, entry in zip(grid, run.results["sets"]):
        draw_scatter(axes, entry, run.measures)
        axes.set_title(entry["name"])
        axes.label_outer()
    _share_scatter_scales(grid[0], run.results)
    for axes in grid:
        axes.set_xlim(*scatter_limits(run.results)[0])
    keys = [
        Line2D([], [], linestyle="none", marker="o", color=method_colour(name), label=name)
        for name in run.methods
    ]
    keys += [
        Line2D([], [], linestyle="none", marker=measure_marker(name), color=QUIET, label=name)
        for name in run.measures
    ]
    figure.legend(
        handles=keys, loc="outside lower center", ncols=len(keys), handletextpad=0.1, columnspacing=1
    )
    return figure


@style()
def selective_figure(run: Run, *, measures: Sequence[str] = ("E-SC", "L-SC", "B-SC", "G-SC")) -> Figure:
    """Selective accuracy against rejection rate: a row a set, a column a measure, a line a method.

    Parameters
    ----------
    run : Run
        As `read_run` returns it.
    measures : sequence of str
        The paper's choice by default.

    Returns
    -------
    Figure
        For print; the shaded width is ± one binomial standard error of the answered questions.
    """
    rows, columns = len(run.sets), len(measures)
    figure = Figure(figsize=(2.0 * columns + 0.4, 1.8 * rows + 0.4), layout="constrained")
    grid = np.asarray(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey="row"))
    for row, set_name in zip(grid, run.sets):
        for axes, measure in zip(row, measures):
            draw_selective(axes, run, set_name, measure)
            axes.set_title(f"{set_name}, {measure}")
            axes.label_outer()
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


@style()
def reliability_figure(run: Run, *, measure: str = "E-SC") -> Figure:
    """Reliability diagrams with consistency bands: a row a set, a column a method.

    Parameters
    ----------
    run : Run
        As `read_run` returns it.
    measure : str
        One of the run's measures.

    Returns
    -------
    Figure
        For print; above each histogram of confidences the CORP curve, bins and the band in which the
        curve of a calibrated confidence would lie nine times in ten.
    """
    rows, columns = len(run.sets), len(run.methods)
    figure = Figure(figsize=(2.3 * columns, 2.6 * rows), layout="constrained")
    for cell, set_name in zip(figure.subfigures(rows, 1, squeeze=False)[:, 0], run.sets):
        grid = cell.subplots(2, columns, squeeze=False, sharex=True, height_ratios=(4, 1))
        for upper, lower, method in zip(*grid, run.methods):
            confidence, correct = run.outcomes(set_name, method, measure)
            upper.set_title(f"{set_name}, {method}")
            if len(confidence):
                draw_reliability(upper, lower, confidence, correct, method_colour(method))
    return figure


def save_figures(run_dir: Path) -> list[Path]:
    """Write the figures of a run as PDF and PNG under `run_dir/figures`.

    Parameters
    ----------
    run_dir : Path
        A folder with results.json and the rows that it names.

    Returns
    -------
    list of Path
        The files: the scatter, selective accuracy, and for each measure the reliability diagrams.

    Raises
    ------
    InputError, StoreError
        As `semcal.report.build`.
    """
    run = read_run(Path(run_dir))
    folder = run.folder / "figures"
    drawn = {
        "scatter": scatter_figure(run),
        "selective-accuracy": selective_figure(run, measures=run.measures),
    }
    drawn |= {f"reliability-{measure}": reliability_figure(run, measure=measure) for measure in run.measures}
    paths = []
    with style():
        for name, figure in drawn.items():
            for suffix, metadata in (("pdf", {"CreationDate": None}), ("png", {})):
                path = folder / f"{name}.{suffix}"
                with atomic_write(path) as handle:
                    figure.savefig(handle, format=suffix, dpi=200, metadata=metadata, facecolor="white")
                paths.append(path)
    return paths
