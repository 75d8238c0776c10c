"""`semcal cluster`, `measure` and `grade`: from sampled answers to meanings, confidences, correctness."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semcal.cli import options as opt
from semcal.cli.commands.metrics import show_metrics
from semcal.cli.console import NLICost, info, progress, spending, warn
from semcal.cli.executors import RowBlocks, choose_workers, open_executor, peeked
from semcal.cli.options import NO_SERVER, ServerOptions, server_settings, takes_server_options
from semcal.cli.rows import BadRows, block_results, in_this_process, listed, open_rows, run_rows
from semcal.engine.equivalence import names_a_server
from semcal.errors import shown
from semcal.records import Row, dumps, writing

if TYPE_CHECKING:
    from semcal.qa.grading import Grader

#: The columns that each reads.
CLUSTERED = ("id", "question", "samples", "log_likelihoods")
MEASURED = ("id", "clusters", "log_likelihoods")
GRADED = ("id", "question", "answers", "prediction", "samples", "clusters", "top_cluster", "log_likelihoods")
AUDITED = ("id", "question", "answers", "prediction", "human", "context", "group")
#: Rows that are clustered together.
BLOCK = 256

AuditOption = Annotated[
    bool,
    typer.Option(
        "--audit",
        help="Compare the grader with people instead: rows {prediction, answers, human: true or false}.",
    ),
]
RougeOption = Annotated[bool, typer.Option("--rouge", help="Also accept ROUGE-L > 0.3.")]


@takes_server_options
def cluster(
    file: opt.RowsArgument,
    equivalence: opt.EquivalenceOption = None,
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
    server: ServerOptions = NO_SERVER,
) -> int:
    """Group the sampled answers of each question by meaning.

    Reads rows {id, question, samples: [text]} (JSON Lines, CSV, Parquet) and adds normal_forms and
    clusters: lists of sample indices, in the order in which the meanings first appear. Samples of several
    temperatures (temperatures: [number], one a sample) are grouped apart.
    """
    from semcal.pipeline.cluster import Clustered, ClusterJob, check_clusterable

    equivalence = opt.named_equivalence(equivalence)
    read = open_rows(file, columns, check_clusterable, fields=CLUSTERED, label="cluster", tables=True)
    rows, blocks = peeked(read, BLOCK, limit)
    plan = choose_workers(workers, "cluster", device=device, blocks=blocks, equivalence=equivalence)
    cost = NLICost()

    def counted(found: Clustered) -> list[dict[str, Any]]:
        drawn = [Counter(row.get("temperatures") or [1.0] * len(row["samples"])) for row in found.rows]
        pairs = sum(n * (n - 1) for of_row in drawn for n in of_row.values())
        cost.add(found.calls, pairs, found.hits)
        return found.rows

    def job_of(block: Sequence[Row]) -> ClusterJob:
        return ClusterJob(tuple(row.data for row in block), linkage, merge_refusals)

    settings = server_settings(server, equivalence)
    load = partial(opt.open_models, None, equivalence, device=device, cache=cache, settings=settings)
    asks = names_a_server(equivalence)
    with (
        open_executor(plan, load) as (executor, state),
        spending("cluster", equivalence=state().equivalence if asks else None),
    ):
        work = RowBlocks(executor, job_of, stage="cluster", then=counted, inputs=lambda row: row.data)
        code = run_rows(rows, out, work=work, label="cluster", block=BLOCK, limit=limit)
        equivalence_name = state().equivalence.name
    if equivalence_name != "exact":
        cached = f", {cost.known} of them known from {cache}" if cache else ""
        info(f"cluster: {cost.text(equivalence_name)}{cached}")
    return code


def measure(
    file: opt.RowsArgument,
    calibration: opt.CalibrationOption = None,
    t_alpha: opt.TAlphaOption = 0.5,
    g_alpha: opt.GAlphaOption = 0.5,
    columns: opt.ColumnsOption = None,
    limit: opt.LimitOption = None,
    out: opt.OutOption = None,
    overwrite: opt.OverwriteOption = False,
    json: opt.JsonOption = False,
) -> int:
    """Compute the seven semantic confidence measures and their entropies.

    Reads rows {id, clusters, log_likelihoods: [number] or null} and adds confidences (per cluster),
    confidence, top_cluster and semantic_entropy, each by measure. Without log-likelihoods only E-SC.
    With --calibration also answer, the probability that it is right, threshold and abstained.
    """
    from semcal.pipeline.measure import check_measurable, measure_rows

    alphas: Any = {"t_alpha": t_alpha, "g_alpha": g_alpha}
    fields: tuple[str, ...] = MEASURED
    check, own = check_measurable, "T = 1 (or else the first)"
    measured: Callable[[list[Any]], list[dict[str, Any]]] = partial(measure_rows, **alphas)
    untold: set[bool] = set()
    if calibration is not None:
        from semcal.pipeline import apply_calibration as applying

        chosen = opt.open_calibration(calibration)
        untold |= {True, False}
        check, fields = applying.check_calibratable, (*MEASURED, "samples")
        own = own if chosen.temperature is None else f"T = {chosen.temperature:g}"
        measured = partial(applying.calibrated_rows, calibration=chosen, **alphas)
    alone: list[str] = []
    mixed: list[str] = []

    def tell(rows: Sequence[Row]) -> None:
        """Say once of rows with `sampled_by`, and once of others, what cannot be checked."""
        for known in untold & {bool(row.data.get("sampled_by")) for row in rows}:
            info(f"measure: {applying.what_cannot_be_checked(chosen, sampled_by=known)}")
            untold.remove(known)

    def work(rows: Sequence[Row]) -> list[dict[str, Any]]:
        tell(rows)
        found = measured([row.data for row in rows])
        alone.extend(shown(row["id"]) for row in found if len(row["confidence"]) == 1)
        mixed.extend(shown(row["id"]) for row in found if len(set(row.get("temperatures") or ())) > 1)
        return found

    rows = open_rows(file, columns, check, fields=fields, label="measure", tables=True)
    code = run_rows(rows, out, work=in_this_process(work), label="measure", block=2048, limit=limit)
    if alone:
        rows_have = "row has" if len(alone) == 1 else "rows have"
        warn(f"measure: {len(alone)} {rows_have} no log-likelihoods (ids {listed(alone)}) and got E-SC alone")
    if mixed:
        warn(f"measure: draws at several temperatures (ids {listed(mixed)}); measured are those at {own}")
    return code


@takes_server_options
def grade(
    file: opt.RowsArgument,
    grader: opt.GraderOption = "rules",
    rouge: RougeOption = False,
    equivalence: opt.EquivalenceOption = None,
    cache: opt.CacheOption = None,
    audit: AuditOption = False,
    seed: opt.SeedOption = 0,
    columns: opt.ColumnsOption = None,
    limit: opt.LimitOption = None,
    out: opt.OutOption = None,
    overwrite: opt.OverwriteOption = False,
    json: opt.JsonOption = False,
    device: opt.DeviceOption = None,
    server: ServerOptions = NO_SERVER,
) -> int:
    """Say whether answers are right, and by which rule.

    Reads rows {id, answers: [text]} with prediction (a text, or several of which any may be right), or
    with samples, clusters and top_cluster, of which up to 4 members of each measure's top cluster count.
    Adds correct and rule, for clusters by measure, and answer_correct where measure --calibration was.
    With --audit it prints how far the grader and people agree, Cohen's kappa and the confusion matrix, with
    95 % intervals; answers to one question (or of one context or group) are resampled together.
    """
    from semcal.pipeline.grade import as_grader, check_gradable, grade_row, grade_together

    nli = equivalence if grader == "nli" else "exact"
    how: Any = {"cache": cache, "settings": server_settings(server, nli, grader.removeprefix("judge:"))}
    judge = opt.open_equivalence(nli, device=device, **how)
    chosen = as_grader(opt.open_grader(grader, rouge=rouge, **how), judge)
    if audit:
        with spending("grade", grader=chosen):
            return _audit(file, columns, limit, out, chosen, as_json=json, name=grader, seed=seed)

    def work(rows: Sequence[Row]) -> list[dict[str, Any]]:
        return grade_together(
            chosen, lambda marks: [grade_row(row.data, grader=marks, seed=seed) for row in rows]
        )

    rows = open_rows(file, columns, check_gradable, fields=GRADED, label="grade")
    with spending("grade", grader=chosen):
        return run_rows(rows, out, work=in_this_process(work), label="grade", limit=limit)


def _audit(
    file: str,
    columns: Sequence[str] | None,
    limit: int | None,
    out: Path | None,
    grader: Grader,
    *,
    as_json: bool,
    name: str,
    seed: int,
) -> int:
    """Compare a grader with people's labels, and print how far they agree."""
    from semcal.pipeline.grade import audit, check_auditable, judged_rows

    def work(rows: Sequence[Row]) -> list[dict[str, Any]]:
        return judged_rows([row.data for row in rows], grader)

    rows = open_rows(file, columns, check_auditable, fields=AUDITED, label="grade")
    judged: list[Mapping[str, Any]] = []
    with BadRows() as bad, progress("grade", limit) as update:
        for _, results in block_results(rows, bad, in_this_process(work), update, limit=limit):
            judged += results
            update(len(judged))
    found = audit(judged, seed=seed)
    if as_json or out is not None or not sys.stdout.isatty():
        with writing(out) as handle:
            handle.write(dumps({"grader": name, **found}) + "\n")
    else:
        show_metrics([{"measure": name, **found}])
    return bad.exit_code()
