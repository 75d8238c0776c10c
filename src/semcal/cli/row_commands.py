"""Commands that read rows and write them: `sample`, `import`, `cluster`, `measure`, `grade` and `metrics`."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Argument, Option

from semcal.cli import options as opt
from semcal.cli.console import (
    Output,
    as_shown,
    debug,
    info,
    nli_cost,
    open_unfinished,
    progress,
    show,
    spending,
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
    open_questions,
    open_rows,
    show_first_prompt,
)
from semcal.errors import InputError, ModelError, RowError, ServerError, UsageError, shown
from semcal.files import dumps, writing
from semcal.models.equivalence import needs_no_model
from semcal.models.sample import BLOCK_QUESTIONS, BLOCK_TOKENS, Sampling, plan_sampling, question_blocks
from semcal.registry import check_name
from semcal.rows import NO_ANSWER, Row, as_answer_kind, count_ends, warn_of_cut_draws
from semcal.steps import Step

if TYPE_CHECKING:
    from rich.table import Table

    from semcal.grading.rules import Grader

#: The columns that each command reads.
CLUSTERED = ("id", "question", "samples", "log_likelihoods")
MEASURED = ("id", "clusters", "log_likelihoods")
GRADED = ("id", "question", "answers", "prediction", "samples", "clusters", "top_cluster", "log_likelihoods")
AUDITED = ("id", "question", "answers", "prediction", "human", "context", "group")
ASSESSED = ("id", "confidence", "correct", "semantic_entropy", "probability", "answer_correct")
#: Rows that are clustered together.
BLOCK = 256
#: From so many questions on, draws that are all alike are warned of.
FEWEST = 5

CommandRow = dict[str, Any]


@dataclass(frozen=True)
class SampleOptions:
    """The options of `semcal sample`."""

    file: str = opt.ROWS
    model: str | None = opt.MODEL
    m: int = opt.SAMPLES
    seed: int = opt.SEED
    recalibrator: str | None = opt.RECALIBRATOR
    temperature: float | None = opt.TEMPERATURE
    max_new_tokens: int | None = opt.MAX_NEW_TOKENS
    answer_format: str | None = opt.ANSWER_FORMAT
    few_shot: Path | None = opt.FEW_SHOT
    answer: str | None = opt.ANSWER
    system: str | None = opt.SYSTEM
    template: Path | None = opt.TEMPLATE
    vary: str | None = opt.VARY
    show_prompt: bool = opt.SHOW_PROMPT
    force: bool = opt.FORCE
    columns: list[str] | None = opt.COLUMNS
    limit: int | None = opt.LIMIT
    out: Path | None = opt.OUT
    overwrite: bool = opt.OVERWRITE
    device: str | None = opt.DEVICE
    dtype: str | None = opt.DTYPE
    dry_run: bool = opt.DRY_RUN
    fresh: bool = opt.FRESH
    workers: int | None = opt.WORKERS
    memory: str | None = opt.MEMORY


def sample(options: SampleOptions, server: opt.ServerOptions) -> int:
    """Sample answers to questions, with their likelihoods.

    Reads questions {id, question, context?} (JSON Lines, CSV, Parquet, SQuAD's JSON) and adds the generations
    with their tokens and log-probabilities, samples (the answers in them; null if there is none) and
    log_likelihoods (length-normalised, natural logarithm); with --answer greedy or given the log-likelihood
    of that answer too. Interrupted with --out, it resumes with the same command and gives identical results.
    """
    opt.required_model(options.model)
    models, config = opt.ModelOptions.of(options, server), opt.sampling_config(options)
    read, total = counted(options.file, open_questions(options.file, options.columns, label="sample"))
    if options.show_prompt:
        language_model = models.open_model()
        return show_first_prompt(language_model, opt.open_recalibrator(language_model, options)[1], read)
    if options.dry_run:
        return _plan_sampling(islice(read, options.limit), models, options)
    block_size = min(BLOCK_QUESTIONS, max(1, BLOCK_TOKENS // (10 * options.m)))
    questions, n_blocks = opt.peek_blocks(read, block_size, options.limit)
    with opt.open_workers("sample", models, options.workers, n_blocks) as (executor, load):
        language_model = load().model
        from semcal.models.sample import SampleStep, check_question

        method, asking = opt.open_recalibrator(language_model, options)
        sampling = Sampling((method,), asking, config)
        kind = as_answer_kind(options.answer or "modal")
        step = SampleStep(sampling, full=True, answer=kind)
        made_by = {
            "model": language_model.revision,
            "prompt": asking.hash(language_model),
            "dtype": options.dtype,
        }
        work = (
            None
            if options.out is None
            else open_unfinished(options.out, {**step.key(), **made_by}, fresh=options.fresh)
        )
        debug(f"sample: {language_model.name} {language_model.revision[:12]}, {method}")
        ends = Counter[int]()
        fitting = checked(questions, lambda row: check_question(language_model, row.to_question(), sampling))
        with RowResults("sample", options.out, limit=options.limit, total=total) as results:
            for block in results.blocks(
                fitting,
                step,
                workers=executor,
                cut=partial(question_blocks, language_model, sampling=sampling),
                revisions=made_by,
                store=work,
            ):
                results.write(block)
                ends.update(dict(enumerate(count_ends(block.rows))))
        code = results.bad.exit_code()
        warn_of_cut_draws(ends[0], ends[1], ends[2])
        if work is not None:
            work.finish()
    return code


def sample_output(out: Path | None) -> Output | None:
    """What the command writes to, and where it keeps finished blocks."""
    return None if out is None else Output(out, work=unfinished(out))


def _plan_sampling(
    read: Iterator[Row | RowError],
    models: opt.ModelOptions,
    options: SampleOptions,
) -> int:
    """Print how many answers sampling would take, and if the model can be had what they take."""
    m = options.m
    with BadRows() as bad:
        questions = [row.to_question() for row in good_rows(read, bad)]
        warn(f"would sample {m} answers to each of {len(questions)} questions: {m * len(questions)} answers")
        if questions:
            try:
                model = models.open_model()
            except (ModelError, ServerError) as error:
                warn(f"tokens and time are not known: {error}")
                return bad.exit_code()
            method, asking = opt.open_recalibrator(model, options)
            sampling = Sampling((method,), asking, opt.sampling_config(options))
            warn("\n".join(plan_sampling(model, questions, sampling)))
        return bad.exit_code()


@dataclass(frozen=True)
class ImportOptions:
    """The options of `semcal import`."""

    format: str = Argument(metavar="FORMAT", help="lm-eval, inspect or openai-batch.")
    file: str = Argument(metavar="FILE", help="samples_*.jsonl, an .eval or .json log, or a batch's output.")
    requests: str | None = Option(
        None, metavar="FILE", help="The requests of an OpenAI batch, which hold questions and settings."
    )
    questions: str | None = Option(
        None, metavar="FILE", help="Questions {id?, question, answers}, by id or text."
    )
    answer: str | None = Option(
        None,
        metavar="KIND",
        help="Also the log's own answer: given ('answer', and 'correct' where the log says so), or greedy "
        "('greedy', a batch's q#greedy).",
    )
    answer_format: str | None = Option(
        None,
        "--answer-format",
        metavar="FORMAT",
        help="How the answer in a reply is found: by default as the log has extracted it, else by auto; or "
        "as of semcal sample.",
    )
    limit: int | None = opt.LIMIT
    out: Path | None = opt.OUT
    overwrite: bool = opt.OVERWRITE


def import_rows(options: ImportOptions) -> int:
    """Turn sampled answers that another program recorded into rows for semcal cluster.

    Writes {id, question, answers, generations, samples}; samples are answers, as of semcal sample. Adds
    log_likelihoods only where the file says at which T and how they were computed. With --answer given also
    rows {id, question, answers, answer, correct} of answers without draws, for calibrate --answer given.
    """
    from semcal.data.recorded import FORMATS, read_recorded
    from semcal.models.clustering import check_clusterable

    chosen = FORMATS[check_name(options.format, FORMATS, what="format")]
    without = several = repeated = 0
    ends = Counter[int]()
    kind = as_answer_kind(options.answer or "modal")
    lines = read_recorded(
        options.file,
        options.format,
        requests=options.requests,
        questions=options.questions,
        answer=kind,
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
            texts = [row["generations"] for row in drawn if len(row["generations"]) > 1]
            several += len(texts)
            repeated += sum(len(set(generations)) == 1 for generations in texts)
    code = results.bad.exit_code()
    warn_of_cut_draws(ends[0], ends[1], ends[2])
    if without:
        rows = "row has" if without == 1 else "rows have"
        info(f"import: {without} {rows} no log-likelihoods (E-SC alone): {chosen.no_likelihoods}")
    if several == repeated >= FEWEST:
        info(
            f"import: all draws of each of {repeated} questions are the same text, and every confidence is "
            "1; were they drawn with one seed (lm-eval sends one, unless --model_args seed=-1), or at T = 0?"
        )
    return code


@dataclass(frozen=True)
class ClusterOptions:
    """The options of `semcal cluster`."""

    file: str = opt.ROWS
    equivalence: str | None = opt.EQUIVALENCE
    answers_among: str | None = opt.ANSWERS_AMONG
    linkage: str = opt.LINKAGE
    merge_refusals: bool = opt.MERGE_REFUSALS
    cache: Path | None = opt.CACHE
    columns: list[str] | None = opt.COLUMNS
    limit: int | None = opt.LIMIT
    out: Path | None = opt.OUT
    overwrite: bool = opt.OVERWRITE
    device: str | None = opt.DEVICE
    workers: int | None = opt.WORKERS


def cluster(options: ClusterOptions, server: opt.ServerOptions) -> int:
    """Group the sampled answers of each question by meaning.

    Reads rows {id, question, samples: [text]} (JSON Lines, CSV, Parquet) and adds normal_forms and
    clusters: lists of sample indices, in the order in which the meanings first appear. Samples of several
    temperatures (temperatures: [number], one a sample) are grouped apart.
    """
    from semcal.calibration.problems import suggest_labels
    from semcal.models.clustering import ClusterStep, check_clusterable

    equivalence = opt.equivalence_name(opt.among_labels(options.equivalence, options.answers_among))
    options = replace(options, equivalence=equivalence)
    read = open_rows(
        options.file, options.columns, check_clusterable, fields=CLUSTERED, label="cluster", tables=True
    )
    rows, n_blocks = opt.peek_blocks(read, BLOCK, options.limit)
    models = opt.ModelOptions.of(options, server)
    costs = Counter[str]()
    references: list[list[str]] = []
    with opt.open_workers("cluster", models, options.workers, n_blocks) as (executor, load):
        with RowResults("cluster", options.out, limit=options.limit) as results:
            step = ClusterStep(options.linkage, options.merge_refusals)
            for block in results.blocks(rows, step, workers=executor, cut=BLOCK):
                results.write(block)
                costs.update(block.costs)
                references += [row.answers for row in block.rows if row.is_labelled]
        code = results.bad.exit_code()
        equivalence_name = load().equivalence.name
    opt.report_invalid("cluster", equivalence_name, costs)
    if not needs_no_model(equivalence_name) and (suggestion := suggest_labels(references)):
        info(f"cluster: {suggestion}")
    if costs["none"]:
        info(f"cluster: {costs['none']} of {costs['draws']} samples have no answer: one meaning a question")
    if not needs_no_model(equivalence_name):
        cached = f", {costs['hits']} of them known from {options.cache}" if options.cache else ""
        info(f"cluster: {nli_cost(equivalence_name, costs)}{cached}")
    return code


@dataclass(frozen=True)
class MeasureCommandOptions:
    """The options of `semcal measure`."""

    file: str = opt.ROWS
    calibration: str | None = opt.CALIBRATION
    answer: str | None = opt.ANSWER
    t_alpha: float = opt.TALPHA
    g_alpha: float = opt.GALPHA
    columns: list[str] | None = opt.COLUMNS
    limit: int | None = opt.LIMIT
    out: Path | None = opt.OUT
    overwrite: bool = opt.OVERWRITE


def measure(options: MeasureCommandOptions) -> int:
    """Compute the seven semantic confidence measures and their entropies.

    Reads rows {id, clusters, log_likelihoods: [number] or null} and adds confidences (per cluster),
    confidence, top_cluster and semantic_entropy, each by measure. Without log-likelihoods only E-SC.
    With --calibration also answer, the probability that it is right, threshold and abstained; the answer is
    what the calibration was learnt for, which --answer names.
    """
    from semcal.inputs import as_equivalence
    from semcal.measuring import MeasureOptions, MeasureStep, check_measurable

    fields: tuple[str, ...] = MEASURED
    check, at = check_measurable, "T = 1 (or else the first)"
    step: Step = MeasureStep(MeasureOptions(options.t_alpha, options.g_alpha))
    untold: set[tuple[bool, bool]] = set()
    if options.calibration is not None:
        from semcal.calibration import calibration as calibrations
        from semcal.calibration import compatibility

        chosen = opt.open_calibration(options.calibration)
        untold |= {(False, False), (False, True), (True, False), (True, True)}
        compatibility.check_answer_kind(
            chosen, None if options.answer is None else as_answer_kind(options.answer)
        )
        check = partial(compatibility.check_calibratable, calibration=chosen)
        fields = (*MEASURED, "samples")
        at = at if chosen.temperature is None else f"T = {chosen.temperature:g}"
        judge = None
        if chosen.answer_kind != "modal":
            judge = as_equivalence(compatibility.equivalence_of(chosen))
            compatibility.check_equivalence(chosen, judge)
        step = calibrations.CalibrationStep(chosen, options.t_alpha, options.g_alpha, judge)
    elif options.answer is not None:
        raise UsageError("--answer is of a calibration; give --calibration DIR, or leave it out")

    def check_once(row: Row) -> None:
        """Say once of rows that tell equally much of their origin what cannot be checked."""
        check(row)
        for told in untold & {(bool(row.get("sampled_by")), bool(row.get("clustered_by")))}:
            text = compatibility.what_cannot_be_checked(chosen, sampled_by=told[0], clustered_by=told[1])
            if text:
                info(f"measure: {text}")
            untold.remove(told)

    unlikely: list[str] = []
    mixed: list[str] = []
    without: list[str] = []
    rows = open_rows(options.file, options.columns, check_once, fields=fields, label="measure", tables=True)
    with RowResults("measure", options.out, limit=options.limit) as results:
        for block in results.blocks(rows, step, cut=2048):
            results.write(block)
            unlikely += [shown(row["id"]) for row in block.rows if len(row.measured.confidence) == 1]
            mixed += [shown(row["id"]) for row in block.rows if len(set(row.temperatures or ())) > 1]
            tops = [row.clusters[row.measured.top_cluster["E-SC"] or 0] for row in block.rows]
            without += [shown(row["id"]) for row, top in zip(block.rows, tops) if not row.has_answer(top)]
    code = results.bad.exit_code()
    if unlikely:
        rows_have = "row has" if len(unlikely) == 1 else "rows have"
        ids = listed(unlikely)
        info(f"measure: {len(unlikely)} {rows_have} no log-likelihoods (ids {ids}) and got E-SC alone")
    if mixed:
        info(f"measure: draws at several temperatures (ids {listed(mixed)}); measured are those at {at}")
    if without:
        ids = f"{len(without)} (ids {listed(without)})"
        info(f"measure: questions whose most frequent meaning is {NO_ANSWER!r}: {ids}")
    return code


@dataclass(frozen=True)
class GradeOptions:
    """The options of `semcal grade`."""

    file: str = opt.ROWS
    grader: str = opt.GRADER
    rouge: bool = Option(False, "--rouge", help="Also accept ROUGE-L > 0.3.")
    equivalence: str | None = opt.EQUIVALENCE
    cache: Path | None = opt.CACHE
    audit: bool = Option(
        False,
        "--audit",
        help="Compare the grader with people instead: rows {prediction, answers, human: true or false}.",
    )
    seed: int = opt.RARE_SEED
    columns: list[str] | None = opt.COLUMNS
    limit: int | None = opt.LIMIT
    out: Path | None = opt.OUT
    overwrite: bool = opt.OVERWRITE
    json: bool = opt.JSON
    device: str | None = opt.DEVICE


def grade(options: GradeOptions, server: opt.ServerOptions) -> int:
    """Say whether answers are right, and by which rule.

    Reads rows {id, answers: [text]} with prediction (a text, or several of which any may be right), or
    with samples, clusters and top_cluster: the most frequent wording of the top cluster of each measure.
    Adds correct and rule, for clusters by measure, and answer_correct where measure --calibration was.
    With --audit it prints how far the grader and people agree, Cohen's kappa and the confusion matrix, with
    95 % intervals; answers to one question (or of one context or group) are resampled together.
    """
    from semcal.grading.grade import GradeStep, as_grader, check_auditable, check_gradable

    nli = options.equivalence if options.grader == "nli" else "exact"
    settings = server.settings(nli, options.grader.removeprefix("judge:"))
    models = opt.ModelOptions(equivalence=nli, device=options.device, cache=options.cache, settings=settings)
    judge = models.open_equivalence()
    chosen = as_grader(models.open_grader(options.grader, rouge=options.rouge), judge)
    with spending("grade", grader=chosen):
        if options.audit:
            read = open_rows(options.file, options.columns, check_auditable, fields=AUDITED, label="grade")
            return _audit(read, chosen, options)
        rows = open_rows(options.file, options.columns, check_gradable, fields=GRADED, label="grade")
        with RowResults("grade", options.out, limit=options.limit) as results:
            for block in results.blocks(rows, GradeStep(chosen)):
                results.write(block)
        return results.bad.exit_code()


def _audit(
    rows: Iterator[Row | InputError],
    grader: Grader,
    options: GradeOptions,
) -> int:
    """Compare a grader with people's labels, and print how far they agree."""
    from semcal.grading.grade import audit, judge_rows

    with BadRows() as bad, progress("grade", options.limit) as update:
        audited = list(good_rows(islice(rows, options.limit), bad))
        judgements = judge_rows(audited, grader)
        update(len(judgements))
    agreement = audit(judgements, seed=options.seed)
    _show_or_write(
        [{"grader": options.grader, **agreement}],
        [{"measure": options.grader, **agreement}],
        options.out,
        as_json=options.json,
    )
    return bad.exit_code()


@dataclass(frozen=True)
class MetricsOptions:
    """The options of `semcal metrics`."""

    file: str = opt.ROWS
    measure: list[str] | None = Option(None, help="Only this measure; may be repeated.")
    bins: int = Option(15, min=1, callback=opt.countable, help="Bins of ECE and ACE.")
    ci: bool = Option(False, "--ci", help="Add standard errors and 95 % intervals over questions.")
    risk: float | None = opt.RISK
    delta: float = opt.DELTA
    by: str | None = Option(
        None,
        "--by",
        metavar="COLUMN",
        help="Also whether it holds for the rows of each value of this column.",
    )
    seed: int = opt.RARE_SEED
    columns: list[str] | None = opt.COLUMNS
    limit: int | None = opt.LIMIT
    out: Path | None = opt.OUT
    overwrite: bool = opt.OVERWRITE
    json: bool = opt.JSON


def metrics(options: MetricsOptions) -> int:
    """Measure calibration, discrimination and selective accuracy.

    Reads rows {confidence, correct}, or both by measure as semcal grade writes them; a calibrated
    probability of the answer (probability, answer_correct) is the measure Calibrated. What is undefined
    is null. Rows that are null under a measure do not count for it; their number is printed. With --by
    also whether the confidences, and the promise of a threshold (--risk, or that of the rows), hold for
    the rows of each value of a column, such as a category or a language; the number of values is allowed for.
    """
    from semcal.data.question import several
    from semcal.measuring import assess, check_assessable, scores_by_measure, slice_of

    def check(row: Row) -> None:
        check_assessable(row)
        if options.by is not None:
            slice_of(row, options.by)

    rows = islice(
        open_rows(options.file, options.columns, check, fields=ASSESSED, label="metrics"), options.limit
    )
    with BadRows() as bad:
        kept = list(good_rows(rows, bad))
    if options.by is not None and kept and not any(row.has(options.by) for row in kept):
        raise UsageError(f"--by {options.by}: no row has such a column; there are {', '.join(kept[0].json)}")
    by_measure = scores_by_measure(kept, options.measure, by=options.by)
    if not by_measure:
        raise InputError(
            f"no row of {options.file} holds confidence and correct; run `semcal measure` and `semcal grade`"
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
        info("metrics: the threshold holds only if nothing (T, map, measure) was fitted on these questions")
        if any(several(scores.ties) is not None for scores in by_measure.values()):
            info("metrics: of questions that share a passage or group, which are not independent, one counts")
    _show_or_write(results, results, options.out, as_json=options.json)
    return bad.exit_code()


def _show_or_write(
    lines: list[CommandRow], columns: list[CommandRow], out: Path | None, *, as_json: bool
) -> None:
    """Print results as a table for people, or write them as lines of JSON."""
    if not as_json and out is None and sys.stdout.isatty():
        show_metrics(columns)
        return
    with writing(out) as handle:
        handle.writelines(dumps(line) + "\n" for line in lines)


def show_metrics(results: list[CommandRow]) -> None:
    """Print metrics for people; a result's `measure` is the head of its column."""
    from rich.console import Console

    console = Console()
    tables = metrics_tables(results, console.width) + [slice_table(one) for one in results if "by" in one]
    for number, table in enumerate(tables):
        console.print(*([""] if number else []), table, sep="\n", markup=False, highlight=False)
    for result in results:
        if "risk" in result:
            sentence = ": ".join([result["measure"]] * ("measure" in result) + [result["risk"]["sentence"]])
            show(sentence)


def _shown(value: Any) -> str:
    if value is None or value != value:
        return "–"
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, list):
        return "[" + ", ".join("–" if item is None else f"{item:.3f}" for item in value) + "]"
    return str(value)


def metrics_tables(results: list[CommandRow], width: int) -> list[Table]:
    """Metrics down, measures across: as many tables as it takes for each to fit a width of characters."""
    rows = _rows(max(results, key=len))
    cells = [[_metric(result, *row) for row in rows] for result in results]
    names = [key if inner is None else f"{key} {inner}" for key, inner in rows]
    heads = [str(result.get("measure", "value")) for result in results]
    first = max(map(len, ["metric", *names]))
    widths = [max(map(len, [head, *column])) + 1 for head, column in zip(heads, cells)]
    tables, part = [], [0]
    for number in range(1, len(results) + 1):
        if number < len(results) and first + sum(widths[i] for i in [*part, number]) <= width:
            part.append(number)
        else:
            tables.append(_table(names, [heads[i] for i in part], [cells[i] for i in part]))
            part = [number]
    return tables


#: What a table of slices shows of each, by its head.
OF_SLICES = {"n": "n", "said": "mean_confidence", "right": "accuracy", "said − right": "excess"}
OF_SLICES |= {"95 %": "excess_interval", "ACE": "ace", "by chance": "ace_floor", "holds": "calibrated"}
OF_ANSWERED = {"answered": "answered", "wrong": "risk", "95 % of wrong": "risk_interval", "kept": "kept"}


def slice_table(result: CommandRow) -> Table:
    """What holds in each slice, a line each; "?" where there are too few questions to say."""
    parts = result["by"]
    heads = OF_SLICES | (OF_ANSWERED if any(part["answered"] is not None for part in parts) else {})
    verdicts = {True: "yes", False: "NO", None: "?"}
    columns = [
        [verdicts[part[key]] if key in ("calibrated", "kept") else _rounded(part[key]) for part in parts]
        for key in heads.values()
    ]
    return _table(
        [part["value"] for part in parts], list(heads), columns, first=result.get("measure", "value")
    )


def _rounded(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_short, value))}]"
    return str(value) if isinstance(value, int) else _short(value)


def _rows(result: CommandRow) -> list[tuple[str, str | None]]:
    """The metrics, and of those that are mappings each key."""
    return [
        (key, inner)
        for key, value in result.items()
        if key not in ("measure", "se", "interval", "risk", "by")
        for inner in (value if isinstance(value, dict) else (None,))
    ]


def _metric(result: CommandRow, key: str, inner: str | None) -> str:
    """A value, with its standard error and interval where there are some: 0.0940 ±.0150 [.064, .124]."""
    value = result.get(key) if inner is None else (result.get(key) or {}).get(inner)
    error, interval = (result.get(kind, {}).get(key) for kind in ("se", "interval"))
    if inner is not None or interval is None:
        return _shown(value)
    return f"{_shown(value)} ± {_short(error)} [{_short(interval[0])}, {_short(interval[1])}]"


def _short(value: float | None) -> str:
    return "–" if value is None or value != value else re.sub(r"^(-?)0\.", r"\1.", f"{value:.3f}")


def _table(names: list[str], heads: list[str], columns: list[list[str]], first: str = "metric") -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for number, head in enumerate([first, *heads]):
        table.add_column(Text(as_shown(head)), justify="right" if number else "left", overflow="fold")
    for row in zip(names, *columns):
        table.add_row(*(Text(as_shown(cell)) for cell in row))
    return table
