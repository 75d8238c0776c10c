"""The numbers of one question set: metrics by measure, and methods against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from semcal import metrics
from semcal.experiment.settings import Settings
from semcal.pipeline.assess import assess, scores_by_measure
from semcal.semantics import MEASURES

__all__ = ["COMPARED", "CompareJob", "EvaluateJob", "compare_methods", "evaluate"]

Rows = Sequence[Mapping[str, Any]]
#: Metrics of which TS is compared with the others, question by question.
COMPARED = ("ace", "brier", "auroc")


def evaluate(rows: Rows, settings: Settings) -> dict[str, Any]:
    """Evaluate graded rows of one method: diversity of its answers, and all metrics by measure."""
    scores = scores_by_measure(rows)
    return {
        "distinct_answers": float(np.mean([len(set(row["samples"])) for row in rows])),
        "meanings": float(np.mean([len(row["clusters"]) for row in rows])),
        "measures": {
            name: {
                **assess(scores[name], ci=True, seed=settings.seed, resamples=settings.resamples),
                "undefined": scores[name].undefined,
            }
            for name in MEASURES
        },
    }


def compare_methods(rows: Mapping[str, Rows], settings: Settings) -> list[dict[str, Any]]:
    """Compare TS with the other methods on the same questions (paired), for every measure.

    Returns
    -------
    list of dict
        {method, against, measure, metric, difference, interval, p}: TS less the other method, its 95 %
        interval and two-sided p-value over questions; only questions defined under both count.
    """
    found = []
    for against, measure in product([name for name in rows if name != "TS"], MEASURES):
        ours, theirs, correct_ours, correct_theirs = _paired(rows["TS"], rows[against], measure)
        for metric in COMPARED:
            test = metrics.paired_test(
                ours,
                correct_ours,
                theirs,
                correct_theirs,
                metric=metric,
                seed=settings.seed,
                resamples=settings.resamples,
            )
            found.append(
                {
                    "method": "TS",
                    "against": against,
                    "measure": measure,
                    "metric": metric,
                    "difference": test.difference,
                    "interval": [test.low, test.high],
                    "p": test.p_value,
                }
            )
    return found


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


def _paired(
    ours: Rows, theirs: Rows, measure: str
) -> tuple[list[float], list[float], list[bool], list[bool]]:
    """Confidence and correctness of the questions that are defined under both methods, in one order."""
    other = {row["id"]: row for row in theirs}
    pairs = [(row, other[row["id"]]) for row in ours]
    pairs = [
        (a, b)
        for a, b in pairs
        if a["confidence"][measure] is not None and b["confidence"][measure] is not None
    ]
    return (
        [a["confidence"][measure] for a, _ in pairs],
        [b["confidence"][measure] for _, b in pairs],
        [a["correct"][measure] for a, _ in pairs],
        [b["correct"][measure] for _, b in pairs],
    )
