"""`semcal sample`: questions to sampled answers with their likelihoods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from semcal.cli import options as opt
from semcal.cli.console import Output, debug, open_unfinished, spending, unfinished, warn
from semcal.cli.executors import choose_workers, open_executor, peeked
from semcal.cli.options import NO_SERVER, ServerOptions, server_settings
from semcal.cli.row_commands import BadRows, as_line, checked, counted, good_rows, open_questions, run_rows
from semcal.errors import ModelError, RowError, ServerError
from semcal.models.sampling import BLOCK_QUESTIONS, BLOCK_TOKENS, Sampling, plan_sampling, question_blocks
from semcal.rows import Row, warn_of_cut_draws

if TYPE_CHECKING:
    from semcal.models.language_model import PromptConfig, Sampler
    from semcal.recalibration.attentive import AnyRecalibrator
    from semcal.steps import WorkerState


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
    read, total = counted(file, open_questions(file, columns, label="sample"))
    load = partial(opt.open_models, model, None, device=device, dtype=dtype, memory=memory, settings=settings)
    under = partial(
        opt.open_recalibrator, name=recalibrator, temperature=temperature, few_shot=few_shot, force=force
    )
    if dry_run:
        return _plan(islice(read, limit), load, under, m=m, max_new_tokens=max_new_tokens)
    questions, blocks = peeked(read, min(BLOCK_QUESTIONS, max(1, BLOCK_TOKENS // (10 * m))), limit)
    plan = choose_workers(workers, "sample", device=device, blocks=blocks, model=model)
    with open_executor(plan, load) as (executor, state), spending("sample", model=state().model):
        language_model = state().model
        from semcal.models.sampling import SampleStep, check_question

        method, asking = under(language_model)
        sampling = Sampling((method,), asking, m, (seed,), max_new_tokens)
        key = _key(language_model, sampling, dtype)
        kept = open_unfinished(out, key, fresh=fresh)
        debug(f"sample: {language_model.name} {language_model.revision[:12]}, {key['recalibrator']}")
        ends = Counter[bool]()

        def render(row: Row) -> str:
            ends.update(row.finished)
            return as_line(row)

        code = run_rows(
            checked(questions, lambda row: check_question(language_model, row.to_question(), sampling)),
            out,
            [SampleStep(sampling, full=True)],
            label="sample",
            workers=executor,
            cut=partial(question_blocks, language_model, sampling=sampling),
            store=kept,
            limit=limit,
            total=total,
            render=render,
        )
        warn_of_cut_draws(ends[False], ends.total())
        kept.finish()
    return code


def output_of(options: Mapping[str, Any]) -> Output | None:
    """What the command writes to, and where it keeps finished blocks."""
    out = options["out"]
    return None if out is None else Output(out, kept=unfinished(out))


def _key(model: Sampler, sampling: Sampling, dtype: str | None) -> dict[str, Any]:
    """Everything but the questions that results depend on."""
    from semcal.recalibration.attentive import fingerprint

    return {
        "model": model.revision,
        "recalibrator": fingerprint(*sampling.recalibrators),
        "prompt": sampling.asking.hash(model),
        "m": sampling.m,
        "max_new_tokens": sampling.max_new_tokens,
        "seed": sampling.seeds[0],
        "dtype": dtype,
        "block_tokens": BLOCK_TOKENS,
    }


def _plan(
    read: Iterator[Row | RowError],
    load: Callable[[], WorkerState],
    under: Callable[[Sampler], tuple[AnyRecalibrator, PromptConfig]],
    *,
    m: int,
    max_new_tokens: int | None,
) -> int:
    """Print how many answers sampling would take, and if the model can be had what they take."""
    with BadRows() as bad:
        questions = [row.to_question() for row in good_rows(read, bad)]
        warn(f"would sample {m} answers to each of {len(questions)} questions: {m * len(questions)} answers")
        if questions:
            try:
                model = load().model
            except (ModelError, ServerError) as error:
                warn(f"tokens and time are not known: {error}")
                return bad.exit_code()
            method, asking = under(model)
            sampling = Sampling((method,), asking, m, max_new_tokens=max_new_tokens)
            warn("\n".join(plan_sampling(model, questions, sampling)))
        return bad.exit_code()
