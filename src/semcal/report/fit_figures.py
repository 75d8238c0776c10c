"""How a fit went: its loss against T with a certificate, the loss of every step, and the learning curve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from semcal.report.figures import (
    BAND,
    INK,
    METHOD_COLOURS,
    QUIET,
    RULE,
    measure_marker,
    method_colour,
    style,
)
from semcal.semantics import MEASURES

if TYPE_CHECKING:
    from semcal.pipeline.learning_curve import LearningCurve
    from semcal.recalibration.exact_fit import TemperatureFit
    from semcal.recalibration.provenance import GradientSteps

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


CURVE_LABELS = {"ace": "ACE (lower is better)", "brier": "Brier score (lower is better)"}
#: One colour a measure: here all is TS.
COLOURS = dict(zip(MEASURES, [*METHOD_COLOURS.values(), "#000000"]))


def _draw_learning_curve(axes: Axes, curve: LearningCurve, measure: str, metric: str) -> None:
    """Draw one curve: the mean over subsets, their spread as a band, bars for other validation questions.

    The sizes are spaced evenly, 0 (T = 1) first.
    """
    points = curve.of(measure, metric)
    place = np.arange(len(points))
    mean = np.array([point.mean for point in points])
    ends = np.array([[mean - point.low, point.high - mean] for mean, point in zip(mean, points)]).T
    colour = COLOURS.get(measure, "#000000")
    spread = np.array([[point.subset_low, point.subset_high] for point in points]).T
    axes.fill_between(place, *spread, color=colour, alpha=0.18, linewidth=0)
    axes.errorbar(
        place,
        mean,
        yerr=ends,
        color=colour,
        marker=measure_marker(measure),
        markersize=4,
        linewidth=1.3,
        elinewidth=0.5,
        label=measure,
    )
    axes.set_xticks(place, [str(point.n) if point.n else "none" for point in points])
    axes.set_xlabel("labelled questions")
    axes.set_ylabel(CURVE_LABELS[metric])
    axes.grid(axis="y", color=RULE, linewidth=0.5)
    axes.set_axisbelow(True)


@style()
def learning_curve_figure(
    curve: LearningCurve, *, measures: Sequence[str] = ("E-SC", "L-SC", "G-SC")
) -> Figure:
    """ACE and Brier score on validation against the number of labelled questions; a line a measure.

    Band: quantiles over subsets (which questions one labels). Bars: bootstrap interval over validation
    questions, which is wider, and which all points of a line share for the most part.
    """
    figure = Figure(figsize=(3.2 * len(CURVE_LABELS) + 0.2, 2.9), layout="constrained")
    for axes, metric in zip(figure.subplots(1, len(CURVE_LABELS)), CURVE_LABELS):
        for measure in measures:
            _draw_learning_curve(axes, curve, measure, metric)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure
