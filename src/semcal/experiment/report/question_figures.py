"""Figures of single questions: meanings at two temperatures, a worked example, and the exact prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import scipy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from semcal.experiment.analyses.grid_scores import Record, Records, base_candidate
from semcal.experiment.finished import FinishedRun
from semcal.experiment.grid_settings import Grading
from semcal.experiment.report.tables import compared_methods
from semcal.files import parse_float
from semcal.grading.grade import grade_texts
from semcal.measures import MEASURES
from semcal.measuring import wordings
from semcal.plotting import INK, OTHER, QUIET, RULE, shortened, style, wrapped
from semcal.rows import NO_ANSWER, Row

# ---- Figure 1: one question at T = 0.5 and at the fitted T -----------------------------------------------

MEASURE = "L-SC"
#: Right and wrong also differ in lightness and hatching, for print without color.
COLOURS = {True: "#009e73", False: "#d55e00", None: OTHER}
MARKS = {True: "✓", False: "✗", None: ""}
#: Maximum number of bars; further meanings share one bar.
SHOWN = 5


@style()
def teaser_figure(run: FinishedRun, _: Records) -> Figure | None:
    """Draw one question with its L-SC at T = 0.5 (SE) and at the fitted temperature (TS).

    Among the questions of run 0 with several meanings, those that TS answers correctly come first, then those
    with few meanings; of these the squared error of confidence decreases most from SE to TS. None without
    such a question, or if the run lacks a method or the measure.
    """
    if not {"SE", "TS"} <= set(run.methods) or MEASURE not in run.measures:
        return None
    model, dataset = run.models[0], run.datasets[0]
    pair = [
        run.rows(model, dataset, run.choice(model, dataset, name, MEASURE)["candidate"])
        for name in ("SE", "TS")
    ]
    before, after = max(zip(*pair, strict=True), key=lambda rows: (_worth(*rows), rows[0]["id"]))
    if not _worth(before, after)[0]:
        return None
    lines = wrapped(before["question"], 62)
    figure = Figure(
        figsize=(3.25, 1.15 + 0.14 * len(lines) + 0.17 * (_bars(before) + _bars(after))),
        layout="constrained",
    )
    figure.suptitle("\n".join(lines), x=0.01, ha="left", size=8, parse_math=False)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(_bars(before), _bars(after)))
    temperature = run.choice(model, dataset, "TS", MEASURE)["temperature"]
    grading = run.settings.grading
    _draw_meanings(upper, before, "(a) SE, T = 0.5", grading)
    _draw_meanings(lower, after, f"(b) TS, T = {temperature:.2f}", grading)
    lower.set_xlabel(f"{MEASURE} of each meaning", labelpad=2)
    return figure


def _worth(before: Record, after: Record) -> tuple[bool, bool, bool, float]:
    """Return the rank of a question as an example: TS correct, few meanings, much smaller squared error."""
    defined = before["confidence"][MEASURE] is not None and after["confidence"][MEASURE] is not None
    if not defined or len(after["clusters"]) == 1:
        return False, False, False, 0.0
    before_error, after_error = (
        float((row["confidence"][MEASURE] - row["correct"][MEASURE]) ** 2) for row in (before, after)
    )
    gain = before_error - after_error
    right = gain > 0 and bool(after["correct"][MEASURE])
    return True, right, len(after["clusters"]) <= SHOWN, gain


def _bars(row: Record) -> int:
    return min(len(row["clusters"]), SHOWN + 1)


def _draw_meanings(axes: Axes, row: Record, title: str, grading: Grading) -> None:
    """Draw a bar for each meaning, the most confident at the top, with its number of samples."""
    confidences, words = row["confidences"][MEASURE], wordings(Row(row))
    order = sorted(range(len(confidences)), key=lambda i: -confidences[i])
    bars: list[tuple[str, float, bool | None]] = []
    right: bool | None
    for i in order[:SHOWN]:
        if i == row["top_cluster"][MEASURE]:  # the grade of the run; other meanings are graded by its rules
            right = bool(row["correct"][MEASURE])
        else:
            right = grade_texts(grading.grader(), row["question"], [words[i]], row["answers"]).correct
        name = f"{shortened(words[i] or NO_ANSWER, 24)}  ×{len(row['clusters'][i])}"
        bars.append((name, confidences[i], right))
    if further := order[SHOWN:]:
        bars.append((f"{len(further)} more", sum(confidences[i] for i in further), None))
    names = [name for name, _, _ in bars]
    places = range(len(bars))
    for place, (_, value, right) in zip(places, bars):
        axes.barh(
            place,
            value,
            height=0.72,
            color=COLOURS[right],
            hatch="////" if right is False else "",
            edgecolor="white",
            linewidth=0,
        )
        axes.text(value + 0.015, place, f"{value:.2f} {MARKS[right]}", va="center", size=7)
    axes.set_yticks(places, names, parse_math=False)
    axes.set_title(title, loc="left", pad=3, color=INK)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xlim(0, 1.18)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_color(QUIET)
    axes.grid(axis="x", color=RULE, linewidth=0.5)
    axes.set_axisbelow(True)


# ---- Figure 2: answers → meanings → statistics → seven distributions -------------------------------------

#: Colors of meanings, from dark to light.
SHADES = ("#1b5e82", "#6aa6c8", "#a9cbdf", "#d3e4ee")
NOTE = (
    "For each meaning: n answers; s sum and $\\bar{s}$ mean of their likelihoods l; H entropy of l/s; "
    "E = −Σ log l. m is the number of all answers."
)
#: Maximum number of answers.
LINES = 12
#: Sizes in inches.
HEIGHT = 3.3
HEADS = ("n", "s", "$\\bar{s}$", "H", "E")


@style()
def schematic_figure(run: FinishedRun, _: Records) -> Figure | None:
    """Draw the computation of the seven measures from the answers to one stored question.

    The question is one of Base's, run 0, with three meanings (else two or four), whose measures differ most.
    None without such a question, or without likelihoods.
    """
    model, dataset, method = run.models[0], run.datasets[0], compared_methods(run.methods)[0]
    rows = run.rows(model, dataset, base_candidate(run, model, dataset))
    fitting = [row for row in rows if _fits(row, run.measures)]
    if not fitting:
        return None
    row = max(fitting, key=lambda row: (len(row["clusters"]) == 3, _variety(row, run.measures), row["id"]))
    alphas = {name: run.choice(model, dataset, method, name)["measure_alpha"] for name in run.measures}
    figure = Figure(figsize=(6.75, HEIGHT))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, 6.75)
    axes.set_ylim(HEIGHT, 0)
    axes.text(0.08, 0.16, shortened(row["question"], 118), size=8.5, weight="bold", parse_math=False)
    axes.text(0.08, HEIGHT - 0.1, NOTE, size=6.5, color=QUIET)
    places = _draw_answers(axes, row)
    _draw_statistics(axes, row, places)
    _draw_distributions(axes, row, run.measures, alphas)
    return figure


def _fits(row: Record, measures: Sequence[str]) -> bool:
    """Return whether a question is small enough, and all its values are known."""
    logs = [parse_float(value) for value in row.get("log_likelihoods") or [None]]
    return (
        2 <= len(row["clusters"]) <= len(SHADES)
        and all(log is not None and np.isfinite(log) for log in logs)
        and all(row["confidence"].get(name) is not None for name in measures)
        and sum(len(_lines(row, cluster)) for cluster in row["clusters"]) <= LINES
    )


def _lines(row: Record, cluster: Sequence[int]) -> list[tuple[str, float]]:
    """Return the answers of a meaning with their likelihoods; if there are many, equal ones share a line."""
    lines = [(row["samples"][i], float(_likelihoods(row)[i])) for i in cluster]
    if len(row["samples"]) <= LINES:
        return lines
    return [(f"{text} ×{lines.count((text, value))}", value) for text, value in dict.fromkeys(lines)]


def _variety(row: Record, measures: Sequence[str]) -> float:
    """Return the spread of the measures; questions with several wordings of one meaning come first."""
    spread = np.ptp([row["confidences"][name] for name in measures], axis=0).max()
    wordings = len({row["samples"][i] for i in row["clusters"][row["top_cluster"][measures[0]]]})
    return float(spread) + (wordings > 1)


def _draw_answers(axes: Axes, row: Record) -> list[tuple[float, float]]:
    _head(axes, 0.08, f"{len(row['samples'])} answers, likelihood l per token")
    parts = [_lines(row, cluster) for cluster in row["clusters"]]
    step = min(0.235, 2.3 / (sum(map(len, parts)) + 0.5 * len(parts)))
    y, places = 0.72, []
    for number, lines in enumerate(parts):
        top = y
        for text, likelihood in lines:
            axes.text(0.24, y, shortened(text, 27), size=7, va="center", parse_math=False)
            axes.text(2.12, y, f"{likelihood:.2f}", size=7, va="center", ha="right")
            y += step
        axes.add_patch(Rectangle((0.1, top - step / 2), 0.07, y - top, color=SHADES[number], linewidth=0))
        places.append((top - step / 2, y - step / 2))
        y += 0.5 * step
    return places


def _likelihoods(row: Record) -> NDArray[np.float64]:
    return np.exp(np.array([parse_float(value) for value in row["log_likelihoods"]], dtype=np.float64))


def _draw_statistics(axes: Axes, row: Record, places: Sequence[tuple[float, float]]) -> None:
    columns = np.array([2.52, 2.81, 3.14, 3.46, 3.8])
    _head(axes, 2.36, "meanings")
    for x, head in zip(columns, HEADS):
        axes.text(x + 0.1, 0.62, head, size=7.5, ha="right", va="center", color=QUIET)
    heights: list[float] = []  # near the middle of each meaning, at least 0.26 apart
    for top, bottom in places:
        heights.append(max((top + bottom) / 2, heights[-1] + 0.26 if heights else 0.86))
    for number, (cluster, (top, bottom), y) in enumerate(zip(row["clusters"], places, heights)):
        axes.plot([2.16, 2.3], [(top + bottom) / 2, y], color=RULE, linewidth=1)
        axes.add_patch(Rectangle((2.32, y - 0.08), 0.16, 0.16, color=SHADES[number], linewidth=0))
        axes.text(2.4, y, str(number + 1), size=7, ha="center", va="center", color=_ink_on(number))
        likelihood = _likelihoods(row)[cluster]
        s, n = likelihood.sum(), len(likelihood)
        values = [s, s / n, scipy.special.entr(likelihood / s).sum(), -np.log(likelihood).sum()]
        for x, value in zip(columns, [str(n), *(f"{abs(value):.2f}" for value in values)]):
            axes.text(x + 0.1, y, value, size=7, ha="right", va="center")


def _draw_distributions(
    axes: Axes, row: Record, measures: Sequence[str], alphas: Mapping[str, float | None]
) -> None:
    _head(axes, 4.14, "measure ∝ score")
    origin, width, step = 5.56, 1.11, 0.3
    axes.text(origin, 0.4, "distribution", size=7.5, va="center", color=QUIET)
    for i, name in enumerate(measures):
        y = 0.72 + i * step
        a = alphas.get(name)
        axes.text(4.14, y, name, size=7.5, va="center", color=INK)
        axes.text(
            4.58, y, MEASURES[name].formula + (f"  a={a:g}" if a else ""), size=6.5, va="center", color=QUIET
        )
        start = 0.0
        for number, p in enumerate(row["confidences"][name]):
            axes.add_patch(
                Rectangle(
                    (origin + start * width, y - 0.1),
                    p * width,
                    0.2,
                    facecolor=SHADES[number],
                    edgecolor="white",
                    linewidth=0.6,
                )
            )
            if p > 0.17:
                axes.text(
                    origin + (start + p / 2) * width,
                    y,
                    f"{p:.2f}",
                    size=6.5,
                    ha="center",
                    va="center",
                    color=_ink_on(number),
                )
            start += p


def _ink_on(number: int) -> str:
    return "#ffffff" if number == 0 else "#111111"


def _head(axes: Axes, x: float, text: str) -> None:
    axes.text(x, 0.4, text, size=7.5, va="center", color=QUIET)


# ---- Figure 8: the exact prompts -------------------------------------------------------------------------

FONT = "DejaVu Sans Mono"
#: Characters per line, their size in points, and the distance of lines in inches.
WIDTH, SIZE, LINE = 122, 6.3, 0.118


@style()
def prompt_figure(_: FinishedRun, entries: Records) -> Figure | None:
    """Draw the closed-book and open-book prompts of the first model as a page of text; None without any."""
    by_book: dict[bool, Record] = {}
    for entry in entries:
        if entry["prompt"] is not None:
            by_book.setdefault(entry["open_book"], entry)
    prompts = {
        f"{'open' if book else 'closed'} book, {by_book[book]['dataset']}": by_book[book]["prompt"]
        for book in sorted(by_book)
    }
    if not prompts:
        return None
    parts = {title: wrapped(text, WIDTH) for title, text in prompts.items()}
    height = sum(0.5 + LINE * len(lines) for lines in parts.values())
    figure = Figure(figsize=(6.75, height))
    y = height
    for letter, (title, lines) in zip("ab", parts.items()):
        figure.text(0.012, (y - 0.2) / height, f"({letter}) {title}", size=8.5, color=INK, parse_math=False)
        for number, line in enumerate(lines):
            place = (y - 0.4 - LINE * number) / height
            figure.text(0.02, place, line, size=SIZE, family=FONT, color=INK, parse_math=False)
        y -= 0.5 + LINE * len(lines)
    return figure
