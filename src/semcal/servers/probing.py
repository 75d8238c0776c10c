"""Find out what a server does, by a few small requests."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from semcal.data.question import Turn
from semcal.errors import SemcalWarning, ServerError
from semcal.files import read_sealed, user_cache, write_sealed
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
)


def _path(folder: Path | None, profile: ServerProfile) -> Path:
    """The file for a server and a model in a folder, or in the user's cache."""
    name = hashlib.sha256(f"{profile.url}\n{profile.model}".encode()).hexdigest()[:24]
    return (folder or user_cache("servers")) / f"{name}.json"


def write_profile(folder: Path | None, profile: ServerProfile, *, whole: bool = True) -> None:
    """Keep a profile as JSON, with the version of the probe and a checksum; warn where that cannot be.

    `whole` says that it holds also what samples do not need.
    """
    path = _path(folder, profile)
    try:
        write_sealed(path, {"probe": PROBE, "whole": whole, "profile": asdict(profile)})
    except OSError as error:
        reason = f"what the server does could not be stored ({path}: {error.strerror}): it is asked again"
        warnings.warn(reason, SemcalWarning, stacklevel=3)


def _read_profile(folder: Path | None, identified: ServerProfile) -> tuple[ServerProfile | None, bool]:
    """The profile that is kept, and whether it is whole.

    None if there is none, it is damaged, or what `identify` found is another.
    """
    stored = read_sealed(_path(folder, identified)) or {}
    content = stored.get("profile")
    names = {field.name for field in fields(ServerProfile)}
    if stored.get("probe") != PROBE or not isinstance(content, dict) or content.keys() != names:
        return None, False
    profile = ServerProfile(**content)
    identity = ["url", "model", "server", "version", "max_length"]
    if identified.vocabulary:
        identity.append("vocabulary")
    same = all(getattr(profile, name) == getattr(identified, name) for name in identity)
    return (profile if same else None), same and stored.get("whole") is True


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
    entry = next((row for row in listed if name == row["id"] or name in _aliases(row)), None)
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


def _aliases(row: Json) -> list[Any]:
    aliases = row.get("aliases")
    return aliases if isinstance(aliases, list) else []


def _models(client: ServerClient) -> list[Json]:
    """What the server lists, without entries whose id cannot be shown as it is."""
    try:
        listed = _object(client.get("/models")).get("data")
    except ServerError:
        if client.endpoint.model is None:
            raise
        return []  # some proxies have no list
    named = [(row, _object(row).get("id")) for row in (listed if isinstance(listed, list) else [])]
    return [row for row, name in named if isinstance(name, str) and name == client.words(name, width=500)]


def _server(client: ServerClient, owner: str) -> tuple[str, Json]:
    """The server, and what the address that tells its version says."""
    of_openai = owner in ("openai", "system", "openai-internal")
    named = [OWNERS[owner]] if owner in OWNERS else []
    for server in named or (["LiteLLM"] if of_openai else ["TGI", "Ollama"]):
        path, key = VERSIONS.get(server, ("", ""))
        try:
            details = _object(client.get(path)) if path else {}
        except ServerError:
            details = {}
        # LiteLLM no longer tells its version.
        if named or key in details or (server == "LiteLLM" and "db" in details):
            return server, details
    return "OpenAI" if of_openai else "unknown", {}


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**9 else None


#: The version of what is asked here: profiles of another are not read.
PROBE = 5
QUESTIONS = ("What is the capital of France?", "Name a river.", "Name the days of the week.")
#: A question that has many answers at any temperature.
OPEN_QUESTION = "Write down any ten words."
#: A prompt of token ids, which begins no chat: nearly anything may follow.
IDS = tuple(range(40, 56))
#: Temperatures that are tried.
HOT = (2.0, 5.0, 100.0)
#: How a request fails where the server has not answered it; another status, or an answer that is none at
#: every try, says what the server does.
_NO_ANSWER = (None, 408, 409, 425, 429, 502, 503, 504)
#: Log-probabilities of one token in two requests differ by less than this if they are the same.
NEAR = 0.1

TokenKey = int | str
"""A token: its id, or its text where ids are not told."""


def _inside(reply: Any, *path: str | int) -> Any:
    """What stands in a reply under keys and indices; None where there is nothing."""
    for key in path:
        try:
            reply = reply[key]
        except (KeyError, IndexError, TypeError):
            return None
    return reply


def _chat(question: str) -> Prompt:
    return Prompt("probe", (), (Turn("user", question),))


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _text(choice: ReplyChoice) -> str:
    """The answer and what the model thought before it."""
    return f"{choice.reasoning}\n{choice.text}"


def probe(client: ServerClient, identified: ServerProfile | None = None) -> ServerProfile:
    """Ask the server what it does, beyond what `identify` found now.

    Takes some dozens of requests of a few tokens, and two replies of the whole vocabulary where the server
    gives it. Warns with SemcalWarning if the server refuses fields that switch truncation off. ServerError if
    the server cannot be reached or refuses the plainest question.
    """
    return _found(client, identified or identify(client), (*_OF_SAMPLES, *_OF_GIVEN_TOKENS))


def _found(
    client: ServerClient, profile: ServerProfile, finders: Sequence[Callable[[_Probing], None]]
) -> ServerProfile:
    probing = _Probing(client, profile)
    for find in finders:
        find(probing)
    return probing.profile


def stored_profile(client: ServerClient, *, fresh: bool = False, whole: bool | None = None) -> ServerProfile:
    """The profile of an earlier probe, if the server still has its version and kind of log-probabilities.

    Else a new one. Kept in `ServerSettings.profiles` or the user's cache, by server, model and version. A
    file that is damaged, or of another version of the probe, is not read. What matters only where token ids
    are sent is asked for with a tokenizer alone, or if `whole` is true.
    """
    identified, folder = identify(client), client.settings.profiles
    whole = client.settings.tokenizer is not None if whole is None else whole
    profile, is_whole = (None, False) if fresh else _read_profile(folder, identified)
    if profile is not None and not _Probing(client, profile).confirms():
        profile, is_whole = None, False
    missing = [
        *(_OF_SAMPLES if profile is None else ()),
        *(_OF_GIVEN_TOKENS if whole and not is_whole else ()),
    ]
    if profile is None or missing:
        if client.settings.announce is not None:
            client.settings.announce(
                f"{identified.model} at {identified.url}: finding out what the server does, by some dozens "
                "of small requests; the findings are kept until its version changes"
            )
        profile = _found(client, profile or identified, missing)
        write_profile(folder, profile, whole=whole or is_whole)
    return profile


@dataclass
class _Probing:
    """The client, and what is known of the server so far; each `find_...` adds to that."""

    client: ServerClient
    profile: ServerProfile

    def add(self, **findings: Any) -> None:
        """Add findings to the profile."""
        self.profile = replace(self.profile, **findings)

    def reply(
        self, prompt: Prompt, answer: AnswerRequest, further: Json | None = None
    ) -> Json | RequestFailed:
        """The reply to one request, with further fields in its body; None takes one out."""
        request = request_for(self.profile, prompt, answer).with_fields(further or {})
        (reply,) = self.client.send_all([request], _intact)
        if isinstance(reply, RequestFailed) and reply.status in _NO_ANSWER:
            raise ServerError(f"{self.profile.url} could not be probed: {reply.reason}")
        return reply

    def choices(
        self, prompt: Prompt, answer: AnswerRequest, further: Json | None = None
    ) -> list[ReplyChoice]:
        """The choices of one request; none if it is refused, or its log-probabilities make no sense."""
        reply = self.reply(prompt, answer, further)
        try:
            return [] if isinstance(reply, RequestFailed) else parse_choices(reply)
        except ValueError:
            return []

    def texts(self, prompt: Prompt, answer: AnswerRequest) -> list[str]:
        """The texts of the choices of one request."""
        return list(map(_text, self.choices(prompt, replace(answer, log_probs=False))))

    def first(self, prompt: Prompt, answer: AnswerRequest, further: Json | None = None) -> TokenEntry | None:
        """The first token that is drawn, with its log-probabilities; None without them."""
        entries = [choice.entries for choice in self.choices(prompt, answer, further)]
        return entries[0][0] if entries and entries[0] else None

    def top(self, prompt: Prompt, k: int) -> dict[TokenKey, float]:
        """The k likeliest first tokens at T = 1; -1 is all."""
        further = {} if k > 0 else {"logprobs" if prompt.token_ids else "top_logprobs": k}
        entry = self.first(prompt, AnswerRequest(1.0, 1, seed=1, alternatives=k), further)
        return {} if entry is None else dict(entry.top)

    @property
    def open(self) -> Prompt:
        """A prompt after which much may follow, and no thinking where token ids are taken."""
        return Prompt("probe", IDS) if self.profile.token_ids_in else _chat(QUESTIONS[1])

    @property
    def hot(self) -> float:
        """A temperature above 1 that the server accepts; 1 if there is none."""
        return min(self.profile.max_temperature or HOT[0], HOT[0])

    @property
    def hottest(self) -> float:
        """The highest temperature that is tried and accepted."""
        return self.profile.max_temperature or HOT[-1]

    def confirms(self) -> bool:
        """Whether log-probabilities are raw or at T as before: two servers are told which when they start."""
        before = self.profile.log_probs
        if self.profile.server in ("vLLM", "SGLang") and before is not None:
            self.profile = replace(self.profile, log_probs="raw")
            self.find_log_probs_at_temperature()
        return self.profile.log_probs == before

    def find_neutral_fields(self) -> None:
        """Find the fields of `NEUTRAL` that the server takes, and warn of the others."""
        if (reason := self._refusal(NEUTRAL)) is None:
            return
        if (refusal := self._refusal({})) is not None:
            raise ServerError(f"{self.profile.url} refuses the plainest question: {refusal}")
        taken: dict[str, Any] = {}
        for name, value in NEUTRAL.items():
            for off in (value, 0) if name == "top_k" else (value,):  # some servers take 0 alone
                if name not in taken and self._refusal({**taken, name: off}) is None:
                    taken[name] = off
        self.add(neutral=taken)
        if refused := ", ".join(name for name in NEUTRAL if name not in taken):
            warnings.warn(
                f"{self.profile.url} refuses fields that switch truncation and penalties off "
                f"({refused}; {reason}) and is asked without them; make sure that it does not truncate",
                SemcalWarning,
                stacklevel=2,
            )

    def _refusal(self, neutral: Json) -> str | None:
        """Why the server refuses the plainest question with these neutral fields; None if it does not."""
        self.add(neutral=dict(neutral))
        reply = self.reply(_chat(QUESTIONS[0]), AnswerRequest(1.0, 1))
        return reply.reason if isinstance(reply, RequestFailed) else None

    def find_temperatures(self) -> None:
        """The highest that is accepted of those that are tried."""

        def accepted(temperature: float) -> bool:
            return bool(self.choices(_chat(QUESTIONS[1]), AnswerRequest(temperature, 1)))

        highest = max(takewhile(accepted, HOT), default=1.0)
        if highest == 1 and accepted(1.5):
            highest = 1.5
        self.add(max_temperature=None if highest == HOT[-1] else highest)

    def find_token_ids(self) -> None:
        """Whether a prompt may be token ids; its usage counts them, and maybe a BOS."""
        reply = self.reply(Prompt("probe", IDS), AnswerRequest(1.0, 1, log_probs=False))
        counted = _inside(reply, "usage", "prompt_tokens")
        self.add(token_ids_in=counted in (len(IDS), len(IDS) + 1))

    def find_largest_n(self) -> None:
        """The largest n that gives n choices, up to `MOST_CHOICES`: more may be refused, or silently cut.

        1 where a proxy passes on what llama.cpp says: see `ServerProfile.together`.
        """
        single = self.reply(self.open, AnswerRequest(1.0, 1, log_probs=False))
        if self.profile.server != "llama.cpp" and _inside(single, "timings") is not None:
            return
        refused, n = MOST_CHOICES + 1, MOST_CHOICES
        while refused - self.profile.max_n > 1:
            texts = self.texts(self.open, AnswerRequest(self.hot, 8, n=n, seed=1))
            if len(texts) == n:
                self.add(max_n=n, choices_differ=len(set(texts)) > 1)
            else:
                refused = n
            n = (self.profile.max_n + refused) // 2

    def find_seed(self) -> None:
        """Whether the same seed gives the same answer, and others give others."""
        first, second = (
            [self.texts(self.open, AnswerRequest(self.hottest, 8, seed=seed)) for seed in range(1, 4)]
            for _ in range(2)
        )
        self.add(seed=first == second and len({"".join(answers) for answers in first}) > 1)

    def find_alternatives(self) -> None:
        """How many alternatives a token may have, 20, 5, 1 or none, if it has a log-probability at all."""
        for k in (20, 5, 1, 0):
            self.add(log_probs="raw", top_log_probs=k)
            entry = self.first(self.open, AnswerRequest(1.0, 1, alternatives=k))
            if entry is not None:
                listed = k if len(entry.top) > k // 2 else len(entry.top)  # some may have one text
                self.add(top_log_probs=listed, token_ids_out=entry.token_id is not None)
                return
        self.add(log_probs=None, top_log_probs=0)

    def find_log_probs_at_temperature(self) -> None:
        """Whether log-probabilities of draws at T are raw or at T; told by differences, which T divides."""
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
            power = _power(raw, self._first_log_probs(self.hot, at_temperature=True))
            self.add(scaled_on_request=power is not None and abs(power * self.hot - 1) <= NEAR)

    def _first_log_probs(self, temperature: float, *, at_temperature: bool = False) -> dict[TokenKey, float]:
        """Log-probabilities of the first token's alternatives, and of the drawn tokens of a few draws."""
        log_probs: dict[TokenKey, float] = {}
        k = self.profile.top_log_probs
        answer = AnswerRequest(temperature, 1, alternatives=k, at_temperature=at_temperature)
        for seed in range(1, 2 if k >= 5 else 4 if k > 1 else 17):
            entry = self.first(self.open, replace(answer, seed=seed))
            if entry is not None:
                log_probs |= {**entry.top, entry.key: entry.log_prob}
        return log_probs

    def find_whole_vocabulary(self) -> None:
        """Whether all tokens may be listed: probabilities add up to 1, and each prompt lists the same."""
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
        """Whether log-probabilities of named tokens are given, and of one that logit_bias forces."""
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
        """How the tokens of a prompt are scored; that a field is not refused says nothing."""
        answer = AnswerRequest(1.0, 1, log_probs=False)
        reply = self.reply(self.open, answer, {"prompt_logprobs": 1})
        for path in (("prompt_logprobs",), ("choices", 0, "prompt_logprobs")):
            scored = _inside(reply, *path)
            if isinstance(scored, list) and len(scored) > 1 and isinstance(scored[-1], Mapping):
                self.add(scores_prompt="prompt_logprobs")
                return
        reply = self.reply(self.open, answer, {"echo": True, "logprobs": 1})
        scores = _inside(reply, "choices", 0, "logprobs", "token_logprobs")
        echoed = isinstance(scores, list) and len(scores) > len(IDS) and None not in scores[1:]
        self.add(scores_prompt="echo" if echoed else None)

    def find_end(self) -> None:
        """Find whether the end of turn has an entry, by the likeliest answers that end."""
        ended = []
        for question in QUESTIONS:
            fields = {"return_tokens_as_token_ids": None}
            for choice in self.choices(_chat(question), AnswerRequest(0.0, 48), fields):
                if choice.finished and choice.entries:
                    texts = [entry.text for entry in choice.entries]
                    ended.append(_squeezed("".join(texts[:-1])) == _squeezed(choice.text))
        self.add(end_included=bool(ended) and all(ended))

    def find_cache(self) -> None:
        """Whether the second of two equal requests took tokens from a cache, where its usage says that."""
        for _ in range(2):
            reply = self.reply(_chat(" ".join(QUESTIONS * 8)), AnswerRequest(1.0, 1, log_probs=False))
        cached = _inside(reply, "usage", "prompt_tokens_details", "cached_tokens")
        self.add(prefix_cached=cached > 0 if isinstance(cached, int) else None)

    def find_ignored_temperature(self) -> None:
        """Find whether draws are all the same at the highest temperature, which the server then ignores."""
        prompt = self.open if self.profile.token_ids_in else _chat(OPEN_QUESTION)
        answer = AnswerRequest(self.hottest, 64)
        answers = [self.texts(prompt, replace(answer, seed=seed)) for seed in range(1, 6)]
        different = {text for texts in answers for text in texts}
        if len(different) == 1 and min(different).strip():  # replies without a text tell nothing
            self.add(truncated_to=f"1 token: 5 answers at T = {self.hottest:g} were the same")


#: What sampling needs, in the order in which the findings build on each other.
_OF_SAMPLES = (
    _Probing.find_neutral_fields,
    _Probing.find_temperatures,
    _Probing.find_token_ids,
    _Probing.find_largest_n,
    _Probing.find_seed,
    _Probing.find_alternatives,
    _Probing.find_log_probs_at_temperature,
    _Probing.find_whole_vocabulary,
    _Probing.find_end,
    _Probing.find_cache,
    _Probing.find_ignored_temperature,
)
#: What fits and cut answers need, for which token ids are sent.
_OF_GIVEN_TOKENS = (_Probing.find_named_tokens, _Probing.find_teacher_forcing)


def _intact(reply: Json) -> Json:
    """The reply; ValueError, so that it is asked for again, if its choices cannot be read.

    Without log-probabilities, whose form is what a probe finds out.
    """
    parse_choices(reply, log_probs=False)
    return reply


def _power(raw: Mapping[TokenKey, float], scaled: Mapping[TokenKey, float]) -> float | None:
    """By what the differences of raw log-probabilities are multiplied in others; None if that is unknown."""
    common = sorted(
        (key for key in raw if min(raw[key], scaled.get(key, -1e9)) > -1e3), key=lambda key: raw[key]
    )
    if len(common) < 2 or raw[common[-1]] - raw[common[0]] < 0.5:
        return None
    return (scaled[common[-1]] - scaled[common[0]]) / (raw[common[-1]] - raw[common[0]])
