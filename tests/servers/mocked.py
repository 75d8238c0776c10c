"""Clients of a server that is a function, and the plainest reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from semcal.servers.client import ServerClient
from semcal.servers.settings import Endpoint, ServerSettings


def mocked(answer: Callable[[httpx.Request], Any], url: str = "http://server/v1", **how: Any) -> ServerClient:
    """A client of a server that is a function; `how` are its settings. It does not wait between tries."""
    transport = httpx.MockTransport(answer)
    return ServerClient(Endpoint(url, "small"), ServerSettings(**how), transport=transport, first_wait=0)


def reply(**more: Any) -> dict[str, Any]:
    """A chat's reply of one choice, with further keys of the choice."""
    message = {"role": "assistant", "content": "Mirna."}
    choice = {"index": 0, "finish_reason": "stop", "message": message, "logprobs": None}
    return {"id": "x", "model": "small", "choices": [{**choice, **more}]}
