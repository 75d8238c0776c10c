"""Settings of `semcal serve`, from the command line, then the environment, then a YAML file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import Literal, get_args, get_type_hints

from semcal.arrays import as_option
from semcal.errors import UsageError, shown
from semcal.registry import check_name, option_name
from semcal.serve.requests import Style
from semcal.servers.settings import is_loopback

#: Prefix of environment variables; SEMCAL_SERVE_KEYS holds the keys themselves instead of a file name.
PREFIX = "SEMCAL_SERVE_"
KEYS, LABEL_KEYS = f"{PREFIX}KEYS", f"{PREFIX}LABEL_KEYS"
#: Number of digits of a key's hash in logs.
KEY_DIGITS = 12
#: Minimum length of a key, against guessing.
_SHORTEST = 16


@dataclass(frozen=True)
class ServeSettings:
    """Settings of the server: address, keys, limits, log, and reactions to uncovered requests and alarms."""

    host: str = "127.0.0.1"
    port: int = 8000
    keys: tuple[str, ...] = field(default=(), repr=False)  # hashes of keys
    label_keys: tuple[str, ...] = field(default=(), repr=False)  # hashes of keys that only allow labels
    cors: Sequence[str] = ()  # origins of web pages that may send requests
    abstain: Style = "sentence"
    abstain_text: str = "I am not sure enough to answer this."
    uncovered: Literal["refuse", "answer"] = "refuse"
    on_alarm: Literal["abstain", "flag"] = "abstain"
    answers: bool = True  # whether the normal form of an answer is logged
    log_texts: bool = False
    audit: float = 0.0  # share of replies that are marked for labels
    queue: int = 1000  # maximum number of waiting questions
    request_timeout: float = 120.0  # seconds
    read_timeout: float = 30.0  # seconds for the head of a request, and for its body
    max_connections: int = 500
    grace: float = 120.0  # seconds for running requests after SIGTERM
    max_body: int = 10**6  # bytes
    max_characters: int = 10**5  # of all messages

    def __post_init__(self) -> None:
        kinds = get_type_hints(ServeSettings)
        for name in ("abstain", "uncovered", "on_alarm"):
            check_name(getattr(self, name), get_args(kinds[name]), what=option_name(name))
        if not 0 <= self.port < 2**16:
            raise UsageError(f"--port must be from 0 to 65535, got {self.port}")
        if not 0 <= self.audit <= 1:
            raise UsageError(f"--audit must be a share from 0 to 1, such as 0.05, got {shown(self.audit)}")
        for name in ("queue", "max_connections", "max_body", "max_characters"):
            as_option(getattr(self, name), f"serve.{name}", "a positive whole number", low=0, whole=True)
        seconds = "a positive number of seconds"
        as_option(self.request_timeout, "--request-timeout", seconds, low=0)
        as_option(self.grace, "serve.grace", seconds, low=0)
        if self.log_texts and not self.answers:
            raise UsageError("--log-texts logs answers, and --no-answers does not; omit one of them")
        if not self.abstain_text.strip():
            raise UsageError("serve.abstain_text is empty; pass a sentence")
        if not self.keys and not is_loopback(self.host):
            raise UsageError(
                f"--host {self.host} is reachable from other machines, which requires a key. Set a key "
                f"({KEYS}, or a file with --keys), or listen on 127.0.0.1."
            )


def admits(keys: Sequence[str], key: str) -> bool:
    """Return whether the hash of a key is among these, in a time that does not depend on the key."""
    digest = hashed(key)
    return sum(compare_digest(digest, key_digest) for key_digest in keys) > 0


def hashed(key: str) -> str:
    """Return the stored hash of a key."""
    return sha256(key.encode(errors="surrogateescape")).hexdigest()


def read_keys(
    file: Path | None, environment: Mapping[str, str] = os.environ, *, variable: str = KEYS
) -> tuple[str, ...]:
    """Return the hashes of the keys in a file, one per line, or in a variable, separated by commas.

    UsageError, which never shows a key, if the file cannot be read or is empty, or if a key is short.
    """
    option = option_name(variable.removeprefix(PREFIX).lower())
    source = variable if file is None else f"{option} {file if file.exists() else 'FILE'}"
    try:
        text = environment.get(variable, "").replace(",", "\n") if file is None else file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"{source} cannot be read: {reason}") from None
    lines = [line.strip() for line in text.splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if file is not None and not keys:
        raise UsageError(f"{source} has no key; write one key per line")
    if any(len(key) < _SHORTEST or not key.isascii() or not key.isprintable() for key in keys):
        raise UsageError(
            f"{source} has a key with fewer than {_SHORTEST} characters, or outside of ASCII; make one with: "
            "python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return tuple(map(hashed, keys))
