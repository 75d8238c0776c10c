"""Beyond the paper: what grading would say if one rule alone decided, or the first few of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from semcal.experiment.finished import FinishedRun
from semcal.qa.grading import RULES, RuleGrader

__all__ = ["rules_alone"]

Rows = Sequence[Mapping[str, Any]]
#: The rules in the order in which they are asked, the optional one last.
ASKED = (*RULES, "ROUGE-L")


def rules_alone(run: FinishedRun, measure: str = "E-SC") -> list[dict[str, Any]]:
    """Grade Base's selected answers of run 0 by every rule alone, and by each with those before it.

    All members of the selected meaning are graded, not four of them, with the rules' own thresholds.

    Returns
    -------
    list of dict
        {model, dataset, rule, n, alone, up_to, against_nli}: the share of answers that the rule accepts, and
        that it and the rules before it accept; where answers were graded by entailment as well, of the rule
        alone {false_positives, false_negatives}, shares of all answers, with entailment as the truth. Empty
        without Base.
    """
    if "Base" not in run.methods:
        return []
    rows = []
    for model, dataset in run.pairs:
        candidate = run.choice(model, dataset, "Base", measure)["candidate"]
        graded = [
            row for row in run.rows(model, dataset, candidate) if row["top_cluster"][measure] is not None
        ]
        accepted = {rule: _accepted(graded, measure, rule) for rule in ASKED}
        so_far = np.zeros(len(graded), dtype=np.bool_)
        for rule, right in accepted.items():
            so_far = so_far | right
            rows.append(
                {
                    "model": model,
                    "dataset": dataset,
                    "rule": rule,
                    "n": len(graded),
                    "alone": float(right.mean()) if graded else None,
                    "up_to": float(so_far.mean()) if graded else None,
                    "against_nli": _against_nli(graded, measure, right),
                }
            )
    return rows


def _accepted(rows: Rows, measure: str, rule: str) -> np.ndarray:
    """Which answers (N,) a rule accepts by itself."""
    grader = RuleGrader(rules=(rule,))
    return np.array(
        [
            grader.grade(
                row["question"],
                [row["samples"][i] for i in row["clusters"][row["top_cluster"][measure]]],
                row["answers"],
            ).correct
            for row in rows
        ],
        dtype=np.bool_,
    )


def _against_nli(rows: Rows, measure: str, right: np.ndarray) -> dict[str, float] | None:
    if not rows or not all("correct_nli" in row for row in rows):
        return None
    truth = np.array([row["correct_nli"][measure] for row in rows], dtype=np.bool_)
    return {
        "false_positives": float(np.mean(right & ~truth)),
        "false_negatives": float(np.mean(truth & ~right)),
    }
