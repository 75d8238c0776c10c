"""A judge behind a server: rules first, one verdict an answer, the cache, and the commands that take it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import semcal
from semcal.errors import UsageError
from semcal.grading.grade import as_grader
from semcal.grading.judge import JudgeGrader, load_judge
from semcal.grading.rules import Grade
from semcal.models.equivalence import ExactMatch, FakeEquivalence
from tests.cli.invoking import semcal as command
from tests.cli.invoking import write
from tests.servers.fake_server import Refused
from tests.servers.verdict_server import VerdictServer

TABLE = {("the red planet", "- Mars"): "correct", ("Jupiter", "- Mars"): "incorrect"}
GRADES = {
    "Mars.": Grade(True, "equality"),
    "the red planet": Grade(True, "judge"),
    "Jupiter": Grade(False, "none"),
    "": Grade(False, "empty"),
}
ROWS = [
    {"id": str(number), "question": "Which planet?", "answers": ["Mars"], "prediction": prediction}
    for number, prediction in enumerate(GRADES, start=1)
]


@pytest.fixture
def server(known: None) -> Iterator[VerdictServer]:
    """A server whose profile is known."""
    with VerdictServer(TABLE) as running:
        yield running


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write(tmp_path / "rows", ROWS)


# ---- The grader --------------------------------------------------------------------------------------------


def test_the_judge_is_asked_only_where_the_rules_say_wrong(server):
    grader = load_judge(f"judge:{server.name}")
    grades = [grader.grade(row["question"], [row["prediction"]], row["answers"]) for row in ROWS]
    assert grades == list(GRADES.values())
    assert server.asked == [("the red planet", "- Mars"), ("Jupiter", "- Mars")]


def test_one_right_prediction_is_enough_and_references_are_shown_together():
    judge = FakeEquivalence(entailments=[("red one", "- Mars\n- planet Mars"), ("", "- ")])
    references = ["Mars", " planet\n Mars ", ""]
    assert JudgeGrader(judge).grade("Which?", ["Venus", "red\none"], references) == Grade(True, "judge")
    assert JudgeGrader(judge).grade("Which?", ["Venus"], references) == Grade(False, "none")
    assert judge.asked[:2] == [(("Which?", one, "- Mars\n- planet Mars")) for one in ("Venus", "red one")]
    assert JudgeGrader(judge).grade("Who?", ["Ada"], [" "]) == Grade(False, "none")
    assert JudgeGrader(judge).grade("Who?", [" "], ["Ada"]) == Grade(False, "empty")


def test_a_name_without_a_server_is_refused():
    with pytest.raises(UsageError, match="'judge:atlas'"):
        as_grader("judge:atlas", ExactMatch())


# ---- Commands and Python -----------------------------------------------------------------------------------


def test_grade_asks_the_judge_once_keeps_its_judgements_and_says_so_in_the_rule(server, rows, tmp_path):
    for _ in range(2):
        how = ("--grader", f"judge:{server.name}", "--config", f"cluster.cache={tmp_path / 'verdicts'}")
        code, found, _ = command("grade", rows, *how)
        assert code == 0
        assert [Grade(row["correct"], row["rule"]) for row in found] == list(GRADES.values())
    assert len(server.asked) == 2
    server.table.clear()
    entails = semcal.load_equivalence(server.name, cache=tmp_path / "verdicts").entails
    assert entails([("Which planet?", "the red planet", "- Mars")]) == [False]
    assert len(server.asked) == 3  # which is another task


def test_a_row_on_which_the_judge_fails_is_bad_and_the_others_are_graded_once(server, rows):
    server.odd[("Jupiter", "- Mars")] = Refused(400, "too long")
    code, found, said = command("grade", rows, "--grader", f"judge:{server.name}")
    assert (code, [row["id"] for row in found]) == (1, ["1", "2", "4"])
    assert "line 3 (id '3')" in said
    assert "too long" in said
    answered = [request for request in server.requests if "Jupiter" not in json.dumps(request)]
    assert [answered.count(request) for request in answered] == [1]


@pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")
def test_score_and_calibrate_take_the_judge(server, tmp_path):
    texts = ("Mars", "the red planet", "Jupiter")
    rows = [
        {"id": str(k), "question": f"Which planet {k}?", "answers": ["Mars"], "samples": [texts[k % 3]] * 4}
        for k in range(60)
    ]
    judge = f"judge:{server.name}"
    graded = semcal.score(rows, grader=judge)
    assert [row["correct"]["E-SC"] for row in graded.rows] == [k % 3 < 2 for k in range(60)]
    assert len(server.asked) == 40
    command("calibrate", write(tmp_path / "rows", rows), "--out", tmp_path / "cal", "--grader", judge)
    for one in (graded.calibrate(), semcal.Calibration.from_pretrained(tmp_path / "cal")):
        assert one.report.base["accuracy"] == pytest.approx(2 / 3)
        assert one.grader == judge
        assert one.grader_revision.startswith(f"{server.url}; vLLM 0.0.1; judgement ")


@pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")
def test_calibrate_says_what_model_equivalence_and_judge_spend(server, tmp_path):
    rows = [{"question": f"Which lake {k}?", "answers": ["Sel"]} for k in range(5)]
    servers = ("--model", server.name, "--equivalence", server.name, "--grader", f"judge:{server.name}")
    file = write(tmp_path / "rows", rows)
    code, _, said = command("calibrate", file, *servers, "--m", 2, "--out", tmp_path / "cal")
    assert code == 0
    for role in ("model", "equivalence", "grader"):
        assert re.search(rf"^calibrate: {role}: \d+ requests", said, re.MULTILINE)


@pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")
def test_a_calibration_keeps_the_servers_address(server):
    rows = [
        {"id": str(k), "question": f"Which {k}?", "answers": ["Mars"], "samples": ["Mars", "Zorn"]}
        for k in range(60)
    ]
    found = semcal.score(rows, server.name).calibrate()
    assert found.equivalence == server.name
    asked = len(server.asked)
    assert semcal.score(rows[:1], calibration=found)[0].text == "Mars"
    assert len(server.asked) > asked


def test_the_key_of_the_model_is_not_sent_to_the_judge_of_another_host(server, tmp_path, monkeypatch):
    file = write(tmp_path / "rows", [{"question": "Which planet?", "answers": ["Mars"]}])
    asked = ("--model", "openai:http://127.0.0.1:1/v1", "--grader", f"judge:{server.name}", "--dry-run")
    monkeypatch.setenv("SEMCAL_API_KEY", "sk-of-the-model")
    code, _, said = command("calibrate", file, *asked, "--out", tmp_path / "cal")
    assert code == 2
    assert f"would be sent to http://127.0.0.1:1 and {server.host}" in said
    assert "sk-of-the-model" not in said
    monkeypatch.setenv("SEMCAL_JUDGE_API_KEY", "")
    code, _, said = command(
        "calibrate", file, *asked, "--config", "server.retries=0", "--out", tmp_path / "cal"
    )
    assert "cannot be reached" in said
