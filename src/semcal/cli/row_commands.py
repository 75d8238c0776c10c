"""Commands that read and write rows: `sample`, `import`, `cluster`, `measure`, `grade` and `metrics`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Argument, Option

from semcal.cli import options as opt
from semcal.cli.console import (
    ON_ACE,
    Output,
    debug,
    figure_lines,
    info,
    nli_cost,
    open_unfinished,
    paragraph,
    show,
    slice_lines,
    spending,
    terminal_width,
    unfinished,
    warn,
)
from semcal.cli.row_streams import (
    BadRows,
    RowResults,
    checked,
    counted,
    good_rows,
    listed,
    open_rows,
    read_to_sample,
    show_first_prompt,
)
from semcal.errors import InputError, UsageError, shown
from semcal.files import dumps, writing
from semcal.models.equivalence import DEFAULT, needs_no_model
from semcal.models.sample import BLOCK_QUESTIONS, BLOCK_TOKENS, Sampling, plan_sampling, question_blocks
from semcal.registry import check_name
from semcal.rows import Row, as_answer_kind, count_ends, warn_of_cut_draws
from semcal.steps import Step

if TYPE_CHECKING:
    from semcal.calibration.calibration import Calibration

#: The columns that each command reads.
CLUSTERED = ("id", "question", "samples", "log_likelihoods")
MEASURED = ("id", "clusters", "log_likelihoods")
GRADED = ("id", "question", "answers", "prediction", "samples", "clusters", "top_cluster", "log_likelihoods")
ASSESSED = ("id", "confidence", "correct", "semantic_entropy", "probability", "answer_correct")
#: Number of rows in a block for clustering.
BLOCK = 256


@dataclass(frozen=True)
class RowOptions:
    """The options of all commands that read and write rows."""

    file: str = opt.ROWS
    columns: list[str] | None = opt.COLUMNS
    limit: int | None = opt.LIMIT
    out: Path | None = opt.OUT
    overwrite: bool = opt.OVERWRITE


@dataclass(frozen=True)
class SampleOptions(RowOptions, opt.PromptOptions):
    """The options of `semcal sample`."""

    m: int = opt.SAMPLES
    seed: int = opt.SEED
    recalibrator: str | None = opt.RECALIBRATOR
    temperature: float | None = opt.TEMPERATURE
    max_new_tokens: int | None = opt.MAX_NEW_TOKENS
    answer_format: str | None = opt.ANSWER_FORMAT
    answer: str | None = opt.ANSWER
    vary: str | None = opt.VARY
    show_prompt: bool = opt.SHOW_PROMPT
    force: bool = opt.FORCE
    schema: Path | None = opt.SCHEMA
    device: str | None = opt.DEVICE
    dry_run: bool = opt.DRY_RUN
    fresh: bool = opt.FRESH
    workers: int | None = opt.WORKERS
    memory: str | None = opt.MEMORY


def sample(options: SampleOptions, server: opt.ServerOptions) -> int:
    """Sample answers to questions, with their likelihoods.

    Reads questions {id, question, context?} (JSON Lines, CSV, Parquet, SQuAD's JSON). Adds generations with
    their tokens and log-probabilities, samples (the answers in the generations, or null for no answer) and
    log_likelihoods (length-normalized, natural logarithm). --answer greedy or given adds the log-likelihood
    of that answer. With --out, an interrupted command resumes and gives identical results.
    """
    opt.required_model(options.model)
    models, schema = opt.ModelOptions.of(options, server), opt.open_schema(options.schema)
    read, total = counted(options.file, read_to_sample(options.file, options.columns, schema, label="sample"))
    if options.show_prompt:
        model = models.open_model()
        return show_first_prompt(model, opt.open_recalibrator(model, options)[1], read)
    if options.dry_run:
        return _plan_sampling(islice(read, options.limit), models, options)
    block_size = min(BLOCK_QUESTIONS, max(1, BLOCK_TOKENS // (10 * options.m)))
    questions, n_blocks = opt.peek_blocks(read, block_size, options.limit)
    with opt.open_workers("sample", models, options.workers, n_blocks) as (executor, load):
        model = load().model
        from semcal.models.sample import SampleStep, check_question

        options = opt.structured_options(options, model, schema)
        method, asking = opt.open_recalibrator(model, options)
        json_schema = None if schema is None else schema.json
        sampling = Sampling((method,), asking, opt.sampling_config(options), schema=json_schema)
        step = SampleStep(sampling, full=True, answer=as_answer_kind(options.answer or "modal"))
        made_by = {"model": model.revision, "prompt": asking.hash(model), "dtype": options.dtype}
        work = None
        if options.out is not None:
            work = open_unfinished(options.out, {**step.key(), **made_by}, fresh=options.fresh)
        debug(f"sample: {model.name} {model.revision[:12]}, {method}")
        ends = Counter[int]()
        fitting = checked(questions, lambda row: check_question(model, row.to_question(), sampling))
        cut = partial(question_blocks, model, sampling=sampling)
        with RowResults("sample", options.out, limit=options.limit, total=total) as results:
            for block in results.blocks(
                fitting, step, workers=executor, cut=cut, revisions=made_by, store=work
            ):
                results.write(block)
                ends.update(dict(enumerate(count_ends(block.rows))))
        code = results.bad.exit_code()
        warn_of_cut_draws(ends[0], ends[1], ends[2])
        if work is not None:
            work.finish()
    return code


def sample_output(out: Path | None) -> Output | None:
    """Return the output of the command and the folder of its finished blocks."""
    return None if out is None else Output(out, work=unfinished(out))


def _plan_sampling(
    read: Iterator[Row | InputError],
    models: opt.ModelOptions,
    options: SampleOptions,
) -> int:
    m = options.m
    with BadRows() as bad:
        questions = [row.to_question() for row in good_rows(read, bad)]
        warn(f"would sample {m} answers to each of {len(questions)} questions: {m * len(questions)} answers")
        if questions:
            model = models.open_model()
            method, asking = opt.open_recalibrator(model, options)
            sampling = Sampling((method,), asking, opt.sampling_config(options))
            warn("\n".join(plan_sampling(model, questions, sampling)))
        return bad.exit_code()


@dataclass(frozen=True)
class ImportOptions:
    """The options of `semcal import`."""

    format: str = Argument(metavar="FORMAT", help="Format of the file: lm-eval, inspect or openai-batch.")
    file: str = Argument(
        metavar="FILE",
        help="File to import: samples_*.jsonl, an .eval or .json log, or the output of a batch.",
    )
    requests: str | None = Option(
        None, metavar="FILE", help="File of the requests of an OpenAI batch (questions and settings)."
    )
    questions: str | None = Option(
        None, metavar="FILE", help="File of questions {id, question, answers}, matched by id."
    )
    answer: str | None = Option(
        None,
        metavar="KIND",
        help="Also import the answer of the log: given (as answer, and correct if known). No answer is "
        "imported by default.",
    )
    answer_format: str | None = opt.ANSWER_FORMAT
    limit: int | None = opt.LIMIT
    out: Path | None = opt.OUT
    overwrite: bool = opt.OVERWRITE


def import_rows(options: ImportOptions) -> int:
    """Turn the samples of another program's log into rows for semcal cluster.

    Writes rows {id, question, answers, generations, samples}, as semcal sample does. log_likelihoods are
    added only if the file states T and lists all tokens. With --answer given, answers without samples become
    rows {id, question, answers, answer, correct} for semcal calibrate --answer given.
    """
    from semcal.data.recorded import FORMATS, read_recorded
    from semcal.models.clustering import check_clusterable

    chosen = FORMATS[check_name(options.format, FORMATS, what="format")]
    without = 0
    ends = Counter[int]()
    if options.answer not in (None, "given"):
        raise UsageError(f"--answer: got {options.answer}. Pass given, or omit it")
    lines = read_recorded(
        options.file,
        options.format,
        requests=options.requests,
        questions=options.questions,
        given=options.answer is not None,
        answer_format=options.answer_format,
    )
    read = (line if isinstance(line, InputError) else Row(line.data, line.line) for line in lines)

    def check(row: Row) -> None:
        if row.has("samples"):
            check_clusterable(row)

    with RowResults("import", options.out, limit=options.limit) as results:
        for block in results.blocks(checked(read, check)):
            results.write(block)
            drawn = [row for row in block.rows if row.has("samples")]
            without += sum(not row.has("log_likelihoods") for row in drawn)
            ends.update(dict(enumerate(count_ends(drawn))))
    code = results.bad.exit_code()
    warn_of_cut_draws(ends[0], ends[1], ends[2])
    if without:
        rows = "row has" if without == 1 else "rows have"
        why = chosen.no_likelihoods
        info(f"import: {without} {rows} no log-likelihoods, so E-SC is the only measure: {why}")
    return code


@dataclass(frozen=True)
class ClusterOptions(RowOptions):
    """The options of `semcal cluster`."""

    equivalence: str | None = opt.EQUIVALENCE
    answers_among: str | None = opt.ANSWERS_AMONG
    linkage: str = opt.LINKAGE
    merge_refusals: bool = opt.MERGE_REFUSALS
    schema: Path | None = opt.SCHEMA
    cache: Path | None = opt.CACHE
    device: str | None = opt.DEVICE
    workers: int | None = opt.WORKERS


def cluster(options: ClusterOptions, server: opt.ServerOptions) -> int:
    """Cluster the sampled answers of each question by meaning.

    Reads rows {id, question, samples: [text]} (JSON Lines, CSV, Parquet) and adds normal_forms and clusters:
    lists of sample indices, in the order of first appearance of the meanings. Samples at several temperatures
    (temperatures: [number], one for each sample) are clustered separately.
    """
    from semcal.calibration.report import suggest_labels
    from semcal.fields.rows import StructuredStep, check_structured, checked_by_kind, cluster_fields
    from semcal.models.clustering import ClusterStep, check_clusterable

    schema = opt.open_schema(options.schema)
    check = checked_by_kind(check_clusterable, partial(check_structured, schema), schema)
    equivalence = opt.among_labels(options.equivalence, options.answers_among)
    options = replace(options, equivalence=equivalence or DEFAULT)
    read = open_rows(options.file, options.columns, check, fields=CLUSTERED, label="cluster", tables=True)
    rows, n_blocks = opt.peek_blocks(read, BLOCK, options.limit)
    models = opt.ModelOptions.of(options, server)
    costs = Counter[str]()
    references: list[list[str]] = []
    with opt.open_workers("cluster", models, options.workers, n_blocks) as (executor, load):
        with RowResults("cluster", options.out, limit=options.limit) as results:
            of_fields = partial(cluster_fields, linkage=options.linkage, schema=schema)
            flat = ClusterStep(options.linkage, options.merge_refusals)
            for block in results.blocks(
                rows, StructuredStep(flat, of_fields, schema), workers=executor, cut=BLOCK
            ):
                results.write(block)
                costs.update(block.costs)
                references += [row.answers for row in block.rows if row.is_labelled and not row.has("fields")]
        code = results.bad.exit_code()
        equivalence_name = load().equivalence.name
    warn_of_cut_draws(costs["cut"], costs["draws"], costs["none"])
    opt.report_invalid("cluster", equivalence_name, costs)
    if not needs_no_model(equivalence_name) and (suggestion := suggest_labels(references)):
        info(f"cluster: {suggestion}")
    if costs["documents"]:
        info(
            f"cluster: {costs['invalid_documents']} of {costs['documents']} samples hold no document that is "
            "valid under the schema"
        )
    if not needs_no_model(equivalence_name):
        info(f"cluster: {nli_cost(equivalence_name, costs)}")
    return code


@dataclass(frozen=True)
class MeasureCommandOptions(RowOptions):
    """The options of `semcal measure`."""

    calibration: str | None = opt.CALIBRATION
    answer: str | None = opt.ANSWER
    fields: str | None = opt.FIELDS
    t_alpha: float = opt.TALPHA
    g_alpha: float = opt.GALPHA


def measure(options: MeasureCommandOptions) -> int:
    """Compute the seven semantic confidence measures and their entropies.

    Reads rows {id, clusters, log_likelihoods: [number] or null}. For each measure, adds confidences (of each
    cluster), confidence, top_cluster and semantic_entropy. Without log-likelihoods, only E-SC is computed.
    --calibration adds answer, the probability that the answer is right, threshold and abstained. The
    calibration determines the kind of answer; --answer checks it. A calibration of a score reads rows with
    that score, and adds the probability alone.
    """
    from semcal.fields.rows import StructuredStep, check_has_fields, checked_by_kind
    from semcal.inputs import as_equivalence
    from semcal.measuring import MeasureOptions, MeasureStep, check_measurable

    if options.calibration is not None and opt.holds_field_calibration(options.calibration):
        return _measure_fields(options)
    fields: tuple[str, ...] = MEASURED
    check: Callable[[Row], None] = check_measurable
    step: Step = MeasureStep(MeasureOptions(options.t_alpha, options.g_alpha))
    calibration: Calibration | None = None
    if options.calibration is not None:
        from semcal.calibration import compatibility

        calibration = opt.open_calibration(options.calibration)
        compatibility.check_answer_kind(
            calibration, None if options.answer is None else as_answer_kind(options.answer)
        )
        check = partial(compatibility.check_calibratable, calibration=calibration)
        fields = (*MEASURED, "samples")
        judge = None
        if calibration.score is None and calibration.answer_kind != "modal":
            judge = as_equivalence(compatibility.equivalence_of(calibration))
            compatibility.check_equivalence(calibration, judge)
        step = compatibility.CalibrationStep(calibration, options.t_alpha, options.g_alpha, judge)
    elif options.answer is not None:
        raise UsageError("--answer requires a calibration; pass --calibration DIR, or omit it")
    else:
        check = checked_by_kind(check, check_has_fields)
    step = StructuredStep(step, lambda rows, _: rows)  # the shares of fields are their confidences
    rows = open_rows(options.file, options.columns, check, fields=fields, label="measure", tables=True)
    notes = _MeasureNotes(calibration)
    with RowResults("measure", options.out, limit=options.limit) as results:
        for block in results.blocks(rows, step, cut=2048):
            results.write(block)
            notes.add(block.rows)
    code = results.bad.exit_code()
    notes.show()
    return code


class _MeasureNotes:
    """The ids of measured rows without likelihoods, and probabilities that a calibration gave."""

    def __init__(self, calibration: Calibration | None) -> None:
        self.calibration = calibration
        self.probabilities: list[float | None] = []
        self.origins: dict[tuple[bool, bool], None] = {}  # whether samples and clusters name their origin
        self.without_likelihoods: list[str] = []

    def add(self, rows: Sequence[Row]) -> None:
        from semcal.calibration.watch import MOST_OBSERVED

        flat = [row for row in rows if not row.has("fields")]
        if self.calibration is not None:
            if len(self.probabilities) < MOST_OBSERVED:
                self.probabilities += [row["probability"] for row in flat]
            if self.calibration.score is not None:
                return
        for row in flat:
            self.origins[bool(row.get("sampled_by")), bool(row.get("clustered_by"))] = None
            if len(row.measured.confidence) == 1:
                self.without_likelihoods.append(shown(row["id"]))

    def show(self) -> None:
        from semcal.calibration.compatibility import what_cannot_be_checked
        from semcal.calibration.watch import find_shift

        calibration = self.calibration
        if calibration is not None:
            texts = [
                what_cannot_be_checked(calibration, sampled_by=a, clustered_by=b) for a, b in self.origins
            ]
            for text in filter(None, (*texts, find_shift(calibration, self.probabilities))):
                info(f"measure: {text}")
        if ids := self.without_likelihoods:
            info(f"measure: rows without log-likelihoods, for which only E-SC is computed: {listed(ids)}")


def _measure_fields(options: MeasureCommandOptions) -> int:
    from semcal.calibration.fields import FieldCalibration, FieldStep
    from semcal.fields.rows import check_structured
    from semcal.inputs import as_equivalence
    from semcal.models.clustering import ClusterConfig

    calibration = FieldCalibration.from_pretrained(options.calibration or "")
    if (options.answer or calibration.answer_kind) != calibration.answer_kind:
        raise UsageError(f"--answer: the calibration is for {calibration.answer_kind} answers; omit --answer")
    cluster = ClusterConfig(as_equivalence(calibration.equivalence), calibration.linkage)
    check = partial(check_structured, calibration.parsed, kind=calibration.answer_kind)
    rows = open_rows(options.file, options.columns, check, fields=("id", "samples"), label="measure")
    step = FieldStep(calibration, cluster, opt.accepted_only(options.fields))
    with RowResults("measure", options.out, limit=options.limit) as results:
        for block in results.blocks(rows, step, cut=256):
            results.write(block)
    return results.bad.exit_code()


@dataclass(frozen=True)
class GradeOptions(RowOptions):
    """The options of `semcal grade`."""

    grader: str = opt.GRADER
    rouge: bool = Option(False, "--rouge", help="Also accept answers with ROUGE-L > 0.3.")
    equivalence: str | None = opt.EQUIVALENCE
    cache: Path | None = opt.CACHE
    schema: Path | None = opt.SCHEMA
    device: str | None = opt.DEVICE


def grade(options: GradeOptions, server: opt.ServerOptions) -> int:
    """Grade answers, and state the rule that decided.

    Reads rows {id, answers: [text]} with prediction (a text, or several texts, one of which must be correct),
    or with samples, clusters and top_cluster. Of clusters, the most frequent wording of the top cluster of
    each measure is graded. Adds correct and rule, for clusters one value for each measure. After measure
    --calibration, also adds answer_correct.
    """
    from semcal.fields.rows import (
        StructuredStep,
        check_has_fields,
        check_structured,
        checked_by_kind,
        grade_fields,
    )
    from semcal.grading.grade import GradeStep, as_grader, check_gradable

    schema = opt.open_schema(options.schema)

    def check_fields(row: Row) -> None:
        check_has_fields(row)
        check_structured(schema, row)

    nli = options.equivalence if options.grader == "nli" else "exact"
    settings = server.settings(nli, options.grader.removeprefix("judge:"))
    models = opt.ModelOptions(equivalence=nli, device=options.device, cache=options.cache, settings=settings)
    judge = models.open_equivalence()
    chosen = as_grader(models.open_grader(options.grader, rouge=options.rouge), judge)
    with spending("grade", grader=chosen):
        check = checked_by_kind(check_gradable, check_fields, schema)
        rows = open_rows(options.file, options.columns, check, fields=GRADED, label="grade")
        step = StructuredStep(
            GradeStep(chosen), lambda rows, _: [grade_fields(row, schema) for row in rows], schema
        )
        with RowResults("grade", options.out, limit=options.limit) as results:
            for block in results.blocks(rows, step):
                results.write(block)
        return results.bad.exit_code()


@dataclass(frozen=True)
class MetricsOptions(RowOptions):
    """The options of `semcal metrics`."""

    measure: list[str] | None = Option(None, help="Measure to evaluate; may be repeated (default: all).")
    bins: int = Option(15, min=1, callback=opt.countable, help="Number of bins of ECE and ACE.")
    ci: bool = Option(False, "--ci", help="Add standard errors and 95% intervals over questions.")
    risk: float | None = opt.RISK
    delta: float = opt.DELTA
    by: str | None = Option(
        None,
        metavar="COLUMN",
        help="Column whose values define slices, which are tested separately (default: none).",
    )
    seed: int = opt.RARE_SEED
    json: bool = opt.JSON


def metrics(
    options: MetricsOptions,
    verbose: bool = Option(
        False, "-v", "--verbose", help="Show all metrics in the table, not only the main ones."
    ),
) -> int:
    """Measure calibration, discrimination and selective accuracy.

    Reads rows {confidence, correct} with one value, or with one value for each measure as semcal grade writes
    them. The calibrated probability of the answer (probability, answer_correct) is the measure Calibrated.
    Undefined values are null. If a measure of a row is null, the row does not count for this measure, and the
    number of such rows is printed. --by tests each value of a column, such as a category or a language: do
    the confidences hold there, and the promise of a threshold (--risk, or the threshold of the rows)? The
    tests are corrected for the number of values.
    """
    from semcal.data.question import several
    from semcal.fields.rows import check_has_fields, checked_by_kind, item_rows
    from semcal.measuring import assess, check_assessable, scores_by_measure, slice_of

    def check(row: Row) -> None:
        check_assessable(row)
        if options.by is not None:
            slice_of(row, options.by)

    by_kind = checked_by_kind(check, check_has_fields)
    rows = islice(
        open_rows(options.file, options.columns, by_kind, fields=ASSESSED, label="metrics"), options.limit
    )
    with BadRows() as bad:
        kept = list(item_rows(list(good_rows(rows, bad))))
    if options.by is not None and kept and not any(row.has(options.by) for row in kept):
        raise UsageError(f"--by {options.by}: no row has this column. Pass one of {', '.join(kept[0].json)}")
    by_measure = scores_by_measure(kept, options.measure, by=options.by)
    if not by_measure:
        raise InputError(
            f"{options.file}: no row has confidence and correct. Run `semcal measure` and `semcal grade`"
        )
    for name, scores in by_measure.items():
        if scores.undefined:
            info(
                f"metrics: rows without {name or 'confidence'}, which do not count for it: {scores.undefined}"
            )
    if without := sum(row.json.get("answer", "") is None for row in kept):
        info(f"metrics: questions without an answer, which count as wrong, of probability 0: {without}")
    assessed = assess(
        by_measure,
        bins=options.bins,
        ci=options.ci,
        seed=options.seed,
        risk=options.risk,
        delta=options.delta,
    )
    results = [({} if name is None else {"measure": name}) | values for name, values in assessed.items()]
    if options.risk is not None:
        info(
            "metrics: the threshold is valid only if nothing (T, map, measure) was fitted on these questions"
        )
        if any(several(scores.ties) is not None for scores in by_measure.values()):
            info("metrics: questions that share a passage or group are not independent; one of them counts")
    if not options.json and options.out is None and sys.stdout.isatty():
        show_metrics(results, by=options.by, every=verbose)
    else:
        with writing(options.out) as handle:
            handle.writelines(dumps(result) + "\n" for result in results)
    return bad.exit_code()


def show_metrics(results: list[dict[str, Any]], *, by: str | None = None, every: bool = False) -> None:
    """Print metrics for people: thresholds, then a table with a column for each measure, then slices."""
    named = {str(result.get("measure", "value")): result for result in results}
    for name, result in named.items():
        if "risk" in result:
            show(": ".join([name] * ("measure" in result) + [result["risk"]["sentence"]]))
    if any("risk" in result for result in results):
        show()
    show("\n".join(figure_lines(named, terminal_width(), every=every)))
    for name, result in named.items():
        if "by" in result:
            show("\n".join(["", *([name] if len(named) > 1 else []), *slice_lines(result, by or "value")]))
    if not every:
        show("\n" + paragraph(f"{ON_ACE} Pass -v for all metrics."))
