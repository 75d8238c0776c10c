"""Bodies of replies: unpacked whatever the pieces, never more than the limit, and never for ever."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from semcal.errors import ServerError
from semcal.servers.client import RequestFailed, ServerClient, ServerRequest
from semcal.servers.settings import Endpoint, ServerSettings
from tests.servers.mocked import mocked
from tests.servers.thread_server import SayingServer

ASKED = ServerRequest("/chat/completions", {"messages": []}, 10, 20)
LIMIT, UNPACKED = 4 * 10**6, 1032 * 2**16  # the most that gzip makes of a piece
PACKING = zlib.compressobj(wbits=31)
BOMB = b"".join(PACKING.compress(bytes(10**6)) for _ in range(400)) + PACKING.flush()
NOTHING, PACKED = (gzip.compress(text, mtime=0) for text in (b"{}", b'{"text": "Mirna."}'))


def head(status: str = "200 OK", *headers: str, length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, *([] if length is None else [f"content-length: {length}"])]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


PACKED_BOMB = (head("200 OK", "content-encoding: gzip", length=len(BOMB)), BOMB)
BROKEN_BOMB = (head("500 Broken", "content-encoding: gzip", length=len(BOMB)), BOMB)
ENDLESS = (head(), b"[1, 2, 3, 4], " * 1000)
CHUNK = b"2000\r\n" + b"x" * 0x2000 + b"\r\n"


@pytest.mark.parametrize(
    ("sent", "endless"),
    [
        (PACKED_BOMB, False),
        (BROKEN_BOMB, False),
        (ENDLESS, True),
        ((head("404 Not Found"), ENDLESS[1]), True),
        ((head("200 OK", "transfer-encoding: chunked"), CHUNK), True),
        ((head("200 OK", "content-encoding: gzip"), BOMB), True),
    ],
)
def test_a_reply_without_end_or_bound_ends_at_the_limit_and_takes_little_more_memory(
    sent: tuple[bytes, bytes], endless: bool
) -> None:
    settings = ServerSettings(max_reply_bytes=LIMIT, timeout=60)
    with (
        SayingServer(b"".join(sent), endless=sent[1] if endless else b"") as server,
        ServerClient(Endpoint(server.url, "fake"), settings, first_wait=0) as client,
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
    assert peak < 3 * LIMIT + 3 * UNPACKED
    assert (client.usage.tokens_in, client.usage.tokens_out) == (10, 20)


def answering(content: bytes, encoding: str, seen: list[Any]) -> Callable[[httpx.Request], httpx.Response]:
    """First this body, then one that is whole."""
    replies = iter([content])

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["accept-encoding"])
        stream = httpx.ByteStream(next(replies, NOTHING))
        return httpx.Response(200, headers={"content-encoding": encoding}, stream=stream)

    return answer


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (PACKED[:-12], "JSON"),
        (b"\x1f\x8b\x08garbage" * 9, "Error -3"),
        (b'{"plain": 1}', "Error -3"),
        (b"", "JSON"),
    ],
    ids=["cut short", "garbage", "plain", "empty"],
)
def test_what_cannot_be_unpacked_is_a_damaged_reply_that_is_asked_again(content: bytes, named: str) -> None:
    with mocked(answering(content, "gzip", [])) as asking:
        assert asking.send_all([ASKED], dict) == [{}]
        assert asking.usage.retries == 1
    with mocked(answering(content, "gzip", []), retries=0) as asking:
        (failed,) = asking.send_all([ASKED], dict)
    assert isinstance(failed, RequestFailed)
    assert failed.reason.startswith("the reply is damaged: ")
    assert named in failed.reason
