"""Print the table of README.md: real models before and after calibration.

    python -m tools.readme_table

The first row is of the example set of the package, out of fold. The others are of the test questions of the
runs in docs/real-results. A share of answered questions is the largest multiple of 5% at which the most
probable answers keep the errors.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import semcal

RUNS = Path(__file__).parents[1] / "docs" / "real-results"
HEAD = (
    "| model and questions | accuracy | confidence before | after | answered at 20% errors | at 10% errors |",
    "| --- | ---: | ---: | ---: | ---: | ---: |",
)
#: The rows after the first: the folder of the run, its data set, and the name in the table.
SHOWN = (
    ("real-qwen-1.5b-squad", "SQuAD", "Qwen2.5-Coder-1.5B, SQuAD"),
    ("real-qwen-0.5b-squad", "SQuAD", "Qwen2.5-Coder-0.5B, SQuAD"),
    ("real-qwen-1.5b-triviaqa", "TriviaQA", "Qwen2.5-Coder-1.5B, TriviaQA"),
    ("real-smollm2", "SQuAD", "SmolLM2-135M, SQuAD"),
)


class Figures(NamedTuple):
    """One row of the table."""

    name: str
    accuracy: float
    before: float
    after: float
    rejection: Sequence[float]
    accuracies: Sequence[float]  # of the answers that remain at each rate of rejection


def example_set() -> Figures:
    """Return the figures of the example set."""
    results = semcal.score("real", progress=False)
    labeled = results.calibrate().labeled
    assert labeled is not None
    rates = np.arange(19) / 20
    curve = semcal.metrics.selective_accuracy(
        labeled.out_of_fold, labeled.correct_out_of_fold, rejection=rates
    )
    before = results.metrics()["E-SC"]
    after = float(np.mean(labeled.out_of_fold))
    return Figures(
        "Qwen2.5-Coder-1.5B, example set",
        before["accuracy"],
        before["mean_confidence"],
        after,
        list(rates),
        list(curve.accuracy),
    )


def of_run(folder: str, dataset: str, name: str) -> Figures:
    """Return the figures of one data set of a stored run."""
    analyses = json.loads((RUNS / folder / "results.json").read_text(encoding="utf-8"))["analyses"]
    base, after = (
        _entry(analyses["calibrated"], dataset, "Base"),
        _entry(analyses["calibrated"], dataset, "Calibrated"),
    )
    curve = _entry(analyses["selective"], dataset, "Calibrated")
    means = (
        after["accuracy"]["mean"],
        base["mean_confidence"]["mean"],
        after["mean_confidence"]["mean"],
    )
    return Figures(name, *means, curve["rejection"], curve["accuracy"])


def _entry(entries: Iterable[dict[str, Any]], dataset: str, method: str) -> dict[str, Any]:
    return next(
        one for one in entries if (one["dataset"], one["method"], one["measure"]) == (dataset, method, "E-SC")
    )


def row(figures: Figures) -> str:
    """Format one row as Markdown."""
    kept = [coverage(figures, errors) for errors in (0.2, 0.1)]
    values = [figures.accuracy, figures.before, figures.after, *kept]
    return f"| {figures.name} | {' | '.join('none' if one is None else f'{one:.0%}' for one in values)} |"


def coverage(figures: Figures, errors: float) -> float | None:
    """Return the largest share of answered questions with at most this share of errors."""
    points = zip(figures.rejection, figures.accuracies, strict=True)
    return max((1 - rate for rate, accuracy in points if accuracy >= 1 - errors), default=None)


def main() -> None:
    rows = [row(example_set()), *(row(of_run(*shown)) for shown in SHOWN)]
    print("\n".join([*HEAD, *rows]))


if __name__ == "__main__":
    main()
