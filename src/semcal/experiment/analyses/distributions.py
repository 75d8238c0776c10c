"""Figures 9 and 10: how the confidence of the top cluster is spread, and how measures correlate."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from semcal.errors import UndefinedWarning
from semcal.experiment.analyses.columns import Floats
from semcal.experiment.analyses.grid_scores import GridScores
from semcal.experiment.analyses.pair_scores import PairScores, row_names
from semcal.metrics import Contrast
from semcal.metrics import correlations as pearson
from semcal.metrics.resamples import draw_counts

__all__ = ["SHOWN", "correlations", "distributions", "mean_correlation"]

#: The methods of the paper's figures.
SHOWN = ("Base", "SE", "TS")
#: Bins of the histograms, (low, high], the first one closed on the left.
EDGES = tuple(round(0.05 * i, 2) for i in range(21))
#: A confidence whose variance is no larger varies by rounding alone.
CONSTANT = 1e-24


def distributions(scores: GridScores) -> list[dict[str, Any]]:
    """{model, dataset, method, measure, edges, share, median, at_one}: the confidences of all runs together.

    `share` is that of the questions in each bin, `at_one` that of confidence 1 (within 1e-9).
    """
    rows = []
    for model, dataset in scores.run.pairs:
        for (method, measure), arrays in scores.pair(model, dataset).arrays.items():
            if method not in SHOWN:
                continue
            values = arrays.confidence.ravel()
            counts = np.histogram(-values, bins=-np.array(EDGES[::-1]))[0][::-1]  # bins open on the left
            rows.append(
                {
                    **row_names(model, dataset, method, measure),
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
        pair = scores.pair(model, dataset)
        for method in SHOWN:
            columns = {
                measure: arrays.confidence.ravel()
                for (name, measure), arrays in pair.arrays.items()
                if name == method
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


def mean_correlation(pair: PairScores, method: str) -> Contrast | None:
    """`mean` of `correlations`, and the same in resamples of the questions, those of a data set in common.

    None with fewer than two measures or questions, or where a measure is constant.
    """
    confidences = [arrays.confidence for (name, _), arrays in pair.arrays.items() if name == method]
    if len(confidences) < 2 or pair.n < 2:
        return None
    values = np.stack(confidences)
    values = values - values.mean(axis=(1, 2), keepdims=True)
    rng = np.random.default_rng(pair.options.seed)
    counts = draw_counts(pair.n, pair.options.resamples, rng, pair.groups)
    found = _mean_pearson(values, np.concatenate([np.ones((pair.n, 1)), counts], axis=1))
    return None if np.isnan(found[0]) else Contrast(float(found[0]), found[1:])


def _mean_pearson(values: Floats, counts: Floats) -> Floats:
    """Mean correlation of S measures in R runs of N questions [S, R, N], these as often as counts [N, B]."""
    times = values.shape[1] * counts.sum(axis=0)
    mean = values.sum(axis=1) @ counts / times
    product = np.einsum("arn,brn->abn", values, values) @ counts / times
    covariance = product - mean[:, None] * mean
    variance = np.einsum("aab->ab", covariance)
    scale = np.sqrt(np.where(variance > CONSTANT, variance, np.nan))
    apart = ~np.eye(len(values), dtype=bool)
    mean_of: Floats = (covariance / (scale[:, None] * scale))[apart].mean(axis=0)
    return mean_of
