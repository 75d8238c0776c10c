"""What a probe found that a server does, and the bodies of requests, which follow it.

Every request states what would otherwise truncate or bend the distribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from semcal.models.drawing import uniforms
from semcal.models.language_model import Prompt
from semcal.servers.client import ServerRequest

#: What switches truncation and penalties off, under all the names that servers have for them.
NEUTRAL: Mapping[str, Any] = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "repeat_penalty": 1.0,
}


@dataclass(frozen=True)
class ServerProfile:
    """What one model behind one server does. `semcal probe` prints it.

    Whatever could not be found out has the value that promises least.
    """

    url: str
    model: str
    server: str = "unknown"  # "llama.cpp", "vLLM", "SGLang", "TGI", "Ollama", ...
    version: str | None = None
    max_length: int | None = None  # tokens of prompt and answer
    vocabulary: int | None = None  # its size
    #: Fields of every request: all of `NEUTRAL` that the server takes, with values that it takes.
    neutral: Mapping[str, Any] = field(default_factory=lambda: dict(NEUTRAL))
    max_n: int = 1  # the largest n of one request that gave n choices
    seed: bool = False  # the same request with the same seed gives the same answer
    choices_differ: bool = False  # the choices of one request with a seed differ from each other
    log_probs: Literal["raw", "scaled", "masked"] | None = None  # of a draw at T other than 1
    scaled_on_request: bool = False  # post_sampling_probs: those at T, per request (llama.cpp)
    top_log_probs: int = 0  # alternatives that a token may have at most
    whole_vocabulary: bool = False  # they may be all tokens
    chosen_ids: bool = False  # logprob_token_ids: log-probabilities of tokens that the request names
    scores_prompt: Literal["prompt_logprobs", "echo"] | None = None  # teacher forcing, at T = 1
    forced_raw: bool = False  # a token that logit_bias forces has its raw log-probability (llama.cpp)
    continues: bool = False  # goes on with an answer that was begun
    token_ids_in: bool = False  # /completions takes a prompt of token ids
    token_ids_out: bool = False  # the ids of drawn tokens come back
    end_included: bool = False  # the end of turn has a log-probability of its own
    prefix_cached: bool | None = None  # None: unknown
    truncated_to: str | None = None  # how draws are cut although every request asks for the whole vocabulary
    truncation_tested: tuple[str, ...] = ()  # which cuts would have been seen: "top-k", "top-p", "min-p"
    max_temperature: float | None = None  # the largest that is accepted; None: no limit was met

    @property
    def together(self) -> int:
        """How many answers to ask for in one request.

        One of llama.cpp: after n > 1 its build b11549 answers others from a wrong cache now and then, and its
        `usage`, of one answer of n, cannot show that a token has lost its entry.
        """
        return self.max_n if self.choices_differ and self.server != "llama.cpp" else 1


#: More than a template adds to a turn, in tokens.
_A_TURN = 16


@dataclass(frozen=True)
class AnswerRequest:
    """What a request asks for; nothing of it constrains the answers, whose log-probabilities would not know.

    `at_temperature` asks for log-probabilities at T where the server gives them on request (llama.cpp),
    `forced` for this token in place of a drawn one.
    """

    temperature: float  # 0: the most likely token at every step
    max_tokens: int
    n: int = 1
    seed: int | None = None
    log_probs: bool = True
    alternatives: int = 1  # the most likely tokens that are listed at each step
    token_ids: tuple[int, ...] = ()  # further tokens that are listed (`ServerProfile.chosen_ids`)
    at_temperature: bool = False
    forced: int | None = None


def request_seeds(seed: int, question_id: str, *, m: int, steps: int = 1, first: int = 0) -> list[list[int]]:
    """Seeds of 31 bits for requests, (m, steps): from `uniforms`, with its parameters."""
    u = uniforms(seed, question_id, m=m, steps=steps, first=first)
    seeds: list[list[int]] = (u * 2**31).astype(int).tolist()
    return seeds


def request_for(profile: ServerProfile, prompt: Prompt, answer: AnswerRequest) -> ServerRequest:
    """Ask for answers to a prompt: its token ids go to /completions, or its chat to /chat/completions."""
    body: dict[str, Any] = {"model": profile.model, **profile.neutral, "temperature": answer.temperature}
    body |= {} if answer.n == 1 else {"n": answer.n}
    body |= {} if answer.seed is None else {"seed": answer.seed}
    body |= {} if answer.forced is None else {"logit_bias": {str(answer.forced): 100}}
    body |= _log_probs(profile, answer, in_chat=not prompt.token_ids)
    if profile.server == "llama.cpp":  # whose command line may have set others
        body["samplers"] = ["temperature"]
    if profile.server == "vLLM":
        body["return_token_ids"] = True
    limits: dict[str, Any] = {"max_tokens": answer.max_tokens}
    most = answer.n * answer.max_tokens
    if prompt.token_ids:
        body |= {"prompt": list(prompt.token_ids), **limits}
        return ServerRequest("/completions", body, len(prompt.token_ids), most)
    if profile.server == "OpenAI":
        limits = {"max_completion_tokens": answer.max_tokens}
    body |= {"messages": [{"role": turn.role, "content": turn.content} for turn in prompt.chat], **limits}
    longest = sum(len(turn.content.encode(errors="replace")) + _A_TURN for turn in prompt.chat)
    return ServerRequest("/chat/completions", body, longest, most)


def _log_probs(profile: ServerProfile, answer: AnswerRequest, *, in_chat: bool) -> dict[str, Any]:
    """What asks for log-probabilities; never for 0 alternatives, which some servers take for none at all."""
    if profile.log_probs is None or not answer.log_probs:
        return {}
    k = max(1, answer.alternatives)
    body: dict[str, Any] = {"logprobs": True} if in_chat else {"logprobs": k}
    if in_chat and profile.top_log_probs:
        body["top_logprobs"] = k
    if profile.server == "vLLM":  # two tokens may have one text, and half a character has none
        body["return_tokens_as_token_ids"] = True
    if answer.token_ids and profile.chosen_ids:
        body["logprob_token_ids"] = list(answer.token_ids)
    if answer.at_temperature and profile.scaled_on_request:
        body["post_sampling_probs"] = True
        body["samplers"] = ["temperature"]
    return body
