"""Table 7: the temperatures that TS chose for each measure; with refits, their spread over runs."""

from __future__ import annotations

import json
from typing import Any

from semcal.errors import StoreError
from semcal.experiment.analyses.cells import over_runs
from semcal.experiment.finished import FinishedRun
from semcal.experiment.paths import recalibrator_folder

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
        {"model": model, "dataset": dataset, "candidate": fit["candidate"], "temperature": over_runs(found)}
        for model, dataset in run.pairs
        for fit in run.selections[model, dataset].get("fits", [])
        if fit.get("temperature") is not None
        for found in [[fit["temperature"], *_refitted(run, model, dataset, fit["candidate"])]]
        if len(found) > 1
    ]


def _refitted(run: FinishedRun, model: str, dataset: str, candidate: str) -> list[float]:
    """The temperatures of further runs, which lie inside the folder of the first."""
    paths = [
        run.folder / recalibrator_folder(model, dataset, candidate, number) / "calibration.json"
        for number in range(1, run.runs)
    ]
    try:
        return [float(json.loads(path.read_text())["temperature"]) for path in paths if path.is_file()]
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(
            f"a calibration.json in {paths[0].parent.parent} holds no temperature ({error!r}): delete it "
            "and run `semcal run` again"
        ) from error
