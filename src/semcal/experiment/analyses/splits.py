"""Table 1: how many questions each part of each data set has; and the prompts of figure 8."""

from __future__ import annotations

from typing import Any

from semcal.experiment.finished import FinishedRun

__all__ = ["prompts", "splits"]

#: The paper's names of the parts.
PARTS = ("calibration_train", "validation", "test")


def splits(run: FinishedRun) -> list[dict[str, Any]]:
    """{dataset, open_book, calibration_train, validation, test}; all models are asked the same questions."""
    return [
        {
            "dataset": dataset,
            "open_book": run.open_book(dataset),
            **{part: run.selections[run.models[0], dataset]["sizes"][part] for part in PARTS},
        }
        for dataset in run.datasets
    ]


def prompts(run: FinishedRun) -> list[dict[str, Any]]:
    """{model, dataset, open_book, prompt}: what the first test question was asked with, to the letter."""
    return [
        {
            "model": model,
            "dataset": dataset,
            "open_book": run.open_book(dataset),
            "prompt": run.selections[model, dataset].get("prompt"),
        }
        for model, dataset in run.pairs
    ]
