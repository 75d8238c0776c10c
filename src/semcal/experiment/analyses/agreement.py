"""Table 13: does grading by words agree with grading by entailment? And which rule of the former decides?"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.stats import norm

from semcal.experiment.analyses.columns import Columns
from semcal.experiment.analyses.scores import GridScores

__all__ = ["agreement", "deciding_rules", "wilson"]


def agreement(scores: GridScores) -> list[dict[str, Any]]:
    """Compare the two gradings of Base's selected answers in run 0.

    Returns
    -------
    list of dict
        {model, dataset, measure, n, agreement, interval, lexical_only, nli_only}: the share of questions on
        which both agree with its 95 % interval (Wilson), and the shares that one alone accepts. Empty where
        entailment was not asked.
    """
    return [
        {"model": model, "dataset": dataset, "measure": measure, **_compared(found, measure)}
        for model, dataset in scores.run.pairs
        for found in [_base(scores, model, dataset)]
        if found is not None and found.correct_nli is not None
        for measure in scores.run.measures
    ]


def deciding_rules(scores: GridScores) -> list[dict[str, Any]]:
    """{model, dataset, measure, n, rules}: how often each rule decided on Base's answers in run 0."""
    return [
        {
            "model": model,
            "dataset": dataset,
            "measure": measure,
            "n": found.rules[measure].total(),
            "rules": dict(sorted(found.rules[measure].items())),
        }
        for model, dataset in scores.run.pairs
        for found in [_base(scores, model, dataset)]
        if found is not None
        for measure in scores.run.measures
    ]


def wilson(share: float, n: int, *, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a share.

    Examples
    --------
    >>> low, high = wilson(0.91, 500)
    >>> round(low, 4), round(high, 4)
    (0.8818, 0.9321)
    """
    z = float(norm.ppf((1 + level) / 2))
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def _base(scores: GridScores, model: str, dataset: str) -> Columns | None:
    if "Base" not in scores.run.methods:
        return None
    chosen = scores.run.choice(model, dataset, "Base", scores.run.measures[0])
    return scores.columns(model, dataset, chosen["candidate"])


def _compared(columns: Columns, measure: str) -> dict[str, Any]:
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
