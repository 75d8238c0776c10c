"""The commands that run a model, on tiny random checkpoints made here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from invoking import semcal, write

from semcal.models.fakes import FakeEquivalence, FakeLanguageModel
from semcal.workers import WorkerPlan

pytestmark = pytest.mark.filterwarnings("always::semcal.errors.SemcalWarning")

QUESTIONS = [
    {"id": f"q{i}", "question": f"Who built mill number {i}?", "answers": ["Odo Brand"], "level": i}
    for i in range(5)
]


def test_fit_then_sample_and_ask_with_the_recalibrator(model: str, tmp_path: Path) -> None:
    questions = write(tmp_path / "q.jsonl", QUESTIONS)
    examples = write(
        tmp_path / "e.jsonl", [{"id": "e", "question": "Who built it?", "answers": ["Mira Talso"]}]
    )
    out = str(tmp_path / "ts")
    code, (fitted,), _ = semcal("fit", questions, "--model", model, "--few-shot", examples, "--out", out)
    assert (code, fitted["n_questions"]) == (0, 5)
    assert fitted["loss_after"] <= fitted["loss_before"]
    code, rows, _ = semcal("sample", questions, "--model", model, "--m", "2", "--recalibrator", out)
    assert (code, len(rows)) == (0, 5)
    # the same temperature by hand, with the same examples, is the same distribution
    _, again, _ = semcal(
        "sample", questions, "--model", model, "--m", "2", "--few-shot", examples,
        "--temperature", repr(fitted["temperature"]),
    )  # fmt: skip
    assert [row["token_ids"] for row in again] == [row["token_ids"] for row in rows]
    code, (answer,), _ = semcal("ask", "Who built it all?", "--model", model, "--recalibrator", out, "--json")
    assert (code, answer["temperature"]) == (0, fitted["temperature"])
    assert sum(meaning["share"] for meaning in answer["meanings"]) == pytest.approx(1)


def test_a_long_question_is_no_file_name(model: str) -> None:
    code, (answer,), _ = semcal(
        "ask", "why " * 30 + "was the mill of Tarn built?", "--model", model, "--m", "2"
    )
    assert (code, len(answer["samples"])) == (0, 2)


def test_what_is_too_long_for_the_model_is_left_out_of_a_fit(model: str, tmp_path: Path) -> None:
    long = {"id": "long", "question": "Who built it?", "answers": ["mill " * 3000]}
    file = write(tmp_path / "q.jsonl", [*QUESTIONS, long])
    options = ("--model", model, "--out", str(tmp_path / "ts"), "--overwrite")
    code, (fitted,), stderr = semcal("fit", file, *options)
    assert (code, fitted["n_questions"]) == (1, 5)
    assert "(id 'long'): its prompt has" in stderr
    _, (alone,), _ = semcal("fit", write(tmp_path / "a.jsonl", QUESTIONS), *options)
    assert fitted["temperature"] == alone["temperature"]
    five = [{**long, "id": f"long{i}"} for i in range(5)]
    code, _, stderr = semcal("fit", write(tmp_path / "l.jsonl", five), *options)
    assert code == 1
    assert "questions: " in stderr


@pytest.mark.parametrize("method", ["ATS", "Platt"])
def test_a_fit_with_weights_is_sampled_with_and_asked_with(method: str, model: str, tmp_path: Path) -> None:
    file, out = write(tmp_path / "q.jsonl", QUESTIONS), str(tmp_path / "fit")
    code, (fitted,), _ = semcal("fit", file, "--model", model, "--method", method, "--out", out)
    assert (code, fitted["method"], fitted["steps"]) == (0, method, len(fitted["losses"]))
    assert fitted["loss_after"] == pytest.approx(fitted["loss_before"], rel=1e-3)
    assert (tmp_path / "fit" / "model.safetensors").exists()
    options = ("--model", model, "--recalibrator", out, "--m", "3")
    code, rows, _ = semcal("sample", file, *options)
    assert (code, len(rows)) == (0, 5)
    code, (answer,), _ = semcal("ask", QUESTIONS[0]["question"], *options)
    assert (code, answer["method"], answer["temperature"]) == (0, method, None)


def test_kept_features_serve_further_fits_and_no_other_data(model: str, tmp_path: Path) -> None:
    file, out = write(tmp_path / "q.jsonl", QUESTIONS), str(tmp_path / "fit")
    options = ("--model", model, "--out", out, "--overwrite")
    features = tmp_path / "features"
    code, (plain,), _ = semcal("fit", file, *options)
    code, (kept,), _ = semcal("fit", file, *options, "--features", str(features))
    assert (code, kept["temperature"]) == (0, plain["temperature"])
    before = (features / "states.bin").stat()
    code, (smoothed,), _ = semcal(
        "fit", file, *options, "--features", str(features), "--loss", "SS", "--alpha", "0.5"
    )
    assert (code, (features / "states.bin").stat().st_mtime_ns) == (0, before.st_mtime_ns)
    assert smoothed["loss_before"] != plain["loss_before"]
    for method in ("ATS", "Platt"):
        assert semcal("fit", file, *options, "--features", str(features), "--method", method)[0] == 0
    other = write(tmp_path / "other.jsonl", [*QUESTIONS[:4], {**QUESTIONS[4], "answers": ["Mira"]}])
    code, _, stderr = semcal("fit", other, *options, "--features", str(features))
    assert code == 1
    assert str(features) in stderr


def test_a_limit_counts_bad_rows_too(model: str, tmp_path: Path) -> None:
    more = [{**QUESTIONS[0], "id": name, "question": f"Who built {name}?"} for name in "ab"]
    file = write(tmp_path / "q.jsonl", [{"id": "x"}, *QUESTIONS, *more])
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


# ---- The device of the NLI model


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
    one = WorkerPlan(n_workers=1, requested=True)
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
