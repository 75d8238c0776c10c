"""The protocols of models and recalibrators, and the records that go in and come out.

The engine knows two kinds of recalibrators: maps of logits alone, and those that read hidden states as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, TypeVar, cast, runtime_checkable

from semcal.data.question import Turn
from semcal.errors import QuestionError, UsageError
from semcal.workers import Progress

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from semcal.models.engine.draw import Truncation
    from semcal.models.features import BlockShape, FitFeatures


class TokenDistribution(Protocol):
    """A map from logits to the token distribution that is sampled and scored.

    Every recalibrator keeps two promises: the result is a distribution over the whole vocabulary
    (its exponentials sum to 1), and a row's result depends on that row alone.
    """

    @property
    def method(self) -> str:
        """The paper's name of the method: "Base", "SE", "TS"."""

    def log_probs(self, logits: Tensor) -> Tensor:
        """Map logits (..., V) of any float dtype to float32 log-probabilities (..., V)."""


@runtime_checkable
class StateReader(Protocol):
    """A recalibrator that gives each position a temperature, read from the hidden states so far: ATS.

    To the engine it is one more layer with keys and values of its own.
    """

    @property
    def method(self) -> str:
        """The paper's name of the method: "ATS"."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""

    @property
    def bytes_per_token(self) -> int:
        """Size of the key and the value of one token."""

    def queries(self, states: Tensor, positions: Tensor) -> Tensor:
        """Return the queries (B, heads, n, head_dim) of states (B, n, d)."""

    def keys_values(self, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values (B, key-value heads, n, head_dim) of states (B, n, d)."""

    def inverse_temperature_from(self, states: Tensor, gathered: Tensor) -> Tensor:
        """Return 1/T (B, n) from states (B, n, d) and the attention output (B, n, heads * head_dim)."""

    def inverse_temperature(
        self,
        states: Tensor,
        positions: Tensor,
        keys: Tensor,
        values: Tensor,
        visible: Tensor,
        *,
        shared: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Return 1/T (B, q) from states (B, q, d), and keys and values of which (B, q, K) are visible.

        `shared` are keys and values of a prefix that all rows have in common.
        """

    def log_probs(self, logits: Tensor, inverse_temperature: Tensor) -> Tensor:
        """Return log softmax(logits / T) in float32, for logits (..., V) and 1/T (...)."""

    def to(self, device: torch.device) -> Self:
        """Move the weights to a device."""


AnyRecalibrator: TypeAlias = "TokenDistribution | StateReader"
"""A map of logits alone, or of logits and hidden states."""
#: Enough to keep a server busy; their replies fit into memory.
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
    schema: Mapping[str, Any] | None = None  # JSON Schema that a server holds the answers to


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

    Of a server as many as make about 128 requests, whose replies are in memory at the same time.
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
