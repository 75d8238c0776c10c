"""Figures 9 and 10: how the confidence in the top meaning is distributed, and how the measures correlate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from semcal.report.figures import INK, method_colour, style
from semcal.report.grid_figures.panels import panels

__all__ = ["correlation_figure", "distribution_figure"]

Entry = Mapping[str, Any]


@style()
def distribution_figure(entries: Sequence[Entry], measures: Sequence[str]) -> Figure:
    """Histograms of the top meaning's confidence: a row a method, a column a measure.

    Parameters
    ----------
    entries : sequence of mappings
        {method, measure, edges, share, median}, of one model on one data set.
    measures : sequence of str
        In order.

    Returns
    -------
    Figure
        For print; the line is the median.
    """
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
def correlation_figure(entries: Sequence[Entry]) -> Figure:
    """Pearson correlations between the measures' confidences: an annotated matrix for each method.

    Parameters
    ----------
    entries : sequence of mappings
        {method, measures, matrix, mean}, of one model on one data set.

    Returns
    -------
    Figure
        For print; the darker, the higher, from the lowest of the figure to 1.
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

    Examples
    --------
    >>> _number(0.931), _number(-0.2), _number(1.0), _number(float("nan"))
    ('.93', '−.20', '1.00', '–')
    """
    return "–" if np.isnan(value) else f"{value:.2f}".replace("0.", ".").replace("-", "−")
