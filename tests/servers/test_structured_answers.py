"""Structured answers of a server: the schema is sent, and each field gets a probability."""

from __future__ import annotations

import json

import pytest

from tests.cli.invoking import semcal, write
from tests.servers import fake_model
from tests.servers.fake_server import FakeServer

SCHEMA = {
    "type": "object",
    "required": ["name", "n"],
    "properties": {"name": {"type": "string"}, "n": {"type": "integer"}},
}
RIGHT, WRONG = '{"name": "Mirna", "n": 7}', '{"name": "Mirna", "n": 9}'

pytestmark = pytest.mark.filterwarnings("always::semcal.errors.SemcalWarning")


@pytest.fixture
def questions(monkeypatch):
    texts = [f"Read form {number}." for number in range(30)]
    for number, text in enumerate(texts):
        likely = 0.9 if number % 3 else 0.3
        monkeypatch.setitem(fake_model.ANSWERS, text, {RIGHT: likely, WRONG: 1 - likely})
    return [
        {"id": str(number), "question": text, "answers": {"name": "Mirna", "n": 7}}
        for number, text in enumerate(texts)
    ]


def test_sampled_calibrated_and_asked_with_the_schema(tmp_path, questions):
    schema, rows = write(tmp_path / "schema.json", [SCHEMA]), write(tmp_path / "q.jsonl", questions)
    samples, folder = tmp_path / "samples.jsonl", tmp_path / "cal"
    with FakeServer() as server:
        how = ("--model", server.name)
        code, _, said = semcal("sample", rows, *how, "--schema", schema, "--m", 6, "--out", samples)
        assert code == 0, said
        chats = [body for path, body in server.requests if "response_format" in body]
        assert len(chats) >= len(questions)
        assert all(body["response_format"]["json_schema"]["schema"] == SCHEMA for body in chats)
        assert all("Read form" in json.dumps(body["messages"]) for body in chats)
        row = json.loads(samples.read_text().splitlines()[0])
        pairs = zip(row["token_texts"], row["samples"])
        assert all("".join(tokens) == text for tokens, text in pairs)
        assert row["log_likelihoods"] is None  # unknown under the constraint
        code, (report,), said = semcal(
            "calibrate", samples, "--schema", schema, "--equivalence", "exact", "--out", folder
        )
        assert code == 0, said
        assert report["documents"] == 30
        assert report["by_field"]["/name"]["accuracy"] > report["by_field"]["/n"]["accuracy"]
        code, asked, said = semcal("ask", rows, *how, "--calibration", folder)
        assert code == 0, said
        assert [row["id"] for row in asked] == [row["id"] for row in questions]
        assert all(0 < row["fields"]["/n"]["probability"] < 1 for row in asked)
        scores = [row["fields"]["/n"]["token_scores"] for row in asked if row["answer"] is not None]
        assert all(0 < smallest <= mean <= 1 for smallest, mean in scores)
        assert all(row["answers"] == {"name": "Mirna", "n": 7} for row in asked)
        code, (single,), said = semcal("ask", "Read form 1.", *how, "--calibration", folder)
        assert code == 0, said
        assert single["answer"]["name"] == "Mirna"
        assert {*single["review"]} == {"/name", "/n"}


def test_calibrate_samples_documents_and_keeps_them(tmp_path, questions):
    schema, rows = write(tmp_path / "schema.json", [SCHEMA]), write(tmp_path / "q.jsonl", questions)
    with FakeServer() as server:
        learn = ("calibrate", rows, "--schema", schema, "--equivalence", "exact", "--m", 4)
        code, (report,), said = semcal(*learn, "--model", server.name, "--out", tmp_path / "cal")
    assert code == 0, said
    assert (report["documents"], report["m"]) == (30, 4)
    again = ("calibrate", tmp_path / "cal" / "samples.jsonl", *learn[2:6])
    code, (stored,), said = semcal(*again, "--out", tmp_path / "again")
    assert code == 0, said
    assert stored["calibrated"] == report["calibrated"]


@pytest.mark.parametrize("kind", ["greedy", "given"])
def test_another_document_than_the_modal_one_is_judged(tmp_path, questions, kind):
    given = [
        {**row, "answer": json.loads(WRONG if number % 4 else RIGHT)} for number, row in enumerate(questions)
    ]
    schema, rows = write(tmp_path / "schema.json", [SCHEMA]), write(tmp_path / "q.jsonl", given)
    with FakeServer() as server:
        how = ("--model", server.name)
        learn = ("--schema", schema, "--equivalence", "exact", "--m", 4, "--answer", kind, *how)
        code, (report,), said = semcal("calibrate", rows, *learn, "--out", tmp_path / "cal")
        assert code == 0, said
        of_forms = [body for _, body in server.requests if "Read form" in json.dumps(body.get("messages"))]
        assert len(of_forms) == len(given) * (2 if kind == "greedy" else 1)
        assert all("response_format" in body for body in of_forms)
        code, asked, said = semcal("ask", rows, *how, "--calibration", tmp_path / "cal")
        assert code == 0, said
    accuracy = 8 / 30 if kind == "given" else 20 / 30
    assert report["by_field"]["/n"]["accuracy"] == pytest.approx(accuracy)
    judged = [row["fields"]["/n"]["value"] for row in asked]
    expected = [row["answer"]["n"] if kind == "given" else json.loads(row["greedy"])["n"] for row in asked]
    assert judged == expected
