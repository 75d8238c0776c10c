"""Commands that ask a server: rows, records, bad rows, budgets, and resuming after a kill."""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mill_grid as mills
import pytest

from semcal.errors import UsageError
from semcal.models.fakes import FakeLanguageModel
from semcal.models.protocols import SampleRequest, questions_a_block
from semcal.recalibration import Platt
from semcal.servers import client
from semcal.servers.client import ServerClient
from semcal.servers.protocol import ServerProfile
from semcal.servers.sampler import ServerModel
from semcal.servers.settings import Endpoint, ServerSettings
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
    asked = ServerClient(Endpoint("http://127.0.0.1:9/v1"), ServerSettings())
    one = ServerProfile("http://127.0.0.1:9/v1", "small", "llama.cpp", "b1")
    several = replace(one, server="vLLM", max_n=8, choices_differ=True)
    found = [
        questions_a_block(ServerModel(asked, profile), m, ways, 64)
        for profile, m, ways in ((one, 10, 1), (one, 10, 2), (one, 200, 1), (several, 10, 2), (several, 8, 1))
    ]
    assert found == [12, 6, 1, 32, 64]
    assert questions_a_block(FakeLanguageModel({}), 10, 2, 64) == 64


def test_thinking_that_the_token_limit_ends_is_no_answer_and_a_warning(file: Path) -> None:
    with FakeServer(reasons="field") as server:
        code, rows, said = semcal("sample", file, "--limit", 2, "--model", server.name, "--m", 3)
    assert (code, [row["samples"] for row in rows]) == (0, [[None, None, None]] * 2)
    assert re.search("warning: 6 of 6 .*--max-new-tokens", said)


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


def test_answers_whose_end_is_not_told_are_counted_and_their_end_is_null(file: Path) -> None:
    with Shaping(finish_reason=None, index=0) as server:
        code, rows, said = semcal("sample", file, "--limit", 2, "--model", server.name, "--m", 4)
    assert code == 0, said
    assert [row["finished"] for row in rows] == [[None] * 4] * 2
    assert re.search("warning: 8 of 8 answers .* finish_reason, .*--max-new-tokens", said)


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


# What is finished is kept


def test_ctrl_c_at_the_last_reply_is_never_lost(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, parse, last = [], client.tokens_of_reply, -1

    def counted(*given: Any, **more: Any) -> Any:
        answered.append(given)
        if len(answered) == last:
            os.kill(os.getpid(), signal.SIGINT)
        return parse(*given, **more)

    monkeypatch.setattr(client, "tokens_of_reply", counted)
    out = tmp_path / "s.jsonl"
    with FakeServer(log_probs="scaled") as server:
        options = ("sample", file, "--model", server.name, "--m", 2)
        assert semcal(*options)[0] == 0  # with the probe's requests
        answered.clear()
        _, expected, _ = semcal(*options)
        last = len(answered)
        answered.clear()
        code, _, said = semcal(*options, "--out", out)
        assert (code, "interrupted; " in said) == (130, True)
        last = -1
        assert semcal(*options, "--out", out, *(["--overwrite"] if out.exists() else []))[0] == 0
    assert [json.loads(line) for line in out.read_text().splitlines()] == expected


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


# ---- Grids


@pytest.mark.skipif(find_spec("torch") is None, reason="grids need PyTorch")
def test_the_command_asks_a_server_that_it_probes_and_keeps_the_key_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMCAL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "key").write_text("sk-secret\n")
    paths, sizes = mills.write_questions(tmp_path), {"calibration_train": 12, "validation": 9, "test": 11}
    with FakeServer(log_probs="scaled", key="sk-secret", refused=("barn 20?",)) as server:
        content = {
            "models": [{"name": "served", "path": server.name, "server": {"concurrency": 4}}],
            "datasets": [{"name": "barn", "source": paths["barn"], "few_shot": 1, **sizes}],
            "equivalence": "exact",
            "methods": ["Base", "SE", "ATS"],
            "runs": {"count": 1},
            "sampling": {"m": 4, "counts": []},
            "selection": {"measure_alphas": [0.5]},
            "extras": {"figure_files": False},
        }
        (tmp_path / "grid.yaml").write_text(json.dumps(content))
        call = ("run", tmp_path / "grid.yaml", "--out", tmp_path / "run", "--json")
        code, rows, stderr = semcal(*call, "--config", f"server.api_key_file={tmp_path / 'key'}")
        assert code in (0, 1), stderr
        assert rows[0]["complete"]
        assert rows[0]["problems"] == code
        assert stderr.count("served is behind a server, ") == 1
        assert "left out for it: ATS" in stderr
        code, _, stderr = semcal(*call)
        assert code == 1
        assert "SEMCAL_API_KEY" in stderr
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "key"]
    assert not any(b"sk-secret" in path.read_bytes() for path in written)
