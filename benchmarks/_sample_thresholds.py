"""Thresholds on stored samples of 7B models: all labels by the share, beside two in five by the probability.

`samples` prints these rows. Random questions of a set are labeled, and the others measure the coverage and
how often more answers are wrong than the risk allows. "all labels" is the default of `semcal calibrate`.
"two in five" learns a map from three in five labels and tests the threshold on the others; few splits, since
each learns a map.
"""

from __future__ import annotations

import gzip
import json
import warnings
from functools import cache
from typing import Any

import numpy as np

from benchmarks import data_folder
from semcal.calibration.calibrator import kept_apart, set_threshold
from semcal.calibration.configuration import grade_answers
from semcal.calibration.features import AnswerFeatures, candidates_for, features_of
from semcal.calibration.samples import measure_samples
from semcal.errors import SemcalWarning
from semcal.grading.grade import rule_grader
from semcal.metrics import risk_controlled_threshold
from semcal.metrics.probability_maps import Labelled, choose_map, predict_out_of_fold
from semcal.metrics.thresholds import likeliest_start
from semcal.models.clustering import ClusterConfig
from semcal.models.equivalence import ExactMatch
from semcal.rows import Row

SETS = (
    "llama2-7b-chat_triviaqa",
    "llama2-7b-chat_nq",
    "mistral-7b-instruct_triviaqa",
    "mistral-7b-instruct_nq",
)
GRADERS, LABELS, RISKS, DELTA = ("exact", "rules"), (100, 250, 500), (0.1, 0.2, 0.3), 0.05
SPLITS, SPLITS_OF_MAPS = 1000, 40


@cache
def graded(name: str, grader: str) -> tuple[AnswerFeatures, np.ndarray]:
    """Return the features of a stored set, and which answers are correct (N,)."""
    with gzip.open(data_folder() / f"{name}_T1_a.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [Row(json.loads(line)) for line in lines]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SemcalWarning)
        measured = measure_samples(rows, ClusterConfig(ExactMatch()))
    features = features_of(measured)
    return features, grade_answers(features, next(iter(measured.values())), rule_grader(grader), "modal")


def by_all_labels(
    features: AnswerFeatures, correct: np.ndarray, labeled: np.ndarray, risk: float
) -> np.ndarray:
    """Return which of the other questions are answered."""
    share = features.values["E-SC"]
    limit = set_threshold(share[labeled], correct[labeled], risk, DELTA).threshold
    return share[~labeled] >= (np.inf if limit is None else limit)


def by_two_in_five(
    features: AnswerFeatures, correct: np.ndarray, labeled: np.ndarray, risk: float, seed: int
) -> np.ndarray:
    """Return which of the other questions are answered, by a map that other labels chose."""
    apart = np.zeros(len(correct), dtype=bool)
    apart[labeled] = kept_apart(int(labeled.sum()), None, seed)
    fitted = Labelled(features.values, correct, candidates_for(features)).part(labeled & ~apart)
    chosen = choose_map(*fitted, seed=seed).map
    out_of_fold, _ = predict_out_of_fold([fitted], seed=seed)
    scores = chosen.scores(features.values)
    start = likeliest_start(
        scores[labeled & ~apart], 1 - out_of_fold, int(apart.sum()), risk_limit=risk, delta=DELTA
    )
    limit = risk_controlled_threshold(
        scores[apart], correct[apart], risk_limit=risk, delta=DELTA, start=start
    ).threshold
    return scores[~labeled] >= (np.inf if limit is None else limit)


def rows(splits: int | None = None) -> list[dict[str, Any]]:
    """Return one row for each set, grader, number of labels and risk with which a threshold is found."""
    found = []
    for name in SETS:
        for grader in GRADERS:
            features, correct = graded(name, grader)
            for labels in LABELS:
                for risk in RISKS:
                    row = _row(features, correct, labels, risk, splits or SPLITS)
                    if row["found"] > 0.05:
                        found.append({"set": name, "grader": grader, "labels": labels, "risk": risk, **row})
    return found


def _row(
    features: AnswerFeatures, correct: np.ndarray, labels: int, risk: float, splits: int
) -> dict[str, Any]:
    figures = np.zeros((2, 3))
    counts = splits, min(splits, SPLITS_OF_MAPS)
    for split in range(splits):
        labeled = np.random.default_rng([split, labels]).permutation(len(correct)) < labels
        answered = [by_all_labels(features, correct, labeled, risk)]
        if split < counts[1]:
            answered.append(by_two_in_five(features, correct, labeled, risk, split))
        for place, one in enumerate(answered):
            if one.any():
                figures[place] += 1, one.mean(), 1 - correct[~labeled][one].mean() > risk
    (found, coverage, exceeded), before = figures[0] / counts[0], figures[1] / counts[1]
    half = 1.96 * (found * (1 - found) / splits) ** 0.5
    return {
        "found": float(found),
        "interval of found": f"[{max(0, found - half):.3f}, {min(1, found + half):.3f}]",
        "coverage": float(coverage),
        "exceeded": float(exceeded),
        "two in five: found": float(before[0]),
        "two in five: coverage": float(before[1]),
    }
