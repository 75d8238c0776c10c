"""The job of a grid that clusters answers as they are written: no number and no date is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semcal.engine.clustering import cluster_answers
from semcal.experiment.grid_settings import Grading
from semcal.experiment.shelf import Shelf
from semcal.pipeline.executor import Progress
from semcal.pipeline.grade import grade_row
from semcal.pipeline.measure import measure_rows
from semcal.qa.normal_form import normal_form, text_form

__all__ = ["plain"]

Spec = Mapping[str, Any]
#: What differs from the rows as they were.
ADDED = (
    *("id", "normal_forms", "clusters", "confidences", "semantic_entropy", "confidence", "top_cluster"),
    *("correct", "rule"),
)


def plain(shelf: Shelf, spec: Spec, tell: Progress) -> list[dict[str, Any]]:
    """Group, measure and grade the samples of rows again; their text forms stand as `normal_forms`.

    Linkage, the rule that different values are different meanings, and grading are those of the run: what is
    left out is the reading of numbers and dates before clustering, and nothing else.
    """
    del tell
    rows = spec["rows"]
    forms = [[text_form(text) for text in row["samples"]] for row in rows]
    found = cluster_answers(
        [row["question"] for row in rows],
        forms,
        shelf.judge(spec),
        linkage=spec["linkage"],
        merge_refusals=spec["merge_refusals"],
        read_as=[[normal_form(text) for text in row["samples"]] for row in rows],
    )
    clustered = [
        {**row, "normal_forms": given, "clusters": clusters}
        for row, given, clusters in zip(rows, forms, found.clusters)
    ]
    t_alpha, g_alpha = spec["measure_alphas"]
    measured = measure_rows(clustered, t_alpha=t_alpha, g_alpha=g_alpha)
    return [_graded(row, spec) for row in measured]


def _graded(row: Mapping[str, Any], spec: Spec) -> dict[str, Any]:
    """What differs from the row as it was, with the grades of what each measure puts first."""
    grading = Grading(**spec["grading"])
    graded = grade_row(
        row,
        grader=grading.grader(),
        seed=spec["seed"],
        limit=grading.members,
        likeliest=grading.choice == "likeliest",
    )
    return {key: graded[key] for key in ADDED}
