"""The protocols of what draws answers and of a language model, and the records that go in and come out."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast

from semcal.data.question import SYSTEM_MESSAGE, Question, Turn, answer_turn, chat, turns_of
from semcal.data.template import Template
from semcal.errors import InputError, ModelError, QuestionError, SemcalWarning, UsageError
from semcal.models.distribution import AnyRecalibrator

if TYPE_CHECKING:
    import torch

    from semcal.models.drawing import Truncation
    from semcal.models.features import BlockShape, FitFeatures
    from semcal.rows import Row
from semcal.workers import Progress

#: Enough to keep a server busy, and few to ask again after a stop.
REQUESTS_A_BLOCK = 128


@dataclass(frozen=True)
class Prompt:
    """A whole prompt, ready for the answer's first token."""

    question_id: str  # names the question in errors; its random numbers are derived from it
    token_ids: tuple[int, ...]  # at most one BOS, then all up to the answer; empty where a server encodes
    chat: tuple[Turn, ...] = ()  # what it encodes, for a server that takes messages
    examples: int = 0  # tokens that every prompt with the same few-shot examples begins with; 0: not known
    question: str = ""  # what it asks, which an answer may say again


@dataclass(frozen=True)
class Generation:
    """One generated answer. What a server does not tell is empty."""

    text: str  # decoded, without special tokens and without the end of turn
    token_ids: tuple[int, ...]  # as they were drawn, the end of turn included when it was drawn
    #: Natural log-probability of each at the recalibrated distribution over the whole vocabulary.
    token_log_probs: tuple[float, ...]
    #: Whether the end of turn was drawn, or else the token limit reached; None if a server does not say.
    finished: bool | None
    #: If `sample` was given a `cut` that applies to this answer, the log-probability of each token of
    #: ``complete(generation, end, start)``, where these are not the drawn ones.
    rescored: tuple[float, ...] | None = None
    lead: int = 0  # how many of the first of these tokens only lead to the answer
    #: What a server gave in place of an answer: the text of a refusal, or "" (a content of null, no text, or
    #: reasoning alone); None if there is a text to read.
    refusal: str | None = None


LabelledPrompt = tuple[Question, Prompt, list[tuple[int, ...]]]
"""A question, its prompt, and the token ids of its distinct reference answers."""

Answers = Sequence[Sequence[tuple[int, ...]]]
"""By question the token ids of each of its answers."""

GenerationCut = Callable[[Prompt, Generation], tuple[int, int, bool]]
"""Start and end of what is scored of a draw's text, and whether an end of turn is scored behind it."""


GenerationsOrError: TypeAlias = "list[Generation] | QuestionError"
"""The answers drawn to one prompt, or why there are none."""


@dataclass(frozen=True)
class SampleRequest:
    """What is drawn: `m` answers to each prompt under each recalibrator, in each run.

    Plain multinomial sampling. The random numbers of a draw depend on the seed of its run, the id of its
    question and its number alone, and all recalibrators share them.
    """

    prompts: Sequence[Prompt]  # with distinct ids; their common prefix runs once, and the rest of each once
    recalibrators: Sequence[AnyRecalibrator]  # each gets draws of its own
    m: int = 10  # draws per question, recalibrator and run
    seeds: Sequence[int] = (0,)  # one a run
    max_new_tokens: int = 10  # an answer's length in tokens, end of turn included
    truncation: Truncation | None = None  # top-k and top-p; by default the whole vocabulary is drawn from
    #: The part of a sample's text that is scored; samples that are cut have `Generation.rescored`.
    cut: GenerationCut | None = None
    first: int = 0  # number of the first draw: those before it are left out, the others stay the same


@dataclass(frozen=True)
class Capabilities:
    """What a sampler can do beside drawing answers. The defaults are those of a model in this process."""

    states: bool = True  # hidden states, logits and beams: it is a `LanguageModel`
    likelihoods: bool = True  # of draws at every temperature
    max_temperature: float | None = None  # the largest that is drawn at; None: no limit
    truncated_to: str | None = None  # how it cuts the distribution although the whole is asked for
    answers_a_request: int | None = None  # to one question in one request; None: there are no requests
    may_charge: bool = False  # a request may cost money
    messages: bool = True  # it takes whole chats; a base model takes text alone
    system: bool = True  # a system message has a place of its own, not before the first user turn
    next_tokens: bool = True  # log-probabilities of the tokens that an answer may begin with


DrawnT = TypeVar("DrawnT", covariant=True)
AnswerT = TypeVar("AnswerT", covariant=True)


class DrawsAnswers(Protocol[DrawnT, AnswerT]):
    """What a language model and a server do alike: draw answers (`DrawnT` to a prompt)."""

    @property
    def name(self) -> str:
        """Hub id, directory name, or what a server calls the model."""

    @property
    def revision(self) -> str:
        """Commit on the hub, hash of the files of a directory, or the server's version."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do beside drawing answers."""

    def encode(self, chat: Sequence[Turn]) -> tuple[int, ...]:
        """Encode a chat that ends with a user turn as a prompt; empty where a server does that."""

    def sample(
        self, request: SampleRequest, progress: Progress | None = None
    ) -> Sequence[Sequence[Sequence[DrawnT]]]:
        """Draw what a request asks for: ``[run][recalibrator][prompt][draw]``.

        Where a server failed for good, the error stands in place of a prompt's draws.
        """

    def greedy(
        self,
        prompts: Sequence[Prompt],
        *,
        recalibrator: AnyRecalibrator,
        max_new_tokens: int = 10,
        progress: Progress | None = None,
    ) -> Sequence[AnswerT]:
        """Answer each prompt with the most likely token at every step."""

    def prompt_text(self, prompt: Prompt) -> str:
        """What it gets of a prompt, as text to be read."""

    def special_tokens_in(self, text: str) -> tuple[str, ...]:
        """The special tokens that a text spells; `encode` and `encode_answer` encode them as plain text."""

    def invalid_prompts_for_sampling(self, request: SampleRequest) -> list[QuestionError]:
        """The errors that `sample` would raise: prompts with no room for an answer, or over the budget."""


class Sampler(DrawsAnswers[GenerationsOrError, "Generation | QuestionError"], Protocol):
    """What answers can be drawn from: a language model, or a server (`semcal.servers`)."""


class GivesSomeLikelihoods(Protocol):
    """What gives likelihoods of some draws only."""

    def check_likelihoods(self, recalibrator: AnyRecalibrator, measure: str) -> None:
        """Raise UsageError, with the remedy, if a measure reads likelihoods and they cannot be known."""


class ListsTokens(Protocol):
    """What lists the tokens that an answer may begin with: a server with log-probabilities."""

    def next_tokens(self, prompts: Sequence[Prompt]) -> list[dict[str, float] | QuestionError]:
        """Log-probabilities (nats, T = 1) of the likeliest first tokens of an answer, by their text."""


class ReadsAnswers(Protocol):
    """What given answers can be read with."""

    def encode_answer(self, chat: Sequence[Turn], answer: str) -> tuple[int, ...]:
        """Encode a given answer to `chat`, its end of turn included once."""

    def invalid_prompts(self, prompts: Sequence[Prompt], answers: Answers) -> list[QuestionError]:
        """The errors of prompts with no room for their answers."""


class AnswerReader(Sampler, ReadsAnswers, Protocol):
    """What given answers can be read with: a language model, or a server with the model's tokenizer."""


class LanguageModel(DrawsAnswers[list[Generation], Generation], ReadsAnswers, Protocol):
    """A language model that can be sampled and scored, with states and logits; `load_model` makes one."""

    @property
    def width(self) -> int:
        """Size of a hidden state."""

    @property
    def dtype(self) -> str:
        """Of the hidden states: "float32", "bfloat16" or "float16"."""

    def complete(
        self, generation: Generation, end: int, start: int = 0, ended: bool = True
    ) -> tuple[int, ...]:
        """Token ids of ``generation.text[:end]`` and the end of turn, to be scored; some begin at `start`."""

    def beam(
        self,
        prompts: Sequence[Prompt],
        *,
        recalibrator: AnyRecalibrator,
        num_beams: int = 4,
        max_new_tokens: int = 10,
        progress: Progress | None = None,
    ) -> list[Generation]:
        """Answer each prompt by beam search."""

    def score(
        self,
        prompts: Sequence[Prompt],
        answers: Answers,
        *,
        recalibrator: AnyRecalibrator,
        progress: Progress | None = None,
    ) -> list[list[tuple[float, ...]]]:
        """Log-probability of every token of given answers: ``[prompt][answer]``."""

    @property
    def block_shape(self) -> BlockShape:
        """Shape of a LLaMA-style block like the model's own, for ATS."""

    def features(
        self,
        prompts: Sequence[Prompt],
        answers: Answers,
        *,
        whole: bool = False,
        shared: int | None = None,
        progress: Progress | None = None,
    ) -> FitFeatures:
        """Last hidden states at the positions that predict the tokens of given answers, or of all tokens."""

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Turn last hidden states (N, d) into logits (N, V), float32."""


def common_prefix(sequences: Sequence[tuple[int, ...]]) -> int:
    """Length of the longest common prefix."""
    first, last = min(sequences), max(sequences)  # the two that differ first, in lexical order
    for position, (a, b) in enumerate(zip(first, last)):
        if a != b:
            return position
    return min(len(first), len(last))


def check_likelihoods(model: Sampler, recalibrator: AnyRecalibrator, measure: str) -> None:
    """Raise UsageError, with the remedy, if a measure reads likelihoods that a server cannot give."""
    if measure != "E-SC" and not model.capabilities.likelihoods:
        cast("GivesSomeLikelihoods", model).check_likelihoods(recalibrator, measure)


def requests_a_question(model: Sampler, m: int, ways: int) -> int:
    """How many requests `m` answers in each of several ways take; 0 of a model in this process."""
    together = model.capabilities.answers_a_request
    return 0 if together is None else ways * math.ceil(m / together)


def questions_a_block(model: Sampler, m: int, ways: int, usual: int) -> int:
    """How many questions are sampled, each in `ways` ways, before they are kept: `usual` at most.

    Of a server as many as make about 128 requests: what a stop may lose.
    """
    requests = requests_a_question(model, m, ways)
    return max(1, min(usual, REQUESTS_A_BLOCK // requests)) if requests else usual


def with_states(model: Sampler, purpose: str) -> LanguageModel:
    """Return a language model; UsageError if it is a server, which `purpose` cannot be done with.

    `purpose` begins the sentence: "ATS reads hidden states".
    """
    if not model.capabilities.states:
        raise UsageError(
            f"{purpose}, and a server ({model.name}) gives none; load the checkpoint itself (--model DIR), "
            "or choose what needs samples alone: semcal calibrate, or semcal fit --method TS-grid"
        )
    return cast("LanguageModel", model)


def shared_length(prompts: Sequence[Prompt]) -> int:
    """Length of the common prefix of all prompts, which leaves at least one token of each."""
    shortest = min(len(prompt.token_ids) for prompt in prompts)
    return min(common_prefix([prompt.token_ids for prompt in prompts]), shortest - 1)


@dataclass(frozen=True)
class PromptConfig:
    """How questions are put to a model: in a template, after examples, of which the first answer is shown."""

    few_shot: tuple[Question, ...] = ()  # fixed for all methods
    template: Template | None = None  # of every prompt; None: each question has its own, or the built-in one
    force: bool = field(default=False, compare=False)  # take messages of another template all the same
    # whether questions have a passage, where that is all or none; what is asked otherwise is refused
    open_book: bool | None = field(default=None, compare=False)

    def template_of(self, question: Question) -> Template:
        """Return the template that a question is put in; InputError if its messages are of another one."""
        if self.template is None or (self.force and (question.messages or self.template.roles)):
            return Template.of(question)
        self.template.check(question)
        return self.template

    def differs_in_passage(self, asked: Question | Row) -> bool:
        """Whether a question has a passage and the others none, or the reverse; messages hold theirs."""
        is_known = self.open_book is not None and not asked.messages
        return is_known and self.open_book != (asked.context is not None)

    def passage_difference(self, question: Question) -> str | None:
        """Return what is other about the passage than where a calibration was learnt, and the remedy."""
        if not self.differs_in_passage(question):
            return None
        learnt = "when the calibration was learnt"
        if self.open_book:
            return f"there is no 'context', which was there {learnt}; give one"
        return f"there is a 'context', and there was none {learnt}; leave it out"

    def settled(
        self, questions: Sequence[Question], on_bad_question: Callable[[QuestionError], None] | None = None
    ) -> tuple[PromptConfig, list[Question]]:
        """Return this with one template, that of the first question by default, and the questions of it.

        QuestionErrors of the others go to `on_bad_question`; without it the first is raised.
        """
        asking, alike = self, list[Question]()
        if self.template is None and questions:
            asking = replace(self, template=Template.of(questions[0]))
        for question in questions:
            try:
                asking.template_of(question)
            except InputError as error:
                if on_bad_question is None:
                    raise question.error(str(error)) from None
                on_bad_question(QuestionError(question.id, str(error)))
            else:
                alike.append(question)
        return asking, alike

    def chat(self, question: Question) -> tuple[Turn, ...]:
        """Return the turns that ask `question`."""
        template = self.template_of(question)
        return chat(question, few_shot=self.few_shot, system=template.system, user=template.user)

    def prompts(self, model: Sampler, questions: Sequence[Question]) -> list[Prompt]:
        """Encode the prompt of each question."""
        self._warn_of_examples(model)
        prompts = [self._prompt(model, question) for question in questions]
        if not self.few_shot:
            return prompts
        templates = list(map(self.template_of, questions))
        others = {template: model.encode(self.chat(template.probe)) for template in dict.fromkeys(templates)}
        return [
            replace(prompt, examples=common_prefix([prompt.token_ids, others[template]]))
            for prompt, template in zip(prompts, templates)
        ]

    def read(
        self, model: AnswerReader, questions: Sequence[Question]
    ) -> tuple[list[LabelledPrompt], list[QuestionError]]:
        """Encode labelled questions; and the errors of those that cannot be encoded."""
        labelled, errors = list[LabelledPrompt](), list[QuestionError]()
        self._warn_of_examples(model)
        for question in questions:
            try:
                labelled.append((question, self._prompt(model, question), self.answers(model, question)))
            except QuestionError as error:
                errors.append(error)
        return labelled, errors

    def _prompt(self, model: Sampler, question: Question) -> Prompt:
        if question.messages and not model.capabilities.messages:
            reason = f"{model.name} has no chat template, so it takes no messages"
            raise QuestionError(question.id, f"{reason}; give it a 'question', or use an instruct model")
        if (difference := self.passage_difference(question)) and not self.force:
            raise QuestionError(question.id, f"{difference}, or calibrate with such questions")
        messages = [turn.content for turn in question.messages]
        _warn_of_special_tokens(model, question.id, *(messages or (question.question, question.context)))
        turns = self._turns(question)
        ids = _named(question, model.encode, turns)
        if turns[0].role == "system" and turns[0].content != SYSTEM_MESSAGE and not model.capabilities.system:
            place = "yours begins the first user turn"
            text = f"the chat template of {model.name} has no system message: {place}"
            warnings.warn(text, SemcalWarning, stacklevel=3)
        return Prompt(question.id, ids, turns, question=question.question)

    def _turns(self, question: Question) -> tuple[Turn, ...]:
        """The chat; an error names the question."""
        try:
            return self.chat(question)
        except InputError as error:
            raise QuestionError(question.id, str(error)) from None

    def _warn_of_examples(self, model: Sampler) -> None:
        for example in self.few_shot:
            texts = (example.question, example.context, *example.answers[:1])
            texts += tuple(turn.content for turn in example.messages)
            _warn_of_special_tokens(model, example.id, *texts)

    def answers(self, model: AnswerReader, question: Question) -> list[tuple[int, ...]]:
        """Encode the distinct reference answers of `question` as answer turns, end of turn included."""
        _warn_of_special_tokens(model, question.id, *question.answers)
        turns = self._turns(question)
        answers = (
            _named(question, model.encode_answer, turns, answer_turn(answer).content)
            for answer in question.answers
        )
        return list(dict.fromkeys(answers))

    def hash(self, model: Sampler, question: Question | None = None) -> str:
        """Hash of the token ids of one fixed question: system message, few-shot examples and template.

        Of its turns, where a server encodes them; of those of the template of `question`, if it is given.
        """
        template = self.template or Template() if question is None else self.template_of(question)
        turns = replace(self, template=template).chat(template.probe)
        content = model.encode(turns) or [[turn.role, turn.content] for turn in turns]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]

    def difference(self, other: PromptConfig) -> str | None:
        """Return what is other in another prompt; None if they are alike."""
        template, other_template = self.template or Template(), other.template or Template()
        examples = [[turn.content for turn in chat("", few_shot=each.few_shot)] for each in (self, other)]
        return template.difference(other_template) or (
            None if examples[0] == examples[1] else "the few-shot examples are others"
        )

    def describe(self) -> dict[str, Any]:
        """Return template and few-shot examples as plain data, for provenance."""
        template = self.template or Template()
        return {
            "system": template.system,
            "few_shot": [
                {"question": q.question, "answer": q.answers[0]}
                | ({"context": q.context} if q.context else {})
                | ({"messages": [vars(turn) for turn in q.messages]} if q.messages else {})
                for q in self.few_shot
            ],
            **({} if template.user is None else {"user": template.user}),
            **({"roles": list(template.roles)} if template.roles else {}),
        }

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> PromptConfig:
        """Return the template and the few-shot examples that `describe` wrote; no template of nothing."""
        if not description:
            return cls()
        template = Template(
            description.get("system", Template.system),
            description.get("user"),
            tuple(description.get("roles", ())),
        )
        examples = (
            Question(
                *(f"few-shot-{number}", item["question"], (item["answer"],), item.get("context")),
                messages=turns_of(item.get("messages")),
            )
            for number, item in enumerate(description.get("few_shot", []))
        )
        return cls(tuple(examples), template)


def _named(question: Question, encode: Callable[..., tuple[int, ...]], *texts: Any) -> tuple[int, ...]:
    """The token ids of texts; what cannot be encoded names its question."""
    try:
        return encode(*texts)
    except (InputError, ModelError) as error:
        if isinstance(error, ModelError) and not question.messages:
            raise
        raise QuestionError(question.id, str(error)) from error


def _warn_of_special_tokens(model: Sampler, question_id: str, *texts: str | None) -> None:
    """Name a question whose texts spell special tokens of the model."""
    tokens = [token for text in texts if text is not None for token in model.special_tokens_in(text)]
    if tokens:
        spelled = ", ".join(map(repr, dict.fromkeys(tokens)))
        warnings.warn(
            f"question {question_id!r} spells {spelled}, a special token of {model.name}; it is encoded as "
            "plain text",
            SemcalWarning,
            stacklevel=3,
        )
