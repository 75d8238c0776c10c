"""`semcal sample`: questions to sampled answers with their likelihoods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from semcal.cli import options as opt
from semcal.cli.console import Output, debug, open_unfinished, unfinished, warn
from semcal.cli.executors import (
    NO_SERVER,
    RowBlocks,
    ServerOptions,
    choose_workers,
    open_executor,
    peeked,
    server_settings,
    spending,
    takes_server_options,
)
from semcal.cli.rows import BadRows, checked, good_items, open_questions, run_rows
from semcal.engine.language_model import questions_a_block
from semcal.errors import RowError
from semcal.qa.questions import Question

if TYPE_CHECKING:
    from semcal.engine.language_model import Sampler
    from semcal.pipeline.prompting import PromptConfig
    from semcal.recalibration.attentive import AnyRecalibrator

#: Questions sampled together, fewer by a server; fixed, so that interrupting and resuming changes nothing.
BLOCK = 64


@takes_server_options
def command(
    file: opt.RowsArgument,
    model: opt.ModelOption,
    m: opt.SamplesOption = 10,
    seed: opt.SeedOption = 0,
    recalibrator: opt.RecalibratorOption = None,
    temperature: opt.TemperatureOption = None,
    max_new_tokens: opt.MaxNewTokensOption = None,
    few_shot: opt.FewShotOption = None,
    force: opt.ForceOption = False,
    columns: opt.ColumnsOption = None,
    limit: opt.LimitOption = None,
    out: opt.OutOption = None,
    overwrite: opt.OverwriteOption = False,
    json: opt.JsonOption = False,
    device: opt.DeviceOption = None,
    dtype: opt.DtypeOption = None,
    dry_run: opt.DryRunOption = False,
    fresh: opt.FreshOption = False,
    workers: opt.WorkersOption = None,
    memory: opt.MemoryOption = None,
    server: ServerOptions = NO_SERVER,
) -> int:
    """Sample answers to questions, with their likelihoods.

    Reads questions {id, question, context?} (JSON Lines, CSV, Parquet, SQuAD's JSON) and adds the generations
    with their tokens and log-probabilities, and what is scored: samples (first answers) and log_likelihoods
    (length-normalised, natural logarithm). Interrupted with --out, it resumes with the same command and gives
    identical results.
    """
    settings = server_settings(server, model)
    read = open_questions(file, columns, label="sample")
    if dry_run:
        return _plan(read, m, limit)
    questions, blocks = peeked(read, BLOCK, limit)
    plan = choose_workers(workers, "sample", device=device, blocks=blocks, model=model)
    load = partial(opt.open_models, model, None, device=device, dtype=dtype, memory=memory, settings=settings)
    with open_executor(plan, load) as (executor, state), spending("sample", model=state().model):
        language_model = state().model
        from semcal.pipeline.sample import SampleJob, SamplePass, check_question

        method, asking = opt.open_recalibrator(
            language_model, recalibrator, temperature, few_shot, force=force
        )
        sampling: dict[str, Any] = {"m": m, "max_new_tokens": max_new_tokens}
        key = _key(language_model, method, asking, {**sampling, "seed": seed, "dtype": dtype})
        kept = open_unfinished(out, key, fresh=fresh)
        debug(f"sample: {language_model.name} {language_model.revision[:12]}, {key['recalibrator']}")
        check = partial(check_question, language_model, recalibrators=[method], asking=asking, **sampling)
        passes = (SamplePass((method,), (seed,), m),)

        def job_of(block: Sequence[Question]) -> SampleJob:
            return SampleJob(tuple(block), asking, passes, max_new_tokens, full=True)

        work = RowBlocks(executor, job_of, stage="sample", unfinished=kept, inputs=Question.row)
        size = questions_a_block(language_model, m, 1, BLOCK)
        code = run_rows(checked(questions, check), out, work=work, label="sample", block=size, limit=limit)
        kept.finish()
    return code


def output_of(options: Mapping[str, Any]) -> Output | None:
    """What the command writes to, and where it keeps finished blocks."""
    out = options["out"]
    return None if out is None else Output(out, kept=unfinished(out))


def _key(
    model: Sampler, method: AnyRecalibrator, asking: PromptConfig, how: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything but the questions that results depend on."""
    from semcal.recalibration.attentive import fingerprint

    known = {"model": model.revision, "recalibrator": fingerprint(method), "prompt": asking.hash(model)}
    return {**known, **how}


def _plan(read: Iterator[Question | RowError], m: int, limit: int | None) -> int:
    with BadRows() as bad:
        count = sum(1 for _ in good_items(islice(read, limit), bad))
    warn(f"would sample {m} answers to each of {count} questions: {m * count} answers")
    return bad.exit_code()
