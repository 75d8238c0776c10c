"""Structured answers over HTTP: schemas, tools, fields, checks, labels, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semcal.calibration.fields import FieldStep, Promises
from semcal.calibration.watch import PromiseWatch
from semcal.errors import UsageError
from semcal.models.clustering import ClusterConfig
from semcal.models.equivalence import ExactMatch
from semcal.models.fakes import FakeLanguageModel
from semcal.models.sample import SampleStep
from semcal.reply_log import LabelledReply, ReplyLog
from semcal.rows import Row
from semcal.serve import replies
from semcal.serve.requests import CHECK, LABELS
from semcal.steps import WorkerState
from tests.cli.invoking import semcal as command
from tests.cli.invoking import write
from tests.serve.form_service import (
    NOTHING,
    REFERENCE,
    RESPONSE_FORMAT,
    RIGHT,
    SCHEMA,
    SURE,
    TABLE,
    UNSURE,
    WRONG,
    Form,
    calibration,
    sampling,
    source,
)
from tests.serve.serving import WROTE, Running, running, uq_of
from tests.serve.test_serve_command import process
from tests.servers import fake_model
from tests.servers.fake_server import FakeServer

TOOL = {"type": "function", "function": {"name": "save_form", "parameters": SCHEMA}}
OTHER = {"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}}
DEEP = json.loads('{"a":' * 400 + "1" + "}" * 400)
ASKED = [{"role": "user", "content": SURE}]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(source()) as one:
        yield one


def asked_on_files(text: str, **options: Any) -> Row:
    """What the steps of `semcal ask` write for a question."""
    rows = [Row({"id": text, "question": text})]
    sampled = SampleStep(sampling(), full=True)(rows, WorkerState(FakeLanguageModel(TABLE)), lambda _: None)
    (row,) = FieldStep(calibration(), ClusterConfig(ExactMatch()), **options)(sampled)
    return row


@pytest.mark.parametrize("text", [SURE, UNSURE])
def test_a_reply_is_the_document_of_ask_with_the_probability_of_each_field(
    text: str, server: Running
) -> None:
    reply = server.chat(text, response_format=RESPONSE_FORMAT, semcal={"samples": True})
    content, expected = reply.json(), asked_on_files(text)
    beside = content["semcal"]
    replies.Completion.model_validate_json(reply.text)
    assert json.loads(content["choices"][0]["message"]["content"]) == expected["answer"]
    for key in ("answer", "fields", "document", "review", "samples", "invalid_samples"):
        assert beside[key] == expected[key]
    assert (beside["m"], beside["calibration"]) == (6, calibration().id)
    assert 0 < beside["fields"]["/n"]["probability"] < beside["fields"]["/name"]["probability"] < 1
    assert beside["fields"]["/note"]["probability"] is None
    assert beside["document"]["accepted"] is (text == SURE)
    assert beside["review"] == (["/note"] if text == SURE else ["/note", "/n"])
    verdict = {"probability": beside["document"]["probability"], "abstained": text != SURE}
    assert content["usage"]["semcal"] == verdict
    assert content["usage"]["completion_tokens"] == sum(map(len, expected["token_ids"]))


def test_the_official_client_parses_a_pydantic_class(server: Running) -> None:
    parsed = server.client.chat.completions.parse(model="fake", messages=ASKED, response_format=Form)
    assert parsed.choices[0].message.parsed == Form(name="Mirna", n=7)
    assert parsed.semcal["fields"]["/n"]["accepted"] is True
    with server.client.chat.completions.stream(model="fake", messages=ASKED, response_format=Form) as stream:
        *_, last = stream
    assert last.parsed == Form(name="Mirna", n=7)
    refused = server.client.chat.completions.parse(
        model="fake", messages=[{"role": "user", "content": NOTHING}], response_format=Form
    )
    message = refused.choices[0].message
    assert (message.parsed, message.content) == (None, None)
    assert message.refusal == "I am not sure enough to answer this."
    assert "no sample is valid" in refused.semcal["reason"]


@pytest.mark.parametrize(
    "options",
    [
        {"tools": [TOOL]},
        {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
        {"tools": [OTHER, TOOL], "tool_choice": {"type": "function", "function": {"name": "save_form"}}},
    ],
)
def test_a_tool_is_called_with_the_document(options: dict[str, Any], server: Running) -> None:
    reply = server.client.chat.completions.create(model="fake", messages=ASKED, **options)
    (choice,) = reply.choices
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert (call.type, call.function.name) == ("function", "save_form")
    assert json.loads(call.function.arguments) == reply.semcal["answer"] == REFERENCE
    chunks = list(server.client.chat.completions.create(model="fake", messages=ASKED, stream=True, **options))
    (streamed,) = chunks[0].choices[0].delta.tool_calls
    assert streamed.index == 0
    assert streamed.function.model_dump() == call.function.model_dump()
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert chunks[0].semcal["fields"] == chunks[-1].semcal["fields"] == reply.semcal["fields"]


def test_values_that_are_not_accepted_can_be_left_out(server: Running) -> None:
    options = {"semcal": {"fields": "accepted"}}
    reply = server.chat(UNSURE, response_format=RESPONSE_FORMAT, **options).json()
    expected = asked_on_files(UNSURE, accepted_only=True)
    assert json.loads(reply["choices"][0]["message"]["content"]) == expected["answer"]
    assert reply["semcal"]["answer"] == expected["answer"] == {"name": "Mirna", "n": None}
    assert reply["semcal"]["fields"] == expected["fields"]
    called = server.chat(UNSURE, tools=[TOOL], **options).json()["choices"][0]["message"]
    assert json.loads(called["tool_calls"][0]["function"]["arguments"]) == expected["answer"]


# ---- Refusals


def of_schema(schema: Any, **further: Any) -> dict[str, Any]:
    holder = {"name": "form", "schema": schema, **further}
    return {"response_format": {"type": "json_schema", "json_schema": holder}}


NUMBER = {**SCHEMA, "properties": {**SCHEMA["properties"], "n": {"type": "number"}}}
BOTH = {"response_format": RESPONSE_FORMAT, "tools": [TOOL]}
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({}, "invalid_request", "response_format"),
    ({"response_format": {"type": "json_object"}}, "invalid_request", "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "invalid_schema", "response_format"),
    (of_schema(NUMBER), "other_schema", "response_format"),
    (of_schema({"type": "object", "properties": 3}), "invalid_schema", "response_format"),
    (of_schema({"properties": {"a": {"pattern": "("}}}), "invalid_schema", "response_format"),
    (of_schema(json.loads('{"items":' * 450 + "{}" + "}" * 450)), "invalid_schema", "response_format"),
    (BOTH, "invalid_request", "response_format"),
    ({"tools": [TOOL, OTHER]}, "invalid_request", "tool_choice"),
    ({"tools": [OTHER]}, "other_schema", "tools"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "invalid_schema", "tools"),
    ({"tools": [{"type": "web_search"}]}, "invalid_request", "tools.0"),
    ({"tools": [TOOL], "tool_choice": {"function": {"name": "save"}}}, "invalid_request", "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "any"}, "invalid_request", "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "none"}, "invalid_request", "response_format"),
    ({"tool_choice": "required"}, "invalid_request", "tool_choice"),
    ({"tools": [TOOL], "temperature": 0.3}, "not_covered", "temperature"),
    ({"response_format": RESPONSE_FORMAT, "n": 2}, "not_covered", "n"),
    ({"response_format": RESPONSE_FORMAT, "semcal": {"risk": 0.2}}, "invalid_request", "semcal.risk"),
    ({"response_format": RESPONSE_FORMAT, "semcal": {"meanings": 1}}, "invalid_request", "semcal.meanings"),
    ({"response_format": RESPONSE_FORMAT, "semcal": {"fields": "all"}}, "invalid_request", "semcal.fields"),
]


@pytest.mark.parametrize(("options", "code", "param"), BAD)
def test_a_request_for_another_document_is_refused_by_its_key(
    options: dict[str, Any], code: str, param: str, server: Running
) -> None:
    reply = server.chat(SURE, **options)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, code, param)


def test_another_prompt_is_not_covered_and_has_no_probability_where_it_is_answered(server: Running) -> None:
    messages = [{"role": "system", "content": "Be quick."}, *ASKED]
    error = server.chat(messages, response_format=RESPONSE_FORMAT).json()["error"]
    assert (error["code"], error["param"]) == ("not_covered", "messages")
    with running(source(), uncovered="answer") as other:
        beside = other.chat(SURE, response_format=RESPONSE_FORMAT, temperature=0.3).json()["semcal"]
    assert beside["answer"] == REFERENCE
    assert beside["uncovered"] == ["temperature"]
    assert beside["document"] == {"probability": None, "accepted": None}
    assert all(field["probability"] is field["accepted"] is None for field in beside["fields"].values())
    assert beside["review"] == ["/name", "/n", "/note"]


def test_a_calibration_of_single_answers_has_no_fields(tmp_path: Path) -> None:
    log = ReplyLog(tmp_path / "log.sqlite")
    with running(log=log) as flat, running(uq_of(answer_kind="given")) as checks:
        assert flat.chat(WROTE, semcal={"fields": "accepted"}).json()["error"]["param"] == "semcal.fields"
        refused = flat.chat(WROTE, response_format=RESPONSE_FORMAT).json()["error"]
        assert (refused["code"], refused["param"]) == ("not_covered", "response_format")
        assert flat.chat(WROTE, tools=[TOOL]).json()["error"]["code"] == "not_covered"
        label = {"id": flat.chat(WROTE).json()["id"], "reference": {"name": "Mirna"}}
        assert flat.post(LABELS, label).json()["error"]["param"] == "labels.0"
        check = checks.post(CHECK, {"question": WROTE, "answer": {"name": "Ana"}})
        assert (check.status_code, check.json()["error"]["param"]) == (400, "answer")
    with pytest.raises(UsageError, match="--fallback"), running(source(), fallback=uq_of()):
        pass


def test_thresholds_by_the_value_of_a_column_hold_for_the_column_of_a_request() -> None:
    by_vendor, learned = source(), calibration()
    known = Promises(learned.thresholds, learned.document_thresholds)
    by_vendor.calibration = replace(
        learned, by="vendor", by_value={"Vela": known}, thresholds=(), document_thresholds=()
    )
    with running(by_vendor) as server:

        def reply(**options: Any) -> Any:
            return server.chat(SURE, response_format=RESPONSE_FORMAT, semcal=options).json()

        vela, other = (reply(columns={"vendor": name})["semcal"] for name in ("Vela", "Orion"))
        assert reply()["error"]["param"] == "semcal.columns"
        assert server.service.state.columns == ["vendor"]
    assert vela["review"] == ["/note"]  # as without a column
    assert vela["document"]["accepted"] is True
    assert other["review"] == ["/note", "/n", "/name"]
    assert other["document"]["accepted"] is False


# ---- Abstention and alarm


@pytest.mark.parametrize("style", ["sentence", "pass", "refusal", "error"])
def test_a_document_below_its_threshold_is_sent_unless_the_operator_withholds_it(style: str) -> None:
    with running(source(), abstain=style, abstain_text="No.") as server:
        sure, unsure, nothing = (
            server.chat(text, response_format=RESPONSE_FORMAT) for text in (SURE, UNSURE, NOTHING)
        )
    assert json.loads(sure.json()["choices"][0]["message"]["content"]) == REFERENCE
    assert unsure.json()["semcal"]["document"]["accepted"] is False
    if style == "error":
        assert (unsure.status_code, nothing.status_code) == (422, 422)
        replies.ErrorReply.model_validate_json(unsure.text)
        return
    messages = [reply.json()["choices"][0]["message"] for reply in (unsure, nothing)]
    assert messages[1]["refusal"] == "No."
    assert (messages[0]["refusal"] == "No.") is (style == "refusal")
    assert unsure.headers["x-semcal-abstained"] == "true"


def test_during_an_alarm_no_document_is_sent(tmp_path: Path) -> None:
    watch = PromiseWatch.of(calibration())
    assert watch.risks == ((calibration().limit, 0.3),)
    for number in range(200):
        watch.update(LabelledReply(str(number), 0.9, calibration().limit, False, False, False))
    with running(source(), log=ReplyLog(tmp_path / "log.sqlite"), watch=watch) as server:
        reply = server.chat(SURE, tools=[TOOL]).json()
    message, beside = reply["choices"][0]["message"], reply["semcal"]
    assert message["refusal"]
    assert "tool_calls" not in message
    assert beside["document"] == {"probability": None, "accepted": False}
    assert all(field["accepted"] is False for field in beside["fields"].values())


# ---- Checks, labels and the log


@pytest.mark.parametrize("answer", [REFERENCE, json.dumps(REFERENCE), {**REFERENCE, "n": 9}])
def test_a_given_document_gets_the_probability_of_each_field(answer: Any) -> None:
    document = json.loads(answer) if isinstance(answer, str) else answer
    samples = [RIGHT] * 4 + [WRONG] * 2
    row = Row({"id": "", "samples": samples, "answer": document})
    (expected,) = calibration("given").predict([row])
    with running(source("given")) as server:
        body = {"question": SURE, "answer": answer}
        checked = server.post(CHECK, {**body, "samples": [json.loads(RIGHT), *samples[1:]]})
        sampled = server.post(CHECK, body).json()["semcal"]
        refused = server.chat(SURE, response_format=RESPONSE_FORMAT).json()["error"]
    replies.CheckedAnswer.model_validate_json(checked.text)
    for key in ("answer", "fields", "document", "review"):
        assert checked.json()["semcal"][key] == expected[key]
    assert sampled["answer"] == document
    assert sampled["fields"]["/n"]["share"] == float(document["n"] == 7)
    assert refused["code"] == "wrong_calibration"


@pytest.mark.parametrize(
    "answer", [{"name": "Mirna"}, "no document", {**REFERENCE, "n": "x"}, {}, None, {**REFERENCE, "x": DEEP}]
)
def test_a_given_document_that_is_not_valid_is_refused(answer: Any) -> None:
    with running(source("given")) as server:
        reply = server.post(CHECK, {"question": SURE, "answer": answer})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "answer")


def test_labels_by_reference_reach_the_log_the_watch_and_the_monitor(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    log, watch = ReplyLog(path), PromiseWatch.of(calibration())
    with running(source(), log=log, watch=watch) as server:
        ids = [server.chat(text, response_format=RESPONSE_FORMAT).json()["id"] for text in (SURE, UNSURE)]
        stored = log.reply(ids[0])
        assert json.loads(stored.answer) == REFERENCE
        assert (stored.threshold, stored.abstained) == (calibration().limit, False)
        right = {"name": {"any_of": ["M.", "MIRNA"]}, "n": 7, "note": None}
        taken = server.post(LABELS, [{"id": one, "reference": right} for one in ids])
        assert [label["correct"] for label in taken.json()["data"]] == [True, False]
        for reference in ("Mirna", ["Mirna"], {"n": "x"}, {"town": 3, "n": "many"}, {"x": DEEP}):
            refused = server.post(LABELS, {"id": ids[0], "reference": reference})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "labels.0")
        assert server.post(LABELS, {"id": ids[1], "correct": False}).status_code == 200
    assert (watch.tests["risk"].n, watch.tests["calibration"].n) == (1, 2)
    folder = calibration().save_pretrained(tmp_path / "forms").parent
    code, lines, said = command("monitor", path, "--calibration", folder)
    assert code == 0, said
    code, _, said = command("calibrate", folder, "--add", path, "--out", tmp_path / "again")
    assert (code, "--add" in said) == (2, True)
    assert {line["watch"]: line.get("labels") for line in lines} == {
        "risk": 1,
        "calibration": 2,
        "questions": None,
    }


# ---- The command


def turn_of(text: str) -> str:
    return f"Context: {text}\n\nQuestion: Read it."


@pytest.mark.filterwarnings("always::semcal.errors.SemcalWarning")
def test_the_command_serves_documents_of_a_model_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"Invoice {number}" for number in range(20)]
    for text in texts:
        monkeypatch.setitem(
            fake_model.ANSWERS, f"Context: {text}\n\nQuestion: Read it.", {RIGHT: 0.9, WRONG: 0.1}
        )
    rows = [{"id": text, "question": "Read it.", "context": text, "answers": REFERENCE} for text in texts]
    schema, folder = write(tmp_path / "schema.json", [SCHEMA]), tmp_path / "forms"
    with FakeServer() as backend:
        learn = ("calibrate", write(tmp_path / "rows.jsonl", rows), "--schema", schema, "--m", 4)
        code, _, said = command(*learn, "--model", backend.name, "--equivalence", "exact", "--out", folder)
        assert code == 0, said
        options = ("--model", backend.name, "--calibration", folder, "--log", tmp_path / "log")
        for name, option, value in (
            ("--calibration", "--config", "prompt.system=Read quickly."),
            ("--equivalence", "--equivalence", "exact"),
            ("--fallback", "--fallback", backend.name),
        ):
            code, _, said = command("serve", "--port", 0, *options, option, value)
            assert (code, name in said) == (2, True), said
        with process(tmp_path, *options) as server:
            turn = {"role": "user", "content": turn_of(texts[0])}
            body = {"model": "fake", "messages": [turn], "response_format": RESPONSE_FORMAT}
            beside = server.post(body).json()["semcal"]
            assert 0 < beside["fields"]["/n"]["probability"] < 1
            plain = {**body, "messages": [{"role": "user", "content": "Read it."}]}
            assert server.post(plain).json()["error"]["code"] == "not_covered"
            code, (row,), said = command(
                "ask", write(tmp_path / "q.jsonl", [{**rows[0], "id": "Read it."}]), *options[:4]
            )
            assert code == 0, said
            for key in ("answer", "fields", "document", "review"):
                assert beside[key] == row[key]
