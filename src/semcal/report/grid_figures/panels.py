"""Panels in rows and columns at fixed places: all of one size, and no time spent on finding a layout."""

from __future__ import annotations

from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from semcal.report.figures import RULE

__all__ = ["legend_above", "panels", "ruled"]

Share = bool | Literal["row", "col"]


def panels(
    rows: int,
    columns: int,
    *,
    panel: tuple[float, float],
    gaps: tuple[float, float] = (0.18, 0.22),
    margins: tuple[float, float, float, float],
    sharex: Share = False,
    sharey: Share = False,
) -> tuple[Figure, Any]:
    """A figure with panels.

    Parameters
    ----------
    rows, columns : int
    panel : (float, float)
        Width and height of a panel in inches.
    gaps : (float, float)
        Inches between columns and between rows.
    margins : (float, float, float, float)
        Inches at the left, right, top and bottom.
    sharex, sharey
        As for `Figure.subplots`.

    Returns
    -------
    Figure, ndarray of Axes of shape (rows, columns)
    """
    left, right, top, bottom = margins
    width = left + columns * panel[0] + (columns - 1) * gaps[0] + right
    height = top + rows * panel[1] + (rows - 1) * gaps[1] + bottom
    figure = Figure(figsize=(width, height))
    places = {
        "left": left / width,
        "right": 1 - right / width,
        "top": 1 - top / height,
        "bottom": bottom / height,
        "wspace": gaps[0] / panel[0],
        "hspace": gaps[1] / panel[1],
    }
    grid = figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey, gridspec_kw=places)
    return figure, grid


def ruled(axes: Axes, lines: Literal["both", "y"] = "y") -> None:
    """Small numbers at the ticks of a panel, and faint lines behind what it shows.

    Limits and ticks that panels share are set once for all of them: each time costs a look at every panel.
    """
    axes.tick_params(labelsize=7)
    axes.grid(axis=lines, color=RULE, linewidth=0.5)
    axes.set_axisbelow(True)


def legend_above(figure: Figure, axes: Axes) -> None:
    """A line above the panels that tells what the lines of one panel are."""
    handles, labels = axes.get_legend_handles_labels()
    columns = max(1, len(labels))
    figure.legend(handles, labels, loc="upper center", ncols=columns, handlelength=2.6, borderaxespad=0.1)
