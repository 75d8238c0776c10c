"""The figures of a grid run (analyses.md, figures 1 to 10), from results.json and the stored rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from semcal.experiment.finished import FinishedRun
from semcal.experiment.grid_settings import slug
from semcal.report.distribution_figures import (
    before_after_figure,
    correlation_figure,
    distribution_figure,
    reliability_figure,
    threshold_figure,
)
from semcal.report.figures import style, write_figure
from semcal.report.question_figures import prompt_figure, prompts_of, schematic_figure, teaser_figure
from semcal.report.score_figures import count_figure, scatter_figure, selective_figure
from semcal.report.summary import MEASURE, compared_methods

Row = Mapping[str, Any]

CAPTIONS = {
    "0": "How often answers of a given confidence are right, before and after recalibration.",
    "0a": "Above, how often answers of a given confidence are right, as they come (Base) and Calibrated. "
    "Below, from each threshold on the calibrated probability on, the share of the questions that are "
    "answered, and the share of these answers that are wrong.",
    "1": "One question at T = 0.5 and at the fitted temperature: the L-SC of each meaning, and whether it is "
    "right (✓) or wrong (✗). It was picked as one that the fitted temperature does most for.",
    "2": "How the seven measures come from the answers to one question of this run, under Base or else the "
    "first method.",
    "3": "ACE against AUROC of every method (colour) and measure (marker): mean and, of several runs, its "
    "standard error. Closer to the top left is better.",
    "4": "Accuracy of the rest when the least confident questions are rejected: mean and, of several runs, "
    "its standard error.",
    "5": "The same for all measures.",
    "6": "ACE and AUROC against the number of sampled answers, all cut from one sampling of the largest "
    "number; fits stay as they were, and so do choices unless sampling.reselect is on. Bars: standard error "
    "over runs, where there are several.",
    "7a": "As figure 3, with every method fitted by NLL and chosen anew: mean and, of several runs, "
    "standard deviation.",
    "7b": "The same with every method fitted by selective smoothing.",
    "8": "The exact prompts of the first test questions.",
    "9": "Confidence in the top meaning of each question, all runs together; the line is the median.",
    "10": "Pearson correlation between the measures' confidences, all runs together.",
    "11": "How often answers of a given confidence are right, all runs together.",
}
#: The measures of figure 4; figure 5 has all.
SELECTIVE = ("E-SC", "L-SC", "B-SC", "G-SC")


@dataclass(frozen=True, eq=False)
class GridFigure:
    """One figure of a grid run."""

    number: str  # as in analyses.md: "1" to "10", with a letter where one figure has parts
    name: str  # of its files, without suffix
    of: tuple[str, ...]  # the model, or the model and the data set, that it shows; empty where it shows all
    figure: Figure

    @property
    def caption(self) -> str:
        """What it shows."""
        return CAPTIONS[self.number]


@dataclass(frozen=True, eq=False)
class PlannedFigure:
    """A `GridFigure` that is still to be drawn, by any process."""

    number: str
    name: str
    of: tuple[str, ...]
    draw: Callable[[], Figure | None]  # None where there is nothing to draw

    def drawn(self) -> GridFigure | None:
        """Draw it, and lay it out once for all its files where places have to be found."""
        figure = self.draw()
        if figure is None:
            return None
        if figure.get_layout_engine() is not None:
            with style():
                figure.draw_without_rendering()
            figure.set_layout_engine("none")
        return GridFigure(self.number, self.name, self.of, figure)


def planned_figures(run: FinishedRun, results: Mapping[str, Any]) -> list[PlannedFigure]:
    """Every figure of a run and its results.json for which there may be something to draw."""
    return [
        PlannedFigure(number, "+".join([f"figure-{_digits(number)}-{subject}", *map(slug, of)]), of, draw)
        for number, subject, of, draw in _planned(run, results["analyses"])
    ]


def grid_figures(run: FinishedRun, results: Mapping[str, Any]) -> Iterator[GridFigure]:
    """Draw every figure for which there is something to draw, one at a time."""
    return (figure for one in planned_figures(run, results) if (figure := one.drawn()) is not None)


def write_files(figure: GridFigure, folder: Path) -> list[Path]:
    """Write one figure as PDF and PNG."""
    return [write_figure(figure.figure, folder / f"{figure.name}.{suffix}") for suffix in ("pdf", "png")]


def _digits(number: str) -> str:
    """A number as names of files have it.

    >>> _digits("7a"), _digits("10")
    ('07a', '10')
    """
    return f"{number:0>{2 if number.isdigit() else 3}}"


def _planned(
    run: FinishedRun, analyses: Mapping[str, Sequence[Row]]
) -> Iterator[tuple[str, str, tuple[str, ...], Callable[[], Figure | None]]]:
    """(number, subject, what it shows, what draws it)."""
    models, datasets, measures = run.models, run.datasets, run.measures
    compared = compared_methods(run.methods)
    if MEASURE in measures:
        for pair in run.pairs:
            yield "0", "before-after", pair, partial(before_after_figure, run, *pair, compared, MEASURE)
    for pair in run.pairs if run.calibrated else ():
        yield "0a", "threshold", pair, partial(threshold_figure, run, *pair)
    yield "1", "pull", (), partial(teaser_figure, run, run.fullest, datasets[0])
    yield "2", "schematic", (), partial(schematic_figure, run, run.fullest, datasets[0])
    yield "3", "scatter", (), partial(scatter_figure, analyses["confidence"], models, datasets)
    for model in models:
        curves = _of(analyses["selective"], model)
        shown = [name for name in SELECTIVE if name in measures]
        yield "4", "selective", (model,), partial(selective_figure, curves, datasets, shown)
        yield "5", "selective", (model,), partial(selective_figure, curves, datasets, measures)
    for pair in run.pairs:
        if counted := _of(analyses["generations"], *pair):
            yield "6", "generations", pair, partial(count_figure, counted, measures)
    for number, loss in (("7a", "NLL"), ("7b", "SS")):
        points = [entry for entry in analyses["losses"] if entry["loss"] == loss]
        if any(entry["method"] not in ("Base", "SE") for entry in points):  # nothing is fitted for these
            yield number, loss, (), partial(scatter_figure, points, models, datasets, error="sd")
    if prompts := prompts_of(analyses["prompts"]):
        yield "8", "prompts", (), partial(prompt_figure, prompts)
    for pair in run.pairs:
        if spread := _of(analyses["distributions"], *pair):
            yield "9", "distributions", pair, partial(distribution_figure, spread, measures)
        if related := _of(analyses["correlations"], *pair):
            yield "10", "correlations", pair, partial(correlation_figure, related)
    for model in models:
        for measure in measures:
            yield "11", "reliability", (model, measure), partial(reliability_figure, run, model, measure)


def _of(entries: Sequence[Row], model: str, dataset: str | None = None) -> list[Row]:
    return [
        entry
        for entry in entries
        if entry["model"] == model and (dataset is None or entry["dataset"] == dataset)
    ]
