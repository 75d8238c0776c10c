"""Likelihoods of a server's draws: at their temperature, and of answers that are cut (spec 5.2).

A server gives log-probabilities raw (at T = 1 whatever T is) or at T, by itself or on request. Raw ones of
the whole vocabulary can be turned into those at T: with β = 1/T, log p_T(i) = β s_i − log Σ_j exp(β s_j).

Of an answer that is cut, tokens before the cut have the log-probabilities that they were drawn with. What
follows them, mostly the end of turn alone, was not drawn: its log-probability is among the alternatives
listed there, or is asked for, one token a request.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from typing import Literal, TypeAlias

import numpy as np

from semcal.engine.language_model import Cut, Draws, Generation, Prompt
from semcal.engine.servers.client import RequestFailed, ServerClient
from semcal.engine.servers.profile import ServerProfile
from semcal.engine.servers.replies import TokenEntry, parse_choices
from semcal.engine.servers.requests import Asked, request_for
from semcal.engine.tokenization import ChatFormat
from semcal.errors import QuestionError

Reading = Literal["given", "on request", "of all"]
"""Log-probabilities at T are what is given, are given on request, or computed from the whole vocabulary."""

#: How far from 1 the probabilities of the whole vocabulary may add up.
_SUM = 1e-3


def reading_at(profile: ServerProfile, temperature: float) -> Reading | None:
    """Return how log-probabilities of draws at a temperature are had; None where they cannot be known."""
    bent = profile.log_probs == "masked" and profile.truncated_to is not None
    if profile.log_probs is None or bent:
        return None
    if temperature == 1 or profile.log_probs != "raw":
        return "given"
    if profile.scaled_on_request and profile.truncated_to is None:
        return "on request"
    return "of all" if profile.whole_vocabulary and profile.vocabulary else None


def log_prob_at(
    entry: TokenEntry,
    temperature: float,
    reading: Reading | None,
    *,
    token_id: int | None = None,
    vocabulary: int | None = None,
) -> float | None:
    """Return the log-probability of the token of an entry, or of `token_id` in its place; None if unknown.

    >>> raw = TokenEntry("a", math.log(0.2), 0, {0: math.log(0.2), 1: math.log(0.8)})
    >>> round(math.exp(log_prob_at(raw, 0.5, "of all", token_id=1, vocabulary=2)), 6)
    0.941176
    """
    own = entry.log_prob if token_id in (None, entry.token_id) else entry.top.get(token_id or 0)
    if reading is None or own is None or own == -math.inf:
        return None
    if reading != "of all":
        return own
    values = np.fromiter(entry.top.values(), dtype=np.float64)
    if vocabulary is None or len(values) < vocabulary - 1 or abs(np.exp(values).sum() - 1) > _SUM:
        return None  # one token may have given its place to the drawn one
    return min(0.0, float(own / temperature - np.logaddexp.reduce(values / temperature)))


def why_unknown(profile: ServerProfile, temperature: float) -> str:
    """Say why log-probabilities at a temperature are unknown, what that costs, and what helps."""
    where = f"{profile.server} at {profile.url}"
    cost = "so likelihoods are null, and E-SC alone can be measured"
    if profile.log_probs is None:
        return f"{where} gives no log-probabilities, {cost}"
    if profile.log_probs == "masked":
        cut = f"{where} gives log-probabilities of what its truncation leaves ({profile.truncated_to})"
        return f"{cut}, {cost}; switch that off at the server"
    flag = {"vLLM": "start vLLM with --logprobs-mode processed_logprobs"}.get(profile.server)
    alone = f"{where} gives log-probabilities at T = 1 alone, and draws are at T = {temperature:g}, {cost}"
    return f"{alone}; to have likelihoods, {flag}" if flag else alone


#: Alternatives that are asked for before all of them are.
_SOME = 200
#: Times that all of them are: where the token drawn is half a character, its entry is lost (llama.cpp).
_TRIES = 4


@dataclass(frozen=True)
class Way:
    """How some draws are asked for, and how their log-probabilities are had."""

    asked: float  # the temperature of requests: 0 is greedy
    temperature: float  # of likelihoods
    reading: Reading | None
    seed: int | None


@dataclass(frozen=True)
class _Missing:
    """A token behind a beginning, whose log-probability at a temperature is to be asked for."""

    beginning: tuple[int, ...]  # the prompt, and the answer so far
    token_id: int
    temperature: float
    reading: Reading


@dataclass(frozen=True)
class Drawn:
    """A draw on its way: `rescored` may still lack tokens."""

    generation: Generation
    entries: tuple[TokenEntry, ...]
    rescored: tuple[float | _Missing, ...] | None = None


DrawnOf: TypeAlias = "dict[tuple[int, Way], list[Drawn] | QuestionError]"
"""The draws to a prompt, by its place, in a way; or why there are none."""


def rescored(
    client: ServerClient,
    profile: ServerProfile,
    chat: ChatFormat | None,
    prompts: Sequence[Prompt],
    found: DrawnOf,
    cut: Cut | None,
) -> dict[tuple[int, Way], Draws]:
    """The draws; those that are cut with the log-probabilities of what remains, () where one is unknown.

    Without the form of the chats, and so the tokens of what remains, that is all of them.
    """
    begun: DrawnOf = {}
    for (i, way), draws in found.items():
        if isinstance(draws, list) and cut is not None:
            draws = [_begun(prompts[i], one, way, cut, chat, profile) for one in draws]
        begun[i, way] = draws
    missing = {
        token
        for draws in begun.values()
        if isinstance(draws, list)
        for one in draws
        for token in one.rescored or ()
        if isinstance(token, _Missing)
    }
    asked = _ask(client, profile, sorted(missing, key=lambda one: one.beginning))
    return {key: _finished(prompts[key[0]], draws, asked) for key, draws in begun.items()}


def _begun(
    prompt: Prompt, one: Drawn, way: Way, cut: Cut, chat: ChatFormat | None, profile: ServerProfile
) -> Drawn:
    """A draw that is cut, with what is known of its tokens from drawing, and what else to ask."""
    generation, entries, (start, end) = one.generation, one.entries, cut(prompt, one.generation)
    whole = generation.finished and end == len(generation.text)
    if whole and not start:
        return one
    if way.reading is None or not generation.token_log_probs:
        return replace(one, rescored=())
    if chat is None:
        lead = _entries_before(generation.text[:start], entries)
        return replace(
            one, generation=replace(generation, lead=lead), rescored=None if whole and lead else ()
        )
    completed = chat.complete(generation, end, start)
    one = replace(one, generation=replace(generation, lead=len(chat.lead(generation, start))))
    if completed == generation.token_ids:
        return one
    pairs = zip(completed, generation.token_ids)
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    found: list[float | _Missing] = list(generation.token_log_probs[:same])
    for place in range(same, len(completed)):
        known = None
        if place == same < len(entries):  # drawn there was another token
            how = {"token_id": completed[place], "vocabulary": profile.vocabulary}
            known = log_prob_at(entries[place], way.temperature, way.reading, **how)
        beginning = (*prompt.token_ids, *completed[:place])
        asked = _Missing(beginning, completed[place], way.temperature, way.reading)
        found.append(asked if known is None else known)
    return replace(one, rescored=tuple(found))


def _entries_before(text: str, entries: Sequence[TokenEntry]) -> int:
    """How many entries a text before an answer has, blanks apart; 0 where one has a part of both."""
    said = accumulate(entry.text for entry in entries)
    at = (k for k, one in enumerate(said, 1) if text.startswith(one) and not text[len(one) :].strip())
    return max(at, default=0)


def _finished(
    prompt: Prompt,
    draws: list[Drawn] | QuestionError,
    asked: Mapping[_Missing, float | RequestFailed | None],
) -> Draws:
    """The draws with what was asked for; one token that is not known makes the likelihood unknown."""
    if isinstance(draws, QuestionError):
        return draws
    found = []
    for one in draws:
        if one.rescored is None:
            found.append(one.generation)
            continue
        values = [asked[value] if isinstance(value, _Missing) else value for value in one.rescored]
        for value in values:
            if isinstance(value, RequestFailed):
                return QuestionError(prompt.question_id, value.reason)
        known = tuple(value for value in values if isinstance(value, float))
        found.append(replace(one.generation, rescored=known if len(known) == len(values) else ()))
    return found


def _ask(
    client: ServerClient, profile: ServerProfile, wanted: Iterable[_Missing]
) -> dict[_Missing, float | RequestFailed | None]:
    """Ask for log-probabilities, each once; None where the server does not list the token."""
    found: dict[_Missing, float | RequestFailed | None] = dict.fromkeys(wanted)
    again = _TRIES if profile.whole_vocabulary and profile.vocabulary else 0
    for seed in range(1 + again):
        left = [one for one, value in found.items() if value is None]
        requests = [
            request_for(profile, Prompt("", one.beginning), _asked(profile, one, seed)) for one in left
        ]
        for one, reply in zip(left, client.send_all(requests, parse_choices) if left else []):
            if isinstance(reply, RequestFailed):
                found[one] = reply
            else:
                entries = reply[0].entries or ()
                how = {"token_id": one.token_id, "vocabulary": profile.vocabulary}
                known = (log_prob_at(entry, one.temperature, one.reading, **how) for entry in entries[:1])
                found[one] = next(known, None)
    return found


def _asked(profile: ServerProfile, one: _Missing, seed: int) -> Asked:
    """The cheapest request that gives it; after the first (seed 0) all tokens are asked for."""
    asked = Asked(one.temperature, 1, seed=seed, at_temperature=one.reading == "on request")
    if seed or one.reading == "of all":
        return replace(asked, alternatives=profile.vocabulary or 1)
    if one.temperature == 1 and profile.forced_raw:
        return replace(asked, forced=one.token_id)
    if profile.chosen_ids:
        return replace(asked, token_ids=(one.token_id,))
    return replace(asked, alternatives=min(profile.top_log_probs, _SOME))
