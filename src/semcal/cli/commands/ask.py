"""`semcal ask`: a question to an answer, or an abstention, with a number."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semcal.cli.commands.sample import RecalibratorOption, TemperatureOption
from semcal.cli.console import nli_calls, say
from semcal.cli.executors import RowBlocks, choose_workers, open_executor, peeked
from semcal.cli.loading import ATLAS, open_few_shot, open_models, open_recalibrator
from semcal.cli.options import (
    CacheOption,
    ColumnsOption,
    DeviceOption,
    DtypeOption,
    EquivalenceOption,
    FewShotOption,
    ForceOption,
    JsonOption,
    LimitOption,
    LinkageOption,
    MaxNewTokensOption,
    MemoryOption,
    ModelOption,
    NliDeviceOption,
    OutOption,
    OverwriteOption,
    QuietOption,
    SamplesOption,
    SeedOption,
    VerboseOption,
    WorkersOption,
)
from semcal.cli.reading import open_questions
from semcal.cli.streams import checked, run_rows
from semcal.errors import UsageError
from semcal.qa.datasets import Question
from semcal.records import dumps, writing

if TYPE_CHECKING:
    from semcal.pipeline import Answer, Asking
    from semcal.pipeline.worker_state import WorkerState
    from semcal.recalibration import AnyRecalibrator

__all__ = ["command"]

#: Questions of a file that are asked together.
BLOCK = 256
#: How the name of a file of questions ends.
DATA_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")


def command(
    question: Annotated[
        str, typer.Argument(metavar="QUESTION", help="A question, a file of questions {id, question}, or -.")
    ],
    context: Annotated[str | None, typer.Option(help="The passage to answer from (open book).")] = None,
    model: ModelOption = ATLAS,
    recalibrator: RecalibratorOption = None,
    temperature: TemperatureOption = None,
    equivalence: EquivalenceOption = None,
    linkage: LinkageOption = "components",
    compare: Annotated[bool, typer.Option("--compare", help="Show T = 0.5 beside the fitted T.")] = False,
    measure: Annotated[str, typer.Option(help="The measure that chooses the answer.")] = "E-SC",
    abstain_below: Annotated[
        float | None, typer.Option(min=0, max=1, help="Abstain when the confidence is lower than this.")
    ] = None,
    m: SamplesOption = 10,
    seed: SeedOption = 0,
    max_new_tokens: MaxNewTokensOption = None,
    few_shot: FewShotOption = None,
    force: ForceOption = False,
    cache: CacheOption = None,
    columns: ColumnsOption = None,
    limit: LimitOption = None,
    out: OutOption = None,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
    device: DeviceOption = None,
    nli_device: NliDeviceOption = None,
    dtype: DtypeOption = None,
    workers: WorkersOption = None,
    memory: MemoryOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Answer a question, with a confidence under each measure, the entropy, and the other meanings.

    Without --model the embedded Atlas model answers, with the temperature that was fitted for it.
    """
    single = _single(question, context)
    if model == ATLAS:
        equivalence = equivalence or ATLAS
        recalibrator = _embedded(recalibrator, temperature, few_shot)
    if single and columns:
        raise UsageError("--columns is for a file of questions; leave it out")
    read = iter([single]) if single else open_questions(question, columns, label="ask")
    questions, blocks = peeked(read, BLOCK, limit)
    plan = choose_workers(workers, "ask", device=device, blocks=blocks, model=model, equivalence=equivalence)
    load = partial(
        open_models,
        model,
        equivalence or "exact",
        device=device,
        dtype=dtype,
        memory=memory,
        nli_device=nli_device,
        cache=cache,
    )
    spent = {"calls": 0, "pairs": 0}

    def counted(asked: Asked) -> list[dict[str, Any]]:
        spent["calls"] += asked.nli_calls
        spent["pairs"] += asked.pairs
        return asked.records

    render = dumps if json or out is not None or not sys.stdout.isatty() else _page
    with open_executor(plan, load) as (executor, state):
        models = state()
        method, asking = open_recalibrator(
            models.model,
            name=recalibrator,
            temperature=temperature,
            few_shot=open_few_shot(few_shot),
            force=force,
        )
        if models.equivalence.name == "exact":
            say("ask: answers are grouped by their normal forms alone; give an NLI model with --equivalence")
        options: dict[str, Any] = {"m": m, "seed": seed, "max_new_tokens": max_new_tokens}
        options |= {"linkage": linkage, "measure": measure, "few_shot": asking.few_shot}
        _check(models, options)
        job_of = partial(
            _job, methods=_methods(method, compare=compare), options=options, below=abstain_below
        )
        work = RowBlocks(executor, job_of, stage="ask", then=counted, inputs=Question.row)
        if single is None:
            fitting = checked(questions, _checker(models, method, asking, m, max_new_tokens))
            code = run_rows(fitting, out, work=work, label="ask", block=BLOCK, limit=limit, render=render)
            if models.equivalence.name != "exact":
                say(f"ask: {nli_calls(models.equivalence.name, **spent)}")
            return code
        with writing(out) as handle:
            handle.writelines(render(record) + "\n" for record in work([single]))
    return 0


def _embedded(recalibrator: str | None, temperature: float | None, few_shot: Path | None) -> str | None:
    """The recalibrator that comes with the embedded model, unless the options name another distribution."""
    if recalibrator is not None or temperature is not None:
        return recalibrator
    if few_shot is not None:
        say("ask: the embedded temperature goes with its own examples; with yours T = 1 is used")
        return None
    return ATLAS


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
    """What questions are answered under: `method`, and before it T = 0.5 if these are compared."""
    from semcal.recalibration import SE, temperature_of

    usual = (SE(),) if compare and temperature_of(method) != SE().temperature else ()
    if compare and not usual:
        say("ask: T = 0.5 is asked for already; there is nothing to compare it with")
    return (*usual, method)


def _check(models: WorkerState, options: Mapping[str, Any]) -> None:
    """Refuse options that make no sense before anything is asked."""
    from semcal.pipeline import SemanticUQ

    SemanticUQ(models.model, equivalence=models.equivalence, **options)


def _checker(
    models: WorkerState, method: AnyRecalibrator, asking: Asking, m: int, max_new_tokens: int | None
) -> Callable[[Question], None]:
    """What refuses a question that cannot be asked under `method`, and then under no single temperature."""
    from semcal.pipeline.sample import check_question

    how: dict[str, Any] = {"asking": asking, "m": m, "max_new_tokens": max_new_tokens}
    return partial(check_question, models.model, recalibrators=[method], **how)


def _job(questions: Sequence[Question], **how: Any) -> AskJob:
    return AskJob(tuple(questions), **how)


@dataclass(frozen=True)
class Asked:
    """Records, and how many NLI calls they took of how many ordered pairs of answers."""

    records: list[dict[str, Any]]
    nli_calls: int
    pairs: int


@dataclass(frozen=True)
class AskJob:
    """The records of questions under each method; those of a question stand together."""

    questions: tuple[Question, ...]
    methods: tuple[AnyRecalibrator, ...]
    options: Mapping[str, Any]
    below: float | None

    def __call__(self, models: WorkerState, tell: Callable[[int], None]) -> Asked:
        """Ask."""
        from semcal.pipeline import SemanticUQ

        askers = [
            SemanticUQ(models.model, recalibrator=method, equivalence=models.equivalence, **self.options)
            for method in self.methods
        ]
        answered = [asker.ask_many(self.questions, progress=tell) for asker in askers]
        records = [
            _record(answer, method, self.below)
            for answers in zip(*answered)
            for method, answer in zip(self.methods, answers)
        ]
        return Asked(records, sum(asker.nli_calls for asker in askers), sum(asker.pairs for asker in askers))


def _record(answer: Answer, recalibrator: AnyRecalibrator, below: float | None) -> dict[str, Any]:
    from semcal.recalibration import solver_of, temperature_of

    abstains = {} if below is None else {"abstains": answer.abstains(below)}
    return {
        "id": answer.id,
        "question": answer.question,
        "method": recalibrator.method,
        "temperature": temperature_of(recalibrator),
        "solver": solver_of(recalibrator),
        "answer": answer.text,
        **abstains,
        "measure": answer.measure,
        "confidence": answer.confidence,
        "answers": {name: _favourite(answer, name) for name in answer.confidence},
        "semantic_entropy": answer.entropy,
        "meanings": [
            {"answer": meaning.text, "samples": meaning.samples, "confidences": meaning.confidences}
            for meaning in answer.meanings
        ],
        "samples": answer.row["samples"],
        "log_likelihoods": answer.row["log_likelihoods"],
        "clusters": answer.row["clusters"],
    }


def _favourite(answer: Answer, measure: str) -> str | None:
    """The meaning that a measure is most confident of; another measure may prefer another."""
    rated = [(m.confidences[measure], m.text) for m in answer.meanings if m.confidences[measure] is not None]
    return max(rated, key=lambda pair: pair[0] or 0.0)[1] if rated else None


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
