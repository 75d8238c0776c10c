"""Determine the capabilities of a server by a few small requests."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from semcal.data.question import Turn
from semcal.errors import SemcalWarning, ServerError
from semcal.files import inside, read_sealed, user_cache, write_sealed
from semcal.models.protocols import Prompt
from semcal.rows import Json
from semcal.servers.client import RequestFailed, ServerClient
from semcal.servers.protocol import (
    MOST_CHOICES,
    NEUTRAL,
    AnswerRequest,
    ReplyChoice,
    ServerProfile,
    TokenEntry,
    parse_choices,
    request_for,
    squeezed,
)


def _path(folder: Path | None, profile: ServerProfile) -> Path:
    name = hashlib.sha256(f"{profile.url}\n{profile.model}".encode()).hexdigest()[:24]
    return (folder or user_cache("servers")) / f"{name}.json"


def write_profile(folder: Path | None, profile: ServerProfile) -> None:
    """Write a profile as JSON, with the version of the probe and a checksum, if the folder can be written."""
    with suppress(OSError):
        write_sealed(_path(folder, profile), {"probe": PROBE, "profile": asdict(profile)})


def _read_profile(folder: Path | None, identified: ServerProfile) -> ServerProfile | None:
    """Return the stored profile; None if it is missing, damaged, or of another server, model or probe."""
    stored = read_sealed(_path(folder, identified)) or {}
    content = stored.get("profile")
    names = {field.name for field in fields(ServerProfile)}
    if stored.get("probe") != PROBE or not isinstance(content, dict) or content.keys() != names:
        return None
    profile = ServerProfile(**content)
    identity = ["url", "model", "server", "version", "max_length"]
    if identified.vocabulary:
        identity.append("vocabulary")
    same = all(getattr(profile, name) == getattr(identified, name) for name in identity)
    return profile if same else None


#: Server by the owner of a model in /models, with the address and the key of its version.
SERVERS = {
    "llamacpp": ("llama.cpp", "//props", "build_info"),
    "vllm": ("vLLM", "//version", "version"),
    "sglang": ("SGLang", "//get_server_info", "version"),
    "library": ("Ollama", "//api/version", "version"),
}


def identify(client: ServerClient) -> ServerProfile:
    """Identify server and model by two or three calls that generate no text.

    SemcalWarning if the server does not list the model; ServerError if no model is listed or named.
    """
    url, model = client.endpoint.url, client.endpoint.model
    listed = _models(client)
    if model is None and not listed:
        raise ServerError(f"{url} lists no models. Name a model: {url}#NAME")
    name = model or listed[0]["id"]
    entry = next((row for row in listed if name == row["id"]), None)
    if entry is None and listed:
        names = client.words(", ".join(row["id"] for row in listed[:10]))
        warnings.warn(
            f"{url} does not list the model {name}; it lists {names}. Requests use {name}, and results are "
            "recorded for that name",
            SemcalWarning,
            stacklevel=2,
        )
    entry = entry or (listed[0] if listed else {})
    server, version, details = _server(client, str(entry.get("owned_by", "")))
    sizes = {**details, **_object(entry.get("meta")), **entry}
    lengths = [_count(sizes.get(key)) for key in ("max_model_len", "n_ctx", "max_total_tokens")]
    return ServerProfile(
        url,
        name,
        server,
        version,
        next(filter(None, lengths), None),
        _count(sizes.get("n_vocab")),
        _count(details.get("total_slots")),
    )


def _models(client: ServerClient) -> list[Json]:
    try:
        listed = _object(client.get("/models")).get("data")
    except ServerError:
        if client.endpoint.model is None:
            raise
        return []  # some proxies have no list of models
    named = [(row, _object(row).get("id")) for row in (listed if isinstance(listed, list) else [])]
    return [row for row, name in named if isinstance(name, str) and name == client.words(name, width=500)]


def _server(client: ServerClient, owner: str) -> tuple[str, str | None, Json]:
    """Return the name and the version of the server, and the reply with its version."""
    if owner in SERVERS:
        name, path, key = SERVERS[owner]
        details = _details(client, path)
        return name, client.words(str(details[key])) if key in details else None, details
    if owner not in ("openai", "system", "openai-internal"):
        return "unknown", None, {}
    # LiteLLM names OpenAI as the owner, and reports no version.
    return "LiteLLM" if "db" in _details(client, "//health/readiness") else "OpenAI", None, {}


def _details(client: ServerClient, path: str) -> Json:
    try:
        return _object(client.get(path))
    except ServerError:
        return {}


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**9 else None


#: Version of the probe: profiles of other versions are not read.
PROBE = 7
QUESTIONS = ("What is the capital of France?", "Name a river.", "Name the days of the week.")
#: A prompt of token ids that does not begin a chat, so that nearly anything may follow.
IDS = tuple(range(40, 56))
#: Temperatures to try.
HOT = (2.0, 5.0, 100.0)
#: Statuses of requests without an answer of the server; other statuses are findings about the server.
_NO_ANSWER = (None, 408, 409, 425, 429, 502, 503, 504)
#: Maximum difference of equal log-probabilities of one token in two requests.
NEAR = 0.1

TokenKey = int | str
"""The id of a token, or its text if ids are unknown."""


def _chat(question: str) -> Prompt:
    return Prompt("probe", (), (Turn("user", question),))


def _text(choice: ReplyChoice) -> str:
    return f"{choice.reasoning}\n{choice.text}"


def probe(client: ServerClient, identified: ServerProfile | None = None) -> ServerProfile:
    """Probe the capabilities of a server, in addition to the facts of `identify`.

    The probe takes some dozens of requests of a few tokens, and two replies with the whole vocabulary if the
    server can list it. SemcalWarning if the server rejects fields that switch truncation off; ServerError if
    the server cannot be reached or rejects the simplest question.
    """
    probing = _Probing(client, identified or identify(client))
    for find in _FINDINGS:
        find(probing)
    return probing.profile


def stored_profile(client: ServerClient, *, fresh: bool = False) -> ServerProfile:
    """Return the stored profile if the server has the same version and kind of log-probabilities, else probe.

    Profiles are stored in `ServerSettings.profiles` or the user's cache, by server, model and version.
    """
    identified, folder = identify(client), client.settings.profiles
    profile = None if fresh else _read_profile(folder, identified)
    if profile is None or not _Probing(client, profile).confirms():
        if client.settings.announce is not None:
            client.settings.announce(
                f"{identified.model} at {identified.url}: probing the server with a few dozen small "
                "requests; the result is stored until the version of the server changes"
            )
        profile = probe(client, identified)
        write_profile(folder, profile)
    return profile


@dataclass
class _Probing:
    client: ServerClient
    profile: ServerProfile

    def add(self, **findings: Any) -> None:
        self.profile = replace(self.profile, **findings)

    def reply(
        self, prompt: Prompt, answer: AnswerRequest, further: Json | None = None
    ) -> Json | RequestFailed:
        """Return the reply to one request, with additional fields in its body; None removes a field."""
        request = request_for(self.profile, prompt, answer).with_fields(further or {})
        (reply,) = self.client.send_all([request], _intact)
        if isinstance(reply, RequestFailed) and reply.status in _NO_ANSWER:
            raise ServerError(f"{self.profile.url} could not be probed: {reply.reason}")
        return reply

    def choices(
        self, prompt: Prompt, answer: AnswerRequest, further: Json | None = None
    ) -> list[ReplyChoice]:
        """Return the choices of one request; [] if it is rejected or its log-probabilities are invalid."""
        reply = self.reply(prompt, answer, further)
        try:
            return [] if isinstance(reply, RequestFailed) else parse_choices(reply)
        except ValueError:
            return []

    def texts(self, prompt: Prompt, answer: AnswerRequest) -> list[str]:
        """Return the texts of the choices of one request."""
        return list(map(_text, self.choices(prompt, replace(answer, log_probs=False))))

    def first(self, prompt: Prompt, answer: AnswerRequest, further: Json | None = None) -> TokenEntry | None:
        """Return the first sampled token with its log-probabilities; None without log-probabilities."""
        entries = [choice.entries for choice in self.choices(prompt, answer, further)]
        return entries[0][0] if entries and entries[0] else None

    def top(self, prompt: Prompt, k: int) -> dict[TokenKey, float]:
        """Return the k most likely first tokens at T = 1; -1 requests all tokens."""
        further = {} if k > 0 else {"logprobs" if prompt.token_ids else "top_logprobs": k}
        entry = self.first(prompt, AnswerRequest(1.0, 1, seed=1, alternatives=k), further)
        return {} if entry is None else dict(entry.top)

    @property
    def open(self) -> Prompt:
        """A prompt that many texts may follow, without reasoning if token ids are accepted."""
        return Prompt("probe", IDS) if self.profile.token_ids_in else _chat(QUESTIONS[1])

    @property
    def hot(self) -> float:
        """An accepted temperature above 1, or 1."""
        return min(self.profile.max_temperature or HOT[0], HOT[0])

    def confirms(self) -> bool:
        """Return whether the kind of log-probabilities is unchanged; an option of two servers sets it."""
        before = self.profile.log_probs
        if self.profile.server in ("vLLM", "SGLang") and before is not None:
            self.profile = replace(self.profile, log_probs="raw")
            self.find_log_probs_at_temperature()
        return self.profile.log_probs == before

    def find_neutral_fields(self) -> None:
        """Find the fields of `NEUTRAL` that the server accepts, and warn about the others."""
        if (reason := self._refusal(NEUTRAL)) is None:
            return
        if (refusal := self._refusal({})) is not None:
            raise ServerError(f"{self.profile.url} rejects the simplest question: {refusal}")
        taken: dict[str, Any] = {}
        for name, value in NEUTRAL.items():
            for off in (value, 0) if name == "top_k" else (value,):  # some servers accept only 0
                if name not in taken and self._refusal({**taken, name: off}) is None:
                    taken[name] = off
        self.add(neutral=taken)
        if refused := ", ".join(name for name in NEUTRAL if name not in taken):
            warnings.warn(
                f"{self.profile.url} rejects fields that switch truncation and penalties off "
                f"({refused}; {reason}); requests omit them. Make sure that the server does not truncate",
                SemcalWarning,
                stacklevel=2,
            )

    def _refusal(self, neutral: Json) -> str | None:
        self.add(neutral=dict(neutral))
        reply = self.reply(_chat(QUESTIONS[0]), AnswerRequest(1.0, 1))
        return reply.reason if isinstance(reply, RequestFailed) else None

    def find_temperatures(self) -> None:
        """Find the highest accepted temperature."""

        def accepted(temperature: float) -> bool:
            return bool(self.choices(_chat(QUESTIONS[1]), AnswerRequest(temperature, 1)))

        highest = max(takewhile(accepted, HOT), default=1.0)
        if highest == 1 and accepted(1.5):
            highest = 1.5
        self.add(max_temperature=None if highest == HOT[-1] else highest)

    def find_token_ids(self) -> None:
        """Find out if a prompt may be token ids; the usage then counts them, and maybe a BOS."""
        reply = self.reply(Prompt("probe", IDS), AnswerRequest(1.0, 1, log_probs=False))
        counted = inside(reply, "usage", "prompt_tokens")
        self.add(token_ids_in=counted in (len(IDS), len(IDS) + 1))

    def find_largest_n(self) -> None:
        """Find the largest n that returns n choices, up to `MOST_CHOICES`; servers may reject or reduce n.

        The result is 1 if a proxy forwards replies of llama.cpp: see `ServerProfile.together`.
        """
        single = self.reply(self.open, AnswerRequest(1.0, 1, log_probs=False))
        if self.profile.server != "llama.cpp" and inside(single, "timings") is not None:
            return
        refused, n = MOST_CHOICES + 1, MOST_CHOICES
        while refused - self.profile.max_n > 1:
            texts = self.texts(self.open, AnswerRequest(self.hot, 8, n=n, seed=1))
            if len(texts) == n:
                self.add(max_n=n, choices_differ=len(set(texts)) > 1)
            else:
                refused = n
            n = (self.profile.max_n + refused) // 2

    def find_alternatives(self) -> None:
        """Find the number of alternatives (20, 5, 1 or 0) of a token, if it has a log-probability."""
        for k in (20, 5, 1, 0):
            self.add(log_probs="raw", top_log_probs=k)
            entry = self.first(self.open, AnswerRequest(1.0, 1, alternatives=k))
            if entry is not None:
                listed = k if len(entry.top) > k // 2 else len(entry.top)  # alternatives may share a text
                self.add(top_log_probs=listed, token_ids_out=entry.token_id is not None)
                return
        self.add(log_probs=None, top_log_probs=0)

    def find_log_probs_at_temperature(self) -> None:
        """Find out if log-probabilities of samples at T are raw or at T: T divides their differences."""
        if self.profile.log_probs is None or self.hot == 1:
            self.add(log_probs=None)
            return
        raw, hot = self._first_log_probs(1.0), self._first_log_probs(self.hot)
        power = _power(raw, hot)
        if power is None or min(abs(power - 1), abs(power * self.hot - 1)) > NEAR:
            self.add(log_probs=None)
        elif abs(power * self.hot - 1) <= NEAR:
            self.add(log_probs="scaled")
            if -math.inf in (*raw.values(), *hot.values()):
                left = min(sum(map(math.isfinite, listed.values())) for listed in (raw, hot))
                cut = f"{left} tokens (all others have probability 0)"
                self.add(log_probs="masked", truncated_to=cut)
        else:
            self.add(scaled_on_request=True)
            power = _power(raw, self._first_log_probs(self.hot))
            self.add(scaled_on_request=power is not None and abs(power * self.hot - 1) <= NEAR)

    def _first_log_probs(self, temperature: float) -> dict[TokenKey, float]:
        """Return log-probabilities of the first token's alternatives, and of a few sampled tokens."""
        log_probs: dict[TokenKey, float] = {}
        k = self.profile.top_log_probs
        answer = AnswerRequest(temperature, 1, alternatives=k)
        for seed in range(1, 2 if k >= 5 else 4 if k > 1 else 17):
            entry = self.first(self.open, replace(answer, seed=seed))
            if entry is not None:
                log_probs |= {**entry.top, entry.key: entry.log_prob}
        return log_probs

    def find_whole_vocabulary(self) -> None:
        """Find out if all tokens can be listed: probabilities sum to 1, and all prompts list equal tokens."""
        profile = self.profile
        if profile.log_probs not in ("raw", "scaled") or profile.top_log_probs < 20:
            return
        for k in (-1, 1000) if profile.vocabulary is None else (profile.vocabulary,):
            first, second = (self.top(prompt, k) for prompt in (self.open, _chat(QUESTIONS[0])))
            if len(first) > profile.top_log_probs:
                is_whole = first.keys() == second.keys() and len(first) == (profile.vocabulary or len(first))
                is_whole &= all(abs(sum(map(math.exp, top.values())) - 1) <= 1e-4 for top in (first, second))
                size = len(first) if is_whole else profile.vocabulary
                self.add(top_log_probs=len(first), whole_vocabulary=is_whole, vocabulary=size)
                return

    def find_named_tokens(self) -> None:
        """Find out if replies have log-probabilities of named tokens, and of a token forced by logit_bias."""
        answer = AnswerRequest(1.0, 1, seed=1)
        self.add(chosen_ids=True)
        plain, named = (
            self.first(self.open, replace(answer, token_ids=token_ids)) for token_ids in ((), IDS[:4])
        )
        more = plain is not None and named is not None and len(named.top) >= len(plain.top) + 2
        raw = {key: value for key, value in self.top(self.open, 5).items() if isinstance(key, int)}
        if len(raw) > 1 and self.profile.log_probs == "raw":
            rare = min(raw, key=lambda key: raw[key])
            forced = self.first(self.open, replace(answer, forced=rare))
            equal = forced is not None and forced.token_id == rare and abs(forced.log_prob - raw[rare]) < NEAR
            self.add(forced_raw=equal)
        self.add(chosen_ids=more)

    def find_teacher_forcing(self) -> None:
        """Find out if prompt_logprobs scores the tokens of a prompt; servers may ignore unknown fields."""
        reply = self.reply(self.open, AnswerRequest(1.0, 1, log_probs=False), {"prompt_logprobs": 1})
        scored = inside(reply, "choices", 0, "prompt_logprobs")
        is_scored = isinstance(scored, list) and len(scored) > 1 and isinstance(scored[-1], Mapping)
        self.add(scores_prompt=is_scored)

    def find_end(self) -> None:
        """Find out if the end of turn has an entry, from greedy answers that end."""
        ended = []
        for question in QUESTIONS:
            fields = {"return_tokens_as_token_ids": None}
            for choice in self.choices(_chat(question), AnswerRequest(0.0, 48), fields):
                if choice.finished and choice.entries:
                    texts = [entry.text for entry in choice.entries]
                    ended.append(squeezed("".join(texts[:-1])) == squeezed(choice.text))
        self.add(end_included=bool(ended) and all(ended))

    def find_cache(self) -> None:
        """Find out if the second of two equal requests used cached tokens, according to its usage."""
        for _ in range(2):
            reply = self.reply(_chat(" ".join(QUESTIONS * 8)), AnswerRequest(1.0, 1, log_probs=False))
        cached = inside(reply, "usage", "prompt_tokens_details", "cached_tokens")
        self.add(prefix_cached=cached > 0 if isinstance(cached, int) else None)


#: Later findings build on earlier ones.
_FINDINGS = (
    _Probing.find_neutral_fields,
    _Probing.find_temperatures,
    _Probing.find_token_ids,
    _Probing.find_largest_n,
    _Probing.find_alternatives,
    _Probing.find_log_probs_at_temperature,
    _Probing.find_whole_vocabulary,
    _Probing.find_end,
    _Probing.find_cache,
    _Probing.find_named_tokens,
    _Probing.find_teacher_forcing,
)


def _intact(reply: Json) -> Json:
    """Return the reply; ValueError, which causes a retry, if its choices cannot be read.

    Log-probabilities are not read, because the probe determines their form.
    """
    parse_choices(reply, log_probs=False)
    return reply


def _power(raw: Mapping[TokenKey, float], scaled: Mapping[TokenKey, float]) -> float | None:
    """Return the factor between the differences of raw and of scaled log-probabilities; None if unknown."""
    common = sorted(
        (key for key in raw if min(raw[key], scaled.get(key, -1e9)) > -1e3), key=lambda key: raw[key]
    )
    if len(common) < 2 or raw[common[-1]] - raw[common[0]] < 0.5:
        return None
    return (scaled[common[-1]] - scaled[common[0]]) / (raw[common[-1]] - raw[common[0]])
