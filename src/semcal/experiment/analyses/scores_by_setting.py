"""Scores under other settings: numbers of draws (figure 6), losses (figure 7), other temperatures, maps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from semcal.experiment.analyses.grid_scores import GridScores, Key, PairScores, ScoreArrays, row_names
from semcal.metrics import SCORE_RECALIBRATORS

#: The candidate whose temperature is used on other data sets.
TRANSFERRED = "TS NLL"
#: What is computed under another data set's T and under score maps, with so many resamples at most.
METRICS = ("ace", "brier", "auroc")
RESAMPLES = 200


def generations(scores: GridScores) -> list[dict[str, Any]]:
    """{model, dataset, method, measure, draws, candidate, ace, auroc}, the metrics over runs.

    All numbers of draws are cut from one sampling of the largest. Candidates are those chosen at m draws, or
    with `sampling.reselect` at each number of draws. Only the first runs may have other numbers of draws than
    m, and all numbers are compared on these.
    """
    return [
        {
            **row_names(model, dataset, method, measure),
            "draws": draws,
            "candidate": chosen[method, measure],
            **{metric: pair.over_runs((method, measure), metric) for metric in ("ace", "auroc")},
        }
        for model, dataset in scores.run.pairs
        for draws, pair in scores.by_draws(model, dataset).items()
        for chosen in [scores.chosen(model, dataset, draws=draws)]
        for method, measure in pair.arrays
    ]


def losses(scores: GridScores) -> list[dict[str, Any]]:
    """{loss, model, dataset, method, measure, candidate, ace, auroc, brier}, each metric as {mean, sd}.

    Every method is fitted by one loss alone and chosen anew among its candidates of that loss; Base and SE
    have no loss and are listed under both. The standard deviation is over runs, null for one run.
    """
    return [
        {
            "loss": loss,
            **row_names(model, dataset, method, measure),
            "candidate": candidates[method, measure],
            **{metric: _spread(pair, (method, measure), metric) for metric in ("ace", "auroc", "brier")},
        }
        for model, dataset in scores.run.pairs
        for loss in scores.run.selections[model, dataset].get("by_loss", {})
        for candidates in [_of_loss(scores, model, dataset, loss)]
        for pair in [scores.scored(model, dataset, candidates)]
        for method, measure in pair.arrays
    ]


def _of_loss(scores: GridScores, model: str, dataset: str, loss: str) -> dict[Key, str]:
    """The candidate of each method and measure when the method may use one loss alone."""
    run = scores.run
    selection = run.selections[model, dataset]
    chosen = {method: selection["methods"][method] for method in run.methods if method in ("Base", "SE")}
    chosen |= selection["by_loss"][loss]
    return {
        (method, measure): chosen[method][measure]["candidate"]
        for method in run.methods
        if method in chosen
        for measure in run.measures
        if measure in chosen[method]
    }


def _spread(pair: PairScores, key: Key, metric: str) -> dict[str, float | None]:
    values = pair.by_run[key][metric]
    if np.isnan(values).any():
        return {"mean": None, "sd": None}
    return {"mean": float(values.mean()), "sd": float(values.std(ddof=1)) if len(values) > 1 else None}


def transfer(scores: GridScores) -> list[dict[str, Any]]:
    """{model, fitted_on, used_on, temperature, measure, ace, brier, auroc}, the metrics over runs.

    Rows of the data set's own T (TS by NLL) have `fitted_on` = `used_on`. Empty with one data set.
    """
    run, rows = scores.run, []
    for model, dataset in run.pairs:
        selection = run.selections[model, dataset]
        sources = selection.get("transfer") or {}
        if not sources:
            continue
        candidates = {source: entry["candidate"] for source, entry in sources.items()}
        if run.samples_path(model, dataset, TRANSFERRED, 0).exists():
            candidates = {dataset: TRANSFERRED} | candidates
        pair = scores.scored(
            model,
            dataset,
            {(source, measure): name for source, name in candidates.items() for measure in run.measures},
            resamples=RESAMPLES,
            bootstrapped=METRICS,
        )
        own = [fit for fit in selection.get("fits", []) if fit["candidate"] == TRANSFERRED]
        temperatures = {dataset: own[0].get("temperature") if own else None}
        temperatures |= {source: entry["temperature"] for source, entry in sources.items()}
        for source, measure in pair.arrays:
            row: dict[str, Any] = {"model": model, "fitted_on": source, "used_on": dataset}
            row |= {"temperature": temperatures[source], "measure": measure}
            metrics = {metric: pair.over_runs((source, measure), metric) for metric in METRICS}
            rows.append(row | metrics)
    return rows


def score_maps(scores: GridScores) -> list[dict[str, Any]]:
    """{model, dataset, map, measure, ace, brier, auroc}, the metrics over runs; empty unless asked for.

    Beyond the paper: Base's confidence itself is mapped to a calibrated one (spec.md 6), learnt on validation
    questions. Answers stay as they are under Base, and so do their correctness and, but for ties, their
    order.
    """
    kinds = (scores.run.settings.get("extras") or {}).get("score_maps") or ()
    rows = []
    for model, dataset in scores.run.pairs:
        learnt = scores.run.selections[model, dataset].get("validation_scores") or {}
        pair = scores.pair(model, dataset)
        arrays = {
            (kind, measure): _mapped(one, kind, learnt[measure])
            for kind in kinds
            for (method, measure), one in pair.arrays.items()
            if method == "Base" and learnt.get(measure, {}).get("confidence")
        }
        resamples = min(RESAMPLES, pair.options.resamples)
        options = replace(pair.options, resamples=resamples, bootstrapped=METRICS)
        mapped = replace(pair, arrays=arrays, options=options)
        rows += [
            {"model": model, "dataset": dataset, "map": kind, "measure": measure}
            | {metric: mapped.over_runs((kind, measure), metric) for metric in METRICS}
            for kind, measure in arrays
        ]
    return rows


def _mapped(base: ScoreArrays, kind: str, learnt: dict[str, list[Any]]) -> ScoreArrays:
    score_map = SCORE_RECALIBRATORS[kind]().fit(learnt["confidence"], learnt["correct"])
    return replace(base, confidence=score_map.predict(base.confidence.ravel()).reshape(base.confidence.shape))
