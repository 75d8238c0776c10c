"""Calibrated beside the methods of the run, each graded on the one wording that it answers with (E-SC).

The answer of a method is the meaning that E-SC puts first, in its commonest wording. Calibrated gives Base's
answers, so that their accuracy is the same; only the probability differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from semcal.experiment.analyses.claims.statements import (
    FAILS,
    HOLDS,
    OPEN,
    Claim,
    Statement,
    with_enough_questions,
)
from semcal.experiment.analyses.contrasts import contrast_summary, contrast_text
from semcal.experiment.analyses.grid_scores import (
    BOOTSTRAPPED,
    GridScores,
    PairScores,
    ScoreArrays,
    row_names,
)
from semcal.experiment.analyses.scores_by_method import scores_of
from semcal.experiment.finished import FinishedRun, Pair
from semcal.experiment.grid_settings import CALIBRATED, Grading
from semcal.measuring import representative
from semcal.qa.grading import Grader
from semcal.qa.questions import several
from semcal.rows import Row

Rows = list[dict[str, Any]]
MEASURE = "E-SC"
KEY = (CALIBRATED, MEASURE)
METRICS = ("accuracy", "mean_confidence", "ace", "brier", "auroc", "gain")
#: What its row alone has.
OF_CALIBRATED = ("against", "calibration")
GAINS = Statement(
    "Calibrated gains over Base",
    "Calibrated gains over Base",
    "beyond the paper",
    "Gain of Calibrated less that of Base on the same answers, paired by question: it holds if the 95 % "
    "interval over questions lies above 0, it does not if it lies below 0 or no map was found worth using; "
    "else it is not decidable here.",
)


def one_wording(scores: GridScores, pair: Pair) -> PairScores:
    """The scores of Calibrated and of every method under E-SC on answers in one wording."""
    run, whole = scores.run, scores.pair(*pair)
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
    options = replace(whole.options, bootstrapped=(*dict.fromkeys((*BOOTSTRAPPED, "gain")),))
    return PairScores(arrays, len(ties), 0, options, several(ties))


def _answers(
    run: FinishedRun, pair: Pair, method: str, number: int, grader: Grader
) -> list[tuple[float, bool]]:
    """The confidence of E-SC in each answer of a method, and whether its commonest wording is right."""
    found = []
    for row in run.rows(*pair, run.choice(*pair, method, MEASURE)["candidate"], number):
        cluster = row["clusters"][row["top_cluster"][MEASURE]]
        text = representative(row["samples"], cluster, Row(row).log_likelihoods)
        grade = grader.grade(row["question"], [text], row["answers"])
        found.append((row["confidence"][MEASURE], grade.correct))
    return found


def calibrated(run: FinishedRun, pair: Pair, scores: PairScores) -> Rows:
    """Compare Calibrated with every method on the answers of E-SC, each in one wording.

    {model, dataset, method, measure} and what `scores_by_method.confidence` has. The last row, that of
    Calibrated, also has `against`: {method: {metric: {value, interval, p}}}, its value less that of the other
    for `METRICS`; and `calibration`: {labels, apart, chosen, warnings, threshold, answered, wrong}, the last
    two being the shares of the test questions that are answered, and of these answers that are wrong.
    """
    rows = [{**row_names(*pair, *key), **scores_of(scores, key)} for key in scores.arrays]
    against = {
        method: {metric: _difference(scores, method, metric) for metric in METRICS} for method in run.methods
    }
    rows[-1] |= {"against": against, "calibration": _calibration(run, pair)}
    return rows


def _difference(scores: PairScores, method: str, metric: str) -> dict[str, Any] | None:
    found = scores.resampled.contrast(KEY, metric) - scores.resampled.contrast((method, MEASURE), metric)
    return None if np.isnan(found.value) else contrast_summary(found)


def _calibration(run: FinishedRun, pair: Pair) -> dict[str, Any]:
    content = run.calibration(*pair)
    report, threshold = content["report"], content["threshold"]
    found = {
        "labels": report["n"],
        "apart": report["apart"],
        "chosen": report["chosen"],
        "warnings": report["warnings"],
        "threshold": threshold,
        "answered": None,
        "wrong": None,
    }
    if threshold is None:
        return found
    rows = [row for number in range(run.runs) for row in run.calibrated_rows(*pair, number)]
    answered = [row["correct"] for row in rows if not row["abstained"]]
    wrong = 1 - sum(answered) / len(answered) if answered else None
    return {**found, "answered": len(answered) / len(rows), "wrong": wrong}


def gain_findings(found: Mapping[Pair, PairScores], rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Judge for each of some pairs whether Calibrated gains over Base; `rows` are those of `calibrated`."""
    learnt = {
        (row["model"], row["dataset"]): row["calibration"] for row in rows if row["method"] == CALIBRATED
    }
    claims = []
    for (model, dataset), scores in found.items():
        difference = scores.resampled.contrast(KEY, "gain") - scores.resampled.contrast(
            ("Base", MEASURE), "gain"
        )
        summary, chosen = contrast_summary(difference), learnt[model, dataset]["chosen"]
        low, high = summary["interval"]
        declined = chosen.startswith("none")
        verdict = HOLDS if low > 0 else FAILS if high < 0 or declined else OPEN
        map_used = "No map was found worth using" if declined else f"The map is {chosen}"
        statement = replace(GAINS, claim=f"On {dataset} Calibrated gains over Base ({model}).")
        because = f"{map_used}; gain over Base {contrast_text(summary)}."
        evidence = {"model": model, "dataset": dataset, "difference": summary, "map": chosen}
        claims.append(with_enough_questions(statement.judged(verdict, because, evidence), scores.n))
    return claims
