"""Stored samples of 7B models: thresholds, and a calibration that is moved from TriviaQA to NQ.

    SEMCAL_DATA=FOLDER python -m benchmarks samples [--splits N]
    SEMCAL_DATA=FOLDER python -m benchmarks samples --thresholds [--splits N]

`--thresholds` prints how often a threshold is found and what it answers (benchmarks/_sample_thresholds.py),
for all labels and for the test on two in five of them.

The calibration of each model is learned from all its TriviaQA questions. Random NQ questions are labeled, and
the other NQ questions measure the probabilities that are not moved, moved (`Calibrator.move`) and learned
from these labels alone. The figures are ACE with its noise floor, and gain, as means over the splits. The
interval is the 95% interval of the mean ACE of the moved probabilities. Answers are compared by normal form,
and graded by equal normal forms ("exact") or by all rules ("rules").
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from benchmarks import _sample_thresholds, data_folder
from semcal import metrics
from semcal.calibration.calibration import Calibration, CalibrationConfig, grade_answers
from semcal.calibration.calibrator import calibrate_rows
from semcal.calibration.features import AnswerFeatures, candidates_for, features_of
from semcal.calibration.samples import measure_samples
from semcal.errors import SemcalWarning
from semcal.grading.grade import rule_grader
from semcal.metrics.probability_maps import Labelled, Move, choose_map, part_of
from semcal.models.clustering import ClusterConfig
from semcal.models.equivalence import ExactMatch
from semcal.rows import Row, RowsAt

MODELS = ("llama2-7b-chat", "mistral-7b-instruct")
GRADERS = ("exact", "rules")
#: Labeled questions of the new data, and splits of each number.
LABELS, SPLITS = (30, 50, 100, 200), 100
#: Splits of the thresholds.
THRESHOLD_SPLITS = 1000
QUICK = {"SPLITS": 2, "THRESHOLD_SPLITS": 2, "LABELS": (50,), "MODELS": ("llama2-7b-chat",)}


@cache
def measured(name: str) -> RowsAt:
    """Return the measured rows of a stored set."""
    with gzip.open(data_folder() / f"{name}_T1_a.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [Row(json.loads(line)) for line in lines]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SemcalWarning)
        return measure_samples(rows, ClusterConfig(ExactMatch()))


def calibrated(name: str, grader: str) -> Calibration:
    """Return the calibration that is learned from all questions of a set."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SemcalWarning)
        config = CalibrationConfig(grader=rule_grader(grader))
        return calibrate_rows(measured(name), ClusterConfig(ExactMatch()), config)


def labelled(name: str, grader: str, calibration: Calibration) -> tuple[AnswerFeatures, np.ndarray]:
    """Return the features of a set as a calibration reads them, and which answers are correct (n,)."""
    features, rows = calibration.read(measured(name))
    return features, grade_answers(features, rows, rule_grader(grader), "modal")


def moved_to_nq(model: str, grader: str, labels: int, splits: int) -> dict[str, Any]:
    """Return the figures of one model and number of labels, as means over splits."""
    calibration = calibrated(f"{model}_triviaqa", grader)
    features, correct = labelled(f"{model}_nq", grader, calibration)
    unmoved, _ = calibration.predict(features)
    every = Labelled(features.values, correct, candidates_for(features))
    figures: dict[str, list[float]] = {}
    for split in range(splits):
        is_labeled = np.random.default_rng([split, labels]).permutation(len(correct)) < labels
        few, test = every.part(is_labeled), correct[~is_labeled]
        scratch = choose_map(*few, seed=split).map.predict(part_of(features.values, ~is_labeled))
        moved = Move.of(unmoved[is_labeled], few.correct).apply(unmoved[~is_labeled])
        for name, p in {"not moved": unmoved[~is_labeled], "moved": moved, "from scratch": scratch}.items():
            figures.setdefault(f"ACE {name}", []).append(metrics.ace(p, test))
            figures.setdefault(f"gain {name}", []).append(metrics.gain(p, test))
        floor = metrics.noise_floor(moved, draws=20, seed=split).mean
        figures.setdefault("noise floor", []).append(floor)
    means = {name: float(np.mean(values)) for name, values in sorted(figures.items())}
    half = 1.96 * float(np.std(figures["ACE moved"], ddof=1)) / splits**0.5
    interval = f"[{means['ACE moved'] - half:.3f}, {means['ACE moved'] + half:.3f}]"
    return {"model": model, "grader": grader, "labels": labels, **means, "interval of ACE moved": interval}


def graded(name: str, grader: str) -> tuple[AnswerFeatures, np.ndarray]:
    """Return the features of a set, and which answers are correct (n,)."""
    rows = measured(name)
    features = features_of(rows)
    return features, grade_answers(features, next(iter(rows.values())), rule_grader(grader), "modal")


def thresholds(splits: int | None = None) -> list[dict[str, Any]]:
    """Return one row for each set, grader, number of labels and risk."""
    return _sample_thresholds.rows(graded, MODELS, GRADERS, splits or THRESHOLD_SPLITS)


def results(splits: int | None = None) -> list[dict[str, Any]]:
    """Return the rows of thresholds, and one row for each model, grader and number of labels."""
    return thresholds(splits) + [
        moved_to_nq(model, grader, labels, splits or SPLITS)
        for model in MODELS
        for grader in GRADERS
        for labels in LABELS
    ]


def main(arguments: Sequence[str] = ()) -> None:
    """Read the command line and print a table."""
    from benchmarks.__main__ import table

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int)
    parser.add_argument("--thresholds", action="store_true")
    options = parser.parse_args(arguments)
    print(table(thresholds(options.splits) if options.thresholds else results(options.splits)))


if __name__ == "__main__":
    main(sys.argv[1:])
