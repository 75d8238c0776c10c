"""Find out what a server does, by a few small requests."""

from __future__ import annotations

import hashlib
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import count, takewhile
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from semcal.data.question import Turn
from semcal.errors import SemcalWarning, ServerError
from semcal.files import read_sealed, user_cache, write_sealed
from semcal.models.language_model import Prompt
from semcal.servers.client import RequestFailed, ServerClient
from semcal.servers.profile import NEUTRAL, AnswerRequest, ServerProfile, request_for
from semcal.servers.replies import Choice, TokenEntry, parse_choices


def cache_folder(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """Where profiles are kept: below SEMCAL_CACHE, or else below the folder of the user's caches.

    >>> str(cache_folder({"SEMCAL_CACHE": "/big"}, "linux"))
    '/big/servers'
    """
    return user_cache("servers", environment, platform)


def _path(folder: Path | None, profile: ServerProfile) -> Path:
    """The file for a server and a model in a folder, or in the user's cache."""
    name = hashlib.sha256(f"{profile.url}\n{profile.model}".encode()).hexdigest()[:24]
    return (folder or cache_folder()) / f"{name}.json"


def write_profile(folder: Path | None, profile: ServerProfile, probe: int) -> None:
    """Keep a profile as JSON, with the version of the probe and a checksum; warn where that cannot be."""
    path = _path(folder, profile)
    try:
        write_sealed(path, {"probe": probe, "profile": asdict(profile)})
    except OSError as error:
        reason = f"what the server does could not be stored ({path}: {error.strerror}): it is asked again"
        warnings.warn(reason, SemcalWarning, stacklevel=3)


def read_profile(folder: Path | None, identified: ServerProfile, probe: int) -> ServerProfile | None:
    """The profile that is kept; None if there is none, it is damaged, or what `identify` found is another."""
    stored = read_sealed(_path(folder, identified)) or {}
    content = stored.get("profile")
    if stored.get("probe") != probe:
        return None
    if not isinstance(content, dict) or content.keys() != {field_.name for field_ in fields(ServerProfile)}:
        return None
    profile = ServerProfile(**{**content, "truncation_tested": tuple(content["truncation_tested"])})
    names = (
        "url",
        "model",
        "server",
        "version",
        "max_length",
        *(["vocabulary"] if identified.vocabulary else []),
    )
    return profile if all(getattr(profile, name) == getattr(identified, name) for name in names) else None


#: What /models calls the owner, and where each server tells its version.
OWNERS = {
    "llamacpp": "llama.cpp",
    "vllm": "vLLM",
    "sglang": "SGLang",
    "library": "Ollama",
    "me": "llama-cpp-python",
}
VERSIONS = {
    "llama.cpp": ("//props", "build_info"),
    "vLLM": ("//version", "version"),
    "SGLang": ("//get_server_info", "version"),
    "Ollama": ("//api/version", "version"),
    "TGI": ("//info", "version"),
    "LiteLLM": ("//health/readiness", "litellm_version"),
}


def identify(client: ServerClient) -> ServerProfile:
    """Which server and model this is, by two or three calls that generate nothing.

    Warns with SemcalWarning if the server does not list the model. ServerError if it lists none and none is
    named.
    """
    url, model = client.endpoint.url, client.endpoint.model
    listed = _models(client)
    _check_path(client)
    if model is None and not listed:
        raise ServerError(f"{url} lists no models; name one: {url}#NAME")
    name = model or listed[0]["id"]
    aliases_listed = [row["aliases"] if isinstance(row.get("aliases"), list) else [] for row in listed]
    entry = next(
        (row for row, aliases in zip(listed, aliases_listed) if name in (row["id"], *aliases)),
        None,
    )
    if entry is None and listed:
        names = client.words(", ".join(row["id"] for row in listed[:10]))
        unlisted = f"{url} does not list the model {name}; it lists {names}"
        remedy = f"{name} is asked all the same, and what is written is bound to that name"
        warnings.warn(f"{unlisted}; {remedy}", SemcalWarning, stacklevel=2)
    entry = entry or (listed[0] if listed else {})
    server, details = _server(client, str(entry.get("owned_by", "")))
    version = details.get(VERSIONS.get(server, ("", ""))[1])
    sizes = {**details, **_object(entry.get("meta")), **entry}
    lengths = [_count(sizes.get(key)) for key in ("max_model_len", "n_ctx", "max_total_tokens")]
    return ServerProfile(
        url,
        name,
        server,
        None if version is None else client.words(str(version)),
        next(filter(None, lengths), None),
        _count(sizes.get("n_vocab")),
    )


def _check_path(client: ServerClient) -> None:
    """Refuse the address of a host whose /v1 answers: what else it answers is no OpenAI's (llama.cpp)."""
    host = client.endpoint.host
    if client.endpoint.url == host:
        try:
            client.get("/v1/models")
        except ServerError:
            return
        raise ServerError(f"the OpenAI-style API of {host} is under /v1; give {host}/v1")


def _models(client: ServerClient) -> list[dict[str, Any]]:
    """What the server lists, without entries whose id cannot be shown as it is."""
    try:
        listed = _object(client.get("/models")).get("data")
    except ServerError:
        if client.endpoint.model is None:
            raise
        return []  # some proxies have no list
    named = [(row, _object(row).get("id")) for row in (listed if isinstance(listed, list) else [])]
    return [row for row, name in named if isinstance(name, str) and name == client.words(name, width=500)]


def _server(client: ServerClient, owner: str) -> tuple[str, dict[str, Any]]:
    """The server, and what the address that tells its version says."""
    of_openai = owner in ("openai", "system", "openai-internal")
    named = [OWNERS[owner]] if owner in OWNERS else []
    for server in named or (["LiteLLM"] if of_openai else ["TGI", "Ollama"]):
        path, key = VERSIONS.get(server, ("", ""))
        try:
            details = _object(client.get(path)) if path else {}
        except ServerError:
            details = {}
        if (
            named or key in details or (server == "LiteLLM" and "db" in details)
        ):  # its version is no longer told
            return server, details
    return "OpenAI" if of_openai else "unknown", {}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**9 else None


#: The version of what is asked here: profiles of another are not read.
PROBE = 3
QUESTIONS = ("What is the capital of France?", "Name a river.", "Name the days of the week.")
#: A prompt of token ids, which begins no chat: nearly anything may follow.
IDS = tuple(range(40, 56))
#: Temperatures that are tried.
HOT = (2.0, 5.0, 100.0)
#: Alternatives that are read for each prompt where more may be had: a large vocabulary is megabytes.
LISTED = 4096
#: How a request fails where the server has not answered it; another status, or an answer that is none at
#: every try, says what the server does.
_NO_ANSWER = (None, 408, 409, 425, 429, 502, 503, 504)
#: Log-probabilities of one token in two requests differ by less than this if they are the same.
NEAR = 0.1


@dataclass
class _Probing:
    """The client, and what is known of the server so far."""

    client: ServerClient
    profile: ServerProfile

    def reply(
        self, prompt: Prompt, answer: AnswerRequest, **further: Any
    ) -> Mapping[str, Any] | RequestFailed:
        """The reply to one request, with further fields in its body; None takes one out."""
        request = request_for(self.profile, prompt, answer)
        body = {**request.body, **further}
        request = replace(request, body={name: value for name, value in body.items() if value is not None})
        (reply,) = self.client.send_all([request], _intact)
        if isinstance(reply, RequestFailed) and reply.status in _NO_ANSWER:
            raise ServerError(f"{self.profile.url} could not be probed: {reply.reason}")
        return reply

    def choices(self, prompt: Prompt, answer: AnswerRequest, **further: Any) -> list[Choice]:
        """The choices of one request; none if it is refused, or its log-probabilities make no sense."""
        reply = self.reply(prompt, answer, **further)
        try:
            return [] if isinstance(reply, RequestFailed) else parse_choices(reply)
        except ValueError:
            return []

    def first(self, prompt: Prompt, answer: AnswerRequest, **further: Any) -> TokenEntry | None:
        """The first token that is drawn, with its log-probabilities; None without them."""
        entries = [choice.entries for choice in self.choices(prompt, answer, **further)]
        return entries[0][0] if entries and entries[0] else None

    @property
    def open(self) -> Prompt:
        """A prompt after which much may follow, and no thinking where token ids are taken."""
        return Prompt("probe", IDS) if self.profile.token_ids_in else _chat(QUESTIONS[1])

    @property
    def hot(self) -> float:
        """A temperature above 1 that the server accepts; 1 if there is none."""
        return min(self.profile.max_temperature or HOT[0], HOT[0])


def _intact(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    """The reply; ValueError, so that it is asked for again, if its choices cannot be read."""
    choices = reply.get("choices")
    without = {"logprobs": None}  # whose form is what a probe finds out
    if isinstance(choices, list):
        choices = [{**choice, **without} if isinstance(choice, Mapping) else choice for choice in choices]
    parse_choices({**reply, "choices": choices})
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


def probe(client: ServerClient, identified: ServerProfile | None = None) -> ServerProfile:
    """Ask the server what it does, beyond what `identify` found now.

    Takes some dozens of requests of a few tokens, up to `truncation.MOST` draws of one token for each kind of
    cut, and two replies of the whole vocabulary where the server gives it. ServerError if the server cannot
    be reached or refuses the plainest question.
    """
    asking = _Probing(client, identified or identify(client))
    for find in _FINDERS:
        asking.profile = replace(asking.profile, **find(asking))
    return asking.profile


def stored_profile(client: ServerClient, *, fresh: bool = False) -> ServerProfile:
    """The profile of an earlier probe, if the server still has its version and kind of log-probabilities.

    Else a new one. Kept in `ServerSettings.profiles` or the user's cache. A file that is damaged, or of
    another version of the probe, is not read.
    """
    identified = identify(client)
    folder = client.settings.profiles
    profile = None if fresh else read_profile(folder, identified, PROBE)
    if profile is None or not _still_so(_Probing(client, profile)):
        profile = probe(client, identified)
        write_profile(folder, profile, PROBE)
    return profile


def _still_so(asking: _Probing) -> bool:
    """Whether log-probabilities are raw or at T as before: two servers are told which when they start."""
    before = asking.profile.log_probs
    chosen_at_start = asking.profile.server in ("vLLM", "SGLang") and before is not None
    return not chosen_at_start or _at_temperature(asking).get("log_probs", "raw") == before


def _neutral(asking: _Probing) -> dict[str, Any]:
    """Which fields that switch truncation off the server takes: as many as it can."""
    plain = ("top_p", "presence_penalty", "frequency_penalty")  # all that OpenAI knows
    tried = [NEUTRAL, {**NEUTRAL, "top_k": 0}, {name: NEUTRAL[name] for name in plain}, {"top_p": 1.0}, {}]
    reason = ""
    for neutral in tried:
        asking.profile = replace(asking.profile, neutral=neutral)
        reply = asking.reply(_chat(QUESTIONS[0]), AnswerRequest(1.0, 1))
        if not isinstance(reply, RequestFailed):
            return {"neutral": dict(neutral)}
        reason = reason or reply.reason
        if reply.status not in (400, 422):
            break
    raise ServerError(f"{asking.profile.url} refuses the plainest question: {reason}")


def _temperatures(asking: _Probing) -> dict[str, Any]:
    tried = takewhile(lambda t: asking.choices(_chat(QUESTIONS[1]), AnswerRequest(t, 1)), HOT)
    accepted = [1.0, *tried]
    if accepted == [1.0] and asking.choices(_chat(QUESTIONS[1]), AnswerRequest(1.5, 1)):
        accepted.append(1.5)
    return {"max_temperature": None if accepted[-1] == HOT[-1] else accepted[-1]}


def _token_ids_in(asking: _Probing) -> dict[str, Any]:
    reply = asking.reply(Prompt("probe", IDS), AnswerRequest(1.0, 1, log_probs=False))
    counted = _inside(reply, "usage", "prompt_tokens")
    return {"token_ids_in": counted in (len(IDS), len(IDS) + 1)}  # a BOS may be added


def _vocabulary(asking: _Probing) -> dict[str, Any]:
    """How many tokens there are where the server does not tell: vLLM refuses ids from there on."""

    def taken(token_id: int) -> bool:
        reply = asking.reply(Prompt("probe", (token_id,)), AnswerRequest(1.0, 1, log_probs=False))
        return not isinstance(reply, RequestFailed)

    low, high = IDS[0], 2**22
    if asking.profile.server != "vLLM" or not asking.profile.token_ids_in or taken(high):
        return {}
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if taken(middle) else (low, middle)
    return {"vocabulary": high}


def _several(asking: _Probing) -> dict[str, Any]:
    """The largest n up to 10 that gives n choices: more may be refused, or cut without a word.

    1 where a proxy passes on what llama.cpp says: see `ServerProfile.together`.
    """
    single = asking.reply(asking.open, AnswerRequest(1.0, 1, log_probs=False))
    if asking.profile.server != "llama.cpp" and _inside(single, "timings") is not None:
        return {}
    low, high, n = 1, 11, 10
    differ = False
    while high - low > 1:
        choices = asking.choices(asking.open, AnswerRequest(asking.hot, 8, n=n, seed=1, log_probs=False))
        if len(choices) == n:
            low, differ = n, len(set(map(_said, choices))) > 1
        else:
            high = n
        n = (low + high) // 2
    return {} if low == 1 else {"max_n": low, "choices_differ": differ}


def _seed(asking: _Probing) -> dict[str, Any]:
    hottest = asking.profile.max_temperature or HOT[-1]

    def texts(seed: int) -> list[str]:
        choices = asking.choices(asking.open, AnswerRequest(hottest, 8, seed=seed, log_probs=False))
        return list(map(_said, choices))

    first, second = ([texts(seed) for seed in range(1, 6)] for _ in range(2))
    return {"seed": first == second and len({"".join(answers) for answers in first}) > 1}


def _alternatives(asking: _Probing) -> dict[str, Any]:
    """Whether there are log-probabilities, and how many alternatives a token may have: 20, 5, 1 or none."""
    for k in (20, 5, 1, 0):
        asking.profile = replace(asking.profile, log_probs="raw", top_log_probs=k)
        entry = asking.first(asking.open, AnswerRequest(1.0, 1, alternatives=k))
        if entry is not None:
            has_ids = entry.token_id is not None
            listed = k if len(entry.top) > k // 2 else len(entry.top)  # some may have one text
            return {"log_probs": "raw", "top_log_probs": listed, "token_ids_out": has_ids}
    return {"log_probs": None, "top_log_probs": 0}


def _listed(asking: _Probing, temperature: float, **options: Any) -> dict[Key, float]:
    """Log-probabilities of the first token's alternatives, and of the drawn tokens of a few draws."""
    log_probs: dict[Key, float] = {}
    k = asking.profile.top_log_probs
    for seed in range(1, 4 if k > 1 else 17):
        answer = AnswerRequest(temperature, 1, seed=seed, alternatives=k, **options)
        entry = asking.first(asking.open, answer)
        if entry is not None:
            log_probs |= {**entry.top, entry.key: entry.log_prob}
    return log_probs


def _power(raw: Mapping[Key, float], scaled: Mapping[Key, float]) -> float | None:
    """By what the differences of raw log-probabilities are multiplied in others; None if that is unknown."""
    common = sorted(
        (key for key in raw if min(raw[key], scaled.get(key, -1e9)) > -1e3), key=lambda key: raw[key]
    )
    if len(common) < 2 or raw[common[-1]] - raw[common[0]] < 0.5:
        return None
    return (scaled[common[-1]] - scaled[common[0]]) / (raw[common[-1]] - raw[common[0]])


def _at_temperature(asking: _Probing) -> dict[str, Any]:
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


def _top(asking: _Probing, prompt: Prompt, k: int) -> dict[Key, float]:
    """The k likeliest first tokens at T = 1; -1 is all."""
    further = {} if k > 0 else {"logprobs": k} if prompt.token_ids else {"top_logprobs": k}
    entry = asking.first(prompt, AnswerRequest(1.0, 1, seed=1, alternatives=k), **further)
    return {} if entry is None else dict(entry.top)


def _whole_vocabulary(asking: _Probing) -> dict[str, Any]:
    """Whether all tokens may be listed: their probabilities add up to 1, and each prompt lists the same."""
    profile = asking.profile
    if profile.log_probs not in ("raw", "scaled") or profile.top_log_probs < 20:
        return {}
    for k in (-1, 1000) if profile.vocabulary is None else (profile.vocabulary,):
        first, second = (_top(asking, prompt, k) for prompt in (asking.open, _chat(QUESTIONS[0])))
        if len(first) > profile.top_log_probs:
            is_whole = first.keys() == second.keys() and len(first) == (profile.vocabulary or len(first))
            is_whole &= all(abs(sum(map(exp, top.values())) - 1) <= 1e-4 for top in (first, second))
            size = len(first) if is_whole else profile.vocabulary
            return {"top_log_probs": len(first), "whole_vocabulary": is_whole, "vocabulary": size}
    return {}


def _chosen(asking: _Probing) -> dict[str, Any]:
    """Whether log-probabilities of named tokens are given, and of one that logit_bias forces."""
    profile, answer = asking.profile, AnswerRequest(1.0, 1, seed=1)
    asking.profile = replace(profile, chosen_ids=True)
    plain = asking.first(asking.open, answer)
    named = asking.first(asking.open, replace(answer, token_ids=IDS[:4]))
    findings = {
        "chosen_ids": plain is not None and named is not None and len(named.top) >= len(plain.top) + 2
    }
    raw = {key: value for key, value in _top(asking, asking.open, 5).items() if isinstance(key, int)}
    if len(raw) > 1 and profile.log_probs == "raw":
        rare = min(raw, key=lambda key: raw[key])
        forced = asking.first(asking.open, replace(answer, forced=rare))
        equal = forced is not None and forced.token_id == rare and abs(forced.log_prob - raw[rare]) < NEAR
        findings["forced_raw"] = equal
    return findings


def _teacher_forcing(asking: _Probing) -> dict[str, Any]:
    """How the tokens of a prompt are scored; that a field is not refused says nothing."""
    answer = AnswerRequest(1.0, 1, log_probs=False)
    reply = asking.reply(asking.open, answer, prompt_logprobs=1)
    for path in (("prompt_logprobs",), ("choices", 0, "prompt_logprobs")):
        scored = _inside(reply, *path)
        if isinstance(scored, list) and len(scored) > 1 and isinstance(scored[-1], Mapping):
            return {"scores_prompt": "prompt_logprobs"}
    reply = asking.reply(asking.open, answer, echo=True, logprobs=1)
    scores = _inside(reply, "choices", 0, "logprobs", "token_logprobs")
    echoed = isinstance(scores, list) and len(scores) > len(IDS) and None not in scores[1:]
    return {"scores_prompt": "echo" if echoed else None}


def _answers(asking: _Probing) -> dict[str, Any]:
    """Whether the end of turn has an entry, and whether an answer that was begun is continued."""
    ended: list[bool] = []
    continued = False
    flags = {"continue_final_message": True, "add_generation_prompt": False}
    for question in QUESTIONS:
        answer = AnswerRequest(0.0, 48)
        for choice in asking.choices(_chat(question), answer, return_tokens_as_token_ids=None):
            texts = [entry.text for entry in choice.entries or ()]
            if choice.finished and texts:
                ended.append(_squeezed("".join(texts[:-1])) == _squeezed(choice.text))
            begun = "".join(texts[: len(texts) // 2]) or choice.text.partition(" ")[0]
            remainder = _squeezed(choice.text.removeprefix(begun))
            for more in asking.choices(_chat(question, Turn("assistant", begun)), answer, **flags):
                continuation = _squeezed(
                    more.text
                )  # the rest, or all again though less was generated (llama.cpp)
                repeated = continuation == _squeezed(choice.text) and 0 < more.tokens < choice.tokens
                continued |= choice.finished and (
                    repeated or (continuation == remainder and len(remainder) > 3)
                )
    return {"end_included": bool(ended) and all(ended), "continues": continued}


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _prefix(asking: _Probing) -> dict[str, Any]:
    """Whether the second of two equal requests took tokens from a cache, where its usage says that."""
    for _ in range(2):
        reply = asking.reply(_chat(" ".join(QUESTIONS * 8)), AnswerRequest(1.0, 1, log_probs=False))
    cached = _inside(reply, "usage", "prompt_tokens_details", "cached_tokens")
    return {"prefix_cached": cached > 0 if isinstance(cached, int) else None}


def _truncation(asking: _Probing) -> dict[str, Any]:
    profile = asking.profile
    prompts = [asking.open, *map(_chat, QUESTIONS)]
    k = min(profile.top_log_probs, LISTED)
    tops = [_top(asking, prompt, k) if profile.log_probs else {} for prompt in prompts]
    top_tokens = [TopTokens.of(top, whole=len(top) == profile.vocabulary) if top else None for top in tops]
    n = profile.together

    def draw(index: int, temperature: float, seed: int) -> list[Key]:
        seeds = range(ROUND * seed, ROUND * (seed + 1), n)
        requests = [
            request_for(profile, prompts[index], AnswerRequest(temperature, 1, n=n, seed=number))
            for number in seeds
        ]
        replies = asking.client.send_all(requests, parse_choices)
        choices = [choice for reply in replies if not isinstance(reply, RequestFailed) for choice in reply]
        if profile.log_probs is None:
            return list(map(_said, choices))
        entries = [choice.entries[0] for choice in choices if choice.entries]
        return [entry.key for entry in entries]

    limit = profile.max_temperature or HOT[-1]
    truncated, tested = find_truncation(
        draw, top_tokens, sorted({1.0, limit, *(t for t in HOT if t <= limit)})
    )
    if "top-k" not in tested:
        answer = AnswerRequest(limit, 64, log_probs=False)
        several = [asking.choices(prompts[1], replace(answer, seed=seed)) for seed in range(1, 6)]
        answers = {_said(choice) for choices in several for choice in choices}
        truncated = truncated or (
            f"1 token: 5 answers at T = {limit:g} were the same" if len(answers) == 1 else None
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


#: How likely it is, for each kind of cut, that a server that does not cut is said to.
FALSE_ALARM = 1e-6
#: What is looked for, a little wider than what servers have as defaults: near ties may go either way.
TOP_K, TOP_P, MIN_P = 50, 0.96, 0.04
#: How far from 1 servers' probabilities may add up.
ROUNDING = 1e-4
#: Draws asked for at a time, and at most for one kind of cut.
ROUND, MOST = 64, 1024

Key = int | str
"""A token: its id, or its text where ids are not told."""
Draw = Callable[[int, float, int], Sequence[Key]]
"""Draws one token to a prompt (its index) at a temperature, with a seed, `ROUND` times or fewer."""


@dataclass(frozen=True)
class TopTokens:
    """The likeliest tokens after a prompt, likeliest first, with natural log-probabilities at T = 1."""

    keys: tuple[Key, ...]
    log_probs: NDArray[np.float64]
    whole: bool  # they are the whole vocabulary

    @classmethod
    def of(cls, top: Mapping[Key, float], *, whole: bool) -> TopTokens:
        """From the alternatives of a token."""
        keys = sorted(top, key=lambda key: -top[key])
        return cls(tuple(keys), np.array([top[key] for key in keys]), whole)

    def shares(self, temperature: float) -> NDArray[np.float64]:
        """Upper bounds of their probabilities at a temperature from 1 on; exact at 1 or if `whole`.

        What is missing from 1 adds least to Σ p^(1/T) where as many tokens as can be are as likely as the
        last known one (x^(1/T) is concave). Two tokens of one text hide how likely that is.
        """
        weights = np.exp(self.log_probs / temperature)
        unlisted = 0.0 if self.whole else max(0.0, 1.0 - ROUNDING - float(np.exp(self.log_probs).sum()))
        hidden = any("\N{REPLACEMENT CHARACTER}" in key for key in self.keys if isinstance(key, str))
        largest = 1.0 if hidden else float(np.exp(self.log_probs[-1]))
        m = math.floor(unlisted / largest) if largest else 0
        tail = m * largest ** (1 / temperature) + max(0.0, unlisted - m * largest) ** (1 / temperature)
        shares: NDArray[np.float64] = weights / (weights.sum() + tail)
        return shares

    def kept(self, cut: str, temperature: float) -> int | None:
        """How many of the likeliest tokens top-p or min-p would leave; None if that cannot be known.

        Servers cut before the temperature is applied or after it; from T = 1 on, the latter leaves more.
        """
        if cut == "min-p":
            count = int((self.log_probs >= self.log_probs[0] + temperature * math.log(MIN_P)).sum())
            return count if count < len(self.keys) or self.whole else None
        if temperature != 1 and not self.whole:
            return None
        count = int(np.searchsorted(self.shares(temperature).cumsum(), TOP_P)) + 1
        return count if count < len(self.keys) else None


def find_truncation(
    draw: Draw, distributions: Sequence[TopTokens | None], temperatures: Sequence[float]
) -> tuple[str | None, tuple[str, ...]]:
    """Return how draws are cut, or None; and the kinds of cut that would have been seen.

    `draw` draws one token to a prompt (by its number) at a temperature with a seed, an empty list if the
    server refused; `distributions` are the likeliest tokens after each prompt; `temperatures` are those
    that the server accepts, in ascending order, from 1 on.
    """
    masked = [
        tokens for tokens in distributions if tokens is not None and np.isneginf(tokens.log_probs).any()
    ]
    if masked:
        finite = int(np.isfinite(masked[0].log_probs).sum())
        return f"{finite} tokens (all others have probability 0)", ("top-k", "top-p", "min-p")
    cuts, tested = [], []
    for cut, look in (("top-k", _look_for_top_k), ("top-p", _look_for_mass), ("min-p", _look_for_mass)):
        finding = look(cut, draw, distributions, temperatures)
        if finding is not None:
            tested.append(cut)
            cuts += [finding] if finding else []
    return " and ".join(cuts) or None, tuple(tested)


def _look_for_mass(
    cut: str, draw: Draw, distributions: Sequence[TopTokens | None], temperatures: Sequence[float]
) -> str | None:
    """How draws are cut, "" if they are not, None if that cannot be told."""
    best, where = 0.0, None
    for index, tokens in enumerate(distributions):
        for temperature in temperatures if tokens is not None else ():
            kept = tokens.kept(cut, temperature) if tokens is not None else None
            if tokens is not None and kept is not None:
                missing = 1 - float(tokens.shares(temperature)[:kept].sum())
                if missing > best:
                    best, where = missing, (index, temperature, frozenset(tokens.keys[:kept]))
    if where is None or (1 - best) ** MOST > FALSE_ALARM:
        return None
    index, temperature, left_over = where
    number = 0
    for draws in _rounds(draw, index, temperature):
        number += len(draws)
        if not left_over.issuperset(draws):
            return ""
        if (1 - best) ** number <= FALSE_ALARM:
            return (
                f"{cut}: none of {number} draws at T = {temperature:g} was among the tokens that it cuts, "
                f"where {best * number:.0f} were expected"
            )
    return None


def _look_for_top_k(
    cut: str, draw: Draw, distributions: Sequence[TopTokens | None], temperatures: Sequence[float]
) -> str | None:
    """As `_look_for_mass`. Few different tokens count as a cut unless the whole vocabulary explains them."""
    temperature = temperatures[-1]
    flattest = min(
        range(len(distributions)),
        key=lambda i: top.log_probs[0] if (top := distributions[i]) is not None else 0,
    )
    different: set[Key] = set()
    number = 0
    for draws in _rounds(draw, flattest, temperature):
        number += len(draws)
        different.update(draws)
        if len(different) > TOP_K:
            return ""
        if number >= ROUND and len(different) == 1:  # a token that always comes first, such as <think>
            return None
    first = distributions[flattest]
    if first is not None and first.whole:
        others_share = 1 - float(first.shares(temperature)[:TOP_K].sum())
        if scipy.special.bdtr(TOP_K, number, max(0.0, others_share)) > FALSE_ALARM:
            return None
    if number < ROUND:
        return None
    return f"{cut}: {number} draws at T = {temperature:g} gave only {len(different)} different tokens"


def _rounds(draw: Draw, index: int, temperature: float) -> Iterator[Sequence[Key]]:
    """Draws, a round at a time, until `MOST` of them are there or the server gives no more."""
    number = 0
    for seed in count(1):
        draws = draw(index, temperature, seed) if number < MOST else ()
        number += len(draws)
        if not draws:
            return
        yield draws
