"""Confidence and correctness of graded rows by measure: every metric, and maps of scores (spec 6, 8)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from semcal import metrics
from semcal.data.question import Ties, several
from semcal.errors import FitError, InputError, shown
from semcal.files import parse_float
from semcal.metrics import SCORE_RECALIBRATORS, ScoreRecalibrator
from semcal.registry import check_name
from semcal.rows import CALIBRATED, Json, Row, as_rows

Name = TypeVar("Name", bound=Hashable)
OF_ANSWER = {"confidence": "probability", "correct": "answer_correct"}
#: What the output says of a risk-controlled threshold.
OF_THRESHOLD = (
    *("delta", "threshold", "answered", "coverage", "errors", "upper_bound", "questions_needed", "sentence"),
)
#: Shares of the least confident questions that are rejected for `selective_accuracy`.
REJECTION_RATES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass
class Scores:
    """What the metrics of one measure are computed from: a value for each row that counts."""

    confidence: list[float] = field(default_factory=list)
    correct: list[bool] = field(default_factory=list)
    entropy: list[float | None] = field(default_factory=list)  # nats, None where a row has none
    score: list[float | None] = field(default_factory=list)  # the share, by which a constant is ordered
    ties: list[Ties] = field(default_factory=list)  # what a row shares with others of its group
    undefined: int = 0  # rows whose confidence or correctness is null, which do not count

    def add(
        self, confidence: float | None, correct: bool | None, entropy: float | None, ties: Ties, score: Any
    ) -> None:
        """Count one row."""
        if confidence is None or correct is None:
            self.undefined += 1
            return
        self.confidence.append(confidence)
        self.correct.append(correct)
        self.entropy.append(entropy)
        self.score.append(score)
        self.ties.append(ties)

    @property
    def order(self) -> list[float]:
        """What is ranked and compared with thresholds: the confidence; under a constant the score."""
        scores = [score for score in self.score if score is not None]
        constant = len(scores) == len(self.confidence) and len(set(self.confidence)) == 1
        return scores if constant else self.confidence


def _by_measure(row: Row, key: str) -> dict[str | None, Any]:
    value = row.json.get(key)
    by_measure = dict(value) if isinstance(value, Mapping) else {None: value}
    if key in OF_ANSWER and row.has(*OF_ANSWER.values()):
        if CALIBRATED in by_measure:
            raise InputError(f"{key!r} holds {CALIBRATED!r}, which is what 'probability' is listed as")
        by_measure[CALIBRATED] = row[OF_ANSWER[key]]
    return by_measure


def check_assessable(row: Row) -> None:
    """Raise InputError unless the row holds confidence and correct, flat or by measure.

    A row may hold `probability` and `answer_correct` besides.
    """
    for key in ("confidence", "correct"):
        if not row.has(key):
            raise InputError(f"no {key!r}; run `semcal measure` and `semcal grade` first, or add it")
    confidence, correct = _by_measure(row, "confidence"), _by_measure(row, "correct")
    if confidence.keys() != correct.keys():
        raise InputError(
            "'confidence' and 'correct' must be a number and a truth value, or hold the same measures"
        )
    _ = row.group
    for name, value in _by_measure(row, "semantic_entropy").items():
        _finite(value, _field("semantic_entropy", name))
    for name, value in confidence.items():
        number = parse_float(value)
        if number is not None and not -1e-6 <= number <= 1 + 1e-6:
            raise InputError(f"{_field('confidence', name)} must be in [0, 1], got {shown(value)}")
        if correct[name] is not None and not (isinstance(correct[name], bool) or correct[name] in (0, 1)):
            wrong = _field("correct", name)
            raise InputError(f"{wrong} must be true or false, got {shown(correct[name])}")


def _finite(value: Any, what: str) -> None:
    number = parse_float(value)
    if number is not None and not math.isfinite(number):
        raise InputError(f"{what} must be a finite number or null, got {shown(value)}")


def _field(key: str, measure: str | None) -> str:
    """The field of a row, for messages."""
    if measure == CALIBRATED:
        return repr(OF_ANSWER.get(key, key))
    return repr(key) if measure is None else f"{key!r} of {measure}"


def scores_by_measure(
    rows: Iterable[Row | Json], chosen: Sequence[str] | None = None
) -> dict[str | None, Scores]:
    """Gather confidence, correctness and entropy of rows (each accepted by `check_assessable`) by measure.

    Flat rows go under None, `probability` and `answer_correct` under "Calibrated". With `chosen` only these
    measures; UsageError if one is in no row.
    """
    by_measure: dict[str | None, Scores] = {}
    for row in as_rows(rows):
        correct, entropy = _by_measure(row, "correct"), _by_measure(row, "semantic_entropy")
        for name, confidence in _by_measure(row, "confidence").items():
            by_measure.setdefault(name, Scores()).add(
                parse_float(confidence),
                None if correct[name] is None else bool(correct[name]),
                parse_float(entropy.get(name)),
                row.ties,
                parse_float(row.json.get("score")) if name == CALIBRATED else None,
            )
    if chosen and by_measure:
        names = [name for name in by_measure if name is not None]
        return {check_name(name, names, what="measure"): by_measure[name] for name in chosen}
    return by_measure


def assess(
    scores: Mapping[Name, Scores],
    *,
    bins: int = 15,
    ci: bool = False,
    seed: int = 0,
    resamples: int = 1000,
    risk: float | None = None,
    delta: float = 0.05,
) -> dict[Name, dict[str, Any]]:
    """Compute every metric of each measure; where no row is defined only `n`, which is 0.

    That is `semcal.metrics.summary`; `entropy_auroc` (discrimination of −entropy, the paper's SE_conf) where
    every row has an entropy; `selective_accuracy` by rejection rate. With `ci` also `se` and `interval`
    (95 %, bias-corrected bootstrap over questions) by metric; rows that share a passage or a value in the
    field `group` are resampled as a whole, and `groups` is their number. With `risk` also `risk`, the
    threshold that keeps to this limit (`semcal.metrics.risk_controlled_threshold`), for which one row of each
    group counts.
    """
    results: dict[Name, dict[str, Any]] = {}
    for name, values in scores.items():
        groups = several(values.ties)
        result = results[name] = _measured(values, bins, groups, seed) if values.confidence else {"n": 0}
        if risk is not None and values.confidence:
            result["risk"] = _risk(values, risk, delta, groups, seed)
        if ci and groups is not None:
            result["groups"] = int(groups.max()) + 1
        if ci and values.confidence:
            intervals = metrics.bootstrap(
                values.confidence,
                values.correct,
                score=values.order,
                groups=groups,
                bins=bins,
                resamples=resamples,
                seed=seed,
            )
            result["se"] = {metric: interval.standard_error for metric, interval in intervals.items()}
            result["interval"] = {metric: [one.low, one.high] for metric, one in intervals.items()}
    return results


def _measured(scores: Scores, bins: int, groups: NDArray[np.intp] | None, seed: int) -> dict[str, Any]:
    numbers = metrics.summary(
        scores.confidence, scores.correct, score=scores.order, bins=bins, groups=groups, seed=seed
    )
    result: dict[str, Any] = dict(numbers)
    entropies = [value for value in scores.entropy if value is not None]
    if len(entropies) == len(scores.correct):
        result["entropy_auroc"] = metrics.auroc([-value for value in entropies], scores.correct)
    kept = metrics.selective_accuracy(scores.order, scores.correct, rejection=REJECTION_RATES)
    result["selective_accuracy"] = {
        f"{rate:.1f}": value for rate, value in zip(REJECTION_RATES, kept.accuracy.tolist())
    }
    return result


def _risk(
    scores: Scores, limit: float, delta: float, groups: NDArray[np.intp] | None, seed: int
) -> dict[str, Any]:
    found = metrics.risk_controlled_threshold(
        scores.order, scores.correct, risk_limit=limit, delta=delta, groups=groups, seed=seed
    )
    return {"limit": limit} | {key: getattr(found, key) for key in OF_THRESHOLD}


def fit_scores(rows: Iterable[Row | Json], kind: str) -> dict[str | None, ScoreRecalibrator]:
    """Fit a recalibrator of scores ("isotonic", "beta" or "platt") to the confidences of each measure.

    Nulls do not count; a measure that is null everywhere gets none. FitError if no row has a confidence.
    """
    make = SCORE_RECALIBRATORS[check_name(kind, SCORE_RECALIBRATORS, what="score recalibrator")]
    found = {
        measure: make().fit(scores.confidence, scores.correct)
        for measure, scores in scores_by_measure(rows).items()
        if scores.confidence
    }
    if not found:
        raise FitError("no row has both a confidence and a grade; there is nothing to recalibrate on")
    return found


def recalibrate_rows(rows: Sequence[Row | Json], fitted: Mapping[str | None, ScoreRecalibrator]) -> list[Row]:
    """Map the confidence of rows; answers, their correctness and their entropies stay as they are.

    Null stays null, a measure without a recalibrator becomes null, and `confidences` of the clusters are left
    out, since their largest is no longer the confidence.

    Examples
    --------
    >>> rows = [{"confidence": 0.9, "correct": True}, {"confidence": 0.9, "correct": False}]
    >>> recalibrate_rows(rows, fit_scores(rows, "isotonic"))[0].json
    {'confidence': 0.5, 'correct': True}
    """
    return [
        row.without("confidences").set(confidence=_mapped(row["confidence"], fitted)) for row in as_rows(rows)
    ]


def _mapped(confidence: Any, fitted: Mapping[str | None, ScoreRecalibrator]) -> Any:
    if isinstance(confidence, Mapping):
        return {measure: _predicted(value, fitted.get(measure)) for measure, value in confidence.items()}
    return _predicted(confidence, fitted.get(None))


def _predicted(value: Any, recalibrator: ScoreRecalibrator | None) -> float | None:
    number = parse_float(value)
    if number is None or recalibrator is None:
        return None
    return float(recalibrator.predict([number])[0])
