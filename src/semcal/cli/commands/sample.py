"""`semcal sample`: questions to sampled answers with their likelihoods."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any

import typer

from semcal.cli.console import complain, progress, say
from semcal.cli.loading import open_few_shot, open_model, open_recalibrator
from semcal.cli.options import (
    DeviceOption,
    DryRunOption,
    DtypeOption,
    FewShotOption,
    ForceOption,
    FreshOption,
    JsonOption,
    LimitOption,
    MaxNewTokensOption,
    ModelOption,
    OutOption,
    QuietOption,
    RowsArgument,
    SamplesOption,
    SeedOption,
    VerboseOption,
)
from semcal.cli.streams import run_rows
from semcal.qa.datasets import Question, read_questions

__all__ = ["RecalibratorOption", "TemperatureOption", "command"]

#: Questions sampled together; fixed, so that interrupting and resuming changes nothing.
BLOCK = 64

RecalibratorOption = Annotated[
    str | None,
    typer.Option(
        "--recalibrator",
        metavar="DIR",
        help="Made by semcal fit, or a hub id; atlas is the one of the embedded model.",
    ),
]
TemperatureOption = Annotated[
    float | None,
    typer.Option("--temperature", metavar="T", help="A temperature instead; 1 is Base, 0.5 is SE."),
]


def command(
    file: RowsArgument,
    model: ModelOption,
    m: SamplesOption = 10,
    seed: SeedOption = 0,
    recalibrator: RecalibratorOption = None,
    temperature: TemperatureOption = None,
    max_new_tokens: MaxNewTokensOption = None,
    few_shot: FewShotOption = None,
    force: ForceOption = False,
    limit: LimitOption = None,
    out: OutOption = None,
    json: JsonOption = False,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    dry_run: DryRunOption = False,
    fresh: FreshOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Sample answers to questions, with their likelihoods.

    Reads questions {id, question, context?} (JSON Lines, CSV, Parquet, SQuAD's JSON) and adds the
    generations with their tokens and log-probabilities, and what is scored: samples (first answers)
    and log_likelihoods (length-normalised, natural logarithm). With --out, finished blocks are kept
    when it is interrupted, and the same command goes on from there.
    """
    from semcal.cli.resuming import Resumable
    from semcal.pipeline.sample import sample_mixed
    from semcal.recalibration import fingerprint

    if dry_run:
        return _plan(file, m, limit)
    language_model = open_model(model, device=device, dtype=dtype)
    method, asking = open_recalibrator(
        language_model,
        name=recalibrator,
        temperature=temperature,
        few_shot=open_few_shot(few_shot),
        force=force,
    )
    key = {
        "model": language_model.revision,
        "recalibrator": fingerprint(method),
        "prompt": asking.hash(language_model),
        "m": m,
        "seed": seed,
        "max_new_tokens": max_new_tokens,
        "dtype": dtype,
    }
    kept = Resumable(out, key, fresh=fresh)

    def draw(questions: Sequence[Question]) -> list[dict[str, Any]]:
        with progress("sample", len(questions)) as update:
            sampled = sample_mixed(
                language_model,
                questions,
                recalibrator=method,
                asking=asking,
                m=m,
                seed=seed,
                max_new_tokens=max_new_tokens,
                progress=update,
            )
        return [{**q.row(), **one.fields()} for q, one in zip(questions, sampled)]

    def work(questions: Sequence[Question]) -> list[dict[str, Any]]:
        return kept.rows([q.row() for q in questions], lambda: draw(questions))

    if verbose:
        say(f"sample: {language_model.name} {language_model.revision[:12]}, {fingerprint(method)}")
    with kept.told_when_interrupted():
        code = run_rows(read_questions(file), out, work=work, label="sample", block=BLOCK, limit=limit)
    kept.finish()
    return code


def _plan(file: str, m: int, limit: int | None) -> int:
    questions = [q for q in islice(read_questions(file), limit) if isinstance(q, Question)]
    complain(f"would sample {m} answers to each of {len(questions)} questions: {m * len(questions)} answers")
    return 0
