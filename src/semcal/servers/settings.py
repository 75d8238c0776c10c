"""Where a server is, and how it is asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from semcal.arrays import as_option
from semcal.errors import UsageError, shown

#: How the name of a model behind a server begins: openai:http://127.0.0.1:8000/v1#name.
PREFIX = "openai:"
#: The environment variable that holds the API key.
KEY_VARIABLE = "SEMCAL_API_KEY"
#: That of what decides on meanings and grades; the model's own is used where it is not set.
JUDGE_KEY_VARIABLE = "SEMCAL_JUDGE_API_KEY"
#: OpenAI's own address, and the letters of a file that are read for a key.
_OPENAI, _KEY_LENGTH = "https://api.openai.com", 10_000

_EXPECTED = (
    "expected a URL such as http://127.0.0.1:8000/v1, with #NAME for one of its models; openai:#NAME alone "
    "takes the URL from OPENAI_BASE_URL"
)
#: What is asked below the URL of a model.
ROUTES = ("/chat/completions", "/completions", "/models")


@dataclass(frozen=True)
class Endpoint:
    """A model behind a server.

    >>> Endpoint.parse("openai:http://127.0.0.1:8000/v1#small")
    Endpoint(url='http://127.0.0.1:8000/v1', model='small')
    """

    url: str  # without a slash at the end
    model: str | None = None  # None: the first that the server lists

    @classmethod
    def parse(cls, name: str) -> Endpoint:
        """Read openai:URL#MODEL, without "openai:" or URL (that in OPENAI_BASE_URL); else UsageError why."""
        address, _, model = name.strip().removeprefix(PREFIX).partition("#")
        address = address or _openai_url()
        scheme, between, behind = address.partition("://")
        if "@" in (behind if between else address).partition("/")[0]:
            raise UsageError(
                "the URL of the server holds a user name or a password, which would end up in records; "
                f"leave it out, and give the API key by {KEY_VARIABLE} or --api-key-file"
            )
        if "?" in address or "#" in address:
            raise UsageError(
                "the URL of the server has a query (?...) or a fragment (#...), which would end up in "
                f"records; {_EXPECTED}, and give the API key by {KEY_VARIABLE} or --api-key-file"
            )
        if not between or scheme.lower() not in ("http", "https"):
            fault = "does not begin with http:// or https://"
            raise UsageError(f"the URL of the server, {shown(address)}, {fault}; {_EXPECTED}")
        url = address.rstrip("/")
        _check_host(url)
        for route in ROUTES:
            if url.endswith(route):
                shorter = url.removesuffix(route)
                raise UsageError(f"the URL of the server ends in {route}; give what is before it: {shorter}")
        return cls(url, model or None)

    @property
    def host(self) -> str:
        """Scheme, host and port: the URL without its path.

        >>> Endpoint("http://127.0.0.1:8000/v1").host
        'http://127.0.0.1:8000'
        """
        return "{0.scheme}://{0.netloc}".format(urlsplit(self.url))

    @property
    def may_charge(self) -> bool:
        """Whether it may take money for a request; a server of this machine does not."""
        return not is_loopback(urlsplit(self.url).hostname or "")


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own, which no other can reach."""
    try:
        return host.lower() == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _check_host(url: str) -> None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:  # a port or an IPv6 address that is none
        raise UsageError(f"the URL of the server, {shown(url)}, is none ({error}); {_EXPECTED}") from None
    if not host or any(letter.isspace() or not letter.isprintable() for letter in url):
        fault = "holds a space" if host else "names no host"
        raise UsageError(f"the URL of the server, {shown(url)}, {fault}; {_EXPECTED}")


@dataclass(frozen=True)
class ServerSettings:
    """How a server is asked; nothing of it changes what is drawn.

    UsageError, which names the option, at a wrong value.
    """

    tokenizer: str | None = None  # a directory or hub id: token ids are sent instead of messages
    #: SEMCAL_API_KEY or --api-key-file; None: that of `key_for`, "": none at all.
    api_key: str | None = field(default=None, repr=False)
    concurrency: int = 16  # requests under way at the same time
    retries: int = 5  # of one request, after a fault that may pass
    timeout: float = 120.0  # seconds, of one try
    max_reply_bytes: int = 64 * 10**6  # of one reply, as it is sent and unpacked
    allow_truncation: bool = False  # sample although the server cuts the distribution
    max_tokens_total: int | None = None  # prompt and completion tokens of all requests
    max_cost: float | None = None  # in the unit of the prices
    price_in: float | None = None  # of a million prompt tokens
    price_out: float | None = None  # of a million completion tokens
    profiles: Path | None = None  # the folder of what probes found; None: the user's cache
    #: Takes a line before a server is probed.
    announce: Callable[[str], None] | None = field(default=None, repr=False, compare=False)
    #: The `Budget` of each client that has these settings (or a copy): the limits are for all together.
    ledger: list[Any] = field(default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        positive = "a positive whole number"
        as_option(self.concurrency, "server.concurrency", f"{positive}, such as 16", low=0, whole=True)
        as_option(self.retries, "server.retries", "a whole number from 0 on, such as 5", low=-1, whole=True)
        as_option(self.timeout, "server.timeout", "a positive number of seconds, such as 120", low=0)
        as_option(self.max_reply_bytes, "max_reply_bytes", f"{positive} of bytes", low=0, whole=True)
        if self.max_tokens_total is not None:
            as_option(self.max_tokens_total, "server.max_tokens_total", positive, low=0, whole=True)
        if self.max_cost is not None:
            as_option(self.max_cost, "server.max_cost", "a positive number, in the unit of the prices", low=0)
        prices = {"server.price_in": self.price_in, "server.price_out": self.price_out}
        absent = [option for option, price in prices.items() if price is None]
        for option in prices.keys() - absent:
            expected = "the price of a million tokens, 0 or more"
            as_option(prices[option], option, expected, low=-5e-324)
        if len(absent) == 1 or (absent and self.max_cost is not None):
            needs = "server.max_cost" if self.max_cost is not None else next(iter(prices.keys() - absent))
            raise UsageError(
                f"{needs} needs {' and '.join(absent)} as well: prices of a million prompt tokens and of a "
                "million completion tokens"
            )
        if self.api_key:
            _check_key(self.api_key, "the API key")


def read_api_key(file: Path | None = None, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the API key: the first line of `file`, else SEMCAL_API_KEY, else None.

    UsageError, which never shows it, if the file cannot be read or its first line is empty, or if the key
    cannot stand in a header.
    """
    if file is None:
        key = environment.get(KEY_VARIABLE, "").strip()
        return _check_key(key, KEY_VARIABLE) if key else None
    try:
        with file.open(encoding="utf-8") as lines:
            first = lines.readline(_KEY_LENGTH + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"--api-key-file {file} cannot be read: {reason}") from None
    if not (key := first.strip()) or len(first) > _KEY_LENGTH:
        fault = f"has more than {_KEY_LENGTH} letters" if key else "is empty"
        raise UsageError(f"--api-key-file {file} holds no key: its first line {fault}")
    return _check_key(key, f"--api-key-file {file}")


def key_for(endpoint: Endpoint, api_key: str | None) -> str | None:
    """Return the key of the settings, else OPENAI_API_KEY for OpenAI and OPENAI_BASE_URL alone, or None."""
    key, openai = os.environ.get("OPENAI_API_KEY", "").strip(), (_OPENAI, f"{_OPENAI}:443")
    if api_key is None and key and (endpoint.host.lower() in openai or endpoint.url == _openai_url()):
        return _check_key(key, "OPENAI_API_KEY")
    return api_key or None


def _openai_url() -> str:
    return os.environ.get("OPENAI_BASE_URL", "").strip().rstrip("/")


def _check_key(key: str, where: str) -> str:
    if not (key and key.isascii() and key.isprintable() and " " not in key):
        raise UsageError(f"{where} holds something else than letters, digits and signs of ASCII, or a space")
    return key
