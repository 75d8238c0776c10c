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

import pytest

from semcal.models.fakes import FakeLanguageModel
from semcal.models.protocols import SampleRequest, questions_a_block
from semcal.servers import client
from semcal.servers.client import ServerClient, _Running
from semcal.servers.protocol import ServerProfile
from semcal.servers.sampler import ServerModel
from semcal.servers.settings import Endpoint, ServerSettings
from tests.cli.invoking import semcal, write
from tests.servers import fake_model
from tests.servers.fake_server import FakeServer

ASKED = [{"id": f"q{i}", "question": text} for i, text in enumerate(fake_model.ANSWERS)]
LABELLED = [
    {
        **row,
        "id": f"{row['id']}-{k}",
        "answers": [next(iter(fake_model.ANSWERS[row["question"]]))] if k % 2 else ["-"],
    }
    for k in range(4)
    for row in ASKED
]

pytestmark = pytest.mark.filterwarnings("always::semcal.errors.SemcalWarning")  # they are printed


def drawn(server: FakeServer) -> list[dict[str, Any]]:
    """The requests that are no probe's: those that ask our questions."""
    return [body for _, body in server.requests if "Question: " in json.dumps(body)]


def test_samples_of_a_server_are_rows_as_of_any_model(tmp_path: Path) -> None:
    with FakeServer(log_probs="scaled") as server:
        code, rows, said = semcal(
            "sample", write(tmp_path / "q.jsonl", ASKED), "--model", server.name, "--m", 6, "--seed", 3
        )
    assert code == 0, said
    assert [row["id"] for row in rows] == [row["id"] for row in ASKED]
    for row in rows:
        assert len(row["samples"]) == len(row["log_likelihoods"]) == 6
        assert set(row["samples"]) <= set(fake_model.ANSWERS[row["question"]]) | {"", *row["samples"]}
        assert row["prompt_token_ids"] is None
    assert re.search(r"sample: \d+ requests .* tokens in, \d+ out", said)


def test_the_whole_pipe_works_on_samples_of_a_server(tmp_path: Path) -> None:
    with FakeServer() as server:
        code, rows, said = semcal(
            "ask", write(tmp_path / "q.jsonl", ASKED), "--model", server.name, "--m", 8, "--json"
        )
        assert code == 0, said
        for row in rows:
            assert row["answer"] in fake_model.ANSWERS[row["question"]]
            assert 0 < row["confidence"] <= 1
        code, (one,), _ = semcal("ask", ASKED[1]["question"], "--model", server.name, "--json")
        assert (code, one["answer"]) == (0, "Ana Brod")


def test_a_calibration_of_a_server_is_applied_to_it_and_another_version_is_warned_about(
    tmp_path: Path,
) -> None:
    out = tmp_path / "calibration"
    file = write(tmp_path / "labelled.jsonl", LABELLED)
    with FakeServer() as server:
        code, (report,), said = semcal("calibrate", file, "--model", server.name, "--out", out, "--m", 4)
        assert code == 0, said
        assert report["n"] == len(LABELLED)
        question = ASKED[0]["question"]
        code, (one,), said = semcal("ask", question, "--model", server.name, "--calibration", out)
        assert (code, one["measure"]) == (0, "Calibrated"), said
    with FakeServer(version="9.9") as other:
        code, rows, said = semcal("ask", question, "--model", other.name, "--calibration", out)
        assert (code, len(rows)) == (0, 1)
        assert "9.9" in said


@pytest.mark.parametrize(
    ("model", "option"),
    [
        ("openai:http://127.0.0.1:9/v1#x", ["--workers", 2]),
    ],
)
def test_options_of_the_other_kind_of_model_are_refused(
    model: str, option: list[object], tmp_path: Path
) -> None:
    code, _, said = semcal("sample", write(tmp_path / "q.jsonl", ASKED), "--model", model, *option)
    assert (code, option[0] in said) == (2, True), said


def test_a_recalibrator_that_is_no_temperature_is_refused_with_why(tmp_path: Path) -> None:
    from semcal.errors import UsageError
    from semcal.recalibration import Platt
    from tests.servers.fake_chat import model_of

    with (
        FakeServer() as server,
        pytest.raises(UsageError, match="Platt"),
    ):
        model_of(server).sample(SampleRequest([], recalibrators=[Platt(9)]))[0]


def test_a_question_that_the_server_refuses_is_a_bad_row_and_never_asked_twice(tmp_path: Path) -> None:
    odd = [*ASKED[:2], {"id": "odd", "question": "x" * 9000}, *ASKED[2:]]
    with FakeServer(log_probs="scaled", longest=8000) as server:
        code, rows, said = semcal(
            "sample", write(tmp_path / "q.jsonl", odd), "--model", server.name, "--m", 2
        )
        assert code == 1
        assert [row["id"] for row in rows] == [row["id"] for row in ASKED]
        assert re.search(r"line 3 \(id 'odd'\): .*too long", said)
        assert "1 bad row was left out" in said
        assert sum("xxx" in json.dumps(body) for body in drawn(server)) <= 2
        code, rows, said = semcal("ask", write(tmp_path / "q2.jsonl", odd), "--model", server.name)
        assert (code, len(rows)) == (1, len(ASKED)), said
        code, rows, said = semcal("ask", "x" * 9000, "--model", server.name)
        assert (code, rows) == (1, [])
        assert "too long" in said


def test_a_budget_ends_the_command_before_it_is_passed_and_keeps_what_is_finished(tmp_path: Path) -> None:
    file, out = write(tmp_path / "q.jsonl", LABELLED * 1), tmp_path / "rows.jsonl"
    with FakeServer() as server:
        name = server.name
        assert semcal("sample", file, "--model", name, "--limit", 1)[0] == 0  # probes
        code, _, said = semcal(
            "sample", file, "--model", name, "--out", out, "--config", "server.max_tokens_total=3000"
        )
        assert code == 1
        assert "server.max_tokens_total 3000" in said
        assert not out.exists()
        spent = re.search(r"(\d+) tokens in, (\d+) out", said)
        assert spent is not None
        assert int(spent[1]) + int(spent[2]) <= 3000


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


def test_thinking_is_counted_and_named_when_the_token_limit_ends_it(tmp_path: Path) -> None:
    file = write(tmp_path / "q.jsonl", ASKED[:2])
    with FakeServer(reasons="field") as server:
        given = ("sample", file, "--model", server.name, "--m", 3)
        code, rows, said = semcal(*given)
        assert (code, [row["samples"] for row in rows]) == (0, [[None, None, None]] * 2)
        assert re.search("warning: 6 of 6 answers were still being thought about.*--max-new-tokens", said)
        assert "6 answers came after thinking, which is left out, 6 of them cut off" in said
        code, rows, said = semcal(*given, "--max-new-tokens", 80)
        assert "6 answers came after thinking, which is left out\n" in said
        assert all(set(row["samples"]) <= set(fake_model.ANSWERS[row["question"]]) for row in rows)
        assert all(row["log_likelihoods"] is None for row in rows)


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
    [
        {"content": None},
        {"content": ""},
        {"content": None, "refusal": "I can't help with that."},
        {"content": [{"type": "refusal", "refusal": "I can't help with that."}]},
        {"content": None, "tool_calls": [{"id": "1", "function": {"name": "search"}}]},
    ],
)
def test_a_reply_of_nothing_but_a_refusal_is_no_answer_and_has_no_probability(
    message: dict[str, Any], tmp_path: Path
) -> None:
    with Shaping(message=message) as server:
        code, (row,), said = semcal(
            "ask", write(tmp_path / "q.jsonl", ASKED[:1]), "--model", server.name, "--m", 4, "--json"
        )
    assert code == 0, said
    expected = {"answer": None, "confidence": None, "abstained": True, "reason": "no answer"}
    assert expected.items() <= row.items()
    assert "4 of 4 samples have no answer" in said


def test_answers_whose_end_is_not_told_are_counted_and_their_end_is_null(tmp_path: Path) -> None:
    file = write(tmp_path / "q.jsonl", ASKED[:2])
    with Shaping(finish_reason=None, index=0) as server:
        code, rows, said = semcal("sample", file, "--model", server.name, "--m", 4)
    assert code == 0, said
    assert [row["finished"] for row in rows] == [[None] * 4] * 2
    assert re.search("warning: 8 of 8 answers came without a known finish_reason, .*--max-new-tokens", said)
    assert "8 answers came without a known finish_reason\n" in said
    code, clustered, said = semcal("cluster", write(tmp_path / "s.jsonl", rows), "--equivalence", "exact")
    assert (code, [row["finished"] for row in clustered]) == (0, [[None] * 4] * 2), said


def test_a_server_that_truncates_is_refused_or_recorded(tmp_path: Path) -> None:
    file = write(tmp_path / "q.jsonl", ASKED[:2])
    with FakeServer(truncates="always", log_probs="masked") as server:
        code, _, said = semcal("sample", file, "--model", server.name)
        assert (code, "server.allow_truncation" in said) == (1, True), said
        code, rows, said = semcal(
            "sample", file, "--model", server.name, "--config", "server.allow_truncation=true"
        )
        assert code == 0, said
        assert all(row["truncated_to"] for row in rows)


def test_raw_log_probabilities_elsewhere_than_at_one_are_null_with_a_remedy(tmp_path: Path) -> None:
    file = write(tmp_path / "q.jsonl", ASKED[:2])
    with FakeServer() as server:
        code, rows, said = semcal("sample", file, "--model", server.name, "--temperature", 0.7)
    assert code == 0
    assert all(row["log_likelihoods"] is None for row in rows)
    assert said.count("--logprobs-mode processed_logprobs") == 1


def test_a_measure_of_likelihoods_is_refused_where_there_are_none(tmp_path: Path) -> None:
    with FakeServer(log_probs=None) as server:
        code, found, said = semcal("ask", "Where is it?", "--model", server.name, "--measure", "L-SC")
        assert (code, found) == (2, [])
        assert re.search("L-SC reads likelihoods: .* gives no log-probabilities, .* E-SC alone", said)
    with FakeServer(server="llama.cpp", halves_lost=True, max_top_logprobs=-1) as server:
        rows = [{"id": str(k), "question": name} for k, name in enumerate(list(fake_model.ANSWERS)[:2])]
        file = write(tmp_path / "questions", rows)  # an answer to the first has a letter of two tokens
        how = ("--model", server.name, "--measure", "L-SC", "--m", 20)
        code, found, said = semcal("ask", file, *how)
        assert code == 1
        assert [row["id"] for row in found] == ["1"]
        assert found[0]["confidence"] is not None
        assert "a draw has no likelihood, which L-SC reads; E-SC needs none" in said


@pytest.mark.skipif(find_spec("torch") is None, reason="semcal fit needs PyTorch")
def test_a_grid_of_temperatures_is_not_paid_for_where_its_measure_cannot_be_had(tmp_path: Path) -> None:
    rows = [{"question": f"Where is lake {k}?", "answers": ["Sel"]} for k in range(6)]
    file = write(tmp_path / "labelled", rows)
    with FakeServer(log_probs=None) as server:
        how = ("--model", server.name, "--method", "TS-grid", "--measure", "L-SC", "--out", tmp_path / "fit")
        code, _, said = semcal("fit", file, *how)
        assert code == 2
        assert "L-SC reads likelihoods: " in said
        assert not any("lake" in json.dumps(body) for _, body in server.requests)


def test_ctrl_c_while_connections_are_closed_ends_the_command_with_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came inside a finalizer, where Python ignores what is raised; what is finished is kept."""
    stop, stopped = _Running.stop, []

    def interrupted(running: _Running, *, wait: bool = True) -> None:
        if not stopped:
            stopped.append(running)
            signal.raise_signal(signal.SIGINT)
        stop(running, wait=wait)

    monkeypatch.setattr(_Running, "stop", interrupted)
    file, out = write(tmp_path / "q.jsonl", ASKED), tmp_path / "s.jsonl"
    with FakeServer(log_probs="scaled") as server:
        options = ("--model", server.name, "--m", 2, "--out", out)
        code, _, said = semcal("sample", file, *options)
        stop(stopped[0])
        assert (code, len(stopped)) == (130, 1)
        assert f"interrupted; {out} was written" in said
        assert len(out.read_text().splitlines()) == len(ASKED)


def test_ctrl_c_at_the_last_reply_is_never_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, out = write(tmp_path / "q.jsonl", ASKED), tmp_path / "s.jsonl"
    answered, parse = [], client.tokens_of_reply

    def counted(*given: Any, **more: Any) -> Any:
        answered.append(given)
        if len(answered) == n_requests:
            os.kill(os.getpid(), signal.SIGINT)
        return parse(*given, **more)

    monkeypatch.setattr(client, "tokens_of_reply", counted)
    with FakeServer(log_probs="scaled") as server:
        n_requests = -1
        options = ("sample", file, "--model", server.name, "--m", 2)
        assert semcal(*options)[0] == 0  # with the probe's requests
        answered.clear()
        _, expected, _ = semcal(*options)
        n_requests, _ = len(answered), answered.clear()
        code, _, said = semcal(*options, "--out", out)
        assert (code, "interrupted; " in said) == (130, True)
        n_requests = -1
        assert semcal(*options, "--out", out, *(["--overwrite"] if out.exists() else []))[0] == 0
        assert [json.loads(line) for line in out.read_text().splitlines()] == expected
