"""What commands say of rows: their columns, unknown likelihoods, and many bad ones in few lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from invoking import semcal, write

from semcal.cli.row_streams import BadRows
from semcal.errors import InputError, QuestionError, RowError

ROW = {"id": "a", "question": "Who?", "samples": ["Ada", "Bo"], "log_likelihoods": [-0.1, -0.2]}
CLUSTERED = {**ROW, "clusters": [[0], [1]]}
pytestmark = pytest.mark.filterwarnings("always::semcal.errors.SemcalWarning")

GRADABLE = {**CLUSTERED, "answers": ["Ada"], "top_cluster": {"E-SC": 0}}
ASSESSED = {"id": "a", "confidence": 0.5, "correct": True, "kind": "x"}
WATCHED = {"id": "a", "confidence": 0.5, "correct": True, "abstained": False}
COMMANDS = {"cluster": ROW, "measure": CLUSTERED, "grade": GRADABLE, "metrics": ASSESSED, "monitor": WATCHED}


def lines(*rows: dict) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


LIKELIHOODS = [
    [0.5, -1],  # above 0
    [float("inf"), -1],
    [float("nan"), -1],
    ["-inf", "-inf"],  # all of them
    [None, 0.1],
    [-1],  # of two samples
    [10**400, -1],
]
#: What one row has instead, and the key that is named; None is a key that it lacks.
BAD: dict[str, list[tuple[dict[str, Any], str]]] = {
    "cluster": [
        ({"samples": []}, "samples"),
        ({"samples": [1]}, "samples"),
        ({"question": None}, "question"),
    ],
    "measure": [({"clusters": []}, "clusters"), ({"clusters": [[0], [0]]}, "clusters")],
    "grade": [({"answers": []}, "answers"), ({"top_cluster": {"E-SC": 2}}, "top_cluster")],
    "metrics": [
        ({"confidence": 1.2}, "confidence"),
        ({"confidence": float("nan")}, "confidence"),
        ({"semantic_entropy": "high"}, "number"),
        ({"semantic_entropy": "-inf"}, "semantic_entropy"),
    ],
    "metrics --by kind": [({"kind": ["a", "b"]}, "kind")],
    "monitor": [
        ({"confidence": 1.5}, "confidence"),
        ({"confidence": "high"}, "confidence"),
        ({"confidence": True}, "confidence"),
        ({"correct": "perhaps"}, "correct"),
        ({"abstained": 2}, "abstained"),
    ],
}
CASES = [
    *((command, *case) for command, cases in BAD.items() for case in cases),
    *(
        (command, {"log_likelihoods": values}, "log_likelihoods")
        for command in ("cluster", "measure", "grade")
        for values in LIKELIHOODS
    ),
]


@pytest.mark.parametrize(("command", "change", "key"), CASES)
def test_a_bad_row_is_named_by_line_id_and_key_and_the_others_are_as_without_it(
    command: str, change: dict[str, Any], key: str
) -> None:
    row = COMMANDS[command.split()[0]]
    first, last = {**row, "id": "a"}, {**row, "id": "c"}
    _, expected, _ = semcal(*command.split(), "-", stdin=lines(first, last))
    bad = {**row, "id": "b7", **change}
    code, rows, stderr = semcal(*command.split(), "-", stdin=lines(first, bad, last))
    assert (code, rows) == (1, expected), stderr
    assert len(rows) > 0
    (said,) = [line for line in stderr.splitlines() if line.startswith("line 2 (id 'b7'): ")]
    assert key in said
    assert "1 bad row was left out" in stderr


@pytest.mark.parametrize("key", ["id", "confidence"])
def test_monitor_takes_each_reply_once_and_needs_its_confidence(key: str) -> None:
    row = COMMANDS["monitor"]
    other = row if key == "id" else {"id": "b", "correct": True}
    code, (found,), stderr = semcal("monitor", "-", stdin=lines(row, other))
    expected, said = (0, "labeled before") if key == "id" else (1, "'confidence'")
    assert (code, found["labels"], said in stderr) == (expected, 1, True)


@pytest.mark.parametrize("command", ["cluster", "measure", "grade"])
def test_one_unknown_likelihood_makes_all_of_the_row_null_and_is_said(command: str) -> None:
    unknown = {**COMMANDS[command], "id": "b7", "log_likelihoods": [None, -0.2]}
    code, rows, stderr = semcal(command, "-", stdin=lines(COMMANDS[command], unknown))
    assert (code, [row["log_likelihoods"] for row in rows]) == (0, [[-0.1, -0.2], None])
    assert f"{command}: line 2 (id 'b7'): 1 of 2 log-likelihoods unknown (null): all become null" in stderr
    if command == "measure":
        assert list(rows[1]["confidence"]) == ["E-SC"]
        assert "only E-SC is computed: 'b7'" in stderr


def test_generations_are_not_taken_for_samples() -> None:
    code, _, stderr = semcal(
        "cluster", "-", stdin=lines({"id": 1, "question": "Who?", "generations": ["Ada.\nQ"]})
    )
    assert code == 1
    assert "no 'samples'" in stderr


def test_the_models_answer_is_never_taken_for_the_reference() -> None:
    row = {"id": 1, "question": "Who?", "prediction": "Ada", "answer": "Ada"}
    code, rows, stderr = semcal("grade", "-", stdin=lines(row))
    assert (code, rows) == (1, [])
    assert "--columns answers=NAME" in stderr
    code, rows, _ = semcal("grade", "-", "--columns", "answers=answer", stdin=lines(row))
    assert (code, rows[0]["correct"]) == (0, True)


@pytest.mark.parametrize("command", COMMANDS)
def test_columns_of_rows_are_mapped_by_option(command: str) -> None:
    row = {{"id": "Nummer"}.get(key, key): value for key, value in COMMANDS[command].items()}
    code, rows, _ = semcal(command, "-", "--columns", "id=Nummer", stdin=lines(row))
    assert (code, len(rows)) == (0, 1)


def test_problems_of_one_kind_wait_for_each_other_until_a_block_is_written(capsys) -> None:
    with BadRows() as bad:
        for line in (2, 3, 9, 11, 13):
            bad.report(RowError(line, f"'samples' must be a list, got {line}", f"r{line}"))
        assert capsys.readouterr().err == ""
        bad.flush()
        ids = "ids 'r2', 'r3', 'r9', …"
        lines = f"lines 2-3, 9, 11, … (5 rows, {ids}): 'samples' must be a list, got 2\n"
        assert capsys.readouterr().err == lines
        bad.report(RowError(20, "'answers' must be a list, got 5", last=23))
        bad.report(QuestionError("q1", "its prompt has 900 tokens"))
        bad.report(InputError("no memory"))
        bad.report(QuestionError("q2", "its prompt has 901 tokens"))
    assert capsys.readouterr().err.splitlines() == [
        "lines 20-23: 'answers' must be a list, got 5",
        "2 rows, ids 'q1', 'q2': its prompt has 900 tokens",
        "no memory",
    ]
    assert (bad.count, bad.exit_code()) == (9, 1)


def test_what_is_held_back_is_told_when_the_command_fails(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text("Frage;Antwort\n" + "Wer?;Ada\n" * 300)
    code, _, stderr = semcal("fit", tmp_path / "q.csv", "--model", "no-such", "--out", tmp_path / "out")
    assert code == 1
    first, second = stderr.splitlines()
    assert first.startswith('lines 2-301 (300 rows): no "question" (the row\'s keys: Frage')
    assert second.startswith("error: no questions in ")


def test_a_dry_run_of_sample_names_bad_rows_too(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", [{"id": 1, "question": "Who?"}, {"id": 2}])
    code, _, stderr = semcal("sample", path, "--model", "none", "--dry-run")
    assert code == 1
    assert 'line 2 (id 2): no "question"' in stderr
    assert "would sample 10 answers to each of 1 questions" in stderr
