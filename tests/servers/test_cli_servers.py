"""Commands that ask a server: rows, records, bad rows, budgets, and resuming after a kill."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from semcal.errors import UsageError
from semcal.models.protocols import SampleRequest, questions_a_block
from semcal.recalibration import Platt
from tests.cli.invoking import semcal, write
from tests.servers import fake_model
from tests.servers.fake_chat import model_of
from tests.servers.fake_server import FakeServer

ASKED = [{"id": f"q{i}", "question": text} for i, text in enumerate(fake_model.ANSWERS)]

pytestmark = pytest.mark.filterwarnings("always::semcal.errors.SemcalWarning")  # they are printed


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "q.jsonl", ASKED)


def drawn(server: FakeServer) -> list[dict[str, Any]]:
    """The requests that are no probe's: those that ask our questions."""
    return [body for _, body in server.requests if "Question: " in json.dumps(body)]


def test_an_option_of_local_models_is_refused(file: Path) -> None:
    code, _, said = semcal("sample", file, "--model", "openai:http://127.0.0.1:9/v1#x", "--workers", 2)
    assert (code, "--workers" in said) == (2, True), said


def test_a_recalibrator_that_is_no_temperature_is_refused_with_why() -> None:
    with FakeServer() as server, pytest.raises(UsageError, match="Platt"):
        model_of(server).sample(SampleRequest([], recalibrators=[Platt(9)]))[0]


def test_a_question_that_the_server_refuses_is_a_bad_row_and_never_asked_twice(tmp_path: Path) -> None:
    odd = [*ASKED[:2], {"id": "odd", "question": "x" * 9000}, *ASKED[2:]]
    with FakeServer(log_probs="scaled", longest=8000) as server:
        how = ("--model", server.name, "--m", 2)
        code, rows, said = semcal("sample", write(tmp_path / "q.jsonl", odd), *how)
        assert code == 1
        assert [row["id"] for row in rows] == [row["id"] for row in ASKED]
        assert re.search(r"line 3 \(id 'odd'\): .*too long", said)
        assert sum("xxx" in json.dumps(body) for body in drawn(server)) <= 2
        code, rows, said = semcal("ask", "x" * 9000, *how)
        assert (code, rows) == (1, [])
        assert "too long" in said


def test_a_budget_ends_the_command_before_it_is_passed(file: Path, tmp_path: Path) -> None:
    with FakeServer() as server:
        how = ("sample", file, "--model", server.name)
        assert semcal(*how, "--limit", 1)[0] == 0  # probes
        code, _, said = semcal(
            *how, "--out", tmp_path / "rows.jsonl", "--config", "server.max_tokens_total=600"
        )
    assert (code, "server.max_tokens_total 600" in said) == (1, True)
    assert not (tmp_path / "rows.jsonl").exists()
    spent = re.search(r"(\d+) tokens in, (\d+) out", said)
    assert spent is not None
    assert int(spent[1]) + int(spent[2]) <= 600


def test_of_a_server_fewer_questions_are_kept_together_the_more_requests_they_take() -> None:
    with FakeServer() as server:
        one, several = model_of(server), model_of(server, max_n=8)
        counts = [questions_a_block(one, 10, ways, 64) for ways in (1, 2)]
        assert [*counts, questions_a_block(several, 10, 2, 64)] == [12, 6, 32]


def test_thinking_that_the_token_limit_ends_is_no_answer_and_a_warning(file: Path) -> None:
    with FakeServer(reasons="field") as server:
        code, rows, said = semcal("sample", file, "--limit", 2, "--model", server.name, "--m", 3)
    assert (code, [row["samples"] for row in rows]) == (0, [[None, None, None]] * 2)
    assert "6 of 6 samples have no answer" in said
    assert "6 answers followed a thinking part, which is left out, 6 of them without an answer" in said


class Shaping(FakeServer):
    """Changes each choice of its replies."""

    def __init__(self, **change: Any) -> None:
        super().__init__(log_probs=None)
        self.change = change

    def _route(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        found = super()._route(method, path, body)
        for choice in found.get("choices", ()):
            choice |= self.change
        return found


@pytest.mark.parametrize(
    "message",
    [{"content": None}, {"content": [{"type": "refusal", "refusal": "I can't help with that."}]}],
)
def test_a_reply_of_nothing_but_a_refusal_is_no_answer_and_has_no_probability(
    message: dict[str, Any], file: Path
) -> None:
    with Shaping(message=message) as server:
        how = ("--limit", 1, "--model", server.name, "--m", 4, "--json")
        code, (row,), said = semcal("ask", file, *how)
    assert (code, "4 of 4 samples" in said) == (0, True), said
    expected = {"answer": None, "confidence": None, "abstained": True, "reason": "no answer"}
    assert expected.items() <= row.items()


def test_answers_whose_end_is_not_told_have_the_end_null(file: Path) -> None:
    with Shaping(finish_reason=None, index=0) as server:
        code, rows, said = semcal("sample", file, "--limit", 2, "--model", server.name, "--m", 4)
    assert code == 0, said
    assert [row["finished"] for row in rows] == [[None] * 4] * 2


def test_a_server_that_truncates_is_refused(file: Path) -> None:
    with FakeServer(truncates="always", log_probs="masked") as server:
        code, _, said = semcal("sample", file, "--model", server.name)
    assert (code, "server.allow_truncation" in said) == (1, True), said


def test_a_measure_of_likelihoods_is_refused_where_there_are_none_before_anything_is_paid_for(
    file: Path, tmp_path: Path
) -> None:
    labelled = write(tmp_path / "labelled", [{**row, "answers": ["Sel"]} for row in ASKED])
    how = ("--measure", "L-SC", "--m", 20)
    with FakeServer(log_probs=None) as server:
        fit = ("fit", labelled, "--method", "TS-grid", "--out", tmp_path / "fit")
        for command in (("ask", file), *([fit] if find_spec("torch") else [])):
            code, found, said = semcal(*command, "--model", server.name, *how)
            assert (code, found) == (2, [])
            assert re.search(r"error: .*L-SC", said)
        assert not drawn(server)
    with FakeServer(server="llama.cpp", halves_lost=True, max_top_logprobs=-1) as server:
        code, found, said = semcal("ask", file, "--limit", 2, "--model", server.name, *how)
    assert code == 1  # an answer to the first has a letter of two tokens
    assert [row["id"] for row in found] == ["q1"]
    assert found[0]["confidence"] is not None
    assert re.search(r"line 1 \(id .q0.\): .*L-SC", said)


# ---- Fits

LABELLED = [
    {"id": f"q{i}", "question": text, "answers": [next(iter(answers))]}
    for i, (text, answers) in enumerate(fake_model.ANSWERS.items())
]


def test_ts_grid_needs_samples_alone_and_ends_at_the_hottest_that_a_server_takes(tmp_path: Path) -> None:
    file, out = write(tmp_path / "q.jsonl", LABELLED), tmp_path / "grid"
    with FakeServer(log_probs="scaled", max_temperature=2.0) as server:
        arguments = ["fit", file, "--model", server.name, "--method", "TS-grid", "--m", 2, "--out", out]
        code, _, said = semcal(*arguments, "--dry-run")
        assert (code, "at 13 temperatures" in said) == (0, True), said
        code, (result,), said = semcal(*arguments)
    assert (code, "T = 2 at most" in said) == (0, True), said
    assert all(0.25 <= row["temperature"] <= 2 for row in result["chosen"].values())
    written = json.loads((out / "recalibrator.json").read_text(encoding="utf-8"))
    assert (written["method"], written["provenance"]["n_questions"]) == ("TS-grid", 6)


@pytest.mark.parametrize(
    ("further", "named"),
    [
        (["--method", "ATS"], "ATS"),
        (["--solver", "sgd"], "--solver sgd"),
        (["--features", "states"], "--features"),
        ([], "server.tokenizer=DIR"),
    ],
)
def test_what_a_server_cannot_be_fitted_by_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, further: list[str], named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with FakeServer() as server:
        file = write(tmp_path / "q.jsonl", LABELLED)
        code, _, said = semcal("fit", file, "--model", server.name, "--out", "out", *further)
        assert not [body for _, body in server.requests if "Question: " in json.dumps(body)]
    assert (code, named in said) == (2, True), said
    assert not (tmp_path / "out").exists()
