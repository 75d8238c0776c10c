"""Scores of methods and measures: ACE against AUROC, selective accuracy, numbers of sampled answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from semcal.report.figures import (
    METHOD_LINES,
    QUIET,
    legend_above,
    measure_marker,
    method_colour,
    padded,
    panels,
    ruled,
    shortened,
    style,
)
from semcal.report.tables import metric_title

Row = Mapping[str, Any]

# ---- Figures 3 and 7: ACE against AUROC, a panel a data set and model ------------------------------------


@style()
def scatter_figure(
    points: Sequence[Row],
    models: Sequence[str],
    datasets: Sequence[str],
    *,
    error: Literal["se", "sd"] = "se",
) -> Figure:
    """ACE (x) against AUROC (y): a row a data set, a column a model, colour = method, marker = measure.

    Of one model, up to four data sets stand side by side. Closer to the top left is better. The panels of a
    data set share their scales. Bars: standard error over runs, or with `error` "sd" standard deviation
    (figure 7).
    """
    side_by_side = len(models) == 1 < len(datasets) <= 4
    rows, columns = (1, len(datasets)) if side_by_side else (len(datasets), len(models))
    lines = {1: 4, 2: 2}.get(columns, 1)
    figure, grid = panels(
        rows,
        columns,
        panel=(1.8 if side_by_side else 1.95, 1.35),
        gaps=(0.42 if side_by_side else 0.14, 0.42),
        margins=(0.58, 0.1, 0.24, 0.48 + 0.19 * lines),
        sharex=False if side_by_side else "row",
        sharey=False if side_by_side else "row",
    )
    for row, dataset in zip(grid.T if side_by_side else grid, datasets):
        own = [point for point in points if point["dataset"] == dataset]
        for axes, model in zip(row, models):
            _draw_points(axes, [point for point in own if point["model"] == model], error)
            axes.set_title(shortened(f"{dataset}, {model}", 36), size=8, pad=4, parse_math=False)
        _scale(row[0], own, error)
        row[0].xaxis.set_major_locator(MaxNLocator(4))
        row[0].yaxis.set_major_locator(MaxNLocator(4))
    for axes in grid[:, 0]:
        axes.set_ylabel("AUROC (better →)")
    for axes in grid[-1]:
        axes.set_xlabel("ACE (← better)")
    handles = _key_handles(_names(points, "method"), _names(points, "measure"), lines)
    ncols = len(handles) // lines
    figure.legend(
        handles=handles,
        loc="lower center",
        ncols=ncols,
        handletextpad=0,
        columnspacing=0.8,
        borderaxespad=0.1,
    )
    return figure


def _key_handles(methods: Sequence[str], measures: Sequence[str], lines: int = 1) -> list[Line2D]:
    """The entries of a legend of so many lines: colours of methods, then markers of measures."""

    def key(marker: str, colour: str, label: str) -> Line2D:
        return Line2D([], [], linestyle="none", marker=marker, color=colour, label=label)

    blank = Line2D([], [], linestyle="none", label=" ")
    dots = [key("o", method_colour(name), name) for name in methods]
    shapes = [key(measure_marker(name), QUIET, name) for name in measures]
    return [handle for keys in (dots, shapes) for handle in [*keys, *[blank] * (-len(keys) % lines)]]


def _names(points: Sequence[Row], key: str) -> list[str]:
    return list(dict.fromkeys(point[key] for point in points))


def _ends(metric: Mapping[str, Any] | None, error: str) -> tuple[float, float] | None:
    """A mean and half the length of its error bar (0 for one run); None where it is undefined."""
    if metric is None or metric["mean"] is None:
        return None
    return metric["mean"], metric[error] or 0.0


def _draw_points(axes: Axes, points: Sequence[Row], error: str) -> None:
    """Bars of all points, and over them the points themselves, measure by measure."""
    known = [
        (point, ace, auroc)
        for point in points
        if (ace := _ends(point["ace"], error)) and (auroc := _ends(point["auroc"], error))
    ]
    if not known:
        axes.text(0.5, 0.5, "undefined", transform=axes.transAxes, ha="center", va="center", color=QUIET)
    colours = [method_colour(point["method"]) for point, _, _ in known]
    across = [[(x - half, y), (x + half, y)] for _, (x, half), (y, _) in known]
    upwards = [[(x, y - half), (x, y + half)] for _, (x, _), (y, half) in known]
    axes.add_collection(LineCollection(across, colors=colours, linewidths=0.6, alpha=0.9))
    axes.add_collection(LineCollection(upwards, colors=colours, linewidths=0.6, alpha=0.9))
    for measure in _names(points, "measure"):
        own = [one for one in known if one[0]["measure"] == measure]
        axes.scatter(
            [ace[0] for _, ace, _ in own],
            [auroc[0] for _, _, auroc in own],
            c=[method_colour(point["method"]) for point, _, _ in own],
            marker=measure_marker(measure),
            s=20,
            edgecolors="white",
            linewidths=0.3,
            alpha=0.9,
            zorder=3,
            label=measure,
        )
    ruled(axes, "both")


def _scale(axes: Axes, points: Sequence[Row], error: str) -> None:
    """Limits that hold every point of a data set with its error bars."""
    for key, limit in (("ace", axes.set_xlim), ("auroc", axes.set_ylim)):
        known = [ends for point in points if (ends := _ends(point[key], error))]
        limit(*padded([mean + sign * half for mean, half in known for sign in (-1, 1)]))


# ---- Figures 4 and 5: accuracy of the rest against the rate of rejection ---------------------------------


@style()
def selective_figure(entries: Sequence[Row], datasets: Sequence[str], measures: Sequence[str]) -> Figure:
    """Selective accuracy of one model: a row a data set, a column a measure, a line a method.

    Bars are standard errors over runs, where there are several.
    """
    rows, columns = len(datasets), len(measures)
    width = 1.36 if columns < 5 else 0.72
    figure, grid = panels(
        rows,
        columns,
        panel=(width, 1.15),
        gaps=(0.16, 0.2),
        margins=(0.8, 0.12, 0.45, 0.46),
        sharex=True,
        sharey="row",
    )
    for row, dataset in zip(grid, datasets):
        for axes, measure in zip(row, measures):
            for entry in entries:
                if (entry["dataset"], entry["measure"]) == (dataset, measure):
                    _draw_curve(axes, entry)
        named = f"{shortened(dataset, 22)}\naccuracy of the rest"
        row[0].set_ylabel(named, size=7.5, parse_math=False)
        row[0].yaxis.set_major_locator(MaxNLocator(4))
    for axes in grid.flat:
        ruled(axes)
    if entries:
        grid[0, 0].set_xlim(0, entries[0]["rejection"][-1])
    grid[0, 0].set_xticks([0, 0.3, 0.6, 0.9], ["0", "30", "60", "90"])
    _label_measures(figure, grid, measures, "% rejected, least confident first")
    return figure


def _label_measures(figure: Figure, grid: Any, measures: Sequence[str], x_label: str) -> None:
    """What panels of one column a measure share: titles, the label of x, and a legend."""
    for axes, measure in zip(grid[0], measures):
        axes.set_title(measure, pad=4)
    figure.supxlabel(x_label, size=8.5, y=0.01)
    figure.align_ylabels(grid[:, 0])
    legend_above(figure, grid[0, 0])


def _draw_curve(axes: Axes, entry: Row) -> None:
    rates = np.array(entry["rejection"])
    axes.errorbar(
        rates,
        np.array(entry["accuracy"], dtype=np.float64),
        yerr=np.array([error or np.nan for error in entry["se"]], dtype=np.float64),
        errorevery=2,
        color=method_colour(entry["method"]),
        linestyle=METHOD_LINES.get(entry["method"], "-"),
        linewidth=1.2,
        elinewidth=0.6,
        label=entry["method"],
    )


# ---- Figure 6: number of sampled answers -----------------------------------------------------------------


@style()
def count_figure(points: Sequence[Row], measures: Sequence[str]) -> Figure:
    """ACE (above) and AUROC (below) of one model on one data set: a column a measure, a line a method.

    Bars are standard errors over runs, where there are several.
    """
    figure, grid = panels(
        2,
        len(measures),
        panel=(0.76, 0.95),
        gaps=(0.12, 0.16),
        margins=(0.58, 0.1, 0.45, 0.46),
        sharex=True,
        sharey="row",
    )
    for row, metric in zip(grid, ("ace", "auroc")):
        for axes, measure in zip(row, measures):
            _draw_counts(axes, [point for point in points if point["measure"] == measure], metric)
        row[0].set_ylabel(metric_title(metric))
        row[0].yaxis.set_major_locator(MaxNLocator(4))
    for axes in grid.flat:
        ruled(axes)
    grid[0, 0].set_xticks(sorted({point["draws"] for point in points}))
    _label_measures(figure, grid, measures, "sampled answers per question")
    return figure


def _draw_counts(axes: Axes, points: Sequence[Row], metric: str) -> None:
    for method in dict.fromkeys(point["method"] for point in points):
        own = sorted((p for p in points if p["method"] == method), key=lambda p: int(p["draws"]))
        mean = np.array([point[metric]["mean"] for point in own], dtype=np.float64)
        error = np.array([point[metric]["se"] or np.nan for point in own], dtype=np.float64)
        known = not np.isnan(error).all()  # bars that are not there take as long as others
        axes.errorbar(
            [point["draws"] for point in own],
            mean,
            yerr=error if known else None,
            color=method_colour(method),
            linestyle=METHOD_LINES.get(method, "-"),
            marker=measure_marker(own[0]["measure"]),
            markersize=3,
            linewidth=1,
            elinewidth=0.6,
            label=method,
        )
