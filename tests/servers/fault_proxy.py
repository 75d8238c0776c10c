"""A proxy between a client and a server that damages replies, of which it was told how many.

    with FaultProxy(server.port, share=0.1, seed=1) as proxy:
        ...  # proxy.url instead of server.url
    proxy.faults  # how often each fault happened

What happens to a try depends on the seed, the request and the number of the try alone, so it is the same in
whatever order requests come. `at_most` faults in a row meet a request, so that a client with more retries
gets an answer to each. Only POST requests are damaged.

refuse      closes the connection before the request goes to the server
lose        closes it after the server has answered, without a byte of the reply
cut         closes it in the middle of the reply
leave       sends the whole reply, and closes the connection without saying so
delay       waits up to 30 ms
hang        sends nothing until the client gives up
too many    429 with Retry-After: 0, or retry-after-ms: 5
broken      500
busy        503 with a page of HTML
truncated   JSON that ends too early, in a whole reply
html        a page of HTML with status 200
types       JSON of other types than expected
error       status 200 with {"error": ...}
twice       the reply two times, one right after the other
slow twice  the same, the second a moment later
garbage     bytes that are no HTTP
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.servers.thread_server import ThreadServer, read_message

FAULTS = (
    *("refuse", "lose", "cut", "leave", "delay", "too many", "broken", "busy", "truncated", "html", "types"),
    *("error", "twice", "slow twice", "garbage"),
)
_PAGE = b"<html><head><title>Bad Gateway</title></head><body><h1>502</h1></body></html>"
_OTHER_TYPES: list[Any] = [
    *(None, [], 3, "ok", {}, {"choices": None}, {"choices": 3}, {"choices": [None]}, {"choices": [[]]}),
    *({"choices": [{"message": "text"}]}, {"choices": [{"message": {"content": 3}}], "usage": "many"}),
]


class FaultProxy(ThreadServer):
    """The proxy, in a thread of its own while the `with` block lasts; see the module."""

    def __init__(
        self,
        upstream: int,
        *,
        share: float,
        seed: int = 0,
        faults: Sequence[str] = FAULTS,
        at_most: int = 3,
    ) -> None:
        super().__init__()
        self.faults: Counter[str] = Counter()
        self._upstream = upstream
        self._share = share
        self._seed = seed
        self._kinds = faults
        self._at_most = at_most
        self._tries: Counter[bytes] = Counter()

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_server = await asyncio.open_connection("127.0.0.1", self._upstream)
        try:
            while await self._exchange(reader, writer, to_server):
                pass
        finally:
            to_server[1].close()

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        to_server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> bool:
        """One request and its reply; False if the connection is to be closed."""
        request = b"".join(await read_message(reader))
        fault, rng = self._fault(request)
        if fault == "refuse":
            return False
        to_server[1].write(request)
        reply = b"".join(await read_message(to_server[0]))
        if fault == "hang":
            await reader.read()
        if fault == "delay":
            await asyncio.sleep(rng.random() * 0.03)
        if fault in ("lose", "hang"):
            return False
        writer.write(_damaged(fault, reply, rng))
        if fault == "slow twice":
            await writer.drain()
            await asyncio.sleep(0.002)
            writer.write(reply)
        await writer.drain()
        return fault not in ("cut", "leave", "garbage")

    def _fault(self, request: bytes) -> tuple[str | None, random.Random]:
        """What happens to this try of this request, if anything."""
        key = hashlib.sha256(request.partition(b"\r\n\r\n")[2]).digest()
        rng = random.Random(f"{self._seed} {key.hex()} {self._tries[key]}")
        self._tries[key] += 1
        if not request.startswith(b"POST") or self._tries[key] > self._at_most or rng.random() >= self._share:
            return None, rng
        fault = rng.choice(self._kinds)
        self.faults[fault] += 1
        return fault, rng


def _damaged(fault: str | None, reply: bytes, rng: random.Random) -> bytes:
    body = reply.partition(b"\r\n\r\n")[2]
    if fault == "cut":
        return reply[: rng.randrange(1, len(reply))]
    if fault == "too many":
        headers = rng.choice(["retry-after: 0", "retry-after-ms: 5", "retry-after: soon"])
        return _reply(b'{"error": {"message": "Too many requests."}}', "429 Too Many Requests", headers)
    if fault == "broken":
        return _reply(b'{"error": "out of memory"}', "500 Internal Server Error")
    if fault == "busy":
        return _reply(_PAGE, "503 Service Unavailable")
    if fault == "truncated":
        return _reply(body[: rng.randrange(len(body))])
    if fault == "html":
        return _reply(_PAGE)
    if fault == "types":
        return _reply(json.dumps(rng.choice(_OTHER_TYPES)).encode())
    if fault == "error":
        return _reply(b'{"error": {"message": "upstream failed", "code": 502}}')
    if fault == "garbage":
        return rng.randbytes(100)
    return reply * 2 if fault == "twice" else reply


def _reply(body: bytes, status: str = "200 OK", header: str = "server: proxy") -> bytes:
    return f"HTTP/1.1 {status}\r\n{header}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
