"""Every method against Base: accuracy, as answers move with a temperature, and gain."""

from __future__ import annotations

from typing import Any

from semcal.experiment.analyses.contrasts import contrast_summary, measures_of
from semcal.experiment.analyses.grid_scores import GridScores
from semcal.metrics import Contrast

METRICS = ("accuracy", "gain")


def against_base(scores: GridScores) -> list[dict[str, Any]]:
    """{model, dataset, method, measure, accuracy, gain}: each method less Base on the same questions.

    Each is {value, interval, p}, tested over questions; rows without a measure (null) are of the mean over
    measures. Empty without Base.
    """
    if "Base" not in scores.run.methods:
        return []
    rows = []
    for model, dataset in scores.run.pairs:
        pair = scores.pair(model, dataset)
        measures = measures_of(pair, scores)
        for method in scores.run.methods if measures else ():
            if method == "Base":
                continue
            found = {
                metric: [
                    pair.resampled.contrast((method, measure), metric)
                    - pair.resampled.contrast(("Base", measure), metric)
                    for measure in measures
                ]
                for metric in METRICS
            }
            found = {metric: [*each, Contrast.mean(each)] for metric, each in found.items()}
            rows += [
                {"model": model, "dataset": dataset, "method": method, "measure": measure}
                | {metric: contrast_summary(each[place]) for metric, each in found.items()}
                for place, measure in enumerate([*measures, None])
            ]
    return rows
