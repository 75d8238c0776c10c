"""What somebody who tries the commands for the first time runs into."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_models
from invoking import semcal, write

from semcal.recalibration import Provenance, Temperature, TemperatureScaling, save_pretrained

pytestmark = pytest.mark.filterwarnings("always::semcal.errors.SemcalWarning")

QUESTIONS = [
    {"id": f"q{i}", "question": f"Who built mill number {i}?", "answers": ["Odo Brand"]} for i in range(7)
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_models.save(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize(
    ("command", "option"),
    [("fit", "--out"), ("fit", "--features"), ("sample", "--out"), ("demo", "--out")],
)
def test_a_misspelt_folder_is_not_made(
    command: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = {"fit": ("fit", "q.jsonl", "--model", "m"), "sample": ("sample", "q.jsonl", "--model", "m")}
    words |= {"demo": ("demo",)}
    extra = ("--out", "ts") if option == "--features" else ()
    code, _, stderr = semcal(*words[command], option, "no/such/place", *extra)
    assert code == 2
    assert "neither no/such nor no exists" in " ".join(stderr.split()).replace("│ ", "")
    assert list(tmp_path.iterdir()) == []


def test_one_missing_folder_is_made(model: str, tmp_path: Path) -> None:
    file = write(tmp_path / "q.jsonl", QUESTIONS)
    assert semcal("fit", file, "--model", model, "--out", str(tmp_path / "fits" / "ts"))[0] == 0
    assert (tmp_path / "fits" / "ts" / "calibration.json").is_file()


def test_a_limit_counts_bad_rows_too(model: str, tmp_path: Path) -> None:
    file = write(tmp_path / "q.jsonl", [{"id": "x"}, *QUESTIONS])
    options = ("--model", model, "--limit", "3")
    code, rows, stderr = semcal("sample", file, *options, "--m", "1")
    assert (code, [row["id"] for row in rows]) == (1, ["q0", "q1"])
    assert "1 bad row was left out" in stderr
    fit = ("fit", file, "--model", model, "--limit", "7", "--out", str(tmp_path / "ts"))
    code, (fitted,), _ = semcal(*fit)
    assert (code, fitted["n_questions"]) == (1, 6)
    code, _, stderr = semcal("sample", file, *options, "--m", "1", "--dry-run")
    assert "2 questions: 2 answers" in stderr
    rows = [{"confidence": 2}, {"confidence": 0.5, "correct": True}, {"confidence": 0.5, "correct": False}]
    code, (found,), _ = semcal("metrics", write(tmp_path / "m.jsonl", rows), "--limit", "2")
    assert (code, found["n"]) == (1, 1)


def test_what_is_the_usual_temperature_is_not_compared_with_itself(model: str) -> None:
    code, rows, stderr = semcal("ask", "Who?", "--model", model, "--temperature", "0.5", "--compare")
    assert (code, [row["temperature"] for row in rows]) == (0, [0.5])
    assert "nothing to compare it with" in stderr


def test_a_recalibrator_may_have_a_hub_id(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semcal.hub_names.unreachable", lambda: "it rains")
    options = ("--model", model, "--m", "5", "--recalibrator", "me/ts")
    code, _, stderr = semcal("ask", "Who?", *options)
    assert (code, "no recalibrator 'me/ts'" in stderr, "it rains" in stderr) == (2, True, True)
    provenance = Provenance("tiny", "another", {}, "p0", "made-up", "d0", 4)
    fitted = TemperatureScaling().fit([[1.0, 0.0]] * 4, [0, 0, 1, 0])
    save_pretrained(fitted, tmp_path / "kept", provenance=provenance)
    monkeypatch.setattr("semcal.hub_names.is_cached", lambda *_, **__: True)
    monkeypatch.setattr("semcal.recalibration.saving.snapshot", lambda *_, **__: tmp_path / "kept")
    code, (answer,), _ = semcal("ask", "Who?", *options, "--force", "--json")
    assert (code, answer["temperature"]) == (0, Temperature(fitted.temperature_).temperature)


def test_ask_without_a_model_says_that_the_embedded_one_answers(model: str) -> None:
    said = "ask: the embedded model of an invented world answers; name yours with --model\n"
    options = ("What is the capital of France?", "--m", "2")
    assert semcal("ask", *options)[2].startswith(said)
    for more in (("--model", "atlas"), ("--model", model), ("-q",)):
        assert said not in semcal("ask", *options, *more)[2]
