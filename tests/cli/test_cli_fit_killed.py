"""`semcal fit`, every method, killed at the files that it writes and begun again: the same bytes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_models
from invoking import write

pytestmark = pytest.mark.slow

QUESTIONS = [
    {"id": f"q{i}", "question": f"Who built mill number {i}?", "answers": ["Odo Brand", "Mira"]}
    for i in range(40)
]
#: Every finished file gets its name by `Path.replace`; states of trainings are written at every chance.
CODE = """
import os, signal, sys
from pathlib import Path
import semcal.recalibration.training_store as store
store.INTERVAL = 0
told, number, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
replace, seen = Path.replace, []

def replaced(path, target):
    seen.append(target)
    if len(seen) == number and how == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    done = replace(path, target)
    if len(seen) == number:
        os.kill(os.getpid(), signal.SIGKILL if how == "after" else signal.SIGTERM)
    with open(told, "a") as handle:
        handle.write(f"{target}\\n")
    return done

Path.replace = replaced
sys.argv[1:] = sys.argv[4:]
from semcal.cli import main
main()
"""
KILLS = 15
SHORT = ("--m", "2", "--max-new-tokens", "2")
METHODS = {
    "TS": (),
    "TS by sgd": ("--solver", "sgd"),
    "ATS": ("--method", "ATS"),
    "Platt": ("--method", "Platt"),
    "TS-grid": ("--method", "TS-grid", *SHORT),
    "select": ("--method", "Platt", "--select", "--validation", "v.jsonl", *SHORT),
    "curve": ("--learning-curve", "--validation", "v.jsonl", *SHORT),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_models.save(tmp_path_factory.mktemp("model")))


def fitted(out: str, method: str, model: str, folder: Path, number: int = 0, how: str = "") -> int:
    """The exit code of a fit, which is killed at the file of a number."""
    command = [sys.executable, "-c", CODE, f"{out}.told", str(number), how, "fit", "q.jsonl"]
    command += ["--model", model, "--out", out, "-q", *METHODS[method]]
    if method not in ("TS-grid", "curve"):
        command += ["--features", f"{out}.states"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    return done.returncode


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("method", METHODS)
def test_a_fit_killed_fifteen_times_ends_at_the_same_bytes(method: str, model: str, tmp_path: Path) -> None:
    write(tmp_path / "q.jsonl", QUESTIONS[:30])
    write(tmp_path / "v.jsonl", QUESTIONS[30:])
    assert fitted("whole", method, model, tmp_path) == 0
    files = len((tmp_path / "whole.told").read_text().splitlines())
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    for turn in range(KILLS):
        number, how = rng.randint(1, max(2, files // KILLS)), rng.choice(["before", "after", "term"])
        code = fitted("cut", method, model, tmp_path, number, how)
        if code in (0, 2):  # it has come to its end, or had: what is there already is not replaced
            break
        assert code == (143 if how == "term" else -signal.SIGKILL), (seed, turn)
    else:
        assert fitted("cut", method, model, tmp_path) == 0
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole"), seed
    assert not list(tmp_path.glob("*.unfinished"))
    assert not list(tmp_path.rglob(".*")), seed
