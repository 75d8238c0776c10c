"""The row commands as a user types them: contracts, pipes, bad rows and exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from invoking import semcal

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


def test_slices_are_a_table_for_people() -> None:
    from semcal.cli.console import slice_lines
    from semcal.measuring import assess, scores_by_measure

    result = assess(scores_by_measure(sliced(200), by="kind"))[None]
    lines = slice_lines(result, "kind")
    assert max(map(len, lines)) <= 80
    text = "\n".join([*lines, ""])
    assert re.search(r"person +100 +0\.800 +0\.200 +\+0\.600 +\[.*NO\n", text)
    assert re.search(r"person +100 +0\.800 +\[.*NO\n", text)
