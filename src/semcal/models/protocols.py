"""Protocols of models and recalibrators, and the records of their inputs and outputs.

The engine supports two kinds of recalibrators: maps of logits, and maps of logits and hidden states.
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
    """A map from logits to the token distribution for samples and scores.

    Every recalibrator has two properties: the result is a distribution over the whole vocabulary (its
    exponentials sum to 1), and the result of a row depends only on that row.
    """

    @property
    def method(self) -> str:
        """The paper's name of the method: "Base", "SE", "TS"."""

    def log_probs(self, logits: Tensor) -> Tensor:
        """Map logits (..., V) of any float dtype to float32 log-probabilities (..., V)."""


@runtime_checkable
class StateReader(Protocol):
    """A recalibrator that computes a temperature for each position from the hidden states so far: ATS.

    The engine treats it as an additional layer with its own keys and values.
    """

    @property
    def method(self) -> str:
        """The paper's name of the method: "ATS"."""

    @property
    def device(self) -> torch.device:
        """Device of the weights."""

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
        """Return 1/T (B, q) from states (B, q, d), keys and values; `visible` is a mask (B, q, K).

        `shared` are keys and values of a common prefix of all rows.
        """

    def log_probs(self, logits: Tensor, inverse_temperature: Tensor) -> Tensor:
        """Return log softmax(logits / T) in float32, for logits (..., V) and 1/T (...)."""

    def to(self, device: torch.device) -> Self:
        """Move the weights to a device."""


AnyRecalibrator: TypeAlias = "TokenDistribution | StateReader"
"""A map of logits, or of logits and hidden states."""
#: Requests per block: enough to keep a server busy, and few enough that the replies fit into memory.
REQUESTS_A_BLOCK = 128


@dataclass(frozen=True)
class Prompt:
    """A complete prompt, up to the first token of the answer."""

    question_id: str  # id for errors, from which the random numbers are derived
    token_ids: tuple[int, ...]  # at most one BOS, then all tokens up to the answer; empty if a server encodes
    chat: tuple[Turn, ...] = ()  # the encoded turns, for a server that accepts messages
    examples: int = 0  # length of the common prefix of prompts with these few-shot examples; 0: unknown
    question: str = ""  # text of the question, which an answer may repeat


@dataclass(frozen=True)
class Generation:
    """One generated answer. Facts that a server does not report are empty."""

    text: str  # decoded text without special tokens and end of turn
    token_ids: tuple[int, ...]  # the sampled tokens, with the end of turn if it was sampled
    #: Natural log-probability of each token in the recalibrated distribution over the whole vocabulary.
    token_log_probs: tuple[float, ...]
    #: True if the end of turn was sampled, False if the token limit was reached; None if unknown.
    finished: bool | None
    #: If the `cut` of `sample` applies to this answer, the log-probability of each token of
    #: ``complete(generation, end, start)``, unless these are the sampled tokens.
    rescored: tuple[float, ...] | None = None
    lead: int = 0  # number of tokens before the answer
    #: Reply of a server without an answer: the text of a refusal, or "" (null content, no text, or only
    #: reasoning); None if the answer has a text.
    refusal: str | None = None
    token_texts: tuple[str, ...] = ()  # of the sampled tokens, for a request with a schema


Answers = Sequence[Sequence[tuple[int, ...]]]
"""Token ids of the answers, by question."""
GenerationCut = Callable[[Prompt, Generation], tuple[int, int, bool]]
"""Function that returns start and end of the scored text, and True if an end of turn is scored after it."""
GenerationsOrError: TypeAlias = "list[Generation] | QuestionError"
"""The samples of one prompt, or the error of its question."""


@dataclass(frozen=True)
class SampleRequest:
    """A request for `m` samples of each prompt with each recalibrator, in each run.

    Samples are multinomial. The random numbers of a sample depend only on the seed of the run, the id of the
    question and the index of the sample; all recalibrators share them.
    """

    prompts: Sequence[Prompt]  # prompts with distinct ids; their common prefix runs only once
    recalibrators: Sequence[AnyRecalibrator]  # each recalibrator gets its own samples
    m: int = 10  # samples per question, recalibrator and run
    seeds: Sequence[int] = (0,)  # one seed per run
    max_new_tokens: int = 10  # maximum tokens of an answer, end of turn included
    truncation: Truncation | None = None  # top-k and top-p; None: the whole vocabulary
    #: The part of a sample's text to score; cut samples have `Generation.rescored`.
    cut: GenerationCut | None = None
    first: int = 0  # index of the first sample: earlier samples are omitted, the others do not change
    schema: Mapping[str, Any] | None = None  # JSON Schema; a server makes the answers follow it


@dataclass(frozen=True)
class Capabilities:
    """Capabilities of a sampler. The defaults are those of a model in this process."""

    states: bool = True  # hidden states, logits and beams: the sampler is a `LanguageModel`
    likelihoods: bool = True  # likelihoods of samples at every temperature
    max_temperature: float | None = None  # maximum temperature of samples; None: no limit
    truncated_to: str | None = None  # truncation of samples, although requests ask for the whole distribution
    answers_a_request: int | None = None  # samples per request; None: the sampler needs no requests
    may_charge: bool = False  # True if a request may cost money
    next_tokens: bool = True  # log-probabilities of the first tokens of an answer


DrawnT = TypeVar("DrawnT", covariant=True)
AnswerT = TypeVar("AnswerT", covariant=True)


class DrawsAnswers(Protocol[DrawnT, AnswerT]):
    """The common interface of language models and servers; `DrawnT` is the type of a prompt's samples."""

    @property
    def name(self) -> str:
        """Hub id, directory name, or the name of the model at a server."""

    @property
    def revision(self) -> str:
        """Commit on the hub, hash of the files of a directory, or the version of a server."""

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the sampler."""

    def encode(self, chat: Sequence[Turn]) -> tuple[int, ...]:
        """Encode a chat that ends with a user turn as a prompt; empty if a server encodes prompts."""

    def sample(
        self, request: SampleRequest, progress: Progress | None = None
    ) -> Sequence[Sequence[Sequence[DrawnT]]]:
        """Return the samples of a request: ``[run][recalibrator][prompt][sample]``.

        If a server failed, the prompt has an error in place of its samples.
        """

    def greedy(
        self,
        prompts: Sequence[Prompt],
        *,
        recalibrator: AnyRecalibrator,
        max_new_tokens: int = 10,
        progress: Progress | None = None,
        schema: Mapping[str, Any] | None = None,
    ) -> Sequence[AnswerT]:
        """Answer each prompt with the most likely token at every step."""

    def prompt_text(self, prompt: Prompt) -> str:
        """Return the prompt as readable text."""

    def invalid_prompts_for_sampling(self, request: SampleRequest) -> list[QuestionError]:
        """Return the errors that `sample` would raise: prompts too long for an answer or for the budget."""


class Sampler(DrawsAnswers[GenerationsOrError, "Generation | QuestionError"], Protocol):
    """A source of samples: a language model, or a server (`semcal.servers`)."""


class ServerSampler(Sampler, Protocol):
    """A server: likelihoods of only some samples, and the first tokens of answers."""

    def check_likelihoods(self, recalibrator: AnyRecalibrator, measure: str) -> None:
        """Raise UsageError if a measure needs likelihoods and they cannot be known."""

    def next_tokens(self, prompts: Sequence[Prompt]) -> list[dict[str, float] | QuestionError]:
        """Return log-probabilities (nats, T = 1) of the most likely first tokens of an answer, by text."""


class ReadsAnswers(Protocol):
    """The interface for given answers."""

    def encode_answer(self, chat: Sequence[Turn], answer: str) -> tuple[int, ...]:
        """Encode a given answer to `chat`, with one end of turn."""

    def invalid_prompts(self, prompts: Sequence[Prompt], answers: Answers) -> list[QuestionError]:
        """Return the errors of prompts that are too long for their answers."""


class AnswerReader(Sampler, ReadsAnswers, Protocol):
    """A sampler that can encode given answers: a language model, or a server with a tokenizer."""


class LanguageModel(DrawsAnswers[list[Generation], Generation], ReadsAnswers, Protocol):
    """A language model with samples, scores, states and logits; `load_model` loads one."""

    @property
    def width(self) -> int:
        """Size of a hidden state."""

    @property
    def dtype(self) -> str:
        """Type of the hidden states: "float32", "bfloat16" or "float16"."""

    def complete(
        self, generation: Generation, end: int, start: int = 0, ended: bool = True
    ) -> tuple[int, ...]:
        """Return the token ids of ``generation.text[:end]`` to score; a token begins at `start`.

        The end of turn is included if `ended`.
        """

    def beam(
        self,
        prompts: Sequence[Prompt],
        *,
        recalibrator: AnyRecalibrator,
        num_beams: int = 4,
        max_new_tokens: int = 10,
    ) -> list[Generation]:
        """Answer each prompt by beam search."""

    def score(
        self,
        prompts: Sequence[Prompt],
        answers: Answers,
        *,
        recalibrator: AnyRecalibrator,
    ) -> list[list[tuple[float, ...]]]:
        """Return the log-probability of every token of given answers: ``[prompt][answer]``."""

    @property
    def block_shape(self) -> BlockShape:
        """Shape of a LLaMA-style block with the dimensions of the model, for ATS."""

    def features(
        self,
        prompts: Sequence[Prompt],
        answers: Answers,
        *,
        whole: bool = False,
        shared: int | None = None,
        progress: Progress | None = None,
    ) -> FitFeatures:
        """Return last hidden states of positions that predict tokens of given answers, or of all tokens."""

    def prompt_states(self, prompts: Sequence[Prompt], depth: float) -> list[list[float]]:
        """Return the hidden state of the last token of each prompt after a share `depth` of the layers."""

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Compute logits (N, V), float32, of last hidden states (N, d)."""


def check_likelihoods(model: Sampler, recalibrator: AnyRecalibrator, measure: str) -> None:
    """Raise UsageError if a measure needs likelihoods that a server lacks."""
    if measure != "E-SC" and not model.capabilities.likelihoods:
        cast("ServerSampler", model).check_likelihoods(recalibrator, measure)


def requests_a_question(model: Sampler, m: int, ways: int) -> int:
    """Return the number of requests for `m` samples in each of several ways; 0 for a local model."""
    together = model.capabilities.answers_a_request
    return 0 if together is None else ways * math.ceil(m / together)


def questions_a_block(model: Sampler, m: int, ways: int, usual: int) -> int:
    """Return the number of questions per block if each is sampled in `ways` ways: at most `usual`.

    A block for a server has about 128 requests, whose replies are in memory at the same time.
    """
    requests = requests_a_question(model, m, ways)
    return max(1, min(usual, REQUESTS_A_BLOCK // requests)) if requests else usual


def with_states(model: Sampler, purpose: str) -> LanguageModel:
    """Return the model as a language model; UsageError for a server.

    `purpose` begins the sentence of the error: "ATS reads hidden states".
    """
    if not model.capabilities.states:
        raise UsageError(
            f"--model: {purpose}, and a server ({model.name}) has none. Load the checkpoint (--model DIR), "
            "or use semcal calibrate or semcal fit --method TS-grid, which need only samples"
        )
    return cast("LanguageModel", model)
