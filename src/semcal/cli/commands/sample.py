"""`semcal sample`: questions to sampled answers with their likelihoods."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semcal.cli.console import complain, say
from semcal.cli.crews import SharedRows, chosen, crew_for, peeked
from semcal.cli.loading import open_few_shot, open_models, open_recalibrator
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
    MemoryOption,
    ModelOption,
    OutOption,
    QuietOption,
    RowsArgument,
    SamplesOption,
    SeedOption,
    VerboseOption,
    WorkersOption,
)
from semcal.cli.streams import checked, run_rows
from semcal.qa.datasets import Question, read_questions

if TYPE_CHECKING:
    from semcal.pipeline.processes import Job

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
    workers: WorkersOption = None,
    memory: MemoryOption = None,
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
    from semcal.pipeline.sample import check_question
    from semcal.recalibration import fingerprint

    if dry_run:
        return _plan(file, m, limit)
    questions, blocks = peeked(read_questions(file), BLOCK, limit)
    shared = chosen(workers, "sample", device=device, blocks=blocks, model=model)
    load = partial(open_models, model, None, device=device, dtype=dtype, memory=memory)
    with crew_for(shared, load) as (crew, held):
        models = held()
        method, asking = open_recalibrator(
            models.model,
            name=recalibrator,
            temperature=temperature,
            few_shot=open_few_shot(few_shot),
            force=force,
        )
        key = {
            "model": models.model.revision,
            "recalibrator": fingerprint(method),
            "prompt": asking.hash(models.model),
            "m": m,
            "seed": seed,
            "max_new_tokens": max_new_tokens,
            "dtype": dtype,
        }
        kept = Resumable(out, key, fresh=fresh)
        if verbose:
            say(f"sample: {models.model.name} {models.model.revision[:12]}, {fingerprint(method)}")
        how: dict[str, Any] = {"asking": asking, "m": m, "max_new_tokens": max_new_tokens}
        fitting = checked(questions, partial(check_question, models.model, recalibrators=[method], **how))
        work = SharedRows(
            crew,
            partial(_job, method=method, seed=seed, **how),
            stage="sample",
            kept=kept,
            inputs=Question.row,
        )
        with kept.told_when_interrupted():
            code = run_rows(fitting, out, work=work, label="sample", block=BLOCK, limit=limit)
        kept.finish()
    return code


def _job(questions: Sequence[Question], **how: Any) -> Job:
    from semcal.pipeline.jobs import SampleJob

    return SampleJob(tuple(questions), **how)


def _plan(file: str, m: int, limit: int | None) -> int:
    questions = [q for q in islice(read_questions(file), limit) if isinstance(q, Question)]
    complain(f"would sample {m} answers to each of {len(questions)} questions: {m * len(questions)} answers")
    return 0
