"""The learning curve as a figure: a panel a metric, a marker a measure, bands over subsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from semcal.report.figures import MEASURE_MARKERS, METHOD_COLOURS, RULE, measure_marker, style

if TYPE_CHECKING:
    from semcal.pipeline.learning_curve import LearningCurve

__all__ = ["draw_learning_curve", "learning_curve_figure"]

NAMES = {"ace": "ACE (lower is better)", "brier": "Brier score (lower is better)"}
#: One colour a measure: here all is TS.
COLOURS = dict(zip(MEASURE_MARKERS, [*METHOD_COLOURS.values(), "#000000"]))


def draw_learning_curve(axes: Axes, curve: LearningCurve, measure: str, metric: str) -> None:
    """Draw one curve: the mean over subsets, their spread as a band, bars for other validation questions.

    The sizes stand at equal distances, 0 (T = 1) first.
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
    axes.set_ylabel(NAMES[metric])
    axes.grid(axis="y", color=RULE, linewidth=0.5)
    axes.set_axisbelow(True)


@style()
def learning_curve_figure(
    curve: LearningCurve, *, measures: Sequence[str] = ("E-SC", "L-SC", "G-SC")
) -> Figure:
    """ACE and Brier score on validation against the number of labelled questions.

    Parameters
    ----------
    curve : LearningCurve
    measures : sequence of str
        Lines; more than three overlap.

    Returns
    -------
    Figure
        For print. Band: quantiles over subsets (which questions one labels). Bars: bootstrap interval over
        validation questions, which is wider, and which all points of a line share for the most part.
    """
    figure = Figure(figsize=(3.2 * len(NAMES) + 0.2, 2.9), layout="constrained")
    for axes, metric in zip(figure.subplots(1, len(NAMES)), NAMES):
        for measure in measures:
            draw_learning_curve(axes, curve, measure, metric)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure
