"""How a fit found its recalibrator: the loss against T with its certificate, or the loss of every step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from fontTools import subset
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from semcal.errors import UsageError
from semcal.records import atomic_write
from semcal.report.figures import BAND, INK, QUIET, RULE, method_colour, style

if TYPE_CHECKING:
    from semcal.recalibration import GradientSteps, TemperatureFit

__all__ = ["check_figure_path", "loss_figure", "steps_figure", "write_figure"]

SUFFIXES = (".pdf", ".png", ".svg")
#: The temperatures shown are at most this factor away from T and from 1.
REACH = 3.0
TICKS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 20)


@style()
def loss_figure(fit: TemperatureFit) -> Figure:
    """Mean loss per token against T, with the optimum, its certificate and its 95 % interval.

    Parameters
    ----------
    fit : TemperatureFit
        Of the exact solver.

    Returns
    -------
    Figure
        For print. Line: the loss on the calibration set. Band: interval of T. Rings: T = 1 and the optimum.
    """
    figure = Figure(figsize=(4.2, 3.1), layout="constrained")
    axes = figure.subplots()
    certificate, colour = fit.certificate, method_colour("TS")
    low, high = min(1.0, fit.temperature) / REACH, max(1.0, fit.temperature) * REACH
    t, loss = (np.array(values) for values in (fit.curve.temperature, fit.curve.loss))
    shown = (t >= low) & (t <= high)
    if not math.isnan(fit.standard_error):
        axes.axvspan(*fit.interval(), color=BAND, alpha=0.6, linewidth=0, label="95 % interval")
    axes.axvline(fit.temperature, color=colour, linewidth=0.6)
    axes.plot(t[shown], loss[shown], color=colour, label=_loss_name(fit.loss, fit.alpha))
    for place, value in ((1.0, certificate.loss_at_one), (fit.temperature, certificate.loss)):
        axes.plot(place, value, "o", color=colour, markerfacecolor="white", markersize=5)
    axes.set_xscale("log")
    _plain_ticks(axes, low, high)
    axes.set_xlabel("temperature T")
    axes.set_ylabel(f"mean loss per token (nats), {_loss_name(fit.loss, fit.alpha)}")
    axes.set_title(_found(fit), loc="left")
    figure.supxlabel(_certificate(fit), color=QUIET, size=7, x=0.02, ha="left")
    _grid(axes)
    return figure


def _loss_name(loss: str, alpha: float | None) -> str:
    return loss if alpha is None else f"{loss}, α = {alpha:g}"


def _found(fit: TemperatureFit) -> str:
    if fit.certificate.at_bound:
        return f"T = {fit.temperature:.4g}, at its bound: the loss falls beyond"
    if math.isnan(fit.standard_error):
        return f"T = {fit.temperature:.4g}"
    low, high = fit.interval()
    return f"T = {fit.temperature:.4g} ± {fit.standard_error:.2g}, 95 % [{low:.4g}, {high:.4g}]"


def _certificate(fit: TemperatureFit) -> str:
    """What shows that this is the optimum."""
    certificate = fit.certificate
    return (
        f"{fit.n_tokens} tokens of {fit.n_questions} questions; {certificate.loss_at_one:.4f} at T = 1, "
        f"{certificate.loss:.4f} at the optimum.\nThere, in 1/T: slope {certificate.gradient:.1e}, curvature "
        f"{certificate.curvature:.3g}; a further Newton step in log T: {fit.log_temperature_step:.0e}."
    )


@style()
def steps_figure(steps: GradientSteps, *, method: str) -> Figure:
    """Mean loss of the tokens of each step, averaged over equal shares of the steps.

    Parameters
    ----------
    steps : GradientSteps
        Of a recalibrator that was fitted by sgd (`recalibrator.sgd_`).
    method : str
        For the title and the colour.

    Returns
    -------
    Figure
        For print. Dots: shares of the steps; line: their running mean over a tenth of the training. A
        step's loss is that of the few questions it saw, so the dots scatter however good the fit is.
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
    found = f"{method}, {steps.steps} steps in {schedule.epochs} epochs"
    axes.set_title(f"{found}, learning rate {schedule.learning_rate:g}", loc="left")
    _grid(axes)
    return figure


def _plain_ticks(axes: Axes, low: float, high: float) -> None:
    axes.set_xlim(low, high)
    ticks = [tick for tick in TICKS if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())


def _grid(axes: Axes) -> None:
    axes.grid(axis="y", color=RULE, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.title.set_color(INK)


def check_figure_path(path: Path) -> Path:
    """Return a path that a figure can be written to; UsageError for another file type."""
    if path.suffix not in SUFFIXES:
        raise UsageError(f"a plot is written as {', '.join(SUFFIXES)}, got {path}; name such a file")
    return path


def write_figure(figure: Figure, path: Path) -> Path:
    """Write a figure on white; the same figure gives the same bytes.

    Raises
    ------
    UsageError
        If the file type is not .pdf, .png or .svg.
    """
    metadata = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {}}
    with atomic_write(check_figure_path(path)) as handle, style(), _plain_fonts():
        figure.savefig(
            handle, format=path.suffix[1:], dpi=200, metadata=metadata[path.suffix], facecolor="white"
        )
    return path


@contextmanager
def _plain_fonts() -> Iterator[None]:
    """Leave OpenType's layout tables out of fonts in a PDF: none is used there, and cutting them down to the
    letters of a figure takes two thirds of the time that a font takes."""
    before = getattr(subset.Options, "_drop_tables_default", None)
    if before is None:  # it is not public: without it, figures take longer and look the same
        yield
        return
    subset.Options._drop_tables_default = [*before, "GDEF", "GPOS", "GSUB"]
    try:
        yield
    finally:
        subset.Options._drop_tables_default = before
