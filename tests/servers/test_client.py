"""The client: answers in order, at the same time, over connections of their own; tried again as it says."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import signal
import socket
import subprocess
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from semcal.errors import ServerError
from semcal.servers.client import RequestFailed, ServerClient, ServerRequest, server_message
from semcal.servers.settings import Endpoint, ServerSettings
from tests.servers.fake_server import FakeServer
from tests.servers.fault_proxy import FAULTS, FaultProxy
from tests.servers.mocked import mocked

SECRET = "sk-very-secret"


def asks(number: int = 0, **more: Any) -> ServerRequest:
    messages = [{"role": "user", "content": f"question {number}"}]
    return ServerRequest("/chat/completions", {"messages": messages, "seed": number, "max_tokens": 5, **more})


def number_of(request: httpx.Request) -> int:
    return int(json.loads(request.content)["seed"])


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


def test_answers_come_in_order_and_as_many_are_under_way_as_the_concurrency_says_also_from_threads() -> None:
    settings = ServerSettings(concurrency=6)
    with FakeServer(delay=0.02) as server, ServerClient(Endpoint(server.url), settings) as client:
        with ThreadPoolExecutor(4) as threads:
            parts = [[asks(10 * part + number) for number in range(10)] for part in range(4)]
            found = list(threads.map(lambda part: client.send_all(part, text_of), parts))
        assert server.largest == 6
        server.quirks.delay = 0
        one_by_one = [client.send_all([request], text_of)[0] for part in parts for request in part]
        assert [text for part in found for text in part] == one_by_one
        assert client.send_all([], text_of) == []
        assert client.usage.requests == 80


@pytest.mark.parametrize(("in_turn", "at_once", "most"), [(3, 2, 2), (4, None, 3), (1, 5, 5), (20, 9, 1)])
def test_requests_in_turn_follow_each_other(in_turn: int, at_once: int | None, most: int) -> None:
    """Of each group one at a time, in order; so many groups at the same time."""
    under_way: list[int] = []
    begun: list[int] = []
    widest = 0

    async def reply(request: httpx.Request) -> httpx.Response:
        nonlocal widest
        number = number_of(request)
        begun.append(number)
        under_way.append(number)
        widest = max(widest, len(under_way))
        assert len({one // in_turn for one in under_way}) == len(under_way)
        await asyncio.sleep(0.002 * (number % 3))
        under_way.remove(number)
        return httpx.Response(200, json={"number": number})

    with mocked(reply) as client:
        how: Any = {"in_turn": in_turn, "at_once": at_once}
        found = client.send_all([asks(number) for number in range(11)], lambda one: one["number"], **how)
    assert found == list(range(11))
    assert widest == most
    for group in range(0, 11, in_turn):
        of_group = [number for number in begun if number // in_turn * in_turn == group]
        assert of_group == sorted(range(group, min(11, group + in_turn)))


def test_an_error_in_parse_other_than_a_damaged_answer_is_raised_as_it_is() -> None:
    with mocked(lambda _: httpx.Response(200, json={})) as client:
        with pytest.raises(ZeroDivisionError):
            client.send_all([asks(number) for number in range(5)], lambda _: 1 // 0)
        assert client.send_all([asks()], dict) == [{}]


# What is tried again, what fails for good, and what ends the command


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_a_fault_that_may_pass_is_tried_again_after_growing_random_waits(
    status: int, waits: list[float]
) -> None:
    tries = iter(range(100))
    settings, transport = (
        ServerSettings(retries=8),
        httpx.MockTransport(lambda _: httpx.Response(status if next(tries) < 8 else 200, json={})),
    )
    with ServerClient(Endpoint("http://server/v1"), settings, transport=transport) as client:
        assert client.send_all([asks()], dict) == [{}]
    assert all(0 <= wait <= most for wait, most in zip(waits, (0.5, 1, 2, 4, 8, 16, 16, 16)))
    assert len(set(waits[:8])) == 8
    assert client.usage.retries == 8


def test_what_a_server_asks_to_wait_is_waited_beside_the_back_off_unless_it_is_an_hour(
    waits: list[float],
) -> None:
    headers = [{"retry-after": "7"}, {"retry-after-ms": "1500", "retry-after": "7"}]
    headers += [{"retry-after": text} for text in ("soon", "-3", "nan")]
    replies = iter([httpx.Response(429, headers=one) for one in headers])
    with mocked(lambda _: next(replies, httpx.Response(200, json={}))) as client:
        client.send_all([asks()], dict)
    assert waits[:5] == [7.0, 1.5, 0.0, 0.0, 0.0]
    with mocked(lambda _: httpx.Response(503, headers={"retry-after": "3600"})) as client:
        (failed,) = client.send_all([asks()], dict)
    assert failed == RequestFailed("HTTP 503 (asks to wait 3600 s)", 503)
    assert client.usage.retries == 0


def said(**error: Any) -> bytes:
    return json.dumps({"error": error}).encode()


@pytest.mark.parametrize(
    ("status", "content", "named", "tries"),
    [
        *((status, said(message="too\nlong"), "too long", 1) for status in (400, 404, 405, 413, 422, 501)),
        (500, b"out of memory", "out of memory", 3),
        (200, b"<html>Sign in to the Wi-Fi</html>", "Sign in to the Wi-Fi", 3),
        (200, b'{"choices": [', "JSON", 3),
        (200, b"[1, 2]", "list", 3),
        (200, b"null", "NoneType", 3),
        (200, b"\xff\xfe{}", "JSON", 3),
        (200, b'{"text": "\xed\xa0\xbd"}', "JSON", 3),
        (200, b'{"other": 1}', "no choices", 3),
        (200, said(message="upstream failed"), "upstream failed", 3),
        (200, b'{"choices": null, "error": {"message": "Busy", "code": 429}}', "Busy (429)", 3),
    ],
)
def test_a_reply_that_is_always_bad_fails_its_request_alone_and_is_asked_for_again_if_that_may_help(
    status: int, content: bytes, named: str, tries: int
) -> None:
    asked: list[int] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bad = number_of(request) == 1
        asked.append(bad)
        return httpx.Response(status, content=content) if bad else httpx.Response(200, json={"choices": 1})

    def parse(reply: dict[str, Any]) -> Any:
        if "choices" not in reply:
            raise ValueError("there are no choices")
        return reply["choices"]

    with mocked(answer, retries=2) as client:
        one, failed, other = client.send_all([asks(number) for number in range(3)], parse)
    assert one == other == 1
    assert isinstance(failed, RequestFailed)
    assert named in failed.reason
    assert sum(asked) == tries
    assert client.usage.requests == 2


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        *((httpx.Response(status, json={"error": SECRET}), f"HTTP {status}") for status in (401, 402, 403)),
        (httpx.Response(429, json={"error": {"message": "Quota", "code": "insufficient_quota"}}), "Quota"),
        (httpx.Response(308, headers={"location": "https://server/v1/chat"}), "https://server/v1/chat"),
    ],
)
def test_what_no_other_request_would_be_spared_ends_the_command_at_once_and_the_key_is_not_shown(
    answer: httpx.Response, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Some servers repeat the key that they were given."""
    sent: list[str] = []

    def send(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers["authorization"])
        return answer

    with caplog.at_level(logging.DEBUG), mocked(send, api_key=SECRET) as client:
        with pytest.raises(ServerError) as error:
            client.send_all([asks(number) for number in range(20)], dict)
        shown = "".join(traceback.format_exception(error.value)) + repr(client) + caplog.text
    assert named in str(error.value)
    assert SECRET not in shown
    assert set(sent) == {f"Bearer {SECRET}"}
    assert client.usage.retries == 0


def test_one_answer_that_is_forbidden_after_others_were_given_is_one_bad_row() -> None:
    with mocked(
        lambda request: httpx.Response(403 if number_of(request) == 3 else 200, json={}), concurrency=1
    ) as client:
        found = client.send_all([asks(number) for number in range(5)], dict)
    assert [one for one in found if one != {}] == [RequestFailed("HTTP 403: {}", 403)]


@pytest.mark.parametrize(
    "answer", [httpx.Response(500, text="out of memory"), httpx.Response(200, json=["x" * 2000])]
)
def test_ten_requests_in_a_row_that_fail_for_good_end_the_command(answer: httpx.Response) -> None:
    with mocked(lambda _: answer, retries=1, concurrency=1, max_reply_bytes=1000) as client:
        found = client.send_all([asks(number) for number in range(9)], dict)
        assert {type(one) for one in found} == {RequestFailed}
        with pytest.raises(ServerError, match="10 requests in a row"):
            client.send_all([asks(9)], dict)


@pytest.mark.parametrize("reply", [httpx.Response(404), httpx.Response(200, text="<h1>Welcome</h1>")])
def test_a_url_that_is_none_of_an_openai_style_server_is_named_with_how_it_ends(
    reply: httpx.Response,
) -> None:
    with mocked(lambda _: reply, "http://server", retries=0) as client:
        (failed,) = client.send_all([asks()], dict)
        assert "/v1" in failed.reason
        with pytest.raises(ServerError, match=r"/models: .*/v1"):
            client.get("/models")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"object": "error", "message": "max_tokens is 0", "code": 400}', "max_tokens is 0"),
        ('{"error": "model not found", "error_type": "validation"}', "model not found"),
        ('{"detail": "Not Found"}', "Not Found"),
        ('{"detail": [{"loc": ["n"], "msg": "no"}]}', '[{"loc": ["n"], "msg": "no"}]'),
        ('{"error": {"code": 3}}', '{"code": 3}'),
        ('"busy"', "busy"),
        ("null", "null"),
        ("<h1>502</h1>\n<p>Bad\x1b[2J gateway</p>", "<h1>502</h1> <p>Bad�[2J gateway</p>"),
        ("", ""),
        ("[" * 5000, "[" * 197 + "..."),
    ],
)
def test_the_words_of_a_server_are_found_in_any_shape(body: str, said: str) -> None:
    assert server_message(body.encode()) == said


def test_a_server_that_is_not_there_ends_the_command_after_three_tries() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with ServerClient(Endpoint(f"http://127.0.0.1:{port}/v1"), ServerSettings(), first_wait=0.001) as client:
        for call in (lambda: client.send_all([asks(), asks(1)], dict), lambda: client.get("/models")):
            with pytest.raises(ServerError, match="3 attempts"):
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
        pytest.raises(ServerError),
    ):
        client.send_all([asks(number) for number in range(10_000)], text_of, on_reply=each)
    assert 40 <= len(told) < 10_000
    assert all(isinstance(one, str) for one in told)


# Ctrl-C and threads


def left_over(before: set[threading.Thread]) -> set[threading.Thread]:
    """Threads that were not there before and do not end by themselves."""
    for _ in range(100):
        if not (more := set(threading.enumerate()) - before):
            break
        time.sleep(0.05)
    return more


def test_ctrl_c_cancels_what_is_under_way_and_leaves_no_thread_behind() -> None:
    with FakeServer(delay=60) as server:
        before = set(threading.enumerate())
        client = ServerClient(Endpoint(server.url), ServerSettings())
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            client.send_all([asks(number) for number in range(40)], dict)
        timer.join()
        assert set(threading.enumerate()) <= before
        server.quirks.delay = 0
        assert len(client.send_all([asks()], text_of)) == 1  # it can be used again
        client.close()
        assert set(threading.enumerate()) <= before


def test_a_client_that_is_dropped_waits_for_no_lock_and_leaves_no_thread_behind() -> None:
    busy, go_on, went_on = threading.Event(), threading.Event(), list[bool]()

    def hold() -> None:
        """As if the client's thread needed a lock that is held where the client is dropped."""
        busy.set()
        went_on.append(go_on.wait(10))

    async def answer(_: httpx.Request) -> httpx.Response:
        asyncio.get_running_loop().call_later(0.05, hold)
        return httpx.Response(200, json={})

    before = set(threading.enumerate())
    client = mocked(answer)
    client.send_all([asks()], dict)
    assert busy.wait(10)
    del client
    go_on.set()
    assert not left_over(before)
    assert went_on == [True]


# HTTPS


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
    settings, refused = ServerSettings(), pytest.raises(ServerError, match=r"(?i)certificate")
    with FakeServer(tls=context) as server:
        with ServerClient(Endpoint(server.url), settings, first_wait=0) as client, refused:
            client.get("/models")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        with ServerClient(Endpoint(server.url), settings) as client:
            assert len(client.send_all([asks(number) for number in range(20)], text_of)) == 20


# ---- Faults between the client and a server: no answer is lost, doubled or taken for another's -------------

#: Faults that may meet one request, in a row.
MOST_FAULTS = 3


def request(number: int) -> ServerRequest:
    messages = [{"role": "user", "content": f"question {number % 50}"}]
    body = {"messages": messages, "seed": number, "n": 1 + number % 3, "max_tokens": 10, "logprobs": True}
    return ServerRequest("/chat/completions", body, prompt_tokens=200, max_tokens=10 * body["n"])


def whose(reply: dict[str, Any]) -> tuple[str, list[str]]:
    """Which request a reply belongs to (the fake server hashes the body), and its texts."""
    try:
        texts = [choice["message"]["content"] for choice in reply["choices"]]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("the content is no text")
        return reply["id"], texts
    except (KeyError, TypeError) as error:
        raise ValueError(f"no choices: {error!r}") from error


def asked_for(request: ServerRequest) -> str:
    return f"fake-{hashlib.sha256(json.dumps(request.body, sort_keys=True).encode()).hexdigest()[:12]}"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_meets_every_other_request_costs_no_answer(fault: str) -> None:
    """All answers are the same with and without faults, and each that of its request."""
    plain = ServerSettings(concurrency=16, timeout=60)
    patient = replace(plain, retries=MOST_FAULTS)
    asked = list(map(request, range(30)))
    with FakeServer() as server:
        with ServerClient(Endpoint(server.url), plain) as client:
            expected = client.send_all(asked, whose)
            spent = client.usage
        before = len(server.requests)
        with (
            FaultProxy(server.port, share=0.5, faults=(fault,), at_most=MOST_FAULTS) as proxy,
            ServerClient(Endpoint(proxy.url), patient, first_wait=0.01) as client,
        ):
            found = client.send_all(asked, whose)
            usage = client.usage
        arrived = len(server.requests) - before
    assert [one if not isinstance(one, tuple) else one[0] for one in found] == list(map(asked_for, asked))
    assert found == expected
    harmless = fault in ("delay", "leave", "twice", "slow twice")
    assert proxy.faults[fault] > 10
    assert (usage.requests, usage.retries) == (30, 0 if harmless else proxy.faults[fault])
    assert arrived == 30 + usage.retries - proxy.faults["refuse"]
    for of_usage, of_plain in ((usage.tokens_in, spent.tokens_in), (usage.tokens_out, spent.tokens_out)):
        assert of_plain <= of_usage <= of_plain + usage.tokens_lost
    assert usage.tokens_in + usage.tokens_out == spent.tokens_in + spent.tokens_out + usage.tokens_lost


def test_a_reply_that_hangs_is_asked_again_after_the_time_out() -> None:
    asked = list(map(request, range(20)))
    with (
        FakeServer() as server,
        FaultProxy(server.port, share=0.5, faults=("hang",)) as proxy,
        ServerClient(Endpoint(proxy.url), ServerSettings(timeout=0.5, retries=50), first_wait=0.01) as client,
    ):
        found = client.send_all(asked, whose)
    assert [one[0] for one in found if isinstance(one, tuple)] == list(map(asked_for, asked))
    assert client.usage.retries >= proxy.faults["hang"] > 5  # a busy machine may be late as well
