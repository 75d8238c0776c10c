"""`semcal sample`: questions to sampled answers with their likelihoods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from semcal.cli import options as opt
from semcal.cli.console import Output, debug, open_unfinished, spending, unfinished, warn
from semcal.cli.executors import RowBlocks, choose_workers, open_executor, peeked
from semcal.cli.options import NO_SERVER, ServerOptions, server_settings, takes_server_options
from semcal.cli.rows import BadRows, checked, counted, good_items, open_questions, run_rows
from semcal.errors import ModelError, RowError, ServerError
from semcal.pipeline.rows import warn_of_cut_draws
from semcal.pipeline.sample import BLOCK_QUESTIONS, BLOCK_TOKENS, plan_sampling, question_blocks
from semcal.qa.questions import Question
from semcal.records import dumps

if TYPE_CHECKING:
    from semcal.engine.language_model import Sampler
    from semcal.pipeline.prompting import PromptConfig
    from semcal.pipeline.worker_state import WorkerState
    from semcal.recalibration.attentive import AnyRecalibrator


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
        from semcal.pipeline.sample import SampleJob, SamplePass, check_question

        method, asking = under(language_model)
        sampling: dict[str, Any] = {"m": m, "max_new_tokens": max_new_tokens}
        key = _key(language_model, method, asking, {**sampling, "seed": seed, "dtype": dtype})
        kept = open_unfinished(out, key, fresh=fresh)
        debug(f"sample: {language_model.name} {language_model.revision[:12]}, {key['recalibrator']}")
        check = partial(check_question, language_model, recalibrators=[method], asking=asking, **sampling)
        passes = (SamplePass((method,), (seed,), m),)

        def job_of(block: Sequence[Question]) -> SampleJob:
            return SampleJob(tuple(block), asking, passes, max_new_tokens, full=True)

        work = RowBlocks(executor, job_of, stage="sample", unfinished=kept, inputs=Question.row)
        cut = partial(question_blocks, language_model, m=m, ways=1, max_new_tokens=max_new_tokens)
        items = checked(questions, check)
        ends = Counter[bool]()

        def render(row: Mapping[str, Any]) -> str:
            ends.update(row["finished"])
            return dumps(row)

        how: Any = {"label": "sample", "block": cut, "limit": limit, "total": total, "render": render}
        code = run_rows(items, out, work=work, **how)
        warn_of_cut_draws(ends[False], ends.total())
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
    return {**known, **how, "block_tokens": BLOCK_TOKENS}


def _plan(
    read: Iterator[Question | RowError],
    load: Callable[[], WorkerState],
    under: Callable[[Sampler], tuple[AnyRecalibrator, PromptConfig]],
    *,
    m: int,
    max_new_tokens: int | None,
) -> int:
    """Print how many answers sampling would take, and if the model can be had what they take."""
    with BadRows() as bad:
        questions = list(good_items(read, bad))
        warn(f"would sample {m} answers to each of {len(questions)} questions: {m * len(questions)} answers")
        if questions:
            try:
                model = load().model
            except (ModelError, ServerError) as error:
                warn(f"tokens and time are not known: {error}")
                return bad.exit_code()
            method, asking = under(model)
            sampling: Any = {"recalibrators": [method], "asking": asking, "max_new_tokens": max_new_tokens}
            warn("\n".join(plan_sampling(model, questions, m=m, **sampling)))
        return bad.exit_code()
