"""The style and the files of figures, and the figure of a fit.

A color means one method and a marker means one measure in all figures.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.ticker import NullFormatter, NullLocator

from semcal.errors import UsageError
from semcal.files import atomic_write
from semcal.measures import MEASURES
from semcal.recalibration.methods import RECALIBRATORS, LineStyle

if TYPE_CHECKING:
    from semcal.recalibration.records import Fitted, GradientSteps, TemperatureFit

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
    """Apply `STYLE` while the block (or the decorated function) runs."""
    with matplotlib.rc_context(STYLE):
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

#: Replacement for characters that the font lacks.
BLANK = "□"


@lru_cache
def _font(family: str) -> FT2Font:
    return font_manager.get_font(font_manager.findfont(family))


def drawable(text: str, family: str = "DejaVu Sans") -> str:
    """Return a text with a box for each character that the font lacks; line ends stay."""
    font = _font(family)
    return "".join(c if c == "\n" or font.get_char_index(ord(c)) else BLANK for c in text)


def shortened(text: str, width: int) -> str:
    """Return one line of at most `width` characters.

    >>> shortened("the town of Gri", 12), shortened("", 12)
    ('the town of…', '(empty)')
    """
    line = " ".join(drawable(text).split()) or "(empty)"
    return line if len(line) <= width else f"{line[: width - 1].rstrip()}…"


def wrapped(text: str, width: int, family: str = "DejaVu Sans") -> list[str]:
    """Return lines of at most `width` characters; line ends of the text stay.

    >>> wrapped("one two three\\n\\nfour", 8)
    ['one two', 'three', '', 'four']
    """
    return [
        part
        for line in drawable(text, family).split("\n")
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


# ---- A fit ------------------------------------------------------------------------------------------------

#: Maximum factor between the temperatures in the figure and T or 1.
REACH = 3.0
TICKS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 20)


def fit_figure(fitted: Fitted) -> Figure:
    """Draw the loss of a fit against T, or the loss of its steps; UsageError if the fit kept neither."""
    if (exact := getattr(fitted, "exact_", None)) is not None:
        return loss_figure(exact)
    if (steps := getattr(fitted, "sgd_", None)) is not None:
        return steps_figure(steps, method=fitted.method)
    raise UsageError(f"a fit of {fitted.method} has neither steps nor a loss curve. Leave the plot out.")


@style()
def loss_figure(fit: TemperatureFit) -> Figure:
    """Draw the mean loss per token against T, with the optimum, its certificate and its 95% interval.

    The line is the loss on the calibration set, the band the interval of T; rings mark T = 1 and the optimum.
    """
    figure = Figure(figsize=(4.2, 3.1), layout="constrained")
    axes = figure.subplots()
    certificate, colour = fit.certificate, method_colour("TS")
    low, high = min(1.0, fit.temperature) / REACH, max(1.0, fit.temperature) * REACH
    t, loss = (np.array(values) for values in (fit.curve.temperature, fit.curve.loss))
    near = (t >= low) & (t <= high)
    if not math.isnan(fit.standard_error):
        axes.axvspan(*fit.interval(), color=BAND, alpha=0.6, linewidth=0, label="95% interval")
    axes.axvline(fit.temperature, color=colour, linewidth=0.6)
    name = fit.loss if fit.alpha is None else f"{fit.loss}, α = {fit.alpha:g}"
    axes.plot(t[near], loss[near], color=colour, label=name)
    for place, value in ((1.0, certificate.loss_at_one), (fit.temperature, certificate.loss)):
        axes.plot(place, value, "o", color=colour, markerfacecolor="white", markersize=5)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    ticks = [tick for tick in TICKS if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("temperature T")
    unit = "question" if fit.loss == "any" else "token"
    axes.set_ylabel(f"mean loss per {unit} (nats), {name}")
    title = f"T = {fit.temperature:.4g}"
    if certificate.at_bound:
        title += ", at its bound: the loss still decreases there"
    elif not math.isnan(fit.standard_error):
        ends = ", ".join(f"{end:.4g}" for end in fit.interval())
        title += f" ± {fit.standard_error:.2g}, 95% interval [{ends}]"
    axes.set_title(title, loc="left")
    figure.supxlabel(
        f"{fit.n_tokens} tokens of {fit.n_questions} questions; {certificate.loss_at_one:.4f} at T = 1, "
        f"{certificate.loss:.4f} at the optimum.\nAt the optimum, in 1/T: slope {certificate.gradient:.1e}, "
        f"curvature {certificate.curvature:.3g}; next Newton step in log T: {fit.log_temperature_step:.0e}.",
        color=QUIET,
        size=7,
        x=0.02,
        ha="left",
    )
    _grid(axes)
    return figure


@style()
def steps_figure(steps: GradientSteps, *, method: str) -> Figure:
    """Draw the mean loss per token of each step of a fit by SGD (`recalibrator.sgd_`).

    Dots are averages over equal shares of the steps; the line is their running mean over a tenth of the
    training. The loss of a step comes from few questions, so the dots scatter even if the fit is good.
    """
    figure = Figure(figsize=(4.2, 3.1), layout="constrained")
    axes, colour = figure.subplots(), method_colour(method)
    losses = np.array(steps.losses)
    place = (np.arange(len(losses)) + 0.5) * steps.steps / max(1, len(losses))
    width = max(1, len(losses) // 10)
    axes.plot(place, losses, ".", color=colour, alpha=0.4, markersize=4, markeredgewidth=0)
    smooth = np.convolve(losses, np.ones(width) / width, mode="valid")
    axes.plot(place[(width - 1) // 2 :][: len(smooth)], smooth, color=colour)
    axes.set_xlim(0, steps.steps)
    axes.set_xlabel("step")
    axes.set_ylabel("mean loss per token (nats)")
    schedule = steps.schedule
    title = f"{method}, {steps.steps} steps in {schedule.epochs} epochs"
    axes.set_title(f"{title}, learning rate {schedule.learning_rate:g}", loc="left")
    _grid(axes)
    return figure


def _grid(axes: Axes) -> None:
    axes.grid(axis="y", color=RULE, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.title.set_color(INK)
