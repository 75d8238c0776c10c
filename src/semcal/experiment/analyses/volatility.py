"""Table 11: how far the ranking of methods depends on the calibration metric."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from semcal.errors import UndefinedWarning
from semcal.experiment.analyses.cells import PairScores
from semcal.experiment.analyses.scores import GridScores
from semcal.metrics import rank_volatility

__all__ = ["PAIRS_OF_METRICS", "chance_volatility", "volatility"]

#: The second is the paper's second comparison, without a table of its own.
PAIRS_OF_METRICS = (("ace", "mcb"), ("ace", "ece"))


def volatility(scores: GridScores) -> list[dict[str, Any]]:
    """Rank the methods within each measure by the unrounded means over runs, and compare two metrics.

    Returns
    -------
    list of dict
        {model, dataset, metrics: [first, second], per_method: {method: mean |change of rank|}, mean, chance},
        where ties share their mean rank and `chance` is what unrelated rankings would give.
    """
    rows = []
    for model, dataset in scores.run.pairs:
        pair = scores.pair(model, dataset)
        if not pair.cells:
            continue
        for metrics in PAIRS_OF_METRICS:
            first, second = (_means(scores, pair, metric) for metric in metrics)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UndefinedWarning)
                found = rank_volatility(first, second)
            rows.append(
                {
                    "model": model,
                    "dataset": dataset,
                    "metrics": list(metrics),
                    "per_method": dict(zip(scores.run.methods, found.per_method.tolist())),
                    "mean": found.mean,
                    "chance": chance_volatility(len(scores.run.methods)),
                }
            )
    return rows


def chance_volatility(methods: int) -> float:
    r"""Mean |change of rank| between two random rankings of K methods, (K² − 1) / 3K.

    Examples
    --------
    >>> chance_volatility(5)
    1.6
    """
    return (methods**2 - 1) / (3 * methods)


def _means(scores: GridScores, pair: PairScores, metric: str) -> np.ndarray:
    """[methods, measures that are defined]."""
    measures = [name for name in scores.run.measures if (scores.run.methods[0], name) in pair.cells]
    return np.array(
        [
            [pair.by_run[method, measure][metric].mean() for measure in measures]
            for method in scores.run.methods
        ]
    )
