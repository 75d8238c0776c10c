"""`semcal cluster`: group sampled answers by meaning."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from semcal.cli import options as opt
from semcal.cli.console import info, nli_calls
from semcal.cli.executors import RowBlocks, choose_workers, open_executor, peeked
from semcal.cli.loading import open_models
from semcal.cli.rows import open_rows, run_rows
from semcal.records import Row

__all__ = ["command"]

#: The columns that are read.
FIELDS = ("id", "question", "samples", "log_likelihoods")
#: Rows that are clustered together.
BLOCK = 256


def command(
    file: opt.RowsArgument,
    equivalence: opt.EquivalenceOption = "exact",
    linkage: opt.LinkageOption = "components",
    merge_refusals: opt.MergeRefusalsOption = False,
    cache: opt.CacheOption = None,
    columns: opt.ColumnsOption = None,
    limit: opt.LimitOption = None,
    out: opt.OutOption = None,
    overwrite: opt.OverwriteOption = False,
    json: opt.JsonOption = False,
    device: opt.DeviceOption = None,
    workers: opt.WorkersOption = None,
    quiet: opt.QuietOption = False,
    verbose: opt.VerboseOption = False,
) -> int:
    """Group the sampled answers of each question by meaning.

    Reads rows {id, question, samples: [text]} and adds normal_forms and clusters: lists of sample
    indices, in the order in which the meanings first appear.
    """
    from semcal.pipeline.cluster import Clustered, ClusterJob, check_clusterable

    read = open_rows(file, columns, check_clusterable, fields=FIELDS, label="cluster")
    rows, blocks = peeked(read, BLOCK, limit)
    plan = choose_workers(workers, "cluster", device=device, blocks=blocks, equivalence=equivalence)
    calls = pairs = known = 0

    def counted(found: Clustered) -> list[dict[str, Any]]:
        nonlocal calls, pairs, known
        calls += found.calls
        pairs += sum(len(row["samples"]) * (len(row["samples"]) - 1) for row in found.rows)
        known += found.hits
        return found.rows

    def job_of(block: Sequence[Row]) -> ClusterJob:
        return ClusterJob(tuple(row.data for row in block), linkage, merge_refusals)

    load = partial(open_models, None, equivalence, device=device, cache=cache)
    with open_executor(plan, load) as (executor, state):
        work = RowBlocks(executor, job_of, stage="cluster", then=counted, inputs=lambda row: row.data)
        code = run_rows(rows, out, work=work, label="cluster", block=BLOCK, limit=limit)
        equivalence_name = state().equivalence.name
    if equivalence_name != "exact":
        cached = f", {known} of them known from {cache}" if cache else ""
        info(f"cluster: {nli_calls(equivalence_name, calls, pairs)}{cached}")
    return code
