"""The address of a server, and the settings of its requests."""

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

#: Prefix of the name of a model behind a server: openai:http://127.0.0.1:8000/v1#name.
PREFIX = "openai:"
#: Environment variable with the API key.
KEY_VARIABLE = "SEMCAL_API_KEY"
#: Environment variable with the API key of a judge or an equivalence; the default is the key of the model.
JUDGE_KEY_VARIABLE = "SEMCAL_JUDGE_API_KEY"
_OPENAI = "https://api.openai.com"
#: Paths of requests below the URL.
ROUTES = ("/chat/completions", "/completions", "/models")


@dataclass(frozen=True)
class Endpoint:
    """A model behind a server.

    >>> Endpoint.parse("openai:http://127.0.0.1:8000/v1#small")
    Endpoint(url='http://127.0.0.1:8000/v1', model='small')
    """

    url: str  # without a slash at the end
    model: str | None = None  # None: the first model that the server lists

    @classmethod
    def parse(cls, name: str) -> Endpoint:
        """Parse openai:URL#MODEL; "openai:" is optional, and the default URL is OPENAI_BASE_URL.

        UsageError if the URL is invalid.
        """
        address, _, model = name.strip().removeprefix(PREFIX).partition("#")
        url = (address or _openai_url()).rstrip("/")
        authority = (url.partition("://")[2] or url).partition("/")[0]
        if "@" in authority or "?" in url or "#" in url:
            raise UsageError(
                "URL of the server: it contains a user name, a password, a query (?...) or a fragment (#...) "
                "that would be stored in records. Remove it, and pass the API key in "
                f"{KEY_VARIABLE} or server.api_key_file"
            )
        try:
            parts = urlsplit(url)
            valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # an invalid port or IPv6 address
            valid = False
        if not valid or " " in url or not url.isprintable():
            raise UsageError(
                f"URL of the server: {shown(url)} is invalid. Pass a URL such as http://127.0.0.1:8000/v1, "
                "with #NAME for one of its models; openai:#NAME without a URL uses OPENAI_BASE_URL"
            )
        for route in ROUTES:
            if url.endswith(route):
                shorter = url.removesuffix(route)
                raise UsageError(f"URL of the server: {shown(url)} ends in {route}. Pass {shorter}")
        return cls(url, model or None)

    @property
    def host(self) -> str:
        """Scheme, host and port: the URL without its path."""
        return "{0.scheme}://{0.netloc}".format(urlsplit(self.url))

    @property
    def may_charge(self) -> bool:
        """True if requests may cost money; a server on this machine is free."""
        return not is_loopback(urlsplit(self.url).hostname or "")


def is_loopback(host: str) -> bool:
    """Return whether a name or address is a loopback address, which other machines cannot reach."""
    try:
        return host.lower() in ("localhost", "127.0.0.1") or ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class ServerSettings:
    """Settings of the requests to a server; no setting changes the distribution of samples.

    An invalid value raises UsageError with the name of the option.
    """

    tokenizer: str | None = None  # directory or hub id: token ids are sent instead of messages
    #: The API key. None: the key of `key_for`; "": no key.
    api_key: str | None = field(default=None, repr=False)
    concurrency: int = 16  # maximum concurrent requests
    retries: int = 5  # maximum retries of one request after a transient fault
    timeout: float = 120.0  # seconds per attempt
    max_reply_bytes: int = 64 * 10**6  # maximum bytes of one reply, sent or unpacked
    allow_truncation: bool = False  # sample even if the server truncates the distribution
    max_tokens_total: int | None = None  # limit of prompt and completion tokens of all requests
    max_cost: float | None = None  # limit of the cost, in the currency of the prices
    price_in: float | None = None  # price of one million prompt tokens
    price_out: float | None = None  # price of one million completion tokens
    profiles: Path | None = None  # folder of the profiles that probes found; None: the user's cache
    #: Callback that receives a line of text before a server is probed.
    announce: Callable[[str], None] | None = field(default=None, repr=False, compare=False)
    #: The `Budget` of each client with these settings or a copy; the limits apply to their sum.
    ledger: list[Any] = field(default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        positive = "a positive whole number"
        as_option(self.concurrency, "server.concurrency", f"{positive}, such as 16", low=0, whole=True)
        as_option(self.retries, "server.retries", "a whole number, 0 or more, such as 5", low=-1, whole=True)
        as_option(self.timeout, "server.timeout", "a positive number of seconds, such as 120", low=0)
        as_option(self.max_reply_bytes, "max_reply_bytes", f"{positive} of bytes", low=0, whole=True)
        if self.max_tokens_total is not None:
            as_option(self.max_tokens_total, "server.max_tokens_total", positive, low=0, whole=True)
        if self.max_cost is not None:
            as_option(self.max_cost, "server.max_cost", "a positive number, in the unit of the prices", low=0)
        prices = {"server.price_in": self.price_in, "server.price_out": self.price_out}
        for option, price in prices.items():
            if price is not None:
                expected = "the price of a million tokens, 0 or more"
                as_option(price, option, expected, low=-5e-324)
            elif any(value is not None for value in (self.max_cost, *prices.values())):
                raise UsageError(
                    f"{option}: missing, but server.max_cost and the other price need it. Pass both prices, "
                    "of one million prompt tokens and of one million completion tokens"
                )
        if self.api_key:
            _check_key(self.api_key, "API key")


def read_api_key(file: Path | None = None, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the API key: the first line of `file`, else SEMCAL_API_KEY, else None.

    UsageError, which never shows the key, if the file cannot be read or the key is not valid in a header.
    """
    if file is None:
        key = environment.get(KEY_VARIABLE, "").strip()
        return _check_key(key, KEY_VARIABLE) if key else None
    try:
        first = file.read_text(encoding="utf-8").strip().partition("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"server.api_key_file: {file} cannot be read ({type(error).__name__})") from None
    return _check_key(first.strip(), f"server.api_key_file: {file}")


def key_for(endpoint: Endpoint, api_key: str | None) -> str | None:
    """Return `api_key`; for OpenAI and OPENAI_BASE_URL the default is OPENAI_API_KEY, otherwise None."""
    key, openai = os.environ.get("OPENAI_API_KEY", "").strip(), (_OPENAI, f"{_OPENAI}:443")
    if api_key is None and key and (endpoint.host.lower() in openai or endpoint.url == _openai_url()):
        return _check_key(key, "OPENAI_API_KEY")
    return api_key or None


def _openai_url() -> str:
    return os.environ.get("OPENAI_BASE_URL", "").strip().rstrip("/")


def _check_key(key: str, where: str) -> str:
    if not (key and key.isascii() and key.isprintable() and " " not in key):
        raise UsageError(
            f"{where}: the key is empty, or has a character that is a space or not printable ASCII. "
            "Correct it"
        )
    return key
