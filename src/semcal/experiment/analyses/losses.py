"""Figure 7: every method fitted by one loss alone, chosen anew among its candidates of that loss."""

from __future__ import annotations

from typing import Any

import numpy as np

from semcal.experiment.analyses.cells import PairScores
from semcal.experiment.analyses.scores import GridScores

__all__ = ["losses"]


def losses(scores: GridScores) -> list[dict[str, Any]]:
    """{loss, model, dataset, method, measure, candidate, ace, auroc, brier}, each metric as {mean, sd}.

    The standard deviation over runs, as in the figure's caption; null for one run. Base and SE have no loss
    and stand under both.
    """
    return [
        {
            "loss": loss,
            "model": model,
            "dataset": dataset,
            "method": method,
            "measure": measure,
            "candidate": candidates[method, measure],
            **{metric: _spread(pair, (method, measure), metric) for metric in ("ace", "auroc", "brier")},
        }
        for model, dataset in scores.run.pairs
        for loss in scores.run.selections[model, dataset].get("by_loss", {})
        for candidates in [_candidates(scores, model, dataset, loss)]
        for pair in [scores.scored(model, dataset, candidates)]
        for method, measure in pair.cells
    ]


def _candidates(scores: GridScores, model: str, dataset: str, loss: str) -> dict[tuple[str, str], str]:
    """What each method uses for each measure when it may use one loss alone."""
    run = scores.run
    selection = run.selections[model, dataset]
    chosen = {method: selection["methods"][method] for method in run.methods if method in ("Base", "SE")}
    chosen |= selection["by_loss"][loss]
    return {
        (method, measure): chosen[method][measure]["candidate"]
        for method in run.methods
        if method in chosen
        for measure in run.measures
        if measure in chosen[method]
    }


def _spread(pair: PairScores, key: tuple[str, str], metric: str) -> dict[str, float | None]:
    values = pair.by_run[key][metric]
    if np.isnan(values).any():
        return {"mean": None, "sd": None}
    return {"mean": float(values.mean()), "sd": float(values.std(ddof=1)) if len(values) > 1 else None}
