"""Find out what a server does, by a few small requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from math import exp
from typing import Any

from semcal.engine.language_model import Prompt
from semcal.engine.servers.client import RequestFailed, ServerClient
from semcal.engine.servers.profile import NEUTRAL, ServerProfile, identify, read_profile, write_profile
from semcal.engine.servers.replies import Choice, TokenEntry, parse_choices
from semcal.engine.servers.requests import Asked, request_for
from semcal.engine.servers.truncation import ROUND, Key, Known, find_truncation
from semcal.errors import ServerError
from semcal.qa.questions import Turn

#: The version of what is asked here: profiles of another are not read.
PROBE = 3
QUESTIONS = ("What is the capital of France?", "Name a river.", "Name the days of the week.")
#: A prompt of token ids, which begins no chat: nearly anything may follow.
IDS = tuple(range(40, 56))
#: Temperatures that are tried.
HOT = (2.0, 5.0, 100.0)
#: Alternatives that are read for each prompt where more may be had: a large vocabulary is megabytes.
LISTED = 4096
#: Log-probabilities of one token in two requests differ by less than this if they are the same.
NEAR = 0.1


@dataclass
class _Asking:
    """The client, and what is known of the server so far."""

    client: ServerClient
    profile: ServerProfile

    def reply(self, prompt: Prompt, asked: Asked, **further: Any) -> Mapping[str, Any] | RequestFailed:
        """The reply to one request, with further fields in its body; None takes one out."""
        request = request_for(self.profile, prompt, asked)
        body = {**request.body, **further}
        request = replace(request, body={name: value for name, value in body.items() if value is not None})
        reply = self.client.send_all([request], _as_it_is)[0]
        if isinstance(reply, RequestFailed) and reply.status in (None, 429, 503):
            raise ServerError(f"{self.profile.url} could not be probed: {reply.reason}")
        return reply

    def choices(self, prompt: Prompt, asked: Asked, **further: Any) -> list[Choice]:
        """The choices of one request; none if the server refuses it, or what it replies is damaged."""
        reply = self.reply(prompt, asked, **further)
        try:
            return [] if isinstance(reply, RequestFailed) else parse_choices(reply)
        except ValueError:
            return []

    def first(self, prompt: Prompt, asked: Asked, **further: Any) -> TokenEntry | None:
        """The first token that is drawn, with its log-probabilities; None without them."""
        entries = [choice.entries for choice in self.choices(prompt, asked, **further)]
        return entries[0][0] if entries and entries[0] else None

    @property
    def open(self) -> Prompt:
        """A prompt after which much may follow, and no thinking where token ids are taken."""
        return Prompt("probe", IDS) if self.profile.token_ids_in else _chat(QUESTIONS[1])

    @property
    def hot(self) -> float:
        """A temperature above 1 that the server accepts; 1 if there is none."""
        return min(self.profile.max_temperature or HOT[0], HOT[0])


def _as_it_is(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    return reply


def _inside(reply: Any, *path: str | int) -> Any:
    """What stands in a reply under keys and indices; None where there is nothing."""
    for key in path:
        try:
            reply = reply[key]
        except (KeyError, IndexError, TypeError):
            return None
    return reply


def _chat(question: str, *further: Turn) -> Prompt:
    return Prompt("probe", (), (Turn("user", question), *further))


def probe(client: ServerClient, now: ServerProfile | None = None) -> ServerProfile:
    """Ask the server what it does, beyond what `identify` found now.

    Takes some dozens of requests of a few tokens, up to `truncation.MOST` draws of one token for each kind of
    cut, and two replies of the whole vocabulary where the server gives it. ServerError if the server cannot
    be reached or refuses the plainest question.
    """
    asking = _Asking(client, now or identify(client))
    for find in _FINDERS:
        asking.profile = replace(asking.profile, **find(asking))
    return asking.profile


def stored_profile(client: ServerClient, *, fresh: bool = False) -> ServerProfile:
    """The profile of an earlier probe, if the server still has its version and kind of log-probabilities.

    Else a new one. Kept in `ServerSettings.profiles` or the user's cache. A file that is damaged, or of
    another version of the probe, is not read.
    """
    now = identify(client)
    folder = client.settings.profiles
    found = None if fresh else read_profile(folder, now, PROBE)
    if found is None or not _still_so(_Asking(client, found)):
        found = probe(client, now)
        write_profile(folder, found, PROBE)
    return found


def _still_so(asking: _Asking) -> bool:
    """Whether log-probabilities are raw or at T as before: two servers are told which when they start."""
    before = asking.profile.log_probs
    told = asking.profile.server in ("vLLM", "SGLang") and before is not None
    return not told or _at_temperature(asking).get("log_probs", "raw") == before


def _neutral(asking: _Asking) -> dict[str, Any]:
    """Which fields that switch truncation off the server takes: as many as it can."""
    plain = ("top_p", "presence_penalty", "frequency_penalty")  # all that OpenAI knows
    tried = [NEUTRAL, {**NEUTRAL, "top_k": 0}, {name: NEUTRAL[name] for name in plain}, {"top_p": 1.0}, {}]
    reason = ""
    for neutral in tried:
        asking.profile = replace(asking.profile, neutral=neutral)
        reply = asking.reply(_chat(QUESTIONS[0]), Asked(1.0, 1))
        if not isinstance(reply, RequestFailed):
            return {"neutral": dict(neutral)}
        reason = reason or reply.reason
        if reply.status not in (400, 422):
            break
    raise ServerError(f"{asking.profile.url} refuses the plainest question: {reason}")


def _temperatures(asking: _Asking) -> dict[str, Any]:
    tried = takewhile(lambda t: asking.choices(_chat(QUESTIONS[1]), Asked(t, 1)), HOT)
    accepted = [1.0, *tried]
    if accepted == [1.0] and asking.choices(_chat(QUESTIONS[1]), Asked(1.5, 1)):
        accepted.append(1.5)
    return {"max_temperature": None if accepted[-1] == HOT[-1] else accepted[-1]}


def _token_ids_in(asking: _Asking) -> dict[str, Any]:
    reply = asking.reply(Prompt("probe", IDS), Asked(1.0, 1, log_probs=False))
    counted = _inside(reply, "usage", "prompt_tokens")
    return {"token_ids_in": counted in (len(IDS), len(IDS) + 1)}  # a BOS may be added


def _vocabulary(asking: _Asking) -> dict[str, Any]:
    """How many tokens there are where the server does not tell: vLLM refuses ids from there on."""

    def taken(token_id: int) -> bool:
        reply = asking.reply(Prompt("probe", (token_id,)), Asked(1.0, 1, log_probs=False))
        return not isinstance(reply, RequestFailed)

    low, high = IDS[0], 2**22
    if asking.profile.server != "vLLM" or not asking.profile.token_ids_in or taken(high):
        return {}
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if taken(middle) else (low, middle)
    return {"vocabulary": high}


def _several(asking: _Asking) -> dict[str, Any]:
    """The largest n up to 10 that gives n choices: more may be refused, or cut without a word.

    1 where a proxy passes on what llama.cpp says: see `ServerProfile.together`.
    """
    single = asking.reply(asking.open, Asked(1.0, 1, log_probs=False))
    if asking.profile.server != "llama.cpp" and _inside(single, "timings") is not None:
        return {}
    low, high, n = 1, 11, 10
    differ = False
    while high - low > 1:
        choices = asking.choices(asking.open, Asked(asking.hot, 8, n=n, seed=1, log_probs=False))
        if len(choices) == n:
            low, differ = n, len(set(map(_said, choices))) > 1
        else:
            high = n
        n = (low + high) // 2
    return {} if low == 1 else {"max_n": low, "choices_differ": differ}


def _seed(asking: _Asking) -> dict[str, Any]:
    hottest = asking.profile.max_temperature or HOT[-1]

    def texts(seed: int) -> list[str]:
        choices = asking.choices(asking.open, Asked(hottest, 8, seed=seed, log_probs=False))
        return list(map(_said, choices))

    first, again = ([texts(seed) for seed in range(1, 6)] for _ in range(2))
    return {"seed": first == again and len({"".join(each) for each in first}) > 1}


def _alternatives(asking: _Asking) -> dict[str, Any]:
    """Whether there are log-probabilities, and how many alternatives a token may have: 20, 5, 1 or none."""
    for k in (20, 5, 1, 0):
        asking.profile = replace(asking.profile, log_probs="raw", top_log_probs=k)
        entry = asking.first(asking.open, Asked(1.0, 1, alternatives=k))
        if entry is not None:
            known = entry.token_id is not None
            listed = k if len(entry.top) > k // 2 else len(entry.top)  # some may have one text
            return {"log_probs": "raw", "top_log_probs": listed, "token_ids_out": known}
    return {"log_probs": None, "top_log_probs": 0}


def _listed(asking: _Asking, temperature: float, **asked: Any) -> dict[Key, float]:
    """Log-probabilities of the first token's alternatives, and of the drawn tokens of a few draws."""
    found: dict[Key, float] = {}
    k = asking.profile.top_log_probs
    for seed in range(1, 4 if k > 1 else 17):
        how = Asked(temperature, 1, seed=seed, alternatives=k, **asked)
        entry = asking.first(asking.open, how)
        if entry is not None:
            found |= {**entry.top, entry.key: entry.log_prob}
    return found


def _power(raw: Mapping[Key, float], other: Mapping[Key, float]) -> float | None:
    """By what the differences of raw log-probabilities are multiplied in others; None if that is unknown."""
    common = sorted(
        (key for key in raw if min(raw[key], other.get(key, -1e9)) > -1e3), key=lambda key: raw[key]
    )
    if len(common) < 2 or raw[common[-1]] - raw[common[0]] < 0.5:
        return None
    return (other[common[-1]] - other[common[0]]) / (raw[common[-1]] - raw[common[0]])


def _at_temperature(asking: _Asking) -> dict[str, Any]:
    """Whether log-probabilities of draws at T are raw or at T; told by differences, which T divides."""
    profile, temperature = asking.profile, asking.hot
    if profile.log_probs is None or temperature == 1:
        return {"log_probs": None}
    raw, hot = _listed(asking, 1.0), _listed(asking, temperature)
    power = _power(raw, hot)
    if power is None or min(abs(power - 1), abs(power * temperature - 1)) > NEAR:
        return {"log_probs": None}
    if abs(power * temperature - 1) <= NEAR:
        masked = min(*raw.values(), *hot.values()) == float("-inf")
        return {"log_probs": "masked" if masked else "scaled"}
    asking.profile = replace(profile, scaled_on_request=True)
    on_request = _power(raw, _listed(asking, temperature, at_temperature=True))
    return {"scaled_on_request": on_request is not None and abs(on_request * temperature - 1) <= NEAR}


def _top(asking: _Asking, prompt: Prompt, k: int) -> dict[Key, float]:
    """The k likeliest first tokens at T = 1; -1 is all."""
    further = {} if k > 0 else {"logprobs": k} if prompt.token_ids else {"top_logprobs": k}
    entry = asking.first(prompt, Asked(1.0, 1, seed=1, alternatives=k), **further)
    return {} if entry is None else dict(entry.top)


def _whole_vocabulary(asking: _Asking) -> dict[str, Any]:
    """Whether all tokens may be listed: their probabilities add up to 1, and each prompt lists the same."""
    profile = asking.profile
    if profile.log_probs not in ("raw", "scaled") or profile.top_log_probs < 20:
        return {}
    for k in (-1, 1000) if profile.vocabulary is None else (profile.vocabulary,):
        first, second = (_top(asking, prompt, k) for prompt in (asking.open, _chat(QUESTIONS[0])))
        if len(first) > profile.top_log_probs:
            whole = first.keys() == second.keys() and len(first) == (profile.vocabulary or len(first))
            whole &= all(abs(sum(map(exp, top.values())) - 1) <= 1e-4 for top in (first, second))
            size = len(first) if whole else profile.vocabulary
            return {"top_log_probs": len(first), "whole_vocabulary": whole, "vocabulary": size}
    return {}


def _chosen(asking: _Asking) -> dict[str, Any]:
    """Whether log-probabilities of named tokens are given, and of one that logit_bias forces."""
    profile, how = asking.profile, Asked(1.0, 1, seed=1)
    asking.profile = replace(profile, chosen_ids=True)
    plain = asking.first(asking.open, how)
    named = asking.first(asking.open, replace(how, token_ids=IDS[:4]))
    found = {"chosen_ids": plain is not None and named is not None and len(named.top) >= len(plain.top) + 2}
    raw = {key: value for key, value in _top(asking, asking.open, 5).items() if isinstance(key, int)}
    if len(raw) > 1 and profile.log_probs == "raw":
        rare = min(raw, key=lambda key: raw[key])
        forced = asking.first(asking.open, replace(how, forced=rare))
        same = forced is not None and forced.token_id == rare and abs(forced.log_prob - raw[rare]) < NEAR
        found["forced_raw"] = same
    return found


def _teacher_forcing(asking: _Asking) -> dict[str, Any]:
    """How the tokens of a prompt are scored; that a field is not refused says nothing."""
    how = Asked(1.0, 1, log_probs=False)
    reply = asking.reply(asking.open, how, prompt_logprobs=1)
    for path in (("prompt_logprobs",), ("choices", 0, "prompt_logprobs")):
        scored = _inside(reply, *path)
        if isinstance(scored, list) and len(scored) > 1 and isinstance(scored[-1], Mapping):
            return {"scores_prompt": "prompt_logprobs"}
    reply = asking.reply(asking.open, how, echo=True, logprobs=1)
    scores = _inside(reply, "choices", 0, "logprobs", "token_logprobs")
    echoed = isinstance(scores, list) and len(scores) > len(IDS) and None not in scores[1:]
    return {"scores_prompt": "echo" if echoed else None}


def _answers(asking: _Asking) -> dict[str, Any]:
    """Whether the end of turn has an entry, and whether an answer that was begun is continued."""
    ended: list[bool] = []
    continued = False
    flags = {"continue_final_message": True, "add_generation_prompt": False}
    for question in QUESTIONS:
        how = Asked(0.0, 48)
        for choice in asking.choices(_chat(question), how, return_tokens_as_token_ids=None):
            texts = [entry.text for entry in choice.entries or ()]
            if choice.finished and texts:
                ended.append(_squeezed("".join(texts[:-1])) == _squeezed(choice.text))
            begun = "".join(texts[: len(texts) // 2]) or choice.text.partition(" ")[0]
            rest = _squeezed(choice.text.removeprefix(begun))
            for more in asking.choices(_chat(question, Turn("assistant", begun)), how, **flags):
                got = _squeezed(more.text)  # the rest, or all again though less was generated (llama.cpp)
                again = got == _squeezed(choice.text) and 0 < more.tokens < choice.tokens
                continued |= choice.finished and (again or (got == rest and len(rest) > 3))
    return {"end_included": bool(ended) and all(ended), "continues": continued}


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _prefix(asking: _Asking) -> dict[str, Any]:
    """Whether the second of two equal requests took tokens from a cache, where its usage says that."""
    for _ in range(2):
        reply = asking.reply(_chat(" ".join(QUESTIONS * 8)), Asked(1.0, 1, log_probs=False))
    cached = _inside(reply, "usage", "prompt_tokens_details", "cached_tokens")
    return {"prefix_cached": cached > 0 if isinstance(cached, int) else None}


def _truncation(asking: _Asking) -> dict[str, Any]:
    profile = asking.profile
    prompts = [asking.open, *map(_chat, QUESTIONS)]
    k = min(profile.top_log_probs, LISTED)
    tops = [_top(asking, prompt, k) if profile.log_probs else {} for prompt in prompts]
    known = [Known.of(top, whole=len(top) == profile.vocabulary) if top else None for top in tops]
    n = profile.together

    def draw(index: int, temperature: float, seed: int) -> list[Key]:
        seeds = range(ROUND * seed, ROUND * (seed + 1), n)
        requests = [
            request_for(profile, prompts[index], Asked(temperature, 1, n=n, seed=one)) for one in seeds
        ]
        drawn = asking.client.send_all(requests, parse_choices)
        choices = [choice for one in drawn if not isinstance(one, RequestFailed) for choice in one]
        if profile.log_probs is None:
            return list(map(_said, choices))
        entries = [choice.entries[0] for choice in choices if choice.entries]
        return [entry.key for entry in entries]

    limit = profile.max_temperature or HOT[-1]
    truncated, tested = find_truncation(draw, known, sorted({1.0, limit, *(t for t in HOT if t <= limit)}))
    if "top-k" not in tested:
        how = Asked(limit, 64, log_probs=False)
        several = [asking.choices(prompts[1], replace(how, seed=seed)) for seed in range(1, 6)]
        said = {_said(choice) for choices in several for choice in choices}
        truncated = truncated or (
            f"1 token: 5 answers at T = {limit:g} were the same" if len(said) == 1 else None
        )
    return {"truncated_to": truncated, "truncation_tested": tested}


def _said(choice: Choice) -> str:
    """The answer and what the model thought before it."""
    return f"{choice.reasoning}\n{choice.text}"


#: In the order in which they build on each other.
_FINDERS = (
    _neutral,
    _temperatures,
    _token_ids_in,
    _vocabulary,
    _several,
    _seed,
    _alternatives,
    _at_temperature,
    _whole_vocabulary,
    _chosen,
    _teacher_forcing,
    _answers,
    _prefix,
    _truncation,
)
