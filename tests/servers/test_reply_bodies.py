"""Bodies of replies: unpacked whatever the pieces, never more than the limit, and never for ever."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semcal.errors import ServerError
from semcal.servers.client import BodyError, RequestFailed, ServerClient, ServerRequest, read_body
from semcal.servers.settings import Endpoint, ServerSettings
from tests.servers.mocked import mocked
from tests.servers.thread_server import SayingServer

ASKED = ServerRequest("/chat/completions", {"messages": []}, 10, 20)
LIMIT = 4 * 10**6
BOMB = gzip.compress(bytes(100 * 10**6), 9, mtime=0)
NOTHING = gzip.compress(b"{}", mtime=0)

PACKED: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("GZip ", gzip.compress),
    "plain": ("identity", bytes),
    "none": ("", bytes),
}


def read(*chunks: bytes, encoding: str, limit: int = LIMIT) -> bytes:
    async def come() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    return asyncio.run(read_body(come(), encoding, limit))


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
def test_a_reply_without_end_or_bound_ends_at_the_limit_and_takes_three_times_as_much_memory_at_most(
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
    assert peak < 3 * LIMIT
    assert (client.usage.tokens_in, client.usage.tokens_out) == (10, 20)


def test_a_time_out_holds_while_a_reply_is_unpacked() -> None:
    packing = zlib.compressobj(wbits=31)
    begin = packing.compress(b"x") + packing.flush(zlib.Z_FULL_FLUSH)
    piece = packing.compress(bytes(2**20)) + packing.flush(zlib.Z_FULL_FLUSH)
    told: list[int] = []

    class Stream(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for number in range(3000):
                told.append(number)
                yield piece if number else begin

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-encoding": "gzip"}, stream=Stream())

    with mocked(answer, max_reply_bytes=10**12, timeout=0.05, retries=0) as client:
        (failed,) = client.send_all([ASKED], dict)
    assert isinstance(failed, RequestFailed)
    assert "0.05 s" in failed.reason
    assert len(told) < 3000


@given(data=st.binary(max_size=2000), kind=st.sampled_from(sorted(PACKED)), draw=st.data())
def test_a_body_is_what_was_packed_in_whatever_pieces_it_comes(
    data: bytes, kind: str, draw: st.DataObject
) -> None:
    encoding, pack = PACKED[kind]
    packed = pack(data)
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(packed)), max_size=4)))
    chunks = [packed[start:end] for start, end in zip([0, *cuts], [*cuts, len(packed)])]
    assert read(*chunks, encoding=encoding, limit=max(len(data), len(packed))) == data


@pytest.mark.parametrize("size", [1, 2**18, LIMIT])
@pytest.mark.parametrize("kind", sorted(PACKED))
def test_the_limit_is_the_last_size_that_is_read(kind: str, size: int) -> None:
    encoding, pack = PACKED[kind]
    packed = pack(bytes(size))
    most = max(size, len(packed))
    assert read(packed, encoding=encoding, limit=most) == bytes(size)
    with pytest.raises(BodyError, match="larger than"):
        read(packed, encoding=encoding, limit=most - 1)


def answering(content: bytes, encoding: str, seen: list[Any]) -> Callable[[httpx.Request], httpx.Response]:
    """First this body, then one that is whole."""
    replies = iter([content])

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["accept-encoding"])
        stream = httpx.ByteStream(next(replies, NOTHING))
        return httpx.Response(200, headers={"content-encoding": encoding}, stream=stream)

    return answer


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "x" * 5000])
def test_what_was_not_asked_for_is_refused_by_name_and_not_asked_again(encoding: str) -> None:
    seen: list[Any] = []
    with mocked(answering(b"{}", encoding, seen)) as client:
        (failed,) = client.send_all([ASKED], dict)
    assert seen == ["gzip"]
    assert isinstance(failed, RequestFailed)
    assert f" {encoding[:60]}; " in failed.reason


@pytest.mark.parametrize(
    ("content", "named"),
    [
        *((content, "gzip") for content in (NOTHING[:-3], NOTHING + b"x", NOTHING * 2)),
        (b"\x1f\x8b\x08garbage" * 9, "Error -3"),
        (b'{"plain": 1}', "Error -3"),
        (b"", "JSON"),
    ],
    ids=["cut short", "one byte more", "two members", "garbage", "plain", "empty"],
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
