"""The style and the files of figures, and the figure of a watch.

A color means one method and a marker means one measure in all figures.
"""

from __future__ import annotations

import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from semcal.errors import UsageError
from semcal.files import atomic_write
from semcal.measures import MEASURES
from semcal.recalibration.methods import RECALIBRATORS, LineStyle

INK, QUIET, RULE, BAND, OTHER = "#1f2328", "#656b73", "#d6dade", "#c3c9d0", "#767676"

#: The settings of matplotlib while a figure is drawn or written.
STYLE: dict[Any, Any] = {
    "axes.edgecolor": QUIET,
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.labelsize": 8.5,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9,
    "axes.titley": 1.0,  # a fixed place costs no search for a free one
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
    """Apply `STYLE` while the block (or the decorated function) runs.

    A character that the font lacks is a box in files; browsers show it with another font.
    """
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        yield


def method_colour(method: str) -> str:
    """Return the color of a method, gray for a method without its own color."""
    return RECALIBRATORS[method].colour if method in RECALIBRATORS else OTHER


def method_line(method: str) -> LineStyle:
    """Return the line style of a method, which distinguishes methods in print without color."""
    return RECALIBRATORS[method].line if method in RECALIBRATORS else "-"


def measure_marker(measure: str) -> str:
    """Return the marker of a measure, a star for an unknown one."""
    return MEASURES[measure].marker if measure in MEASURES else "*"


def padded(values: Sequence[float]) -> tuple[float, float]:
    """Return limits of an axis with some room around the values."""
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or 0.05
    return low - margin, high + margin


# ---- Panels ----------------------------------------------------------------------------------------------


def panels(
    rows: int,
    columns: int,
    *,
    panel: tuple[float, float],
    gaps: tuple[float, float] = (0.18, 0.22),
    margins: tuple[float, float, float, float],
    sharex: bool | Literal["row"] = False,
    sharey: bool | Literal["row"] = False,
) -> tuple[Figure, Any]:
    """Return a figure with panels of one size at fixed places: an array of axes [rows, columns].

    Sizes are in inches: width and height of a panel; gaps between columns and between rows; margins at the
    left, right, top and bottom. No time is spent on a layout.
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
    """Set small numbers at the ticks of panels, and faint lines behind the curves.

    Limits and ticks that panels share are set once for all of them, because each change visits every panel.
    """
    axes.tick_params(labelsize=7)
    axes.grid(axis=lines, color=RULE, linewidth=0.5)
    axes.set_axisbelow(True)


def legend_above(figure: Figure, axes: Axes) -> None:
    """Put a legend in one line above the panels, for the lines of one panel."""
    handles, labels = axes.get_legend_handles_labels()
    columns = max(1, len(labels))
    figure.legend(handles, labels, loc="upper center", ncols=columns, handlelength=2.6, borderaxespad=0.1)


# ---- Text that fits --------------------------------------------------------------------------------------


#: Control characters except white space, marks that change the direction of text, and lone surrogates.
UNSHOWN = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def shown_text(text: str) -> str:
    """Return a text for figures and the page, with � for each character that cannot be shown."""
    return UNSHOWN.sub("�", text)


def shortened(text: str, width: int) -> str:
    """Return one line of at most `width` characters.

    >>> shortened("the town of Gri", 12), shortened("", 12)
    ('the town of…', '(empty)')
    """
    line = " ".join(shown_text(text).split()) or "(empty)"
    return line if len(line) <= width else f"{line[: width - 1].rstrip()}…"


def wrapped(text: str, width: int) -> list[str]:
    """Return lines of at most `width` characters; line ends of the text stay.

    >>> wrapped("one two three\\n\\nfour", 8)
    ['one two', 'three', '', 'four']
    """
    return [
        part
        for line in shown_text(text).split("\n")
        for part in textwrap.wrap(line, width, drop_whitespace=True, replace_whitespace=False) or [""]
    ]


# ---- Files -----------------------------------------------------------------------------------------------

FIGURE_SUFFIXES = (".pdf", ".png", ".svg")


def check_figure_path(path: Path) -> Path:
    """Return a path for a figure; UsageError if its file type is not supported."""
    if path.suffix not in FIGURE_SUFFIXES:
        raise UsageError(
            f"{path}: expected a file name that ends in {', '.join(FIGURE_SUFFIXES)} for the plot. Rename it."
        )
    return path


def write_figure(figure: Figure, path: Path) -> Path:
    """Write a figure on white; equal figures give equal bytes. UsageError for unsupported file types."""
    metadata = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {}}
    with atomic_write(check_figure_path(path)) as handle, style():
        figure.savefig(
            handle, format=path.suffix[1:], dpi=200, metadata=metadata[path.suffix], facecolor="white"
        )
    return path


# ---- A watch --------------------------------------------------------------------------------------------


#: Maximum logarithm of an e-value in the figure.
MOST = 700.0


@style()
def watch_figure(
    log_e: Mapping[str, Sequence[float]], alarms: Mapping[str, int | None], alpha: float
) -> Figure:
    """Draw the e-value of each watch after each of its labels, on a logarithmic scale.

    The dashed line is 1/α, where the alarm is raised; a ring marks the alarm.
    """
    figure, grid = panels(len(log_e), 1, panel=(5.2, 1.5), gaps=(0, 0.68), margins=(0.65, 0.15, 0.3, 0.45))
    for (name, values), axes in zip(log_e.items(), grid[:, 0]):
        e_values = np.exp(np.minimum([0.0, *values], MOST))
        axes.axhline(1 / alpha, color=QUIET, linewidth=0.8, linestyle="--")
        axes.plot(e_values, color=INK, linewidth=1)
        if (alarm_at := alarms[name]) is not None:
            axes.plot(alarm_at, e_values[alarm_at], "o", color=INK, markerfacecolor="white", markersize=5)
        axes.set_yscale("log")
        axes.set_xlim(0, max(1, len(values)))
        axes.set_title(name, loc="left")
        axes.set_ylabel("e-value")
        axes.set_xlabel("replies" if name == "questions" else "labels")
        ruled(axes)
    return figure
