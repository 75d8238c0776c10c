"""A grader against people's labels: `semcal grade --audit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from semcal import metrics
from semcal.errors import InputError, shown
from semcal.pipeline.grade import grade_together
from semcal.pipeline.rows import answers_of, identity, predictions_of, question_of
from semcal.qa.grading import Grader
from semcal.qa.questions import group_of, several
from semcal.qa.splits import question_ties


def check_auditable(row: Mapping[str, Any]) -> None:
    """Raise InputError unless the row has a prediction, answers, a human label, and an id or a question."""
    if "question" in row:
        question_of(row)
    else:
        identity(row)
    answers_of(row)
    group_of(row)
    if predictions_of(row) is None:
        raise InputError("no 'prediction'; it is the answer that was labelled (--columns prediction=answer)")
    _human(row)


def _human(row: Mapping[str, Any]) -> bool | None:
    """What people said; None where they did not agree."""
    if "human" not in row:
        raise InputError(
            "no 'human'; it says whether people call the prediction right (--columns human=label)"
        )
    given = row["human"]
    if given is None or given in (0, 1):
        return None if given is None else bool(given)
    if isinstance(given, float) and 0 < given < 1:
        return None
    raise InputError(f"'human' must be true or false (1 or 0), or null if undecided, got {shown(given)}")


def judged_rows(rows: Sequence[Mapping[str, Any]], grader: Grader) -> list[dict[str, Any]]:
    """What people (`human`) and the grader (`correct`) say of each row, and its ties to others.

    Both are None where people are undecided; the grader is not asked then.
    """
    labels = [_human(row) for row in rows]
    asked = [
        (str(row.get("question", "")), predictions_of(row) or [], answers_of(row))
        for row, label in zip(rows, labels)
        if label is not None
    ]
    grades = iter(grade_together(grader, lambda one: [one.grade(*item) for item in asked]))
    return [
        {"correct": None if label is None else next(grades).correct, "human": label, "ties": _ties(row)}
        for row, label in zip(rows, labels)
    ]


def _ties(row: Mapping[str, Any]) -> Sequence[Any]:
    return question_ties(row) if "question" in row else (*question_ties(row), ("id", identity(row)))


def audit(judged: Sequence[Mapping[str, Any]], *, seed: int = 0) -> dict[str, Any]:
    """Compare grader and people over what `judged_rows` returns: `semcal.metrics.agreement` as a dict.

    Rows on which people are undecided do not count; answers to one question are resampled together.
    """
    decided = [one for one in judged if one["human"] is not None]
    if not decided:
        raise InputError("no row has a human label that is true or false; there is nothing to compare with")
    found = metrics.agreement(
        [one["correct"] for one in decided],
        [one["human"] for one in decided],
        groups=several(one["ties"] for one in decided),
        seed=seed,
    )
    figures = found.figures.items()
    return {
        "n": found.n,
        "undecided": len(judged) - found.n,
        **({} if found.groups is None else {"groups": found.groups}),
        **{name: one.estimate for name, one in figures},
        "counts": dict(found.counts),
        "se": {name: one.standard_error for name, one in figures},
        "interval": {name: [one.low, one.high] for name, one in figures},
    }
