"""`semcal fit` killed fifteen times, by each method: it goes on, and ends at the same bytes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_models
from invoking import write

QUESTIONS = [
    {"id": f"q{i}", "question": f"Who built mill number {i}?", "answers": ["Odo Brand", "Mira"]}
    for i in range(70)
]
SAMPLED = ("--equivalence", "exact", "--m", "2", "--max-new-tokens", "4", "--limit", "12")
WAYS: dict[str, tuple[str, ...]] = {
    "TS": ("--features", "features"),
    "TS by steps": ("--solver", "sgd"),
    "ATS": ("--method", "ATS", "--features", "features"),
    "Platt": ("--method", "Platt"),
    "TS-grid": ("--method", "TS-grid", *SAMPLED),
    "select": ("--select", "--validation", "v.jsonl", "--features", "features", *SAMPLED),
}
KILLS = 15
HOW = ("cut short", "before", "after")
#: Loads everything once. Each line is a command, run in a fork, which kills itself at a file or after a time.
#: Blocks are small, so that there is much to go on from.
CODE = """
import json, os, signal, sys
from pathlib import Path
import torch, transformers
import semcal.models.causal_lm, semcal.recalibration.choosing, semcal.cli.fit
from semcal.cli import main
from semcal.recalibration import feature_store
from semcal.models import sampling as sample

torch.set_num_threads(1)
feature_store.BLOCK, sample.BLOCK_TOKENS = 8, 16
replace = Path.replace

def run(name, how, seconds, told, arguments):
    os.dup2(os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    os.dup2(1, 2)
    def replaced(path, target):
        here = str(Path(target).relative_to(Path.cwd()) if Path(target).is_absolute() else target)
        if here == name and how == "cut short":
            os.truncate(path, path.stat().st_size // 2)
        if here == name and how != "after":
            os.kill(os.getpid(), signal.SIGKILL)
        done = replace(path, target)
        with open(told, "a") as handle:
            handle.write(here + "\\n")
        if here == name:
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    Path.replace = replaced
    signal.setitimer(signal.ITIMER_REAL, seconds)
    sys.argv[1:] = arguments
    sys.exit(main())

for line in sys.stdin:
    asked = json.loads(line)
    os.chdir(asked.pop("folder"))
    child = os.fork()
    if child == 0:
        run(**asked)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Shell:
    """Runs commands in a folder, in one process after the other."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CODE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(self, folder: Path, *arguments: Any, name: str = "", how: str = "", seconds: float = 0) -> int:
        """The exit code; below zero for a command that killed itself at a file or after some seconds."""
        told = str(folder.with_suffix(".told"))
        asked = {"folder": str(folder), "name": name, "how": how, "seconds": seconds, "told": told}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({**asked, "arguments": list(map(str, arguments))}) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    made = Shell()
    yield made
    made.process.communicate(timeout=60)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_models.save(tmp_path_factory.mktemp("model")))


def made(folder: Path) -> Path:
    """A folder with the questions."""
    folder.mkdir()
    write(folder / "q.jsonl", QUESTIONS[:54])
    write(folder / "v.jsonl", QUESTIONS[60:])
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Everything but what was said, and what a killed process was writing; unfinished work as well."""
    files = [path for path in folder.rglob("[!.]*") if path.is_file() and path.name != "said"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_fifteen_kills_of_a_fit_change_nothing(way: str, shell: Shell, model: str, tmp_path: Path) -> None:
    command = ("fit", "q.jsonl", "--model", model, "--out", "out", "-q", *WAYS[way])
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    whole = made(tmp_path / "whole")
    assert shell.run(whole, *command) == 0, (whole / "said").read_text()
    expected = contents(whole)
    written = whole.with_suffix(".told").read_text().splitlines()
    folder, kills, tries = made(tmp_path / "0"), 0, 0
    while kills < KILLS:
        tries += 1
        moment = {
            "name": rng.choice(written),
            "how": rng.choice(HOW),
            "seconds": rng.uniform(0.3, 3) * (tries % 3 == 0),
        }
        code = shell.run(folder, *command, **moment)
        said = (folder / "said").read_text()
        assert code <= 0 or (code == 2 and "already" in said), (seed, moment, said)
        assert "Traceback" not in said
        kills += code < 0
        if code >= 0:  # it was through before the moment came
            assert contents(folder) == expected, (seed, moment)
            folder = made(tmp_path / str(tries))
        assert tries < 5 * KILLS, seed
    assert shell.run(folder, *command) == 0, (seed, (folder / "said").read_text())
    assert contents(folder) == expected, seed
