"""Figure 6: ACE and AUROC against the number of sampled answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from semcal.report.figures import METHOD_LINES, RULE, measure_marker, method_colour, style

__all__ = ["count_figure"]

LABELS = {"ace": "ACE", "auroc": "AUROC"}


@style()
def count_figure(points: Sequence[Mapping[str, Any]], measures: Sequence[str]) -> Figure:
    """ACE (above) and AUROC (below) of one model on one data set: a column a measure, a line a method.

    Parameters
    ----------
    points : sequence of mappings
        {method, measure, draws, ace, auroc}; a metric is {mean, se}.
    measures : sequence of str
        In order.

    Returns
    -------
    Figure
        For print; bars are standard errors over runs, where there are several.
    """
    figure = Figure(figsize=(6.75, 2.9), layout="constrained")
    grid = figure.subplots(2, len(measures), squeeze=False, sharex=True, sharey="row")
    for row, metric in zip(grid, LABELS):
        for axes, measure in zip(row, measures):
            _draw(axes, [point for point in points if point["measure"] == measure], metric)
        row[0].set_ylabel(LABELS[metric])
    for axes, measure in zip(grid[0], measures):
        axes.set_title(measure)
    figure.supxlabel("sampled answers per question", size=8.5)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels) or 1, handlelength=2.6)
    return figure


def _draw(axes: Axes, points: Sequence[Mapping[str, Any]], metric: str) -> None:
    for method in dict.fromkeys(point["method"] for point in points):
        own = sorted((p for p in points if p["method"] == method), key=lambda p: int(p["draws"]))
        mean = np.array([point[metric]["mean"] for point in own], dtype=np.float64)
        error = np.array([point[metric]["se"] or np.nan for point in own], dtype=np.float64)
        axes.errorbar(
            [point["draws"] for point in own],
            mean,
            yerr=error,
            color=method_colour(method),
            linestyle=METHOD_LINES.get(method, "-"),
            marker=measure_marker(own[0]["measure"]),
            markersize=3,
            linewidth=1,
            elinewidth=0.6,
            label=method,
        )
    axes.set_xticks(sorted({point["draws"] for point in points}))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.tick_params(labelsize=7)
    axes.grid(axis="y", color=RULE, linewidth=0.5)
    axes.set_axisbelow(True)
