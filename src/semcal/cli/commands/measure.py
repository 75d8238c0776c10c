"""`semcal measure`: clusters to confidences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semcal.cli.console import complain
from semcal.cli.options import (
    GAlphaOption,
    JsonOption,
    LimitOption,
    OutOption,
    OverwriteOption,
    QuietOption,
    RowsArgument,
    TAlphaOption,
    VerboseOption,
)
from semcal.cli.streams import checked, run_rows
from semcal.records import Row, read_rows

__all__ = ["command"]


def command(
    file: RowsArgument,
    t_alpha: TAlphaOption = 0.5,
    g_alpha: GAlphaOption = 0.5,
    limit: LimitOption = None,
    out: OutOption = None,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Compute the seven semantic confidence measures and their entropies.

    Reads rows {id, clusters, log_likelihoods: [number] or null} and adds confidences (per cluster),
    confidence, top_cluster and semantic_entropy, each by measure. Without log-likelihoods only E-SC.
    """
    from semcal.pipeline.measure import check_measurable, measure_rows

    counts = {"E-SC alone": 0}

    def work(rows: Sequence[Row]) -> list[dict[str, Any]]:
        measured = measure_rows([row.data for row in rows], t_alpha=t_alpha, g_alpha=g_alpha)
        counts["E-SC alone"] += sum(len(row["confidence"]) == 1 for row in measured)
        return measured

    code = run_rows(
        checked(read_rows(file), check_measurable), out, work=work, label="measure", block=2048, limit=limit
    )
    if counts["E-SC alone"]:
        complain(f"measure: {counts['E-SC alone']} rows have no log-likelihoods and got E-SC alone")
    return code
