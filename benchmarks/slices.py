"""Slices: probabilities and promises of thresholds that hold only for some kinds of questions.

    python -m benchmarks slices [LABELS]

The embedded model answers the test questions of two sets of the embedded world, well-known and rare facts,
with three calibrations: of LABELS (250) well-known facts, of as many questions from both sets, and of rare
facts only. Each slice is one set; `excess` is the mean probability minus the accuracy, with its 95% interval;
`risk` is the share of wrong answers above the threshold, at most 0.35 by the first calibration's promise.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

import semcal
from semcal.data.question import Question
from semcal.demo.questions import load_set
from semcal.errors import SemcalWarning

SETS = {"well known": "atlas-trivia", "rare": "atlas-rare"}
LABELS, RISK = 250, 0.35
#: Maximum number of test questions of a set; all by default.
TEST: int | None = None
QUICK = {"LABELS": 40, "TEST": 10}


def rows_of(questions: Sequence[Question], name: str) -> list[dict[str, Any]]:
    """Return the questions with their set, as rows of users."""
    return [{**question.row(), "id": f"{name} {question.id}", "set": name} for question in questions]


def results(labels: int | None = None) -> list[dict[str, Any]]:
    labels = labels or LABELS
    warnings.simplefilter("ignore", SemcalWarning)
    sets = {name: load_set(data) for name, data in SETS.items()}
    few_shot = sets["well known"].few_shot
    parts = {
        "well known": {"well known": labels},
        "both": dict.fromkeys(SETS, labels // 2),
        "rare": {"rare": labels},
    }
    asked = [row for name, questions in sets.items() for row in rows_of(questions.test[:TEST], name)]
    rows = []
    for learnt_on, sizes in parts.items():
        labelled = [
            row for name, n in sizes.items() for row in rows_of(sets[name].calibration_train[:n], name)
        ]
        risk = RISK if learnt_on == "well known" else None
        calibration = semcal.calibrate(
            "atlas", labelled, few_shot=few_shot, equivalence="atlas", risk=risk, progress=False
        )
        answered = semcal.ask_many(
            "atlas", asked, calibration=calibration, equivalence="atlas", progress=False
        )
        (figures,) = answered.metrics("Calibrated", by="set").values()
        rows += [{"learnt on": learnt_on, "set": part["value"], **shown(part)} for part in figures["by"]]
    return rows


def shown(part: dict[str, Any]) -> dict[str, Any]:
    """Return a slice as on the page."""
    keys = ("n", "mean_confidence", "accuracy", "excess", "excess_interval", "calibrated", "answered")
    return {key: part[key] for key in (*keys, "risk", "risk_interval")}


def main(arguments: Sequence[str] = ()) -> None:
    """Print the slices."""
    from benchmarks.__main__ import table

    print(table(results(*map(int, arguments))))


if __name__ == "__main__":
    main(sys.argv[1:])
