"""HTTP/1.1 with keep-alive, for httpx, that never takes one reply for the answer to another request.

httpx's own transport reads whatever a connection still holds as the reply to the next request, so a reply
that is sent twice shifts all that follow. Here, a connection with bytes that nobody asked for is closed, and
so is one that gives two different requests the same bytes, an id among them; the second is asked again on
another connection.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from functools import partial
from typing import Any
from urllib.request import getproxies, proxy_bypass

import h11
import httpx

from semcal.engine.servers.bodies import BodyError, check_size

#: Seconds in which a connection must be there.
CONNECT = 15.0


def make_transport(url: str, limit: int) -> httpx.AsyncBaseTransport | None:
    """What httpx sends requests with, and reads `limit` bytes at most; None: its own, for a proxy is set."""
    parts = httpx.URL(url)
    if parts.scheme in getproxies() and not proxy_bypass(parts.host):
        return None
    return _Transport(limit)


class _Transport(httpx.AsyncBaseTransport):
    """Connections to one server, kept between requests. Must be used in one event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._idle: list[_Connection] = []
        self._tls: ssl.SSLContext | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        connection = self._take() or await self._connect(request.url)
        try:
            response = await connection.exchange(request, body)
        except BaseException:
            connection.close()
            raise
        if connection.usable:
            self._idle.append(connection)
        return response

    def _take(self) -> _Connection | None:
        while self._idle:
            if (connection := self._idle.pop()).usable:
                return connection
        return None

    async def _connect(self, url: httpx.URL) -> _Connection:
        port = url.port or {"http": 80, "https": 443}[url.scheme]
        if url.scheme == "https" and self._tls is None:
            self._tls = httpx.create_ssl_context()
        try:
            async with asyncio.timeout(CONNECT):
                loop = asyncio.get_running_loop()
                made = partial(_Connection, self._limit)
                _, connection = await loop.create_connection(made, url.host, port, ssl=self._tls)
        except TimeoutError as error:
            raise httpx.ConnectTimeout(f"no connection within {CONNECT:g} s") from error
        except OSError as error:
            raise httpx.ConnectError(_said(error)) from error
        return connection

    async def aclose(self) -> None:
        while self._idle:
            self._idle.pop().close()


class _Connection(asyncio.Protocol):
    """One connection, with one request under way at most."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._http = h11.Connection(h11.CLIENT)
        self._reply: asyncio.Future[httpx.Response] | None = None
        self._head: h11.Response | None = None
        self._body: list[bytes] = []
        self._size = 0
        self._last: tuple[Any, Any] = (None, None)  # request and reply
        self.usable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    async def exchange(self, request: httpx.Request, body: bytes) -> httpx.Response:
        """Send a request and return its reply, whole but still packed; httpx.TransportError or BodyError."""
        head = h11.Request(method=request.method, target=request.url.raw_path, headers=request.headers.raw)
        sent = [head, *([h11.Data(body)] if body else []), h11.EndOfMessage()]
        self._reply = asyncio.get_running_loop().create_future()
        self._transport.write(b"".join(self._http.send(event) or b"" for event in sent))
        reply = await self._reply
        assert isinstance(reply.stream, httpx.ByteStream)
        content = b"".join(reply.stream)
        now = ((request.url.raw_path, body), (reply.headers.raw, content))
        named = b'"id"' in content or "content-encoding" in reply.headers  # else two may well be the same
        if named and reply.is_success and now[0] != self._last[0] and now[1] == self._last[1]:
            raise httpx.RemoteProtocolError("the reply to the request before came again")
        self._last = now
        return reply

    def data_received(self, data: bytes) -> None:
        if self._reply is None or self._reply.done():
            self.close()
            return
        self._read(data)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        self.usable = False
        if self._reply is not None and not self._reply.done():
            self._read(b"")  # the end, which some replies have instead of a length
            self._fail(httpx.ReadError("the connection was closed before the reply was whole"))

    def close(self) -> None:
        self.usable = False
        self._transport.abort()

    def _fail(self, error: httpx.TransportError | BodyError) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)
        self.close()

    def _read(self, data: bytes) -> None:
        try:
            self._http.receive_data(data)
            while (event := self._http.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Response):
                    self._head = event
                elif isinstance(event, h11.Data):
                    self._size += len(event.data)
                    check_size(self._size, self._limit)
                    self._body.append(bytes(event.data))
                elif isinstance(event, h11.EndOfMessage):
                    self._finish()
                    return
                elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                    return
        except h11.RemoteProtocolError as error:
            self._fail(httpx.RemoteProtocolError(f"what came is no HTTP: {error}"))
        except BodyError as error:
            self._fail(error)

    def _finish(self) -> None:
        head, reply = self._head, self._reply
        assert head is not None
        assert reply is not None
        stream = httpx.ByteStream(b"".join(self._body))
        self._head, self._reply, self._body, self._size = None, None, [], 0
        reply.set_result(httpx.Response(head.status_code, headers=head.headers.raw_items(), stream=stream))
        done = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        if not done or self._http.trailing_data[0]:
            self.close()
            return
        self._http.start_next_cycle()


def _said(error: OSError) -> str:
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)
    return error.strerror or str(error)
