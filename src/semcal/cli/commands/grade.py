"""`semcal grade`: whether answers are right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from semcal.cli import options as opt
from semcal.cli.loading import open_grader
from semcal.cli.rows import in_this_process, open_rows, run_rows
from semcal.records import Row

__all__ = ["command"]

#: The columns that are read.
GRADED = ("prediction", "samples", "clusters", "top_cluster", "log_likelihoods")
FIELDS = ("id", "question", "answers", *GRADED)

GraderOption = Annotated[str, typer.Option(help="rules, or nli (needs --equivalence).")]
RougeOption = Annotated[bool, typer.Option("--rouge", help="Also accept ROUGE-L > 0.3.")]


def command(
    file: opt.RowsArgument,
    grader: GraderOption = "rules",
    rouge: RougeOption = False,
    equivalence: opt.EquivalenceOption = None,
    cache: opt.CacheOption = None,
    seed: opt.SeedOption = 0,
    columns: opt.ColumnsOption = None,
    limit: opt.LimitOption = None,
    out: opt.OutOption = None,
    overwrite: opt.OverwriteOption = False,
    json: opt.JsonOption = False,
    device: opt.DeviceOption = None,
    quiet: opt.QuietOption = False,
    verbose: opt.VerboseOption = False,
) -> int:
    """Say whether answers are right, and by which rule.

    Reads rows {id, answers: [text]} with prediction (a text, or several of which any may be right), or
    with samples, clusters and top_cluster, of which up to 4 members of each measure's top cluster count.
    Adds correct and rule, for clusters by measure.
    """
    from semcal.pipeline.grade import check_gradable, grade_row

    chosen = open_grader(grader, rouge=rouge, equivalence=equivalence, device=device, cache=cache)

    def work(rows: Sequence[Row]) -> list[dict[str, Any]]:
        return [grade_row(row.data, grader=chosen, seed=seed) for row in rows]

    rows = open_rows(file, columns, check_gradable, fields=FIELDS, label="grade")
    return run_rows(rows, out, work=in_this_process(work), label="grade", limit=limit)
