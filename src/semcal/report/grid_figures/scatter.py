"""Figures 3 and 7: ACE against AUROC, a panel a data set and model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from semcal.report.figures import QUIET, measure_marker, method_colour, padded, style
from semcal.report.grid_figures.lettering import shortened
from semcal.report.grid_figures.panels import panels, ruled

__all__ = ["key_handles", "scatter_figure"]

Point = Mapping[str, Any]


@style()
def scatter_figure(
    points: Sequence[Point],
    models: Sequence[str],
    datasets: Sequence[str],
    *,
    error: Literal["se", "sd"] = "se",
) -> Figure:
    """ACE (x) against AUROC (y): a row a data set, a column a model, colour = method, marker = measure.

    Closer to the top left is better. The panels of a data set share their scales.

    Parameters
    ----------
    points : sequence of mappings
        {model, dataset, method, measure, ace, auroc}; a metric is {mean, se} or {mean, sd}.
    models, datasets : sequence of str
        In order.
    error : {"se", "sd"}
        Bars: standard error over runs, or standard deviation (figure 7).
    """
    rows, columns = len(datasets), len(models)
    lines = {1: 4, 2: 2}.get(columns, 1)
    figure, grid = panels(
        rows,
        columns,
        panel=(1.95, 1.35),
        gaps=(0.14, 0.42),
        margins=(0.58, 0.1, 0.24, 0.48 + 0.19 * lines),
        sharex="row",
        sharey="row",
    )
    for row, dataset in zip(grid, datasets):
        own = [point for point in points if point["dataset"] == dataset]
        for axes, model in zip(row, models):
            _draw(axes, [point for point in own if point["model"] == model], error)
            axes.set_title(shortened(f"{dataset}, {model}", 36), size=8, pad=4, parse_math=False)
        _scale(row[0], own, error)
        row[0].xaxis.set_major_locator(MaxNLocator(4))
        row[0].yaxis.set_major_locator(MaxNLocator(4))
        row[0].set_ylabel("AUROC (better →)")
    for axes in grid[-1]:
        axes.set_xlabel("ACE (← better)")
    handles = key_handles(_names(points, "method"), _names(points, "measure"), lines)
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


def key_handles(methods: Sequence[str], measures: Sequence[str], lines: int = 1) -> list[Line2D]:
    """What a legend of so many lines tells: the colours of methods, then the markers of measures."""
    blank = Line2D([], [], linestyle="none", label=" ")
    dots = [_key("o", method_colour(name), name) for name in methods]
    shapes = [_key(measure_marker(name), QUIET, name) for name in measures]
    return [handle for keys in (dots, shapes) for handle in [*keys, *[blank] * (-len(keys) % lines)]]


def _key(marker: str, colour: str, label: str) -> Line2D:
    return Line2D([], [], linestyle="none", marker=marker, color=colour, label=label)


def _names(points: Sequence[Point], key: str) -> list[str]:
    return list(dict.fromkeys(point[key] for point in points))


def _ends(metric: Mapping[str, Any] | None, error: str) -> tuple[float, float] | None:
    """A mean and half the length of its error bar (0 for one run); None where it is undefined."""
    if metric is None or metric["mean"] is None:
        return None
    return metric["mean"], metric[error] or 0.0


def _draw(axes: Axes, points: Sequence[Point], error: str) -> None:
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


def _scale(axes: Axes, points: Sequence[Point], error: str) -> None:
    """Limits that hold every point of a data set with its error bars."""
    for key, limit in (("ace", axes.set_xlim), ("auroc", axes.set_ylim)):
        known = [ends for point in points if (ends := _ends(point[key], error))]
        limit(*padded([mean + sign * half for mean, half in known for sign in (-1, 1)]))
