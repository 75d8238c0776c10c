"""The figures of a grid run, from results.json and the stored rows: entries of `REPORT_FIGURES`, in order.

A new figure needs only its registration there (`register`): it is then drawn, written and shown on the page.
`question_figures` draws figures 1, 2 and 8 of single questions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from semcal import metrics
from semcal.arrays import Floats
from semcal.experiment.analyses.grid_scores import Record, Records, read_columns
from semcal.experiment.analyses.score_analyses import MEASURE
from semcal.experiment.finished import FinishedRun
from semcal.experiment.grid_settings import CALIBRATED, slug
from semcal.experiment.report.question_figures import prompt_figure, schematic_figure, teaser_figure
from semcal.experiment.report.tables import RunResults, compared_methods, metric_title, select
from semcal.plotting import (
    BAND,
    INK,
    QUIET,
    legend_above,
    measure_marker,
    method_colour,
    method_line,
    padded,
    panels,
    ruled,
    shortened,
    style,
    write_figure,
)
from semcal.recalibration.methods import UNFITTED
from semcal.registry import Catalogue

#: Keys of the subjects of figures, and their names for readers.
SUBJECTS = {"model": "model", "dataset": "data set", "measure": "measure"}

# ---- The parts of a figure --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ReportFigure:
    """A figure of the report: its number, files, caption and place, and the function that draws it."""

    number: str  # as in the paper: "1" to "10", with a letter for a part
    subject: str  # beginning of its file names: figure-NUMBER-SUBJECT
    caption: str
    draw: Callable[..., Figure | None]
    """(run, rows, one name for each key of `each`) → the figure, None if there is nothing to draw."""
    each: tuple[str, ...] = ()  # keys of `SUBJECTS`: one figure for each combination of their values
    analysis: str = ""  # name of the rows of results.json; no figure without rows
    rows: Callable[[Records], Records] = lambda rows: rows  # selects the rows
    section: str = ""  # its section; "" for figures at the top of the page, or shown as text

    @property
    def name(self) -> str:
        """The number, which is the name in the registry."""
        return self.number

    def plans(self, run: FinishedRun, results: RunResults) -> Iterator[PlannedFigure]:
        """Yield the planned figures, one for each model, data set or measure."""
        digits = f"{self.number:0>{2 if self.number.isdigit() else 3}}"
        for names in product(*(getattr(run, f"{key}s") for key in self.each)):
            of_analysis = self.rows(results["analyses"].get(self.analysis, ()))
            rows = select(of_analysis, dict(zip(self.each, names)))
            if rows or not self.analysis:
                name = "+".join([f"figure-{digits}-{self.subject}", *map(slug, names)])
                draw = partial(self.draw, run, rows, *names)
                yield PlannedFigure(self.number, name, names, draw, self.caption)


@dataclass(frozen=True, eq=False)
class PlannedFigure:
    """One figure of a grid run, which any process can draw."""

    number: str
    name: str  # name of its files, without suffix
    subjects: tuple[str, ...]  # such as the model and the data set; empty for figures of all
    draw: Callable[[], Figure | None]  # None if there is nothing to draw
    caption: str = ""

    def drawn(self) -> Figure | None:
        """Draw the figure, with one layout for all its files."""
        figure = self.draw()
        if figure is not None and figure.get_layout_engine() is not None:
            with style():
                figure.draw_without_rendering()
            figure.set_layout_engine("none")
        return figure

    def write(self, figure: Figure, folder: Path) -> list[Path]:
        """Write the figure as PDF and PNG."""
        return [write_figure(figure, folder / f"{self.name}.{suffix}") for suffix in ("pdf", "png")]


#: All figures by number, in the order of the page.
REPORT_FIGURES: Catalogue[ReportFigure] = Catalogue("figure")


def planned_figures(run: FinishedRun, results: RunResults) -> list[PlannedFigure]:
    """Return the planned figures of a run."""
    return [plan for entry in REPORT_FIGURES.values() for plan in entry.plans(run, results)]


# ---- Figures 3 and 7: ACE against AUROC, one panel per data set and model ---------------------------------


@style()
def scatter_figure(run: FinishedRun, points: Records, *, error: Literal["se", "sd"] = "se") -> Figure:
    """Draw ACE (x) against AUROC (y): rows are data sets, columns models, colors methods, markers measures.

    For one model, up to four data sets share a row. Closer to the top left is better. The panels of a data
    set share their scales. Bars are the standard error over runs, or with `error` "sd" the standard deviation
    (figure 7).
    """
    models, datasets = run.models, run.datasets
    side_by_side = len(models) == 1 < len(datasets) <= 4
    rows, columns = (1, len(datasets)) if side_by_side else (len(datasets), len(models))
    lines = {1: 4, 2: 2}.get(columns, 1)
    figure, grid = panels(
        rows,
        columns,
        panel=(1.8 if side_by_side else 1.95, 1.35),
        gaps=(0.42 if side_by_side else 0.14, 0.42),
        margins=(0.58, 0.1, 0.24, 0.48 + 0.19 * lines),
        sharex=False if side_by_side else "row",
        sharey=False if side_by_side else "row",
    )
    for row, dataset in zip(grid.T if side_by_side else grid, datasets):
        on_dataset = [point for point in points if point["dataset"] == dataset]
        for axes, model in zip(row, models):
            _draw_points(axes, [point for point in on_dataset if point["model"] == model], error)
            axes.set_title(shortened(f"{dataset}, {model}", 36), size=8, pad=4, parse_math=False)
        for key, limit in (("ace", row[0].set_xlim), ("auroc", row[0].set_ylim)):
            bars = [ends for point in on_dataset if (ends := _ends(point[key], error))]
            limit(*padded([mean + sign * half for mean, half in bars for sign in (-1, 1)]))
        row[0].xaxis.set_major_locator(MaxNLocator(4))
        row[0].yaxis.set_major_locator(MaxNLocator(4))
    for axes in grid[:, 0]:
        axes.set_ylabel("AUROC (better →)")
    for axes in grid[-1]:
        axes.set_xlabel("ACE (← better)")
    handles = [
        handle
        for keys in (
            [_key("o", method_colour(name), name) for name in _names(points, "method")],
            [_key(measure_marker(name), QUIET, name) for name in _names(points, "measure")],
        )
        for handle in [*keys, *[_key("", QUIET, " ")] * (-len(keys) % lines)]
    ]
    figure.legend(
        handles=handles,
        loc="lower center",
        ncols=len(handles) // lines,
        handletextpad=0,
        columnspacing=0.8,
        borderaxespad=0.1,
    )
    return figure


def fitted_by(loss: str, points: Records) -> Records:
    """Return the points of fits by a loss; none if no method was fitted."""
    of_loss = select(points, {"loss": loss})
    return of_loss if any(point["method"] not in UNFITTED for point in of_loss) else []


def _key(marker: str, colour: str, label: str) -> Line2D:
    return Line2D([], [], linestyle="none", marker=marker, color=colour, label=label)


def _names(points: Records, key: str) -> list[str]:
    return list(dict.fromkeys(point[key] for point in points))


def _ends(metric: Record | None, error: str) -> tuple[float, float] | None:
    """Return a mean and half the length of its error bar (0 for one run), None if undefined."""
    if metric is None or metric["mean"] is None:
        return None
    return metric["mean"], metric[error] or 0.0


def _draw_points(axes: Axes, points: Records, error: str) -> None:
    defined = [
        (point, ace, auroc)
        for point in points
        if (ace := _ends(point["ace"], error)) and (auroc := _ends(point["auroc"], error))
    ]
    if not defined:
        axes.text(0.5, 0.5, "undefined", transform=axes.transAxes, ha="center", va="center", color=QUIET)
    colours = [method_colour(point["method"]) for point, _, _ in defined]
    across = [[(x - half, y), (x + half, y)] for _, (x, half), (y, _) in defined]
    upwards = [[(x, y - half), (x, y + half)] for _, (x, _), (y, half) in defined]
    axes.add_collection(LineCollection(across, colors=colours, linewidths=0.6, alpha=0.9))
    axes.add_collection(LineCollection(upwards, colors=colours, linewidths=0.6, alpha=0.9))
    for measure in _names(points, "measure"):
        of_measure = [entry for entry in defined if entry[0]["measure"] == measure]
        axes.scatter(
            [ace[0] for _, ace, _ in of_measure],
            [auroc[0] for _, _, auroc in of_measure],
            c=[method_colour(point["method"]) for point, _, _ in of_measure],
            marker=measure_marker(measure),
            s=20,
            edgecolors="white",
            linewidths=0.3,
            alpha=0.9,
            zorder=3,
            label=measure,
        )
    ruled(axes, "both")


# ---- Figures 4 and 5: accuracy of answered questions against the rate of rejection -----------------------


#: The measures of figure 4; figure 5 shows all measures.
SELECTIVE = ("E-SC", "L-SC", "B-SC", "G-SC")


@style()
def selective_figure(
    run: FinishedRun, entries: Records, _: str, *, among: Sequence[str] | None = None
) -> Figure:
    """Draw selective accuracy of one model: rows are data sets, columns measures, lines methods.

    The measures are all of the run, or those `among` some. Bars are standard errors over runs, if there are
    several.
    """
    datasets, measures = run.datasets, [name for name in run.measures if among is None or name in among]
    figure, grid = panels(
        len(datasets),
        len(measures),
        panel=(1.36 if len(measures) < 5 else 0.72, 1.15),
        gaps=(0.16, 0.2),
        margins=(0.8, 0.12, 0.45, 0.46),
        sharex=True,
        sharey="row",
    )
    for row, dataset in zip(grid, datasets):
        for axes, measure in zip(row, measures):
            for entry in entries:
                if (entry["dataset"], entry["measure"]) == (dataset, measure):
                    curve = (entry["rejection"], entry["accuracy"], _bars(entry["se"]))
                    _draw_line(axes, entry["method"], *curve, errorevery=2, linewidth=1.2)
        label = f"{shortened(dataset, 22)}\naccuracy of answered"
        row[0].set_ylabel(label, size=7.5, parse_math=False)
    grid[0, 0].set_xlim(0, entries[0]["rejection"][-1])
    grid[0, 0].set_xticks([0, 0.3, 0.6, 0.9], ["0", "30", "60", "90"])
    _label_measures(figure, grid, measures, "% rejected, least confident first")
    return figure


def _label_measures(figure: Figure, grid: Any, measures: Sequence[str], x_label: str) -> None:
    for axes in grid[:, 0]:
        axes.yaxis.set_major_locator(MaxNLocator(4))
    for axes in grid.flat:
        ruled(axes)
    for axes, measure in zip(grid[0], measures):
        axes.set_title(measure, pad=4)
    figure.supxlabel(x_label, size=8.5, y=0.01)
    figure.align_ylabels(grid[:, 0])
    legend_above(figure, grid[0, 0])


def _draw_line(
    axes: Axes, method: str, x: Sequence[float], mean: Sequence[Any], bars: Floats | None, **look: Any
) -> None:
    axes.errorbar(
        x,
        np.array(mean, dtype=np.float64),
        yerr=bars,
        color=method_colour(method),
        linestyle=method_line(method),
        elinewidth=0.6,
        label=method,
        **look,
    )


def _bars(errors: Iterable[float | None]) -> Floats:
    return np.array([error or np.nan for error in errors], dtype=np.float64)


# ---- Figure 6: number of sampled answers -----------------------------------------------------------------


@style()
def count_figure(run: FinishedRun, points: Records, *_: str) -> Figure:
    """Draw ACE (above) and AUROC (below) of one model on one data set: columns are measures, lines methods.

    Bars are standard errors over runs, if there are several.
    """
    measures = run.measures
    figure, grid = panels(
        2,
        len(measures),
        panel=(0.76, 0.95),
        gaps=(0.12, 0.16),
        margins=(0.58, 0.1, 0.45, 0.46),
        sharex=True,
        sharey="row",
    )
    for row, metric in zip(grid, ("ace", "auroc")):
        for axes, measure in zip(row, measures):
            of_measure = [point for point in points if point["measure"] == measure]
            for method in _names(of_measure, "method"):
                curve = sorted(select(of_measure, {"method": method}), key=lambda p: int(p["draws"]))
                draws, mean = [p["draws"] for p in curve], [p[metric]["mean"] for p in curve]
                bars = _bars(point[metric]["se"] for point in curve)
                # bars of NaN take as long to draw as others
                yerr = None if np.isnan(bars).all() else bars
                marker = measure_marker(measure)
                _draw_line(axes, method, draws, mean, yerr, marker=marker, markersize=3, linewidth=1)
        row[0].set_ylabel(metric_title(metric))
    grid[0, 0].set_xticks(sorted({point["draws"] for point in points}))
    _label_measures(figure, grid, measures, "sampled answers per question")
    return figure


# ---- Figure 0: reliability, before and after ------------------------------------------------------------

#: Number of resamples for a consistency band, enough for a plot.
RESAMPLES = 500


def _scores(run: FinishedRun, model: str, dataset: str, method: str) -> tuple[Floats, Floats]:
    """Return confidence and correctness of the questions of all runs for which `MEASURE` is defined."""
    chosen = run.selections[model, dataset]["methods"].get(method, {}).get(MEASURE)
    if chosen is None:  # not supported by a server
        return np.zeros(0), np.zeros(0)
    columns = [read_columns(run, model, dataset, chosen["candidate"], number) for number in range(run.runs)]
    confidence = np.concatenate([one.confidence[MEASURE] for one in columns])
    correct = np.concatenate([one.correct[MEASURE] for one in columns])
    defined = ~(np.isnan(confidence) | np.isnan(correct))
    return confidence[defined], correct[defined]


def _calibrated(run: FinishedRun, model: str, dataset: str, key: str) -> tuple[Floats, Floats]:
    """Return the share or the calibrated probability of Base's answers, and correctness, of all runs."""
    rows = [row for number in range(run.runs) for row in run.calibrated_rows(model, dataset, number)]
    table = np.array([[row[key], row["correct"]] for row in rows], dtype=np.float64)
    return table[:, 0], table[:, 1]


@style()
def before_after_figure(run: FinishedRun, _: Records, model: str, dataset: str) -> Figure | None:
    """Draw the CORP curves and bins of two methods on one data set; None if the measure is undefined."""
    if MEASURE not in run.measures:
        return None
    methods = compared_methods(run.methods)
    by_method = {method: _scores(run, model, dataset, method) for method in methods}
    by_method = {method: scores for method, scores in by_method.items() if len(scores[0])}
    if not by_method:
        return None
    figure, ((axes,),) = panels(1, 1, panel=(2.55, 2.1), margins=(0.5, 0.1, 0.1, 0.42))
    _draw_both(axes, by_method)
    axes.set_xlabel(f"confidence ({MEASURE})")
    return figure


@style()
def threshold_figure(run: FinishedRun, _: Records, model: str, dataset: str) -> Figure:
    """Draw reliability of Base and Calibrated; below, coverage and risk of thresholds on Calibrated."""
    base, calibrated = (_calibrated(run, model, dataset, key) for key in ("share", "probability"))
    figure, ((above,), (below,)) = panels(
        2, 1, panel=(2.55, 1.7), gaps=(0.0, 0.78), margins=(0.5, 0.1, 0.1, 0.42)
    )
    _draw_both(above, {"Base": base, CALIBRATED: calibrated})
    above.set_xlabel("confidence")
    p, correct = calibrated
    thresholds = np.unique(p)
    answered = p[:, None] >= thresholds
    share = answered.mean(axis=0)
    wrong = (answered * (1 - correct[:, None])).sum(axis=0) / answered.sum(axis=0)
    at = np.concatenate([[0.0], thresholds])  # up to the smallest one, everything is answered
    for values, colour, width, label in (
        (share, QUIET, 1.2, "answered"),
        (wrong, method_colour(CALIBRATED), 1.5, "wrong among answered"),
    ):
        steps = values[[0, *range(len(values))]]
        below.step(at, steps, where="pre", color=colour, linewidth=width, label=label)
    promise = run.calibration(model, dataset)["threshold"]
    if promise is not None:
        limit, threshold = promise["risk_limit"], promise["threshold"]
        below.axhline(limit, color=INK, linewidth=0.7, linestyle=(0, (1, 1.5)), label=f"limit {limit:.3g}")
        if threshold is not None:
            below.axvline(threshold, color=INK, linewidth=1.0, label=f"threshold {threshold:.2f}")
    below.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=7, handlelength=1.6)
    below.set_xlabel("threshold on the probability")
    below.set_ylabel("share")
    _unit_square(below)
    return figure


def _draw_both(axes: Axes, by_method: Mapping[str, tuple[Floats, Floats]]) -> None:
    axes.plot([0, 1], [0, 1], color=QUIET, linewidth=0.7)
    for method, (confidence, correct) in by_method.items():
        band = 0.6 if method == list(by_method)[-1] else 0.0
        _draw_curve(axes, method, confidence, correct, band=band)
    _unit_square(axes)
    axes.set_ylabel("share right")


def _unit_square(axes: Axes) -> None:
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])


def _draw_curve(axes: Axes, method: str, confidence: Floats, correct: Floats, *, band: float) -> None:
    diagram = metrics.reliability_diagram(confidence, correct, resamples=RESAMPLES if band else 1)
    colour, line = method_colour(method), method_line(method)
    if band:
        axes.fill_between(
            diagram.confidence, diagram.band_low, diagram.band_high, color=BAND, alpha=band, linewidth=0
        )
    axes.plot(diagram.confidence, diagram.recalibrated, color=colour, linestyle=line, linewidth=1.5)
    sizes = 8 + 90 * diagram.bin_count / len(confidence)
    axes.scatter(
        diagram.bin_confidence, diagram.bin_accuracy, s=sizes, color=colour, alpha=0.55, linewidths=0
    )


# ---- Figures 9 and 10: distributions and correlations ----------------------------------------------------


@style()
def distribution_figure(run: FinishedRun, entries: Records, *_: str) -> Figure:
    """Draw histograms of the top meaning's confidence: rows are methods, columns measures; line: median."""
    methods, measures = _names(entries, "method"), run.measures
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
    filled = [
        (grid[methods.index(entry["method"]), measures.index(entry["measure"])], entry)
        for entry in entries
        if entry["measure"] in measures
    ]
    for axes, entry in filled:
        axes.stairs(entry["share"], entry["edges"], color=method_colour(entry["method"]), fill=True)
        axes.tick_params(labelsize=7)
    for axes, entry in filled:  # a line depends on the limits, which each histogram of the figure changes
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
def correlation_figure(_: FinishedRun, entries: Records, *__: str) -> Figure:
    """Draw Pearson correlations between the measures' confidences: an annotated matrix for each method.

    Darker cells are higher, from the lowest value of the figure to 1.
    """
    matrices = [np.array(entry["matrix"], dtype=np.float64) for entry in entries]
    lowest = min((float(np.nanmin(matrix)) for matrix in matrices if np.isfinite(matrix).any()), default=0.0)
    figure, ((*grid,),) = panels(
        1, len(entries), panel=(2, 2), gaps=(0.1, 0), margins=(0.46, 0.06, 0.24, 0.46)
    )
    for axes, entry, matrix in zip(grid, entries, matrices):
        # fixed colors of cells, because numbers are drawn on them
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
            text = "–" if np.isnan(value) else f"{value:.2f}".replace("0.", ".").replace("-", "−")
            axes.text(j + 0.5, i + 0.5, text, ha="center", va="center", size=6.2, color=ink)
        places = np.arange(len(entry["measures"])) + 0.5
        axes.set_xticks(places, entry["measures"], rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(places, entry["measures"])
        axes.tick_params(length=0, labelsize=7)
        axes.invert_yaxis()
        axes.set_aspect("equal")
        axes.spines[:].set_visible(False)
        mean = "" if entry["mean"] is None else f", mean {entry['mean']:.2f}"
        axes.set_title(f"{entry['method']}{mean}")
    for axes in grid[1:]:
        axes.tick_params(labelleft=False)
    return figure


# ---- The figures ------------------------------------------------------------------------------------------

for _figure in (
    ReportFigure(
        number="0",
        subject="before-after",
        caption="Accuracy of answers by confidence, before and after recalibration.",
        draw=before_after_figure,
        each=("model", "dataset"),
    ),
    ReportFigure(
        number="0a",
        subject="threshold",
        caption="Above: accuracy of answers by confidence, for Base and Calibrated. Below: the share of "
        "answered questions, and the share of wrong answers among them, for each threshold on the calibrated "
        "probability.",
        draw=threshold_figure,
        each=("model", "dataset"),
        analysis="calibrated",
    ),
    ReportFigure(
        number="1",
        subject="pull",
        caption="One question at T = 0.5 and at the fitted temperature: the L-SC of each meaning, right (✓) "
        "or wrong (✗). The question was chosen for the large effect of the fitted temperature.",
        draw=teaser_figure,
        section="worked",
    ),
    ReportFigure(
        number="2",
        subject="schematic",
        caption="Computation of the seven measures from the answers to one question of this run, with Base "
        "or else the first method.",
        draw=schematic_figure,
        section="worked",
    ),
    ReportFigure(
        number="3",
        subject="scatter",
        caption="ACE against AUROC of every method (color) and measure (marker): mean and, for several runs, "
        "its standard error. Closer to the top left is better.",
        draw=scatter_figure,
        analysis="confidence",
        section="scores",
    ),
    ReportFigure(
        number="4",
        subject="selective",
        caption="Accuracy of answered questions if the least confident ones are rejected: mean and, for "
        "several runs, its standard error.",
        draw=partial(selective_figure, among=SELECTIVE),
        each=("model",),
        analysis="selective",
        section="selective",
    ),
    ReportFigure(
        number="5",
        subject="selective",
        caption="As figure 4, for all measures.",
        draw=selective_figure,
        each=("model",),
        analysis="selective",
        section="selective",
    ),
    ReportFigure(
        number="6",
        subject="generations",
        caption="ACE and AUROC against the number of sampled answers, cut from one sampling of the largest "
        "number. Fits are those of m samples, and so are choices unless sampling.reselect is on. Bars: "
        "standard error over runs, if there are several.",
        draw=count_figure,
        each=("model", "dataset"),
        analysis="generations",
        section="draws",
    ),
    ReportFigure(
        number="7a",
        subject="NLL",
        caption="As figure 3, with every method fitted by NLL and chosen again: mean and, for several runs, "
        "standard deviation.",
        draw=partial(scatter_figure, error="sd"),
        analysis="losses",
        rows=partial(fitted_by, "NLL"),
        section="fits",
    ),
    ReportFigure(
        number="7b",
        subject="SS",
        caption="As figure 7a, with every method fitted by selective smoothing.",
        draw=partial(scatter_figure, error="sd"),
        analysis="losses",
        rows=partial(fitted_by, "SS"),
        section="fits",
    ),
    ReportFigure(
        number="8",
        subject="prompts",
        caption="The exact prompts of the first test questions.",
        draw=prompt_figure,
        analysis="prompts",
    ),
    ReportFigure(
        number="9",
        subject="distributions",
        caption="Distribution of the confidence in the top meaning, all runs together; line: median.",
        draw=distribution_figure,
        each=("model", "dataset"),
        analysis="distributions",
        section="spread",
    ),
    ReportFigure(
        number="10",
        subject="correlations",
        caption="Pearson correlation between the measures' confidences, all runs together.",
        draw=correlation_figure,
        each=("model", "dataset"),
        analysis="correlations",
        section="spread",
    ),
):
    REPORT_FIGURES.register(_figure)
