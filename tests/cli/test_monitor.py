"""`semcal monitor`: rows and logs, exit codes, what is printed and drawn, and what is refused."""

from __future__ import annotations

import io
import json
import sqlite3
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invoking import semcal, write

from semcal import reply_log as log_module
from semcal.calibration.calibration import Calibration
from semcal.calibration.watch import PromiseWatch
from semcal.cli.app import app
from semcal.reply_log import LabelledReply, Reply, ReplyLog, reading_logs


def rows_of(n: int = 300, *, excess: float = 0.0, seed: int = 1) -> list[dict[str, Any]]:
    """Replies whose probability lies too high by `excess`; below .5 they abstain."""
    rng = np.random.default_rng(seed)
    return [
        {
            "id": str(number),
            "confidence": p,
            "abstained": p < 0.5,
            "correct": bool(rng.random() < p - excess),
            "note": "passes through",
        }
        for number, p in enumerate(rng.beta(4, 2, n).tolist())
    ]


def log_of(
    path: Path, rows: Sequence[Mapping[str, Any]], threshold: float = 0.5, calibration: str = ""
) -> str:
    """A log of these replies, every tenth of them marked for an audit; labels come last to first."""
    log = ReplyLog(path)
    for number, row in enumerate(rows):
        verdict = (row["confidence"], threshold, row["abstained"])
        reply = Reply(row["id"], 0.0, "f00", {}, None, *verdict, "model", audited=number % 10 == 0)
        log.add(replace(reply, calibration=calibration))
    for row in reversed(rows):
        log.label({row["id"]: row["correct"]})
    log.close()
    return str(path)


def watched(rows: Sequence[Mapping[str, Any]], **settings: Any) -> PromiseWatch:
    """The watch in Python."""
    watch = PromiseWatch.of(**settings)
    for row in rows:
        verdict = (row["confidence"], None, row["abstained"])
        watch.update(LabelledReply(row["id"], *verdict, row["correct"], False))
    return watch


def test_a_line_a_watch_says_what_the_watch_says(tmp_path: Path) -> None:
    rows = rows_of(excess=0.2)
    code, lines, _ = semcal("monitor", write(tmp_path / "rows.jsonl", rows), "--risk", 0.2)
    watch = watched(rows, risk=0.2)
    assert code == 1
    assert lines == [
        {
            "watch": name,
            "alarm": test.alarm,
            "labels": test.n,
            "alarm_at": test.alarm_at,
            "notice_at": test.notice_at,
            "e_value": pytest.approx(test.e_value),
        }
        for name, test in watch.tests.items()
    ]
    assert all(line["alarm"] and line["alarm_at"] <= line["labels"] for line in lines)
    assert lines[0]["labels"] == sum(not row["abstained"] for row in rows) < lines[1]["labels"] == len(rows)


def test_rows_with_references_and_no_verdict_are_counted_and_the_remedy_is_named(tmp_path: Path) -> None:
    rows = [{"id": str(i), "question": f"Q{i}?", "confidence": 0.8, "answers": ["Ana"]} for i in range(12)]
    _, said = semcal("monitor", write(tmp_path / "rows.jsonl", rows))[1:]
    assert "12 rows have 'answers'" in said
    assert "semcal grade" in said


def test_a_log_says_what_its_labels_say_in_order_of_their_arrival(tmp_path: Path) -> None:
    rows = rows_of(150, excess=0.15)
    log = log_of(tmp_path / "log.sqlite", rows)
    backwards = write(tmp_path / "rows.jsonl", rows[::-1])
    assert semcal("monitor", log, "--risk", 0.3)[1] == semcal("monitor", backwards, "--risk", 0.3)[1]
    assert len(list(ReplyLog(Path(log)).labelled())) == len(rows)


def replica_logs(folder: Path, rows: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Logs of two replicas, which take turns, and the one that they share."""
    logs = [ReplyLog(folder / f"{name}.sqlite") for name in ("first", "second", "labels")]
    for number, row in enumerate(rows):
        verdict = (row["confidence"], 0.5, row["abstained"])
        reply = Reply(
            row["id"], float(number), "f00", {}, None, *verdict, "model", content=row.get("content")
        )
        for log in (logs[number % 2], logs[2]):
            log.add(reply)
    for log in logs:
        log.close()
    return [log.path for log in logs]


def label_at(log: Path, at: float, row: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(ReplyLog(log)) as opened, monkeypatch.context() as patch:
        patch.setattr(log_module.time, "time", lambda: at)
        opened.label({row["id"]: row["correct"]})


def test_logs_of_replicas_are_read_as_one_in_order_of_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(60, excess=0.15)
    order = np.random.default_rng(5).permutation(len(rows)).tolist()
    first, second, labels = replica_logs(tmp_path, rows)
    for at, number in enumerate(order):
        label_at((first, second)[number % 2], float(at), rows[number], monkeypatch)
    one = write(tmp_path / "rows.jsonl", [rows[number] for number in order])
    expected = semcal("monitor", one, "--risk", 0.3)[1]
    for files in ([first, second], [second, first], [first, labels, second, first]):
        assert semcal("monitor", *files, "--risk", 0.3)[:2] == (
            semcal("monitor", one, "--risk", 0.3)[0],
            expected,
        )
    with reading_logs([first, second]) as log:
        assert [p for _, p in log.probabilities()] == [row["confidence"] for row in rows]
        assert [reply.id for reply in log.labelled()] == [rows[number]["id"] for number in order]
    assert not log.path.exists()


def test_a_clock_that_is_set_back_changes_no_order_within_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(6)
    first, second, _ = replica_logs(tmp_path, rows)
    for at, number in ((5.0, 0), (1.0, 2), (6.0, 4)):
        label_at(first, at, rows[number], monkeypatch)
    for at, number in ((4.0, 1), (5.5, 3)):
        label_at(second, at, rows[number], monkeypatch)
    with reading_logs([first, second]) as log:
        assert [reply.id for reply in log.labelled()] == ["1", "0", "2", "3", "4"]


def test_a_label_counts_from_another_log_than_its_reply_and_once_for_equals_of_all_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replies 0 and 1 are equal, and lie in two logs; labels of 2 and 3 lie in the third log alone."""
    rows = [row | {"content": int(row["id"]) // 2, "correct": True} for row in rows_of(4)]
    first, second, labels = replica_logs(tmp_path, rows)
    label_at(first, 9.0, rows[0], monkeypatch)
    label_at(second, 2.0, rows[1] | {"correct": False}, monkeypatch)
    label_at(labels, 3.0, rows[2], monkeypatch)
    label_at(labels, 4.0, rows[3], monkeypatch)
    with reading_logs([first, second, labels]) as log:
        assert [(reply.id, reply.correct) for reply in log.labelled()] == [("1", False), ("2", True)]
    semcal("labels", second, "--id", "1", "--strike")
    label_at(labels, 5.0, rows[1] | {"correct": False}, monkeypatch)  # a copy of the label that was struck
    with reading_logs([labels, first, second]) as log:
        assert [(reply.id, reply.correct) for reply in log.labelled()] == [("2", True), ("0", True)]
    assert semcal("monitor", first, second, labels)[1][0]["labels"] == 2


def test_labels_are_listed_and_struck(tmp_path: Path) -> None:
    rows = rows_of(12)
    log = log_of(tmp_path / "log.sqlite", rows)
    code, listed, _ = semcal("labels", log)
    assert code == 0
    assert [(one["id"], one["correct"]) for one in listed] == [(r["id"], r["correct"]) for r in rows[::-1]]
    assert all(one["counts"] and not one["struck"] and one["key"] == "" for one in listed)
    code, struck, stderr = semcal("labels", log, "--id", "3", "--id", "4", "--strike")
    assert (code, [one["struck"] for one in struck]) == (0, [True, True])
    assert "labels: 2 struck" in stderr
    lines = semcal("monitor", log, "--risk", 0.4)[1]
    assert lines[-1]["labels"] == len(rows) - 2
    semcal("labels", log, "--restore")
    assert semcal("monitor", log, "--risk", 0.4)[1][-1]["labels"] == len(rows)
    assert semcal("labels", log, "--since", "2100-01-01")[1] == []


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Files, without what readers of SQLite share in memory."""
    files = [path for path in folder.iterdir() if not path.name.endswith("-shm")]
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_a_log_is_read_and_nothing_of_it_changed_whether_a_server_has_it_open_or_not(tmp_path: Path) -> None:
    log = log_of(tmp_path / "log.sqlite", rows_of(20))
    for is_served in (False, True):
        if is_served:
            serving = ReplyLog(Path(log))
            serving.add(Reply("new", 0.0, "f00", {}, None, 0.5, 0.4, False, "model"))
        before = contents(tmp_path)
        code, lines, _ = semcal("monitor", log, "--risk", 0.9)
        assert (code, lines[1]["labels"]) == (0, 20)
        assert contents(tmp_path) == before
    serving.close()


def test_a_log_of_another_version_or_program_is_refused_as_it_is(tmp_path: Path) -> None:
    log = log_of(tmp_path / "log.sqlite", rows_of(20))
    with closing(sqlite3.connect(log)) as database:
        database.execute("PRAGMA user_version = 0")
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as database:
        database.execute("PRAGMA user_version = 3")  # a file without a table
    with closing(sqlite3.connect(tmp_path / "prices.sqlite")) as database:
        database.execute("CREATE TABLE prices (price REAL)")
    whole = log_of(tmp_path / "whole.sqlite", rows_of(20))
    rows = write(tmp_path / "rows.jsonl", rows_of(3))
    assert rows in semcal("monitor", whole, rows)[2]  # several files are logs
    assert semcal("monitor", whole, "--columns", "correct=right")[0] == 2
    before = contents(tmp_path)
    for name, words in (
        ("log.sqlite", "layout 0"),
        ("other.sqlite", "expected a log of replies"),
        ("prices.sqlite", "expected a log of replies"),
    ):
        for others in ((), (whole,)):
            code, _, said = semcal("monitor", *others, tmp_path / name, "--risk", 0.9)
            assert (code, f"{name} " in said, words in said) == (1, True, True), said
    assert contents(tmp_path) == before


def test_with_audited_only_labels_of_marked_replies_count(tmp_path: Path) -> None:
    rows = rows_of(100)
    log = log_of(tmp_path / "log.sqlite", rows)
    marked = [row | {"audited": number % 10 == 0} for number, row in enumerate(rows)]
    file = write(tmp_path / "rows.jsonl", marked[::-1])
    results = [semcal("monitor", source, "--audited")[1] for source in (log, file)]
    assert results[0] == results[1]
    assert results[0][0]["labels"] == 10


def test_with_a_calibration_its_promise_holds_and_questions_are_watched(tmp_path: Path) -> None:
    rows = [row | {"correct": None if number % 2 else False} for number, row in enumerate(rows_of(200))]
    file = write(tmp_path / "rows.jsonl", [row | {"abstained": row["confidence"] < 0.57} for row in rows])
    code, (risk, _, questions), _ = semcal("monitor", file, "--calibration", "atlas")
    assert code == 1
    assert risk["alarm"]
    assert set(questions) == {"watch", "warning", "replies", "warning_at", "e_value"}
    assert (questions["watch"], questions["warning"], questions["replies"]) == ("questions", True, 200)


def test_a_log_is_held_against_the_risk_of_each_replys_threshold(tmp_path: Path) -> None:
    rows = [row | {"correct": False, "abstained": False} for row in rows_of(30)]
    for threshold, labels in ((0.56, 30), (0.4, 0)):
        log = log_of(
            tmp_path / f"{threshold}.sqlite", rows, threshold, Calibration.from_pretrained("atlas").id
        )
        assert semcal("monitor", log, "--calibration", "atlas")[1][0]["labels"] == labels


def test_without_a_risk_it_says_that_none_is_watched_and_the_level_can_be_chosen(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", rows_of(excess=0.2))
    _, lines, stderr = semcal("monitor", file)
    assert [line["watch"] for line in lines] == ["calibration"]
    assert lines[0]["notice_at"] < lines[0]["alarm_at"]
    assert semcal("monitor", file, "--alpha", 0.0001)[1][0]["alarm_at"] > lines[0]["alarm_at"]
    assert "monitor: the risk is not watched" in stderr


def test_rows_come_from_standard_input_and_under_other_names() -> None:
    rows = [
        {"confidence": {"E-SC": 0.1}, "probability": 0.9, "correct": {"E-SC": False}, "answer_correct": True}
        for _ in range(5)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    names = ("--columns", "confidence=probability", "--columns", "correct=answer_correct")
    code, lines, _ = semcal("monitor", "-", *names, stdin=text)
    assert (code, lines[0]["labels"]) == (0, 5)
    code, lines, stderr = semcal("monitor", "-", stdin=text)
    assert (code, lines[0]["labels"]) == (1, 0)
    assert "--columns confidence=" in stderr


def page_of(monkeypatch: pytest.MonkeyPatch, *arguments: Any) -> str:
    """What a terminal shows."""
    stream = io.StringIO()
    stream.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", stream)
    app(["monitor", *map(str, arguments)], standalone_mode=False)
    return stream.getvalue()


def test_on_a_terminal_people_read_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = page_of(monkeypatch, write(tmp_path / "bad.jsonl", rows_of(excess=0.2)), "--risk", 0.2)
    assert bad.startswith("ALARM: risk")
    assert "ALARM at label" in bad
    assert "20%" in bad
    assert "docs/alarm.md" in bad
    good = page_of(
        monkeypatch, write(tmp_path / "good.jsonl", rows_of()), "--risk", 0.4, "--calibration", "atlas"
    )
    assert "holds so far" in good
    assert "ALARM" not in good
    assert "different from the questions" in " ".join(good.split())
    empty = page_of(monkeypatch, write(tmp_path / "none.jsonl", []), "--risk", 0.4)
    assert "ALARM" not in empty
    assert "at most 40%" in empty


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_plot_is_drawn_and_the_same_again(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    file, plot = write(tmp_path / "rows.jsonl", rows_of(excess=0.2)), tmp_path / f"plot.{suffix}"
    semcal("monitor", file, "--risk", 0.2, "--calibration", "atlas", "--plot", plot)
    drawn = plot.read_bytes()
    semcal("monitor", file, "--risk", 0.2, "--calibration", "atlas", "--plot", plot, "--overwrite")
    assert plot.read_bytes() == drawn
    if suffix == "svg":
        assert all(f">{name}<" in drawn.decode() for name in ("risk", "calibration", "questions"))


def test_it_needs_neither_the_server_nor_figures(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", rows_of(20))
    code = f"""
import sys
from semcal.cli.app import app
try:
    app(["monitor", {file!r}, "--risk", ".4", "--calibration", "atlas"])
except SystemExit as end:
    assert not end.code
print(sorted({{"torch", "fastapi", "uvicorn", "prometheus_client", "matplotlib"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
