"""`semcal ask`: answer a question, or abstain, with the probability that the answer is right."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from typer import Argument, Option

from semcal.cli import options as opt
from semcal.cli.config_file import setting
from semcal.cli.console import as_shown, info, nli_cost, paragraph
from semcal.cli.row_streams import (
    RowResults,
    as_line,
    checked,
    counted,
    open_questions,
    open_rows,
    show_first_prompt,
)
from semcal.data.question import Question
from semcal.errors import InputError, QuestionError, RowError, UsageError
from semcal.files import writing
from semcal.models.equivalence import needs_no_model
from semcal.registry import option_name
from semcal.rows import NO_ANSWER, Json, Row, as_answer_kind, warn_of_cut_draws
from semcal.steps import Block, Stage, run_stages
from semcal.text import aligned

if TYPE_CHECKING:
    from semcal.calibration.calibration import Calibration, Threshold
    from semcal.steps import WorkerState
    from semcal.uncertainty import AskKeywords

#: Number of questions of a file that are answered together.
BLOCK = 256
#: Largest number of letters of a meaning on a terminal.
LONGEST = 48
#: Suffixes of files of questions.
DATA_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
#: Options of `SemanticUQ` that a calibration sets, in addition to recalibrator and equivalence.
SETTINGS = ("m", "linkage", "merge_refusals", "max_new_tokens", "measure", "abstain_below")
DISTRIBUTION = ("recalibrator", "temperature", "few_shot", "system", "template", "vary")
COMPARED = ("equivalence", "answers_among", "answer", "answer_format")


@dataclass(frozen=True)
class AskOptions:
    """The options of `semcal ask`."""

    question: str = Argument(
        metavar="QUESTION", help="A question, a file of questions {id, question}, or - for standard input."
    )
    context: str | None = Option(None, help="Passage that contains the answer (default: none).")
    model: str | None = opt.MODEL
    calibration: str | None = opt.CALIBRATION
    recalibrator: str | None = opt.RECALIBRATOR
    temperature: float | None = opt.TEMPERATURE
    equivalence: str | None = opt.EQUIVALENCE
    answers_among: str | None = opt.ANSWERS_AMONG
    linkage: str | None = setting(help=opt.LINKAGE.help)
    merge_refusals: bool | None = setting(help=opt.MERGE_REFUSALS.help)
    compare: bool = Option(False, "--compare", help="Also show the answer at T = 0.5.")
    answer: str | None = opt.ANSWER
    fields: str | None = opt.FIELDS
    measure: str | None = Option(
        None, metavar="MEASURE", help="Measure that chooses the answer and is its confidence (default: E-SC)."
    )
    abstain_below: float | None = Option(
        None,
        min=0,
        max=1,
        help="Confidence below which no answer is given (default: the threshold of the calibration).",
    )
    m: int | None = Option(
        None,
        callback=opt.countable,
        help="Number of answers to sample for each question (default: 10).",
    )
    seed: int = opt.RARE_SEED
    max_new_tokens: int | None = opt.MAX_NEW_TOKENS
    answer_format: str | None = opt.ANSWER_FORMAT
    few_shot: Path | None = opt.FEW_SHOT
    system: str | None = opt.SYSTEM
    template: Path | None = opt.TEMPLATE
    vary: str | None = opt.VARY
    show_prompt: bool = opt.SHOW_PROMPT
    force: bool = opt.FORCE
    cache: Path | None = opt.CACHE
    columns: list[str] | None = opt.COLUMNS
    limit: int | None = opt.LIMIT
    out: Path | None = opt.OUT
    overwrite: bool = opt.OVERWRITE
    json: bool = opt.JSON
    device: str | None = opt.DEVICE
    nli_device: str | None = opt.NLI_DEVICE
    dtype: str | None = opt.DTYPE
    workers: int | None = opt.WORKERS
    memory: str | None = opt.MEMORY

    def settings(self) -> dict[str, Any]:
        """Return the keywords of `SemanticUQ` for sampling and measuring."""
        kind = None if self.answer is None else as_answer_kind(self.answer)
        names = ("seed", "answer_format", *SETTINGS)
        return {name: getattr(self, name) for name in names} | {"answer": kind}

    def given(self, *names: str) -> dict[str, Any]:
        """Return the options that were given, with their values."""
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None and value is not False}


def command(options: AskOptions, server: opt.ServerOptions) -> int:
    """Answer a question, or abstain, with the probability that the answer is right.

    Without --calibration, the confidence is the share of samples with the meaning of the answer. This share
    is not a probability. Without --model, the embedded Atlas model answers, with its own calibration.
    """
    single = _single(options)
    if options.calibration is not None and opt.holds_field_calibration(options.calibration):
        return _ask_fields(options, server, single)
    from semcal.calibration.compatibility import check_unanswered
    from semcal.calibration.watch import find_shift
    from semcal.models.sample import check_question
    from semcal.uncertainty import AskStep, SemanticUQ

    options, calibration = _with_calibration(options)
    if single is not None and "given" in (options.answer, calibration and calibration.answer_kind):
        raise UsageError(
            "--answer given requires rows with the column 'answer'; pass a file of questions, or -"
        )
    read: Iterator[Row | RowError] = iter([] if single is None else [Row.of(single)])
    total: int | None = 1
    if single is None:
        read, total = counted(
            options.question, open_questions(options.question, options.columns, label="ask")
        )
    questions, n_blocks = opt.peek_blocks(read, BLOCK, options.limit)
    models = opt.ModelOptions.of(options, server)
    with opt.open_workers("ask", models, options.workers, n_blocks) as (executor, load):
        state = load()
        ways = _ways(options, calibration, state)
        uq = SemanticUQ(state.model, **ways[-1] | {"equivalence": state.equivalence})
        if options.show_prompt:
            return show_first_prompt(uq.model, uq.asking, questions)
        step, costs, render = AskStep(ways), Counter[str](), _render(options, titled=single is None)
        if single is not None:
            for block in run_stages([Block(Stage((step,)), [Row.of(single)])], workers=executor):
                for row, reason in block.failures:
                    raise QuestionError(row.id, reason)
                with writing(options.out) as handle:
                    handle.writelines(render(row) + "\n" for row in block.rows)
                _report_costs(Counter(block.costs), state, several=False)
            return 0

        def check(row: Row) -> None:
            if calibration is not None:
                check_unanswered(row, calibration)
            check_question(uq.model, row.to_question(), uq.sampling)

        found: list[float | None] = []
        with RowResults("ask", options.out, limit=options.limit, total=total, render=render) as results:
            for block in results.blocks(checked(questions, check), step, workers=executor, cut=BLOCK):
                results.write(block)
                costs.update(block.costs)
                found += [row["confidence"] for row in block.rows if "measure" in row]
        _report_costs(costs, state, several=True)
        if calibration is not None and (shift := find_shift(calibration, found)):
            info(f"ask: {shift}")
        return results.bad.exit_code()


def _with_calibration(options: AskOptions) -> tuple[AskOptions, Calibration | None]:
    """Return the options, completed by the calibration or for the embedded model, and the calibration."""
    from semcal.calibration.compatibility import equivalence_of

    if options.calibration is not None:
        options = opt.without_settings(options, *SETTINGS, *DISTRIBUTION, *COMPARED)
    options = replace(options, equivalence=opt.among_labels(options.equivalence, options.answers_among))
    calibration = _calibration(options)
    if options.model is None:
        info("ask: the embedded model, which knows a fictional world, answers; pass your model with --model")
        options = replace(options, model=opt.ATLAS)
    equivalence = options.equivalence
    if calibration is not None:
        equivalence = str(equivalence_of(calibration, equivalence))
    elif options.model == opt.ATLAS:
        equivalence = equivalence or opt.ATLAS
        options = replace(options, recalibrator=_embedded(options))
    return replace(options, equivalence=opt.equivalence_name(equivalence)), calibration


def _ask_fields(options: AskOptions, server: opt.ServerOptions, single: Question | None) -> int:
    """Sample structured answers, and add the probability of each field."""
    from semcal.calibration.fields import FieldCalibration, FieldStep
    from semcal.fields.rows import check_to_sample

    opt.required_model(options.model)
    calibration = FieldCalibration.from_pretrained(options.calibration or "")
    if options.m not in (None, calibration.m):
        raise UsageError(f"--m: the calibration was learned with {calibration.m} samples. Omit --m")
    schema = calibration.parsed
    models = replace(opt.ModelOptions.of(options, server), equivalence=calibration.equivalence)
    check = partial(check_to_sample, schema)
    read: Iterator[Row | InputError] = iter([Row.of(single)] if single is not None else ())
    if single is None:
        names = ("id", "question", "context")
        read = open_rows(options.question, options.columns, check, fields=names, label="ask")
    rows, n_blocks = opt.peek_blocks(read, BLOCK, options.limit)
    with opt.open_workers("ask", models, options.workers, n_blocks) as (executor, load):
        model = load().model
        step, _ = opt.document_step(options, model, schema, calibration.m, calibration.answer_kind)
        steps = step, FieldStep(calibration, accepted_only=opt.accepted_only(options.fields))
        with RowResults("ask", options.out, limit=options.limit) as results:
            for block in results.blocks(rows, *steps, workers=executor, cut=BLOCK):
                results.write(block)
        return results.bad.exit_code()


def _single(options: AskOptions) -> Question | None:
    """Return the question of the command line; None if it is a file of questions or standard input."""
    text, context = options.question, options.context
    if text == "-" or os.path.isfile(text):  # noqa: PTH113 - a long question is not an error
        if context is not None:
            raise UsageError("--context requires a question; put the column 'context' into the rows instead")
        return None
    if os.path.isdir(text):  # noqa: PTH112
        raise UsageError(f"QUESTION: {text!r} is a folder; pass a question or a file of questions")
    if not text.strip():
        raise UsageError("QUESTION is empty; pass a question or a file of questions")
    if text.endswith(DATA_SUFFIXES) and not any(map(str.isspace, text)):
        raise UsageError(f"QUESTION: the file {text!r} does not exist; check the path")
    if options.columns:
        raise UsageError("--columns requires a file of questions; omit it for one question")
    return Question(text, text, (), context)


def _calibration(options: AskOptions) -> Calibration | None:
    """Return the calibration of --calibration, or else that of the embedded model if it applies."""
    from semcal.calibration.compatibility import check_beside

    if options.calibration is not None:
        if options.compare:
            raise UsageError("--compare and --calibration exclude each other; omit one")
        calibration = opt.open_calibration(options.calibration)
        if options.model is None and calibration.provenance is None and calibration.score is None:
            learned = f"{options.calibration} was learned from stored samples"
            raise UsageError(f"--model is missing: {learned}. Pass the model that sampled them")
        settings = options.given(*SETTINGS, *DISTRIBUTION)
        check_beside(calibration, {option_name(name): value for name, value in settings.items()})
        return calibration
    if options.model not in (None, opt.ATLAS):
        return None
    unlike = options.given(*SETTINGS, *DISTRIBUTION, "compare", "context", "answer")
    unlike.pop("abstain_below", None)
    unlike |= {} if options.answer_format in (None, "auto") else {"answer_format": options.answer_format}
    unlike |= {} if options.equivalence in (None, opt.ATLAS) else {"equivalence": options.equivalence}
    if unlike:
        names = ", ".join(map(opt.name_of, unlike))
        info(
            f"ask: the embedded calibration does not apply with {names}; the confidence is a share of samples"
        )
        return None
    calibration = opt.open_calibration(opt.ATLAS)
    return calibration if options.abstain_below is None else replace(calibration, threshold=None)


def _embedded(options: AskOptions) -> str | None:
    """Return the recalibrator of the embedded model, unless the options set another distribution."""
    if options.recalibrator is not None or options.temperature is not None:
        return options.recalibrator
    if options.given("few_shot", "system", "template", "vary"):
        info("ask: the embedded temperature applies to its own prompt only; T = 1 is used with your prompt")
        return None
    return opt.ATLAS


def _ways(
    options: AskOptions, calibration: Calibration | None, state: WorkerState
) -> tuple[AskKeywords, ...]:
    """Return keywords of `SemanticUQ` for each answer to a question: one, or first at T = 0.5 (--compare)."""
    if calibration is not None:
        if not options.force:  # a promise is of the calibration's model and prompt alone
            for threshold in calibration.all_thresholds:
                info(f"ask: {promise(threshold)}")
        brought = {
            name: getattr(options, name) for name in ("few_shot", "system", "template", "vary", "force")
        }
        return (cast("AskKeywords", options.settings() | brought | {"calibration": calibration}),)
    from semcal.models.distribution import SE, temperature_of

    recalibrator, prompt = opt.open_recalibrator(state.model, options)
    if not prompt.few_shot:
        info(
            "ask: without few-shot examples models answer in sentences; pass about ten examples (--few-shot)"
        )
    compared = (SE(),) if options.compare and temperature_of(recalibrator) != SE().temperature else ()
    if options.compare and not compared:
        info("ask: --compare has no effect, since the temperature is 0.5 already")
    common = options.settings() | {"prompt": prompt, "force": options.force}
    return tuple(cast("AskKeywords", common | {"recalibrator": each}) for each in (*compared, recalibrator))


def promise(limit: Threshold) -> str:
    """Return the promise of a threshold as a sentence, or reason and remedy if all answers abstain."""
    from semcal.metrics.thresholds import tested_units

    if limit.threshold is not None:
        return limit.sentence
    needed, (n, units) = limit.questions_needed, tested_units(limit, limit.n)
    more = "" if needed is None else f"about {needed:,} {units} instead of {n:,}, or "
    return (
        f"every answer abstains: no threshold was shown to keep at most {100 * limit.risk_limit:.3g}% of the "
        f"answers wrong; calibrate again with {more}a larger --risk, or without --risk for probabilities "
        "alone"
    )


def _report_costs(costs: Counter[str], state: WorkerState, *, several: bool) -> None:
    warn_of_cut_draws(costs["cut"], costs["draws"], costs["none"])
    if costs["without"]:
        info(f"ask: {NO_ANSWER!r} is the most frequent meaning of {costs['without']:,} questions")
    opt.report_invalid("ask", state.equivalence.name, costs)
    if several and not needs_no_model(state.equivalence.name):
        info(f"ask: {nli_cost(state.equivalence.name, costs)}")


def _render(options: AskOptions, *, titled: bool) -> Callable[[Row], str]:
    people = not (options.json or options.out) and sys.stdout.isatty()
    return (lambda record: as_shown(_page(record, titled=titled))) if people else as_line


def _page(record: Json, *, titled: bool = False) -> str:
    """Return one answer as text: answer, confidence, decision and reason, then a line for each meaning."""
    raw = record.get("map", "").startswith("none") and record["confidence"] == record["score"]
    calibrated = record["measure"] == "Calibrated" and not raw
    confidence = "undefined" if (p := record["confidence"]) is None else f"{p:.2f}"
    lines = {"answer": _named(record["answer"])}
    if record["answer"] is not None and calibrated:
        lines["probability"] = f"{confidence} that the answer is right"
    elif record["answer"] is not None:
        reason = "no learned map was better" if raw else f"{record['measure']}, not calibrated"
        lines["confidence"] = f"{confidence}, the share of samples ({reason})"
    if (decision := decision_of(record)) is not None:
        lines["decision"] = decision
    lines["why"] = f"{record['explanation']}."
    wide = max(map(len, lines)) + 2
    kind = "probability" if calibrated else "share"
    meanings = [["meaning", "samples", kind]]
    for meaning in record["meanings"]:
        share = "–" if meaning[kind] is None else f"{meaning[kind]:.2f}"
        meanings.append([_named(meaning["text"])[:LONGEST], str(len(meaning["samples"])), share])
    method = "" if record["method"] == "T" else f", {record['method']}"
    method += " by sgd" if (record["method"], record["solver"]) == ("TS", "sgd") else ""
    method += "" if record["temperature"] is None else f", T = {record['temperature']:.2f}"
    entropy = "undefined" if record["entropy"] is None else f"{record['entropy']:.2f} nats"
    return "\n".join(
        [
            *([Row(record).title] if titled else []),
            *(paragraph(f"{name:<{wide}}{text}", indent=" " * wide) for name, text in lines.items()),
            "",
            *(f"  {line}" for line in aligned(meanings)),
            "",
            f"  {len(record['samples'])} samples{method}; semantic entropy {entropy}",
            "",
        ]
    )


def _named(text: str | None) -> str:
    return f"({NO_ANSWER})" if text is None else text or "(empty answer)"


def decision_of(record: Mapping[str, Any]) -> str | None:
    """Return the decision with its reason; None without a threshold."""
    share, p, threshold = "", record["confidence"], record["threshold"]
    if record["answer"] is None:
        return f"abstained: {NO_ANSWER} was found in most samples"
    if record["abstained"] is None:
        return None
    if record["abstained"] and threshold is None:
        return "abstained: no threshold keeps the risk"
    if record["abstained"] and p is None:
        return "abstained: the confidence is undefined"
    if record.get("map", "").startswith("constant"):
        share, p = "share of samples ", record["score"]
    digits = next((n for n in range(2, 16) if f"{p:.{n}f}" != f"{threshold:.{n}f}"), 2)
    verdict = ("abstained", "is below") if record["abstained"] else ("answered", "reaches")
    line = f"{share}{p:.{digits}f} {verdict[1]} the threshold {threshold:.{digits}f}"
    if (p < threshold) != record["abstained"]:  # a feature is compared, and p only shown
        line = f"its score {verdict[1]} the threshold of scores, which decides; its probability is {p:.2f}"
    if record.get("decision") != "review":
        return f"{verdict[0]}: {line}"
    strict, risk = record["thresholds"][0]["threshold"], f"for risk {record['thresholds'][0]['risk']:g}"
    lacking = (
        f"a threshold {risk}, which has none" if strict is None else f"the threshold {strict:.2f} {risk}"
    )
    return f"to be reviewed: {line}, but not {lacking}"
