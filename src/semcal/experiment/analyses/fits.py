"""What was fitted: size, losses, temperature, and what each recalibrator does to the order of tokens."""

from __future__ import annotations

from typing import Any

from semcal.experiment.finished import FinishedRun

__all__ = ["fits"]

KEYS = (
    *("candidate", "method", "loss", "alpha", "weight_decay", "temperature", "at_bound", "parameters"),
    *("train_nll", "validation_nll", "top_changed", "order_changed", "classes"),
)


def fits(run: FinishedRun) -> list[dict[str, Any]]:
    """{model, dataset} and what the selection records of each fit: `KEYS`, null where it does not."""
    return [
        {"model": model, "dataset": dataset, **{key: fit.get(key) for key in KEYS}}
        for model, dataset in run.pairs
        for fit in run.selections[model, dataset].get("fits", [])
    ]
