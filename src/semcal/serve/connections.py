"""Connections of clients: their number, and the time limit for the head of a request."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from semcal.serve.configuration import ServeSettings

#: Maximum number of connections that wait to be accepted; the loop accepts as many in one turn.
BACKLOG = 128


class Connection(H11Protocol):
    """A connection that is closed if no request, with its whole head, arrives in time.

    The deadline starts with the connection and with each next request; further bytes do not move it. It also
    holds for an unread body of a request that was rejected.
    """

    def __init__(self, *arguments: Any, settings: ServeSettings, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.settings, self.since = settings, time.monotonic()
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Return whether no request with a complete head is in progress."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection; if there are too many, close the one that is idle longest, or the new one."""
        super().connection_made(transport)
        self._set_deadline()
        if len(self.connections) > self.settings.max_connections:
            idle = [one for one in self.connections if isinstance(one, Connection) and one.is_idle]
            min(idle, key=lambda one: one.since).drop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection."""
        self._clear_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Receive bytes of a head or a body."""
        if self.is_idle and self._deadline is None:
            self._set_deadline()
        super().data_received(data)
        if not self.is_idle:
            self._clear_deadline()

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of an unread body."""
        self.since = time.monotonic()
        super().on_response_complete()
        if self.is_idle and self.conn.their_state is h11.SEND_BODY:
            self._set_deadline()

    def send_400_response(self, msg: str) -> None:
        """Reject bytes that are not HTTP, unless a reply has begun."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.drop()

    def drop(self) -> None:
        """Close the connection at once."""
        self.connections.discard(self)
        self.transport.abort()

    def _set_deadline(self) -> None:
        self._deadline = self.loop.call_later(self.settings.read_timeout, self.drop)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
