"""`semcal grade --audit`: a grader against people's labels."""

from __future__ import annotations

import pytest
from invoking import semcal, write

from semcal.cli.console import figure_lines
from semcal.grading.rules import RuleGrader
from tests.json_rows import audit

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
        == found.keys() - {*("grader", "n", "groups", "undecided", "counts", "se", "interval")}
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
    assert found["interval"]["kappa"] == [None, None]
    assert found["agreement"] == 0.25


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
