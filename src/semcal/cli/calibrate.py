"""`semcal calibrate`: learn the probability that an answer is right, from labeled questions or samples."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from typer import Argument, BadParameter, Option

from semcal.cli import options as opt
from semcal.cli.config_file import setting
from semcal.cli.console import (
    ON_ACE,
    Output,
    figure_lines,
    info,
    open_unfinished,
    paragraph,
    progress,
    show,
    spending,
    terminal_width,
    warn,
)
from semcal.cli.fit import check_apart, folder_output
from semcal.cli.row_streams import BadRows, checked, good_rows, open_questions, open_rows, read_labelled
from semcal.data.question import Question, data_hash
from semcal.errors import InputError, RowError, UsageError, shown
from semcal.files import dumps, own_files, read_rows, write_rows
from semcal.models.sample import BLOCK_QUESTIONS, plan_sampling
from semcal.registry import option_name
from semcal.rows import RECALIBRATOR, SAMPLES, AnswerKind, Row, as_answer_kind
from semcal.steps import Stage, run_stages
from semcal.store import UnfinishedWork, keeping_replies
from semcal.text import aligned

if TYPE_CHECKING:
    from semcal.calibration.calibration import Calibration, CalibrationConfig
    from semcal.calibration.features import ScoreColumn
    from semcal.calibration.production import ProductionLabels
    from semcal.calibration.report import CalibrationReport
    from semcal.calibration.samples import SamplesOrigin
    from semcal.fields.schema import Schema
    from semcal.grading.rules import Grader
    from semcal.models.equivalence import Equivalence
    from semcal.models.protocols import Sampler
    from semcal.models.sample import Sampling

#: Columns of stored samples.
FIELDS = (
    *("id", "question", "samples", "log_likelihoods", "temperatures"),
    *("answers", "clusters", "context", "group", "answer", "greedy", "correct"),
)
#: Columns of given answers: the answer and its correctness.
OF_GIVEN = ("answer", "correct")
#: The joint promise of several thresholds.
TOGETHER = "All thresholds hold together with {:.3g}% confidence; review answers {}."


#: The value of --m that stands for auto.
AUTO = 0


def samples_or_auto(text: str) -> int:
    """Parse --m: a positive whole number, or `AUTO` for "auto"; BadParameter for other texts."""
    if text == "auto":
        return AUTO
    if text.isdecimal() and 0 < int(text) < opt.LARGEST:
        return int(text)
    raise BadParameter(f"{shown(text)} is neither a positive whole number nor auto; pass for example 10")


@dataclass(frozen=True)
class CalibrateOptions(opt.PromptOptions):
    """The options of `semcal calibrate`."""

    file: str = Argument(
        metavar="FILE",
        help="File of labeled questions {question, answers, context?}; without --model, rows with samples; "
        "with --add, a calibration.",
    )
    out: Path = opt.folder_option("Directory of the calibration to write.", ...)
    equivalence: str | None = opt.EQUIVALENCE
    answers_among: str | None = opt.ANSWERS_AMONG
    risk: list[float] | None = Option(
        None,
        metavar="R",
        callback=opt.share,
        help="Largest share of wrong answers among the given answers. It sets a threshold, below which "
        "answers abstain; may be repeated (default: no threshold).",
    )
    schema: Path | None = opt.SCHEMA
    document_risk: list[float] | None = Option(
        None,
        metavar="R",
        callback=opt.share,
        help="With --schema: largest share of documents with a wrong field among the accepted documents.",
    )
    by: str | None = Option(
        None,
        metavar="COLUMN",
        help="With --schema: column whose values get thresholds of their own; documents with a value that is "
        "not in FILE are not accepted.",
    )
    delta: float | None = setting(
        callback=opt.share, help="Allowed probability that the limit of --risk is exceeded (default: 0.05)."
    )
    from_calibration: Path | None = Option(
        None,
        "--from",
        metavar="DIR",
        help="Calibration that is moved to new data: FILE holds 30 to 200 labeled rows of the new data, with "
        "samples or the score as in DIR.",
    )
    add: list[Path] | None = Option(
        None,
        metavar="LOG",
        help="Log of semcal serve whose labels are added to the calibration FILE, "
        "which is learned again; may be repeated.",
    )
    audited: bool = Option(
        False,
        "--audited",
        help="With --add: set the threshold on audited replies alone, if the questions have changed.",
    )
    answer: str | None = opt.ANSWER
    feature: list[str] | None = Option(
        None,
        metavar="NAME[:rising|:falling]",
        help="Numeric column of the rows that is used as a feature, with the direction of its effect; may be "
        "repeated.",
    )
    score: str | None = Option(
        None,
        metavar="NAME[:rising|:falling]",
        help="Numeric column of the rows that is calibrated in place of samples (default: probability or "
        "score, if the rows have no samples). Without rising or falling, the direction is learned.",
    )
    signal: list[str] | None = Option(
        None,
        metavar="NAME",
        help="Judgment of the model on its answer that is used as a feature: self-assessment, p-true, "
        "verbalised, token-scores or question-probe; may be repeated.",
    )
    recalibrator: str | None = opt.RARE_RECALIBRATOR
    temperatures: list[float] | None = setting(
        help="Sampling temperatures: 1, whose samples give the answer, and others whose samples are "
        "features (default: 1 and 0.5)."
    )
    m: int | None = Option(
        None,
        metavar="N|auto",
        parser=samples_or_auto,
        help="Number of samples for each question at each temperature (default: 10). Of stored samples, the "
        "first N are used. With auto, 10 are sampled, and the smallest number that loses at most one "
        "standard error of the gain is used, also by semcal ask.",
    )
    m_curve: bool | None = setting(
        None, help="Report the gain with fewer samples (default: true if a model is sampled)."
    )
    linkage: str = opt.LINKAGE
    merge_refusals: bool = opt.MERGE_REFUSALS
    max_new_tokens: int | None = opt.RARE_MAX_NEW_TOKENS
    answer_format: str | None = opt.ANSWER_FORMAT
    vary: str | None = opt.VARY
    grader: str = opt.GRADER
    cache: Path | None = opt.CACHE
    seed: int | None = opt.KEPT_SEED
    json: bool = opt.JSON
    device: str | None = opt.RARE_DEVICE
    nli_device: str | None = opt.NLI_DEVICE
    dry_run: bool = opt.DRY_RUN
    fresh: bool = opt.FRESH
    force: bool = opt.FORCE
    keep_samples: bool = setting(
        True, help="Keep the samples in DIR/samples.jsonl for further calibrations (default: true)."
    )

    @property
    def kind(self) -> AnswerKind:
        """The kind of answer whose probability is learned."""
        return as_answer_kind(self.answer or "modal")

    def curve(self, equivalence: Equivalence, *, is_sampled: bool) -> bool | Literal["auto"]:
        """Return the `m_curve` of a calibration, of samples of a known model or of others."""
        from semcal.models.equivalence import EmbeddedEquivalence, ExactMatch

        if self.m == AUTO:
            return "auto"
        # A large model that compares answers would be asked again for each number of samples.
        is_cheap = isinstance(equivalence, ExactMatch | EmbeddedEquivalence)
        return is_sampled and is_cheap if self.m_curve is None else self.m_curve

    def configuration(self, grader: Grader | str | None = None) -> CalibrationConfig:
        """Return the settings of the calibration."""
        from semcal.calibration.calibration import CalibrationConfig

        delta = 0.05 if self.delta is None else self.delta
        features, signals = tuple(self.feature or ()), tuple(self.signal or ())
        return CalibrationConfig(
            self.kind, features, signals, tuple(self.risk or ()), delta, grader, self.score
        )

    def check(self, *, has_samples: bool) -> None:
        """Raise UsageError for options that require a model to sample from, or a log of labels."""
        if self.audited and not self.add:
            raise UsageError("--audited requires the labels of a log; pass the log with --add")
        if self.model is not None and self.score is not None:
            raise UsageError("--score is a column of rows, and --model samples answers; omit one of them")
        if self.model is not None and not has_samples:
            return
        rejected = ["answer_format", "fresh"]
        if self.model is None:
            rejected += ["few_shot", "system", "template", "vary"]
        for name in rejected:
            if getattr(self, name) and not opt.is_from_file(name):
                remedy = "omit it" if has_samples else "pass --model, or omit it"
                raise UsageError(f"{option_name(name)} requires a model that samples answers; {remedy}")


#: Options of every calibration: of its files and thresholds, and of the equivalence.
ALWAYS = {"file", "out", "risk", "delta", "overwrite", "json", "dry_run"}
ALWAYS |= {"equivalence", "device", "nli_device", "cache"}
#: Options that are allowed beside --add. The calibration keeps its other settings.
BESIDE_ADD = ALWAYS | {"add", "audited", "dtype", "force"}
#: Options that are allowed beside --from.
BESIDE_FROM = ALWAYS | {"from_calibration", "grader", "columns", "limit", "dtype", "seed", "answers_among"}
#: Options that are allowed beside --schema with stored samples; those of samples require --model as well.
BESIDE_SCHEMA = ALWAYS | {"schema", "document_risk", "by", "answer", "linkage", "m"}
BESIDE_SCHEMA |= {"seed", "columns", "limit"}
OF_DOCUMENT_SAMPLES = {"model", "recalibrator", "max_new_tokens", "dtype", "fresh", "force", "keep_samples"}
OF_DOCUMENT_SAMPLES |= {"few_shot", "system", "template", "vary"}


def command(options: CalibrateOptions, server: opt.ServerOptions) -> int:
    """Learn the probability that an answer is right, and with --risk a threshold to abstain below.

    The model answers each question m times. The answer is the most frequent meaning, graded against the
    references. The probability is learned from its share of samples and other features, by the map with the
    highest cross-validated gain; the share itself is used if no map is better. With --risk, the share of
    samples decides whether an answer is given, and all labels test its threshold; of 1,000 labels or more,
    40% are held out for a threshold of the probability. For rows without samples, a score is calibrated
    (--score).

    Pass the directory to semcal ask or measure with --calibration. Interrupted sampling resumes with the same
    command. The samples are kept in DIR/samples.jsonl: pass that file for another risk, equivalence, grader
    or m without sampling again. With --add LOG, a calibration DIR is learned again with labels from
    production. With --from DIR, a calibration is moved to new data with few labels.
    """
    if options.from_calibration is not None:
        _check_kept(options, BESIDE_FROM, "cannot change when --from moves a calibration")
    if options.schema is not None or ((first := _first_row(options.file)) and "schema" in first):
        return _calibrate_fields(options, server)
    if options.add and opt.holds_field_calibration(options.file):
        raise UsageError(
            "--add: labels of a log do not extend a calibration of fields; pass labeled documents (--schema)"
        )
    options, old, labels = _with_labels(options) if options.add else (options, None, None)
    has_samples = holds_kept_samples(options.file)
    options.check(has_samples=has_samples)
    options = replace(options, equivalence=opt.among_labels(options.equivalence, options.answers_among))
    if options.answers_among is not None and options.grader == "rules":
        options = replace(options, grader="exact")
    models = opt.ModelOptions.of(options, server, options.grader.removeprefix("judge:"))
    with BadRows() as bad:
        if options.from_calibration is not None:
            calibration = _moved(options, models, bad, options.from_calibration)
        elif options.model is None or has_samples:
            calibration = _from_samples(options, models, bad, old, labels)
        else:
            calibration = _from_model(options, models, bad)
        if calibration is None:
            return bad.exit_code()
        path = _save(calibration, options)
        for line in calibration.report.first:
            info(f"calibrate: {line}")
        missing = {} if labels is None else {"missing_labels": labels.missing}
        for_people = not options.json and sys.stdout.isatty()
        show(in_words(calibration, path) if for_people else _as_json(calibration, path, missing))
        return bad.exit_code()


def _learned(
    learn: Callable[..., Calibration], n_questions: int, work: UnfinishedWork | None = None, **models: object
) -> Calibration:
    """Call `learn` with `progress` on the questions to sample or cluster, and print the costs of `models`."""
    replies = None if work is None else work.replies
    spent = spending("calibrate", **models)
    with spent, progress("calibrate", n_questions) as update, keeping_replies(replies):
        calibration = learn(progress=update)
    if work is not None:
        work.finish()
    return calibration


def _first_row(file: str | Path) -> Row | None:
    """Return the first row of a file of JSON Lines; None for another file, or if it is no row."""
    path = Path(file)
    first = next(iter(read_rows(path)), None) if path.suffix == ".jsonl" and path.is_file() else None
    return None if isinstance(first, RowError | None) else Row(first.data)


def _calibrate_fields(options: CalibrateOptions, server: opt.ServerOptions) -> int:
    from semcal.calibration.fields import calibrate_fields
    from semcal.fields.rows import check_structured, check_to_sample

    _check_kept(options, BESIDE_SCHEMA | OF_DOCUMENT_SAMPLES, "does not apply to fields (--schema)")
    if options.model is None:
        _check_kept(options, BESIDE_SCHEMA, "requires --model, which samples documents")
    if options.m == AUTO:
        raise UsageError("--m auto does not apply to fields (--schema); pass a number of samples")
    schema = opt.open_schema(options.schema)
    models = opt.ModelOptions.of(options, server)
    with BadRows() as bad:
        if options.model is not None and schema is None:
            raise UsageError("--model: documents are sampled with a schema. Pass it with --schema")
        check: Callable[[Row], None] = partial(check_to_sample, schema, labeled=True)
        if options.model is None:
            check = partial(check_structured, schema, labeled=True, kind=options.kind)
        named = FIELDS if options.model is None else ("id", "question", "context")
        read = open_rows(options.file, options.columns, check, fields=named, label="calibrate")
        rows = list(good_rows(islice(read, options.limit), bad))
        if options.dry_run or not rows:
            warn(f"would calibrate on {len(rows):,} documents")
            return bad.exit_code()
        work = None
        if options.model is not None and schema is not None:
            rows, work = _sampled_documents(options, models, schema, rows, bad)
        elif options.m is not None:
            if (fewest := min(row.m for row in rows)) < options.m:
                raise UsageError(f"--m {options.m}: a row has {fewest} samples. Pass at most {fewest}")
            rows = [row.take(range(options.m)) for row in rows]
        calibration = calibrate_fields(
            rows,
            opt.cluster_config(options, models.open_equivalence()),
            schema,
            answer=options.kind,
            risks=sorted({*(options.risk or ())}),
            document_risks=sorted({*(options.document_risk or ())}),
            delta=0.05 if options.delta is None else options.delta,
            by=options.by,
            seed=options.seed or 0,
        )
        path = calibration.save_pretrained(options.out)
        if work is not None:
            if options.keep_samples:
                write_rows(options.out / SAMPLES, (row.json for row in rows))
            work.finish()
        if not options.json and sys.stdout.isatty():
            for line in calibration.summary.splitlines():
                show(paragraph(as_sentence(line)) if line.endswith(".") else line)
            following = "measure ROWS" if options.model is None else "ask FILE --model MODEL"
            show(f"\nWritten to {path}.\nNext: semcal {following} --calibration {path.parent}")
        else:
            show(dumps({**calibration.to_report(), "path": str(path)}))
        return bad.exit_code()


def _sampled_documents(
    options: CalibrateOptions, models: opt.ModelOptions, schema: Schema, rows: Sequence[Row], bad: BadRows
) -> tuple[list[Row], UnfinishedWork]:
    sampled: list[Row] = []
    with opt.open_workers("calibrate", models, None, None) as (executor, load):
        step, made_by = opt.document_step(options, load().model, schema, options.m or 10, options.kind)
        work = open_unfinished(options.out, {**step.key(), **made_by}, fresh=options.fresh)
        with progress("calibrate", len(rows)) as update:
            blocks = Stage((step,), made_by).blocks(rows, BLOCK_QUESTIONS)
            for block in run_stages(
                blocks, workers=executor, store=work, progress=update, on_bad_row=bad.report
            ):
                sampled += block.rows
                for row, reason in block.failures:
                    bad.report(row.error(reason))
    return sampled, work


def _save(calibration: Calibration, options: CalibrateOptions) -> Path:
    out = options.out
    calibration = calibration if options.keep_samples else replace(calibration, samples=None)
    path = calibration.save_pretrained(out)
    if calibration.recalibrator is None:
        shutil.rmtree(out / RECALIBRATOR, ignore_errors=True)
    if calibration.samples is None and Path(options.file).resolve() != (out / SAMPLES).resolve():
        (out / SAMPLES).unlink(missing_ok=True)
    return path


def holds_kept_samples(file: str | Path) -> bool:
    """Return whether a file begins with a row that `semcal calibrate` sampled."""
    first = _first_row(file)
    with suppress(InputError):
        return first is not None and first.sampled_by.command == "calibrate"
    return False


def output_of(out: Path) -> Output:
    """Return the directory of the calibration; --overwrite replaces only another calibration.

    A directory with only samples of this command counts as its own.
    """
    output, samples = folder_output(out, "calibration"), out / SAMPLES
    if (of_fields := folder_output(out, "field-calibration")).replaceable:
        return of_fields
    begun = out.is_dir() and own_files(out) == [samples] and holds_kept_samples(samples)
    return replace(output, begun=True) if begun else output


def _with_labels(options: CalibrateOptions) -> tuple[CalibrateOptions, Calibration, ProductionLabels]:
    """Return the settings to learn a calibration again, the calibration, and the labels that it can use."""
    from semcal.calibration.compatibility import equivalence_of
    from semcal.calibration.production import labels_for, read_logs

    _check_kept(options, BESIDE_ADD, "cannot change when --add learns a calibration again")
    options = opt.without_settings(options, "answers_among", "equivalence", "risk", "delta")
    folder = Path(options.file)
    folder = folder.parent if folder.name == SAMPLES else folder
    calibration = opt.open_calibration(str(folder))
    if calibration.score is not None:
        raise UsageError(
            f"--add: {folder} calibrates the score {calibration.score.name!r}, whose rows are not kept; "
            "calibrate the old rows and the new ones in one file, or pass the new ones with --from"
        )
    if not (folder / SAMPLES).is_file():
        raise UsageError(
            f"--add: the calibration {folder} has no {SAMPLES} to add labels to; calibrate with --model and "
            "without calibration.keep_samples=false"
        )
    if options.out.resolve() == folder.resolve():
        raise UsageError(f"--out {folder} is the calibration to learn again; choose another directory")
    thresholds = calibration.all_thresholds
    grader = calibration.grader or "rules"
    learned = replace(
        options,
        file=str(folder / SAMPLES),
        answer=calibration.answer_kind,
        m=calibration.m,
        linkage=calibration.linkage,
        equivalence=str(equivalence_of(calibration, options.equivalence)),
        grader="rules" if grader == "RuleGrader" else grader,
        risk=options.risk or [threshold.risk_limit for threshold in thresholds] or None,
        delta=options.delta or sum(threshold.delta for threshold in thresholds) or None,
        feature=_features_of(calibration),
        signal=list(calibration.signals),
    )
    if options.audited and not learned.risk:
        raise UsageError("--audited requires a threshold, and the calibration has none; pass --risk")
    names = " and ".join(map(str, options.add or ()))
    labels = labels_for(
        calibration,
        read_logs(options.add or ()),
        name=names,
        threshold=bool(learned.risk),
        alone=options.audited,
    )
    _report_labels(labels, names)
    if options.audited and not labels.apart.any():
        if options.json or not sys.stdout.isatty():
            show(dumps({"missing_labels": labels.missing}))
        remedy = "omit --audited to set the threshold on the calibration's own questions"
        raise InputError(f"{labels.problems[0]}; {remedy}")
    return learned, calibration, labels


def _features_of(calibration: Calibration) -> list[str]:
    return [f"{column.name}:{'falling' if column.falling else 'rising'}" for column in calibration.columns]


def _check_kept(options: CalibrateOptions, beside: set[str], why: str) -> None:
    """Raise UsageError for an option that is not allowed `beside` --add, --from or --schema."""
    for field in fields(options):
        usual = getattr(field.default, "default", None)
        is_kept = field.name in beside or opt.is_from_file(field.name)
        if not is_kept and getattr(options, field.name) != usual:
            raise UsageError(f"{option_name(field.name)} {why}; omit it")


def _report_labels(labels: ProductionLabels, logs: str) -> None:
    used, missing = labels.record, labels.missing
    for_threshold = used.apart - used.assumed_wrong
    info(f"calibrate: {used.labeled:,} labels of {logs}, {for_threshold:,} of them for the threshold")
    for reason, count in used.left_out.items():
        info(f"calibrate: {count:,} labels are not used: {reason}")
    if missing:
        info(f"calibrate: {len(missing):,} audited replies have no label (--json lists them)")
    if missing and (count := used.assumed_wrong):
        info(f"calibrate: {count:,} of these replies are used for the threshold, where they count as wrong")


def _from_samples(
    options: CalibrateOptions,
    models: opt.ModelOptions,
    bad: BadRows,
    old: Calibration | None,
    labels: ProductionLabels | None,
) -> Calibration | None:
    """Learn from stored samples, and from added `labels` of an `old` calibration; None with --dry-run."""
    from semcal.calibration.compatibility import check_equivalence
    from semcal.calibration.learning import LearningOptions, calibrate_rows
    from semcal.calibration.samples import measure_samples, rows_at_temperatures
    from semcal.grading.grade import as_grader

    rows, score = _read_rows(options, bad)
    if score is not None:
        return _from_scores(rows, score, options, models)
    origin = _origin(rows, options, models)
    if options.dry_run:
        warn(f"would calibrate on the samples of {len(rows):,} questions")
        return None
    kept_seed = 0 if origin.provenance is None else origin.provenance.seed
    seed = kept_seed if options.seed is None else options.seed
    cluster = opt.cluster_config(options, models.open_equivalence())
    if old is not None:
        check_equivalence(old, cluster.judge, force=options.force)
        cluster = replace(cluster, merge_refusals=old.merge_refusals)
    grader = as_grader(models.open_grader(options.grader), cluster.judge)
    whole = origin.provenance is not None and not options.m and old is None
    curve = options.curve(cluster.judge, is_sampled=whole)

    def learn(progress: Callable[[int], None]) -> Calibration:
        measured = measure_samples(
            rows,
            cluster,
            m=options.m or None,
            temperatures=options.temperatures,
            answer=options.kind,
            progress=progress,
            read_by=old,
        )
        stored = rows_at_temperatures(rows, options.temperatures) if curve else None
        learning = LearningOptions(seed, old is not None, origin, labels, curve, stored)
        return calibrate_rows(measured, cluster, options.configuration(grader), learning)

    return _learned(learn, len(rows), equivalence=cluster.judge, grader=grader)


def _from_scores(
    rows: Sequence[Row], score: ScoreColumn, options: CalibrateOptions, models: opt.ModelOptions
) -> Calibration | None:
    from semcal.calibration.calibrator import calibrate_scores

    for name in ("m", "temperatures", "m_curve", "equivalence", "merge_refusals"):
        if getattr(options, name) and not opt.is_from_file(name):
            raise UsageError(f"{option_name(name)} is of samples, and the rows hold a score; omit it")
    if options.dry_run:
        warn(f"would calibrate the score {score.name!r} of {len(rows):,} rows")
        return None
    grader = None if options.grader == "rules" else models.open_grader(options.grader)
    learn = partial(calibrate_scores, rows, score, options.configuration(grader), seed=options.seed or 0)
    return _learned(lambda **_: learn(), 0, grader=grader)


def _moved(
    options: CalibrateOptions, models: opt.ModelOptions, bad: BadRows, folder: Path
) -> Calibration | None:
    """Move a calibration; None with --dry-run."""
    from semcal.calibration.calibrator import Calibrator
    from semcal.calibration.compatibility import equivalence_of

    calibration = opt.open_calibration(str(folder))
    if options.out.resolve() == folder.resolve():
        raise UsageError(f"--out {folder} is the calibration to move; choose another directory")
    judge = None
    if calibration.score is None:
        name = str(equivalence_of(calibration, options.equivalence))
        judge = replace(models, equivalence=name).open_equivalence()
    kept = replace(
        options,
        answer=calibration.answer_kind,
        score=None if calibration.score is None else calibration.score.name,
        equivalence=calibration.equivalence,
        feature=_features_of(calibration),
    )
    rows, _ = _read_rows(kept, bad)
    if options.dry_run:
        warn(f"would move the calibration {folder} to {len(rows):,} labeled rows")
        return None
    grader = None if options.grader == "rules" else models.open_grader(options.grader)
    chosen = options.configuration(grader)
    learn = partial(
        Calibrator(risks=chosen.risks, delta=chosen.delta, grader=grader).move,
        calibration,
        [row.json for row in rows],
        equivalence=judge,
        seed=options.seed or 0,
    )
    return _learned(learn, 0 if judge is None else len(rows), equivalence=judge, grader=grader)


def _read_rows(options: CalibrateOptions, bad: BadRows) -> tuple[list[Row], ScoreColumn | None]:
    """Return the rows that can be used, and the column of their score; None if they hold samples."""
    from semcal.calibration.features import check_scored, find_score
    from semcal.calibration.samples import check_labelled_samples

    further = _further_check(options)
    read = open_rows(
        options.file, options.columns, lambda _: None, fields=FIELDS, label="calibrate", tables=True
    )
    lines = list(islice(read, options.limit))
    score = find_score([line for line in lines if isinstance(line, Row)], options.score)

    def check(row: Row) -> None:
        if score is None:
            check_labelled_samples(row, options.kind)
        else:
            check_scored(row, score)
        further(row)

    rows = list(good_rows(checked(lines, check), bad))
    if not rows:
        raise InputError(
            f"{options.file}: no row can be used. Stored samples need question, samples and answers; a score "
            "needs correct (--score NAME); labeled questions need --model. Name other columns with --columns"
        )
    if score is None and options.equivalence is None and any(row.has("clusters") for row in rows):
        raise UsageError(
            f"--equivalence is missing: the rows of {options.file} are already clustered, and later samples "
            "must be clustered in the same way; pass the equivalence of the rows (exact, or the NLI model)"
        )
    return rows, score


def _origin(rows: Sequence[Row], options: CalibrateOptions, models: opt.ModelOptions) -> SamplesOrigin:
    """Return the origin of stored samples, from the calibration beside them or from --model."""
    from semcal.calibration.samples import origin_of

    if options.model is None:
        return origin_of(rows, options.file, seed=options.seed)
    from semcal.recalibration.fit_data import provenance_of
    from semcal.workers import versions

    model = models.open_model()
    recalibrator, prompt = opt.open_recalibrator(model, options)
    provenance = partial(
        provenance_of,
        model,
        asking=prompt,
        data=Path(options.file).name,
        versions=versions(),
        seed=rows[0].sampled_by.seed or 0 if options.seed is None else options.seed,
    )
    info(f"calibrate: {options.file} contains samples of {model.name}; nothing is sampled again")
    fitted = recalibrator if options.recalibrator else None
    return origin_of(rows, options.file, provenance=provenance, recalibrator=fitted)


def _from_model(options: CalibrateOptions, models: opt.ModelOptions, bad: BadRows) -> Calibration | None:
    """Sample answers to labeled questions, and learn from them; None with --dry-run."""
    file = options.file
    read = read_labelled if options.kind != "given" else _read_given
    questions = read(file, options.columns, bad, limit=options.limit)
    from semcal.calibration.calibrator import CalibrationRecord, Calibrator
    from semcal.calibration.signals import asks_a_model
    from semcal.models.distribution import Temperature
    from semcal.models.sample import Sampling
    from semcal.workers import versions

    model = models.open_model()
    recalibrator, prompt = opt.open_recalibrator(model, options)
    leave_out = bad.reporter(questions)
    usable = {row.id for row in good_rows(checked(map(Row.of, questions), _further_check(options)), bad)}
    questions = [question for question in questions if question.id in usable]
    prompt, questions = prompt.settled(questions, leave_out)
    sampling = opt.sampling_config(replace(options, m=options.m or None))
    if options.dry_run:
        recalibrators = (recalibrator, *map(Temperature, sampling.temperatures[1:]))
        _plan(options, model, questions, Sampling(recalibrators, prompt, sampling))
        return None
    check_apart(questions, prompt.few_shot, roles="a few-shot example and a labeled question")
    key = {
        **asdict(sampling),
        "linkage": options.linkage,
        "merge_refusals": options.merge_refusals,
        "model": model.revision,
        "prompt": prompt.hash(model),
        "data": data_hash(questions),
        "equivalence": options.equivalence,
        "recalibrator": options.recalibrator,
    }
    work = open_unfinished(options.out, key, fresh=options.fresh)
    equivalence = models.open_equivalence()
    grader = models.open_grader(options.grader)
    record = CalibrationRecord(Path(file).name, versions(), work, leave_out)
    curve = options.curve(equivalence, is_sampled=True)
    learn = partial(
        Calibrator(options.configuration(grader), m_curve=curve, record=record).fit,
        model,
        questions,
        prompt=prompt,
        sampling=sampling,
        cluster=opt.cluster_config(options, equivalence),
        recalibrator=recalibrator if options.recalibrator else None,
    )
    passes = 2 if asks_a_model(options.signal or ()) else 1
    n_questions = passes * len(questions)  # those of signals count again
    return _learned(learn, n_questions, work, model=model, equivalence=equivalence, grader=grader)


def _plan(options: CalibrateOptions, model: Sampler, questions: Sequence[Question], plan: Sampling) -> None:
    m, temperatures = plan.config.m, plan.config.temperatures
    listed = ", ".join(f"{t:g}" for t in temperatures)
    answers = f"{m} answers to each of {len(questions):,} questions at T = {listed}"
    total = m * len(temperatures) * len(questions)
    warn(f"would sample {answers}: {total:,} answers; writes {options.out}")
    warn("\n".join(plan_sampling(model, questions, plan)))
    if options.signal:
        warn(f"would then ask the model for the signals {', '.join(options.signal)}")


def _further_check(options: CalibrateOptions) -> Callable[[Row], None]:
    """Return a check that raises InputError for an invalid feature, or a reference that is not a label."""
    from semcal.calibration.report import check_references
    from semcal.models.equivalence import AMONG, ExactMatch

    columns, equivalence = options.configuration().features, options.equivalence or ""
    among = ExactMatch.among(equivalence) if equivalence.startswith(AMONG) else None

    def check(row: Row) -> None:
        for column in columns:
            column.value(row)
        if among is not None:
            check_references(row, among)

    return check


def _read_given(
    file: str, columns: Sequence[str] | None, bad: BadRows, *, limit: int | None
) -> list[Question]:
    """Read all questions with a given answer and its correctness or references; report other rows."""
    from semcal.calibration.samples import check_given

    read = islice(open_questions(file, columns, further=OF_GIVEN), limit)
    questions = [row.to_question() for row in good_rows(checked(read, check_given), bad)]
    if not questions:
        raise InputError(f"{file}: no row can be used; add question, answer, and correct or answers")
    return questions


def _as_json(calibration: Calibration, path: Path, further: Mapping[str, object]) -> str:
    threshold = None if calibration.threshold is None else asdict(calibration.threshold)
    bands = {"thresholds": list(map(asdict, calibration.thresholds))} if calibration.thresholds else {}
    beside = {"m": calibration.m, "threshold": threshold, **bands, **further, "path": str(path)}
    return dumps({**asdict(calibration.report), **beside})


def in_words(calibration: Calibration, path: Path) -> str:
    """Return the calibration as text: thresholds, figures, the map and the next command."""
    report = calibration.report
    prose = [report.why]
    if report.base_at_one is not None:
        prose.append(f"Answers are sampled at T = {calibration.temperature:g}.")
    lines = [*threshold_lines(calibration), "", *_report_lines(report), "", *map(paragraph, prose), ""]
    if report.at_thresholds:
        table = {
            "threshold": [f"{point.threshold:.2f}" for point in report.at_thresholds],
            "answered": [f"{point.coverage:.0%}" for point in report.at_thresholds],
            "wrong": [f"{point.wrong / point.answered:.0%}" for point in report.at_thresholds],
        }
        lines += aligned([[head, *cells] for head, cells in table.items()])
        lines += ["These shares are of the labeled questions, without a promise for others.", ""]
    if report.fewer_samples is not None:
        curve = report.draws_curve
        table = {"samples": [str(point.m) for point in curve], "gain": [f"{one.gain:.3f}" for one in curve]}
        lines += aligned([[head, *cells] for head, cells in table.items()])
        lines += [paragraph(report.fewer_samples), ""]
    of_samples = "cluster ROWS | semcal measure -" if calibration.m else "measure ROWS"
    following = of_samples if calibration.provenance is None else "ask QUESTION --model MODEL"
    gap = [""] if lines[-1] else []
    lines += [*gap, f"Written to {path}.", f"Next: semcal {following} --calibration {path.parent}"]
    return "\n".join(lines)


def as_sentence(text: str) -> str:
    """Return a text with a capital letter and one full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def threshold_lines(calibration: Calibration) -> list[str]:
    """Return the promise of each threshold, and its answers to the questions that it was tested on."""
    lines = []
    tested = "held-out" if calibration.report.apart and calibration.ordering is None else "labeled"
    for one in calibration.all_thresholds:
        lines += [paragraph(as_sentence(text)) for text in (one.sentence, one.outlook) if text]
        if one.threshold is not None:
            counts = f"{one.answered:,} answered, {one.errors:,} of them wrong"
            lines.append(f"Tested on {one.n:,} {tested} questions: {counts}.")
    if calibration.ordering is not None and not calibration.report.apart:
        ranked = "the share of samples" if calibration.ordering == "E-SC" else calibration.ordering
        text = f"No label is held out: answers are ranked by {ranked}, not by the probability."
        lines.append(paragraph(text))
    if calibration.thresholds and calibration.limit is not None:
        sure = 100 * (1 - sum(one.delta for one in calibration.thresholds))
        is_strict = calibration.thresholds[0].threshold is not None
        between = "between the first and the last" if is_strict else "at or above the last one"
        lines.append(paragraph(TOGETHER.format(sure, between)))
    return lines or [paragraph("No threshold: no answer abstains. Pass --risk to set a threshold.")]


def _report_lines(report: CalibrationReport) -> list[str]:
    """Return the figures before and after calibration, out of fold."""
    base = report.base_in_words.removeprefix("the ")
    at_one = {} if report.base_at_one in (None, report.base) else {"share at T = 1": report.base_at_one}
    columns = {base: report.base, **at_one, "calibrated": report.calibrated}
    if report.moved is not None:
        columns = {base: report.base, "not moved": report.moved.unmoved, "moved": report.calibrated}
        columns["from scratch"] = report.moved.scratch
    n = report.n + report.no_answer
    lines = figure_lines({name: {"n": n, **figures} for name, figures in columns.items()}, terminal_width())
    if report.no_answer_samples:
        without = f"{report.no_answer_samples:,} samples and {report.no_answer:,} questions have no answer"
        lines.append(paragraph(f"{without}; these questions count as wrong."))
    judged = "Calibrated figures are for questions that the map has not seen."
    if report.moved is not None:
        judged = "The moved map and the map from scratch are judged on questions that they have not seen."
    return [*lines, paragraph(f"{judged} {ON_ACE}")]
