"""`semcal ask`: answer a question, or abstain, with calibrated confidence."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from semcal.cli import options as opt
from semcal.cli.commands.calibrate import ModelOption
from semcal.cli.console import NLICost, as_shown, info, spending
from semcal.cli.executors import choose_workers, open_executor, peeked
from semcal.cli.options import NO_SERVER, ServerOptions, server_settings
from semcal.cli.row_commands import as_line, checked, counted, open_questions, run_rows
from semcal.data.question import Question
from semcal.errors import QuestionError, RowError, UsageError
from semcal.files import writing
from semcal.rows import Row, warn_of_cut_draws
from semcal.steps import run_steps

if TYPE_CHECKING:
    from semcal.calibration.calibrated import Calibration, Threshold
    from semcal.recalibration.attentive import AnyRecalibrator
    from semcal.steps import WorkerState
    from semcal.workers import Executor

#: Questions of a file that are asked together.
BLOCK = 256
#: What is said where several meanings share the first place.
_DISAGREE = "the draws do not agree on any answer: {} meanings are equally frequent"
#: How the name of a file of questions ends.
DATA_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")

QuestionArgument = Annotated[
    str, typer.Argument(metavar="QUESTION", help="A question, a file of questions {id, question}, or -.")
]
ContextOption = Annotated[str | None, typer.Option(help="The passage to answer from (open book).")]
CompareOption = Annotated[bool, typer.Option("--compare", help="Show T = 0.5 beside the fitted T.")]
MeasureOption = Annotated[
    str | None,
    typer.Option(help="The measure that chooses the answer and is its confidence: E-SC by default."),
]
AbstainOption = Annotated[
    float | None, typer.Option(min=0, max=1, help="The threshold: abstain when the confidence is lower.")
]
SamplesOption = Annotated[
    int | None,
    typer.Option("--m", callback=opt.countable, help="Answers to sample for each question: 10 by default."),
]
DecideOption = Annotated[
    bool,
    typer.Option("--decide", help="Stop sampling as soon as the rest cannot change answering or abstaining."),
]
LinkageOption = Annotated[str | None, typer.Option(help="components (by default), greedy or complete.")]


def command(
    question: QuestionArgument,
    context: ContextOption = None,
    model: ModelOption = None,
    calibration: opt.CalibrationOption = None,
    recalibrator: opt.RecalibratorOption = None,
    temperature: opt.TemperatureOption = None,
    equivalence: opt.EquivalenceOption = None,
    linkage: LinkageOption = None,
    compare: CompareOption = False,
    measure: MeasureOption = None,
    abstain_below: AbstainOption = None,
    decide: DecideOption = False,
    m: SamplesOption = None,
    seed: opt.SeedOption = 0,
    max_new_tokens: opt.MaxNewTokensOption = None,
    few_shot: opt.FewShotOption = None,
    force: opt.ForceOption = False,
    cache: opt.CacheOption = None,
    columns: opt.ColumnsOption = None,
    limit: opt.LimitOption = None,
    out: opt.OutOption = None,
    overwrite: opt.OverwriteOption = False,
    json: opt.JsonOption = False,
    device: opt.DeviceOption = None,
    nli_device: opt.NliDeviceOption = None,
    dtype: opt.DtypeOption = None,
    workers: opt.WorkersOption = None,
    memory: opt.MemoryOption = None,
    server: ServerOptions = NO_SERVER,
) -> int:
    """Answer a question, or abstain, with the probability that the answer is right.

    Without --calibration the confidence is the answer's share of the draws, which is no probability.
    Without --model the embedded Atlas model answers, with its own calibration.
    """
    single = _single(question, context)
    # only now, as it takes seconds
    from semcal.calibration.calibrated import equivalence_of, is_made_for

    if model is None:
        info("ask: the embedded model of an invented world answers; name yours with --model")
        model = opt.ATLAS
    sampling: dict[str, Any] = {"m": m, "linkage": linkage, "max_new_tokens": max_new_tokens}
    sampling |= {"measure": measure, "abstain_below": abstain_below}
    given = sampling | {"recalibrator": recalibrator, "temperature": temperature, "few_shot": few_shot}
    beside = {"compare": compare or None, "context": context, "decide": decide or None}
    chosen = _calibration(calibration, given, beside, equivalence, atlas=model == opt.ATLAS)
    if chosen is not None:
        equivalence = str(equivalence_of(chosen, equivalence))
    elif model == opt.ATLAS:
        equivalence = equivalence or opt.ATLAS
        recalibrator = _embedded(recalibrator, temperature, few_shot)
    equivalence = opt.named_equivalence(equivalence)
    read, total = _read(single, question, columns)
    questions, blocks = peeked(read, BLOCK, limit)
    plan = choose_workers(workers, "ask", device=device, blocks=blocks, model=model, equivalence=equivalence)
    how: Any = {"device": device, "dtype": dtype, "memory": memory, "nli_device": nli_device, "cache": cache}
    how["settings"] = server_settings(server, model, equivalence)
    load = partial(opt.open_models, model, equivalence, **how)
    with (
        open_executor(plan, load) as (executor, state),
        spending("ask", model=state().model, equivalence=state().equivalence),
    ):
        models = state()
        if chosen is None:
            distinct = _under(models, recalibrator, temperature, few_shot, force=force, compare=compare)
        else:
            for told in chosen.report.first:
                info(f"ask: {told}")
            if chosen.threshold is not None and is_made_for(chosen, models.model):
                info(f"ask: {_promise(chosen.threshold)}")
            distinct = [{"calibration": chosen, "few_shot": opt.open_few_shot(few_shot), "force": force}]
        ways = tuple({"seed": seed, "decide": decide, **sampling, **one} for one in distinct)
        asked = single or questions
        return _answer(executor, models, ways, asked, out=out, json=json, limit=limit, total=total)


def _answer(
    executor: Executor[Any],
    models: WorkerState,
    ways: tuple[Mapping[str, Any], ...],
    asked: Question | Iterator[Row | RowError],
    *,
    out: Path | None,
    json: bool,
    limit: int | None,
    total: int | None,
) -> int:
    """Answer one question or many, write the answers, and say what they cost."""
    from semcal.uncertainty import AskOptions, AskStep

    counts = Counter[str]()
    check, step = _checker(models, ways[-1]), AskStep(cast(tuple[AskOptions, ...], ways))
    if isinstance(asked, Question):
        (block,) = run_steps([Row.of(asked)], [step], workers=executor)
        for row, reason in block.failures:
            raise QuestionError(row.id, reason)
        counts.update(block.costs)
        render, code = _render(json, out, titled=False), 0
        with writing(out) as handle:
            handle.writelines(render(record) + "\n" for record in block.rows)
    else:
        code = run_rows(
            checked(asked, check),
            out,
            [step],
            label="ask",
            workers=executor,
            cut=BLOCK,
            limit=limit,
            total=total,
            render=_render(json, out, titled=True),
            on_block=lambda block: counts.update(block.costs),
        )
    cost = NLICost()
    cost.add(counts["calls"], counts["pairs"])
    warn_of_cut_draws(counts["cut"], counts["draws"])
    nli = models.equivalence.name != "exact"
    if ways[-1]["decide"]:
        calls = f" and {cost.calls} NLI calls of {cost.pairs} ordered pairs" if nli else ""
        info(f"ask: decided with {counts['draws']} of {counts['all']} draws{calls}")
    elif nli and not isinstance(asked, Question):
        info(f"ask: {cost.text(models.equivalence.name)}")
    return code


def _under(
    models: WorkerState,
    recalibrator: str | None,
    temperature: float | None,
    few_shot: Path | None,
    *,
    force: bool,
    compare: bool,
) -> list[dict[str, Any]]:
    """What `SemanticUQ` is to sample under without a calibration: one recalibrator, or those to compare."""
    method, asking = opt.open_recalibrator(models.model, recalibrator, temperature, few_shot, force=force)
    if not asking.few_shot:
        info("ask: no few-shot examples: models answer in sentences without them; give some ten (--few-shot)")
    return [{"recalibrator": one, "few_shot": asking.few_shot} for one in _methods(method, compare=compare)]


def _calibration(
    name: str | None,
    given: Mapping[str, Any],
    beside: Mapping[str, Any],
    equivalence: str | None,
    *,
    atlas: bool,
) -> Calibration | None:
    """The calibration that is named, or the embedded model's (of closed-book questions) where it holds."""
    from semcal.calibration.calibrated import check_beside

    if name is not None:
        if beside["compare"]:
            raise UsageError("--compare is of a temperature, and a calibration has its own; leave one out")
        found = opt.open_calibration(name)
        check_beside(found, {_option(key): value for key, value in given.items()})
        return found
    if not atlas:
        return None
    others = [key for key, value in {**given, **beside, "abstain_below": None}.items() if value is not None]
    others += ["equivalence"] if equivalence not in (None, opt.ATLAS) else []
    if others:
        options = ", ".join(map(_option, others))
        info(f"ask: the embedded calibration does not hold with {options}; the confidence is a share")
        return None
    found = opt.open_calibration(opt.ATLAS)
    return found if given["abstain_below"] is None else replace(found, threshold=None)


def _promise(limit: Threshold) -> str:
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


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _render(json: bool, out: Path | None, *, titled: bool) -> Callable[[Row], str]:
    people = not (json or out) and sys.stdout.isatty()
    return (lambda record: as_shown(_page(record, titled=titled))) if people else as_line


def _read(
    single: Question | None, given: str, columns: Sequence[str] | None
) -> tuple[Iterator[Row | RowError], int | None]:
    """The question that was given, or those of the file; and how many they are."""
    if single is None:
        return counted(given, open_questions(given, columns, label="ask"))
    if columns:
        raise UsageError("--columns is for a file of questions; leave it out")
    return iter([Row.of(single)]), 1


def _embedded(recalibrator: str | None, temperature: float | None, few_shot: Path | None) -> str | None:
    """The recalibrator that comes with the embedded model, unless the options name another distribution."""
    if recalibrator is not None or temperature is not None:
        return recalibrator
    if few_shot is not None:
        info("ask: the embedded temperature goes with its own examples; with yours T = 1 is used")
        return None
    return opt.ATLAS


def _single(given: str, context: str | None) -> Question | None:
    """The question that was given; None if it is a file of questions, or stdin."""
    if given == "-" or os.path.isfile(given):  # noqa: PTH113 - a long question is no path, and no error
        if context is not None:
            raise UsageError("--context goes with a question; rows bring their own 'context'")
        return None
    if os.path.isdir(given):  # noqa: PTH112
        raise UsageError(f"{given!r} is a folder; name a file of questions in it")
    if not given.strip():
        raise UsageError("the question is empty")
    if given.endswith(DATA_SUFFIXES) and not any(map(str.isspace, given)):
        raise UsageError(f"there is no file {given!r} (and a question has more than one word)")
    return Question(given, given, (), context)


def _methods(method: AnyRecalibrator, *, compare: bool) -> tuple[AnyRecalibrator, ...]:
    """The recalibrators that questions are answered under: `method`, with --compare T = 0.5 before it."""
    from semcal.recalibration.temperature import SE, temperature_of

    usual = (SE(),) if compare and temperature_of(method) != SE().temperature else ()
    if compare and not usual:
        info("ask: T = 0.5 is asked for already; there is nothing to compare it with")
    return (*usual, method)


def _checker(models: WorkerState, way: Mapping[str, Any]) -> Callable[[Row], None]:
    """Refuse contradictory options now, and return what refuses a question that does not fit the model."""
    from semcal.models.sampling import check_question
    from semcal.uncertainty import SemanticUQ

    uq = SemanticUQ(models.model, equivalence=models.equivalence, **way)
    return lambda row: check_question(uq.model, row.to_question(), uq.sampling)


def _page(record: Mapping[str, Any], *, titled: bool = False) -> str:
    """One answer as a person reads it: the answer with its confidence, then a line for each meaning."""
    raw = record.get("map", "").startswith("none") and record["confidence"] == record["score"]
    calibrated = record["measure"] == "Calibrated" and not raw
    kind = "probability" if calibrated else "share"
    wide = min(48, max(len("(empty answer)"), *(len(meaning["text"]) for meaning in record["meanings"])))
    bound, p = _known(record)
    known = "undefined" if p is None else f"{bound}{p:.2f}"
    told = (
        f"right with probability {known}"
        if calibrated
        else f"share {known} (as good as any map that was learnt)"
        if raw
        else f"share {known} ({record['measure']}, not calibrated)"
    )
    method = "" if record["method"] == "T" else f", {record['method']}"
    method += " by sgd" if (record["method"], record["solver"]) == ("TS", "sgd") else ""
    method += "" if record["temperature"] is None else f", T = {record['temperature']:.2f}"
    entropy = "undefined" if record["entropy"] is None else f"{record['entropy']:.2f} nats"
    drawn, rest = f"{len(record['samples'])} draws", f"; semantic entropy {entropy}"
    if "m" in record:
        drawn, rest = f"{len(record['samples'])} of {record['m']} draws asked", ""
    return "\n".join(
        [
            *([record["question"]] if titled else []),
            f"{record['answer'] or '(empty answer)'}   {told}",
            *([_DISAGREE.format(record["tied"])] if "tied" in record else []),
            *_verdict(record),
            "",
            f"  {'meaning':<{wide}} {'drawn':>5} {kind:>11}",
            *(
                f"  {(meaning['text'] or '(empty answer)')[:wide]:<{wide}} {len(meaning['samples']):>5} "
                f"{'–' if meaning[kind] is None else format(meaning[kind], '.2f'):>11}"
                for meaning in record["meanings"]
            ),
            "",
            f"  {drawn}{method}{rest}",
            "",
        ]
    )


def _known(record: Mapping[str, Any]) -> tuple[str, float | None]:
    """The confidence; with --decide the bound of it that decided."""
    if record["confidence"] is not None or "confidence_bounds" not in record:
        return "", record["confidence"]
    low, high = record["confidence_bounds"]
    return ("at most ", high) if record["abstained"] else ("at least ", low)


def _verdict(record: Mapping[str, Any]) -> Iterator[str]:
    """Whether the answer is given, where there is a threshold."""
    (bound, p), threshold = _known(record), record["threshold"]
    if record["abstained"] and threshold is None:
        yield "abstained: no threshold was found that holds the risk"
    elif record["abstained"] and p is None:
        yield "abstained: the confidence is undefined"
    elif record["abstained"] is not None:
        if record.get("map", "").startswith("constant"):
            bound, p = "share ", record["score"]
        digits = next((n for n in range(2, 16) if f"{p:.{n}f}" != f"{threshold:.{n}f}"), 2)
        verdict = ("abstained", "is below") if record["abstained"] else ("answered", "reaches")
        yield f"{verdict[0]}: {bound}{p:.{digits}f} {verdict[1]} the threshold {threshold:.{digits}f}"
