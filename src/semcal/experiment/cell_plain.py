"""The part of a cell's plan that asks what reading numbers and dates is good for (analyses.md, beyond)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from semcal.experiment.cells import Cell
from semcal.experiment.stages import Lines
from semcal.records import dumps

__all__ = ["plain_candidate", "plainly_clustered", "reference_candidate"]

Choices = Mapping[str, Mapping[str, Mapping[str, Any]]]
#: Whose answers are clustered again.
METHOD = "TS"
NEEDED = ("id", "question", "answers", "samples", "log_likelihoods")


def reference_candidate(methods: Choices) -> str:
    """The candidate whose answers are clustered twice: that of TS, or of the first method, for E-SC.

    Examples
    --------
    >>> chosen = {name: {"E-SC": {"candidate": f"{name} NLL"}} for name in ("ATS", "TS")}
    >>> reference_candidate(chosen)
    'TS NLL'
    """
    of_measures = methods.get(METHOD) or next(iter(methods.values()))
    return str(next(iter(of_measures.values()))["candidate"])


def plain_candidate(reference: str) -> str:
    """What the same answers are called when they are clustered without number and date forms."""
    return f"{reference} without normal forms"


def plainly_clustered(
    cell: Cell, parts: Sequence[Lines], measure_alphas: Sequence[float]
) -> list[Lines | None]:
    """Rows of run 0 again, block by block, with the clusters that text alone gives.

    Parameters
    ----------
    cell : Cell
    parts : sequence of lists of JSON
        The rows of a candidate in run 0 by block; a block that is not there is empty.
    measure_alphas : (float, float)
        The a of T-SC and of G-SC that the rows were measured with.

    Returns
    -------
    list of lists of JSON, or None
        None for a block that is not there.
    """
    settings = cell.settings
    found = cell.again(
        "plain",
        parts,
        NEEDED,
        measure_alphas=list(measure_alphas),
        judge=cell.identity["equivalence"],
        linkage=settings.clustering.linkage,
        merge_refusals=settings.clustering.merge_refusals,
        grading=settings.grading.model_dump(),
        seed=settings.seeds[0],
    )
    return [None if rows is None else list(map(_line, rows)) for rows in found]


def _line(row: Mapping[str, Any]) -> str:
    left = {key: value for key, value in row.items() if key != "correct_nli"}
    return dumps({**left, "candidate": plain_candidate(row["candidate"])})
