"""Figure 2: one stored question worked through: answers → meanings → statistics → seven distributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from scipy.special import entr

from semcal.experiment.finished import FinishedRun
from semcal.records import parse_float
from semcal.report.figures import INK, QUIET, RULE, style
from semcal.report.grid_figures.lettering import shortened

__all__ = ["schematic_figure"]

Row = Mapping[str, Any]

#: Meanings differ in lightness, dark to light, and are numbered.
SHADES = ("#1b5e82", "#6aa6c8", "#a9cbdf", "#d3e4ee")
#: What each measure's score of a meaning C is.
FORMULAS = {
    "E-SC": "n",
    "L-SC": "s",
    "ML-SC": "$\\bar{s}$",
    "B-SC": "$e^{-E}$ n/m",
    "T-SC": "($e^{-E}$ n/m)$^{1/a}$",
    "IC-SC": "s $e^{-H}$",
    "G-SC": "n/m $e^{-aE}$",
}
NOTE = (
    "Of a meaning: n answers; s sum and $\\bar{s}$ mean of their likelihoods l; H entropy of l/s; "
    "E = −Σ log l. In all m answers."
)
#: Answers that find room.
LINES = 12
#: Inches.
HEIGHT = 3.3
HEADS = ("n", "s", "$\\bar{s}$", "H", "E")


@style()
def schematic_figure(run: FinishedRun, model: str, dataset: str) -> Figure | None:
    """How the seven measures come from the answers to one stored question.

    Parameters
    ----------
    run : FinishedRun
    model, dataset : str

    Returns
    -------
    Figure or None
        For print. The question is one of Base's, run 0, with three meanings (else two or four) whose measures
        differ most. None where there is none, or no likelihoods.
    """
    method = "Base" if "Base" in run.methods else run.methods[0]
    rows = run.rows(model, dataset, run.choice(model, dataset, method, run.measures[0])["candidate"])
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


def _fits(row: Row, measures: Sequence[str]) -> bool:
    """Whether a question is small enough to be worked through, and all is known of it."""
    logs = [parse_float(value) for value in row.get("log_likelihoods") or [None]]
    return (
        2 <= len(row["clusters"]) <= len(SHADES)
        and all(log is not None and np.isfinite(log) for log in logs)
        and all(row["confidence"].get(name) is not None for name in measures)
        and sum(len(_lines(row, cluster)) for cluster in row["clusters"]) <= LINES
    )


def _lines(row: Row, cluster: Sequence[int]) -> list[tuple[str, float]]:
    """The answers of a meaning with their likelihoods; equal ones in one line where there are many in all."""
    drawn = [(row["samples"][i], float(_likelihoods(row)[i])) for i in cluster]
    if len(row["samples"]) <= LINES:
        return drawn
    return [(f"{text} ×{drawn.count((text, value))}", value) for text, value in dict.fromkeys(drawn)]


def _variety(row: Row, measures: Sequence[str]) -> float:
    """How far the measures lie apart; questions with several wordings of one meaning come first."""
    spread = np.ptp([row["confidences"][name] for name in measures], axis=0).max()
    wordings = len({row["samples"][i] for i in row["clusters"][row["top_cluster"][measures[0]]]})
    return float(spread) + (wordings > 1)


def _draw_answers(axes: Axes, row: Row) -> list[tuple[float, float]]:
    """The answers, meaning by meaning, with their likelihoods; returns where each meaning stands."""
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


def _likelihoods(row: Row) -> NDArray[np.float64]:
    return np.exp(np.array([parse_float(value) for value in row["log_likelihoods"]], dtype=np.float64))


def _draw_statistics(axes: Axes, row: Row, places: Sequence[tuple[float, float]]) -> None:
    """A row of statistics for each meaning."""
    columns = np.array([2.52, 2.81, 3.14, 3.46, 3.8])
    _head(axes, 2.36, "meanings")
    for x, head in zip(columns, HEADS):
        axes.text(x + 0.1, 0.62, head, size=7.5, ha="right", va="center", color=QUIET)
    heights = _spaced([(top + bottom) / 2 for top, bottom in places], 0.26, 0.86)
    for number, (cluster, (top, bottom), y) in enumerate(zip(row["clusters"], places, heights)):
        axes.plot([2.16, 2.3], [(top + bottom) / 2, y], color=RULE, linewidth=1)
        axes.add_patch(Rectangle((2.32, y - 0.08), 0.16, 0.16, color=SHADES[number], linewidth=0))
        axes.text(2.4, y, str(number + 1), size=7, ha="center", va="center", color=_ink_on(number))
        for x, value in zip(columns, _statistics(_likelihoods(row)[cluster])):
            axes.text(x + 0.1, y, value, size=7, ha="right", va="center")


def _statistics(likelihood: NDArray[np.float64]) -> list[str]:
    s = likelihood.sum()
    values = [s, s / len(likelihood), entr(likelihood / s).sum(), -np.log(likelihood).sum()]
    return [str(len(likelihood)), *(f"{abs(value):.2f}" for value in values)]


def _spaced(wanted: Sequence[float], step: float, first: float) -> list[float]:
    """Places near the wanted ones, at least `step` apart."""
    found: list[float] = []
    for place in wanted:
        found.append(max(place, found[-1] + step if found else first))
    return found


def _draw_distributions(
    axes: Axes, row: Row, measures: Sequence[str], alphas: Mapping[str, float | None]
) -> None:
    """A bar for each measure, cut into its meanings."""
    _head(axes, 4.14, "measure ∝ score")
    left, width, step = 5.56, 1.11, 0.3
    axes.text(left, 0.4, "distribution", size=7.5, va="center", color=QUIET)
    for i, name in enumerate(measures):
        y = 0.72 + i * step
        a = alphas.get(name)
        axes.text(4.14, y, name, size=7.5, va="center", color=INK)
        axes.text(4.58, y, FORMULAS[name] + (f"  a={a:g}" if a else ""), size=6.5, va="center", color=QUIET)
        start = 0.0
        for number, p in enumerate(row["confidences"][name]):
            axes.add_patch(
                Rectangle(
                    (left + start * width, y - 0.1),
                    p * width,
                    0.2,
                    facecolor=SHADES[number],
                    edgecolor="white",
                    linewidth=0.6,
                )
            )
            if p > 0.17:
                axes.text(
                    left + (start + p / 2) * width,
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
