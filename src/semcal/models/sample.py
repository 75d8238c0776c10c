"""Samples and their likelihoods (spec sections 4 and 5.1, 5.2)."""

from __future__ import annotations

import hashlib
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from semcal.arrays import as_option, check_seed
from semcal.data.question import Question
from semcal.errors import QuestionError, UsageError, shown
from semcal.meaning.answer import AnswerFormat, AnswerSpan
from semcal.models.distribution import Temperature, fingerprint, temperature_of
from semcal.models.prompting import PromptConfig
from semcal.models.protocols import (
    AnyRecalibrator,
    Generation,
    LanguageModel,
    Prompt,
    Sampler,
    SampleRequest,
    questions_a_block,
    requests_a_question,
)
from semcal.progress import Advance, duration
from semcal.rows import (
    FAILED,
    OF_DRAWS,
    AnswerKind,
    Draws,
    Json,
    Row,
    SampledBy,
    StatedAnswer,
    Tokens,
    TokenScores,
    stated_answers,
)
from semcal.steps import RecalibratorSource, Step, WorkerState
from semcal.store import key_of
from semcal.workers import Progress

if TYPE_CHECKING:
    from semcal.models.engine.draw import Truncation

_T = TypeVar("_T")
#: Maximum questions of a block, and maximum tokens of questions, passages and answers of maximum length. A
#: model of 10⁸ parameters takes some 20 seconds per block on two processors.
BLOCK_QUESTIONS, BLOCK_TOKENS = 64, 6144
#: Characters per token in this count, so that blocks do not depend on the tokenizer.
CHARACTERS = 4


@dataclass(frozen=True, init=False)
class SamplingConfig:
    """Settings of samples: their number, seed, temperatures and maximum length.

    Attributes
    ----------
    m : int
        Samples of each question at each temperature.
    seed : int
        Seed of the random numbers; they are derived from the seed and the id of the question.
    temperatures : sequence of float, or float
        A calibration takes the answer from the samples at the first temperature, 1; samples at the others are
        features. Without a calibration, the single temperature is that of the recalibrator.
    max_new_tokens : int, optional
        Maximum tokens of a generation. The default is 10 without a passage and 32 with one.
    truncation : Truncation, optional
        Top-k and top-p of samples; none by default. Likelihoods always use the whole vocabulary.
    answer_format : str
        The rule that reads the answer in a generation: "auto", "first", "final", "whole", "json",
        "json:/POINTER" or "regex:PATTERN" (`semcal.meaning.answer`).

    Raises
    ------
    UsageError
        If a value is out of range, which the message names.

    Examples
    --------
    >>> SamplingConfig(m=5, temperatures=1).temperatures
    (1.0,)
    """

    m: int
    seed: int
    temperatures: tuple[float, ...]
    max_new_tokens: int | None
    truncation: Truncation | None
    answer_format: str

    def __init__(
        self,
        m: int = 10,
        seed: int = 0,
        temperatures: Sequence[float] | float = (1.0, 0.5),
        max_new_tokens: int | None = None,
        truncation: Truncation | None = None,
        answer_format: str = "auto",
    ) -> None:
        m = int(as_option(m, "m", "a positive whole number of samples, such as 10", low=0, whole=True))
        check_seed(seed)
        if max_new_tokens is not None:
            as_option(max_new_tokens, "max_new_tokens", "a positive whole number", low=0, whole=True)
        if truncation is not None and not hasattr(truncation, "top_p"):
            raise UsageError(f"truncation: got {shown(truncation)}. Pass semcal.models.Truncation(top_p=0.9)")
        AnswerFormat(answer_format)
        is_list = isinstance(temperatures, Iterable) and not isinstance(temperatures, str)
        numbers: Any = temperatures if is_list else [temperatures]
        what = "a positive number, such as 0.5, or a list of them"
        vars(self).update(
            m=m,
            seed=int(seed),
            temperatures=tuple(as_option(number, "temperatures", what, low=0) for number in numbers),
            max_new_tokens=max_new_tokens,
            truncation=truncation,
            answer_format=answer_format,
        )


@dataclass(frozen=True)
class Sampling:
    """Settings of a sampling: m samples of each question in each run with each recalibrator.

    All recalibrators share one pass over the prompts and the same random numbers, which are derived from the
    seed of the run and the id of the question. A generation that reaches `max_new_tokens` is scored with an
    end of turn after it.
    """

    recalibrators: tuple[AnyRecalibrator, ...]
    asking: PromptConfig = field(default_factory=PromptConfig)
    config: SamplingConfig = field(default_factory=SamplingConfig)
    seeds: tuple[int, ...] = ()  # one seed per run; the default is one run with the seed of `config`
    first: int = 0  # index of the first sample: earlier samples are omitted
    schema: Json | None = None  # JSON Schema of structured answers, sent to a server

    def __post_init__(self) -> None:
        object.__setattr__(self, "seeds", self.seeds or (self.config.seed,))

    @property
    def m(self) -> int:
        """Samples of each question with each recalibrator in each run."""
        return self.config.m

    @property
    def answer_format(self) -> AnswerFormat:
        """The rule that reads the answer in a generation."""
        return AnswerFormat(self.config.answer_format)

    def limit(self, question: Question | Row) -> int:
        """Return the largest number of tokens of a generation."""
        usual = default_max_new_tokens(open_book=question.context is not None)
        return self.config.max_new_tokens or usual

    def passes(self, model: Sampler, questions: Sequence[Question]) -> Iterator[tuple[int, SampleRequest]]:
        """Yield the requests for questions that have one limit, each with the number of its prompt variant.

        Without variants there is one request. Otherwise sample j of a question has variant (r + j) mod V,
        with r derived from the seed and the id of the question, so that each question has all variants
        equally often, give or take one sample. No two variants share random numbers.
        """
        variants = self.asking.variants(questions[0]) if self.asking.vary != 1 else [self.asking]
        most = math.ceil(self.m / len(variants))
        shares = {question.id: self.variants_of(question, len(variants)) for question in questions}
        for number, asking in enumerate(variants):
            for count in range(1, most + 1):
                group = [question for question in questions if shares[question.id].count(number) == count]
                if not group:
                    continue
                request = SampleRequest(
                    asking.prompts(model, group),
                    self.recalibrators,
                    m=count,
                    seeds=self.seeds,
                    max_new_tokens=self.limit(group[0]),
                    truncation=self.config.truncation,
                    cut=partial(_cut, self.answer_format),
                    first=number * most + self.first,
                    schema=self.schema,
                )
                yield number, request

    def variants_of(self, question: Question, variants: int) -> list[int]:
        """Return the number of the prompt variant of each sample of a question."""
        start = int(hashlib.sha256(f"{self.config.seed}:{question.id}".encode()).hexdigest(), 16)
        return [(start + sample) % variants for sample in range(self.m)]

    def sampled_by(
        self,
        model: Sampler,
        questions: Sequence[Question],
        command: str,
        temperatures: Sequence[float | None],
    ) -> list[SampledBy]:
        """Return the origin of the samples of each question; it names only a single recalibrator.

        A recalibrator without a temperature (None) is named by its fingerprint.
        """
        untempered = [rule for rule, t in zip(self.recalibrators, temperatures) if t is None]
        by = SampledBy(
            model=model.name,
            revision=model.revision,
            temperature=temperatures[0] if len(temperatures) == 1 else None,
            recalibrator=fingerprint(untempered[0]) if untempered else None,
            command=command,
            m=self.m,
            seed=self.seeds[0],
        )
        templates = {self.asking.template_of(question): question for question in questions}
        hashes = {template: self.asking.hash(model, question) for template, question in templates.items()}
        return [
            replace(
                by,
                prompt_hash=hashes[self.asking.template_of(question)],
                max_new_tokens=self.limit(question),
            )
            for question in questions
        ]


@dataclass(frozen=True)
class Draw:
    """One sampled answer."""

    generation: Generation
    text: str | None  # the answer in the generation; None without an answer
    log_likelihood: float | None  # length-normalized, of the answer and end of turn (nats per token)
    likelihood: str | None  # "sampled", or "rescored" for a cut generation with an end of turn
    finished: bool | None = True  # True if it ended before the token limit; None: unknown
    token_scores: TokenScores | None = None


@dataclass(frozen=True)
class Sampled:
    """The m samples of one question with one recalibrator, or the failure."""

    prompt: Prompt
    draws: tuple[Draw, ...]
    failure: QuestionError | None = None
    truncated_to: str | None = None  # accepted truncation by a server
    answer_format: str = "auto"
    variants: tuple[int, ...] = ()  # number of the prompt variant of each draw; empty without variants

    def add_to(self, row: Row, *, tokens: bool = False, scores: bool = True) -> Row:
        """Add answers and their likelihoods, which are null unless all are known; or add the failure.

        With `tokens` also add generations, null if a server does not report them; with `scores` token scores.
        """
        if self.failure is not None:
            return row.set(**{FAILED: self.failure.reason})
        scored = all(draw.log_likelihood is not None or draw.text is None for draw in self.draws)
        refusals = [draw.generation.refusal or None for draw in self.draws]
        draws = Draws(
            samples=[draw.text for draw in self.draws],
            log_likelihoods=[draw.log_likelihood for draw in self.draws] if scored else None,
            likelihood=[draw.likelihood for draw in self.draws] if scored else None,
            finished=[draw.finished for draw in self.draws],
            token_scores=[draw.token_scores for draw in self.draws] if scored and scores else None,
            answer_format=self.answer_format,
            refusals=refusals if any(refusals) else None,
            prompt_variants=list(self.variants) or None,
        )
        if not tokens:
            return row.add(draws)
        generations = [draw.generation for draw in self.draws]
        log_probs = [list(generation.token_log_probs) or None for generation in generations]
        texts = [list(generation.token_texts) or None for generation in generations]
        return row.add(
            Tokens(
                prompt_token_ids=None if self.variants else list(self.prompt.token_ids) or None,
                generations=[generation.text for generation in generations],
                token_ids=_all_or_none([list(generation.token_ids) for generation in generations]),
                token_log_probs=log_probs if any(texts) else _all_or_none(log_probs),
                truncated_to=self.truncated_to,
                token_texts=texts if any(texts) else None,
            ),
            draws,
        )


def _all_or_none(of_samples: Sequence[Sequence[_T] | None]) -> Sequence[Sequence[_T]] | None:
    """Return the values of all samples; None if they are unknown for one sample."""
    known = [of_sample for of_sample in of_samples if of_sample]
    return known if len(known) == len(of_samples) else None


def _token_scores(log_probs: Sequence[float]) -> TokenScores | None:
    """Return the smallest and the mean probability of tokens; None without tokens."""
    probabilities = [math.exp(log_prob) for log_prob in log_probs]
    return [min(probabilities), math.fsum(probabilities) / len(probabilities)] if probabilities else None


def _mean(log_probs: Sequence[float]) -> float | None:
    return math.fsum(log_probs) / len(log_probs) if log_probs else None


def read_answer(
    answer_format: AnswerFormat, prompt: Prompt | Question, generation: Generation
) -> AnswerSpan | None:
    """Return the answer in a generation; None if there is no answer."""
    return None if generation.refusal is not None else answer_format.read(generation.text, prompt.question)


def _cut(answer_format: AnswerFormat, prompt: Prompt, generation: Generation) -> tuple[int, int, bool]:
    """Return start and end of the scored text, with blanks before an end of turn, and if the end is scored.

    Without an answer, the generation is not cut.
    """
    answer, text = read_answer(answer_format, prompt, generation), generation.text
    if answer is None:
        return 0, len(text), False
    complete = bool(generation.finished) and not text[answer.end :].strip()
    return answer.start, len(text) if complete else answer.end, not answer.embedded


def _draw(answer_format: AnswerFormat, prompt: Prompt, generation: Generation) -> Draw:
    answer = read_answer(answer_format, prompt, generation)
    if answer is None:
        return Draw(generation, None, None, None, generation.finished)
    scores = generation.token_log_probs if generation.rescored is None else generation.rescored
    likelihood = "sampled" if scores == generation.token_log_probs[: len(scores)] else "rescored"
    finished = answer.closed or generation.finished
    scores = scores[generation.lead :]
    return Draw(generation, answer.text, _mean(scores), likelihood, finished, _token_scores(scores))


def sample_runs(
    model: Sampler,
    questions: Sequence[Question],
    sampling: Sampling,
    *,
    progress: Callable[[int], None] | None = None,
) -> list[list[list[Sampled]]]:
    """Sample questions with distinct ids: ``[run][recalibrator][question]``.

    Questions with and without passages are sampled separately, each group with its own default limit.
    `progress` receives the number of finished questions.
    """
    # by run, recalibrator and question: the samples of each prompt variant
    parts = defaultdict[tuple[int, int, str], dict[int, Sampled]](dict)
    n_done = 0
    for group in _by_passage(questions):
        passes, before = list(sampling.passes(model, group)), 0
        weight = len(group) / sum(len(request.prompts) for _, request in passes)
        for variant, request in passes:
            runs = model.sample(request, Advance(progress, n_done + before * weight, weight))
            before += len(request.prompts)
            for run, of_recalibrators in enumerate(runs):
                for place, of_prompts in enumerate(of_recalibrators):
                    for prompt, draws in zip(request.prompts, of_prompts):
                        sampled = _sampled(model, sampling, prompt, draws)
                        parts[run, place, prompt.question_id][variant] = sampled
        n_done += len(group)
    return [
        [
            [_joined(sampling, question, parts[run, place, question.id]) for question in questions]
            for place in range(len(sampling.recalibrators))
        ]
        for run in range(len(sampling.seeds))
    ]


def _sampled(
    model: Sampler, sampling: Sampling, prompt: Prompt, draws: Sequence[Generation] | QuestionError
) -> Sampled:
    if isinstance(draws, QuestionError):
        return Sampled(prompt, (), draws)
    return Sampled(
        prompt,
        tuple(_draw(sampling.answer_format, prompt, draw) for draw in draws),
        None,
        model.capabilities.truncated_to,
        sampling.answer_format.name,
    )


def _joined(sampling: Sampling, question: Question, parts: Mapping[int, Sampled]) -> Sampled:
    whole = next((one for one in parts.values() if one.failure), next(iter(parts.values())))
    if whole.failure or sampling.asking.vary == 1:
        return whole
    vary = sampling.asking.vary
    variants = sampling.variants_of(question, vary if isinstance(vary, int) else 1 + len(vary))
    rest = {number: iter(part.draws) for number, part in parts.items()}
    return replace(whole, draws=tuple(next(rest[one]) for one in variants), variants=tuple(variants))


def _by_passage(questions: Sequence[Question]) -> list[list[Question]]:
    """Split questions by passage: each group has one token limit and a common prefix."""
    groups = [[q for q in questions if (q.context is not None) == open_book] for open_book in (False, True)]
    return [group for group in groups if group]


def state_answers(
    model: Sampler,
    questions: Sequence[Question],
    kind: AnswerKind,
    sampling: Sampling,
    *,
    progress: Callable[[int], None] | None = None,
) -> list[StatedAnswer | QuestionError]:
    """Return the answer to each question that is "given" in its row, or "greedy", with its log-likelihood.

    Greedy is the answer of the model at T = 0, read like samples. The log-likelihood is that of the model's
    distribution (T = 1), length-normalized (nats per token), with the end of turn. If a server cannot score a
    given answer, the log-likelihood is that of the row, if known. The result has a QuestionError in place of
    an answer that is missing in the reply of a server, or too long for the model.
    """
    stated: dict[str, StatedAnswer | QuestionError] = {}
    for group in _by_passage(questions):
        stated |= _state_group(model, group, kind, sampling, Advance(progress, len(stated)))
    return [stated[question.id] for question in questions]


def _state_group(
    model: Sampler, questions: Sequence[Question], kind: AnswerKind, sampling: Sampling, progress: Progress
) -> dict[str, StatedAnswer | QuestionError]:
    prompts, own = sampling.asking.prompts(model, questions), Temperature(1.0)
    reader = cast("LanguageModel", model) if model.capabilities.states else None
    answers, failures = dict[str, StatedAnswer](), dict[str, QuestionError]()
    unread: dict[str, tuple[int, ...]] = {}  # tokens of answers with a still unknown likelihood
    if kind == "given":
        rows = [Row.of(question).without("answer_cluster") for question in questions]
        for question, answer in zip(questions, stated_answers(rows, kind)):
            answers[question.id] = answer
            if reader is not None:
                answered = replace(question, answers=(answer.text or "",))
                (unread[question.id],) = sampling.asking.answers(reader, answered)
    else:
        greedy = model.greedy(
            prompts,
            recalibrator=own,
            max_new_tokens=sampling.limit(questions[0]),
            progress=progress,
            schema=sampling.schema,
        )
        for prompt, generation in zip(prompts, greedy):
            if isinstance(generation, QuestionError):
                failures[prompt.question_id] = generation
                continue
            start, end, ended = _cut(sampling.answer_format, prompt, generation)
            draw = _draw(sampling.answer_format, prompt, generation)
            complete = generation.finished and not start and end == len(generation.text)
            likelihood, scores = (draw.log_likelihood, draw.token_scores) if complete else (None, None)
            answers[prompt.question_id] = StatedAnswer(draw.text, likelihood, token_scores=scores)
            if reader is not None and likelihood is None and draw.text is not None:
                unread[prompt.question_id] = reader.complete(generation, end, start, ended)
    if reader is not None and unread:
        read = [prompt for prompt in prompts if prompt.question_id in unread]
        tokens = [[unread[prompt.question_id]] for prompt in read]
        failures |= {error.question_id: error for error in reader.invalid_prompts(read, tokens)}
        fitting = [prompt for prompt in read if prompt.question_id not in failures]
        tokens = [[unread[prompt.question_id]] for prompt in fitting]
        read_scores = reader.score(fitting, tokens, recalibrator=own) if fitting else []
        for prompt, (log_probs,) in zip(fitting, read_scores):
            answer = answers[prompt.question_id]
            answers[prompt.question_id] = replace(
                answer, log_likelihood=_mean(log_probs), token_scores=_token_scores(log_probs)
            )
    return {**answers, **failures}


def add_stated_answers(
    model: Sampler, rows: Sequence[Row], kind: AnswerKind, sampling: Sampling
) -> list[Row]:
    """Add the answers of `state_answers`, or the failure, to rows; several rows may share a question."""
    questions = {row.id: row.to_question() for row in rows if row.failure is None}
    stated = dict(zip(questions, state_answers(model, list(questions.values()), kind, sampling)))
    return [_add_stated(row, kind, stated[row.id]) if row.id in stated else row for row in rows]


def _add_stated(row: Row, kind: AnswerKind, answer: StatedAnswer | QuestionError) -> Row:
    if isinstance(answer, QuestionError):
        return row.set(**{FAILED: answer.reason})
    return row.set_stated(kind, answer)


def default_max_new_tokens(*, open_book: bool) -> int:
    """Return the maximum tokens of a generation in preset `sound`: 10 closed book, 32 open book."""
    return 32 if open_book else 10


def question_blocks(model: Sampler, rows: Iterable[Row], sampling: Sampling) -> Iterator[list[Row]]:
    """Split questions into blocks; a block is sampled at once, and lost if it is interrupted.

    Blocks depend only on counts (questions, recalibrators, tokens), so they are equal on every machine. For a
    server, the number of requests limits their size.
    """
    ways = len(sampling.recalibrators)
    most = questions_a_block(model, sampling.m, ways, BLOCK_QUESTIONS)
    budget = BLOCK_TOKENS if model.capabilities.answers_a_request is None else math.inf
    block, tokens = list[Row](), 0
    for row in rows:
        size = sampling.m * ways * sampling.limit(row)
        size += len(row.question + (row.context or "")) // CHARACTERS
        size += sum(len(turn.content) for turn in row.messages) // CHARACTERS
        if block and (len(block) == most or tokens + size > budget):
            yield block
            block, tokens = [], 0
        block.append(row)
        tokens += size
    if block:
        yield block


def check_question(model: Sampler, question: Question, sampling: Sampling) -> None:
    """Raise the QuestionError with which `sample_runs` would reject a question, without sampling.

    This allows to remove a question that is too long before its block runs, so that the other questions run
    in the same batches as without it.
    """
    for _, request in sampling.passes(model, [question]):
        for error in model.invalid_prompts_for_sampling(request):
            raise error


def row_to_ask(question: Question) -> Row:
    """Return the row of a question without the keys of earlier samples."""
    return Row(question.row()).without(*OF_DRAWS)


def plan_sampling(model: Sampler, questions: Sequence[Question], sampling: Sampling) -> list[str]:
    """Return sentences about the tokens of a sampling, and the time of the first question.

    For a server without a tokenizer, tokens are estimated from characters. If a server needs N > 1 requests
    for a question, a prompt cache reduces the cost of their P N prompt tokens to that of P (N − f (N − 1)),
    where f is the cached share times its discount; the sentence gives f = 0.5 and 0.9. A server that may
    charge gets no request.
    """
    ways = len(sampling.recalibrators)
    n, about, tokens, requests, repeated = len(questions), "", 0, 0, 0
    for group in _by_passage(questions):
        for _, request in sampling.passes(model, group):
            each = requests_a_question(model, request.m, ways)
            sizes = [sum(len(turn.content) for turn in prompt.chat) for prompt in request.prompts]
            requests += each * len(sizes)
            if all(prompt.token_ids for prompt in request.prompts):
                size = sum(len(prompt.token_ids) for prompt in request.prompts)
            else:
                about, size = "about ", sum(sizes) // CHARACTERS
            tokens += size * (each or 1)  # each request has the whole prompt
            repeated += size * max(0, each - 1)
    answers = sampling.m * ways * sum(sampling.limit(question) for question in questions)
    a_question = f"{tokens // n:,} per question"
    lines = [f"tokens: {about}{tokens:,} of prompts ({a_question}), and at most {answers:,} of answers"]
    if repeated:
        half, most = (f"{tokens - int(f * repeated):,}" for f in (0.5, 0.9))
        lines.append(
            f"a server that caches prompts charges repetitions as {about}{half} prompt tokens at a discount "
            f"of 50%, or {most} at 90%"
        )
    if requests:
        lines.insert(0, f"requests: {requests:,}")
    if model.capabilities.may_charge:
        return [*lines, "time: not measured, because a server may charge for a first question"]
    seconds = 0.0
    for _ in range(2):  # the first pass also reads the common prefix of prompts
        start = time.perf_counter()
        ((asked, *_),) = sample_runs(model, questions[:1], replace(sampling, seeds=(0,)))
        seconds = time.perf_counter() - start
        if (failure := asked[0].failure) is not None:
            return [*lines, f"time: unknown: {failure}"]
    longest = f"one question took {seconds:.2g} s, so all take at most {duration(math.ceil(n * seconds))}"
    together = "concurrent requests" if requests else "questions that are computed together"
    return [*lines, f"time: {longest}; {together} take less"]


@dataclass(frozen=True)
class SampleStep(Step):
    """A step that samples the questions of rows with `sample_runs`, ordered by run, then by recalibrator.

    With `full`, rows have the tokens and `sampled_by`. With `answer` "greedy" or "given", rows have this
    answer and its log-likelihood. With `names`, rows have the key `candidate`, the name of the recalibrator.
    With `sources`, from which a worker creates the recalibrators, rows have `candidate`, `run` and, if set,
    `counts`: smaller numbers of samples for analyses.
    """

    name: ClassVar[str] = "sample"
    needs: ClassVar[tuple[str, ...]] = ("model",)
    sampling: Sampling
    full: bool = False
    answer: AnswerKind = "modal"
    names: tuple[str, ...] = ()
    sources: tuple[RecalibratorSource, ...] = ()
    runs: tuple[int, ...] = (0,)  # one run per seed
    counts: tuple[int, ...] = ()

    def key(self) -> Json:
        """Return the fields of the step, with fingerprints of recalibrators."""
        recalibrators = [fingerprint(recalibrator) for recalibrator in self.sampling.recalibrators]
        sampling = {**vars(self.sampling), "recalibrators": recalibrators, "block_tokens": BLOCK_TOKENS}
        return {name: key_of(value) for name, value in {**vars(self), "sampling": sampling}.items()}

    def __call__(self, rows: Sequence[Row], models: WorkerState, progress: Progress) -> list[Row]:
        """Return the rows with samples."""
        questions, sampling = [row.to_question() for row in rows], self._sampling(models)
        asked, sampled_rows = list(map(row_to_ask, questions)), list[Row]()
        if self.answer != "modal":
            added = add_stated_answers(models.model, asked, self.answer, sampling)
            asked = [row.without("greedy_cluster", "answer_cluster") for row in added]
        for run, sampled in zip(self.runs, sample_runs(models.model, questions, sampling, progress=progress)):
            for place, (recalibrator, draws) in enumerate(zip(sampling.recalibrators, sampled)):
                origin = self._origin(place, run)
                made = [
                    one.add_to(row, tokens=self.full, scores=not self.sources).set(**origin)
                    for row, one in zip(asked, draws)
                ]
                if self.full:
                    made_with = replace(sampling, recalibrators=(recalibrator,))
                    by = made_with.sampled_by(
                        models.model, questions, "sample", [temperature_of(recalibrator)]
                    )
                    made = [
                        row if row.failure else row.set(sampled_by=sampled_by.to_json())
                        for row, sampled_by in zip(made, by)
                    ]
                sampled_rows += made
        return sampled_rows

    def _sampling(self, models: WorkerState) -> Sampling:
        if not self.sources:
            return self.sampling
        return replace(self.sampling, recalibrators=tuple(map(models.recalibrator, self.sources)))

    def _origin(self, place: int, run: int) -> dict[str, Any]:
        if not self.sources:
            return {"candidate": self.names[place]} if self.names else {}
        counts = {"counts": list(self.counts)} if self.counts else {}
        return {"candidate": self.sources[place].name, "run": run, **counts}
