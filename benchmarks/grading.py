"""CPU time of grading one answer, including normal forms.

    SEMCAL_DATA=<folder> python -m benchmarks grading

Answers of real systems are graded against the first 8 references of questions with at least 8. Nothing is
cached between questions; a question and its references are prepared once for all its answers, as in a run.
CPU time, best of several rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import mean
from time import process_time
from typing import Any, cast

from benchmarks import data_folder
from benchmarks.grading_quality import Judged, judged_rows
from semcal.grading import rules as grading
from semcal.grading.rules import RuleGrader
from semcal.text.normal_form import normal_form

REFERENCES, ROUNDS, TARGET = 8, 5, 0.05
QUICK = {"ROUNDS": 1}


def results() -> list[dict[str, Any]]:
    rows = [row for row in judged_rows(data_folder()) if len(row.references) >= REFERENCES]
    short = [row for row in rows if row.system == "FiD"]
    once = [next(group) for _, group in groupby(sorted(rows, key=_references), key=_references)]
    return [
        measured("short answers (FiD), one per question", short),
        measured("one answer per question, any system", once),
        measured("all answers, sentences of chat models among them", rows),
    ]


def _references(row: Judged) -> tuple[str, ...]:
    return row.references


def measured(what: str, rows: Sequence[Judged]) -> dict[str, Any]:
    """Return one line of the table."""
    milliseconds = min(grading_time(rows) for _ in range(ROUNDS))
    forms = min(normal_form_time(row.answer for row in rows) for _ in range(ROUNDS))
    return {
        "answers": what,
        "n": len(rows),
        "mean length": mean(len(row.answer) for row in rows),
        "ms per answer": milliseconds,
        "of which normal form of the answer": forms,
        "to reach": f"≤ {TARGET}",
    }


def grading_time(rows: Sequence[Judged]) -> float:
    """Return CPU milliseconds per graded answer."""
    cast(Any, grading._prepared).cache_clear()
    grader = RuleGrader()
    start = process_time()
    for row in rows:
        grader.grade(row.question, [row.answer], row.references[:REFERENCES])
    return (process_time() - start) / len(rows) * 1000


def normal_form_time(texts: Iterable[str]) -> float:
    """Return CPU milliseconds per normal form."""
    texts = list(texts)
    start = process_time()
    for text in texts:
        normal_form(text)
    return (process_time() - start) / len(texts) * 1000


if __name__ == "__main__":
    from benchmarks.__main__ import table

    print(table(results()))
