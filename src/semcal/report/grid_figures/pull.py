"""Figure 1: one question, its meanings at T = 0.5 and at the fitted T, as bars of L-SC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from semcal.experiment.finished import FinishedRun
from semcal.experiment.grid_settings import Grading
from semcal.report.figures import INK, OTHER, QUIET, RULE, style
from semcal.report.grid_figures.lettering import shortened, wrapped

__all__ = ["pull_figure"]

Row = Mapping[str, Any]

MEASURE = "L-SC"
#: Right and wrong differ in lightness and hatching too, for print without colour.
COLOURS = {True: "#009e73", False: "#d55e00", None: OTHER}
MARKS = {True: "✓", False: "✗", None: ""}
#: Meanings beyond these are drawn as one bar.
SHOWN = 5


@style()
def pull_figure(run: FinishedRun, model: str, dataset: str) -> Figure | None:
    """One question with its L-SC at T = 0.5 (SE) and at the fitted temperature (TS).

    Parameters
    ----------
    run : FinishedRun
    model, dataset : str

    Returns
    -------
    Figure or None
        For print. Of the questions of run 0 with several meanings, those first that TS gets right, then those
        with few meanings, the one whose squared error of confidence falls most from SE to TS. None where
        there is none, or the run lacks one of the methods or the measure.
    """
    if not {"SE", "TS"} <= set(run.methods) or MEASURE not in run.measures:
        return None
    pair = [
        run.rows(model, dataset, run.choice(model, dataset, name, MEASURE)["candidate"])
        for name in ("SE", "TS")
    ]
    before, after = max(zip(*pair, strict=True), key=lambda rows: (_worth(*rows), rows[0]["id"]))
    if not _worth(before, after)[0]:
        return None
    asked = wrapped(before["question"], 62)
    figure = Figure(
        figsize=(3.25, 1.15 + 0.14 * len(asked) + 0.17 * (_bars(before) + _bars(after))), layout="constrained"
    )
    figure.suptitle("\n".join(asked), x=0.01, ha="left", size=8, parse_math=False)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(_bars(before), _bars(after)))
    temperature = run.choice(model, dataset, "TS", MEASURE)["temperature"]
    grading = Grading(**run.settings["grading"])
    _draw(upper, before, "(a) SE, T = 0.5", grading)
    _draw(lower, after, f"(b) TS, T = {temperature:.2f}", grading)
    lower.set_xlabel(f"{MEASURE} of each meaning", labelpad=2)
    return figure


def _worth(before: Row, after: Row) -> tuple[bool, bool, bool, float]:
    """How well a question shows what T does: TS right, few meanings, and much less squared error."""
    known = before["confidence"][MEASURE] is not None and after["confidence"][MEASURE] is not None
    if not known or len(after["clusters"]) == 1:
        return False, False, False, 0.0
    gain = _error(before) - _error(after)
    right = gain > 0 and bool(after["correct"][MEASURE])
    return True, right, len(after["clusters"]) <= SHOWN, gain


def _error(row: Row) -> float:
    return float((row["confidence"][MEASURE] - row["correct"][MEASURE]) ** 2)


def _bars(row: Row) -> int:
    return min(len(row["clusters"]), SHOWN + 1)


def _draw(axes: Axes, row: Row, title: str, grading: Grading) -> None:
    """A bar for each meaning, the most confident at the top, with how often it was answered."""
    confidences = row["confidences"][MEASURE]
    order = sorted(range(len(confidences)), key=lambda i: -confidences[i])
    bars: list[tuple[str, float, bool | None]] = [_bar(row, i, grading) for i in order[:SHOWN]]
    if rest := order[SHOWN:]:
        bars.append((f"{len(rest)} more", sum(confidences[i] for i in rest), None))
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


def _bar(row: Row, cluster: int, grading: Grading) -> tuple[str, float, bool]:
    """Name and confidence of a meaning, and whether it is right: as the run graded it, or by its rules."""
    members = [row["samples"][i] for i in row["clusters"][cluster]]
    if cluster == row["top_cluster"][MEASURE]:
        right = bool(row["correct"][MEASURE])
    else:
        shown = members[: grading.members]
        right = grading.grader().grade(row["question"], shown, row["answers"]).correct
    return f"{shortened(members[0], 24)}  ×{len(members)}", row["confidences"][MEASURE][cluster], right
