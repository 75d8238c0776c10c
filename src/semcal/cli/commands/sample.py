"""`semcal sample`: questions to sampled answers with their likelihoods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semcal.cli.claims import Claim, unfinished
from semcal.cli.complaints import BadRows
from semcal.cli.console import complain, say
from semcal.cli.executors import RowBlocks, choose_workers, open_executor, open_unfinished, peeked
from semcal.cli.loading import open_few_shot, open_models, open_recalibrator
from semcal.cli.options import (
    ColumnsOption,
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
    OverwriteOption,
    QuietOption,
    RowsArgument,
    SamplesOption,
    SeedOption,
    VerboseOption,
    WorkersOption,
)
from semcal.cli.reading import open_questions
from semcal.cli.streams import checked, good_items, run_rows
from semcal.errors import RowError
from semcal.qa.datasets import Question

if TYPE_CHECKING:
    from semcal.pipeline import Asking
    from semcal.pipeline.executor import Job
    from semcal.recalibration import AnyRecalibrator

__all__ = ["RecalibratorOption", "TemperatureOption", "claim", "command"]

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
    columns: ColumnsOption = None,
    limit: LimitOption = None,
    out: OutOption = None,
    overwrite: OverwriteOption = False,
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
    from semcal.pipeline.sample import check_question
    from semcal.recalibration import fingerprint

    read = open_questions(file, columns, label="sample")
    if dry_run:
        return _plan(read, m, limit)
    questions, blocks = peeked(read, BLOCK, limit)
    plan = choose_workers(workers, "sample", device=device, blocks=blocks, model=model)
    load = partial(open_models, model, None, device=device, dtype=dtype, memory=memory)
    with open_executor(plan, load) as (executor, state):
        models = state()
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
        unfinished_rows = open_unfinished(out, key, fresh=fresh)
        if verbose:
            say(f"sample: {models.model.name} {models.model.revision[:12]}, {fingerprint(method)}")
        how: dict[str, Any] = {"asking": asking, "m": m, "max_new_tokens": max_new_tokens}
        fitting = checked(questions, partial(check_question, models.model, recalibrators=[method], **how))
        work = RowBlocks(
            executor,
            partial(_job, method=method, seed=seed, **how),
            stage="sample",
            unfinished=unfinished_rows,
            inputs=Question.row,
        )
        code = run_rows(fitting, out, work=work, label="sample", block=BLOCK, limit=limit)
        unfinished_rows.finish()
    return code


def claim(options: Mapping[str, Any]) -> Claim | None:
    """What the command writes to, and where it keeps finished blocks."""
    out = options["out"]
    return None if out is None else Claim(out, kept=unfinished(out))


def _job(
    questions: Sequence[Question],
    *,
    method: AnyRecalibrator,
    seed: int,
    m: int,
    asking: Asking,
    max_new_tokens: int | None,
) -> Job:
    from semcal.pipeline.sample import SampleJob, SamplePass

    passes = (SamplePass((method,), (seed,), m),)
    return SampleJob(tuple(questions), asking, passes, max_new_tokens, full=True)


def _plan(read: Iterator[Question | RowError], m: int, limit: int | None) -> int:
    with BadRows() as bad:
        count = sum(1 for _ in good_items(islice(read, limit), bad))
    complain(f"would sample {m} answers to each of {count} questions: {m * count} answers")
    return bad.exit_code()
