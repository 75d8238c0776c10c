"""`semcal ask`: answer a question, or abstain, with calibrated confidence."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semcal.cli import options as opt
from semcal.cli.console import NLICost, info
from semcal.cli.executors import RowBlocks, choose_workers, open_executor, peeked
from semcal.cli.rows import Work, checked, open_questions, run_rows
from semcal.errors import RowError, UsageError
from semcal.qa.questions import Question
from semcal.records import dumps, writing

if TYPE_CHECKING:
    from semcal.pipeline.ask import AskedRows, AskJob
    from semcal.pipeline.worker_state import WorkerState
    from semcal.recalibration.attentive import AnyRecalibrator

__all__ = ["command"]

#: Questions of a file that are asked together.
BLOCK = 256
#: How the name of a file of questions ends.
DATA_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")

QuestionArgument = Annotated[
    str, typer.Argument(metavar="QUESTION", help="A question, a file of questions {id, question}, or -.")
]
ContextOption = Annotated[str | None, typer.Option(help="The passage to answer from (open book).")]
CompareOption = Annotated[bool, typer.Option("--compare", help="Show T = 0.5 beside the fitted T.")]
MeasureOption = Annotated[str, typer.Option(help="The measure that chooses the answer.")]
AbstainOption = Annotated[
    float | None, typer.Option(min=0, max=1, help="Abstain when the confidence is lower than this.")
]


def command(
    question: QuestionArgument,
    context: ContextOption = None,
    model: opt.ModelOption = opt.ATLAS,
    recalibrator: opt.RecalibratorOption = None,
    temperature: opt.TemperatureOption = None,
    equivalence: opt.EquivalenceOption = None,
    linkage: opt.LinkageOption = "components",
    compare: CompareOption = False,
    measure: MeasureOption = "E-SC",
    abstain_below: AbstainOption = None,
    m: opt.SamplesOption = 10,
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
    quiet: opt.QuietOption = False,
    verbose: opt.VerboseOption = False,
) -> int:
    """Answer a question, with a confidence under each measure, the entropy, and the other meanings.

    Without --model the embedded Atlas model answers, with the temperature that was fitted for it.
    """
    single = _single(question, context)
    if model == opt.ATLAS:
        equivalence = equivalence or opt.ATLAS
        recalibrator = _embedded(recalibrator, temperature, few_shot)
    questions, blocks = peeked(_read(single, question, columns), BLOCK, limit)
    plan = choose_workers(workers, "ask", device=device, blocks=blocks, model=model, equivalence=equivalence)
    how: Any = {"device": device, "dtype": dtype, "memory": memory, "nli_device": nli_device, "cache": cache}
    load = partial(opt.open_models, model, equivalence or "exact", **how)
    with open_executor(plan, load) as (executor, state):
        models, cost = state(), NLICost()
        method, asking = opt.open_recalibrator(models.model, recalibrator, temperature, few_shot, force=force)
        options = {"linkage": linkage, "measure": measure, "m": m, "seed": seed}
        options |= {"max_new_tokens": max_new_tokens, "few_shot": asking.few_shot}
        check, methods = _checker(models, method, options), _methods(method, compare=compare)
        job_of = partial(_job, methods, options, abstain_below)
        work = RowBlocks(executor, job_of, stage="ask", then=partial(_counted, cost), inputs=Question.row)
        render = dumps if json or out or not sys.stdout.isatty() else _page
        if single:
            return _write_one(work, single, out, render)
        read = checked(questions, check)
        code = run_rows(read, out, work=work, label="ask", block=BLOCK, limit=limit, render=render)
        if models.equivalence.name != "exact":
            info(f"ask: {cost.text(models.equivalence.name)}")
        return code


def _job(
    methods: Sequence[AnyRecalibrator],
    options: Mapping[str, Any],
    abstain_below: float | None,
    block: Sequence[Question],
) -> AskJob:
    from semcal.pipeline.ask import AskJob

    return AskJob(tuple(block), tuple(methods), options, abstain_below)


def _read(
    single: Question | None, given: str, columns: Sequence[str] | None
) -> Iterator[Question | RowError]:
    """The question that was given, or those of the file."""
    if single is None:
        return open_questions(given, columns, label="ask")
    if columns:
        raise UsageError("--columns is for a file of questions; leave it out")
    return iter([single])


def _counted(cost: NLICost, asked: AskedRows) -> list[dict[str, Any]]:
    cost.add(asked.nli_calls, asked.pairs)
    return asked.records


def _write_one(work: Work[Question], question: Question, out: Path | None, render: Any) -> int:
    ((_, records),) = work([[question]], lambda _: None)
    with writing(out) as handle:
        handle.writelines(render(record) + "\n" for record in records())
    return 0


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
        raise UsageError(f"there is no file {given!r}; a question has more than one word")
    return Question(given, given, (), context)


def _methods(method: AnyRecalibrator, *, compare: bool) -> tuple[AnyRecalibrator, ...]:
    """The recalibrators that questions are answered under: `method`, with --compare T = 0.5 before it."""
    from semcal.recalibration.temperature import SE, temperature_of

    usual = (SE(),) if compare and temperature_of(method) != SE().temperature else ()
    if compare and not usual:
        info("ask: T = 0.5 is asked for already; there is nothing to compare it with")
    return (*usual, method)


def _checker(
    models: WorkerState, method: AnyRecalibrator, options: Mapping[str, Any]
) -> Callable[[Question], None]:
    """Refuse contradictory options now, and return what refuses a question that does not fit the model."""
    from semcal.pipeline.ask import SemanticUQ
    from semcal.pipeline.prompting import PromptConfig
    from semcal.pipeline.sample import check_question

    if models.equivalence.name == "exact":
        info("ask: answers are grouped by their normal forms alone; give an NLI model with --equivalence")
    SemanticUQ(models.model, equivalence=models.equivalence, **options)
    how = {key: options[key] for key in ("m", "max_new_tokens")}
    return partial(
        check_question, models.model, recalibrators=[method], asking=PromptConfig(options["few_shot"]), **how
    )


def _page(record: Mapping[str, Any]) -> str:
    """One answer as a person reads it: the answer, then a line for each meaning."""
    names = list(record["confidence"])
    wide = max(len("entropy (nats)"), *(len(meaning["answer"]) for meaning in record["meanings"]))
    wide = min(wide, 48)

    def line(label: str, count: str, values: Sequence[float | None]) -> str:
        cells = "".join(f"{'–' if value is None else f'{value:.2f}':>7}" for value in values)
        return f"  {label[:wide]:<{wide}} {count:>5}{cells}"

    confidence = record["confidence"][record["measure"]]
    shown = "undefined" if confidence is None else f"{confidence:.2f}"
    verdict = "abstains, " if record.get("abstains") else ""
    by = " by sgd" if (record["method"], record["solver"]) == ("TS", "sgd") else ""
    temperature = by + ("" if record["temperature"] is None else f", T = {record['temperature']:.2f}")
    return "\n".join(
        [
            f"{record['question']}",
            f"{record['answer'] or '(empty answer)'}   [{verdict}{record['measure']} {shown}; "
            f"{record['method']}{temperature}]",
            "",
            f"  {'meaning':<{wide}} {'drawn':>5}" + "".join(f"{name:>7}" for name in names),
            *(
                line(
                    meaning["answer"] or "(empty answer)",
                    str(len(meaning["samples"])),
                    [meaning["confidences"][name] for name in names],
                )
                for meaning in record["meanings"]
            ),
            line("entropy (nats)", "", [record["semantic_entropy"][name] for name in names]),
            "",
        ]
    )
