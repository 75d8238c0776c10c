"""Score-level recalibration of graded rows: learnt on some questions, applied to others (spec section 6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from semcal.errors import FitError
from semcal.metrics import SCORE_RECALIBRATORS, ScoreRecalibrator
from semcal.pipeline.assess import Row, scores_by_measure
from semcal.records import parse_float
from semcal.registry import check_name

__all__ = ["fit_scores", "recalibrate_rows"]


def fit_scores(rows: Iterable[Row], kind: str) -> dict[str | None, ScoreRecalibrator]:
    """Fit one recalibrator to the confidences of each measure.

    Parameters
    ----------
    rows : iterable of mappings
        Graded rows with `confidence` and `correct`, flat (the key is then None) or by measure. Nulls do not
        count; a measure that is null everywhere gets no recalibrator.
    kind : {"isotonic", "beta", "platt"}
        A key of `semcal.metrics.SCORE_RECALIBRATORS`.

    Raises
    ------
    FitError
        If no row has a confidence.
    UsageError
        If there is no such kind.
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


def recalibrate_rows(
    rows: Sequence[Row], fitted: Mapping[str | None, ScoreRecalibrator]
) -> list[dict[str, Any]]:
    """Map the confidence of rows; answers, their correctness and their entropies stay as they are.

    Parameters
    ----------
    rows : sequence of mappings
        With `confidence`, flat or by measure.
    fitted : mapping
        Measure → recalibrator (`fit_scores`).

    Returns
    -------
    list of dict
        Null stays null, a measure without a recalibrator becomes null, and the shares of the clusters
        (`confidences`), of which the confidence is no longer the largest, are left out.

    Examples
    --------
    >>> rows = [{"confidence": 0.9, "correct": True}, {"confidence": 0.9, "correct": False}]
    >>> recalibrate_rows(rows, fit_scores(rows, "isotonic"))[0]
    {'confidence': 0.5, 'correct': True}
    """
    return [
        {
            **{key: value for key, value in row.items() if key != "confidences"},
            "confidence": _mapped(row["confidence"], fitted),
        }
        for row in rows
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
