"""`semcal measure`: confidences of clusters under each measure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semcal.cli import options as opt
from semcal.cli.console import warn
from semcal.cli.rows import in_this_process, listed, open_rows, run_rows
from semcal.errors import shown
from semcal.records import Row

__all__ = ["command"]

#: The columns that are read.
FIELDS = ("id", "clusters", "log_likelihoods")


def command(
    file: opt.RowsArgument,
    t_alpha: opt.TAlphaOption = 0.5,
    g_alpha: opt.GAlphaOption = 0.5,
    columns: opt.ColumnsOption = None,
    limit: opt.LimitOption = None,
    out: opt.OutOption = None,
    overwrite: opt.OverwriteOption = False,
    json: opt.JsonOption = False,
    quiet: opt.QuietOption = False,
    verbose: opt.VerboseOption = False,
) -> int:
    """Compute the seven semantic confidence measures and their entropies.

    Reads rows {id, clusters, log_likelihoods: [number] or null} and adds confidences (per cluster),
    confidence, top_cluster and semantic_entropy, each by measure. Without log-likelihoods only E-SC.
    """
    from semcal.pipeline.measure import check_measurable, measure_rows

    alone: list[str] = []

    def work(rows: Sequence[Row]) -> list[dict[str, Any]]:
        measured = measure_rows([row.data for row in rows], t_alpha=t_alpha, g_alpha=g_alpha)
        alone.extend(shown(row["id"]) for row in measured if len(row["confidence"]) == 1)
        return measured

    rows = open_rows(file, columns, check_measurable, fields=FIELDS, label="measure")
    code = run_rows(rows, out, work=in_this_process(work), label="measure", block=2048, limit=limit)
    if alone:
        rows_have = "row has" if len(alone) == 1 else "rows have"
        warn(f"measure: {len(alone)} {rows_have} no log-likelihoods (ids {listed(alone)}) and got E-SC alone")
    return code
