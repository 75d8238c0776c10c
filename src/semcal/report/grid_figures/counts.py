"""Figure 6: ACE and AUROC against the number of sampled answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from semcal.report.figures import METHOD_LINES, measure_marker, method_colour, style
from semcal.report.grid_figures.panels import legend_above, panels, ruled

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
    figure, grid = panels(
        2,
        len(measures),
        panel=(0.76, 0.95),
        gaps=(0.12, 0.16),
        margins=(0.58, 0.1, 0.45, 0.46),
        sharex=True,
        sharey="row",
    )
    for row, metric in zip(grid, LABELS):
        for axes, measure in zip(row, measures):
            _draw(axes, [point for point in points if point["measure"] == measure], metric)
        row[0].set_ylabel(LABELS[metric])
        row[0].yaxis.set_major_locator(MaxNLocator(4))
    for axes in grid.flat:
        ruled(axes)
    grid[0, 0].set_xticks(sorted({point["draws"] for point in points}))
    for axes, measure in zip(grid[0], measures):
        axes.set_title(measure, pad=4)
    figure.supxlabel("sampled answers per question", size=8.5, y=0.01)
    figure.align_ylabels(grid[:, 0])
    legend_above(figure, grid[0, 0])
    return figure


def _draw(axes: Axes, points: Sequence[Mapping[str, Any]], metric: str) -> None:
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
