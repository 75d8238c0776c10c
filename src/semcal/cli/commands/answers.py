"""`semcal cluster`, `measure` and `grade`: from sampled answers to meanings, confidences, correctness."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semcal.cli import options as opt
from semcal.cli.commands.metrics import show_metrics
from semcal.cli.console import NLICost, info, progress, spending, warn
from semcal.cli.executors import choose_workers, open_executor, peeked
from semcal.cli.options import NO_SERVER, ServerOptions, server_settings
from semcal.cli.row_commands import BadRows, good_rows, listed, open_rows, run_rows
from semcal.errors import shown
from semcal.files import dumps, writing
from semcal.models.equivalence import names_a_server
from semcal.rows import Row
from semcal.steps import Block, Step

if TYPE_CHECKING:
    from semcal.grading.rules import Grader

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
    from semcal.models.clustering import ClusterStep, check_clusterable

    equivalence = opt.named_equivalence(equivalence)
    read = open_rows(file, columns, check_clusterable, fields=CLUSTERED, label="cluster", tables=True)
    rows, blocks = peeked(read, BLOCK, limit)
    plan = choose_workers(workers, "cluster", device=device, blocks=blocks, equivalence=equivalence)
    cost = NLICost()
    settings = server_settings(server, equivalence)
    load = partial(opt.open_models, None, equivalence, device=device, cache=cache, settings=settings)
    asks = names_a_server(equivalence)
    with (
        open_executor(plan, load) as (executor, state),
        spending("cluster", equivalence=state().equivalence if asks else None),
    ):
        code = run_rows(
            rows,
            out,
            [ClusterStep(linkage, merge_refusals)],
            label="cluster",
            workers=executor,
            cut=BLOCK,
            limit=limit,
            on_block=lambda block: cost.add(*(block.costs[name] for name in ("calls", "pairs", "hits"))),
        )
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
    from semcal.measuring import MeasureOptions, MeasureStep, check_measurable

    fields: tuple[str, ...] = MEASURED
    check, at = check_measurable, "T = 1 (or else the first)"
    step: Step = MeasureStep(MeasureOptions(t_alpha, g_alpha))
    untold: set[bool] = set()
    if calibration is not None:
        from semcal.calibration import apply

        chosen = opt.open_calibration(calibration)
        untold |= {True, False}
        check, fields = apply.check_calibratable, (*MEASURED, "samples")
        at = at if chosen.temperature is None else f"T = {chosen.temperature:g}"
        step = apply.CalibrationStep(chosen, t_alpha, g_alpha)
    unlikely: list[str] = []
    mixed: list[str] = []

    def tell(row: Row) -> None:
        """Say once of rows with `sampled_by`, and once of others, what cannot be checked."""
        check(row)
        for sampled_by in untold & {bool(row.get("sampled_by"))}:
            info(f"measure: {apply.what_cannot_be_checked(chosen, sampled_by=sampled_by)}")
            untold.remove(sampled_by)

    def note(block: Block) -> None:
        unlikely.extend(shown(row["id"]) for row in block.rows if len(row.measured.confidence) == 1)
        mixed.extend(shown(row["id"]) for row in block.rows if len(set(row.temperatures or ())) > 1)

    rows = open_rows(file, columns, tell, fields=fields, label="measure", tables=True)
    code = run_rows(rows, out, [step], label="measure", cut=2048, limit=limit, on_block=note)
    if unlikely:
        rows_have = "row has" if len(unlikely) == 1 else "rows have"
        ids = listed(unlikely)
        warn(f"measure: {len(unlikely)} {rows_have} no log-likelihoods (ids {ids}) and got E-SC alone")
    if mixed:
        warn(f"measure: draws at several temperatures (ids {listed(mixed)}); measured are those at {at}")
    return code


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
    from semcal.grading.grade import GradeStep, as_grader, check_gradable

    nli = equivalence if grader == "nli" else "exact"
    how: Any = {"cache": cache, "settings": server_settings(server, nli, grader.removeprefix("judge:"))}
    judge = opt.open_equivalence(nli, device=device, **how)
    chosen = as_grader(opt.open_grader(grader, rouge=rouge, **how), judge)
    if audit:
        with spending("grade", grader=chosen):
            return _audit(file, columns, limit, out, chosen, as_json=json, name=grader, seed=seed)

    rows = open_rows(file, columns, check_gradable, fields=GRADED, label="grade")
    with spending("grade", grader=chosen):
        return run_rows(rows, out, [GradeStep(chosen, seed)], label="grade", limit=limit)


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
    from semcal.grading.grade import audit, check_auditable, judge_rows

    rows = open_rows(file, columns, check_auditable, fields=AUDITED, label="grade")
    with BadRows() as bad, progress("grade", limit) as update:
        audited = list(good_rows(islice(rows, limit), bad))
        judgements = judge_rows(audited, grader)
        update(len(judgements))
    agreement = audit(judgements, seed=seed)
    if as_json or out is not None or not sys.stdout.isatty():
        with writing(out) as handle:
            handle.write(dumps({"grader": name, **agreement}) + "\n")
    else:
        show_metrics([{"measure": name, **agreement}])
    return bad.exit_code()
