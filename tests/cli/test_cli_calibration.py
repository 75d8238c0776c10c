"""`--calibration`: what `ask` takes from it, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tiny_models
from invoking import semcal, write

from semcal.calibration.calibration import Calibration
from semcal.cli import ask
from semcal.demo.paths import nli_model_dir
from semcal.errors import UsageError
from semcal.models import load_model
from semcal.recalibration import TemperatureScaling, save_pretrained
from semcal.results import score
from tests.steps.made_up_calibration import calibration, provenance, threshold

pytestmark = pytest.mark.filterwarnings("always::semcal.errors.SemcalWarning")

QUESTIONS = [{"id": f"q{i}", "question": f"Who built mill number {i}?"} for i in range(3)]


@pytest.fixture(scope="module")
def known(model: str) -> Calibration:
    """Made with the model itself, of 5 draws of at most 2 tokens."""
    return calibration(m=5, max_new_tokens=2, provenance=provenance(load_model(model, device="cpu")))


@pytest.fixture
def folder(known: Calibration, tmp_path: Path) -> Path:
    return known.save_pretrained(tmp_path / "calibration").parent


def test_an_answer_that_is_there_already_is_not_replaced_unless_it_is_the_calibration_s(
    model: str, known: Calibration, folder: Path, tmp_path: Path
) -> None:
    held = [{"answer": "MINE"}, {"probability": 0.1, "calibration": "other"}, {"calibration": known.id}]
    held[2] |= {"answer": "Ana", "probability": 0.5}
    file = write(tmp_path / "q.jsonl", [question | more for question, more in zip(QUESTIONS, held)])
    code, rows, err = semcal("ask", file, "--model", model, "--calibration", folder)
    assert (code, [row["id"] for row in rows]) == (1, ["q2"])
    assert "'answer' is already set ('MINE')" in err
    assert "'probability' is already set by the calibration 'other'" in err
    assert semcal("ask", file, "--model", model, "--m", "5", "--equivalence", "exact")[0] == 0


def test_a_threshold_is_said_once_and_applied(model: str, known: Calibration, tmp_path: Path) -> None:
    limited = replace(known, threshold=threshold(0.65))
    limited.save_pretrained(tmp_path / "limited")
    options = ("ask", write(tmp_path / "q.jsonl", QUESTIONS), "--model", model, "--calibration")
    code, rows, stderr = semcal(*options, tmp_path / "limited")
    assert code == 0
    assert all(row["threshold"] == 0.65 and row["abstained"] == (row["confidence"] < 0.65) for row in rows)
    assert stderr.count(f"ask: {threshold(0.65).sentence}") == 1
    code, _, stderr = semcal(*options, tmp_path / "limited", "--abstain-below", "0.5")
    assert (code, "--abstain-below" in stderr) == (2, True)
    replace(limited, threshold=threshold(None)).save_pretrained(tmp_path / "none")
    code, rows, stderr = semcal(*options, tmp_path / "none")
    assert {(row["abstained"], row["threshold"]) for row in rows} == {(True, None)}
    assert stderr.count("ask: every answer abstains") == 1


def test_another_model_is_refused_and_forced_without_the_promise(known: Calibration, tmp_path: Path) -> None:
    other = str(tiny_models.save(tmp_path / "other", seed=1))
    replace(known, threshold=threshold(0.5)).save_pretrained(tmp_path / "limited")
    command = ("ask", "Who?", "--model", other, "--calibration", tmp_path / "limited")
    code, rows, stderr = semcal(*command)
    assert (code, rows) == (2, [])
    assert "calibration: fitted on" in stderr
    code, rows, stderr = semcal(*command, "--force")
    assert (code, len(rows)) == (0, 1)
    assert threshold(0.5).sentence not in stderr
    assert stderr.count("the calibration was made for another model") == 1


def test_a_recalibrator_is_no_calibration_and_the_other_way_round(
    model: str, known: Calibration, folder: Path, tmp_path: Path
) -> None:
    fitted = TemperatureScaling().fit([[1.0, 0.0]] * 4, [0, 0, 1, 0])
    save_pretrained(fitted, tmp_path / "ts", provenance=known.provenance)
    code, _, stderr = semcal("ask", "Who?", "--model", model, "--calibration", tmp_path / "ts")
    assert (code, "holds a recalibrator, not a calibration; give it with --recalibrator" in stderr) == (
        2,
        True,
    )
    code, _, stderr = semcal("ask", "Who?", "--model", model, "--recalibrator", folder)
    assert (code, "holds a calibration, not a recalibrator; give it with --calibration" in stderr) == (
        2,
        True,
    )
    code, _, stderr = semcal("ask", "Who?", "--model", model, "--calibration", tmp_path / "nowhere")
    assert (code, "semcal calibrate" in stderr) == (2, True)


RECORD = {
    "question": "Who?",
    "answer": "Ana",
    "confidence": 0.617,
    "measure": "Calibrated",
    "abstained": True,
    "threshold": 0.62,
    "method": "T",
    "temperature": 1.0,
    "solver": None,
    "entropy": 0.5,
    "explanation": "3 of 4 samples say Ana, 1 says nothing",
    "meanings": [
        {"text": "Ana", "share": 0.75, "probability": 0.617, "samples": ["Ana"] * 3},
        {"text": "", "share": 0.25, "probability": 0.01, "samples": [""]},
    ],
    "samples": ["Ana", "", "Ana", "Ana"],
}


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")


def lines_of(record: dict, **options: bool) -> dict[str, str]:
    """Return the first part of a page: the text by the name at the beginning of its line."""
    page, _, _ = ask._page(record, **options).partition("\n\n")
    pairs = (line.split(None, 1) for line in page.replace("\n  ", " ").splitlines())
    return {name: " ".join(text.split()) for name, text in pairs}


def test_a_terminal_shows_that_there_is_no_answer() -> None:
    meanings = [
        {"text": None, "share": 0.75, "probability": 0.0, "samples": [None] * 3},
        RECORD["meanings"][1],
    ]
    none = {"answer": None, "confidence": None, "reason": "no answer", "meanings": meanings}
    found = lines_of({**RECORD, **none})
    assert list(found) == ["answer", "decision", "why"]
    assert found["answer"] == "(no answer)"
    assert found["decision"].startswith("abstained")
    lead = ask._page({**RECORD, **none}).splitlines()[-4]
    assert lead.split() == ["(no", "answer)", "3", "0.00"]


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({}, "abstained (threshold 0.62)"),
        ({"abstained": False, "decision": "review"}, "to be reviewed (threshold 0.62)"),
        ({"abstained": False, "decision": "answer"}, "answered (threshold 0.62)"),
        ({"threshold": None}, "abstained: no threshold keeps the risk"),
        ({"abstained": None, "threshold": None}, None),
    ],
)
def test_the_decision_is_shown_with_its_threshold(changed: dict, line: str | None) -> None:
    assert lines_of({**RECORD, **changed}).get("decision") == line


ROWS = [
    {
        "id": f"r{i}",
        "question": "Who?",
        "answers": ["Ana"],
        "samples": ["Ana"] * i + ["Bo"] * (5 - i),
        "log_likelihoods": [-0.5] * 5,
    }
    for i in range(6)
]


def test_answers_to_a_file_keep_its_other_keys_and_can_be_graded(model: str, tmp_path: Path) -> None:
    asked = [{**row, "level": 3, "context": "Ana built it.", "measure": "mine"} for row in QUESTIONS]
    few = ("--model", model, "--m", "5", "--config", "sampling.max_new_tokens=2")
    code, bare, _ = semcal("ask", write(tmp_path / "q.jsonl", asked), *few)
    file = write(tmp_path / "l.jsonl", [{**row, "answers": ["Ana"]} for row in asked])
    _, rows, _ = semcal("ask", file, *few)
    assert code == 0
    assert [{**row, "answers": ["Ana"]} for row in bare] == rows
    assert list(rows[0])[-4:] == ["clusters", "context", "answers", "level"]
    assert (rows[0]["level"], rows[0]["measure"]) == (3, "E-SC")
    code, _, stderr = semcal("grade", write(tmp_path / "bare.jsonl", bare))
    assert (code, "answers=answer" in stderr) == (1, False)
    assert "no 'answers'" in stderr
    labelled = write(tmp_path / "labelled.jsonl", rows)
    _, _, stderr = semcal("grade", labelled)
    assert "--columns prediction=answer" in stderr
    code, graded, _ = semcal("grade", labelled, "--columns", "prediction=answer")
    assert (code, {row["correct"] for row in graded}) == (0, {False})
    code, (found,), _ = semcal("metrics", write(tmp_path / "graded.jsonl", graded))
    assert (code, found["accuracy"]) == (0, 0.0)


def test_rows_that_the_calibration_is_not_for_are_wrong_usage_and_write_nothing(
    known: Calibration, tmp_path: Path
) -> None:
    replace(known, m=4).save_pretrained(tmp_path / "four")
    replace(known, temperatures=(2.0,)).save_pretrained(tmp_path / "two")
    _, rows, _ = semcal("cluster", write(tmp_path / "rows.jsonl", ROWS), "--equivalence", "exact")
    file, out = write(tmp_path / "clustered.jsonl", rows), tmp_path / "out.jsonl"
    for name, reason in (
        ("four", "--m 4"),
        ("two", "(--config sampling.temperatures=1), or use `semcal ask`"),
    ):
        code, _, stderr = semcal("measure", file, "--calibration", tmp_path / name, "--out", out)
        assert (code, reason in stderr, out.exists()) == (2, True, False)


@pytest.mark.parametrize(
    ("clustered", "learned", "refused"),
    [
        ((), "exact", "equivalence 'default' (linkage 'components'), expected 'exact'"),
        (
            ("--equivalence", "exact", "--config", "cluster.linkage=greedy"),
            "exact",
            "'exact' (linkage 'greedy'), expected",
        ),
        (("--equivalence", "exact"), "exact", ""),
        (("--equivalence", "atlas"), "default", "equivalence 'atlas'"),
        (("--equivalence", "./moved/nli"), "elsewhere/nli", ""),
        ((), "default", ""),
    ],
)
def test_rows_clustered_by_another_equivalence_than_the_calibrations_are_wrong_usage(
    known: Calibration,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    clustered: tuple[str, ...],
    learned: str,
    refused: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("moved").mkdir()
    Path("moved/nli").symlink_to(nli_model_dir())
    learned_by = replace(known, equivalence=learned, equivalence_revision="another")
    learned_by.save_pretrained(tmp_path / "learned")
    _, rows, _ = semcal("cluster", write(tmp_path / "rows.jsonl", ROWS), *clustered)
    file = write(tmp_path / "clustered.jsonl", rows)
    code, measured, stderr = semcal("measure", file, "--calibration", "learned")
    assert (code, len(measured)) == ((2, 0) if refused else (0, len(ROWS)))
    assert refused in stderr
    assert (f"again with --equivalence {learned} --config cluster.linkage=components" in stderr) == bool(
        refused
    )
    assert ("names revision" in stderr) == (not refused)
    silent = [{key: value for key, value in row.items() if key != "clustered_by"} for row in rows]
    assert semcal("measure", write(tmp_path / "s.jsonl", silent), "--calibration", "learned")[0] == 0
    if refused:
        with pytest.raises(UsageError, match="'clustered_by'"):
            score(rows, calibration=replace(learned_by, equivalence_revision=None))
    how = ("--equivalence", "exact", "--config", "cluster.linkage=components")
    code, _, stderr = semcal("calibrate", file, *how, "--out", tmp_path / "again")
    assert ("'clustered_by' names" in stderr) == (clustered != ("--equivalence", "exact"))


def test_rows_of_several_temperatures_are_said_to_be_measured_at_one(tmp_path: Path) -> None:
    several = [{**row, "temperatures": [1.0, 1.0, 0.5, 0.5, 0.5]} for row in ROWS]
    several.append({**ROWS[0], "id": "bad", "temperatures": [1.0]})
    code, rows, stderr = semcal("cluster", write(tmp_path / "rows.jsonl", several))
    assert code == 1
    assert "(id 'bad'): 'temperatures' must hold 5 numbers, one a sample, got [1.0]" in stderr
    code, measured, stderr = semcal("measure", write(tmp_path / "c.jsonl", rows))
    assert code == 0
    assert measured[1]["clusters"] == [[0], [1], [2, 3, 4]]
    assert measured[1]["confidences"]["E-SC"] == [0.5, 0.5, None]
    code, graded, _ = semcal("grade", write(tmp_path / "m.jsonl", measured))
    assert code == 0
    assert [row["correct"]["E-SC"] for row in graded] == [False, True, True, True, True, True]


def test_the_embedded_model_brings_its_calibration_unless_an_option_says_otherwise() -> None:
    one = ("ask", "Who governed Ruvorkreth?")
    limit = Calibration.from_pretrained("atlas").threshold
    code, (row,), stderr = semcal(*one)
    assert (code, row["measure"], row["threshold"]) == (0, "Calibrated", limit.threshold)
    assert f"ask: {limit.sentence}" in stderr
    assert semcal(*one, "--calibration", "atlas")[1] == [row]
    code, (share,), stderr = semcal(*one, "--m", "6", "--measure", "L-SC", "--context", "He was a bishop.")
    assert (code, share["measure"], share["method"], len(share["samples"])) == (0, "L-SC", "TS", 6)
    options = "--m, --measure, --context"
    assert f"the embedded calibration does not apply with {options}; the confidence is a share" in stderr
