"""Which server answers at a URL, and what a probe found that it does; everything that asks it reads that."""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from semcal.engine.servers.client import ServerClient
from semcal.errors import SemcalWarning, ServerError
from semcal.records import read_sealed, user_cache, write_sealed

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


def read_profile(folder: Path | None, now: ServerProfile, probe: int) -> ServerProfile | None:
    """The profile that is kept; None if there is none, it is damaged, or what `identify` found is another."""
    stored = read_sealed(_path(folder, now)) or {}
    found = stored.get("profile")
    if stored.get("probe") != probe:
        return None
    if not isinstance(found, dict) or found.keys() != {each.name for each in fields(ServerProfile)}:
        return None
    profile = ServerProfile(**{**found, "truncation_tested": tuple(found["truncation_tested"])})
    told = ("url", "model", "server", "version", "max_length", *(["vocabulary"] if now.vocabulary else []))
    return profile if all(getattr(profile, name) == getattr(now, name) for name in told) else None


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
    others = [one["aliases"] if isinstance(one.get("aliases"), list) else [] for one in listed]
    entry = next((one for one, aliases in zip(listed, others) if name in (one["id"], *aliases)), None)
    if entry is None and listed:
        known = client.words(", ".join(one["id"] for one in listed[:10]))
        unlisted = f"{url} does not list the model {name}; it lists {known}"
        remedy = f"{name} is asked all the same, and what is written is bound to that name"
        warnings.warn(f"{unlisted}; {remedy}", SemcalWarning, stacklevel=2)
    entry = entry or (listed[0] if listed else {})
    server, told = _server(client, str(entry.get("owned_by", "")))
    version = told.get(VERSIONS.get(server, ("", ""))[1])
    sizes = {**told, **_object(entry.get("meta")), **entry}
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
    named = [(one, _object(one).get("id")) for one in (listed if isinstance(listed, list) else [])]
    return [one for one, name in named if isinstance(name, str) and name == client.words(name, width=500)]


def _server(client: ServerClient, owner: str) -> tuple[str, dict[str, Any]]:
    """The server, and what the address that tells its version says."""
    of_openai = owner in ("openai", "system", "openai-internal")
    named = [OWNERS[owner]] if owner in OWNERS else []
    for server in named or (["LiteLLM"] if of_openai else ["TGI", "Ollama"]):
        path, key = VERSIONS.get(server, ("", ""))
        try:
            told = _object(client.get(path)) if path else {}
        except ServerError:
            told = {}
        if named or key in told or (server == "LiteLLM" and "db" in told):  # its version is no longer told
            return server, told
    return "OpenAI" if of_openai else "unknown", {}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**9 else None
