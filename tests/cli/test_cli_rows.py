"""The row commands as a user types them: contracts, pipes, bad rows, exit codes, and audits of a grader."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invoking import semcal, write
from sklearn.metrics import cohen_kappa_score, confusion_matrix

from semcal.cli.console import figure_lines
from semcal.grading.rules import RuleGrader
from tests.json_rows import audit

pytestmark = pytest.mark.filterwarnings("always::semcal.errors.SemcalWarning")

ROW = {"question": "How many bridges has Toreth?", "samples": ["Seven", "7", "nine", "seven bridges"]}


def lines(rows: list) -> str:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


def test_flat_rows_are_measured_as_one() -> None:
    rows = [
        {"confidence": 0.9, "correct": True},
        {"confidence": 0.2, "correct": False},
        {"confidence": None, "correct": True},
    ]
    code, metrics, stderr = semcal("metrics", "-", "--ci", stdin=lines(rows))
    assert (code, metrics[0]["n"], metrics[0]["auroc"]) == (0, 2, 1.0)
    assert "measure" not in metrics[0]
    assert metrics[0]["interval"]["brier"][0] <= metrics[0]["brier"]
    assert "rows without confidence, which do not count for it: 1" in stderr


def test_what_is_undefined_is_null() -> None:
    code, metrics, stderr = semcal("metrics", "-", stdin=lines([{"confidence": 0.9, "correct": True}] * 2))
    assert (code, metrics[0]["auroc"], metrics[0]["prr"]) == (0, None, None)
    assert "warning:" in stderr


def test_a_reader_that_stops_early_is_no_error_message(tmp_path: Path) -> None:
    many = tmp_path / "many.jsonl"
    many.write_text(lines([{**ROW, "id": i} for i in range(3000)]))
    command = f"{sys.executable} -m semcal cluster {many} -q | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert len(done.stdout.splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_limit_leaves_the_rest_of_the_file_alone() -> None:
    good = {"confidence": 0.5, "correct": True}
    code, rows, _ = semcal("metrics", "-", "--limit", "1", stdin=lines([good, "{"]))
    assert (code, rows[0]["n"]) == (0, 1)


def test_output_is_utf8_whatever_the_locale() -> None:
    row = {"id": 1, "question": "Wie heißt er?", "samples": ["Čapek"]}
    done = subprocess.run(
        [sys.executable, "-m", "semcal", "cluster", "-"],
        input=json.dumps(row).encode() + b"\n",
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout.decode())["samples"] == ["Čapek"]


def test_a_risk_limit_prints_the_threshold_and_says_what_it_rests_on() -> None:
    rows = [{"confidence": 0.9, "correct": True}] * 40 + [{"confidence": 0.4, "correct": False}] * 40
    code, metrics, stderr = semcal("metrics", "-", "--risk", "0.1", stdin=lines(rows))
    assert code == 0
    risk = metrics[0]["risk"]
    assert (risk["limit"], risk["delta"], risk["threshold"], risk["answered"]) == (0.1, 0.05, 0.41, 32)
    assert risk["sentence"].startswith("threshold 0.41: answers 50% of questions")
    assert "nothing (T, map, measure) was fitted on these questions" in " ".join(stderr.split())
    code, metrics, _ = semcal("metrics", "-", "--risk", "0.1", stdin=lines(rows[30:50]))
    assert (code, metrics[0]["risk"]["threshold"], metrics[0]["risk"]["questions_needed"]) == (0, None, 73)
    assert metrics[0]["risk"]["upper_bound"] is None


def test_a_threshold_on_questions_in_groups_says_that_they_are_not_independent() -> None:
    rows = [{"confidence": 0.9, "correct": True, "group": "a"}, {"confidence": 0.4, "correct": False}]
    for number, said in ((1, False), (2, True)):
        _, _, stderr = semcal("metrics", "-", "--risk", "0.1", stdin=lines(rows[:1] * number + rows[1:]))
        assert ("share a passage or group" in " ".join(stderr.split())) is said


def sliced(n: int) -> list[dict[str, Any]]:
    """Rows of two kinds, of which the second is right in one of five, each above a threshold."""
    return [
        {
            "id": str(i),
            "kind": "person" if i % 2 else 1,
            "confidence": 0.8,
            "correct": i % 10 == 3 if i % 2 else i % 10 != 2,
            "abstained": False,
            "thresholds": [{"risk": 0.1}, {"risk": 0.3}],
        }
        for i in range(n)
    ]


def test_metrics_by_a_column_say_where_confidences_and_the_promise_hold() -> None:
    code, [found], _ = semcal("metrics", "-", "--by", "kind", stdin=lines(sliced(200)))
    assert code == 0
    assert [(one["value"], one["n"], one["calibrated"], one["kept"]) for one in found["by"]] == [
        ("1", 100, True, True),
        ("person", 100, False, False),
    ]
    code, [found], _ = semcal("metrics", "-", "--by", "kind", "--risk", "0.9", stdin=lines(sliced(200)))
    assert [one["kept"] for one in found["by"]] == [True, True]
    none = [{key: value for key, value in row.items() if key != "kind"} for row in sliced(40)]
    code, [found], _ = semcal("metrics", "-", "--by", "kind", stdin=lines(none + sliced(20)))
    assert [one["value"] for one in found["by"]] == ["(none)", "1", "person"]


def test_metrics_by_a_column_hold_one_risk_of_a_calibration_against_its_rows() -> None:
    rows = [{key: row[key] for key in row if key != "thresholds"} | {"risk": 0.45} for row in sliced(200)]
    _, [found], _ = semcal("metrics", "-", "--by", "kind", stdin=lines(rows))
    assert [one["kept"] for one in found["by"]] == [True, False]
    _, [found], _ = semcal(
        "metrics", "-", "--by", "kind", stdin=lines([row | {"risk": "high"} for row in rows])
    )
    assert [one["kept"] for one in found["by"]] == [None, None]


def test_slices_are_a_table_for_people() -> None:
    from semcal.cli.console import slice_lines
    from semcal.measuring import assess, scores_by_measure

    result = assess(scores_by_measure(sliced(200), by="kind"))[None]
    lines = slice_lines(result, "kind")
    assert max(map(len, lines)) <= 80
    text = "\n".join([*lines, ""])
    assert re.search(r"person +100 +0\.800 +0\.200 +\+0\.600 +\[.*NO\n", text)
    assert re.search(r"person +100 +0\.800 +\[.*NO\n", text)


# ---- semcal grade --audit


#: People and the rules agree on three of four; the last is on the question of the first.
ROWS = [
    {"id": 1, "question": "Who wrote it?", "prediction": "Ada", "answers": ["Ada"], "human": True},
    {"id": 2, "question": "When?", "prediction": "1912", "answers": ["1911"], "human": False},
    {"id": 3, "question": "Where?", "prediction": "the old town", "answers": ["Belmar"], "human": 1},
    {"id": 4, "question": "who wrote it", "prediction": "Bo", "answers": ["Ada"], "human": 0.0},
]


def test_it_prints_agreement_kappa_and_confusion_with_intervals(tmp_path):
    code, (found,), _ = semcal("grade", "--audit", write(tmp_path / "rows.jsonl", ROWS))
    assert code == 0
    assert (found["grader"], found["n"], found["groups"], found["undecided"]) == ("rules", 4, 3, 0)
    assert found["agreement"] == 0.75
    assert found["kappa"] == 0.5
    assert found["counts"] == {"both_right": 1, "grader_only": 0, "human_only": 1, "both_wrong": 2}
    assert (found["accuracy"], found["human_accuracy"], found["accuracy_difference"]) == (0.25, 0.5, -0.25)
    assert (
        found["interval"].keys()
        == found["se"].keys()
        == found.keys() - {*("grader", "n", "groups", "undecided", "kappa", "counts", "se", "interval")}
    )
    low, high = found["interval"]["agreement"]
    assert low < 0.75 < high <= 1


def test_undecided_labels_do_not_count_and_are_not_graded():
    asked: list[str] = []

    class Watched:
        def grade(self, question, predictions, references):
            asked.extend(predictions)
            return RuleGrader().grade(question, predictions, references)

    rows = [
        *ROWS,
        {**ROWS[0], "prediction": "Cy", "human": None},
        {**ROWS[0], "prediction": "D", "human": 0.7},
    ]
    found = audit(rows, Watched())
    assert (found["n"], found["undecided"]) == (4, 2)
    assert asked == [row["prediction"] for row in ROWS]


@pytest.mark.parametrize("key", ["human", "prediction"])
def test_a_missing_column_is_named(key, tmp_path):
    rows = [{name: value for name, value in row.items() if name != key} for row in ROWS]
    code, found, said = semcal("grade", "--audit", write(tmp_path / "rows.jsonl", rows))
    assert (code, found) == (1, [])
    assert f"'{key}'" in said
    assert "error: human" in said


@pytest.mark.filterwarnings("ignore::semcal.errors.UndefinedWarning")
def test_one_class_of_labels_has_no_kappa(tmp_path):
    rows = [{**row, "human": True} for row in ROWS]
    code, (found,), _ = semcal("grade", "--audit", write(tmp_path / "rows.jsonl", rows))
    assert code == 0
    assert found["kappa"] is None
    assert found["agreement"] == 0.25


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=20))
@settings(max_examples=30, deadline=None)
def test_kappa_and_counts_are_those_of_scikit_learn(pairs):
    rows = [
        {"id": k, "prediction": "Ada" if ours else "Bo", "answers": ["Ada"], "human": theirs}
        for k, (ours, theirs) in enumerate(pairs)
    ]
    found = audit(rows, RuleGrader())
    ours, theirs = zip(*pairs)
    (both_wrong, grader_only), (human_only, both_right) = confusion_matrix(theirs, ours, labels=[False, True])
    assert list(found["counts"].values()) == [both_right, grader_only, human_only, both_wrong]
    if len(set(theirs)) == 2:
        assert found["kappa"] == pytest.approx(cohen_kappa_score(ours, theirs), abs=1e-12)
    assert found["accuracy_difference"] == pytest.approx(np.mean(ours) - np.mean(theirs), abs=1e-12)


def test_rows_without_a_question_stand_by_their_ids(tmp_path):
    rows = [{name: value for name, value in row.items() if name != "question"} for row in ROWS]
    rows[3]["id"] = 1
    code, (found,), _ = semcal("grade", "--audit", write(tmp_path / "rows.jsonl", rows))
    assert (code, found["groups"]) == (0, 3)


def test_people_get_a_table_with_intervals():
    head, *table = figure_lines({"rules": audit(ROWS, RuleGrader())}, 100, every=True)
    lines = {line.split()[0]: line.split() for line in table}
    assert head.split() == ["rules"]
    assert lines["agreement"][:3] == ["agreement", "0.750", "±"]
    assert lines["number,"] in (["number,", "both", "right", "1"], ["number,", "both", "wrong", "2"])


@pytest.mark.parametrize(
    ("file", "label", "n", "agreement"),
    [("nq301_human_a", "human_correct", 728, 0.8242), ("contextsl_human_a", "human_label", 339, 0.8968)],
)
def test_published_labels_can_be_read_as_they_are(file, label, n, agreement, semcal_data):
    columns = ("--columns", "prediction=answer", "--columns", f"human={label}")
    _, (found,), _ = semcal("grade", "--audit", semcal_data / f"{file}.jsonl.gz", *columns)
    assert found["n"] == n
    assert found["agreement"] == pytest.approx(agreement, abs=0.0005)
