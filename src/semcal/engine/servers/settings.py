"""Where a server is, and how it is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["PREFIX", "Endpoint", "ServerSettings"]

#: How the name of a model behind a server begins: openai:http://127.0.0.1:8000/v1#name.
PREFIX = "openai:"


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
        """Read openai:URL#MODEL; UsageError that says what is wrong with it."""
        url, _, model = name.removeprefix(PREFIX).partition("#")
        return cls(url.rstrip("/"), model or None)


@dataclass(frozen=True)
class ServerSettings:
    """How a server is asked; nothing of it changes what is drawn."""

    tokenizer: str | None = None  # a directory or hub id: token ids are sent instead of messages
    api_key: str | None = field(default=None, repr=False)  # SEMCAL_API_KEY or --api-key-file
    concurrency: int = 16  # requests under way at the same time
    retries: int = 5  # of one request, after a fault that may pass
    timeout: float = 120.0  # seconds, of one try
    allow_truncation: bool = False  # sample although the server cuts the distribution
    max_tokens_total: int | None = None  # prompt and completion tokens of all requests
    max_cost: float | None = None  # in the unit of the prices
    price_in: float | None = None  # of a million prompt tokens
    price_out: float | None = None  # of a million completion tokens
    profiles: Path | None = None  # the folder of what probes found; None: the user's cache
