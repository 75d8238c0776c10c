"""`semcal grade`: answers to right or wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from semcal.cli.loading import open_grader
from semcal.cli.options import (
    CacheOption,
    ColumnsOption,
    DeviceOption,
    EquivalenceOption,
    JsonOption,
    LimitOption,
    OutOption,
    OverwriteOption,
    QuietOption,
    RowsArgument,
    SeedOption,
    VerboseOption,
)
from semcal.cli.reading import open_rows
from semcal.cli.streams import run_rows
from semcal.records import Row

__all__ = ["command"]

#: The columns that are read.
GRADED = ("prediction", "samples", "clusters", "top_cluster", "log_likelihoods")
FIELDS = ("id", "question", "answers", *GRADED)


def command(
    file: RowsArgument,
    grader: Annotated[str, typer.Option(help="rules, or nli (needs --equivalence).")] = "rules",
    rouge: Annotated[bool, typer.Option("--rouge", help="Also accept ROUGE-L > 0.3.")] = False,
    equivalence: EquivalenceOption = None,
    cache: CacheOption = None,
    seed: SeedOption = 0,
    columns: ColumnsOption = None,
    limit: LimitOption = None,
    out: OutOption = None,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
    device: DeviceOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Say whether answers are right, and by which rule.

    Reads rows {id, answers: [text]} with prediction (a text, or several of which any may be right), or
    with samples, clusters and top_cluster, of which up to 4 members of each measure's top cluster count.
    Adds correct and rule, for clusters by measure.
    """
    from semcal.pipeline.grade import check_gradable, grade_row

    judge = open_grader(grader, rouge=rouge, equivalence=equivalence, device=device, cache=cache)

    def work(rows: Sequence[Row]) -> list[dict[str, Any]]:
        return [grade_row(row.data, grader=judge, seed=seed) for row in rows]

    rows = open_rows(file, columns, check_gradable, fields=FIELDS, label="grade")
    return run_rows(rows, out, work=work, label="grade", limit=limit)
