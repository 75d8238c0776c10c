"""Replies are what /openapi.json says; schemathesis, where it is on the PATH, attacks the server by it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from semcal.reply_log import ReplyLog
from semcal.serve import replies
from semcal.serve.requests import CHAT, CHECK, LABELS
from tests.serve.serving import SANG, WROTE, running, uq_of
from tests.serve.test_serve_command import process

#: Cases of each of the three long runs at least.
CASES = 1700
KEY = "a-key-of-this-server"
TOOL = shutil.which("schemathesis")


def test_replies_hold_what_the_schema_says(tmp_path: Path) -> None:
    log = ReplyLog(tmp_path / "log.sqlite")
    with running(log=log, audit=1.0, abstain="error", uncovered="answer") as server:
        for body in ({}, {"semcal": {"samples": True, "meanings": 1}}, {"temperature": 0.3}):
            reply = server.chat(WROTE, **body)
            replies.Completion.model_validate_json(reply.text)
        for content in (server.chat(SANG).text, server.chat(" ").text, server.get("/no").text):
            replies.ErrorReply.model_validate_json(content)
        label = {"id": reply.json()["id"], "correct": True}
        for path, model in (
            ("/v1/models", replies.ReplyList[replies.ServedModel]),
            ("/health", replies.Health),
            ("/ready", replies.Readiness),
            ("/version", replies.Versions),
        ):
            model.model_validate_json(server.get(path).text)
        replies.ReplyList[replies.TakenLabel].model_validate_json(server.post(LABELS, [label, label]).text)
    with running(uq_of(answer_kind="given")) as server:
        checked = server.post(CHECK, {"question": WROTE, "answer": "Ana Velis"})
        replies.CheckedAnswer.model_validate_json(checked.text)


def test_the_schema_names_the_models_risks_and_values_that_are_taken() -> None:
    bodies = {}
    for uncovered in ("refuse", "answer"):
        with running(uncovered=uncovered) as server:
            assert server.get("/openapi.json").json()["paths"][CHAT]["post"]["operationId"] == "chat"
            schemas = server.get("/openapi.json").json()["components"]["schemas"]
            bodies[uncovered] = schemas["ChatRequest"]["properties"]
            assert schemas["Options"]["properties"]["risk"]["enum"] == [0.1, None]
    assert bodies["refuse"]["model"]["enum"] == ["fake", "fake@calibration"]
    assert (bodies["refuse"]["top_p"]["enum"], "enum" in bodies["answer"]["top_p"]) == ([1, None], False)


def cases(url: str, n: int, folder: Path, *options: str) -> int:
    """Attack a server with up to n cases a path and phase; how many there were. None may break a rule.

    Left out is that each body which the schema allows is answered: what a calibration covers it cannot say.
    """
    if TOOL is None:
        pytest.skip("schemathesis is not installed; pip install schemathesis==4.32.5")
    command = [TOOL, "run", f"{url}/openapi.json", "--max-examples", str(n), "--seed", "1", "--no-color"]
    command += ["--exclude-checks", "positive_data_acceptance", "--generation-database", "none"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, cwd=folder, check=False)
    (count,) = re.findall(r"(\d+) generated", done.stdout) or [0]
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return int(count)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_some_hundred_cases_of_schemathesis_break_no_rule(tmp_path: Path) -> None:
    phases = ("--phases", "examples,fuzzing")
    with running(log=ReplyLog(tmp_path / "log.sqlite"), uncovered="answer") as server:
        assert 100 <= cases(server.url, 30, tmp_path, *phases) <= 500


@pytest.mark.slow
@pytest.mark.serve
@pytest.mark.parametrize("uncovered", ["refuse", "answer"])
def test_thousands_of_cases_on_the_embedded_model_break_no_rule(uncovered: str, tmp_path: Path) -> None:
    log = tmp_path / "log.sqlite"
    with process(tmp_path, "--log", log, "--audit", 0.05, "--uncovered", uncovered) as server:
        count = cases(server.url.removesuffix("/v1"), 300, tmp_path)
        assert server.stop() == 0
    said = [json.loads(line) for line in server.said.read_text().splitlines() if line.startswith("{")]
    assert [line for line in said if line["event"] == "error"] == []
    if uncovered == "refuse":
        assert answered(said) == len(list(ReplyLog(log).probabilities()))
    print(f"{count} cases, {answered(said)} of them answered")  # noqa: T201
    assert count >= CASES


def answered(said: list[dict[str, Any]]) -> int:
    return sum(line["event"] == "request" and line["path"] == CHAT and line["status"] == 200 for line in said)


@pytest.mark.slow
@pytest.mark.serve
def test_thousands_of_cases_on_checks_of_given_answers_break_no_rule(tmp_path: Path) -> None:
    log = ReplyLog(tmp_path / "log.sqlite")
    with running(uq_of(answer_kind="given"), log=log, uncovered="answer") as server:
        count = cases(server.url, 300, tmp_path)
    print(f"{count} cases")  # noqa: T201
    assert count >= CASES
