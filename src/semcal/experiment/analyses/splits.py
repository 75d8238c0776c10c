"""Table 1: how many questions each part of each data set has; and the prompts of figure 8."""

from __future__ import annotations

from typing import Any

from semcal.experiment.finished import FinishedRun

__all__ = ["prompts", "splits"]

#: The paper's names of the parts.
PARTS = ("calibration_train", "validation", "test")


def splits(run: FinishedRun) -> list[dict[str, Any]]:
    """{dataset, open_book, calibration_train, validation, test}; all models are asked the same questions.

    Where test questions share a passage or a value in the field `group` also `test_groups`, of which there
    are so many: intervals resample these.
    """
    return [
        {
            "dataset": dataset,
            "open_book": run.open_book(dataset),
            **{part: found["sizes"][part] for part in PARTS},
            **({"test_groups": found["test_groups"]} if "test_groups" in found else {}),
        }
        for dataset in run.datasets
        for found in [run.selections[run.models[0], dataset]]
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
