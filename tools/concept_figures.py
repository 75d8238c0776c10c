"""Draw the pictures of docs/concepts.md and docs/architecture.md.

python -m tools.concept_figures
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from semcal.plotting import INK, QUIET, RULE, STYLE, method_colour

FOLDER = Path(__file__).parents[1] / "docs"
#: Ten answers to one question, by meaning: number of samples and wordings.
MEANINGS: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    ("Ana Velis", 6, ("Ana Velis", "A. Velis", "Velis, Ana")),
    ("Bo Tarn", 3, ("Bo Tarn", "Tarn")),
    ("Cy Orr", 1, ("Cy Orr",)),
)
COLOURS = ("#5d3a9b", "#d55e00", "#767676")
#: The floors of the package from the top, with the files of three walks.
WALKS = (("a question", "semcal ask"), ("a labeled example", "semcal fit"), ("a grid job", "semcal run"))
FLOORS: tuple[tuple[str, str, str, str], ...] = (
    ("cli", "ask.py · options.py", "fit.py", "grid_commands.py"),
    ("experiment", "", "", "grid.py · grid_steps.py\ngrid_plan.py · finished.py\nanalyses · report"),
    ("uncertainty, results", "AskStep · SemanticUQ\nAnswer", "", ""),
    ("calibration", "calibrated.py", "", "learn.py"),
    (
        "recalibration,\ngrading, servers,\nmodels, steps, store",
        "run_stages · sample.py\ncausal_lm.py · decoding.py\nclustering.py · nli.py",
        "fit_data.py · fit.py\nexact_solver.py\nmethods.py · files.py",
        "fit.py · select.py\nclustering.py · grade.py\nsample.py · store.py",
    ),
    ("rows, measuring", "Row", "", "Row · MeasureStep"),
    ("data, workers", "question.py", "datasets.py · sources.py", "splits.py · workers.py"),
    ("meaning,\ntext, files", "answer.py · rules.py\nnormal_form.py", "files.py", "rules.py · files.py"),
    ("measures, metrics", "formulas.py", "", "formulas.py\ncalibration_errors.py"),
)


def steps() -> Figure:
    """Draw sampling, clusters and measures."""
    figure = Figure(figsize=(7.6, 2.9))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 100), ylim=(0, 40))
    axes.set_axis_off()
    for x, title in (
        (2, "1  sample ten answers"),
        (38, "2  cluster by meaning"),
        (69, "3  share = confidence"),
    ):
        axes.text(x, 36.5, title, fontsize=10, weight="bold", color=INK)
    order = (0, 1, 0, 0, 2, 1, 0, 0, 1, 0)
    used = [0, 0, 0]
    for draw, meaning in enumerate(order):
        wordings = MEANINGS[meaning][2]
        text = wordings[used[meaning] % len(wordings)]
        used[meaning] += 1
        column, row = divmod(draw, 5)
        _box(axes, 2 + 16 * column, 28 - 6 * row, 14.5, 4.6, text, COLOURS[meaning])
    top = 32.6
    for (name, count, wordings), colour in zip(MEANINGS, COLOURS):
        height = 3.7 * len(wordings) + 1.2
        axes.add_patch(_rounded(38, top - height, 24, height, edgecolor=colour, facecolor="none"))
        for place, wording in enumerate(wordings):
            axes.text(39.5, top - 2.4 - 3.7 * place, wording, va="center", fontsize=9, color=colour)
        middle = top - height / 2
        axes.barh(middle, 25 * count / 10, left=69, height=2.6, color=colour)
        axes.text(70 + 25 * count / 10, middle, f"{count / 10:.1f}", va="center", fontsize=10, color=INK)
        axes.text(69, middle + 2.4, name, fontsize=8.5, color=QUIET)
        top -= height + 1.6
    return figure


def probability() -> Figure:
    """Draw the meaning of a calibrated probability."""
    figure = Figure(figsize=(7.6, 1.7))
    for place, (title, right) in enumerate((("uncalibrated", 45), ("calibrated", 70))):
        axes = figure.add_axes((0.03 + 0.5 * place, 0.02, 0.44, 0.72))
        axes.set(xlim=(-0.6, 24.6), ylim=(-0.6, 3.6), aspect="equal")
        axes.set_axis_off()
        is_right = np.zeros(100, bool)
        is_right[np.random.default_rng(1).permutation(100)[:right]] = True
        at = np.arange(100)
        colours = np.where(is_right, method_colour("Calibrated"), "#e3e6e9")
        axes.scatter(at % 25, at // 25, s=34, c=colours.tolist(), edgecolors=QUIET, linewidths=0.4)
        axes.set_title(
            f"{title}: of 100 answers given with 0.70,\n{right} are right", fontsize=9.5, color=INK
        )
    return figure


def temperature() -> Figure:
    """Draw the effects of a temperature."""
    figure = Figure(figsize=(7.6, 2.3))
    logits = np.log([0.62, 0.23, 0.1, 0.05])
    for place, t in enumerate((0.5, 1.0, 2.0)):
        axes = figure.add_axes((0.05 + 0.325 * place, 0.16, 0.27, 0.66))
        p = np.exp(logits / t) / np.exp(logits / t).sum()
        axes.bar(range(4), p, color=["#5d3a9b", "#d55e00", "#767676", "#b6bbc1"], width=0.7)
        for x, value in enumerate(p):
            axes.text(x, value + 0.02, f"{value:.2f}", ha="center", fontsize=8, color=INK)
        axes.set(ylim=(0, 1), yticks=[0, 1], xticks=range(4))
        axes.set_xticklabels(["A", "B", "C", "D"])
        axes.set_title(f"T = {t:g}", fontsize=9.5, color=INK)
    return figure


def architecture() -> Figure:
    """Draw the floors of the package, and the walks of a question, a labeled example and a grid job."""
    heights = [1.1 + 0.85 * max(text.count("\n") for text in floor) for floor in FLOORS]
    total = sum(heights) + 2.2
    figure = Figure(figsize=(9.4, 0.33 * total))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 100), ylim=(total, 0))
    axes.set_axis_off()
    columns = (39, 62, 86)
    for x, (title, command), colour in zip(columns, WALKS, COLOURS):
        axes.text(x, 0.7, title, ha="center", va="center", fontsize=10, weight="bold", color=colour)
        axes.text(x, 1.5, command, ha="center", va="center", fontsize=8.5, color=QUIET, family="monospace")
    top = 2.1
    for (name, *modules), height in zip(FLOORS, heights):
        axes.add_patch(_rounded(1, top + 0.06, 98, height - 0.12, edgecolor=RULE, facecolor="#f5f6f8"))
        middle = top + height / 2
        axes.text(2.5, middle, name, va="center", fontsize=9.5, weight="bold", color=INK)
        for x, text, colour in zip(columns, modules, COLOURS):
            axes.text(x, middle, text, ha="center", va="center", fontsize=8.5, color=colour)
        top += height
    return figure


def _box(axes: Any, x: float, y: float, width: float, height: float, text: str, colour: str) -> None:
    axes.add_patch(_rounded(x, y, width, height, edgecolor=RULE, facecolor="none"))
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=9, color=colour)


def _rounded(x: float, y: float, width: float, height: float, **how: Any) -> FancyBboxPatch:
    return FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=1", linewidth=1, **how)


def main() -> None:
    """Write the pictures."""
    settings = {**STYLE, "figure.facecolor": "white", "svg.hashsalt": "semcal", "svg.fonttype": "path"}
    with matplotlib.rc_context(settings):
        for draw in (steps, probability, temperature):
            draw().savefig(FOLDER / f"concept-{draw.__name__}.svg", metadata={"Date": None})
        architecture().savefig(FOLDER / "architecture.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
