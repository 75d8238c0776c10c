"""Connections of clients: their number, and the time limit for the head of a request."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from semcal.serve.configuration import ServeSettings
from semcal.serve.guard import HEADERS, note
from semcal.serve.replies import ApiError

#: Maximum number of connections that wait to be accepted; the loop accepts as many in one turn.
BACKLOG = 128


class Connection(H11Protocol):
    """A connection with a deadline while it has no request in progress.

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
        """Accept a connection if there is room."""
        super().connection_made(transport)
        if self._has_room():
            self._set_deadline()
        else:
            note("request", status=503, code="overloaded")
            reason = "too many connections; try again in a second"
            self._send_error(ApiError(503, reason, code="overloaded", headers={"retry-after": "1"}))

    def _has_room(self) -> bool:
        """Return whether this connection may stay; the one that is idle longest is closed for it."""
        if len(self.connections) <= self.settings.max_connections:
            return True
        idle = [one for one in self.connections if isinstance(one, Connection) and one.is_idle]
        idle.remove(self)
        if idle:
            min(idle, key=lambda one: one.since).drop()
        return bool(idle)

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
        """Reject bytes that are not HTTP."""
        del msg
        note("request", status=400, code="invalid_http")
        reason = "expected an HTTP/1.1 request with a head of normal length; check the client and the proxies"
        self._send_error(ApiError(400, reason, code="invalid_http"))

    def drop(self) -> None:
        """Close the connection at once."""
        self.connections.discard(self)
        self.transport.abort()

    def _set_deadline(self) -> None:
        self._deadline = self.loop.call_later(self.settings.read_timeout, self._take_timeout)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _take_timeout(self) -> None:
        """Close the connection, with the reason if a head has begun."""
        head, _ = self.conn.trailing_data
        if head and self.conn.our_state is h11.IDLE:
            seconds = self.settings.read_timeout
            note("request", status=408, code="head_timeout")
            reason = f"the head of the request did not arrive within {seconds:g} s; send it at once"
            self._send_error(ApiError(408, reason, code="head_timeout"))
        else:
            self.drop()

    def _send_error(self, error: ApiError) -> None:
        """Send an error in OpenAI's shape, unless a reply has begun, and close the connection."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            error.headers = {**HEADERS, **error.headers, "connection": "close"}
            reply = error.reply
            head = h11.Response(status_code=error.status, headers=reply.raw_headers)
            for event in (head, h11.Data(data=bytes(reply.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.connections.discard(self)
        self.transport.close()
