"""What `semcal calibrate` sampled is kept beside the calibration, and needs no model again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from invoking import semcal, write

from semcal.demo.questions import load_set

#: Tiny models of random weights never end an answer.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.* samples reached the token limit"),
    pytest.mark.filterwarnings("ignore:only .* answers are"),
]

CALL = ("--model", "atlas", "--m", 4, "--config", "sampling.max_new_tokens=6")


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> str:
    questions = load_set("atlas-reading").calibration_train[:24]
    rows = [{**question.row(), "clusters": [[0]], "group": f"g{i}"} for i, question in enumerate(questions)]
    return write(tmp_path_factory.mktemp("labelled") / "q.jsonl", rows)


def calibrated(source: str | Path, *options: Any, out: Path) -> Path:
    """Calibrate, and return the directory of the calibration."""
    code, _, err = semcal("calibrate", source, *options, "--out", out)
    assert code == 0, err
    return out


def refused(source: str | Path, *options: Any, out: Path, stdin: str = "") -> str:
    """Calibrate in vain, and return the error."""
    code, _, err = semcal("calibrate", source, *options, "--out", out, stdin=stdin)
    assert code == 2, err
    return err


@pytest.fixture(scope="module")
def sampled(labelled: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibration's directory; it is not to be written to."""
    return calibrated(labelled, *CALL, out=tmp_path_factory.mktemp("sampled") / "c")


@pytest.fixture(scope="module")
def alone(sampled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibration that reads the samples at T = 1 alone; it is not to be written to."""
    folder = tmp_path_factory.mktemp("alone")
    rows = [{**row, "temperatures": None} for row in kept(sampled)]
    for row in rows:
        for key in ("samples", "log_likelihoods", "likelihood", "finished", "token_scores"):
            row[key] = row[key][:4]
        row["sampled_by"]["temperature"] = 1.0
    calibrated(write(folder / "t1.jsonl", rows), "--model", "atlas", out=folder / "c")
    assert contents(folder / "c")["temperature"] == 1.0
    return folder / "c"


def contents(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "calibration.json").read_text())
    return found


def kept(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


def test_the_rows_hold_the_draws_of_all_temperatures_and_no_clusters(sampled: Path) -> None:
    rows = kept(sampled)
    assert len(rows) == 24
    for row in rows:
        assert row["temperatures"] == [1.0] * 4 + [0.5] * 4
        assert len(row["samples"]) == len(row["log_likelihoods"]) == len(row["likelihood"]) == 8
        assert not {"clusters", "normal_forms"} & row.keys()
        by = row["sampled_by"]
        assert (by["command"], by["m"], by["seed"], by["max_new_tokens"]) == ("calibrate", 4, 0, 6)
        assert "temperature" not in by


def test_the_same_calibration_comes_of_them_to_the_byte(sampled: Path, tmp_path: Path) -> None:
    calibrated(sampled / "samples.jsonl", out=tmp_path / "c")
    for name in ("calibration.json", "samples.jsonl"):
        assert (tmp_path / "c" / name).read_bytes() == (sampled / name).read_bytes()


def test_another_m_takes_the_first_draws_of_each_temperature(
    labelled: str, sampled: Path, tmp_path: Path
) -> None:
    few = contents(calibrated(sampled / "samples.jsonl", "--m", 3, out=tmp_path / "few"))
    unkept = (*CALL, "--m", 3, "--config", "calibration.keep_samples=false")
    anew = contents(calibrated(labelled, *unkept, out=tmp_path / "alone"))
    assert (few["m"], few["samples_sha256"]) == (3, contents(sampled)["samples_sha256"])
    assert anew["samples_sha256"] is None
    assert not (tmp_path / "alone" / "samples.jsonl").exists()
    assert few["report"]["base"] == pytest.approx(anew["report"]["base"], abs=1e-6)
    assert few["report"]["chosen"] == anew["report"]["chosen"]
    assert "m = 9: question" in refused(sampled / "samples.jsonl", "--m", 9, out=tmp_path / "many")


def test_elsewhere_they_are_refused_until_the_model_is_named(sampled: Path, tmp_path: Path) -> None:
    moved = shutil.copy(sampled / "samples.jsonl", tmp_path / "moved.jsonl")
    assert "--model" in refused(moved, out=tmp_path / "c")
    code, _, err = semcal("calibrate", moved, "--model", "atlas", "--out", tmp_path / "c")
    assert code == 0, err
    assert "nothing is sampled again" in err
    found, first = contents(tmp_path / "c"), contents(sampled)
    assert found["map"] == first["map"]
    for key in ("model", "revision", "prompt_hash", "data_hash", "n_questions"):
        assert found["provenance"][key] == first["provenance"][key]
    assert found["max_new_tokens"] == 6


def test_a_model_or_prompt_that_did_not_sample_them_is_refused(sampled: Path, tmp_path: Path) -> None:
    moved = shutil.copy(sampled / "samples.jsonl", tmp_path / "moved.jsonl")
    shots = write(tmp_path / "shots.jsonl", [{"question": "Who sang it?", "answers": ["Ana"]}])
    for options, message in (
        (("--model", "atlas-qwen2"), "not on language_model (revision"),
        (("--model", "atlas", "--few-shot", shots), "fitted with another prompt"),
        (
            ("--model", "atlas", "--config", "sampling.temperatures=2"),
            "no samples at T = 2",
        ),
    ):
        assert message in refused(moved, *options, out=tmp_path / "c")


def test_edited_samples_are_not_taken_for_those_of_the_calibration(sampled: Path, tmp_path: Path) -> None:
    folder = tmp_path / "edited"
    shutil.copytree(sampled, folder)
    data = (folder / "samples.jsonl").read_bytes()
    for edited in (data.replace(b'"m": 4', b'"m": 5', 1), data[:50] + b"\xe9" + data[51:], data[:-40]):
        (folder / "samples.jsonl").write_bytes(edited)
        assert "was made from other samples" in refused(folder / "samples.jsonl", out=tmp_path / "c")


def test_rows_of_two_kinds_are_refused(sampled: Path, tmp_path: Path) -> None:
    other = {"id": "x", "question": "Who?", "samples": ["Ana"] * 8, "answers": ["Ana"]}
    file = write(tmp_path / "s.jsonl", [*kept(sampled), {**other, "temperatures": [1.0] * 4 + [0.5] * 4}])
    assert "24 of 25 rows were sampled by semcal calibrate" in refused(file, out=tmp_path / "c")


def test_a_folder_that_holds_the_samples_alone_counts_as_begun(sampled: Path, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    shutil.copy(sampled / "samples.jsonl", folder)
    calibrated(folder / "samples.jsonl", "--model", "atlas", out=folder)
    assert contents(folder)["map"] == contents(sampled)["map"]
    (tmp_path / "other").mkdir()
    write(tmp_path / "other" / "samples.jsonl", [{"question": "Who?"}])
    assert f"--out {tmp_path / 'other'}" in refused(folder / "samples.jsonl", out=tmp_path / "other")


def test_overwrite_replaces_what_a_calibration_holds_and_nothing_else(sampled: Path, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    shutil.copytree(sampled, folder)
    (folder / "notes.txt").write_text("mine")
    (folder / "recalibrator").mkdir()
    (folder / "recalibrator" / "old").write_text("of an older calibration")
    call = (folder / "samples.jsonl", "--risk", 0.9, "--config", "calibration.delta=0.5")
    refused(*call, out=folder)
    calibrated(*call, "--overwrite", out=folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        "calibration.json",
        "notes.txt",
        "samples.jsonl",
    ]
    assert contents(folder)["threshold"]["risk_limit"] == 0.9
    assert (folder / "samples.jsonl").read_bytes() == (sampled / "samples.jsonl").read_bytes()


def test_draws_under_a_recalibrator_are_kept_with_it(labelled: str, tmp_path: Path) -> None:
    of_atlas = ("--config", "sampling.recalibrator=atlas", "--force")
    first = calibrated(labelled, *CALL, *of_atlas, out=tmp_path / "first")
    rows = kept(first)
    assert rows[0]["temperatures"] == [None] * 4 + [0.5] * 4
    assert "recalibrator" in rows[0]["sampled_by"]
    again = calibrated(first / "samples.jsonl", out=tmp_path / "again")
    assert contents(again) == contents(first)
    assert (again / "recalibrator" / "recalibrator.json").is_file()


def test_stored_rows_of_sample_tell_their_temperature(labelled: str, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    sample = ("sample", labelled, *CALL, "--temperature", 0.5, "--out", rows)
    assert semcal(*sample)[0] == 0
    lines = rows.read_text().splitlines()
    first = json.loads(lines[0])
    assert first["sampled_by"]["temperature"] == 0.5
    assert first["sampled_by"]["command"] == "sample"
    assert "clusters" not in first  # those of the labelled rows are of nothing that was sampled
    assert contents(calibrated(rows, out=tmp_path / "c"))["temperature"] == 0.5


@pytest.fixture(scope="module")
def clustered(labelled: str, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Rows of three questions, as `sample` and `cluster` write them."""
    rows = tmp_path_factory.mktemp("clustered") / "rows.jsonl"
    assert semcal("sample", labelled, *CALL, "--limit", 3, "--out", rows)[0] == 0
    return semcal("cluster", rows)[1]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({}, ""),
        ({"temperature": 0.5}, "was sampled with --temperature 0.5, and the calibration is of 1.0"),
        ({"m": 5}, "was sampled with --m 5, and the calibration is of 4"),
        ({"max_new_tokens": 7}, "was sampled with --max-new-tokens 7, and the calibration is of 6"),
        ({"model": "qwen2_model", "revision": "0"}, "not on qwen2_model (revision"),
        (None, "'context' is missing"),
    ],
)
def test_measure_checks_what_sampled_its_rows(
    clustered: list[dict[str, Any]], alone: Path, tmp_path: Path, changed: dict[str, Any] | None, message: str
) -> None:
    rows = [{**row, "sampled_by": row["sampled_by"] | (changed or {})} for row in clustered]
    if changed is None:
        rows = [{**row, "context": None} for row in rows]
    code, found, err = semcal("measure", write(tmp_path / "rows.jsonl", rows), "--calibration", alone)
    if message:
        assert (code, message in err) == (2, True), err
        assert "--force" not in err  # which measure lacks
    else:
        assert (code, len(found)) == (0, 3), err
        assert "cannot be checked" not in err  # 'sampled_by' and 'clustered_by' tell


@pytest.mark.parametrize(
    "wrong", [5, {"m": "4"}, {"model": 5}, {"max_new_tokens": [10]}, {"temperature": "1"}]
)
def test_a_mark_that_is_no_object_or_of_a_wrong_type_is_a_bad_row(
    sampled: Path, tmp_path: Path, wrong: Any
) -> None:
    rows = kept(sampled)
    rows[3]["sampled_by"] = {**rows[3]["sampled_by"], **wrong} if isinstance(wrong, dict) else wrong
    file = write(tmp_path / "s.jsonl", rows)
    code, (result,), err = semcal("calibrate", file, "--model", "atlas", "--out", tmp_path / "c")
    assert (code, result["n"]) == (1, 23)
    key = next(iter(wrong)) if isinstance(wrong, dict) else "sampled_by"
    assert f"line 4 (id {rows[3]['id']!r}): " in err
    assert f"{key!r}" in err


def test_the_seed_of_the_samples_is_that_of_the_folds_unless_another_is_given(
    labelled: str, tmp_path: Path
) -> None:
    first = calibrated(labelled, *CALL, "--config", "sampling.seed=3", out=tmp_path / "first")
    again = calibrated(first / "samples.jsonl", out=tmp_path / "again")
    assert (again / "calibration.json").read_bytes() == (first / "calibration.json").read_bytes()
    other = calibrated(first / "samples.jsonl", "--config", "sampling.seed=9", out=tmp_path / "other")
    assert contents(other)["provenance"]["seed"] == 9
    rows = shutil.copy(first / "samples.jsonl", tmp_path / "rows.jsonl")
    moved = contents(calibrated(rows, "--model", "atlas", out=tmp_path / "moved"))
    assert moved["provenance"]["seed"] == 3
    assert moved["report"] == contents(first)["report"]
