"""Thresholds on stored samples of 7B models: all labels by the share, beside two in five by the probability.

`samples` prints these rows. Random questions of a set are labeled. The others measure the coverage, and how
often more of their answers are wrong than the risk allows ("exceeded", which also happens by chance, since
they are few). "all labels" is the default of `semcal calibrate`. "two in five" learns a map from three in
five labels and tests the threshold on the others; it has few splits, since each learns a map.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from semcal.calibration.features import AnswerFeatures, candidates_for
from semcal.calibration.thresholds import kept_apart, set_threshold
from semcal.metrics import risk_controlled_threshold
from semcal.metrics.probability_maps import Labelled, choose_map, predict_out_of_fold
from semcal.metrics.thresholds import likeliest_start

SETS = ("triviaqa", "nq")
LABELS, RISKS, DELTA = (100, 250, 500), (0.1, 0.2, 0.3), 0.05
#: Labels and splits with which the test on two in five is tried too.
LABELS_OF_MAPS, SPLITS_OF_MAPS = 250, 20
#: Rows in which a threshold is found less often are left out.
RARELY = 0.05
Graded = Callable[[str, str], tuple[AnswerFeatures, np.ndarray]]


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


def rows(graded: Graded, models: Sequence[str], graders: Sequence[str], splits: int) -> list[dict[str, Any]]:
    """Return one row for each set, grader, number of labels and risk; `graded` reads a set."""
    found = []
    for model, name, grader in product(models, SETS, graders):
        features, correct = graded(f"{model}_{name}", grader)
        for labels, risk in product(LABELS, RISKS):
            row = _row(features, correct, labels, risk, splits)
            if row["found"] >= RARELY:
                names = {"model": model, "set": name, "grader": grader}
                found.append(names | {"labels": labels, "risk": risk} | row)
    return found


def _row(
    features: AnswerFeatures, correct: np.ndarray, labels: int, risk: float, splits: int
) -> dict[str, Any]:
    parts = [
        np.random.default_rng([split, labels]).permutation(len(correct)) < labels for split in range(splits)
    ]
    now = _figures(correct, parts, [by_all_labels(features, correct, part, risk) for part in parts], risk)
    half = 1.96 * (now[0] * (1 - now[0]) / splits) ** 0.5
    row = {
        "found": now[0],
        "interval of found": f"[{max(0, now[0] - half):.3f}, {min(1, now[0] + half):.3f}]",
        "coverage": now[1],
        "exceeded": now[2],
    }
    if labels != LABELS_OF_MAPS or now[0] < RARELY:
        return row
    few = parts[:SPLITS_OF_MAPS]
    answered = [by_two_in_five(features, correct, part, risk, split) for split, part in enumerate(few)]
    before = _figures(correct, few, answered, risk)
    return row | {"two in five: found": before[0], "two in five: coverage": before[1]}


def _figures(
    correct: np.ndarray, labeled: Sequence[np.ndarray], answered: Sequence[np.ndarray], risk: float
) -> tuple[float, float, float]:
    """Return how often a threshold is found, its mean coverage, and how often the risk is exceeded."""
    found = [one.any() for one in answered]
    errors = [1 - correct[~part][one].mean() if one.any() else 0.0 for part, one in zip(labeled, answered)]
    exceeded = [error > risk for error in errors]
    return float(np.mean(found)), float(np.mean([one.mean() for one in answered])), float(np.mean(exceeded))
