"""What is stated of faults around the server: back ends, clients, the disk and the clock."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

import semcal
from semcal.calibration.calibration import Calibration
from semcal.reply_log import ReplyLog
from semcal.serve.requests import LABELS
from semcal.serve.service import ModelServers
from semcal.servers.client import ServerClient
from semcal.servers.settings import Endpoint, ServerSettings
from semcal.uncertainty import SemanticUQ
from tests.serve.serving import SANG, WHERE, WROTE, Running, running, until
from tests.serve.test_guards import QUESTION, served
from tests.servers import fake_model
from tests.servers.fake_server import FakeServer
from tests.servers.fault_proxy import FAULTS, FaultProxy
from tests.test_reply_log import reply_of

pytestmark = pytest.mark.filterwarnings("ignore:the calibration was made from stored samples")
#: Damage behind which the reply is still to be read.
HARMLESS = ("delay", "leave", "twice", "slow twice")


def behind(proxy: FaultProxy, backend: FakeServer, **settings: Any) -> SemanticUQ:
    """The model of a server behind a proxy."""
    uq = served(backend)
    uq.model.client = ServerClient(Endpoint(proxy.url, "fake"), ServerSettings(**settings), first_wait=0.01)
    return uq


def code_of(reply: httpx.Response) -> str | None:
    return None if reply.status_code == 200 else reply.json()["error"]["code"]


# ---- Model servers


def test_a_model_server_that_goes_and_comes_back_is_asked_again_at_once() -> None:
    with FakeServer(log_probs="scaled") as backend:
        expected = served(backend).ask(QUESTION).confidence
        with (
            FaultProxy(backend.port, share=0.0, faults=("refuse", "lose"), at_most=10**6) as proxy,
            running(behind(proxy, backend, retries=0)) as server,
        ):
            for gone in (False, True, False, True, False):
                proxy._share = float(gone)
                reply = server.chat(QUESTION)
                assert code_of(reply) == ("backend_failed" if gone else None)
                assert str(backend.port) not in reply.text
                assert gone or reply.json()["semcal"]["confidence"] == expected
                assert server.get("/ready").status_code == 200  # it lists its models all the while


def test_model_servers_that_are_gone_are_named_at_the_next_probe_and_a_fallback_is_not_needed() -> None:
    with FakeServer(log_probs="scaled") as backend, running(served(backend)) as server:
        server.service.servers = servers = ModelServers(
            dict.fromkeys(("model", "fallback"), server.service.primary.uq)
        )
        for gone, fresh_for, missing in (
            ("fallback", 3600.0, ["fallback"]),
            ("model", 3600.0, ["fallback"]),  # not asked again
            ("model", 0.0, ["model", "fallback"]),
        ):
            servers.clients[gone].endpoint = Endpoint("http://127.0.0.1:9/v1")
            servers.fresh_for = fresh_for
            ready = server.get("/ready")
            assert ready.json()["missing"] == missing
            assert ready.status_code == (503 if "model" in missing else 200)


def test_a_slow_model_server_is_given_up_after_the_time_of_a_request() -> None:
    with (
        FakeServer(log_probs="scaled", delay=60.0) as backend,
        running(served(backend), request_timeout=0.3) as server,
    ):
        assert code_of(server.chat(QUESTION)) == "timeout"
        backend.quirks.delay = 0.0
        server.service.settings.__dict__["request_timeout"] = 30.0
        assert code_of(server.chat(QUESTION)) is None
        until(lambda: server.service.engine._under_way == {})


def test_a_lying_model_server_gets_no_other_probability_out() -> None:
    with FakeServer(log_probs="scaled") as backend:
        questions = {fault: f"Who built mill {number}?" for number, fault in enumerate(FAULTS)}
        expected = {fault: served(backend).ask(text).confidence for fault, text in questions.items()}
        with (
            FaultProxy(backend.port, share=1.0, at_most=2) as proxy,
            running(behind(proxy, backend, retries=1)) as server,
        ):
            for fault, text in questions.items():
                proxy._kinds = (fault,)
                replies = [server.chat(text) for _ in range(2)]
                codes = ["backend_failed" if fault not in HARMLESS else None, None]
                assert [code_of(reply) for reply in replies] == codes, fault
                answered = [reply.json()["semcal"] for reply in replies if reply.status_code == 200]
                assert {one["confidence"] for one in answered} == {expected[fault]}, fault


class Other(FakeServer):
    """A server that names another model in its replies from now on, and may refuse a question."""

    model: str | None = None

    async def _answer(self, *arguments: Any) -> Any:
        status, reply, more = await super()._answer(*arguments)
        return status, (reply | {"model": self.model} if self.model and "choices" in reply else reply), more


@pytest.mark.filterwarnings("ignore:.*requests name the model")
def test_the_answer_of_another_model_has_no_probability(tmp_path: Path) -> None:
    with Other(log_probs="scaled") as backend:
        expected = served(backend).ask(QUESTION).confidence
        for settings in ({}, {"uncovered": "answer"}):
            backend.model = None
            with running(served(backend), **settings) as server:
                assert server.chat(QUESTION).json()["semcal"]["confidence"] == expected
                backend.model = "elsewhere/other-70b"
                for _ in range(2):
                    reply = server.chat(QUESTION)
                    if settings:
                        beside = reply.json()["semcal"]
                        assert (beside["confidence"], beside["uncovered"]) == (None, ["model"])
                    else:
                        assert (reply.status_code, code_of(reply)) == (502, "other_model")
                backend.model = None
                assert server.chat(QUESTION).json()["semcal"]["confidence"] == expected
        backend.model = "elsewhere/other-70b"
        forced = served(backend)
        forced.sampling = replace(forced.sampling, asking=replace(forced.asking, force=True))
        with running(forced) as server:
            assert server.chat(QUESTION).json()["semcal"]["confidence"] == expected


@pytest.mark.filterwarnings("ignore")
def test_a_name_that_replies_had_at_calibration_is_the_model(tmp_path: Path) -> None:
    labelled = [
        {"id": str(number), "question": question, "answers": [next(iter(answers))]}
        for number, (question, answers) in enumerate([*fake_model.ANSWERS.items()] * 4)
    ]
    with Other(log_probs="scaled") as backend:
        backend.model = "gpt-4-0125-preview"
        calibrated = semcal.calibrate(served(backend).model, labelled, m=5, progress=False)
        calibrated.save_pretrained(tmp_path)
        calibration = Calibration.from_pretrained(tmp_path)
        assert calibration.provenance.server == {"answered_as": [backend.model]}
        with running(SemanticUQ(served(backend).model, calibration=calibration)) as server:
            assert server.chat(QUESTION).json()["semcal"]["confidence"] is not None
            backend.model = "gpt-4-1106-preview"
            assert code_of(server.chat(QUESTION)) == "other_model"


def test_words_of_the_model_server_go_to_the_log_and_not_to_clients(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "semcal.serve")
    words = "this prompt is not answered"  # as a server of others may quote what it was sent
    with (
        FakeServer(log_probs="scaled", refused=(QUESTION,)) as backend,
        running(served(backend, retries=0)) as server,
    ):
        reply = server.chat(QUESTION)
    assert (code_of(reply), words in reply.text) == ("backend_failed", False)
    (line,) = [json.loads(record.message) for record in caplog.records if '"backend"' in record.message]
    assert words in line["reason"]


# ---- Clients


def test_a_client_that_goes_while_it_is_streamed_to_has_its_reply_in_the_log(tmp_path: Path) -> None:
    log = ReplyLog(tmp_path / "log.sqlite")
    body = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": WROTE}]}
    with running(log=log) as server:
        for _ in range(5):
            with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body) as reply:
                next(reply.iter_bytes())
        assert server.chat(WROTE).status_code == 200
    assert len(list(ReplyLog(log.path).probabilities())) == 6


# ---- The disk and the clock


def fill(server: Running, *, full: bool) -> None:
    """Let the file of the log grow no more, or again."""
    database = server.service.log._database
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count = {pages if full else 10**6}")


def test_on_a_full_disk_no_label_of_a_list_is_taken_and_later_all_are(tmp_path: Path) -> None:
    log = ReplyLog(tmp_path / "log.sqlite")
    labels = [{"id": f"reply-{number}", "correct": True} for number in range(300)]
    for label in labels:
        log.add(reply_of(label["id"]))
    with running(log=log, log_texts=True) as server:
        fill(server, full=True)
        refused = server.post(LABELS, labels)
        assert (refused.status_code, code_of(refused)) == (503, "log_failed")
        assert list(log.labelled()) == []
        replies = [server.chat(text) for text in (WROTE, SANG, WHERE) * 5]
        assert {code_of(reply) for reply in replies} == {None}
        assert server.get("/ready").json()["log"] == "cannot be written"
        lost = [reply for reply in replies if log.reply(reply.json()["id"]) is None]
        assert f"semcal_unlogged_total {float(len(lost))}" in server.get("/metrics").text
        assert code_of(server.post(LABELS, {"id": lost[0].json()["id"], "correct": True})) == "unknown_reply"
        fill(server, full=False)
        assert server.post(LABELS, labels).status_code == 200
        assert len(list(log.labelled())) == 300


def test_behind_a_lock_replies_go_on_unlogged_and_only_the_first_one_waits(tmp_path: Path) -> None:
    log = ReplyLog(tmp_path / "log.sqlite")
    with running(log=log) as server, closing(sqlite3.connect(log.path)) as other:
        reply = server.chat(WROTE).json()
        other.execute("BEGIN IMMEDIATE")
        for unlogged in (1, 2, 3):
            assert server.chat(SANG).status_code == 200
            assert server.get("/ready").json()["log"] == "cannot be written"
            assert f"semcal_unlogged_total {unlogged}.0" in server.get("/metrics").text
        label = {"id": reply["id"], "correct": True}
        assert code_of(server.post(LABELS, label)) == "log_failed"
        assert log._database.execute("PRAGMA busy_timeout").fetchone() == (0,)
        other.rollback()
        assert server.post(LABELS, label).status_code == 200
        assert server.chat(WHERE).status_code == 200
        assert server.get("/ready").json()["log"] == "ok"
        assert log._database.execute("PRAGMA busy_timeout").fetchone() == (1000,)
    assert len(list(ReplyLog(log.path).probabilities())) == 2
