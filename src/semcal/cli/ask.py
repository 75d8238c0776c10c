"""`semcal ask`: answer a question, or abstain, with calibrated confidence."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from typer import Argument, Option

from semcal.cli import options as opt
from semcal.cli.config_file import setting
from semcal.cli.console import as_shown, info, nli_cost
from semcal.cli.row_streams import RowResults, as_line, checked, counted, open_questions, show_first_prompt
from semcal.data.question import Question
from semcal.errors import QuestionError, RowError, UsageError
from semcal.files import writing
from semcal.models.equivalence import needs_no_model
from semcal.registry import option_name
from semcal.rows import NO_ANSWER, Json, Row, as_answer_kind, warn_of_cut_draws
from semcal.steps import Block, BlockOutcome, Stage, run_stages

if TYPE_CHECKING:
    from semcal.calibration.calibration import Calibration, Threshold
    from semcal.steps import WorkerState
    from semcal.uncertainty import AskKeywords, SemanticUQ

#: Questions of a file that are asked together.
BLOCK = 256
#: How the name of a file of questions ends.
DATA_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
#: Options of `SemanticUQ`; a calibration brings them, the distribution, and the way to compare answers.
SETTINGS = ("m", "linkage", "merge_refusals", "max_new_tokens", "measure", "abstain_below")
DISTRIBUTION = ("recalibrator", "temperature", "few_shot", "system", "template")
COMPARED = ("equivalence", "answers_among", "answer", "answer_format")


@dataclass(frozen=True)
class AskOptions:
    """The options of `semcal ask`."""

    question: str = Argument(metavar="QUESTION", help="A question, a file of questions {id, question}, or -.")
    context: str | None = Option(None, help="The passage to answer from (open book).")
    model: str | None = opt.ANSWERING_MODEL
    calibration: str | None = opt.CALIBRATION
    recalibrator: str | None = opt.RECALIBRATOR
    temperature: float | None = opt.TEMPERATURE
    equivalence: str | None = opt.EQUIVALENCE
    answers_among: str | None = opt.ANSWERS_AMONG
    linkage: str | None = setting(
        help="How equal pairs become meanings: components (by default), greedy or complete."
    )
    merge_refusals: bool | None = setting(help="Count all refusals to answer as one meaning.")
    compare: bool = Option(False, "--compare", help="Show T = 0.5 beside the fitted T.")
    answer: str | None = opt.ANSWER
    measure: str | None = Option(
        None, help="The measure that chooses the answer and is its confidence: E-SC by default."
    )
    abstain_below: float | None = Option(
        None, min=0, max=1, help="The threshold: abstain when the confidence is lower."
    )
    m: int | None = Option(
        None, "--m", callback=opt.countable, help="Answers to sample for each question: 10 by default."
    )
    seed: int = opt.RARE_SEED
    max_new_tokens: int | None = opt.MAX_NEW_TOKENS
    answer_format: str | None = opt.ANSWER_FORMAT
    few_shot: Path | None = opt.FEW_SHOT
    system: str | None = opt.SYSTEM
    template: Path | None = opt.TEMPLATE
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
        """Return the keywords of `SemanticUQ` that stand for options of sampling and measuring."""
        kind = None if self.answer is None else as_answer_kind(self.answer)
        names = ("seed", "answer_format", *SETTINGS)
        return {name: getattr(self, name) for name in names} | {"answer": kind}

    def given(self, *names: str) -> dict[str, Any]:
        """Return the options that were given, with their values."""
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None and value is not False}


def command(options: AskOptions, server: opt.ServerOptions) -> int:
    """Answer a question, or abstain, with the probability that the answer is right.

    Without --calibration the confidence is the answer's share of the draws, which is no probability.
    Without --model the embedded Atlas model answers, with its own calibration.
    """
    single = _single(options)
    # only now, as it takes seconds
    from semcal.calibration.compatibility import equivalence_of
    from semcal.uncertainty import AskStep

    if options.model is None:
        info("ask: the embedded model of an invented world answers; name yours with --model")
        options = replace(options, model=opt.ATLAS)
    if options.calibration is not None:
        options = opt.without_settings(options, *SETTINGS, *DISTRIBUTION, *COMPARED)
    options = replace(options, equivalence=opt.among_labels(options.equivalence, options.answers_among))
    calibration = _calibration(options)
    if single is not None and "given" in (options.answer, calibration and calibration.answer_kind):
        raise UsageError(
            "a given answer is read from 'answer' of a row; give a file of questions with it, or -"
        )
    equivalence = options.equivalence
    if calibration is not None:
        equivalence = str(equivalence_of(calibration, equivalence))
    elif options.model == opt.ATLAS:
        equivalence = equivalence or opt.ATLAS
        options = replace(options, recalibrator=_embedded(options))
    options = replace(options, equivalence=opt.equivalence_name(equivalence))
    questions, total = _questions(options, single)
    questions, n_blocks = opt.peek_blocks(questions, BLOCK, options.limit)
    models = opt.ModelOptions.of(options, server)
    with opt.open_workers("ask", models, options.workers, n_blocks) as (executor, load):
        state = load()
        ways = _ways(options, calibration, state)
        step, costs, render = AskStep(ways), Counter[str](), _render(options, titled=single is None)
        if options.show_prompt:
            uq = _asker(state, ways[-1])
            return show_first_prompt(uq.model, uq.asking, questions)
        check = _checker(state, ways[-1], calibration)
        if single is not None:
            for block in run_stages([Block(Stage((step,)), [Row.of(single)])], workers=executor):
                costs.update(block.costs)
                _write_answer(block, options.out, render)
            _tell_costs(costs, state, several=False)
            return 0
        with RowResults("ask", options.out, limit=options.limit, total=total, render=render) as results:
            for block in results.blocks(checked(questions, check), step, workers=executor, cut=BLOCK):
                results.write(block)
                costs.update(block.costs)
        _tell_costs(costs, state, several=True)
        return results.bad.exit_code()


def _single(options: AskOptions) -> Question | None:
    """The question that was given; None if it is a file of questions, or stdin."""
    text, context = options.question, options.context
    if text == "-" or os.path.isfile(text):  # noqa: PTH113 - a long question is no path, and no error
        if context is not None:
            raise UsageError("--context goes with a question; rows bring their own 'context'")
        return None
    if os.path.isdir(text):  # noqa: PTH112
        raise UsageError(f"{text!r} is a folder; name a file of questions in it")
    if not text.strip():
        raise UsageError("the question is empty")
    if text.endswith(DATA_SUFFIXES) and not any(map(str.isspace, text)):
        raise UsageError(f"there is no file {text!r} (and a question has more than one word)")
    return Question(text, text, (), context)


def _questions(options: AskOptions, single: Question | None) -> tuple[Iterator[Row | RowError], int | None]:
    """The question that was given, or those of the file; and how many they are."""
    if single is None:
        return counted(options.question, open_questions(options.question, options.columns, label="ask"))
    if options.columns:
        raise UsageError("--columns is for a file of questions; leave it out")
    return iter([Row.of(single)]), 1


def _calibration(options: AskOptions) -> Calibration | None:
    """Return the calibration that is named, or that of the embedded model (closed book) if it holds."""
    from semcal.calibration.compatibility import check_beside

    if options.calibration is not None:
        if options.compare:
            raise UsageError("--compare is of a temperature, and a calibration has its own; leave one out")
        calibration = opt.open_calibration(options.calibration)
        settings = options.given(*SETTINGS, *DISTRIBUTION)
        check_beside(calibration, {option_name(name): value for name, value in settings.items()})
        return calibration
    if options.model != opt.ATLAS:
        return None
    unlike = options.given(*SETTINGS, *DISTRIBUTION, "compare", "context", "answer")
    unlike.pop("abstain_below", None)
    unlike |= {} if options.answer_format in (None, "auto") else {"answer_format": options.answer_format}
    unlike |= {} if options.equivalence in (None, opt.ATLAS) else {"equivalence": options.equivalence}
    if unlike:
        names = ", ".join(map(opt.name_of, unlike))
        info(f"ask: the embedded calibration does not hold with {names}; the confidence is a share")
        return None
    calibration = opt.open_calibration(opt.ATLAS)
    return calibration if options.abstain_below is None else replace(calibration, threshold=None)


def _embedded(options: AskOptions) -> str | None:
    """The recalibrator that comes with the embedded model, unless the options name another distribution."""
    if options.recalibrator is not None or options.temperature is not None:
        return options.recalibrator
    if options.given("few_shot", "system", "template"):
        info("ask: the embedded temperature goes with its own prompt; with yours T = 1 is used")
        return None
    return opt.ATLAS


def _ways(
    options: AskOptions, calibration: Calibration | None, state: WorkerState
) -> tuple[AskKeywords, ...]:
    """What `SemanticUQ` is given to answer each question: once, or first at T = 0.5 (--compare)."""
    if calibration is not None:
        from semcal.calibration.compatibility import is_made_for

        for line in calibration.report.first:
            info(f"ask: {line}")
        if calibration.threshold is not None and is_made_for(calibration, state.model):
            for threshold in calibration.all_thresholds:
                info(f"ask: {promise(threshold)}")
        brought = {name: getattr(options, name) for name in ("few_shot", "system", "template", "force")}
        return (cast("AskKeywords", options.settings() | brought | {"calibration": calibration}),)
    from semcal.models.distribution import SE, temperature_of

    method, asking = opt.open_recalibrator(state.model, options)
    prompt = {"prompt": asking, "force": options.force}
    if not asking.few_shot:
        info("ask: no few-shot examples: models answer in sentences without them; give some ten (--few-shot)")
    usual = (SE(),) if options.compare and temperature_of(method) != SE().temperature else ()
    if options.compare and not usual:
        info("ask: T = 0.5 is asked for already; there is nothing to compare it with")
    return tuple(
        cast("AskKeywords", options.settings() | prompt | {"recalibrator": recalibrator})
        for recalibrator in (*usual, method)
    )


def promise(limit: Threshold) -> str:
    """What the threshold of a calibration promises; where it has none, why all abstain, and what helps."""
    if limit.threshold is not None:
        return limit.sentence
    needed = limit.questions_needed
    more = "" if needed is None else f"about {needed} labelled questions kept apart in place of {limit.n}, "
    return (
        f"every answer abstains: no threshold of the calibration was shown to keep the wrong ones to "
        f"{100 * limit.risk_limit:.3g} %; calibrate again with {more}{'or ' * bool(more)}a larger --risk, or "
        "without --risk for probabilities alone"
    )


def _checker(models: WorkerState, way: AskKeywords, calibration: Calibration | None) -> Callable[[Row], None]:
    """Refuse contradictory options now, and return what refuses a row that cannot be answered."""
    from semcal.calibration.compatibility import check_unanswered
    from semcal.models.sample import check_question

    uq = _asker(models, way)

    def check(row: Row) -> None:
        if calibration is not None:
            check_unanswered(row, calibration)
        check_question(uq.model, row.to_question(), uq.sampling)

    return check


def _asker(models: WorkerState, way: AskKeywords) -> SemanticUQ:
    from semcal.uncertainty import SemanticUQ

    common: AskKeywords = {"equivalence": models.equivalence}
    return SemanticUQ(models.model, **way | common)


def _write_answer(block: BlockOutcome, out: Path | None, render: Callable[[Row], str]) -> None:
    """Write the answers to one question; QuestionError if there are none."""
    for row, reason in block.failures:
        raise QuestionError(row.id, reason)
    with writing(out) as handle:
        handle.writelines(render(row) + "\n" for row in block.rows)


def _tell_costs(costs: Counter[str], state: WorkerState, *, several: bool) -> None:
    """Say how many samples were cut or have no answer, and the cost of clustering."""
    warn_of_cut_draws(costs["cut"], costs["draws"], costs["none"])
    if costs["without"]:
        info(f"ask: questions whose most frequent meaning is {NO_ANSWER!r}: {costs['without']}")
    opt.tell_invalid("ask", state.equivalence.name, costs)
    if several and not needs_no_model(state.equivalence.name):
        info(f"ask: {nli_cost(state.equivalence.name, costs)}")


def _render(options: AskOptions, *, titled: bool) -> Callable[[Row], str]:
    people = not (options.json or options.out) and sys.stdout.isatty()
    return (lambda record: as_shown(_page(record, titled=titled))) if people else as_line


def _page(record: Json, *, titled: bool = False) -> str:
    """One answer as a person reads it: the answer with its confidence, then a line for each meaning."""
    raw = record.get("map", "").startswith("none") and record["confidence"] == record["score"]
    calibrated = record["measure"] == "Calibrated" and not raw
    kind = "probability" if calibrated else "share"
    wide = min(48, max(len("(empty answer)"), *(len(_named(one["text"])) for one in record["meanings"])))
    confidence = "undefined" if (p := record["confidence"]) is None else f"{p:.2f}"
    verdict = (
        f"right with probability {confidence}"
        if calibrated
        else f"share {confidence} (as good as any map that was learned)"
        if raw
        else f"share {confidence} ({record['measure']}, not calibrated)"
    )
    method = "" if record["method"] == "T" else f", {record['method']}"
    method += " by sgd" if (record["method"], record["solver"]) == ("TS", "sgd") else ""
    method += "" if record["temperature"] is None else f", T = {record['temperature']:.2f}"
    entropy = "undefined" if record["entropy"] is None else f"{record['entropy']:.2f} nats"
    head = _named(record["answer"]) if record["answer"] is None else f"{_named(record['answer'])}   {verdict}"
    return "\n".join(
        [
            *([Row(record).title] if titled else []),
            head,
            *_verdict(record),
            f"{record['explanation']}.",
            "",
            f"  {'meaning':<{wide}} {'samples':>7} {kind:>11}",
            *(
                f"  {_named(meaning['text'])[:wide]:<{wide}} {len(meaning['samples']):>7} "
                f"{'–' if meaning[kind] is None else format(meaning[kind], '.2f'):>11}"
                for meaning in record["meanings"]
            ),
            "",
            f"  {len(record['samples'])} samples{method}; semantic entropy {entropy}",
            "",
        ]
    )


def _named(text: str | None) -> str:
    """The text of a meaning as a person reads it."""
    return f"({NO_ANSWER})" if text is None else text or "(empty answer)"


def _verdict(record: Json) -> Iterator[str]:
    """Whether the answer is given, where there is a threshold."""
    share, p, threshold = "", record["confidence"], record["threshold"]
    if record["answer"] is None:
        yield f"abstained: {NO_ANSWER} was found in most samples"
    elif record["abstained"] and threshold is None:
        yield "abstained: no threshold was found that holds the risk"
    elif record["abstained"] and p is None:
        yield "abstained: the confidence is undefined"
    elif record["abstained"] is not None:
        if record.get("map", "").startswith("constant"):
            share, p = "share ", record["score"]
        review = record.get("decision") == "review"
        digits = next((n for n in range(2, 16) if f"{p:.{n}f}" != f"{threshold:.{n}f}"), 2)
        verdict = ("abstained", "is below") if record["abstained"] else ("answered", "reaches")
        line = f"{share}{p:.{digits}f} {verdict[1]} the threshold {threshold:.{digits}f}"
        yield f"to be reviewed: {line}, and not {_strictest(record)}" if review else f"{verdict[0]}: {line}"


def _strictest(record: Json) -> str:
    band = record["thresholds"][0]
    if band["threshold"] is None:
        return f"one of risk {band['risk']:g}, for which none was found"
    return f"{band['threshold']:.2f}, that of risk {band['risk']:g}"
