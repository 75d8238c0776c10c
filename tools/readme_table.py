"""Print the table of README.md: real models before and after calibration.

    SEMCAL_DATA=FOLDER python -m tools.readme_table

The first row is of the example set of the package, out of fold. The others are the rows of 250 labels and all
rules of `python -m benchmarks samples --table labels`. A share of answered questions is the largest multiple
of 5% at which the most probable answers keep the errors.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import semcal
from benchmarks import _sample_maps, samples

HEAD = (
    "| model and questions | accuracy | confidence before | after | answered at 20% errors | at 10% errors |",
    "| --- | ---: | ---: | ---: | ---: | ---: |",
)
LABELS = 250


class Figures(NamedTuple):
    """One row of the table."""

    name: str
    accuracy: float
    before: float
    after: float
    answered: tuple[float, ...]  # at each of `_sample_maps.ERRORS`


def example_set() -> Figures:
    """Return the figures of the example set."""
    results = semcal.score("real", progress=False)
    labeled = results.calibrate().labeled
    before, p = results.metrics()["E-SC"], np.array(labeled.out_of_fold)
    correct = np.array(labeled.correct_out_of_fold, dtype=float)
    kept = tuple(_sample_maps.answered(p, correct, errors) for errors in _sample_maps.ERRORS)
    means = before["accuracy"], before["mean_confidence"], float(p.mean())
    return Figures("Qwen2.5-Coder-1.5B, example set", *means, kept)


def of_samples(name: str) -> Figures:
    """Return the figures of a stored set, graded by all rules."""
    features, correct = samples.graded(name, "rules")
    after = _sample_maps.after_map(features, correct, LABELS)
    kept = tuple(after[f"answered at {errors:.0%} errors after"] for errors in _sample_maps.ERRORS)
    means = float(correct.mean()), after["mean confidence before"], after["mean confidence after"]
    return Figures(_sample_maps.TITLES[name], *means, kept)


def row(figures: Figures) -> str:
    """Format one row as Markdown."""
    values = [f"{share:.0%}" for share in (figures.accuracy, figures.before, figures.after)]
    kept = [f"{share:.0%}" if share else "none" for share in figures.answered]
    return f"| {figures.name} | {' | '.join(values + kept)} |"


def main() -> None:
    rows = [row(example_set()), *(row(of_samples(name)) for name in _sample_maps.TITLES)]
    print("\n".join([*HEAD, *rows]))


if __name__ == "__main__":
    main()
