"""`semcal ask`: answer a question, or abstain, with the probability that the answer is right."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
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
    read_to_sample,
    show_first_prompt,
)
from semcal.data.question import Question
from semcal.errors import InputError, UsageError
from semcal.models.equivalence import DEFAULT, needs_no_model
from semcal.registry import option_name
from semcal.rows import NO_ANSWER, Json, Row, as_answer_kind, warn_of_cut_draws
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
class AskOptions(opt.PromptOptions):
    """The options of `semcal ask`."""

    question: str = Argument(
        metavar="QUESTION", help="A question, a file of questions {id, question}, or - for standard input."
    )
    context: str | None = Option(None, help="Passage that contains the answer (default: none).")
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
    vary: str | None = opt.VARY
    show_prompt: bool = opt.SHOW_PROMPT
    force: bool = opt.FORCE
    cache: Path | None = opt.CACHE
    out: Path | None = opt.OUT
    json: bool = opt.JSON
    device: str | None = opt.DEVICE
    nli_device: str | None = opt.NLI_DEVICE
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
        raise UsageError("--answer given: pass a file of rows with the column 'answer', or -")
    if single is None:
        read, total = counted(options.question, open_questions(options.question, options.columns))
    else:
        read, total = iter([Row.of(single)]), 1
    questions, n_blocks = opt.peek_blocks(read, BLOCK, options.limit)
    models = opt.ModelOptions.of(options, server)
    with opt.open_workers("ask", models, options.workers, n_blocks) as (executor, load):
        state = load()
        ways = _ways(options, calibration, state)
        uq = SemanticUQ(state.model, **ways[-1] | {"equivalence": state.equivalence})
        if options.show_prompt:
            return show_first_prompt(uq.model, uq.asking, questions)
        step, costs, render = AskStep(ways), Counter[str](), _render(options, titled=single is None)

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
        _report_costs(costs, state.equivalence.name, several=single is None)
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
        if not options.given(*DISTRIBUTION):
            options = replace(options, recalibrator=opt.ATLAS)
    return replace(options, equivalence=equivalence or DEFAULT), calibration


def _ask_fields(options: AskOptions, server: opt.ServerOptions, single: Question | None) -> int:
    """Sample structured answers, and add the probability of each field."""
    from semcal.calibration.fields import FieldCalibration, FieldStep

    opt.required_model(options.model)
    calibration = FieldCalibration.from_pretrained(options.calibration or "")
    if options.m not in (None, calibration.m):
        raise UsageError(f"--m: the calibration was learned with {calibration.m} samples. Omit --m")
    schema = calibration.parsed
    models = replace(opt.ModelOptions.of(options, server), equivalence=calibration.equivalence)
    read: Iterator[Row | InputError] = iter([Row.of(single)] if single is not None else ())
    if single is None:
        read = read_to_sample(options.question, options.columns, schema, label="ask")
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
    names_file = text.endswith(DATA_SUFFIXES) and not any(map(str.isspace, text))
    if names_file or not text.strip() or os.path.isdir(text):  # noqa: PTH112
        raise UsageError(f"QUESTION: {text!r} is neither a question nor a file; check the path")
    return Question(text, text, (), context)


def _calibration(options: AskOptions) -> Calibration | None:
    """Return the calibration of --calibration, or else that of the embedded model if it applies."""
    from semcal.calibration.compatibility import check_beside

    if options.calibration is not None:
        calibration = opt.open_calibration(options.calibration)
        if options.model is None and calibration.provenance is None and calibration.score is None:
            learned = f"{options.calibration} was learned from stored samples"
            raise UsageError(f"--model is missing: {learned}. Pass the model that sampled them")
        settings = options.given(*SETTINGS, *DISTRIBUTION, "compare")
        check_beside(calibration, {option_name(name): value for name, value in settings.items()})
        return calibration
    if options.model not in (None, opt.ATLAS):
        return None
    unlike = options.given(*SETTINGS, *DISTRIBUTION, "compare", "context", "answer")
    unlike |= {} if options.answer_format in (None, "auto") else {"answer_format": options.answer_format}
    unlike |= {} if options.equivalence in (None, opt.ATLAS) else {"equivalence": options.equivalence}
    if unlike:
        names = ", ".join(map(option_name, unlike))
        info(
            f"ask: the embedded calibration does not apply with {names}; the confidence is a share of samples"
        )
        return None
    return opt.open_calibration(opt.ATLAS)


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
    common = options.settings() | {"prompt": prompt, "force": options.force}
    return tuple(cast("AskKeywords", common | {"recalibrator": each}) for each in (*compared, recalibrator))


def promise(limit: Threshold) -> str:
    """Return the promise of a threshold as a sentence, or the reason why all answers abstain."""
    return limit.sentence if limit.threshold is not None else f"every answer abstains: {limit.sentence}"


def _report_costs(costs: Counter[str], equivalence: str, *, several: bool) -> None:
    warn_of_cut_draws(costs["cut"], costs["draws"], costs["none"])
    opt.report_invalid("ask", equivalence, costs)
    if several and not needs_no_model(equivalence):
        info(f"ask: {nli_cost(equivalence, costs)}")


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
    """Return the decision with the threshold; None without a threshold."""
    if record["answer"] is None:
        return f"abstained: {NO_ANSWER} was found in most samples"
    if record["abstained"] is None:
        return None
    if record["threshold"] is None:
        return "abstained: no threshold keeps the risk"
    decision = "abstained" if record["abstained"] else "answered"
    if record.get("decision") == "review":
        decision = "to be reviewed"
    return f"{decision} (threshold {record['threshold']:.2f})"
