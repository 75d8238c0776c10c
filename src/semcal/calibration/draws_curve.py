"""Gain of a calibrated probability by the number of samples."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from semcal.arrays import Floats
from semcal.calibration.configuration import (
    CalibrationConfig,
    answering_temperatures,
    grade_answers,
    requested_features,
)
from semcal.calibration.features import answered_rows, candidates_for, features_of
from semcal.calibration.report import DrawsPoint
from semcal.calibration.signals import SIGNALS
from semcal.data.question import several
from semcal.data.splits import question_ties
from semcal.errors import SemcalWarning
from semcal.grading.grade import as_grader
from semcal.measuring import measure_at
from semcal.metrics.frequencies import Groups
from semcal.metrics.probability_maps import Labelled, paired_difference, predict_out_of_fold
from semcal.models.clustering import ClusterConfig, cluster_missing, match_at
from semcal.models.equivalence import Equivalence, ExactMatch, Triple, margins_by
from semcal.rows import AnswerKind, RowsAt


class _Remembering:
    """An equivalence that keeps its verdicts in memory, since all numbers of samples share pairs."""

    def __init__(self, equivalence: Equivalence) -> None:
        self.name, self.revision = equivalence.name, equivalence.revision
        self.symmetric = getattr(equivalence, "symmetric", False)
        self._equivalence = equivalence
        self._margins: dict[Triple, float] = {}

    def entails(self, triples: Sequence[Triple]) -> list[bool]:
        return [margin > 0 for margin in self.margins(triples)]

    def margins(self, triples: Sequence[Triple]) -> list[float]:
        missing = [triple for triple in dict.fromkeys(triples) if triple not in self._margins]
        self._margins |= zip(missing, margins_by(self._equivalence, missing))
        return [self._margins[triple] for triple in triples]


#: Numbers of samples of the curve, up to the number at hand.
NUMBERS = (1, 2, 3, 5, 10)
TOKEN_SCORES = SIGNALS["token-scores"]


def draws_curve(
    rows: RowsAt,
    cluster: ClusterConfig,
    config: CalibrationConfig,
    *,
    seed: int = 0,
    fixed_temperature: bool = False,
) -> tuple[DrawsPoint, ...]:
    """Return the gain out of fold with the first 1, 2, 3, 5, 10 and all samples at each temperature.

    Rows of labeled questions hold all samples. Each number of samples is clustered (unless rows hold
    `clusters`), answered, graded and learned from separately. Token scores are features if they are known.
    Other signals are left out, since the model was asked about other answers. A question without an answer
    has probability 0 and gain 0. `above` is the paired difference to all samples, with its standard error
    over questions or groups.
    """
    first = next(iter(rows.values()))
    groups = several([question_ties(row.json) for row in first])
    m = min(row.m for part in rows.values() for row in part)
    numbers = [*(n for n in NUMBERS if n < m), m]
    if not isinstance(cluster.judge, ExactMatch):
        cluster = replace(cluster, equivalence=_Remembering(cluster.judge))
    config = replace(config, grader=as_grader(config.grader, cluster.judge))
    labels_with = partial(_labels, rows, cluster=cluster, config=config, fixed=fixed_temperature)
    gains = [_gains(*labels_with(n), groups, seed) for n in numbers[::-1]][::-1]
    return tuple(
        DrawsPoint(n, float(of_n.mean()), *paired_difference(of_n, gains[-1], groups))
        for n, of_n in zip(numbers, gains)
    )


def enough_samples(curve: Sequence[DrawsPoint]) -> int:
    """Return the smallest number of samples, above 1, that loses at most one standard error of gain.

    >>> enough_samples([DrawsPoint(2, 0.3, -0.04, 0.01), DrawsPoint(5, 0.33, -0.01, 0.01)])
    5
    """
    return next(point.m for point in curve if point.m > 1 and point.above >= -point.standard_error)


def first_samples(rows: RowsAt, n: int, cluster: ClusterConfig, answer: AnswerKind) -> RowsAt:
    """Return the rows with their first n samples at each temperature, clustered, measured and matched."""
    taken = [row.take(range(n)) for part in rows.values() for row in part]
    clustered = iter(cluster_missing(taken, cluster))
    measured = measure_at({t: [next(clustered) for _ in part] for t, part in rows.items()})
    return match_at(measured, answer, cluster.judge)


def _labels(
    rows: RowsAt, n: int, *, cluster: ClusterConfig, config: CalibrationConfig, fixed: bool
) -> tuple[list[Labelled], list[list[bool]]]:
    """Return the labeled answers at each temperature with the first n samples, and a mask of answers."""
    measured = first_samples(rows, n, cluster, config.answer)
    labels, found = [], []
    for t in answering_temperatures(measured, fixed=fixed):
        at = {t: measured[t], **measured}
        is_known = any(item.token_scores is not None for item in answered_rows(at, config.answer))
        signals = [TOKEN_SCORES.name] if is_known else []
        features = features_of(at, config.answer, requested_features(config.features, signals))
        correct = grade_answers(features, measured[t], as_grader(config.grader, cluster.judge), config.answer)
        labels.append(Labelled(features.values, correct, candidates_for(features)))
        found.append([text is not None for text in features.answers])
    return labels, found


def _gains(
    labels: Sequence[Labelled], found: Sequence[Sequence[bool]], groups: Groups | None, seed: int
) -> Floats:
    """Return the gain of each question (N,) out of fold."""
    has_answer = np.all(found, axis=0)
    gains = np.zeros(len(has_answer))  # 0 without an answer
    if not has_answer.any():
        return gains
    labels = [of_place.part(has_answer) for of_place in labels]
    groups = None if groups is None else groups[has_answer]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SemcalWarning)
        p, places = predict_out_of_fold(labels, groups=groups, seed=seed)
    correct = labels[0].correct.copy()
    for place, of_place in enumerate(labels):
        correct[places == place] = of_place.correct[places == place]
    gains[has_answer] = p * (2 * correct - p)
    return gains
