"""The commands that run a model, on tiny random checkpoints made here, and the calls of the NLI model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from invoking import semcal, write

from semcal.cli.console import nli_cost
from semcal.models.fakes import FakeEquivalence, FakeLanguageModel
from semcal.recalibration import Provenance, Temperature, TemperatureScaling, save_pretrained
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


def test_a_question_of_a_file_that_is_too_long_is_not_asked(model: str, tmp_path: Path) -> None:
    long = {"id": "long", "question": "Who built it?" * 3000}
    file = write(tmp_path / "q.jsonl", [QUESTIONS[0], long, QUESTIONS[1]])
    code, rows, stderr = semcal("ask", file, "--model", model, "--m", "2", "--compare")
    assert (code, [row["id"] for row in rows]) == (1, ["q0", "q0", "q1", "q1"])
    assert stderr.count("line 2 (id 'long'): its prompt has") == 1
    code, rows, stderr = semcal("ask", long["question"], "--model", model)
    assert (code, rows) == (1, [])
    assert "rows" not in stderr


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
    code, _, stderr = semcal("fit", file, *options, "--dry-run", "--features", str(features))
    assert code == 0
    assert f"keep {before.st_size / 1e6:.1f} MB" in stderr


def test_a_sweep_keeps_a_choice_for_every_measure_and_the_table_of_all(model: str, tmp_path: Path) -> None:
    file = write(tmp_path / "q.jsonl", QUESTIONS)
    judging = write(
        tmp_path / "v.jsonl",
        [{"id": f"v{i}", "question": f"Who built tower number {i}?", "answers": ["Mira"]} for i in range(2)],
    )
    out = tmp_path / "fit"
    options = ("--model", model, "--method", "Platt", "--out", str(out), "--m", "3", "--max-new-tokens", "3")
    code, (result,), _ = semcal("fit", file, *options, "--select", "--validation", judging)
    assert (code, set(result["chosen"])) == (0, {"E-SC", "L-SC", "ML-SC", "B-SC", "T-SC", "IC-SC", "G-SC"})
    table = [json.loads(line) for line in (out / "selection.jsonl").read_text().splitlines()]
    assert len(table) == 10 * (5 + 2 * 3)  # ten candidates
    for measure, row in result["chosen"].items():
        assert row["brier"] == min(other["brier"] for other in table if other["measure"] == measure)
        assert (out / measure / "recalibrator.json").exists()
    code, rows, _ = semcal("sample", file, "--model", model, "--m", "2", "--recalibrator", str(out / "L-SC"))
    assert (code, len(rows)) == (0, 5)
    assert semcal("fit", file, "--model", model, "--out", out, "--overwrite")[0] == 0
    assert [path.name for path in out.iterdir()] == ["recalibrator.json"]  # nothing of the older choice


def test_one_missing_folder_is_made(model: str, tmp_path: Path) -> None:
    file = write(tmp_path / "q.jsonl", QUESTIONS)
    assert semcal("fit", file, "--model", model, "--out", str(tmp_path / "fits" / "ts"))[0] == 0
    assert (tmp_path / "fits" / "ts" / "recalibrator.json").is_file()


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


def test_what_is_the_usual_temperature_is_not_compared_with_itself(model: str) -> None:
    code, rows, stderr = semcal("ask", "Who?", "--model", model, "--temperature", "0.5", "--compare")
    assert (code, [row["temperature"] for row in rows]) == (0, [0.5])
    assert "--compare has no effect" in stderr


def test_a_recalibrator_may_have_a_hub_id(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semcal.hub_names.unreachable", lambda: "it rains")
    options = ("--model", model, "--m", "5", "--recalibrator", "me/ts")
    code, _, stderr = semcal("ask", "Who?", *options)
    assert (code, "recalibrator 'me/ts': " in stderr, "it rains" in stderr) == (2, True, True)
    provenance = Provenance("tiny", "another", {}, "p0", "made-up", "d0", 4)
    fitted = TemperatureScaling().fit([[1.0, 0.0]] * 4, [0, 0, 1, 0])
    save_pretrained(fitted, tmp_path / "kept", provenance=provenance)
    monkeypatch.setattr("semcal.hub_names.is_cached", lambda *_, **__: True)
    monkeypatch.setattr("semcal.recalibration.files.snapshot", lambda *_, **__: tmp_path / "kept")
    code, (answer,), _ = semcal("ask", "Who?", *options, "--force", "--json")
    assert (code, answer["temperature"]) == (0, Temperature(fitted.temperature_).temperature)


def test_ask_without_a_model_says_that_the_embedded_one_answers(model: str) -> None:
    said = "ask: the embedded model, which knows a fictional world, answers; pass your model with --model\n"
    options = ("What is the capital of France?", "--m", "2")
    assert said in semcal("ask", *options)[2]
    for more in (("--model", "atlas"), ("--model", model), ("-q",)):
        assert said not in semcal("ask", *options, *more)[2]


# ---- The NLI model: its device, and the number of its calls


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
