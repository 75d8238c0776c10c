"""`semcal cluster`: sampled answers to meanings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from semcal.cli.console import nli_calls, say
from semcal.cli.executors import RowBlocks, choose_workers, open_executor, peeked
from semcal.cli.loading import open_models
from semcal.cli.options import (
    CacheOption,
    ColumnsOption,
    DeviceOption,
    EquivalenceOption,
    JsonOption,
    LimitOption,
    LinkageOption,
    MergeRefusalsOption,
    OutOption,
    OverwriteOption,
    QuietOption,
    RowsArgument,
    VerboseOption,
    WorkersOption,
)
from semcal.cli.reading import open_rows
from semcal.cli.streams import run_rows
from semcal.records import Row

__all__ = ["command"]

#: The columns that are read.
FIELDS = ("id", "question", "samples", "log_likelihoods")
#: Rows that are clustered in one piece.
BLOCK = 256


def command(
    file: RowsArgument,
    equivalence: EquivalenceOption = "exact",
    linkage: LinkageOption = "components",
    merge_refusals: MergeRefusalsOption = False,
    cache: CacheOption = None,
    columns: ColumnsOption = None,
    limit: LimitOption = None,
    out: OutOption = None,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
    device: DeviceOption = None,
    workers: WorkersOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Group the sampled answers of each question by meaning.

    Reads rows {id, question, samples: [text]} and adds normal_forms and clusters: lists of sample
    indices, in the order in which the meanings first appear.
    """
    from semcal.pipeline.cluster import Clustered, ClusterJob, check_clusterable

    read = open_rows(file, columns, check_clusterable, fields=FIELDS, label="cluster")
    rows, blocks = peeked(read, BLOCK, limit)
    plan = choose_workers(workers, "cluster", device=device, blocks=blocks, equivalence=equivalence)
    asked = {"calls": 0, "pairs": 0, "known": 0}

    def counted(found: Clustered) -> list[dict[str, Any]]:
        asked["calls"] += found.calls
        asked["pairs"] += sum(len(row["samples"]) * (len(row["samples"]) - 1) for row in found.rows)
        asked["known"] += found.hits
        return found.rows

    def job_of(block: Sequence[Row]) -> ClusterJob:
        return ClusterJob(tuple(row.data for row in block), linkage, merge_refusals)

    load = partial(open_models, None, equivalence, device=device, cache=cache)
    with open_executor(plan, load) as (executor, state):
        work = RowBlocks(executor, job_of, stage="cluster", then=counted, inputs=lambda row: row.data)
        code = run_rows(rows, out, work=work, label="cluster", block=BLOCK, limit=limit)
        name = state().equivalence.name
    if name != "exact":
        kept = f", {asked['known']} of them known from {cache}" if cache else ""
        say(f"cluster: {nli_calls(name, asked['calls'], asked['pairs'])}{kept}")
    return code
