"""Bodies of replies: whole in whatever pieces, never more than the limit, and never compressed."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from semcal.errors import ServerError
from semcal.servers.client import BodyError, RequestFailed, ServerClient, ServerRequest, read_body
from semcal.servers.settings import Endpoint, ServerSettings
from tests.servers.mocked import mocked
from tests.servers.thread_server import SayingServer

ASKED = ServerRequest("/chat/completions", {"messages": []}, 10, 20)
LIMIT = 4 * 10**6


def read(*chunks: bytes, encoding: str = "", limit: int = LIMIT) -> bytes:
    async def come() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    return asyncio.run(read_body(come(), encoding, limit))


def head(status: str = "200 OK", *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *headers]).encode() + b"\r\n\r\n"


ENDLESS = b"[1, 2, 3, 4], " * 1000
CHUNK = b"2000\r\n" + b"x" * 0x2000 + b"\r\n"


@pytest.mark.parametrize(
    ("first", "endless"),
    [
        (head(), ENDLESS),
        (head("404 Not Found"), ENDLESS),
        (head("200 OK", "transfer-encoding: chunked"), CHUNK),
        (head("200 OK", f"content-length: {2 * LIMIT}") + bytes(2 * LIMIT), b""),
    ],
)
def test_a_reply_without_end_or_bound_ends_at_the_limit_and_takes_three_times_as_much_memory_at_most(
    first: bytes, endless: bytes
) -> None:
    settings = ServerSettings(max_reply_bytes=LIMIT, timeout=60)
    with (
        SayingServer(first, endless=endless) as server,
        ServerClient(Endpoint(server.url), settings, first_wait=0) as client,
    ):
        tracemalloc.start()
        (failed,) = client.send_all([ASKED], dict)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        with pytest.raises(ServerError, match="larger than 4 MB"):
            client.get("/models")
    assert isinstance(failed, RequestFailed)
    assert "larger than 4 MB" in failed.reason
    assert sum(one.startswith(b"POST") for one in server.requests) == 1  # it would come again
    assert peak < 3 * LIMIT
    assert (client.usage.tokens_in, client.usage.tokens_out) == (10, 20)


def test_a_body_is_its_pieces_up_to_the_limit() -> None:
    assert read(b"ab", b"", b"c", encoding="Identity ", limit=3) == b"abc"
    assert read() == b""
    with pytest.raises(BodyError):
        read(b"ab", b"c", limit=2)


@pytest.mark.parametrize("encoding", ["gzip", "br", "gzip, gzip", "x" * 5000])
def test_a_compressed_reply_is_refused_by_name_and_not_asked_again(encoding: str) -> None:
    seen: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["accept-encoding"])
        stream = httpx.ByteStream(gzip.compress(b"{}"))
        return httpx.Response(200, headers={"content-encoding": encoding}, stream=stream)

    with mocked(answer) as client:
        (failed,) = client.send_all([ASKED], dict)
    assert seen == ["identity"]
    assert isinstance(failed, RequestFailed)
    assert f" {encoding[:60]}, " in failed.reason
