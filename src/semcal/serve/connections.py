"""Connections of clients: their number, and the time limit for the head of a request."""

from __future__ import annotations

import asyncio
import errno
import time
from collections import Counter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from semcal.serve.configuration import ServeSettings
from semcal.serve.guard import HEADERS, note
from semcal.serve.replies import ApiError

#: Maximum number of connections that wait to be accepted; the loop accepts as many in one turn.
BACKLOG = 128
#: Minimum number of seconds between two log lines about one kind of fault.
MINUTE = 60.0
#: Errors if no descriptor or memory is left for a connection.
_FULL = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Limits:
    """The limits of connections, and the log of rejected connections."""

    def __init__(self, settings: ServeSettings) -> None:
        self.read_timeout = settings.read_timeout
        self.total = min(settings.max_connections, max(1, _open_files() // 2))
        self.per_address = min(settings.max_connections_per_address, max(1, self.total // 2))
        self._times, self._noted = Counter[str](), dict[str, float]()  # times by event

    def make_room(self, new: Connection, connections: set[Any]) -> bool:
        """Return whether a new connection may stay; the connection that is idle longest is closed for it."""
        alike = [one for one in connections if one.address == new.address]
        for group, limit in ((alike, self.per_address), (connections, self.total)):
            if len(group) <= limit:
                continue
            idle = [one for one in group if one.is_idle and one is not new]
            if not idle:
                self._note_rarely("connections", open=len(connections))
                return False
            min(idle, key=lambda one: one.since).drop()
        return True

    def take_fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log rarely that a connection cannot be accepted; pass on other faults of the event loop."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in _FULL:
            self._note_rarely("accept", reason=error.strerror)
        else:
            loop.default_exception_handler(context)

    def _note_rarely(self, event: str, **values: Any) -> None:
        """Log an event at most once a minute, with its number of occurrences."""
        self._times[event] += 1
        now = time.monotonic()
        if now - self._noted.get(event, -MINUTE) >= MINUTE:
            note(event, times=self._times.pop(event), **values)
            self._noted[event] = now


class Connection(H11Protocol):
    """A connection with a deadline while it has no request in progress.

    The deadline starts with the connection and with each next request; further bytes do not move it. It also
    holds for an unread body of a request that was rejected.
    """

    def __init__(self, *arguments: Any, limits: Limits, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.limits, self.address, self.since = limits, "", time.monotonic()
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Return whether no request with a complete head is in progress."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection if there is room."""
        super().connection_made(transport)
        self.address = str(self.client[0]) if self.client else ""
        if self.limits.make_room(self, self.connections):
            self._set_deadline()
        else:
            reason = "too many connections; try again in a second"
            self._send_error(ApiError(503, reason, code="overloaded", headers={"retry-after": "1"}))

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
        self._deadline = self.loop.call_later(self.limits.read_timeout, self._take_timeout)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _take_timeout(self) -> None:
        """Close the connection, with the reason if a head has begun."""
        head, _ = self.conn.trailing_data
        if head and self.conn.our_state is h11.IDLE:
            seconds = self.limits.read_timeout
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


def _open_files() -> int:
    """Return the number of files and connections that this process may have open."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows has no such limit
        return 2**31
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft
