"""Table 12: a sheet on which a person judges the clusters of 100 random questions, and its totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from semcal.errors import InputError
from semcal.experiment.analyses.answers import base_candidate
from semcal.experiment.finished import FinishedRun
from semcal.qa.first_answer import is_refusal

__all__ = ["audit_result", "audit_sheet"]

#: Questions on a sheet, as in the paper.
AUDITED = 100
#: What is judged: a row has an empty column for each criterion and judge.
CRITERIA = ("every cluster one meaning", "no two clusters the same meaning")
JUDGES = ("human", "judge model")


def audit_sheet(run: FinishedRun, model: str, dataset: str, *, n: int = AUDITED) -> list[dict[str, Any]]:
    """Lay out n random questions of one model and data set, with Base's draws of run 0 by cluster.

    The questions are those with the smallest hash of (seed, id), so a sheet does not change with the order of
    the rows.

    {id, question, clusters, refusals, "human: …", …}: each cluster as its distinct answers with their number,
    how many clusters are refusals, and an empty column a judge and criterion.
    """
    rows = run.rows(model, dataset, base_candidate(run, model, dataset))
    drawn = sorted(rows, key=lambda row: blake2b(f"{run.seed}/{row['id']}".encode()).digest())[:n]
    return [
        {
            "id": row["id"],
            "question": row["question"],
            "clusters": [_listed([row["samples"][i] for i in cluster]) for cluster in row["clusters"]],
            "refusals": sum(is_refusal(row["samples"][cluster[0]]) for cluster in row["clusters"]),
            **{f"{judge}: {criterion}": None for judge in JUDGES for criterion in CRITERIA},
        }
        for row in drawn
    ]


def audit_result(sheet: Sequence[Mapping[str, Any]], *, judge: str = "human") -> dict[str, Any]:
    """Add up a sheet (`audit_sheet`, or rows of its CSV file) that `judge` has filled in with yes and no.

    Returns
    -------
    dict
        {n, accuracy, errors}: the share of questions that meet both criteria (null where none was judged)
        and how many failed which, those with two refusals or more apart. InputError if a column is missing,
        or an entry is neither yes, no nor empty.

    Examples
    --------
    >>> row = {"refusals": "2", "human: every cluster one meaning": "yes"}
    >>> audit_result([row | {"human: no two clusters the same meaning": "no"}])
    {'n': 1, 'accuracy': 0.0, 'errors': {'one meaning split, refusals': 1}}
    """
    judged = [
        (row, verdicts)
        for number, row in enumerate(sheet, start=1)
        for verdicts in [[_answer(row, f"{judge}: {criterion}", number) for criterion in CRITERIA]]
        if None not in verdicts
    ]
    errors = Counter(kind for row, verdicts in judged for kind in _errors(row, *verdicts))
    right = sum(all(verdicts) for _, verdicts in judged)
    return {
        "n": len(judged),
        "accuracy": right / len(judged) if judged else None,
        "errors": dict(sorted(errors.items())),
    }


def _listed(texts: Sequence[str]) -> list[str]:
    return [text if count == 1 else f"{text} (×{count})" for text, count in Counter(texts).items()]


def _errors(row: Mapping[str, Any], one_meaning: bool | None, all_apart: bool | None) -> list[str]:
    found = [] if one_meaning else ["meanings merged"]
    if not all_apart:
        refused = int(row["refusals"]) > 1
        found.append("one meaning split, refusals" if refused else "one meaning split, other")
    return found


def _answer(row: Mapping[str, Any], column: str, number: int) -> bool | None:
    if column not in row:
        raise InputError(f"row {number} of the sheet has no column {column!r}: keep the columns as they were")
    text = str(row[column] if row[column] is not None else "").strip().lower()
    if text not in ("", "yes", "no", "true", "false"):
        raise InputError(f"row {number}, {column!r}: {row[column]!r} is neither yes nor no nor empty")
    return None if not text else text in ("yes", "true")
