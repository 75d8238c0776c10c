"""Sampled answers and their likelihoods (spec sections 4 and 5.1, 5.2)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from semcal.arrays import as_option
from semcal.engine.language_model import (
    Draws,
    Generation,
    LanguageModel,
    Prompt,
    Sampler,
    questions_a_block,
)
from semcal.errors import QuestionError
from semcal.pipeline.progress import Advance, duration
from semcal.pipeline.prompting import PromptConfig
from semcal.pipeline.rows import FAILED
from semcal.pipeline.worker_state import RecalibratorSource, WorkerState
from semcal.qa.first_answer import first_answer
from semcal.qa.questions import Question
from semcal.workers import Progress

if TYPE_CHECKING:
    from semcal.engine.drawing import Truncation
    from semcal.recalibration.attentive import AnyRecalibrator

#: The most questions of a block, and the most tokens: those of its questions and passages, and of its answers
#: if all are as long as they may be. A model of 10⁸ parameters takes some 20 seconds on two processors.
BLOCK_QUESTIONS, BLOCK_TOKENS = 64, 6144
#: Keys of rows that are of draws, beside those that sampling writes anew.
OF_DRAWS = ("temperatures", "clusters", "normal_forms")
#: Characters that count as a token there, so that blocks are the same with every tokenizer.
CHARACTERS = 4


@dataclass(frozen=True)
class Draw:
    """One sampled answer."""

    generation: Generation
    text: str  # the first answer of the generation
    log_likelihood: float | None  # length-normalised, of the first answer and end of turn (nats per token)
    likelihood: str | None  # "sampled", or "rescored": of what the generation was cut to, with an end of turn
    finished: bool = True  # whether it ended before the token limit


@dataclass(frozen=True)
class Sampled:
    """The m draws of one question at one recalibrator, or why there are none."""

    prompt: Prompt
    draws: tuple[Draw, ...]
    failure: QuestionError | None = None
    truncated_to: str | None = None  # how a server has cut the distribution, where that is accepted

    def fields(self) -> dict[str, Any]:
        """Return the fields that `semcal sample` adds to a row; null where a server tells nothing."""
        if self.failure is not None:
            return self.scored()
        cut = {} if self.truncated_to is None else {"truncated_to": self.truncated_to}
        generations = [draw.generation for draw in self.draws]
        return {
            "prompt_token_ids": list(self.prompt.token_ids) or None,
            "generations": [one.text for one in generations],
            "token_ids": _all_or_none([list(one.token_ids) for one in generations]),
            "token_log_probs": _all_or_none([list(one.token_log_probs) for one in generations]),
            **cut,
            **self.scored(),
        }

    def scored(self) -> dict[str, Any]:
        """Return first answers and their likelihoods, which are null unless all are known; or the failure."""
        if self.failure is not None:
            return {FAILED: self.failure.reason}
        known = all(draw.log_likelihood is not None for draw in self.draws)
        return {
            "samples": [draw.text for draw in self.draws],
            "log_likelihoods": [draw.log_likelihood for draw in self.draws] if known else None,
            "likelihood": [draw.likelihood for draw in self.draws] if known else None,
            "finished": [draw.finished for draw in self.draws],
        }


def _all_or_none(found: list[list[Any]]) -> list[list[Any]] | None:
    return found if all(found) else None


def _mean(log_probs: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    if not log_probs:
        return None
    return math.fsum(log_probs) / len(log_probs) if -math.inf not in log_probs else -math.inf


def _cut(prompt: Prompt, generation: Generation) -> tuple[int, int]:
    """Where the first answer begins and ends, blanks before an end of turn included."""
    found, text = first_answer(generation.text, prompt.question), generation.text
    whole = generation.finished and not text[found.end :].strip()
    return found.start, len(text) if whole else found.end


def _draw(prompt: Prompt, generation: Generation) -> Draw:
    found = first_answer(generation.text, prompt.question)
    how = "sampled" if generation.rescored is None else "rescored"
    scores = generation.token_log_probs if generation.rescored is None else generation.rescored
    finished = generation.finished or found.closed
    return Draw(generation, found.text, _mean(scores[generation.lead :]), how, finished)


def sample_questions(
    model: Sampler,
    questions: Sequence[Question],
    *,
    recalibrators: Sequence[AnyRecalibrator],
    asking: PromptConfig | None = None,
    m: int = 10,
    seed: int = 0,
    max_new_tokens: int = 10,
    truncation: Truncation | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[list[Sampled]]:
    """Sample m answers to each question under each recalibrator: ``[recalibrator][question]``.

    Ids are distinct: the random numbers of a question are derived from `seed` and its id. All recalibrators
    share one pass over the prompts and the same random numbers. A generation that reaches `max_new_tokens` is
    scored with an end of turn behind it. `truncation` is top-k and top-p while sampling; likelihoods are
    those of the whole vocabulary all the same. `progress` gets the number of finished questions.
    """
    (run,) = sample_runs(
        model,
        questions,
        recalibrators=recalibrators,
        seeds=[seed],
        asking=asking,
        m=m,
        max_new_tokens=max_new_tokens,
        truncation=truncation,
        progress=progress,
    )
    return run


def sample_runs(
    model: Sampler,
    questions: Sequence[Question],
    *,
    recalibrators: Sequence[AnyRecalibrator],
    seeds: Sequence[int],
    asking: PromptConfig | None = None,
    m: int = 10,
    first: int = 0,
    max_new_tokens: int = 10,
    truncation: Truncation | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[list[list[Sampled]]]:
    """Sample as `sample_questions` does with each of several seeds: ``[run][recalibrator][question]``.

    The draws are those of separate calls, in one pass: prompts and shared beginnings run once. Their numbers
    begin with `first`.
    """
    prompts = (asking or PromptConfig()).prompts(model, questions)
    runs = model.sample_runs(
        prompts,
        m=m,
        first=first,
        seeds=seeds,
        recalibrators=recalibrators,
        max_new_tokens=max_new_tokens,
        truncation=truncation,
        cut=_cut,
        progress=progress,
    )
    cut: str | None = getattr(model, "truncated_to", None)
    return [
        [
            [_sampled(prompt, draws, cut) for prompt, draws in zip(prompts, of_recalibrator)]
            for of_recalibrator in run
        ]
        for run in runs
    ]


def _sampled(prompt: Prompt, draws: Draws, cut: str | None) -> Sampled:
    if isinstance(draws, QuestionError):
        return Sampled(prompt, (), draws)
    return Sampled(prompt, tuple(_draw(prompt, one) for one in draws), truncated_to=cut)


def scored_without_passages(
    model: LanguageModel,
    questions: Sequence[Question],
    sampled: Sequence[Sequence[Sampled]],
    *,
    recalibrators: Sequence[AnyRecalibrator],
    asking: PromptConfig,
) -> list[list[Sampled]]:
    """The draws of ``[recalibrator][question]``, scored in prompts that lack the passages.

    So does the paper's published code. Their `prompt` is still the one that was asked.
    """
    bare = [replace(question, context=None) for question in questions]
    examples = PromptConfig(tuple(replace(example, context=None) for example in asking.few_shot))
    prompts = examples.prompts(model, bare)
    found = []
    for recalibrator, of_recalibrator in zip(recalibrators, sampled):
        answers = [
            [_scored(model, one.prompt, draw.generation) for draw in one.draws] for one in of_recalibrator
        ]
        scores = model.score(prompts, answers, recalibrator=recalibrator)
        found.append([_with_scores(one, values) for one, values in zip(of_recalibrator, scores)])
    return found


def _scored(model: LanguageModel, prompt: Prompt, generation: Generation) -> tuple[int, ...]:
    """The tokens whose likelihood a draw has, behind those that lead to it."""
    start, end = _cut(prompt, generation)
    return model.complete(generation, end, start)


def _with_scores(one: Sampled, scores: Sequence[Sequence[float]]) -> Sampled:
    return replace(
        one,
        draws=tuple(
            replace(draw, log_likelihood=_mean(values[draw.generation.lead :]), likelihood="rescored")
            for draw, values in zip(one.draws, scores)
        ),
    )


def default_max_new_tokens(*, open_book: bool) -> int:
    """The longest generation of preset `sound`: 10 tokens closed book, 32 open book."""
    return 32 if open_book else 10


def _limit(max_new_tokens: int | None, question: Question) -> int:
    if max_new_tokens is None:
        return default_max_new_tokens(open_book=question.context is not None)
    return int(as_option(max_new_tokens, "max_new_tokens", "a positive whole number", low=0, whole=True))


def question_blocks(
    model: Sampler, questions: Iterable[Question], *, m: int, ways: int, max_new_tokens: int | None
) -> Iterator[list[Question]]:
    """Cut questions into blocks: what is sampled in one piece, and lost if that is interrupted.

    Each question gets `m` answers in each of several `ways`. The blocks depend on counts alone (questions,
    ways, tokens), so the same questions make the same blocks on every machine. A server sets their size.
    """
    most = questions_a_block(model, m, ways, BLOCK_QUESTIONS)
    budget = math.inf if hasattr(model, "questions_a_block") else BLOCK_TOKENS
    block, tokens = list[Question](), 0
    for question in questions:
        size = m * ways * _limit(max_new_tokens, question)
        size += len(question.question + (question.context or "")) // CHARACTERS
        if block and (len(block) == most or tokens + size > budget):
            yield block
            block, tokens = [], 0
        block.append(question)
        tokens += size
    if block:
        yield block


def check_question(
    model: Sampler,
    question: Question,
    *,
    recalibrators: Sequence[AnyRecalibrator],
    asking: PromptConfig,
    m: int,
    max_new_tokens: int | None,
) -> None:
    """Raise the QuestionError with which `sample_mixed_at` would refuse a question; nothing is sampled.

    So a question that does not fit can be left out of a block before the block is run: the others run in the
    batches that they would run in without it.
    """
    steps = _limit(max_new_tokens, question)
    for error in model.invalid_prompts_for_sampling(
        asking.prompts(model, [question]), recalibrators=recalibrators, m=m, max_new_tokens=steps
    ):
        raise error


def sample_mixed_at(
    model: Sampler,
    questions: Sequence[Question],
    *,
    recalibrators: Sequence[AnyRecalibrator],
    asking: PromptConfig,
    m: int,
    seed: int,
    max_new_tokens: int | None,
    truncation: Truncation | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[list[Sampled]]:
    """Sample questions with and without passages, each with its own default limit: `sample_questions`."""
    found: list[dict[str, Sampled]] = [{} for _ in recalibrators]
    for open_book in (False, True):
        alike = [question for question in questions if (question.context is not None) == open_book]
        if not alike:
            continue
        before = len(found[0]) if found else 0
        sampled = sample_questions(
            model,
            alike,
            recalibrators=recalibrators,
            asking=asking,
            m=m,
            seed=seed,
            max_new_tokens=_limit(max_new_tokens, alike[0]),
            truncation=truncation,
            progress=Advance(progress, before),
        )
        for by_id, of_recalibrator in zip(found, sampled):
            by_id.update((question.id, one) for question, one in zip(alike, of_recalibrator))
    return [[by_id[question.id] for question in questions] for by_id in found]


def asked_row(question: Question) -> dict[str, Any]:
    """Return the row of a question without what is of other draws, should it have been sampled before."""
    return {key: value for key, value in question.row().items() if key not in OF_DRAWS}


def sampled_by(
    model: Sampler,
    asking: PromptConfig,
    under: Mapping[float | None, AnyRecalibrator],
    questions: Sequence[Question],
    *,
    max_new_tokens: int | None,
    **how: Any,
) -> list[dict[str, Any]]:
    """Return how the row of each question was sampled: the key `sampled_by` of the file contracts.

    `under` is what a row's draws are under, by temperature: of several, none is named. What has no
    temperature of its own (None) is named by its fingerprint. `how` is `command`, `m` and `seed`.
    """
    from semcal.recalibration.attentive import fingerprint

    own: dict[str, Any] = {"temperature": next(iter(under))} if len(under) == 1 else {}
    own = {"recalibrator": fingerprint(under[None])} if None in under else own
    common = {
        "model": model.name,
        "revision": model.revision,
        "prompt_hash": asking.hash(model),
        **own,
        **how,
    }
    return [{**common, "max_new_tokens": _limit(max_new_tokens, question)} for question in questions]


def plan_sampling(
    model: Sampler,
    questions: Sequence[Question],
    *,
    recalibrators: Sequence[AnyRecalibrator],
    asking: PromptConfig,
    m: int,
    max_new_tokens: int | None,
) -> list[str]:
    """Return, in sentences, the tokens that sampling takes, and the time of the first question.

    Of a server without a tokenizer they are reckoned from characters, and nothing is asked of a server.
    """
    prompts = asking.prompts(model, questions)
    sizes = [sum(len(turn.content) for turn in prompt.chat) for prompt in prompts]
    n, about, tokens = len(questions), "", sum(len(prompt.token_ids) for prompt in prompts)
    if not all(prompt.token_ids for prompt in prompts):
        about, tokens = "about ", sum(sizes) // CHARACTERS
    requests = 0
    if hasattr(model, "requests_a_question"):
        requests = model.requests_a_question(m, len(recalibrators))
        tokens *= requests  # each has the whole prompt
    answers = m * len(recalibrators) * sum(_limit(max_new_tokens, question) for question in questions)
    each = f"{tokens // n:,} a question"
    lines = [f"tokens: {about}{tokens:,} of prompts ({each}), and at most {answers:,} of answers"]
    passages = n * sum(len(example.context or "") for example in asking.few_shot) / max(1, sum(sizes))
    if passages > 0.5:
        lines.append(
            f"the passages of the few-shot examples are {100 * passages:.0f} % of the prompts: fewer "
            "examples, or shorter passages in them, take less"
        )
    if requests:
        charged = "time: not measured, since a server may charge for a first question"
        return [f"requests: {n * requests:,}", *lines, charged]
    how: Any = {"recalibrators": recalibrators, "asking": asking, "m": m, "seed": 0}
    seconds = 0.0
    for _ in range(2):  # the first time also reads what all prompts begin with
        begun = time.perf_counter()
        sample_mixed_at(model, questions[:1], max_new_tokens=max_new_tokens, **how)
        seconds = time.perf_counter() - begun
    most = f"a first question took {seconds:.2g} s by itself, so all take at most {duration(n * seconds)}"
    return [*lines, f"time: {most}; questions that share a pass take less"]


@dataclass(frozen=True)
class SamplePass:
    """Draws that share a pass of the model: `m` of each question in each run under each recalibrator."""

    recalibrators: tuple[RecalibratorSource | AnyRecalibrator, ...]
    seeds: tuple[int, ...]  # one a run
    m: int
    runs: tuple[int, ...] = (0,)
    counts: tuple[int, ...] = ()  # numbers of draws that the m are also cut to


@dataclass(frozen=True)
class SampleJob:
    """Answers to some questions: what `semcal sample` and the grid have workers do.

    Rows come by pass, run, recalibrator and question. By default they hold what later stages read. `full`
    rows are those of `semcal sample`; questions with and without passages are then sampled apart, each with
    its own default limit, and without truncation.
    """

    stage: ClassVar[str] = "sample"
    questions: tuple[Question, ...]
    asking: PromptConfig
    passes: tuple[SamplePass, ...]
    max_new_tokens: int | None
    truncation: tuple[int, float] | None = None  # top-k and top-p
    scored_in: str = "whole prompt"
    full: bool = False

    def key(self) -> dict[str, Any]:
        """What its rows depend on beside the model, as it names their block."""
        return {
            "questions": [question.row() for question in self.questions],
            "passes": [
                {
                    **{name: list(getattr(one, name)) for name in ("runs", "seeds", "counts")},
                    "recalibrators": [source.key() for source in _sources(one)],
                    "m": one.m,
                }
                for one in self.passes
            ],
            "longest": self.max_new_tokens,
            "truncation": dict(zip(("top_k", "top_p"), self.truncation)) if self.truncation else None,
            "scored_in": self.scored_in,
        }

    def __call__(self, state: WorkerState, progress: Progress) -> list[dict[str, Any]]:
        """Sample."""
        if self.full:
            return [row for given in self.passes for row in self._full_rows(state, given, progress)]
        return [row for given in self.passes for row in self._rows(state, given, progress)]

    def _full_rows(
        self, state: WorkerState, given: SamplePass, progress: Progress
    ) -> Iterator[dict[str, Any]]:
        from semcal.recalibration.temperature import temperature_of

        recalibrators = list(map(state.recalibrator, given.recalibrators))
        for seed in given.seeds:
            how: Any = {"m": given.m, "seed": seed, "max_new_tokens": self.max_new_tokens}
            found = sample_mixed_at(
                state.model,
                self.questions,
                recalibrators=recalibrators,
                asking=self.asking,
                progress=progress,
                **how,
            )
            for recalibrator, of_recalibrator in zip(recalibrators, found):
                under = {temperature_of(recalibrator): recalibrator}
                by = sampled_by(state.model, self.asking, under, self.questions, command="sample", **how)
                for question, one, origin in zip(self.questions, of_recalibrator, by):
                    yield {
                        **asked_row(question),
                        **one.fields(),
                        **({} if one.failure else {"sampled_by": origin}),
                    }

    def _rows(self, state: WorkerState, given: SamplePass, progress: Progress) -> Iterator[dict[str, Any]]:
        from semcal.engine.drawing import Truncation

        assert self.max_new_tokens is not None
        recalibrators = list(map(state.recalibrator, given.recalibrators))
        runs = sample_runs(
            state.model,
            self.questions,
            recalibrators=recalibrators,
            seeds=given.seeds,
            asking=self.asking,
            m=given.m,
            max_new_tokens=self.max_new_tokens,
            truncation=Truncation(*self.truncation) if self.truncation else None,
            progress=progress,
        )
        for run, sampled in zip(given.runs, runs):
            if self.scored_in == "prompt without passage":
                sampled = scored_without_passages(
                    state.language_model,
                    self.questions,
                    sampled,
                    recalibrators=recalibrators,
                    asking=self.asking,
                )
            for source, of_recalibrator in zip(_sources(given), sampled):
                for question, found in zip(self.questions, of_recalibrator):
                    yield {
                        "id": question.id,
                        "candidate": source.name,
                        "run": run,
                        **({"counts": list(given.counts)} if given.counts else {}),
                        **found.scored(),
                    }


def _sources(given: SamplePass) -> list[RecalibratorSource]:
    return [source for source in given.recalibrators if isinstance(source, RecalibratorSource)]
