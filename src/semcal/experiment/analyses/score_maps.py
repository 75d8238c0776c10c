"""Beyond the paper: Base's confidence itself mapped to a calibrated one (spec.md 6), learnt on validation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from semcal.experiment.analyses.cells import Cell
from semcal.experiment.analyses.scores import GridScores
from semcal.metrics import SCORE_RECALIBRATORS

__all__ = ["score_maps"]

METRICS = ("ace", "brier", "auroc")
#: Resamples of the questions, at most.
RESAMPLES = 200


def score_maps(scores: GridScores) -> list[dict[str, Any]]:
    """{model, dataset, map, measure, ace, brier, auroc}, the metrics over runs; empty unless asked for.

    Answers stay what they are under Base, and so do their correctness and, but for ties, their order.
    """
    kinds = (scores.run.settings.get("extras") or {}).get("score_maps") or ()
    rows = []
    for model, dataset in scores.run.pairs:
        learnt = scores.run.selections[model, dataset].get("validation_scores") or {}
        pair = scores.pair(model, dataset)
        cells = {
            (kind, measure): _mapped(cell, kind, learnt[measure])
            for kind in kinds
            for (method, measure), cell in pair.cells.items()
            if method == "Base" and learnt.get(measure, {}).get("confidence")
        }
        rules = replace(pair.rules, resamples=min(RESAMPLES, pair.rules.resamples), bootstrapped=METRICS)
        mapped = replace(pair, cells=cells, rules=rules)
        rows += [
            {
                "model": model,
                "dataset": dataset,
                "map": kind,
                "measure": measure,
                **{metric: mapped.over_runs((kind, measure), metric) for metric in METRICS},
            }
            for kind, measure in cells
        ]
    return rows


def _mapped(cell: Cell, kind: str, learnt: dict[str, list[Any]]) -> Cell:
    learned = SCORE_RECALIBRATORS[kind]().fit(learnt["confidence"], learnt["correct"])
    return replace(cell, confidence=learned.predict(cell.confidence.ravel()).reshape(cell.confidence.shape))
