"""Commands on a disk that is full or read-only: one error names the file, and the same command goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

GRID = """
models: [{name: Llama, path: atlas}]
datasets: [{name: d, source: atlas-trivia, calibration_train: 24, validation: 8, test: 12}]
equivalence: atlas
methods: [Base, TS]
runs: {count: 1}
sampling: {m: 4, counts: [2], max_new_tokens: {closed_book: 12, open_book: 12}}
fitting: {losses: [[NLL, null]]}
evaluation: {resamples: 100}
block: 4
"""
FIT = ("fit", "questions.jsonl", "--model", "atlas", "--limit", "64")
#: Command, --out, other places that it writes to.
COMMANDS: dict[str, tuple[Any, ...]] = {
    "cluster": (("cluster", "rows.jsonl"), "out.jsonl"),
    "cache": (
        ("cluster", "rows.jsonl", "--limit", "300", "--equivalence", "atlas"),
        "out.jsonl",
        "cluster.cache",
    ),
    "sample": (("sample", "questions.jsonl", "--model", "atlas", "--m", "40"), "out.jsonl"),
    "fit": (FIT, "fit", "--features"),
    "fit ATS": ((*FIT, "--method", "ATS"), "fit"),
    "run": (("run", "grid.yaml"), "run"),
    "demo": (("demo", "--limit", "8", "--m", "4"), "demo"),
}


class Disk:
    """A file system of its own, of 64 kB to begin with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def mount(self, options: str) -> bool:
        command = ["mount", "-t", "tmpfs", "-o", options, "semcal-test", str(self.folder)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    (tmp_path / "grid.yaml").write_text(GRID)
    questions = ({"id": f"{i}", "question": f"Who wrote book {i}?", "answers": ["Odo"]} for i in range(130))
    samples = ([f"answer {j} {i}" for j in range(5)] for i in range(3000))
    rows = ({"id": f"{i}", "question": "Who?", "samples": five} for i, five in enumerate(samples))
    for name, content in (("questions", questions), ("rows", rows)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))
    found = Disk(tmp_path / "disk")
    if sys.platform != "linux" or not found.mount("size=64k"):
        pytest.skip("no file system can be mounted here")
    yield found
    subprocess.run(["umount", str(found.folder)], check=True)


def called(name: str, disk: Disk) -> tuple[int, str]:
    words, out, *others = COMMANDS[name]
    more = [word for option in others for word in (option, str(disk.folder / option.strip("-")))]
    command = [sys.executable, "-m", "semcal", *words, "--out", str(disk.folder / out), "-q", *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=disk.folder.parent, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


def named(name: str, stderr: str, disk: Disk) -> str:
    """The error, which names a place on the disk and is the only one."""
    errors = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, (name, stderr)
    assert "Traceback" not in stderr
    assert str(disk.folder) in errors[0]
    return errors[0]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_is_one_error_and_the_same_command_goes_on_when_there_is_space(
    name: str, disk: Disk
) -> None:
    code, stderr = called(name, disk)
    assert code == 1
    assert any(word in named(name, stderr, disk) for word in ("space", "full"))
    assert not [path for path in disk.folder.rglob(".*") if path.name.endswith((".part", ".lock"))]
    assert disk.mount("remount,size=500m")
    code, stderr = called(name, disk)
    assert code == 0, stderr
    assert (disk.folder / COMMANDS[name][1]).exists()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_read_only_disk_is_one_error_before_any_work(name: str, disk: Disk) -> None:
    assert disk.mount("remount,ro")
    code, stderr = called(name, disk)
    assert code == 1
    assert "Read-only file system" in named(name, stderr, disk)
    assert list(disk.folder.iterdir()) == []
