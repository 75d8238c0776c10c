"""Figures 9 and 10: how the confidence of the top cluster is spread, and how measures correlate."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from semcal.errors import UndefinedWarning
from semcal.experiment.analyses.scores import GridScores
from semcal.metrics import correlations as pearson

__all__ = ["EDGES", "SHOWN", "correlations", "distributions"]

#: The methods of the paper's figures.
SHOWN = ("Base", "SE", "TS")
#: Bins of the histograms, (low, high], the first one closed on the left.
EDGES = tuple(round(0.05 * i, 2) for i in range(21))


def distributions(scores: GridScores) -> list[dict[str, Any]]:
    """{model, dataset, method, measure, edges, share, median, at_one}: the confidences of all runs together.

    `share` is that of the questions in each bin, `at_one` that of confidence 1 (within 1e-9).
    """
    rows = []
    for model, dataset in scores.run.pairs:
        for (method, measure), cell in scores.pair(model, dataset).cells.items():
            if method not in SHOWN:
                continue
            values = cell.confidence.ravel()
            counts = np.histogram(-values, bins=-np.array(EDGES[::-1]))[0][::-1]  # bins open on the left
            rows.append(
                {
                    "model": model,
                    "dataset": dataset,
                    "method": method,
                    "measure": measure,
                    "edges": list(EDGES),
                    "share": (counts / len(values)).tolist(),
                    "median": float(np.median(values)),
                    "at_one": float(np.mean(values >= 1 - 1e-9)),
                }
            )
    return rows


def correlations(scores: GridScores) -> list[dict[str, Any]]:
    """{model, dataset, method, measures, matrix, n, mean, least}: Pearson, over all runs together.

    `mean` and `least` are over the pairs of different measures; null where a measure is constant.
    """
    rows = []
    for model, dataset in scores.run.pairs:
        cells = scores.pair(model, dataset).cells
        for method in SHOWN:
            columns = {
                measure: cell.confidence.ravel() for (name, measure), cell in cells.items() if name == method
            }
            if len(columns) < 2 or len(next(iter(columns.values()))) < 2:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UndefinedWarning)
                found = pearson(columns)
            apart = found.matrix[~np.eye(len(columns), dtype=bool)]
            known = not np.isnan(apart).any()
            rows.append(
                {
                    "model": model,
                    "dataset": dataset,
                    "method": method,
                    "measures": list(found.names),
                    "matrix": found.matrix.tolist(),
                    "n": found.n,
                    "mean": float(apart.mean()) if known else None,
                    "least": float(apart.min()) if known else None,
                }
            )
    return rows
