"""Who asks, calibrates or scores needs no `semcal.experiment`: the folder can be deleted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import semcal

ROWS = [
    {
        "id": str(i),
        "question": f"Who built mill {i}?",
        "samples": ["Ana", "Ana", "Bo"] if i % 3 else ["Bo", "Ana", "Cy"],
        "answers": ["Ana"],
    }
    for i in range(12)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package without the experiment, and a file of stored samples."""
    folder = tmp_path_factory.mktemp("without")
    shutil.copytree(
        Path(semcal.__file__).parent,
        folder / "semcal",
        ignore=shutil.ignore_patterns("experiment"),
    )
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folder


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_ask_calibrate_and_score_work_without_the_experiment(folder: Path) -> None:
    asked = python(folder, "-m", "semcal", "ask", "Who governed Ruvorkreth?", "--m", "3", "-q")
    assert (asked.returncode, len(json.loads(asked.stdout)["samples"])) == (0, 3), asked.stderr
    calibrate = ("calibrate", "samples.jsonl", "--equivalence", "exact", "--out", "calibration", "-q")
    calibrated = python(folder, "-m", "semcal", *calibrate)
    assert (calibrated.returncode, json.loads(calibrated.stdout)["n"]) == (0, len(ROWS)), calibrated.stderr
    score = "import semcal; print(semcal.__file__, semcal.score('samples.jsonl', equivalence='exact'))"
    scored = python(folder, "-c", score)
    expected = f"{folder / 'semcal' / '__init__.py'} Results({len(ROWS)} answers, {len(ROWS)} graded"
    assert scored.stdout.startswith(expected), scored.stderr
