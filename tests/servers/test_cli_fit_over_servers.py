"""`semcal fit --model openai:...`: what works over a server, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.invoking import semcal, write
from tests.servers import fake_model
from tests.servers.fake_server import FakeServer

LABELLED = [
    {"id": f"q{i}", "question": text, "answers": [next(iter(answers))]}
    for i, (text, answers) in enumerate(fake_model.ANSWERS.items())
]

pytestmark = pytest.mark.filterwarnings("always::semcal.errors.SemcalWarning")  # they are printed


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
        (["--plot", "loss.svg"], "--plot"),
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
