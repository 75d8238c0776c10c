"""Grading by words against grading by entailment (table 13), and the rules of the former one by one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from semcal.experiment.analyses.columns import Columns
from semcal.experiment.analyses.grid_scores import GridScores
from semcal.experiment.finished import FinishedRun
from semcal.qa.grading import RULES, RuleGrader

Rows = Sequence[Mapping[str, Any]]
Flags = NDArray[np.bool_]
#: The rules in the order in which they are tried, the optional one last.
RULES_IN_ORDER = (*RULES, "ROUGE-L")


def agreement(scores: GridScores) -> list[dict[str, Any]]:
    """Compare the two gradings of Base's selected answers in run 0.

    {model, dataset, measure, n, agreement, interval, lexical_only, nli_only}: the share of questions on which
    both agree with its 95 % interval (Wilson), and the shares that one alone accepts. Empty where answers
    were not graded by entailment.
    """
    return [
        {"model": model, "dataset": dataset, "measure": measure, **_agreement(found, measure)}
        for model, dataset in scores.run.pairs
        for found in _base(scores, model, dataset)
        if found.correct_nli is not None
        for measure in scores.run.measures
    ]


def deciding_rules(scores: GridScores) -> list[dict[str, Any]]:
    """{model, dataset, measure, n, rules}: how often each rule decided on Base's answers in run 0."""
    return [
        {"model": model, "dataset": dataset, "measure": measure}
        | {"n": found.rules[measure].total(), "rules": dict(sorted(found.rules[measure].items()))}
        for model, dataset in scores.run.pairs
        for found in _base(scores, model, dataset)
        for measure in scores.run.measures
    ]


def _base(scores: GridScores, model: str, dataset: str) -> list[Columns]:
    """Base's answers in run 0; none where Base was not run."""
    if "Base" not in scores.run.methods:
        return []
    chosen = scores.run.choice(model, dataset, "Base", scores.run.measures[0])
    return [scores.columns(model, dataset, chosen["candidate"])]


def _agreement(columns: Columns, measure: str) -> dict[str, Any]:
    assert columns.correct_nli is not None
    lexical, nli = columns.correct[measure], columns.correct_nli[measure]
    known = ~np.isnan(lexical) & ~np.isnan(nli)
    n = int(known.sum())
    if not n:
        return {"n": 0, "agreement": None, "interval": None, "lexical_only": None, "nli_only": None}
    lexical, nli = lexical[known] == 1, nli[known] == 1
    share = float(np.mean(lexical == nli))
    return {
        "n": n,
        "agreement": share,
        "interval": list(wilson(share, n)),
        "lexical_only": float(np.mean(lexical & ~nli)),
        "nli_only": float(np.mean(nli & ~lexical)),
    }


def wilson(share: float, n: int, *, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a share.

    >>> low, high = wilson(0.91, 500)
    >>> round(low, 4), round(high, 4)
    (0.8818, 0.9321)
    """
    z = float(scipy.special.ndtri((1 + level) / 2))
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def rules_alone(run: FinishedRun, measure: str = "E-SC") -> list[dict[str, Any]]:
    """Grade Base's selected answers of run 0 by every rule alone, and by each with those before it.

    All members of the selected meaning are graded, not four of them, with the rules' own thresholds.

    {model, dataset, rule, n, alone, up_to, against_nli}: the share of answers that the rule accepts, and that
    it and the rules before it accept; where answers were graded by entailment as well, of the rule alone
    {false_positives, false_negatives}, shares of all answers, with entailment as the truth. Empty without
    Base.
    """
    if "Base" not in run.methods:
        return []
    found = []
    for model, dataset in run.pairs:
        candidate = run.choice(model, dataset, "Base", measure)["candidate"]
        rows = [row for row in run.rows(model, dataset, candidate) if row["top_cluster"][measure] is not None]
        so_far = np.zeros(len(rows), dtype=np.bool_)
        for rule in RULES_IN_ORDER:
            accepted = _accepted(rows, measure, rule)
            so_far = so_far | accepted
            found.append(
                {
                    "model": model,
                    "dataset": dataset,
                    "rule": rule,
                    "n": len(rows),
                    "alone": float(accepted.mean()) if rows else None,
                    "up_to": float(so_far.mean()) if rows else None,
                    "against_nli": _against_nli(rows, measure, accepted),
                }
            )
    return found


def _accepted(rows: Rows, measure: str, rule: str) -> Flags:
    """Which answers (N,) a rule accepts by itself."""
    grader = RuleGrader(rules=(rule,))
    verdicts = []
    for row in rows:
        members = [row["samples"][i] for i in row["clusters"][row["top_cluster"][measure]]]
        verdicts.append(grader.grade(row["question"], members, row["answers"]).correct)
    return np.array(verdicts, dtype=np.bool_)


def _against_nli(rows: Rows, measure: str, accepted: Flags) -> dict[str, float] | None:
    if not rows or not all("correct_nli" in row for row in rows):
        return None
    truth = np.array([row["correct_nli"][measure] for row in rows], dtype=np.bool_)
    return {
        "false_positives": float(np.mean(accepted & ~truth)),
        "false_negatives": float(np.mean(truth & ~accepted)),
    }
