"""Stored samples of larger models: probabilities, thresholds, and calibrations that are moved to other data.

    SEMCAL_DATA=FOLDER python -m benchmarks samples [--table TABLE] [--splits N] [--figure FILE]

TABLE is `labels` (before and after calibration, by number of labels), `limits`, `draws` and `curve` (by
number of samples), `thresholds`, or `moved`; all by default. `benchmarks/_sample_maps.py` and
`_sample_thresholds.py` say how the tables without a paragraph here are made.

`limits`: the map is learned from all questions, and 250 labels set its intercept alone. The ACE on the other
questions then contains noise, the error of the accuracy that these labels show, and the misfit of the map.

`moved`: the calibration is learned from all questions of one set. Random questions of another set are
labeled, and its other questions measure the probabilities that are not moved, moved (`Calibrator.move`) and
learned from these labels alone; and with the slope b that fits all questions ("best slope"), which shows the
error of the intercept alone. The figures are ACE with its noise floor, and gain, as means over the splits.
The interval is the 95% interval of the mean ACE of the moved probabilities.

Answers are compared by normal form, and graded by equal normal forms ("exact") or by all rules ("rules").
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from itertools import permutations, product
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logit

from benchmarks import _sample_maps, _sample_thresholds, data_folder
from semcal import metrics
from semcal.calibration.calibration import Calibration, CalibrationConfig, grade_answers
from semcal.calibration.features import AnswerFeatures, candidates_for, features_of
from semcal.calibration.learning import calibrate_rows
from semcal.calibration.samples import measure_samples
from semcal.errors import SemcalWarning
from semcal.grading.grade import rule_grader
from semcal.metrics.probability_maps import Labelled, Move, choose_map, part_of
from semcal.models.clustering import ClusterConfig
from semcal.models.equivalence import ExactMatch
from semcal.rows import Row, RowsAt

MODELS = ("llama2-7b-chat", "mistral-7b-instruct")
GRADERS = ("exact", "rules")
SETS = [f"{model}_{name}" for model in MODELS for name in _sample_thresholds.SETS]
#: Labeled questions of the new data: of NQ for a calibration of TriviaQA, and of other pairs of sets.
LABELS, LABELS_OF_PAIRS = (30, 50, 100, 200), (100,)
#: Splits of moves, of thresholds, and of curves, which learn five calibrations in each.
SPLITS, THRESHOLD_SPLITS, CURVE_SPLITS = 20, 200, 10
FILE_OF_GPT = "gpt35_nq_loglik_T1_notext_a.jsonl.gz"
QUICK = {
    "SPLITS": 2,
    "THRESHOLD_SPLITS": 2,
    "CURVE_SPLITS": 1,
    "LABELS": (50,),
    "MODELS": MODELS[:1],
    "SETS": SETS[:2],
    "LABELS_OF_PAIRS": (),
}


@cache
def measured(name: str, m: int = 10) -> RowsAt:
    """Return the measured rows of a stored set."""
    file = FILE_OF_GPT if name == _sample_maps.GPT else f"{name}_T1_a.jsonl.gz"
    with gzip.open(data_folder() / file, "rt", encoding="utf-8") as lines:
        rows = [Row(json.loads(line)) for line in lines]
    if name == _sample_maps.GPT:  # likelihoods of whole samples
        rows = [
            row.set(log_likelihoods=_per_token(row.json), answers=_sample_maps.correct_texts(row.json))
            for row in rows
        ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SemcalWarning)
        return measure_samples(rows, ClusterConfig(ExactMatch()), m=m)


def _per_token(row: dict[str, Any]) -> list[float]:
    return [total / count for total, count in zip(row["log_likelihoods"], row["token_counts"])]


@cache
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


def of_slope(slope: float, p: np.ndarray, correct: np.ndarray) -> Move:
    """Return the move with this slope whose mean probability is the accuracy."""
    scaled, rate = slope * logit(p), (correct.sum() + 0.5) / (len(correct) + 1)
    return Move(float(brentq(lambda a: float(expit(a + scaled).mean() - rate), -50, 50)), slope)


def limits(splits: int) -> list[dict[str, Any]]:
    """Return one row for each set and grader: the ACE of a map of which only the intercept is learned."""
    found: list[dict[str, Any]] = []
    for name, grader in sets():
        features, correct = graded(name, grader)
        shape = choose_map(features.values, correct, candidates_for(features)).map.predict(features.values)
        aces, floors = [], []
        for split in range(splits):
            n_labels = _sample_maps.LABELS_OF_DRAWS
            is_labeled = np.random.default_rng([split, n_labels]).permutation(len(correct)) < n_labels
            p = of_slope(1.0, shape[is_labeled], correct[is_labeled]).apply(shape[~is_labeled])
            aces.append(metrics.ace(p, correct[~is_labeled]))
            floors.append(metrics.noise_floor(p, draws=20, seed=split).mean)
        row = {"set": name, "grader": grader, "labels": n_labels}
        found.append(row | {"ACE": float(np.mean(aces)), "noise floor": float(np.mean(floors))})
    return found


def moved(source: str, target: str, grader: str, labels: int, splits: int) -> dict[str, Any]:
    """Return the figures of one pair of sets and one number of labels, as means over splits."""
    calibration = calibrated(source, grader)
    features, correct = labelled(target, grader, calibration)
    unmoved, _ = calibration.predict(features)
    every = Labelled(features.values, correct, candidates_for(features))
    slope = Move.of(unmoved, correct).slope
    figures: dict[str, list[float]] = {}
    for split in range(splits):
        is_labeled = np.random.default_rng([split, labels]).permutation(len(correct)) < labels
        few, test = every.part(is_labeled), correct[~is_labeled]
        scratch = choose_map(*few, seed=split).map.predict(part_of(features.values, ~is_labeled))
        after = Move.of(unmoved[is_labeled], few.correct).apply(unmoved[~is_labeled])
        of_best = of_slope(slope, unmoved[is_labeled], few.correct).apply(unmoved[~is_labeled])
        of_split = {"not moved": unmoved[~is_labeled], "moved": after, "from scratch": scratch}
        for name, p in (of_split | {"best slope": of_best}).items():
            figures.setdefault(f"ACE {name}", []).append(metrics.ace(p, test))
            figures.setdefault(f"gain {name}", []).append(metrics.gain(p, test))
        floor = metrics.noise_floor(after, draws=20, seed=split).mean
        figures.setdefault("noise floor", []).append(floor)
    means = {name: float(np.mean(values)) for name, values in sorted(figures.items())}
    half = 1.96 * float(np.std(figures["ACE moved"], ddof=1)) / splits**0.5
    interval = f"[{means['ACE moved'] - half:.3f}, {means['ACE moved'] + half:.3f}]"
    names = {"from": source, "to": target, "grader": grader, "labels": labels}
    return names | means | {"interval of ACE moved": interval}


def graded(name: str, grader: str, m: int = 10) -> tuple[AnswerFeatures, np.ndarray]:
    """Return the features of a set by its first m samples, and which answers are correct (n,)."""
    rows = measured(name, m)
    features = features_of(rows, further=(_sample_maps.STATED,) if name == _sample_maps.GPT else ())
    marks = _sample_maps.grader_of(name, grader)
    return features, grade_answers(features, next(iter(rows.values())), marks, "modal")


def moves(splits: int | None = None) -> list[dict[str, Any]]:
    """Return one row for each pair of sets, grader and number of labels."""
    rows = []
    for grader, (source, target) in product(GRADERS, permutations(SETS, 2)):
        is_main = target == source.replace("triviaqa", "nq")
        for labels in LABELS if is_main else LABELS_OF_PAIRS:
            rows.append(moved(source, target, grader, labels, splits or SPLITS))
    return rows


def sets() -> list[tuple[str, str]]:
    """Return each set with its graders."""
    return [*product(SETS, GRADERS), (_sample_maps.GPT, "ROUGE-L")]


def curves() -> list[tuple[str, str]]:
    """Return each set with the grader of its curve."""
    return [(name, grader) for name, grader in sets() if grader != "exact"]


#: The tables by name.
TABLES: dict[str, Callable[[int | None], list[dict[str, Any]]]] = {
    "labels": lambda splits: _sample_maps.by_labels(graded, sets(), splits or SPLITS),
    "limits": lambda splits: limits(splits or SPLITS),
    "draws": lambda splits: _sample_maps.by_samples(graded, sets(), splits or SPLITS),
    "curve": lambda splits: _sample_maps.by_curve(measured, curves(), splits or CURVE_SPLITS),
    "thresholds": lambda splits: _sample_thresholds.rows(graded, MODELS, GRADERS, splits or THRESHOLD_SPLITS),
    "moved": moves,
}


def results(splits: int | None = None) -> list[dict[str, Any]]:
    """Return the rows of all tables."""
    return [row for rows_of in TABLES.values() for row in rows_of(splits)]


def main(arguments: Sequence[str] = ()) -> None:
    """Read the command line and print the tables."""
    from benchmarks.__main__ import table

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", choices=TABLES)
    parser.add_argument("--splits", type=int)
    parser.add_argument("--figure", help="with --table labels: the file of a plot")
    options = parser.parse_args(arguments)
    for name in TABLES if options.table is None else [options.table]:
        print(table(rows := TABLES[name](options.splits)), flush=True)
        if name == "labels" and options.figure:
            _sample_maps.plot(rows, options.figure)


if __name__ == "__main__":
    main(sys.argv[1:])
