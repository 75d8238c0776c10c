"""Figures 4 and 5: accuracy of the rest against the rate of rejection, a line a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from semcal.report.figures import METHOD_LINES, method_colour, style
from semcal.report.grid_figures.lettering import shortened
from semcal.report.grid_figures.panels import legend_above, panels, ruled

__all__ = ["PAPER", "selective_figure"]

Entry = Mapping[str, Any]

#: The measures of figure 4; figure 5 has all.
PAPER = ("E-SC", "L-SC", "B-SC", "G-SC")


@style()
def selective_figure(entries: Sequence[Entry], datasets: Sequence[str], measures: Sequence[str]) -> Figure:
    """Selective accuracy of one model: a row a data set, a column a measure, a line a method.

    Parameters
    ----------
    entries : sequence of mappings
        {dataset, method, measure, rejection, accuracy, se}; the last three are lists.
    datasets, measures : sequence of str
        In order.

    Returns
    -------
    Figure
        For print; bars are standard errors over runs, where there are several.
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
                    _draw(axes, entry)
        named = f"{shortened(dataset, 22)}\naccuracy of the rest"
        row[0].set_ylabel(named, size=7.5, parse_math=False)
        row[0].yaxis.set_major_locator(MaxNLocator(4))
    for axes in grid.flat:
        ruled(axes)
    if entries:
        grid[0, 0].set_xlim(0, entries[0]["rejection"][-1])
    grid[0, 0].set_xticks([0, 0.3, 0.6, 0.9], ["0", "30", "60", "90"])
    for axes, measure in zip(grid[0], measures):
        axes.set_title(measure, pad=4)
    figure.supxlabel("% rejected, least confident first", size=8.5, y=0.01)
    figure.align_ylabels(grid[:, 0])
    legend_above(figure, grid[0, 0])
    return figure


def _draw(axes: Axes, entry: Entry) -> None:
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
