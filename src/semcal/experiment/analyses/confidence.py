"""Tables 3, 8, 9 and 10 and figure 3: every metric of every method under every measure."""

from __future__ import annotations

from typing import Any

from semcal.experiment.analyses.cells import PairScores
from semcal.experiment.analyses.scores import GridScores

__all__ = ["METRICS", "confidence"]

METRICS = (
    *("accuracy", "ace", "ece", "mcb", "auroc", "brier", "reliability", "resolution", "uncertainty"),
    *("refinement", "dsc", "unc", "aurac", "prr", "smooth_ece", "mean_confidence"),
)


def confidence(scores: GridScores) -> list[dict[str, Any]]:
    """Measure every method under every measure.

    Returns
    -------
    list of dict
        {model, dataset, method, measure, candidate, measure_alpha, n, undefined} and one of `over_runs` for
        each of `METRICS`; all of these are null where the measure is undefined for every question.
        Refinement is uncertainty − resolution. Reliability and resolution are over unique confidence
        values.
    """
    run = scores.run
    return [
        {
            "model": model,
            "dataset": dataset,
            "method": method,
            "measure": measure,
            **{key: chosen.get(key) for key in ("candidate", "measure_alpha")},
            "n": pair.n,
            "undefined": pair.undefined,
            **{metric: _metric(pair, (method, measure), metric) for metric in METRICS},
        }
        for model, dataset in run.pairs
        for pair in [scores.pair(model, dataset)]
        for method in run.methods
        for measure in run.measures
        for chosen in [run.choice(model, dataset, method, measure)]
    ]


def _metric(pair: PairScores, key: tuple[str, str], metric: str) -> dict[str, Any] | None:
    if key not in pair.cells:
        return None
    return pair.refinement(key) if metric == "refinement" else pair.over_runs(key, metric)
