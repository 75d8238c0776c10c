"""Draw the picture of README.md: the example set before and after calibration, and its threshold.

    python -m tools.readme_picture [--out docs/example-set.png]

Left: ten groups of equally many questions, by the share of the most frequent answer and by the calibrated
probability, out of fold. Bars are 95% intervals (Clopper and Pearson). Right: the errors among the answers
above each threshold, and the share of
answered questions, where at least 20 are answered.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import beta

import semcal
from semcal.plotting import INK, QUIET, method_colour, panels, ruled, style, write_figure

GROUPS = 10
RISK = 0.2
FEWEST = 20  # answers; above the last threshold shown are fewer


def draw_groups(axes: Axes, p: np.ndarray, correct: np.ndarray, colour: str, label: str) -> None:
    """Draw the accuracy of groups of equal size, in the order of their confidence."""
    for index in np.array_split(np.argsort(p, kind="stable"), GROUPS):
        n, right, x = len(index), correct[index].sum(), p[index].mean()
        ends = beta.ppf([0.025, 0.975], [right, right + 1], [n - right + 1, n - right])
        axes.plot([x, x], np.nan_to_num(ends, nan=float(right > 0)), color=colour, linewidth=1)
        axes.plot(x, right / n, "o", color=colour, markersize=4.5, label=label)
        label = "_"


def draw_threshold(axes: Axes, p: np.ndarray, correct: np.ndarray, threshold: float) -> None:
    """Draw errors and coverage of every threshold, and the chosen one."""
    thresholds = np.unique(p)
    thresholds = thresholds[(p[:, None] >= thresholds).sum(axis=0) >= FEWEST]
    answered = p[:, None] >= thresholds
    wrong = (answered * (1 - correct[:, None])).sum(axis=0) / answered.sum(axis=0)
    axes.step(thresholds, answered.mean(axis=0), where="pre", color=QUIET, label="answered questions")
    axes.step(thresholds, wrong, where="pre", color=method_colour("TS"), label="wrong answers among them")
    axes.axhline(RISK, color=INK, linewidth=0.7, linestyle=(0, (1, 1.5)))
    axes.axvline(threshold, color=INK, linewidth=1)
    axes.annotate(
        f"threshold {threshold:.2f}", (threshold, 0.93), (4, 0), textcoords="offset points", fontsize=8
    )
    axes.annotate(
        f"promise: at most {RISK:.0%} wrong",
        (0.01, RISK),
        (0, 4),
        textcoords="offset points",
        fontsize=8,
        ha="left",
    )


@style()
def picture() -> Figure:
    """Return the figure, about 8 × 3.4 inches."""
    results = semcal.score("real", progress=False)
    calibration = results.calibrate(risk=RISK)
    labeled, chosen = calibration.labeled, calibration.threshold
    assert labeled is not None
    assert chosen is not None
    assert chosen.threshold is not None
    p, correct = np.array(labeled.out_of_fold), np.array(labeled.correct_out_of_fold, float)
    share = np.array([answer.confidence for answer in results])
    figure, ((left, right),) = panels(1, 2, panel=(3.3, 2.6), gaps=(0.75, 0), margins=(0.6, 0.15, 0.35, 0.5))
    left.plot([0, 1], [0, 1], color=QUIET, linewidth=0.7)
    draw_groups(left, share, correct, method_colour("Base"), "share of equal answers")
    draw_groups(left, p, correct, method_colour("TS"), "probability by semcal")
    draw_threshold(right, p, correct, chosen.threshold)
    for axes, x, y in (
        (left, "stated confidence", "share right"),
        (right, "answer from this probability on", "share"),
    ):
        axes.set(xlabel=x, ylabel=y, xlim=(0, 1.02), ylim=(0, 1.02))
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=8, handlelength=1.6)
        ruled(axes, "both")
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).parents[1] / "docs" / "example-set.png"
    parser.add_argument("--out", type=Path, default=default)
    print(write_figure(picture(), parser.parse_args(arguments).out))


if __name__ == "__main__":
    main()
