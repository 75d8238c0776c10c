"""`semcal cluster`: sampled answers to meanings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semcal.cli.console import nli_calls, say
from semcal.cli.loading import open_equivalence
from semcal.cli.options import (
    CacheOption,
    DeviceOption,
    EquivalenceOption,
    JsonOption,
    LimitOption,
    LinkageOption,
    MergeRefusalsOption,
    OutOption,
    QuietOption,
    RowsArgument,
    VerboseOption,
)
from semcal.cli.streams import checked, run_rows
from semcal.records import Row, read_rows

__all__ = ["command"]


def command(
    file: RowsArgument,
    equivalence: EquivalenceOption = "exact",
    linkage: LinkageOption = "components",
    merge_refusals: MergeRefusalsOption = False,
    cache: CacheOption = None,
    limit: LimitOption = None,
    out: OutOption = None,
    json: JsonOption = False,
    device: DeviceOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Group the sampled answers of each question by meaning.

    Reads rows {id, question, samples: [text]} and adds normal_forms and clusters: lists of sample
    indices, in the order in which the meanings first appear.
    """
    from semcal.engine.verdicts import CachedEquivalence
    from semcal.pipeline.cluster import check_clusterable, cluster_rows

    judge = open_equivalence(equivalence, device=device, cache=cache)
    asked = {"calls": 0, "pairs": 0}

    def work(rows: Sequence[Row]) -> list[dict[str, Any]]:
        clustered, calls = cluster_rows(
            [row.data for row in rows], equivalence=judge, linkage=linkage, merge_refusals=merge_refusals
        )
        asked["calls"] += calls
        asked["pairs"] += sum(len(row["samples"]) * (len(row["samples"]) - 1) for row in clustered)
        return clustered

    code = run_rows(checked(read_rows(file), check_clusterable), out, work=work, label="cluster", limit=limit)
    if judge.name != "exact":
        kept = f", {judge.hits} of them known from {cache}" if isinstance(judge, CachedEquivalence) else ""
        say(f"cluster: {nli_calls(judge.name, asked['calls'], asked['pairs'])}{kept}")
    return code
