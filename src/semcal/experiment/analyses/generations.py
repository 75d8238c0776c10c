"""Figure 6: ACE and AUROC against the number of draws, all cut from one sampling of the largest number."""

from __future__ import annotations

from typing import Any

from semcal.experiment.analyses.cells import PairScores
from semcal.experiment.analyses.scores import GridScores
from semcal.experiment.finished import Pair

__all__ = ["RESAMPLES", "by_draws", "generations"]

#: Resamples of the questions at each number of draws, at most. The claim looks as far out as 1 in 680.
RESAMPLES = 1000


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
        for (model, dataset), found in by_draws(scores).items()
        for draws, pair in found.items()
        for method, measure in pair.cells
    ]


def by_draws(scores: GridScores) -> dict[Pair, dict[int, PairScores]]:
    """(model, data set) → number of draws → scores; without those that have rows at m draws alone."""
    found = {pair: scores.by_draws(*pair, resamples=RESAMPLES) for pair in scores.run.pairs}
    return {pair: by_number for pair, by_number in found.items() if by_number}
