"""How a fit went: its loss against T with a certificate, and the loss of every step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from semcal.experiment.report.plotting import (
    BAND,
    INK,
    QUIET,
    RULE,
    method_colour,
    style,
)

if TYPE_CHECKING:
    from semcal.recalibration.provenance import GradientSteps
    from semcal.recalibration.temperature import TemperatureFit

#: The temperatures shown are at most this factor away from T and from 1.
REACH = 3.0
TICKS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 20)


@style()
def loss_figure(fit: TemperatureFit) -> Figure:
    """Mean loss per token against T, with the optimum (exact solver), its certificate and 95 % interval.

    Line: the loss on the calibration set. Band: interval of T. Rings: T = 1 and the optimum.
    """
    figure = Figure(figsize=(4.2, 3.1), layout="constrained")
    axes = figure.subplots()
    certificate, colour = fit.certificate, method_colour("TS")
    low, high = min(1.0, fit.temperature) / REACH, max(1.0, fit.temperature) * REACH
    t, loss = (np.array(values) for values in (fit.curve.temperature, fit.curve.loss))
    near = (t >= low) & (t <= high)
    if not math.isnan(fit.standard_error):
        axes.axvspan(*fit.interval(), color=BAND, alpha=0.6, linewidth=0, label="95 % interval")
    axes.axvline(fit.temperature, color=colour, linewidth=0.6)
    axes.plot(t[near], loss[near], color=colour, label=_loss_name(fit.loss, fit.alpha))
    for place, value in ((1.0, certificate.loss_at_one), (fit.temperature, certificate.loss)):
        axes.plot(place, value, "o", color=colour, markerfacecolor="white", markersize=5)
    axes.set_xscale("log")
    _plain_ticks(axes, low, high)
    axes.set_xlabel("temperature T")
    unit = "question" if fit.loss == "any" else "token"
    axes.set_ylabel(f"mean loss per {unit} (nats), {_loss_name(fit.loss, fit.alpha)}")
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
    """Mean loss per token of each step of a fit by sgd (`recalibrator.sgd_`).

    Dots: averages over equal shares of the steps; line: their running mean over a tenth of the training. A
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
    title = f"{method}, {steps.steps} steps in {schedule.epochs} epochs"
    axes.set_title(f"{title}, learning rate {schedule.learning_rate:g}", loc="left")
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
