"""Table 7: the temperatures that TS chose for each measure; with refits, their spread over runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semcal.experiment.analyses.cells import over_runs
from semcal.experiment.finished import FinishedRun

__all__ = ["refits", "temperatures"]


def temperatures(run: FinishedRun, method: str = "TS") -> list[dict[str, Any]]:
    """{dataset, model, measure, temperature, candidate, loss, alpha, at_bound}; empty without the method."""
    if method not in run.methods:
        return []
    rows = []
    for dataset in run.datasets:
        for model in run.models:
            bounds = {
                fit["candidate"]: fit.get("at_bound")
                for fit in run.selections[model, dataset].get("fits", [])
            }
            for measure in run.measures:
                chosen = run.choice(model, dataset, method, measure)
                rows.append(
                    {
                        "dataset": dataset,
                        "model": model,
                        "measure": measure,
                        **{key: chosen.get(key) for key in ("temperature", "candidate", "loss", "alpha")},
                        "at_bound": bounds.get(chosen["candidate"]),
                    }
                )
    return rows


def refits(run: FinishedRun) -> list[dict[str, Any]]:
    """{model, dataset, candidate, temperature}: T over runs (`over_runs`) where each run fitted anew.

    Empty where one fit served all runs.
    """
    return [
        {"model": model, "dataset": dataset, "candidate": candidate, "temperature": over_runs(found)}
        for model, dataset in run.pairs
        for candidate, found in _by_candidate(run.selections[model, dataset].get("fits", [])).items()
        if len(found) > 1
    ]


def _by_candidate(fits: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for fit in fits:
        if fit.get("temperature") is not None:
            of_runs = fit.get("temperature_of_run", [fit["temperature"]])
            found.setdefault(fit["candidate"], []).extend(of_runs)
    return found
