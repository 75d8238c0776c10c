"""`semcal ask`: a question to an answer, or an abstention, with a number."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semcal.cli.commands.sample import RecalibratorOption, TemperatureOption
from semcal.cli.console import progress, say
from semcal.cli.loading import ATLAS, open_equivalence, open_few_shot, open_model, open_recalibrator
from semcal.cli.options import (
    CacheOption,
    DeviceOption,
    DtypeOption,
    EquivalenceOption,
    FewShotOption,
    ForceOption,
    JsonOption,
    LimitOption,
    LinkageOption,
    MaxNewTokensOption,
    ModelOption,
    OutOption,
    QuietOption,
    SamplesOption,
    SeedOption,
    VerboseOption,
)
from semcal.cli.streams import BadRows
from semcal.errors import UsageError
from semcal.qa.datasets import Question, read_questions
from semcal.records import dumps, writing

if TYPE_CHECKING:
    from semcal.pipeline import Answer
    from semcal.recalibration import Recalibrator

__all__ = ["command"]


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
    limit: LimitOption = None,
    out: OutOption = None,
    json: JsonOption = False,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Answer a question, with a confidence under each measure, the entropy, and the other meanings.

    Without --model the embedded Atlas model answers, with the temperature that was fitted for it.
    """
    from semcal.pipeline import SemanticUQ
    from semcal.recalibration import SE

    bad = BadRows()
    questions = list(_questions(question, context, bad, limit))
    if model == ATLAS:
        equivalence, recalibrator = equivalence or ATLAS, _embedded(recalibrator, temperature)
    language_model = open_model(model, device=device, dtype=dtype)
    method, asking = open_recalibrator(
        language_model,
        directory=recalibrator,
        temperature=temperature,
        few_shot=open_few_shot(few_shot),
        force=force,
    )
    judge = open_equivalence(equivalence, device=device, cache=cache)
    if judge.name == "exact":
        say("ask: answers are grouped by their normal forms alone; give an NLI model with --equivalence")
    results: list[tuple[Recalibrator, list[Answer]]] = []
    for one in [SE(), method] if compare else [method]:
        uq = SemanticUQ(
            language_model,
            recalibrator=one,
            equivalence=judge,
            few_shot=asking.few_shot,
            m=m,
            seed=seed,
            max_new_tokens=max_new_tokens,
            linkage=linkage,
            measure=measure,
        )
        with progress("ask", len(questions)) as update:
            results.append((one, uq.ask_many(questions, progress=update)))
    _write(results, out, abstain_below, as_json=json or out is not None or not sys.stdout.isatty())
    return bad.exit_code()


def _embedded(recalibrator: Path | None, temperature: float | None) -> Path | None:
    """The recalibrator that comes with the embedded model, unless the options name another distribution."""
    from semcal.demo.paths import recalibrator_dir

    return recalibrator_dir() if recalibrator is None and temperature is None else recalibrator


def _questions(given: str, context: str | None, bad: BadRows, limit: int | None) -> Iterator[Question]:
    if given != "-" and not os.path.isfile(given):  # noqa: PTH113 - a long question is no path, and no error
        if not given.strip():
            raise UsageError("the question is empty")
        yield Question(given, given, (), context)
        return
    if context is not None:
        raise UsageError("--context goes with a question; rows bring their own 'context'")
    seen = 0
    for item in read_questions(given):
        if not isinstance(item, Question):
            bad.report(item)
        elif limit is None or seen < limit:
            seen += 1
            yield item


def _temperature(recalibrator: Recalibrator) -> float | None:
    return getattr(recalibrator, "temperature", None) or getattr(recalibrator, "temperature_", None)


def _record(answer: Answer, recalibrator: Recalibrator, below: float | None) -> dict[str, Any]:
    abstains = {} if below is None else {"abstains": answer.abstains(below)}
    return {
        "id": answer.id,
        "question": answer.question,
        "method": recalibrator.method,
        "temperature": _temperature(recalibrator),
        "answer": answer.text,
        **abstains,
        "measure": answer.measure,
        "confidence": answer.confidence,
        "semantic_entropy": answer.entropy,
        "meanings": [
            {"answer": meaning.text, "samples": meaning.samples, "confidences": meaning.confidences}
            for meaning in answer.meanings
        ],
        "samples": answer.row["samples"],
        "log_likelihoods": answer.row["log_likelihoods"],
        "clusters": answer.row["clusters"],
    }


def _write(
    results: Sequence[tuple[Recalibrator, Sequence[Answer]]],
    out: Path | None,
    below: float | None,
    *,
    as_json: bool,
) -> None:
    with writing(out) as handle:
        for number in range(len(results[0][1])):
            for recalibrator, answers in results:
                record = _record(answers[number], recalibrator, below)
                handle.write((dumps(record) if as_json else _page(record)) + "\n")


def _page(record: dict[str, Any]) -> str:
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
    temperature = "" if record["temperature"] is None else f", T = {record['temperature']:.2f}"
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
