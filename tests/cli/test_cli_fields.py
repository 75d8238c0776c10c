"""The commands on structured answers: from stored samples to probabilities of fields."""

from __future__ import annotations

import json

import pytest
from invoices import SCHEMA, rows
from invoking import run as semcal

pytestmark = pytest.mark.filterwarnings("always::semcal.errors.SemcalWarning")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    return tmp_path


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(*arguments, code=0):
    exit_code, stdout, stderr = semcal(*arguments)
    assert exit_code == code, stderr
    return stdout, stderr


def test_stored_samples_become_fields_grades_and_metrics(folder):
    _, said = run(
        *("cluster", "rows.jsonl", "--schema", "schema.json", "--equivalence", "exact", "--out", "c.jsonl")
    )
    assert "1 of 480 samples" in said
    run("measure", "c.jsonl", "--out", "m.jsonl")
    run("grade", "m.jsonl", "--schema", "schema.json", "--out", "g.jsonl")
    graded = lines(folder / "g.jsonl")
    assert graded[0]["fields"]["/vendor"]["correct"] is True
    assert graded[0]["document"]["correct"] in (True, False)
    (found,) = [json.loads(line) for line in run("metrics", "g.jsonl", "--by", "field")[0].splitlines()]
    assert found["measure"] == "E-SC"
    assert {part["value"] for part in found["by"]} == {"/vendor", "/total", "/paid", "/items/*"}


def test_a_calibration_of_fields_is_learned_and_applied(folder):
    learn = ("calibrate", "rows.jsonl", "--schema", "schema.json", "--equivalence", "exact")
    report = json.loads(run(*learn, "--risk", "0.3", "--document-risk", "0.9", "--out", "cal")[0])
    assert report["fields"] + report["held_out_documents"] > 80
    assert report["thresholds"][0]["risk_limit"] == 0.3
    run("measure", "rows.jsonl", "--calibration", "cal", "--out", "p.jsonl")
    row = lines(folder / "p.jsonl")[0]
    assert 0 < row["fields"]["/total"]["probability"] < 1
    assert "/note" in row["review"]
    stdout, _ = run("measure", "rows.jsonl", "--calibration", "cal", "--fields", "accepted")
    hidden = json.loads(stdout.splitlines()[0])
    assert all(hidden["answer"].get(path[1:]) is None for path in row["review"] if path.count("/") == 1)
    assert hidden["fields"] == row["fields"]
    (folder / "hidden.jsonl").write_text(stdout)
    run("grade", "hidden.jsonl", "--schema", "schema.json", "--out", "h.jsonl")
    run("grade", "p.jsonl", "--schema", "schema.json", "--out", "g.jsonl")
    grades = [[row["fields"] for row in lines(folder / name)] for name in ("h.jsonl", "g.jsonl")]
    assert grades[0] == grades[1]
    measures = [json.loads(line)["measure"] for line in run("metrics", "g.jsonl")[0].splitlines()]
    assert measures == ["E-SC", "Calibrated"]
    run(*learn, "--out", "cal", "--overwrite")


@pytest.mark.parametrize("key", ["answers", "answer"])
def test_a_row_without_a_document_is_named_and_the_others_are_calibrated(folder, key):
    first, *others = [{**row, "answer": row["answers"]} for row in rows(40)]
    made = [{name: value for name, value in first.items() if name != key}, *others]
    (folder / "some.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    learn = ("calibrate", "some.jsonl", "--schema", "schema.json", "--equivalence", "exact", "--out", "cal")
    stdout, stderr = run(*learn, "--answer", "given", code=1)
    assert json.loads(stdout)["documents"] == 39
    assert f"line 1 (id '0'): '{key}'" in stderr
    new = {**others[0], "samples": ["none"] * 6}
    (folder / "new.jsonl").write_text(json.dumps({**new, "answer": "{}"}) + "\n" + json.dumps(new) + "\n")
    stdout, stderr = run("measure", "new.jsonl", "--calibration", "cal", code=1)
    assert [json.loads(line)["answer"] for line in stdout.splitlines()] == [None]
    assert "line 1 (id '1'): 'answer'" in stderr


def test_bad_rows_are_named_and_the_others_are_done(folder):
    good, bad = rows(2)
    bad["answers"] = {"vendor": 3}
    (folder / "two.jsonl").write_text(json.dumps(good) + "\n" + json.dumps(bad) + "\n")
    stdout, stderr = run("cluster", "two.jsonl", "--schema", "schema.json", "--equivalence", "exact", code=1)
    assert len(stdout.splitlines()) == 1
    assert "'answers'" in stderr


@pytest.mark.parametrize(
    ("content", "named"),
    [(None, "--schema"), ("[1]", "schema"), ('{"properties": {"a": {"$ref": "#"}}}', "#/properties/a")],
)
def test_an_unusable_schema_is_refused(folder, content, named):
    if content is not None:
        (folder / "bad.json").write_text(content)
    code, _, stderr = semcal("cluster", "rows.jsonl", "--schema", "bad.json")
    assert code in (1, 2)
    assert named in stderr


@pytest.mark.parametrize(
    "option",
    [
        *(("--feature", "x"), ("--signal", "p-true"), ("--add", "log"), ("--score", "x"), ("--m", "auto")),
        *(("--grader", "exact"), ("--vary", "2"), ("--system", "Read."), ("--fresh",), ("--audited",)),
    ],
)
def test_options_without_an_effect_on_stored_fields_are_refused(folder, option):
    _, stderr = run("calibrate", "rows.jsonl", "--schema", "schema.json", *option, "--out", "cal", code=2)
    assert option[0] in stderr
    assert not (folder / "cal").exists()


def test_fewer_samples_are_used_of_stored_ones(folder):
    learn = ("calibrate", "rows.jsonl", "--schema", "schema.json", "--equivalence", "exact", "--out", "cal")
    assert json.loads(run(*learn, "--m", "3")[0])["m"] == 3
    assert "--m" in run(*learn, "--m", "7", "--overwrite", code=2)[1]


def test_thresholds_for_each_value_of_a_column(folder):
    made = [{**row, "kind": "ab"[number % 2]} for number, row in enumerate(rows(160))]
    (folder / "kinds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    learn = ("calibrate", "kinds.jsonl", "--schema", "schema.json", "--equivalence", "exact")
    report = json.loads(run(*learn, "--risk", "0.3", "--by", "kind", "--out", "cal")[0])
    assert report["thresholds"] == []
    assert {*report["by_value"]} == {"a", "b"}
    assert {one["fields"][0]["delta"] for one in report["by_value"].values()} == {0.025}
    stdout, _ = run("measure", "rows.jsonl", "--calibration", "cal")  # without the column
    row = json.loads(stdout.splitlines()[0])
    assert {block["accepted"] for block in row["fields"].values()} == {False}
    assert "color" in run(*learn, "--by", "color", "--out", "other", code=1)[1]
