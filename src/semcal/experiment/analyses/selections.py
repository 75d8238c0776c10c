"""Sizes of the splits, prompts, temperatures and fits, as selections record them (tables 1, 7, figure 8)."""

from __future__ import annotations

from typing import Any

from semcal.experiment.analyses.pair_scores import over_runs
from semcal.experiment.finished import FinishedRun

__all__ = ["fits", "prompts", "refits", "splits", "temperatures"]

FIT_KEYS = (
    *("candidate", "method", "loss", "alpha", "weight_decay", "temperature", "at_bound", "parameters"),
    *("train_nll", "validation_nll", "top_changed", "order_changed", "classes"),
)


def splits(run: FinishedRun) -> list[dict[str, Any]]:
    """{dataset, open_book, calibration_train, validation, test}; all models are asked the same questions.

    Where test questions share a passage or a value in the field `group`, `test_groups` counts these groups,
    which intervals resample.
    """
    return [
        {
            "dataset": dataset,
            "open_book": run.open_book(dataset),
            **{split: found["sizes"][split] for split in ("calibration_train", "validation", "test")},
            **({"test_groups": found["test_groups"]} if "test_groups" in found else {}),
        }
        for dataset in run.datasets
        for found in [run.selections[run.models[0], dataset]]
    ]


def prompts(run: FinishedRun) -> list[dict[str, Any]]:
    """{model, dataset, open_book, prompt}: the exact prompt of the first test question."""
    return [
        {"model": model, "dataset": dataset, "open_book": run.open_book(dataset)}
        | {"prompt": run.selections[model, dataset].get("prompt")}
        for model, dataset in run.pairs
    ]


def temperatures(run: FinishedRun) -> list[dict[str, Any]]:
    """{dataset, model, measure, temperature, candidate, loss, alpha, at_bound} of TS; empty without it."""
    if "TS" not in run.methods:
        return []
    rows = []
    for dataset in run.datasets:
        for model in run.models:
            at_bound = {
                fit["candidate"]: fit.get("at_bound")
                for fit in run.selections[model, dataset].get("fits", [])
            }
            for measure in run.measures:
                chosen = run.choice(model, dataset, "TS", measure)
                row: dict[str, Any] = {"dataset": dataset, "model": model, "measure": measure}
                row |= {key: chosen.get(key) for key in ("temperature", "candidate", "loss", "alpha")}
                rows.append(row | {"at_bound": at_bound.get(chosen["candidate"])})
    return rows


def refits(run: FinishedRun) -> list[dict[str, Any]]:
    """{model, dataset, candidate, temperature}: T over runs (`over_runs`) where each run fitted anew.

    Empty where one fit served all runs.
    """
    rows = []
    for model, dataset in run.pairs:
        by_candidate: dict[str, list[float]] = {}
        for fit in run.selections[model, dataset].get("fits", []):
            if fit.get("temperature") is not None:
                of_runs = fit.get("temperature_of_run", [fit["temperature"]])
                by_candidate.setdefault(fit["candidate"], []).extend(of_runs)
        rows += [
            {"model": model, "dataset": dataset, "candidate": candidate, "temperature": over_runs(found)}
            for candidate, found in by_candidate.items()
            if len(found) > 1
        ]
    return rows


def fits(run: FinishedRun) -> list[dict[str, Any]]:
    """{model, dataset} and what the selection records of each fit: `FIT_KEYS`, null where it does not."""
    return [
        {"model": model, "dataset": dataset, **{key: fit.get(key) for key in FIT_KEYS}}
        for model, dataset in run.pairs
        for fit in run.selections[model, dataset].get("fits", [])
    ]
