"""Figures 3 and 7: ACE against AUROC, a panel a data set and model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from semcal.report.figures import QUIET, RULE, measure_marker, method_colour, padded, style

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
    figure = Figure(figsize=(min(6.75, 0.6 + 2.05 * columns), 0.55 + 1.75 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex="row", sharey="row")
    for row, dataset in zip(grid, datasets):
        own = [point for point in points if point["dataset"] == dataset]
        for axes, model in zip(row, models):
            _draw(axes, [point for point in own if point["model"] == model], error)
            axes.set_title(f"{dataset}, {model}", size=8)
        _scale(row[0], own, error)
        row[0].set_ylabel("AUROC (better →)")
    for axes in grid[-1]:
        axes.set_xlabel("ACE (← better)")
    lines = {1: 4, 2: 2}.get(columns, 1)
    handles = key_handles(_names(points, "method"), _names(points, "measure"), lines)
    ncols = len(handles) // lines
    figure.legend(
        handles=handles, loc="outside lower center", ncols=ncols, handletextpad=0, columnspacing=0.8
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
    for point in points:
        ace, auroc = _ends(point["ace"], error), _ends(point["auroc"], error)
        if ace is None or auroc is None:
            continue
        axes.errorbar(
            ace[0],
            auroc[0],
            xerr=ace[1],
            yerr=auroc[1],
            fmt=measure_marker(point["measure"]),
            color=method_colour(point["method"]),
            markersize=4.5,
            markeredgecolor="white",
            markeredgewidth=0.3,
            elinewidth=0.6,
            alpha=0.9,
        )
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.grid(color=RULE, linewidth=0.5)
    axes.set_axisbelow(True)


def _scale(axes: Axes, points: Sequence[Point], error: str) -> None:
    """Limits that hold every point of a data set with its error bars."""
    for key, limit in (("ace", axes.set_xlim), ("auroc", axes.set_ylim)):
        known = [ends for point in points if (ends := _ends(point[key], error))]
        limit(*padded([mean + sign * half for mean, half in known for sign in (-1, 1)]))
