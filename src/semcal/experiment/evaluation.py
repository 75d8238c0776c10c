"""The numbers of one question set: metrics by measure, and methods against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from semcal import metrics
from semcal.experiment.settings import Settings
from semcal.pipeline.assess import assess, scores_by_measure
from semcal.qa.groups import several, ties_of
from semcal.semantics import MEASURES

__all__ = ["COMPARED", "CompareJob", "EvaluateJob", "compare_methods", "evaluate"]

Rows = Sequence[Mapping[str, Any]]
Scored = tuple[list[float], list[bool]]
Cell = tuple[str, str]
#: Metrics of which TS is compared with the others, question by question.
COMPARED = ("ace", "brier", "auroc")


def evaluate(rows: Rows, settings: Settings) -> dict[str, Any]:
    """Evaluate graded rows of one method: diversity of its answers, and all metrics by measure."""
    scores = scores_by_measure(rows, MEASURES)
    assessed = assess(scores, ci=True, seed=settings.seed, resamples=settings.resamples)
    return {
        "distinct_answers": float(np.mean([len(set(row["samples"])) for row in rows])),
        "meanings": float(np.mean([len(row["clusters"]) for row in rows])),
        "measures": {name: {**assessed[name], "undefined": scores[name].undefined} for name in MEASURES},
    }


def compare_methods(rows: Mapping[str, Rows], settings: Settings) -> list[dict[str, Any]]:
    """Compare TS with the other methods on the same questions (paired), for every measure.

    Returns
    -------
    list of dict
        {method, against, measure, metric, difference, interval, p}: TS less the other method, its 95 %
        interval and two-sided p-value over questions; only questions defined under both count.
    """
    cells = {
        (against, measure): _paired(rows["TS"], rows[against], measure)
        for against in rows
        if against != "TS"
        for measure in MEASURES
    }
    tests: dict[Cell, dict[str, metrics.PairedTest]] = {}
    ties = {row["id"]: ties_of(row) for row in rows["TS"]}
    for asked in {ids for ids, _, _ in cells.values()}:  # nearly always all of them
        alike = {cell: pair for cell, (ids, *pair) in cells.items() if ids == asked}
        methods = {("TS", measure): ours for (_, measure), (ours, _) in alike.items()}
        methods |= {cell: theirs for cell, (_, theirs) in alike.items()}
        drawn = metrics.joint_bootstrap(
            methods,
            metrics=COMPARED,
            groups=several(ties[id] for id in asked),
            seed=settings.seed,
            resamples=settings.resamples,
        )
        tests |= {
            cell: {metric: drawn.paired(("TS", cell[1]), cell, metric) for metric in COMPARED}
            for cell in alike
        }
    return [
        {
            "method": "TS",
            "against": against,
            "measure": measure,
            "metric": metric,
            "difference": test.difference,
            "interval": [test.low, test.high],
            "p": test.p_value,
        }
        for against, measure in cells
        for metric in COMPARED
        for test in [tests[against, measure][metric]]
    ]


@dataclass(frozen=True)
class EvaluateJob:
    """`evaluate` of one method's rows, to be done by any process."""

    rows: Rows
    settings: Settings

    def __call__(self, *_: object) -> dict[str, Any]:
        """Evaluate."""
        return evaluate(self.rows, self.settings)


@dataclass(frozen=True)
class CompareJob:
    """`compare_methods`, to be done by any process."""

    rows: Mapping[str, Rows]
    settings: Settings

    def __call__(self, *_: object) -> list[dict[str, Any]]:
        """Compare."""
        return compare_methods(self.rows, self.settings)


def _paired(ours: Rows, theirs: Rows, measure: str) -> tuple[tuple[str, ...], Scored, Scored]:
    """The questions that are defined under both methods, and each one's confidence and correctness."""
    other = {row["id"]: row for row in theirs}
    pairs = [(row, other[row["id"]]) for row in ours]
    pairs = [pair for pair in pairs if all(row["confidence"][measure] is not None for row in pair)]
    first, second = (
        (
            [pair[side]["confidence"][measure] for pair in pairs],
            [pair[side]["correct"][measure] for pair in pairs],
        )
        for side in (0, 1)
    )
    return tuple(row["id"] for row, _ in pairs), first, second
