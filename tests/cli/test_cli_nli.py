"""Where the NLI model runs, and what the commands say about its calls."""

from __future__ import annotations

from typing import Any

import pytest
from invoking import semcal, write

from semcal.cli.console import nli_cost
from semcal.models.fakes import FakeEquivalence, FakeLanguageModel
from semcal.workers import WorkerPlan

SAMPLES = ["a boat", "the ship", "a ship", "four", "five", "boat"]  # ship, boat, 4 and 5
ROWS = [{"id": f"q{i}", "question": "What is it?", "samples": SAMPLES} for i in range(3)]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stand-ins for both models; on which device each was asked for."""
    devices: dict[str, Any] = {}

    def language_model(name: str, *, device: str | None, **options: Any) -> FakeLanguageModel:
        devices["model"] = device
        return FakeLanguageModel({"What is it?": {"ship": 0.5, "boat": 0.5}})

    def equivalence(name: str | None, *, device: str | None, **options: Any) -> FakeEquivalence:
        devices["nli"] = device
        return FakeEquivalence([{"ship", "boat"}])

    monkeypatch.setattr("semcal.models.load.load_model", language_model)
    monkeypatch.setattr("semcal.inputs.load_equivalence", equivalence)
    one = WorkerPlan(n_workers=1, n_threads=1, reason="it is a test", requested=True)
    monkeypatch.setattr("semcal.cli.options.choose_workers", lambda *_, **__: one)
    return devices


def run(*arguments: Any) -> tuple[list[dict[str, Any]], str]:
    code, rows, stderr = semcal(*arguments)
    assert code == 0, stderr
    return rows, stderr


@pytest.mark.parametrize(
    ("options", "devices"),
    [
        ((), {"model": None, "nli": None}),
        (("--device", "cuda:0"), {"model": "cuda:0", "nli": "cuda:0"}),
        (("--device", "cuda:0", "--config", "model.nli_device=cuda:1"), {"model": "cuda:0", "nli": "cuda:1"}),
        (("--config", "model.nli_device=cpu"), {"model": None, "nli": "cpu"}),
    ],
)
def test_the_nli_model_runs_beside_the_language_model_unless_told_otherwise(opened, options, devices):
    run("ask", "What is it?", "--model", "fake", "--equivalence", "fake", "--json", *options)
    assert opened == devices


def test_cluster_says_how_many_calls_it_made_and_what_all_pairs_would_be(opened, tmp_path):
    rows, said = run("cluster", write(tmp_path / "rows.jsonl", ROWS), "--equivalence", "fake")
    assert rows[0]["clusters"] == [[0, 1, 2, 5], [3], [4]]
    # one question three times: boat with ship both ways, ship and boat with 4 and 5 one way, never 4 with 5
    assert "cluster: 6 NLI calls of fake, 15.0 times fewer than for all 90 ordered pairs" in said


def test_ask_says_how_many_calls_it_made(opened, tmp_path):
    questions = [{"id": f"q{i}", "question": "What is it?"} for i in range(4)]
    _, said = run(
        "ask", write(tmp_path / "q.jsonl", questions), "--model", "fake", "--equivalence", "fake", "--m", "5"
    )
    assert "ask: 2 NLI calls of fake, 40.0 times fewer than for all 80 ordered pairs" in said


def test_no_call_at_all_is_not_compared():
    assert nli_cost("m", {"calls": 0, "pairs": 90}) == "0 NLI calls of m"
