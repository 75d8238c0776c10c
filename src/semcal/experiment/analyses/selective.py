"""Figures 4 and 5: accuracy among the questions that are answered, against the share that is rejected."""

from __future__ import annotations

from typing import Any

import numpy as np

from semcal.experiment.analyses.cells import Cell, PairScores, over_runs
from semcal.experiment.analyses.columns import Floats
from semcal.experiment.analyses.scores import GridScores
from semcal.metrics import selective_accuracy

__all__ = ["REJECTION", "selective", "slopes"]

#: Shares of the least confident questions that are rejected.
REJECTION = tuple(round(0.05 * i, 2) for i in range(19))
#: The slope is taken up to here.
SLOPE_TO = 0.5


def selective(scores: GridScores) -> list[dict[str, Any]]:
    """Selective accuracy of every method and measure.

    Returns
    -------
    list of dict
        {model, dataset, method, measure, rejection, accuracy, se, slope, gain}: mean and standard error over
        runs at each rejection rate (lists); the least-squares slope of accuracy over rejection rates from 0
        to 50 %; the gain AURAC − accuracy with its interval over questions.
    """
    rows = []
    for model, dataset in scores.run.pairs:
        pair = scores.pair(model, dataset)
        for (method, measure), cell in pair.cells.items():
            curves = _curves(cell)
            points = [over_runs(column) for column in curves.T]
            rows.append(
                {
                    "model": model,
                    "dataset": dataset,
                    "method": method,
                    "measure": measure,
                    "rejection": list(REJECTION),
                    "accuracy": [point["mean"] for point in points],
                    "se": [point["se"] for point in points],
                    "slope": over_runs(slopes(curves)),
                    "gain": _gain(pair, (method, measure)),
                }
            )
    return rows


def slopes(curves: Floats) -> Floats:
    """Least-squares slope (R,) of each curve (R, P) over the rejection rates up to 50 %."""
    inside = np.array(REJECTION) <= SLOPE_TO
    rates = np.array(REJECTION)[inside]
    centred = rates - rates.mean()
    slope: Floats = curves[:, inside] @ centred / (centred @ centred)
    return slope


def _curves(cell: Cell) -> Floats:
    """[R, P]."""
    return np.stack(
        [
            selective_accuracy(confidence, correct, rejection=REJECTION).accuracy
            for confidence, correct in zip(cell.confidence, cell.correct)
        ]
    )


def _gain(pair: PairScores, key: tuple[str, str]) -> dict[str, Any]:
    found = pair.resampled.contrast(key, "aurac") - pair.resampled.contrast(key, "accuracy")
    by_run = pair.by_run[key]
    return over_runs(by_run["aurac"] - by_run["accuracy"], found.interval())
