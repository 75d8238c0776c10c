"""The commands that run a model, on tiny random checkpoints made here."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from pathlib import Path

import pytest
import tiny_models
from invoking import semcal, write
from running import finish, start

from semcal.recalibration import Provenance, Temperature, TemperatureScaling, save_pretrained

pytestmark = pytest.mark.filterwarnings("always::semcal.errors.SemcalWarning")

QUESTIONS = [
    {"id": f"q{i}", "question": f"Who built mill number {i}?", "answers": ["Odo Brand"], "level": i}
    for i in range(5)
]


def test_sample_writes_what_the_file_contract_says(model: str, tmp_path: Path) -> None:
    code, rows, _ = semcal("sample", write(tmp_path / "q.jsonl", QUESTIONS), "--model", model, "--m", "3")
    assert (code, [row["id"] for row in rows]) == (0, ["q0", "q1", "q2", "q3", "q4"])
    row = rows[0]
    assert (row["level"], row["answers"]) == (0, ["Odo Brand"])
    assert len(row["samples"]) == len(row["log_likelihoods"]) == len(row["likelihood"]) == 3
    for ids, log_probs, kind, u in zip(
        row["token_ids"], row["token_log_probs"], row["likelihood"], row["log_likelihoods"]
    ):
        assert len(ids) == len(log_probs) <= 10
        if kind == "sampled":
            assert u == pytest.approx(math.fsum(log_probs) / len(log_probs), abs=1e-6)


def test_sampling_does_not_depend_on_order_or_company(model: str, tmp_path: Path) -> None:
    options = ("--model", model, "--m", "2", "--seed", "4")
    _, rows, _ = semcal("sample", write(tmp_path / "a.jsonl", QUESTIONS), *options)
    _, alone, _ = semcal("sample", write(tmp_path / "b.jsonl", QUESTIONS[3:4]), *options)
    _, turned, _ = semcal("sample", write(tmp_path / "c.jsonl", QUESTIONS[::-1]), *options)
    assert alone[0]["token_ids"] == rows[3]["token_ids"]
    assert [row["token_ids"] for row in turned[::-1]] == [row["token_ids"] for row in rows]


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


def test_ask_compares_and_abstains(model: str) -> None:
    code, rows, _ = semcal(
        "ask", "Who?", "--model", model, "--temperature", "2", "--compare", "--abstain-below", "1"
    )
    assert (code, [row["temperature"] for row in rows]) == (0, [0.5, 2.0])
    assert all(row["abstained"] == (row["confidence"] < 1) for row in rows)
    assert {row["threshold"] for row in rows} == {1.0}


def test_a_recalibrator_of_another_model_is_refused_unless_forced(model: str, tmp_path: Path) -> None:
    other = str(tiny_models.save(tmp_path / "other", seed=1))
    questions = write(tmp_path / "q.jsonl", QUESTIONS)
    semcal("fit", questions, "--model", other, "--out", str(tmp_path / "ts"))
    options = ("sample", questions, "--model", model, "--m", "1", "--recalibrator", str(tmp_path / "ts"))
    code, rows, stderr = semcal(*options)
    assert (code, rows) == (2, [])
    assert "recalibrator: fitted on other" in stderr
    assert semcal(*options, "--force")[0] == 0


def test_bad_questions_are_reported_and_the_rest_is_sampled(model: str, tmp_path: Path) -> None:
    questions = write(tmp_path / "q.jsonl", [{"id": "x"}, QUESTIONS[0], {**QUESTIONS[0]}, QUESTIONS[1]])
    code, rows, stderr = semcal("sample", questions, "--model", model, "--m", "1")
    assert (code, [row["id"] for row in rows]) == (1, ["q0", "q1"])
    assert "line 1 (id 'x'): " in stderr
    assert "line 3 (id 'q0'): " in stderr


def test_a_plan_runs_no_model(tmp_path: Path) -> None:
    questions = write(tmp_path / "q.jsonl", QUESTIONS)
    code, rows, stderr = semcal("sample", questions, "--model", "no-such-model", "--dry-run")
    assert (code, rows) == (0, [])
    assert "50 answers" in stderr


@pytest.fixture(scope="module")
def many(model: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[str, ...], bytes]:
    """A command that samples for some seconds, and what it prints."""
    folder = tmp_path_factory.mktemp("many")
    rows = [{"id": f"q{i}", "question": f"Who built mill number {i}?"} for i in range(320)]
    command = ("sample", write(folder / "q.jsonl", rows), "--model", model, "--m", "8", "-q")
    assert finish(start(*command, said=folder / "said")) == 0
    said = (folder / "said").read_bytes().splitlines(keepends=True)
    return command, b"".join(line for line in said if line.startswith(b"{"))  # without what is warned of


@pytest.mark.parametrize("stopped", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sampling_goes_on_where_it_was(
    stopped: signal.Signals, model: str, many: tuple[tuple[str, ...], bytes], tmp_path: Path
) -> None:
    command, whole = many
    out, said = tmp_path / "out.jsonl", tmp_path / "said"
    running = start(*command, "--out", out, said=said)
    kept = tmp_path / "out.jsonl.unfinished"
    while running.is_alive() and len(list(kept.glob("blocks/*/*.jsonl"))) < 2:
        time.sleep(0.01)
    assert running.pid is not None
    os.kill(running.pid, stopped)
    ended, stderr = finish(running), said.read_text()
    word, code = ("interrupted", 130) if stopped == signal.SIGINT else ("terminated", 143)
    assert ended == code
    assert stderr.startswith(f"{word}; ")
    assert f" {kept}; " in stderr
    assert not list(tmp_path.rglob(".*"))
    assert not out.exists()
    finished = {path.name: path.stat().st_mtime_ns for path in kept.rglob("*.jsonl")}
    assert len(finished) >= 2
    code, _, stderr = semcal("sample", command[1], "--model", model, "--m", "3", "--out", str(out))
    assert code == 2
    assert "unfinished work of a call with other options" in stderr
    assert finish(start(*command, "--out", out, said=said)) == 0
    assert not kept.exists()
    assert out.read_bytes() == whole


def test_a_passage_in_the_same_file_changes_nothing_for_the_others(model: str, tmp_path: Path) -> None:
    options = ("--model", model, "--m", "3")
    _, alone, _ = semcal("sample", write(tmp_path / "a.jsonl", QUESTIONS[:2]), *options)
    mixed = [{**QUESTIONS[2], "context": "Odo Brand built it."}, *QUESTIONS[:2]]
    _, rows, _ = semcal("sample", write(tmp_path / "b.jsonl", mixed), *options)
    assert [row["id"] for row in rows] == ["q2", "q0", "q1"]
    assert [row["token_ids"] for row in rows[1:]] == [row["token_ids"] for row in alone]


def test_a_long_question_is_no_file_name_and_a_folder_is_no_output(model: str, tmp_path: Path) -> None:
    code, (answer,), _ = semcal(
        "ask", "why " * 30 + "was the mill of Tarn built?", "--model", model, "--m", "2"
    )
    assert (code, len(answer["samples"])) == (0, 2)
    questions = write(tmp_path / "q.jsonl", QUESTIONS[:1])
    code, _, stderr = semcal("sample", questions, "--model", model, "--m", "1", "--out", str(tmp_path))
    assert (code, f"error: --out {tmp_path} is a folder" in stderr) == (2, True)


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
    code, (fitted,), stderr = semcal("fit", file, "--model", model, "--method", method, "--out", out)
    assert (code, fitted["method"], fitted["steps"]) == (0, method, len(fitted["losses"]))
    assert f"{method} hardly differs from the model" in stderr
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


@pytest.mark.parametrize("method", ["TS", "Platt"])
def test_a_sweep_keeps_a_choice_for_every_measure_and_the_table_of_all(
    method: str, model: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "q.jsonl", QUESTIONS)
    judging = write(
        tmp_path / "v.jsonl",
        [{"id": f"v{i}", "question": f"Who built tower number {i}?", "answers": ["Mira"]} for i in range(2)],
    )
    out = tmp_path / "fit"
    options = ("--model", model, "--method", method, "--out", str(out), "--m", "3", "--max-new-tokens", "3")
    code, (result,), _ = semcal("fit", file, *options, "--select", "--validation", judging)
    assert (code, set(result["chosen"])) == (0, {"E-SC", "L-SC", "ML-SC", "B-SC", "T-SC", "IC-SC", "G-SC"})
    table = [json.loads(line) for line in (out / "selection.jsonl").read_text().splitlines()]
    candidates = 5 if method == "TS" else 10
    assert len(table) == candidates * (5 + 2 * 3)
    for measure, row in result["chosen"].items():
        assert row["brier"] == min(other["brier"] for other in table if other["measure"] == measure)
        assert (out / measure / "recalibrator.json").exists()
    code, rows, _ = semcal("sample", file, "--model", model, "--m", "2", "--recalibrator", str(out / "L-SC"))
    assert (code, len(rows)) == (0, 5)
    assert semcal("fit", file, "--model", model, "--out", out, "--overwrite")[0] == 0
    assert [path.name for path in out.iterdir()] == ["recalibrator.json"]  # nothing of the older choice


def test_ts_grid_needs_samples_alone_and_is_applied_as_any_other(model: str, tmp_path: Path) -> None:
    file, out = write(tmp_path / "q.jsonl", QUESTIONS), tmp_path / "grid"
    code, (result,), _ = semcal(
        "fit", file, "--model", model, "--method", "TS-grid", "--out", str(out), "--m", "2",
        "--max-new-tokens", "3", "--measure", "L-SC",
    )  # fmt: skip
    assert code == 0
    temperature = result["chosen"]["L-SC"]["temperature"]
    code, (answer,), _ = semcal(
        "ask", QUESTIONS[0]["question"], "--model", model, "--recalibrator", str(out), "--m", "2"
    )
    assert (code, answer["method"], answer["temperature"]) == (0, "TS-grid", temperature)


def test_one_draw_is_wrong_usage_and_few_are_warned_of_once(model: str, tmp_path: Path) -> None:
    code, rows, stderr = semcal("ask", "Who built it?", "--model", model, "--m", "1")
    assert (code, rows) == (2, [])
    assert "m = 1: " in stderr
    file = write(tmp_path / "q.jsonl", QUESTIONS)
    code, rows, stderr = semcal("ask", file, "--model", model, "--m", "2", "--compare")
    assert (code, len(rows)) == (0, 10)
    assert stderr.count("m = 2 is few") == 1


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
    assert semcal("ask", *options)[2].startswith(said)
    for more in (("--model", "atlas"), ("--model", model), ("-q",)):
        assert said not in semcal("ask", *options, *more)[2]
