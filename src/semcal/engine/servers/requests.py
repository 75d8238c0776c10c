"""The bodies of requests: every one states what would otherwise truncate or bend the distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from semcal.engine.drawing import uniforms
from semcal.engine.language_model import Prompt
from semcal.engine.servers.client import ServerRequest
from semcal.engine.servers.profile import ServerProfile

#: More than a template adds to a turn, in tokens.
_A_TURN = 16


@dataclass(frozen=True)
class Asked:
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
    found: list[list[int]] = (u * 2**31).astype(int).tolist()
    return found


def request_for(profile: ServerProfile, prompt: Prompt, asked: Asked) -> ServerRequest:
    """Ask for answers to a prompt: its token ids go to /completions, or its chat to /chat/completions."""
    body: dict[str, Any] = {"model": profile.model, **profile.neutral, "temperature": asked.temperature}
    body |= {} if asked.n == 1 else {"n": asked.n}
    body |= {} if asked.seed is None else {"seed": asked.seed}
    body |= {} if asked.forced is None else {"logit_bias": {str(asked.forced): 100}}
    body |= _log_probs(profile, asked, in_chat=not prompt.token_ids)
    if profile.server == "llama.cpp":  # whose command line may have set others
        body["samplers"] = ["temperature"]
    if profile.server == "vLLM":
        body["return_token_ids"] = True
    limits: dict[str, Any] = {"max_tokens": asked.max_tokens}
    most = asked.n * asked.max_tokens
    if prompt.token_ids:
        body |= {"prompt": list(prompt.token_ids), **limits}
        return ServerRequest("/completions", body, len(prompt.token_ids), most)
    if profile.server == "OpenAI":
        limits = {"max_completion_tokens": asked.max_tokens}
    body |= {"messages": [{"role": turn.role, "content": turn.content} for turn in prompt.chat], **limits}
    longest = sum(len(turn.content.encode(errors="replace")) + _A_TURN for turn in prompt.chat)
    return ServerRequest("/chat/completions", body, longest, most)


def _log_probs(profile: ServerProfile, asked: Asked, *, in_chat: bool) -> dict[str, Any]:
    """What asks for log-probabilities; never for 0 alternatives, which some servers take for none at all."""
    if profile.log_probs is None or not asked.log_probs:
        return {}
    k = max(1, asked.alternatives)
    body: dict[str, Any] = {"logprobs": True} if in_chat else {"logprobs": k}
    if in_chat and profile.top_log_probs:
        body["top_logprobs"] = k
    if profile.server == "vLLM":  # two tokens may have one text, and half a character has none
        body["return_tokens_as_token_ids"] = True
    if asked.token_ids and profile.chosen_ids:
        body["logprob_token_ids"] = list(asked.token_ids)
    if asked.at_temperature and profile.scaled_on_request:
        body["post_sampling_probs"] = True
        body["samplers"] = ["temperature"]
    return body
