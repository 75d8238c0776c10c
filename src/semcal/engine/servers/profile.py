"""What a server does, as a probe found it; everything that asks a server reads it."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from semcal.errors import StoreError
from semcal.records import atomic_write, canonical, read_object

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
    own = environment.get("SEMCAL_CACHE")
    if own:
        return Path(own, "servers")
    home = {"darwin": "~/Library/Caches", "win32": environment.get("LOCALAPPDATA", "~/AppData/Local")}
    caches = environment.get("XDG_CACHE_HOME") or home.get(platform, "~/.cache")
    return Path(caches).expanduser() / "semcal" / "servers"


def profile_path(folder: Path | None, profile: ServerProfile) -> Path:
    """The file for a server and a model in a folder, or in the user's cache."""
    name = hashlib.sha256(f"{profile.url}\n{profile.model}".encode()).hexdigest()[:24]
    return (folder or cache_folder()) / f"{name}.json"


def write_profile(path: Path, profile: ServerProfile, probe: int) -> None:
    """Write a profile as JSON, with the version of the probe and a checksum."""
    stored = {"probe": probe, "profile": asdict(profile)}
    with atomic_write(path) as file:
        file.write(canonical({**stored, "checksum": _checksum(stored)}).encode())


def read_profile(path: Path, now: ServerProfile, probe: int) -> ServerProfile | None:
    """The profile in a file; None if there is none, it is damaged, or what `identify` found is another."""
    try:
        stored = read_object(path, remedy="it is not read")
    except (OSError, StoreError):
        return None
    found = stored.get("profile")
    if stored.pop("checksum", None) != _checksum(stored) or stored.get("probe") != probe:
        return None
    if not isinstance(found, dict) or found.keys() != {each.name for each in fields(ServerProfile)}:
        return None
    profile = ServerProfile(**{**found, "truncation_tested": tuple(found["truncation_tested"])})
    told = ("url", "model", "server", "version", "max_length", *(["vocabulary"] if now.vocabulary else []))
    return profile if all(getattr(profile, name) == getattr(now, name) for name in told) else None


def _checksum(stored: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(stored).encode()).hexdigest()
