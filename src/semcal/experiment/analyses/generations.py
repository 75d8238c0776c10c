"""Figure 6: ACE and AUROC against the number of draws, all cut from one sampling of the largest number."""

from __future__ import annotations

from typing import Any

from semcal.experiment.analyses.cells import PairScores
from semcal.experiment.analyses.scores import GridScores

__all__ = ["RESAMPLES", "drawn_pairs", "generations"]

#: Resamples of the questions at each number of draws (at m there are as many as everywhere).
RESAMPLES = 200


def generations(scores: GridScores) -> list[dict[str, Any]]:
    """{model, dataset, method, measure, draws, ace, auroc}, the metrics over runs; T as chosen at m draws.

    Only the first runs may have other numbers of draws than m, and all numbers are compared on these.
    """
    return [
        {
            "model": model,
            "dataset": dataset,
            "method": method,
            "measure": measure,
            "draws": draws,
            **{metric: pair.over_runs((method, measure), metric) for metric in ("ace", "auroc")},
        }
        for model, dataset in scores.run.pairs
        for draws, pair in drawn_pairs(scores, model, dataset).items()
        for method, measure in pair.cells
    ]


def drawn_pairs(scores: GridScores, model: str, dataset: str) -> dict[int, PairScores]:
    """Number of draws → the scores of the runs that have rows at every number; none at m alone."""
    return scores.by_draws(model, dataset, resamples=RESAMPLES)
