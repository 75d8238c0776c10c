"""Requests to a server: concurrent, retried, counted, within a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from semcal.engine.servers.settings import Endpoint, ServerSettings

__all__ = ["RequestFailed", "ServerClient", "ServerRequest", "Usage"]

Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class ServerRequest:
    """A POST to a path below the URL, such as "/chat/completions"; "//tokenize" is below the host."""

    path: str
    body: Mapping[str, Any]
    prompt_tokens: int = 0  # known, or estimated from above: what a budget reserves
    max_tokens: int = 0  # of all choices together


@dataclass(frozen=True)
class RequestFailed:
    """A request that failed for good: the server refused it, or all tries failed."""

    reason: str  # one sentence for a user, without the key
    status: int | None = None  # of the last answer; None where there was none


@dataclass
class Usage:
    """What was asked and spent so far."""

    requests: int = 0  # answered
    retries: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float = 0.0


class ServerClient:
    """One server. Calls block; requests of a call run at the same time, `settings.concurrency` of them."""

    def __init__(self, endpoint: Endpoint, settings: ServerSettings) -> None:
        self.endpoint = endpoint
        self.settings = settings
        self.usage = Usage()

    def send_all(
        self,
        requests: Sequence[ServerRequest],
        parse: Callable[[Mapping[str, Any]], Parsed],
        *,
        progress: Callable[[int], None] | None = None,
    ) -> list[Parsed | RequestFailed]:
        """Send all and return for each, in order, what `parse` makes of the answer, or why it failed.

        `parse` raises ValueError at an answer that is damaged, which is asked again. `progress` gets the
        number of requests that are done. ServerError if the server cannot be reached or refuses the key;
        BudgetError before the budget is passed.
        """
        raise NotImplementedError

    def get(self, path: str) -> Any:
        """The JSON at a path; ServerError if there is none."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connections."""
        raise NotImplementedError
