"""Scores under other settings, and of Calibrated.

Numbers of draws (figure 6), losses (figure 7), other temperatures, maps. Calibrated stands beside the methods
of the run, each graded on the one wording that it answers with: the meaning that E-SC puts first, in its
commonest wording. It gives Base's answers, so that their accuracy is the same; only the probability differs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from semcal.data.question import several
from semcal.experiment.analyses.contrasts import contrast_summary
from semcal.experiment.analyses.grid_scores import (
    GridScores,
    Key,
    PairScores,
    ScoreArrays,
    row_names,
)
from semcal.experiment.analyses.scores_by_method import scores_of
from semcal.experiment.finished import FinishedRun, Pair
from semcal.experiment.grid_settings import CALIBRATED, Grading
from semcal.grading.rules import Grader
from semcal.measuring import representative
from semcal.metrics import SCORE_RECALIBRATORS
from semcal.rows import Row

#: The candidate whose temperature is used on other data sets.
TRANSFERRED = "TS NLL"
#: What is computed under another data set's T and under score maps, with so many resamples at most.
COMPARED = ("ace", "brier", "auroc")
COMPARED_RESAMPLES = 200


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
            resamples=COMPARED_RESAMPLES,
            bootstrapped=COMPARED,
        )
        fits = [fit for fit in selection.get("fits", []) if fit["candidate"] == TRANSFERRED]
        temperatures = {dataset: fits[0].get("temperature") if fits else None}
        temperatures |= {source: entry["temperature"] for source, entry in sources.items()}
        for source, measure in pair.arrays:
            row: dict[str, Any] = {"model": model, "fitted_on": source, "used_on": dataset}
            row |= {"temperature": temperatures[source], "measure": measure}
            metrics = {metric: pair.over_runs((source, measure), metric) for metric in COMPARED}
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
            (kind, measure): _mapped(base, kind, learnt[measure])
            for kind in kinds
            for (method, measure), base in pair.arrays.items()
            if method == "Base" and learnt.get(measure, {}).get("confidence")
        }
        resamples = min(COMPARED_RESAMPLES, pair.options.resamples)
        options = replace(pair.options, resamples=resamples, bootstrapped=COMPARED)
        mapped = replace(pair, arrays=arrays, options=options)
        rows += [
            {"model": model, "dataset": dataset, "map": kind, "measure": measure}
            | {metric: mapped.over_runs((kind, measure), metric) for metric in COMPARED}
            for kind, measure in arrays
        ]
    return rows


def _mapped(base: ScoreArrays, kind: str, learnt: dict[str, list[Any]]) -> ScoreArrays:
    score_map = SCORE_RECALIBRATORS[kind]().fit(learnt["confidence"], learnt["correct"])
    return replace(base, confidence=score_map.predict(base.confidence.ravel()).reshape(base.confidence.shape))


Rows = list[dict[str, Any]]
MEASURE = "E-SC"
KEY = (CALIBRATED, MEASURE)
OF_AGAINST = ("accuracy", "mean_confidence", "ace", "brier", "auroc", "gain")
#: What its row alone has.
OF_CALIBRATED = ("against", "calibration")


def one_wording(scores: GridScores, pair: Pair) -> PairScores:
    """The scores of Calibrated and of every method under E-SC on answers in one wording."""
    run, pair_options = scores.run, scores.pair(*pair).options
    learnt = [run.calibrated_rows(*pair, number) for number in range(run.runs)]
    grader = Grading.model_validate(run.settings.get("grading", {})).grader()
    values = {
        method: [_answers(run, pair, method, number, grader) for number in range(run.runs)]
        for method in run.methods
        if method != "Base"
    }
    values["Base"] = [[(row["share"], row["correct"]) for row in rows] for rows in learnt]
    values[CALIBRATED] = [[(row["probability"], row["correct"]) for row in rows] for rows in learnt]
    arrays = {}
    for method in (*run.methods, CALIBRATED):
        p, correct = np.moveaxis(np.array(values[method], dtype=np.float64), -1, 0)
        arrays[method, MEASURE] = ScoreArrays(p, correct, entropy=1 - p, vanilla_correct=correct)
    ties = scores.runs_of(*pair, run.choice(*pair, "Base", MEASURE)["candidate"])[0].ties
    return PairScores(arrays, len(ties), 0, pair_options, several(ties))


def _answers(
    run: FinishedRun, pair: Pair, method: str, number: int, grader: Grader
) -> list[tuple[float, bool]]:
    """The confidence of E-SC in each answer of a method, and whether its commonest wording is right."""
    answers = []
    for row in run.rows(*pair, run.choice(*pair, method, MEASURE)["candidate"], number):
        cluster = row["clusters"][row["top_cluster"][MEASURE]]
        text = representative(row["samples"], cluster, Row(row).log_likelihoods)
        grade = grader.grade(row["question"], [text], row["answers"])
        answers.append((row["confidence"][MEASURE], grade.correct))
    return answers


def calibrated(run: FinishedRun, pair: Pair, scores: PairScores) -> Rows:
    """Compare Calibrated with every method on the answers of E-SC, each in one wording.

    {model, dataset, method, measure} and what `scores_by_method.confidence` has. The last row, that of
    Calibrated, also has `against`: {method: {metric: {value, interval, p}}}, its value less that of the other
    for `OF_AGAINST`; and `calibration`: {labels, apart, chosen, warnings, threshold, answered, wrong}, the
    last two being the shares of the test questions that are answered, and of these answers that are wrong.
    """
    rows = [{**row_names(*pair, *key), **scores_of(scores, key)} for key in scores.arrays]
    against = {
        method: {metric: _difference(scores, method, metric) for metric in OF_AGAINST}
        for method in run.methods
    }
    rows[-1] |= {"against": against, "calibration": _calibration(run, pair)}
    return rows


def _difference(scores: PairScores, method: str, metric: str) -> dict[str, Any] | None:
    difference = scores.resampled.contrast(KEY, metric) - scores.resampled.contrast((method, MEASURE), metric)
    return None if np.isnan(difference.value) else contrast_summary(difference)


def _calibration(run: FinishedRun, pair: Pair) -> dict[str, Any]:
    content = run.calibration(*pair)
    report, threshold = content["report"], content["threshold"]
    summary = {
        "labels": report["n"],
        "apart": report["apart"],
        "chosen": report["chosen"],
        "warnings": report["warnings"],
        "threshold": threshold,
        "answered": None,
        "wrong": None,
    }
    if threshold is None:
        return summary
    rows = [row for number in range(run.runs) for row in run.calibrated_rows(*pair, number)]
    answered = [row["correct"] for row in rows if not row["abstained"]]
    wrong = 1 - sum(answered) / len(answered) if answered else None
    return {**summary, "answered": len(answered) / len(rows), "wrong": wrong}
