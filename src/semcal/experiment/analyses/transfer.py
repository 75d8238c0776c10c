"""Beyond the paper: the temperature fitted on one data set, used on another."""

from __future__ import annotations

from typing import Any

from semcal.experiment.analyses.cells import PairScores
from semcal.experiment.analyses.scores import GridScores

__all__ = ["OWN", "transfer", "transfer_pairs"]

#: The candidate whose temperature is handed on.
OWN = "TS NLL"
METRICS = ("ace", "brier", "auroc")
#: Resamples of the questions, at most.
RESAMPLES = 200


def transfer(scores: GridScores) -> list[dict[str, Any]]:
    """{model, fitted_on, used_on, temperature, measure, ace, brier, auroc}, the metrics over runs.

    The data set's own T (TS by NLL) stands under `fitted_on` = `used_on`. Empty with one data set.
    """
    rows = []
    for model, dataset in scores.run.pairs:
        pair = transfer_pairs(scores, model, dataset)
        if pair is None:
            continue
        heats = _temperatures(scores, model, dataset)
        for source, measure in pair.cells:
            rows.append(
                {
                    "model": model,
                    "fitted_on": source,
                    "used_on": dataset,
                    "temperature": heats[source],
                    "measure": measure,
                    **{metric: pair.over_runs((source, measure), metric) for metric in METRICS},
                }
            )
    return rows


def transfer_pairs(scores: GridScores, model: str, dataset: str) -> PairScores | None:
    """Scores by (data set that T was fitted on, measure); None where no other T was tried."""
    sources = scores.run.selections[model, dataset].get("transfer") or {}
    candidates = {source: entry["candidate"] for source, entry in sources.items()}
    if not candidates:
        return None
    if scores.run.samples_path(model, dataset, OWN, 0).exists():
        candidates = {dataset: OWN} | candidates
    return scores.scored(
        model,
        dataset,
        {
            (source, measure): candidate
            for source, candidate in candidates.items()
            for measure in scores.run.measures
        },
        resamples=RESAMPLES,
        bootstrapped=METRICS,
    )


def _temperatures(scores: GridScores, model: str, dataset: str) -> dict[str, float | None]:
    selection = scores.run.selections[model, dataset]
    own = [fit.get("temperature") for fit in selection.get("fits", []) if fit["candidate"] == OWN]
    others = {source: entry["temperature"] for source, entry in (selection.get("transfer") or {}).items()}
    return {dataset: own[0] if own else None, **others}
