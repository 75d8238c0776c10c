"""The figures of a grid run (analyses.md, figures 1 to 10), from results.json and the stored rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from semcal.experiment.finished import FinishedRun
from semcal.experiment.paths import slug
from semcal.report.figures import style
from semcal.report.grid_figures.counts import count_figure
from semcal.report.grid_figures.distributions import correlation_figure, distribution_figure
from semcal.report.grid_figures.prompts import prompt_figure, prompts_of
from semcal.report.grid_figures.pull import pull_figure
from semcal.report.grid_figures.reliability import before_after_figure, reliability_figure
from semcal.report.grid_figures.scatter import scatter_figure
from semcal.report.grid_figures.schematic import schematic_figure
from semcal.report.grid_figures.selective import PAPER, selective_figure
from semcal.report.losses import write_figure
from semcal.report.summary import MEASURE, compared_methods

__all__ = ["CAPTIONS", "GridFigure", "PlannedFigure", "grid_figures", "planned_figures", "write_files"]

Entry = Mapping[str, Any]

CAPTIONS = {
    "0": "How often answers of a given confidence are right, before and after recalibration.",
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


@dataclass(frozen=True, eq=False)
class GridFigure:
    """One figure of a grid run.

    Attributes
    ----------
    number : str
        As in analyses.md: "1" to "10", with a letter where one figure has parts.
    name : str
        Of its files, without suffix.
    of : tuple of str
        The model, or the model and the data set, that it shows; empty where it shows all.
    figure : Figure
    """

    number: str
    name: str
    of: tuple[str, ...]
    figure: Figure

    @property
    def caption(self) -> str:
        """What it shows."""
        return CAPTIONS[self.number]


@dataclass(frozen=True, eq=False)
class PlannedFigure:
    """A figure that is still to be drawn, by any process.

    Attributes
    ----------
    number, name, of
        Of the `GridFigure`.
    draw : callable
        Gives the figure; None where there is nothing to draw.
    """

    number: str
    name: str
    of: tuple[str, ...]
    draw: Callable[[], Figure | None]

    def drawn(self) -> GridFigure | None:
        """Draw it, each part where it stays: it is laid out once, not for every file."""
        figure = self.draw()
        if figure is None:
            return None
        with style():
            figure.draw_without_rendering()
        figure.set_layout_engine("none")
        return GridFigure(self.number, self.name, self.of, figure)


def planned_figures(run: FinishedRun, results: Mapping[str, Any]) -> list[PlannedFigure]:
    """Every figure for which there may be something to draw.

    Parameters
    ----------
    run : FinishedRun
    results : mapping
        The content of its results.json.
    """
    return [
        PlannedFigure(number, "+".join([f"figure-{_digits(number)}-{subject}", *map(slug, of)]), of, draw)
        for number, subject, of, draw in _planned(run, results["analyses"])
    ]


def grid_figures(run: FinishedRun, results: Mapping[str, Any]) -> Iterator[GridFigure]:
    """Draw every figure for which there is something to draw, one at a time."""
    return (figure for one in planned_figures(run, results) if (figure := one.drawn()) is not None)


def _digits(number: str) -> str:
    """A number as names of files have it.

    Examples
    --------
    >>> _digits("7a"), _digits("10")
    ('07a', '10')
    """
    return f"{number:0>{2 if number.isdigit() else 3}}"


def _planned(
    run: FinishedRun, analyses: Mapping[str, Sequence[Entry]]
) -> Iterator[tuple[str, str, tuple[str, ...], Callable[[], Figure | None]]]:
    """(number, subject, what it shows, what draws it)."""
    models, datasets, measures = run.models, run.datasets, run.measures
    compared = compared_methods(run.methods)
    if MEASURE in measures:
        for pair in run.pairs:
            yield "0", "before-after", pair, partial(before_after_figure, run, *pair, compared, MEASURE)
    yield "1", "pull", (), partial(pull_figure, run, models[0], datasets[0])
    yield "2", "schematic", (), partial(schematic_figure, run, models[0], datasets[0])
    yield "3", "scatter", (), partial(scatter_figure, analyses["confidence"], models, datasets)
    for model in models:
        curves = _of(analyses["selective"], model)
        shown = [name for name in PAPER if name in measures]
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


def _of(entries: Sequence[Entry], model: str, dataset: str | None = None) -> list[Entry]:
    return [
        entry
        for entry in entries
        if entry["model"] == model and (dataset is None or entry["dataset"] == dataset)
    ]


def write_files(figure: GridFigure, folder: Path) -> list[Path]:
    """Write one figure as PDF and PNG."""
    return [write_figure(figure.figure, folder / f"{figure.name}.{suffix}") for suffix in ("pdf", "png")]
