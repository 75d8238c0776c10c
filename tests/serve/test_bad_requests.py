"""What a request gets that cannot be answered: one table of bodies, each with its status, code and key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from semcal.reply_log import ReplyLog
from semcal.serve.requests import CHAT, CHECK, LABELS
from tests.serve.serving import WROTE, Running, running, uq_of

LIMITS, JSON = {"max_characters": 500}, "application/json"
USER, ASSISTANT = {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}
#: A body without these keys is a question or a check that is answered.
GOOD = {CHAT: {"model": "fake", "messages": [USER | {"content": WROTE}]}, CHECK: {"question": WROTE}}
BAD: list[tuple[str, Any, int, str, str | None]] = [
    (CHAT, {"model": "fakee"}, 404, "model_not_found", "model"),
    (CHAT, {"temprature": 1}, 400, "unknown_parameter", "temprature"),
    (CHAT, {"semcal": {"riks": 0.1}}, 400, "unknown_parameter", "semcal.riks"),
    (CHAT, {"semcal": {"risk": 0.2}}, 400, "unknown_risk", "semcal.risk"),
    (CHAT, {"semcal": {"meanings": 0}}, 400, "invalid_request", "semcal.meanings"),
    (CHAT, {"stream": "yes"}, 400, "invalid_request", "stream"),
    (CHAT, {"messages": []}, 400, "invalid_request", "messages"),
    (CHAT, {"messages": [USER | {"content": " "}]}, 400, "invalid_messages", "messages"),
    (CHAT, {"messages": [ASSISTANT]}, 400, "invalid_messages", "messages"),
    (CHAT, {"messages": [USER | {"role": "tool"}]}, 400, "invalid_messages", "messages"),
    (CHAT, {"messages": [USER | {"content": [{"type": "image_url"}]}]}, 400, "invalid_messages", "messages"),
    (CHAT, {"messages": [USER, ASSISTANT] * 51}, 400, "too_many_messages", "messages"),
    (CHAT, {"messages": [USER | {"content": "x" * 501}]}, 400, "too_long", "messages"),
    (CHAT, {"messages": [USER | {"content": [{"type": "text", "text": "x" * 501}]}]}, 400, "too_long", None),
    (CHECK, {}, 400, "invalid_request", "answer"),
    (CHECK, {"answer": "Ana", "question": None}, 400, "invalid_request", None),
    (CHECK, {"answer": "Ana", "messages": [USER]}, 400, "invalid_request", None),
    (CHECK, {"answer": " "}, 400, "invalid_request", None),
    (CHECK, {"answer": "Ana", "question": " "}, 400, "invalid_request", "question"),
    (CHECK, {"answer": "Ana", "log_likelihoods": [-1.0]}, 400, "invalid_request", None),
    (CHECK, {"answer": "Ana", "sample": []}, 400, "unknown_parameter", "sample"),
    (CHECK, {"answer": "Ana", "samples": ["Ana"] * 4}, 400, "invalid_request", "samples"),
    (CHECK, {"answer": "Ana", "samples": [""] * 10**4}, 400, "invalid_request", "samples"),
    (CHECK, {"answer": "x" * 501}, 400, "too_long", "messages"),
    (CHECK, {"answer": "x", "samples": ["y" * 60] * 10}, 400, "too_long", "messages"),
    (LABELS, [{"id": id, "correct": True} for id in ("ID", "no")], 404, "unknown_reply", "labels.1"),
    (LABELS, [{"id": "ID", "correct": correct} for correct in (True, False)], 400, "invalid_request", None),
    (LABELS, {"id": "ID"}, 400, "invalid_request", "labels.0"),
    (LABELS, {"id": "ID", "reference": []}, 400, "invalid_request", "labels.0"),
    (LABELS, {"id": "ID", "correct": True, "reference": "x"}, 400, "invalid_request", "labels.0"),
    (LABELS, {"id": "ID", "corect": True}, 400, "unknown_parameter", "corect"),
    (LABELS, {"id": "ID", "correct": "yes"}, 400, "invalid_request", "correct"),
    (LABELS, {"id": "ID", "reference": " "}, 400, "invalid_request", "labels.0"),
    (LABELS, {"id": "ID", "reference": ["Ana", ""]}, 400, "invalid_request", "labels.0"),
    (LABELS, [{"id": "ID", "correct": True}, {"id": 5, "correct": True}], 400, "invalid_request", "1.id"),
    (LABELS, [{"id": "ID", "correct": True}] * 1001, 400, "invalid_request", None),
    (LABELS, {"id": "ID", "reference": "x" * 501}, 400, "too_long", "reference"),
    (LABELS, [{"id": "ID", "reference": ["x" * 251, "y" * 250]}], 400, "too_long", "reference"),
    (LABELS, [{"id": "ID", "reference": "x" * 251}] * 2, 400, "too_long", "reference"),
]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Running, str]]:
    """A server that answers, one that checks, and the id of a reply."""
    log = ReplyLog(tmp_path_factory.mktemp("log") / "log.sqlite")
    with running(log=log, **LIMITS) as answers, running(uq_of(answer_kind="given"), **LIMITS) as checks:
        yield answers, checks, answers.chat(WROTE).json()["id"]


@pytest.mark.parametrize(("path", "body", "status", "code", "param"), BAD)
def test_a_request_that_cannot_be_answered_is_refused_by_its_key_and_changes_nothing(
    path: str, body: Any, status: int, code: str, param: str | None, servers: tuple[Running, Running, str]
) -> None:
    answers, checks, reply_id = servers
    body = {**GOOD[path], **body} if path in GOOD else json.loads(json.dumps(body).replace("ID", reply_id))
    reply = (checks if path == CHECK else answers).post(path, body)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["type"]) == (status, code, "invalid_request_error")
    assert param is None or error["param"].startswith(param)
    assert list(answers.service.log.labelled()) == []


@pytest.mark.parametrize(
    ("content", "kind", "status", "code"),
    [
        (b"{}", "text/plain", 415, "unsupported_media_type"),
        (b" " * 10**6 + b" ", JSON, 413, "body_too_large"),
        ([b" " * 10**5] * 11, JSON, 413, "body_too_large"),  # in pieces, without a length
        ("{", JSON, 400, "invalid_json"),
        ("[" * 100_000, JSON, 400, "invalid_json"),
        ('{"model": "fake", "messages": [], "top_p": NaN}', JSON, 400, "invalid_request"),
        (
            r'{"model": "fake", "messages": [{"role": "user", "content": "\ud800"}]}',
            JSON,
            400,
            "invalid_request",
        ),
        (f"[{'[],' * 300_000}[]]", JSON, 400, "invalid_request"),
    ],
)
def test_a_body_that_is_no_json_no_text_or_too_large_is_refused(
    content: Any, kind: str, status: int, code: str, servers: tuple[Running, Running, str]
) -> None:
    headers = {"content-type": kind}
    reply = httpx.post(f"{servers[0].url}{CHAT}", content=content, headers=headers, timeout=30)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
    assert servers[0].chat(WROTE).status_code == 200


def test_what_a_calibration_is_not_for_is_refused_with_the_path_or_option_that_helps() -> None:
    with running() as server:
        error = server.post(CHECK, {"question": WROTE, "answer": "Ana"}).json()["error"]
        assert (error["code"], "--answer given" in error["message"]) == ("wrong_calibration", True)
        label = {"id": server.chat(WROTE).json()["id"], "correct": True}
        refused = server.post(LABELS, label)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "no_log")
