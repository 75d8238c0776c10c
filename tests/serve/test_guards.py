"""Keys, limits, the queue, clients that go away, time-outs, damaged back ends: each with its stated end."""

from __future__ import annotations

import json
import logging
import re
import select
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from semcal.errors import UsageError
from semcal.reply_log import ReplyLog
from semcal.serve.configuration import (
    LABEL_KEYS,
    ServeSettings,
    admits,
    hashed,
    read_keys,
)
from semcal.servers.settings import ServerSettings, is_loopback
from semcal.uncertainty import SemanticUQ
from tests.serve.serving import SANG, WHERE, WROTE, Running, SlowModel, running, until, uq_of
from tests.servers import fake_model
from tests.servers.fake_chat import model_of
from tests.servers.fake_server import FakeServer
from tests.steps.made_up_calibration import calibration

KEYS = ("a-key-of-sixteen-letters", "another-key-of-letters")


# ---- Keys and hosts


def test_a_key_is_needed_for_all_but_health() -> None:
    with running(keys=tuple(map(hashed, KEYS))) as server:
        for path in ("/health", "/ready"):
            assert server.get(path).status_code == 200
        for path in ("/v1/models", "/metrics", "/version", "/openapi.json", "/nothing"):
            assert server.get(path).status_code == 401
        for key in KEYS:
            headers = {"authorization": f"Bearer {key}"}
            assert server.get("/v1/models", headers=headers).status_code == 200
        for wrong in ("Bearer no", f"Basic {KEYS[0]}", f"Bearer {KEYS[0]}x", "Bearer \xff"):
            reply = server.get("/v1/models", headers={"authorization": wrong.encode("latin-1")})
            assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
            assert reply.headers["www-authenticate"] == "Bearer"
            assert KEYS[0] not in reply.text


def test_other_machines_need_a_key() -> None:
    for host in ("0.0.0.0", "::", "192.168.0.7", "example.org"):
        with pytest.raises(UsageError, match="SEMCAL_SERVE_KEYS"):
            ServeSettings(host=host)
        assert not is_loopback(host)
    for host in ("127.0.0.1", "::1", "localhost", "127.8.0.3"):
        assert is_loopback(ServeSettings(host=host).host)


def test_without_a_key_pages_of_other_hosts_are_refused() -> None:
    with running() as server:
        for host in (
            "evil.example",
            "localhost.evil.example",
            "evil.example:8000",
            "127.0.0.1.evil",
            "[::2]",
        ):
            assert server.get("/v1/models", headers={"host": host}).status_code == 403
        for host in ("localhost", "LOCALHOST:1", "127.0.0.1:80", "[::1]:9", "[0:0:0:0:0:0:0:1]"):
            assert server.get("/v1/models", headers={"host": host}).status_code == 200
        there = server.get("/metrics/", headers={"host": "localhost:1"}, follow_redirects=False)
        assert (there.status_code, there.headers.get("location")) == (404, None)
    with running(host="127.0.0.2") as server:
        assert server.get("/v1/models").status_code == 200


def test_keys_are_read_from_a_file_or_the_environment_and_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.touch(mode=0o600)
    file.write_text(f"# of the team\n{KEYS[0]}\n\n{KEYS[1]}\n")
    assert read_keys(file, {}) == read_keys(None, {"SEMCAL_SERVE_KEYS": ",".join(KEYS)})
    assert read_keys(None, {}) == ()
    settings = ServeSettings(keys=read_keys(file, {}))
    assert admits(settings.keys, KEYS[1])
    assert not admits(settings.keys, "a-key-of-sixteen-letter")
    assert KEYS[0] not in repr(settings)
    for text in ("", "kurz", "é" * 20):
        file.write_text(text)
        with pytest.raises(UsageError, match="--keys") as caught:
            read_keys(file, {})
        assert not text or text not in str(caught.value)
    for wrong in (tmp_path / "none", Path(KEYS[0])):  # a key in place of its file
        with pytest.raises(UsageError, match="--keys") as caught:
            read_keys(wrong, {})
        assert wrong.name not in str(caught.value)


def test_keys_for_labels_send_labels_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{KEYS[1]}\n")
    file.chmod(0o600)
    label_keys = read_keys(file, {}, variable=LABEL_KEYS)
    assert label_keys == read_keys(None, {LABEL_KEYS: KEYS[1]}, variable=LABEL_KEYS)
    file.write_text("kurz")
    with pytest.raises(UsageError, match="--label-keys"):
        read_keys(file, {}, variable=LABEL_KEYS)
    log = ReplyLog(tmp_path / "log.sqlite")
    with running(log=log, keys=(hashed(KEYS[0]),), label_keys=label_keys) as server:
        asks, labels = ({"authorization": f"Bearer {key}"} for key in KEYS[:2])
        body = {"model": "fake", "messages": [{"role": "user", "content": WROTE}]}
        assert server.post("/v1/chat/completions", body, headers=labels).status_code == 401
        id = server.post("/v1/chat/completions", body, headers=asks).json()["id"]
        refused = server.post("/v1/semcal/labels", {"id": id, "correct": True}, headers=asks)
        assert refused.status_code == 401
        assert "a key for labels" in refused.json()["error"]["message"]
        sent = server.post("/v1/semcal/labels", {"id": id, "correct": True}, headers=labels)
        assert sent.json()["data"] == [{"id": id, "correct": True, "counts": True}]
    (label,) = ReplyLog(log.path).labels()
    assert hashed(KEYS[1]).startswith(label.key)
    assert len(label.key) == 12


def test_cross_origin_pages_may_ask_only_where_they_are_named() -> None:
    ask = {"origin": "https://app.example", "access-control-request-method": "POST"}
    path = "/v1/chat/completions"
    with running() as server:
        reply = httpx.options(f"{server.url}{path}", headers=ask)
        assert "access-control-allow-origin" not in reply.headers
    with running(cors=("https://app.example",), keys=(hashed(KEYS[0]),)) as server:
        reply = httpx.options(f"{server.url}{path}", headers=ask)
        assert reply.headers["access-control-allow-origin"] == "https://app.example"
        wanted = {"access-control-request-headers": "authorization, x-stainless-os"}
        assert httpx.options(f"{server.url}{path}", headers={**ask, **wanted}).status_code == 200
        refused = httpx.get(f"{server.url}/v1/models", headers={"origin": ask["origin"]})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == ask["origin"]
        other = httpx.options(f"{server.url}{path}", headers={**ask, "origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


# ---- Limits


@pytest.fixture(scope="module")
def small() -> Iterator[Running]:
    with running(max_body=2000) as one:
        yield one


def test_the_id_of_a_request_is_echoed_unless_it_is_none(small: Running) -> None:
    assert small.get("/health", headers={"x-request-id": "req-7"}).headers["x-request-id"] == "req-7"
    for odd in ("a b", "x" * 200):
        assert small.get("/health", headers={"x-request-id": odd}).headers["x-request-id"] != odd


def test_settings_out_of_range_are_refused_by_name() -> None:
    for named, value in (
        ("--port", 70000),
        ("--audit", 1.5),
        ("--request-timeout", 0),
        ("--abstain", "sentense"),
        ("--uncovered", "yes"),
        ("--on-alarm", "shout"),
        ("serve.queue", 0),
        ("serve.max_connections", 0),
        ("serve.abstain_text", " "),
    ):
        name = named.removeprefix("serve.").removeprefix("--").replace("-", "_")
        with pytest.raises(UsageError, match=re.escape(named)):
            ServeSettings(**{name: value})


# ---- Connections


def connect(server: Running) -> socket.socket:
    host, _, port = server.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def rest_of(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    said = b""
    with suppress(ConnectionError):
        while piece := connection.recv(10_000):
            said += piece
    return said


def error_of(said: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = said.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower()
    return int(head.split()[1]), json.loads(body)["error"]


_HEAD = "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"


def ended(connection: socket.socket, byte: bytes) -> bytes:
    """What the server says until it closes the connection to a client that sends bytes slowly, or none."""
    said = b""
    with suppress(ConnectionError):
        for _ in range(3000):
            connection.sendall(byte)
            if select.select([connection], [], [], 0.01)[0]:
                piece = connection.recv(10_000)
                said += piece
                if not piece:
                    return said
        pytest.fail("the server waits for ever")
    return said


@pytest.mark.parametrize("byte", [b"", b" "])
def test_a_head_or_a_body_that_does_not_come_is_given_up(byte: bytes) -> None:
    begun = f"{_HEAD}content-length: 9999\r\n\r\n"
    with running(read_timeout=0.3) as server:
        for text, code in (
            ("", None),
            ("GET /health HTTP/1.1\r\nx: ", None),
            (_HEAD, None),
            (begun.replace("json", "xml"), "unsupported_media_type"),  # at once, its body is not waited for
            (f"{begun}{{", "body_timeout"),
        ):
            with connect(server) as connection:
                connection.sendall(text.encode())
                said = ended(connection, byte if text else b"")
            assert code is None or not said or error_of(said)[1]["code"] == code
            assert said or code != "body_timeout"
        server.read_for(30.0)
        assert server.chat(WROTE).status_code == 200


def test_idle_connections_give_way_the_oldest_first() -> None:
    with running(max_connections=4) as server, ExitStack() as stack:
        silent = [stack.enter_context(connect(server)) for _ in range(20)]
        assert server.get("/health").status_code == 200
        assert [rest_of(connection) for connection in silent[:16]] == [b""] * 16
        until(lambda: len(server.server.server_state.connections) <= 4)
        assert server.chat(WROTE).status_code == 200


def test_connections_at_work_stay_and_others_are_closed() -> None:
    model = SlowModel()
    with running(uq_of(model), max_connections=1) as server, ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.chat, WHERE)
        assert model.begun.acquire(timeout=30)
        for _ in range(3):
            with connect(server) as connection:
                assert rest_of(connection) == b""
        model.go.set()
        assert first.result().status_code == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 70_000,
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        f"{_HEAD}transfer-encoding: chunked\r\n\r\n1\r\n{{\r\nno length\r\n".encode(),
    ],
)
def test_a_malformed_head_or_chunk_is_refused(head: bytes, small: Running) -> None:
    with connect(small) as connection, suppress(ConnectionError):
        connection.sendall(head)
        assert rest_of(connection).startswith(b"HTTP/1.1 400 ")
    assert small.get("/health").status_code == 200


# ---- The queue


def test_what_waits_enters_the_next_pass_together_and_the_same_question_once() -> None:
    model = SlowModel()
    with running(uq_of(model)) as server, ThreadPoolExecutor(8) as pool:
        first = pool.submit(server.chat, WHERE)
        assert model.begun.acquire(timeout=30)
        others = [pool.submit(server.chat, text) for text in (WROTE, SANG, WROTE, WROTE)]
        until(lambda: server.service.engine.n_waiting == 4)
        model.go.set()
        replies = [future.result() for future in (first, *others)]
    assert [len(asked) for asked in model.passes] == [1, 2]
    assert {*model.passes[1]} == {WROTE, SANG}
    assert len({reply.json()["id"] for reply in replies}) == 5
    assert [reply.json()["semcal"]["answer"] for reply in replies[1:]].count("Ana Velis") == 3


def test_a_full_queue_is_said_with_when_to_come_again() -> None:
    model = SlowModel()
    with running(uq_of(model), queue=1) as server, ThreadPoolExecutor(4) as pool:
        first = pool.submit(server.chat, WHERE)
        assert model.begun.acquire(timeout=30)
        second = pool.submit(server.chat, WROTE)
        until(lambda: server.service.engine.n_waiting == 1)
        third = server.chat(SANG)
        assert (third.status_code, third.json()["error"]["code"]) == (503, "overloaded")
        assert 1 <= int(third.headers["retry-after"]) <= 60
        model.go.set()
        assert [first.result().status_code, second.result().status_code] == [200, 200]
        assert 'outcome="overloaded"} 1.0' in server.get("/metrics").text


def leaving(server: Running, text: str) -> socket.socket:
    """Ask, and keep the connection to close it."""
    body = json.dumps({"model": "fake", "messages": [{"role": "user", "content": text}]})
    connection = connect(server)
    connection.sendall(f"{_HEAD}content-length: {len(body)}\r\n\r\n{body}".encode())
    return connection


def test_a_client_that_goes_leaves_the_queue_and_the_pass_goes_on(tmp_path: Path) -> None:
    model, log = SlowModel(), ReplyLog(tmp_path / "log.sqlite")
    with running(uq_of(model), log=log) as server:
        drawn = leaving(server, WHERE)
        assert model.begun.acquire(timeout=30)
        waiting = leaving(server, WROTE)
        until(lambda: server.service.engine.n_waiting == 1)
        waiting.close()
        until(lambda: server.service.engine.n_waiting == 0)
        drawn.close()
        until(lambda: 'outcome="cancelled"} 2.0' in server.get("/metrics").text)
        model.go.set()
        assert server.chat(SANG).status_code == 200
    assert [asked for asked in model.passes if WROTE in asked] == []
    assert len(list(ReplyLog(log.path).probabilities())) == 1


def test_what_runs_is_answered_when_the_server_is_asked_to_stop() -> None:
    model = SlowModel()
    with running(uq_of(model)) as server, ThreadPoolExecutor(2) as pool:
        first = pool.submit(server.chat, WHERE)
        assert model.begun.acquire(timeout=30)
        second = pool.submit(server.chat, WROTE)
        until(lambda: server.service.engine.n_waiting == 1)
        with httpx.Client() as kept:
            assert kept.get(f"{server.url}/ready").status_code == 200
            server.server.handle_exit(15, None)
            until(lambda: not is_ready(kept, server))
        model.go.set()
        assert [first.result().status_code, second.result().status_code] == [200, 200]


def test_at_once_means_that_who_waits_is_told_and_a_pass_is_left() -> None:
    model = SlowModel()
    with running(uq_of(model)) as server, ThreadPoolExecutor(2) as pool:
        replies = [pool.submit(server.chat, WHERE)]
        assert model.begun.acquire(timeout=30)
        replies.append(pool.submit(server.chat, WROTE))
        until(lambda: server.service.engine.n_waiting == 1)
        server.server.handle_exit(2, None)
        server.server.handle_exit(2, None)
        for reply in replies:
            with suppress(httpx.TransportError):  # its connection may be closed by then
                assert (said := reply.result()).status_code == 503
                assert said.json()["error"]["code"] == "stopping"
        model.go.set()


def is_ready(client: httpx.Client, server: Running) -> bool:
    try:
        return client.get(f"{server.url}/ready").status_code == 200
    except httpx.TransportError:  # it does not listen any more
        return False


def test_an_error_of_ours_shows_no_trace_and_logs_no_text(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, logger="semcal.serve")
    with running() as server:

        def broken(*_: object) -> None:
            raise ZeroDivisionError("the secret question")

        monkeypatch.setattr(server.service, "_logged", broken)
        monkeypatch.setattr(server.service, "log", object())
        reply = server.chat(WROTE)
        assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal_error")
        assert "Traceback" not in reply.text
        assert reply.headers["x-request-id"] in reply.text
        monkeypatch.undo()
        assert server.chat(WROTE).status_code == 200
    lines = [json.loads(record.message) for record in caplog.records if record.name == "semcal.serve"]
    (error,) = [line for line in lines if line["event"] == "error"]
    assert error["type"] == "ZeroDivisionError"
    assert error["request_id"] == reply.headers["x-request-id"]
    assert [line["status"] for line in lines if line["event"] == "request"] == [500, 200]
    logged = json.dumps(lines)
    assert "secret" not in logged
    assert WROTE not in logged
    assert "Ana" not in logged


# ---- Model servers


QUESTION = "Who wrote The Salt Year?"


def served(server: Any, **settings: Any) -> SemanticUQ:
    model = model_of(server, settings=ServerSettings(**settings), log_probs="scaled", max_n=10)
    return SemanticUQ(model, calibration=calibration(max_new_tokens=8))


@pytest.mark.filterwarnings("ignore:the calibration was made from stored samples")
class TestOverAServer:
    def test_answers_are_those_of_ask_and_their_cost_is_told(self, tmp_path: Path) -> None:
        log = ReplyLog(tmp_path / "log.sqlite")
        prices = {"price_in": 1000.0, "price_out": 2000.0}
        with FakeServer(log_probs="scaled") as backend:
            expected = {text: served(backend).ask(text) for text in fake_model.ANSWERS}
            with running(served(backend, **prices), log=log) as server, ThreadPoolExecutor(12) as pool:
                questions = [*fake_model.ANSWERS] * 3
                replies = [reply.json() for reply in pool.map(server.chat, questions)]
            for text, reply in zip(questions, replies):
                assert reply["semcal"]["confidence"] == expected[text].confidence
                usage = reply["usage"]
                assert usage["prompt_tokens"] > 0
                cost = ReplyLog(log.path).reply(reply["id"]).cost
                spent = usage["prompt_tokens"] * 1000 + usage["completion_tokens"] * 2000
                assert cost == pytest.approx(spent / 1e6)

    def test_a_reply_counts_its_own_tokens_whoever_asks_at_the_same_time(self) -> None:
        """In a single thread, which took all that waited into one pass."""
        questions = [f"Who built mill {n}?" for n in range(8)]
        with FakeServer(log_probs="scaled", delay=0.01) as backend, ExitStack() as stack:
            model = model_of(backend, settings=ServerSettings(concurrency=2), log_probs="scaled", max_n=1)
            uq = SemanticUQ(model, calibration=calibration(max_new_tokens=8))
            server = stack.enter_context(running(uq))
            alone = server.chat(questions[0]).json()["usage"]
            with ThreadPoolExecutor(8) as pool:
                together = [reply.json()["usage"] for reply in pool.map(server.chat, questions)]
        assert together[0] == alone
        assert max(usage["prompt_tokens"] for usage in together) == alone["prompt_tokens"]

    def test_a_question_that_the_server_refuses_fails_alone(self) -> None:
        questions = [f"Who built mill {n}?" for n in range(10)]
        with FakeServer(log_probs="scaled", refused=("mill 7?",)) as backend:
            uq = served(backend, retries=0)
            with running(uq) as server, ThreadPoolExecutor(8) as pool:
                codes = [reply.status_code for reply in pool.map(server.chat, questions)]
        assert codes == [502 if n == 7 else 200 for n in range(10)]

    def test_what_a_client_gave_up_is_no_longer_asked_for(self) -> None:
        with FakeServer(log_probs="scaled", delay=60.0) as backend, running(served(backend)) as server:
            connection = leaving(server, QUESTION)
            until(lambda: len(backend.requests) == 1)
            connection.close()
            until(lambda: 'outcome="cancelled"} 1.0' in server.get("/metrics").text)
            backend.quirks.delay = 0.0
            assert server.chat(QUESTION).status_code == 200
