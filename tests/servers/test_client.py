"""The client: answers in order, at the same time, over connections of their own; tried again as it says."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from semcal.errors import ServerError
from semcal.servers.client import (
    RequestFailed,
    ServerClient,
    ServerRequest,
    fault_of_reply,
    server_message,
)
from semcal.servers.settings import Endpoint, ServerSettings
from tests.servers.fake_server import FakeServer
from tests.servers.mocked import mocked
from tests.servers.thread_server import SayingServer

SECRET = "sk-very-secret"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n" + b'{"ok":true}'


def asks(number: int = 0, **more: Any) -> ServerRequest:
    messages = [{"role": "user", "content": f"question {number}"}]
    return ServerRequest("/chat/completions", {"messages": messages, "seed": number, "max_tokens": 5, **more})


def text_of(reply: dict[str, Any]) -> str:
    return reply["choices"][0]["message"]["content"]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that were waited, which takes no time."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return found


def test_answers_come_in_the_order_of_the_requests() -> None:
    requests = [asks(number, n=1 + number % 5) for number in range(20)]
    with FakeServer() as server, ServerClient(Endpoint(server.url), ServerSettings(concurrency=4)) as client:
        one_by_one = [client.send_all([request], text_of)[0] for request in requests]
        assert client.send_all(requests, text_of) == one_by_one
        assert client.send_all([], text_of) == []
        assert server.largest <= 4
        assert client.usage.requests == 40


def test_as_many_requests_are_under_way_as_the_concurrency_says_also_from_several_threads() -> None:
    settings = ServerSettings(concurrency=6)
    with FakeServer(delay=0.02) as server, ServerClient(Endpoint(server.url), settings) as client:
        with ThreadPoolExecutor(4) as threads:
            parts = [[asks(10 * part + number) for number in range(10)] for part in range(4)]
            found = list(threads.map(lambda part: client.send_all(part, text_of), parts))
        assert server.largest == 6
        assert found == [client.send_all(part, text_of) for part in parts]


def test_one_request_that_always_times_out_slows_no_others() -> None:
    seen: list[int] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        number = json.loads(request.content)["seed"]
        seen.append(number)
        await asyncio.sleep(60 if number == 20 else 0)
        return httpx.Response(200, json={"ok": True})

    with mocked(answer, concurrency=8, timeout=0.2, retries=2) as client:
        found = client.send_all([asks(number) for number in range(40)], lambda reply: reply["ok"])
    assert [index for index, one in enumerate(found) if isinstance(one, RequestFailed)] == [20]
    assert seen.count(20) == 3


def test_progress_and_each_hear_of_every_request_once() -> None:
    done: list[int] = []
    told: dict[int, Any] = {}
    with FakeServer() as server, ServerClient(Endpoint(server.url), ServerSettings()) as client:
        requests = [asks(number, n=1 if number % 3 else -1) for number in range(30)]
        found = client.send_all(requests, text_of, progress=done.append, on_reply=told.__setitem__)
    assert done == list(range(1, 31))
    assert [told[index] for index in range(30)] == found


@pytest.mark.parametrize(("in_turn", "at_once", "most"), [(3, 2, 2), (4, None, 3), (1, 5, 5), (20, 9, 1)])
def test_requests_in_turn_follow_each_other(in_turn: int, at_once: int | None, most: int) -> None:
    """Of each group one at a time, in order; so many groups at the same time."""
    under_way: list[int] = []
    begun: list[int] = []
    widest = 0

    async def reply(request: httpx.Request) -> httpx.Response:
        nonlocal widest
        number = json.loads(request.content)["number"]
        begun.append(number)
        under_way.append(number)
        widest = max(widest, len(under_way))
        assert len({one // in_turn for one in under_way}) == len(under_way)
        await asyncio.sleep(0.002 * (number % 3))
        under_way.remove(number)
        return httpx.Response(200, json={"number": number})

    requests = [ServerRequest("/chat/completions", {"number": number}) for number in range(11)]
    with mocked(reply) as client:
        how: Any = {"in_turn": in_turn, "at_once": at_once}
        found = client.send_all(requests, lambda one: one["number"], **how)
    assert found == list(range(11))
    assert widest == most
    for group in range(0, 11, in_turn):
        assert [number for number in begun if number // in_turn * in_turn == group] == sorted(
            range(group, min(11, group + in_turn))
        )


def test_an_error_in_parse_other_than_a_damaged_answer_is_raised_as_it_is() -> None:
    with FakeServer() as server, ServerClient(Endpoint(server.url), ServerSettings()) as client:
        with pytest.raises(ZeroDivisionError):
            client.send_all([asks(number) for number in range(5)], lambda _: 1 // 0)
        assert client.send_all([asks()], text_of) != []


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_a_fault_that_may_pass_is_tried_again_after_growing_random_waits(
    status: int, waits: list[float]
) -> None:
    tries = iter(range(100))
    with ServerClient(
        Endpoint("http://server/v1"),
        ServerSettings(retries=8),
        transport=httpx.MockTransport(lambda _: httpx.Response(status if next(tries) < 8 else 200, json={})),
    ) as client:
        assert client.send_all([asks()], dict) == [{}]
    back_off = waits[:8]
    assert all(0 <= wait <= most for wait, most in zip(back_off, (0.5, 1, 2, 4, 8, 16, 16, 16)))
    assert len(set(back_off)) == 8
    assert client.usage.retries == 8


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
        ({"retry-after": "Sun, 22 Nov 2026 10:00:30 GMT", "date": "Sun, 22 Nov 2026 10:00:00 GMT"}, 30.0),
        ({"retry-after": "Sun, 22 Nov 2026 09:00:00 GMT", "date": "Sun, 22 Nov 2026 10:00:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 01 Jan 2020 00:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({}, None),
    ],
)
def test_a_server_says_how_long_to_wait(headers: dict[str, str], wait: float | None) -> None:
    fault = fault_of_reply(httpx.Response(429, headers=headers))
    assert fault is not None
    assert fault.wait == wait


def test_what_a_server_asks_to_wait_is_waited_beside_the_back_off_unless_it_is_an_hour(
    waits: list[float],
) -> None:
    replies = iter([httpx.Response(429, headers={"retry-after": "7"})])
    with mocked(lambda _: next(replies, httpx.Response(200, json={}))) as client:
        client.send_all([asks()], dict)
    assert waits[0] == 7.0
    with mocked(lambda _: httpx.Response(503, headers={"retry-after": "3600"})) as client:
        (failed,) = client.send_all([asks()], dict)
    assert failed == RequestFailed("HTTP 503 (asks to wait 3600 s)", 503)
    assert client.usage.retries == 0


@pytest.mark.parametrize("status", [400, 404, 405, 413, 422, 501])
def test_a_request_that_the_server_refuses_fails_at_once_with_its_words(status: int) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        bad = json.loads(request.content)["seed"] == 1
        return httpx.Response(status if bad else 200, json={"error": {"message": "too\nlong"}} if bad else {})

    with mocked(answer) as client:
        found = client.send_all([asks(number) for number in range(3)], dict)
    assert found == [{}, RequestFailed(f"HTTP {status}: too long", status), {}]
    assert (client.usage.requests, client.usage.retries) == (2, 0)


def test_a_url_that_lacks_its_version_is_told_so() -> None:
    with FakeServer() as server, ServerClient(Endpoint(server.host), ServerSettings()) as client:
        (failed,) = client.send_all([asks()], dict)
        assert failed.reason == f"HTTP 404: Not Found; should the URL be {server.url}?"
        with pytest.raises(ServerError, match="/models: HTTP 404: Not Found; should the URL be"):
            client.get("/models")
        with pytest.raises(ServerError, match=r"/info: HTTP 404: Not Found$"):  # no route of OpenAI's
            client.get("/info")


def test_a_page_in_place_of_json_and_https_in_place_of_http_are_told_so() -> None:
    with (
        mocked(lambda _: httpx.Response(200, text="<h1>Welcome</h1>"), retries=0) as client,
        pytest.raises(ServerError, match=r"no JSON, but 'Welcome'; is it the URL of an OpenAI-style"),
    ):
        client.get("/models")
    with FakeServer() as server:
        secure = Endpoint(server.url.replace("http:", "https:"))
    with (
        ServerClient(secure, ServerSettings(retries=0)) as client,
        pytest.raises(ServerError, match=r"check the URL \(is it http://\?\), and that the server runs"),
    ):
        client.get("/models")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"error": {"message": "n is too large", "type": "x", "code": 400}}', "n is too large"),
        ('{"object": "error", "message": "max_tokens is 0", "code": 400}', "max_tokens is 0"),
        ('{"error": "model not found", "error_type": "validation"}', "model not found"),
        ('{"detail": "Not Found"}', "Not Found"),
        (
            '{"detail": [{"loc": ["body", "n"], "msg": "no number"}, {"msg": "other"}]}',
            "body.n: no number; other",
        ),
        ('{"error": {"code": 3}}', '{"code": 3}'),
        ("[]", ""),
        ('"busy"', "busy"),
        ("null", "null"),
        ("<html><style>p {}</style><h1>502</h1>\n<p>Bad\x1b[2J gateway</p></html>", "502 Bad�[2J gateway"),
        ("", ""),
        ("[" * 5000, "[" * 197 + "..."),
    ],
)
def test_the_words_of_a_server_are_found_in_any_shape(body: str, said: str) -> None:
    assert server_message(body.encode()) == said


@pytest.mark.parametrize("status", [401, 402, 403])
def test_a_server_that_refuses_the_key_ends_the_command_and_the_key_is_never_shown(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Some servers repeat the key that they were given."""

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == f"Bearer {SECRET}"
        return httpx.Response(status, json={"error": {"message": f"wrong key: {SECRET}"}})

    with caplog.at_level(logging.DEBUG), mocked(answer, api_key=SECRET) as client:
        with pytest.raises(ServerError, match="refuses all requests: HTTP 40") as error:
            client.send_all([asks(number) for number in range(20)], dict)
        shown = "".join(traceback.format_exception(error.value)) + repr(client) + caplog.text
    assert SECRET not in shown
    assert "(the key)" in str(error.value)


@pytest.mark.parametrize(
    "reply",
    [
        httpx.Response(400, json={"error": f"bad {SECRET}"}),
        httpx.Response(400, text="x" * 195 + SECRET),
        httpx.Response(200, text=f"<html>{SECRET}</html>"),
        httpx.Response(200, json={"error": {"message": SECRET}}),
    ],
)
def test_the_key_is_never_part_of_a_reason(reply: httpx.Response) -> None:
    with mocked(lambda _: reply, api_key=SECRET, retries=0) as client:
        (failed,) = client.send_all([asks()], dict)
    assert isinstance(failed, RequestFailed)
    assert "sk-" not in failed.reason


def test_a_server_that_needs_a_key_says_how_to_give_it() -> None:
    says = "needs an API key: give it by SEMCAL_API_KEY or --api-key-file"
    keyed = ServerSettings(api_key=SECRET)
    with FakeServer(key=SECRET) as server:
        with (
            ServerClient(Endpoint(server.url), ServerSettings()) as client,
            pytest.raises(ServerError, match=says),
        ):
            client.send_all([asks()], dict)
        with ServerClient(Endpoint(server.url), keyed) as client:
            assert len(client.send_all([asks()], text_of)) == 1


def test_one_answer_that_is_forbidden_after_others_were_given_is_one_bad_row() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(403 if json.loads(request.content)["seed"] == 3 else 200, json={})

    with mocked(answer, concurrency=1) as client:
        found = client.send_all([asks(number) for number in range(5)], dict)
    assert [one for one in found if one != {}] == [RequestFailed("HTTP 403: {}", 403)]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            httpx.Response(429, json={"error": {"message": "Quota", "code": "insufficient_quota"}}),
            "refuses all requests: HTTP 429: Quota",
        ),
        (
            httpx.Response(308, headers={"location": "https://server/v1/chat/completions"}),
            "redirects to https://server/v1/chat",
        ),
        (
            httpx.Response(200, json={"choices": None, "error": {"message": "No credit", "code": 402}}),
            r"refuses all requests: .*No credit \(402\)",
        ),
    ],
)
def test_what_no_other_request_would_be_spared_ends_the_command_at_once(
    answer: httpx.Response, says: str
) -> None:
    with mocked(lambda _: answer) as client, pytest.raises(ServerError, match=says):
        client.send_all([asks()], dict)
    assert client.usage.retries == 0


def test_a_server_that_is_not_there_ends_the_command_after_three_tries() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with ServerClient(Endpoint(f"http://127.0.0.1:{port}/v1"), ServerSettings(), first_wait=0.001) as client:
        for call in (lambda: client.send_all([asks(), asks(1)], dict), lambda: client.get("/models")):
            with pytest.raises(ServerError, match=r"cannot be reached: .*refused \(the last of 3 tries\)"):
                call()


def test_a_server_that_dies_ends_the_command_and_makes_no_bad_rows() -> None:
    server = FakeServer(delay=0.005).start()
    told: list[Any] = []

    def each(index: int, found: Any) -> None:
        told.append(found)
        if len(told) == 40:
            threading.Thread(target=server.stop).start()

    with (
        ServerClient(Endpoint(server.url), ServerSettings(retries=2), first_wait=0.001) as client,
        pytest.raises(ServerError, match="cannot be reached"),
    ):
        client.send_all([asks(number) for number in range(10_000)], text_of, on_reply=each)
    assert 40 <= len(told) < 10_000
    assert all(isinstance(one, str) for one in told)


def test_ten_requests_in_a_row_that_fail_for_good_end_the_command() -> None:
    with mocked(lambda _: httpx.Response(500, text="out of memory"), retries=1, concurrency=1) as client:
        found = client.send_all([asks(number) for number in range(9)], dict)
        assert {one.reason for one in found} == {"HTTP 500: out of memory (the last of 2 tries)"}
        with pytest.raises(ServerError, match="10 requests in a row failed, the last with: HTTP 500"):
            client.send_all([asks(9)], dict)


def test_requests_that_always_fail_among_others_that_do_not_are_bad_rows() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if json.loads(request.content)["seed"] % 2:
            raise httpx.ReadError("reset")
        return httpx.Response(200, json={})

    with mocked(answer, retries=1) as client:
        found = client.send_all([asks(number) for number in range(100)], dict)
    broken = RequestFailed("the connection broke: reset (the last of 2 tries)")
    assert found == [{}, broken] * 50


DAMAGED = "the reply is damaged: "
ERROR = "HTTP 200 with an error: "


@pytest.mark.parametrize(
    ("content", "says", "tries"),
    [
        (b"<html>Sign in to the Wi-Fi</html>", DAMAGED + "no JSON, but 'Sign in to the Wi-Fi'", 3),
        (b'{"choices": [', DAMAGED + "no JSON, but", 3),
        (b"[1, 2]", DAMAGED + "a JSON list", 3),
        (b"null", DAMAGED + "a JSON NoneType", 3),
        (b"\xff\xfe{}", DAMAGED + "no JSON", 3),
        (b'{"text": "\xed\xa0\xbd"}', DAMAGED + "no JSON", 3),
        (b'{"other": 1}', DAMAGED + "there are no choices", 3),
        (b"[" + b"[]," * 4_000_000 + b"[]]", DAMAGED + "it has more than 4000000 lists and objects", 3),
        (b'{"error": {"message": "upstream failed"}}', ERROR + "upstream failed", 3),
        (b'{"choices": null, "error": {"message": "Busy", "code": 429}}', ERROR + "Busy (429)", 3),
        (b'{"choices": [], "error": {"message": "Gone", "code": "502"}}', ERROR + "Gone (502)", 3),
        (b'{"error": {"message": "Too long", "code": 400}}', ERROR + "Too long (400)", 1),
        (b'{"error": {"message": "Overloaded", "code": "overloaded"}}', ERROR + "Overloaded", 3),
    ],
)
def test_a_reply_that_is_always_bad_fails_and_says_how(content: bytes, says: str, tries: int) -> None:
    asked: list[int] = []

    def answer(_: httpx.Request) -> httpx.Response:
        asked.append(1)
        return httpx.Response(200, content=content)

    def parse(reply: dict[str, Any]) -> Any:
        if "choices" not in reply:
            raise ValueError("there are no choices")

    with mocked(answer, retries=2) as client:
        (failed,) = client.send_all([asks()], parse)
    assert isinstance(failed, RequestFailed)
    assert failed.reason.startswith(says)
    assert len(asked) == tries


def test_paths_are_below_the_url_or_below_the_host() -> None:
    with mocked(lambda request: httpx.Response(200, json={"path": request.url.path})) as client:
        assert client.get("/models") == {"path": "/v1/models"}
        assert client.get("//version") == {"path": "/version"}
        assert client.get("//")["path"] == "/"


def test_ctrl_c_cancels_what_is_under_way_and_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())  # threads of other tests may end meanwhile
    with FakeServer(delay=60) as server:
        client = ServerClient(Endpoint(server.url), ServerSettings())
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            client.send_all([asks(number) for number in range(40)], dict)
        timer.join()
        assert len(set(threading.enumerate()) - before) == 1  # the server's
        server.quirks.delay = 0
        assert len(client.send_all([asks()], text_of)) == 1  # it can be used again
        client.close()
    assert set(threading.enumerate()) <= before


def test_ctrl_c_before_the_waiting_begins_cancels_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = asyncio.run_coroutine_threadsafe

    def interrupted(work: Any, loop: Any) -> Any:
        begin(work, loop)
        raise KeyboardInterrupt

    with FakeServer(delay=60) as server, ServerClient(Endpoint(server.url), ServerSettings()) as client:
        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.send_all([asks(number) for number in range(40)], dict)
        assert client._running is None  # what was under way is cancelled with its thread


def test_a_client_that_is_dropped_leaves_no_thread_behind() -> None:
    gc.collect()  # clients of other tests
    before = threading.active_count()
    with FakeServer() as server:
        client = ServerClient(Endpoint(server.url), ServerSettings())
        client.send_all([asks()], text_of)
        assert threading.active_count() == before + 2
        held, stop = threading.Event(), client._running._stopping  # type: ignore[union-attr]
        client._running.loop.call_soon_threadsafe(held.wait, 5)  # type: ignore[union-attr]
        thread = client._running._thread  # type: ignore[union-attr]
        del client  # does not wait for the thread, which may need a lock that is held here
        assert thread.is_alive()
        assert not stop.is_set()
        held.set()
        thread.join(10)
        assert threading.active_count() == before + 1


def test_the_servers_are_imported_without_httpx() -> None:
    code = "import sys, semcal.servers.client; print('httpx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# What comes over the wire


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        (OK, {"ok": True}),
        (b'HT|TP/1.1 200 OK\r\ncont|ent-length: 11\r\n\r\n|{"ok"|:true}', {"ok": True}),
        (b"HTTP/1.1 100 Continue\r\n\r\n|" + OK, {"ok": True}),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n[1, 2\r\n|1\r\n]\r\n0\r\n\r\n", [1, 2]),
        (
            b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n%s"
            % (len(gzip.compress(b"[3]", mtime=0)), gzip.compress(b"[3]", mtime=0)),
            [3],
        ),
    ],
)
def test_a_reply_is_read_however_it_comes(reply: bytes, found: Any) -> None:
    with (
        SayingServer(reply) as server,
        ServerClient(Endpoint(server.url), ServerSettings(retries=0)) as client,
    ):
        assert [client.get("/models"), client.get("/models")] == [found, found]
    assert server.connections == 2


def test_a_reply_without_a_length_ends_with_its_connection_however_long_it_is() -> None:
    numbers = list(range(200_000))
    content = json.dumps(numbers).encode()
    with (
        SayingServer(
            b"HTTP/1.1 200 OK\r\n\r\n[0|, 1]", b"HTTP/1.1 200 OK\r\n\r\n" + content, close=True
        ) as server,
        ServerClient(Endpoint(server.url), ServerSettings()) as client,
    ):
        assert [client.get("/models"), client.get("/models")] == [[0, 1], numbers]


@pytest.mark.parametrize("between", [b"", b"|"])
def test_a_reply_that_comes_twice_is_never_the_answer_to_the_next_request(between: bytes) -> None:
    def numbered(body: bytes) -> bytes:
        return b'HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n{"id":"x","n":%d}' % json.loads(body)["seed"]

    first = numbered(b'{"seed": 0}')
    with (
        SayingServer(first + between + first, then=numbered) as server,
        ServerClient(Endpoint(server.url), ServerSettings(), first_wait=0) as client,
    ):
        found = [client.send_all([asks(number)], lambda reply: reply["n"])[0] for number in range(3)]
    assert found == [0, 1, 2]


@pytest.mark.parametrize(
    "reply",
    [
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"HTTP/1.1 200 OK\r\n",
    ],
)
def test_what_is_no_http_is_a_broken_connection(reply: bytes) -> None:
    with (
        SayingServer(reply, close=True) as server,
        ServerClient(Endpoint(server.url), ServerSettings(retries=0)) as client,
        pytest.raises(ServerError, match="/models: the connection broke: "),
    ):
        client.get("/models")


def test_a_proxy_of_the_environment_is_used_but_not_for_the_hosts_that_it_excepts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    with (
        ServerClient(Endpoint("http://example.org/v1"), ServerSettings(), first_wait=0) as client,
        pytest.raises(ServerError, match=r"cannot be reached: .*refused"),  # by the proxy
    ):
        client.get("/models")
    with FakeServer() as server, ServerClient(Endpoint(server.url), ServerSettings()) as client:
        assert client.get("/models")["object"] == "list"


def test_https_works_with_a_certificate_that_is_trusted_and_only_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil
    import ssl

    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    made = (
        "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost"
    )
    alternative = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*made.split(), *alternative], cwd=tmp_path, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    settings, refused = ServerSettings(), pytest.raises(ServerError, match=r"(?i)reached: .*certificate")
    with FakeServer(tls=context) as server:
        with ServerClient(Endpoint(server.url), settings, first_wait=0) as client, refused:
            client.get("/models")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        with ServerClient(Endpoint(server.url), settings) as client:
            assert len(client.send_all([asks(number) for number in range(20)], text_of)) == 20
