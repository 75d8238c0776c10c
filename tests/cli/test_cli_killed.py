"""`semcal run` as a user types it, with real models, killed 25 times in all stages and begun again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

GRID = """
models: [{name: Llama, path: atlas}]
datasets: [{name: d, source: atlas-trivia, calibration_train: 24, validation: 8, test: 12}]
equivalence: atlas
methods: [Base, TS, ATS, Platt]
runs: {count: 2}
sampling: {m: 4, counts: [2, 6], max_new_tokens: {closed_book: 12, open_book: 12}}
fitting: {losses: [[NLL, null]], learning_rate: 1.0e-3, weight_decays: [0]}
evaluation: {resamples: 100}
block: 4
"""
#: Every finished file gets its name by `Path.replace`: it tells of each, and kills its process at one.
CODE = """
import os, signal, sys, threading, time
from pathlib import Path
folder, told, name, how, wait = sys.argv[1:6]
replace = Path.replace

def die():
    time.sleep(float(wait))
    os.kill(os.getpid(), signal.SIGKILL)

def replaced(path, target):
    if not Path(target).is_relative_to(folder):  # a file of the user's cache
        return replace(path, target)
    here = str(Path(target).relative_to(folder))
    if here == name and how == "cut short":
        os.truncate(path, path.stat().st_size // 2)
    if here == name and how in ("cut short", "before"):
        os.kill(os.getpid(), signal.SIGKILL)
    done = replace(path, target)
    with open(told, "a") as handle:
        handle.write(here + "\\n")
    if here == name:
        threading.Thread(target=die, daemon=True).start()
        if how == "after":
            time.sleep(9)
    return done

Path.replace = replaced
sys.argv[1:] = sys.argv[6:]
from semcal.cli import main
sys.exit(main())
"""
HOW = ("cut short", "before", "after", "soon")
KILLS, TURNS = 25, 3


def semcal_run(folder: Path, name: str = "", how: str = "", wait: float = 0.0) -> int:
    """The exit code of the command, which may kill itself while or soon after it writes a file."""
    folder.mkdir(exist_ok=True)
    grid = folder.parent / "grid.yaml"
    grid.write_text(GRID)
    told = folder.parent / f"{folder.name}.told"
    command = [sys.executable, "-c", CODE, folder, told, name, how, wait]
    arguments = ["run", grid, "--out", folder, "--workers", 1, "-q"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        list(map(str, [*command, *arguments])), env=environment, check=False, capture_output=True
    ).returncode


def stage_of(name: str) -> str:
    first, *others = Path(name).parts
    return others[0] if first == "blocks" else first


def contents(folder: Path) -> dict[str, bytes]:
    """Everything that a run promises to be the same, byte for byte: all but what it cost."""
    kinds = ("samples", "selection", "recalibrators", "blocks", "tables", "figures", "results.json")
    files = [path for kind in kinds for path in (folder / kind, *(folder / kind).rglob("*"))]
    same = [path for path in files if path.is_file() and not path.name.startswith("cost-")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in same}


@dataclass(frozen=True)
class Uninterrupted:
    """A run that nothing stopped: its contents, its files in order, and the ones that kills are drawn at."""

    contents: dict[str, bytes]
    written: list[str]
    chosen: list[str]
    seed: int


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Uninterrupted:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert semcal_run(folder) == 0
    written = list(dict.fromkeys((folder.parent / "run.told").read_text().splitlines()))
    stages = list(dict.fromkeys(map(stage_of, written)))
    assert {"features", "fit", "sample", "cluster", "grade", "select", "measure"} <= set(stages)
    assert {"samples", "results.json", "tables", "report.html"} <= set(stages)
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    chosen = [rng.choice([name for name in written if stage_of(name) == stage]) for stage in stages]
    chosen += rng.sample([name for name in written if name not in chosen], KILLS - len(chosen))
    return Uninterrupted(contents(folder), written, chosen, seed)


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(TURNS))
def test_twenty_five_kills_in_all_stages_change_nothing(
    turn: int, whole: Uninterrupted, tmp_path: Path
) -> None:
    """The kills are dealt out in turns, each in a folder of its own; together they hit every stage."""
    rng, folder, kills = random.Random(whole.seed + turn), tmp_path / "run", 0
    names = sorted(whole.chosen[turn::TURNS], key=whole.written.index)
    for name in names:
        if (folder / name).exists():  # a kill soon after another file came after this one as well
            continue
        ways = HOW[:3] if name == whole.written[-1] else HOW  # soon after the last file the run is over
        moment = (name, rng.choice(ways), rng.uniform(0, 0.05))
        assert semcal_run(folder, *moment) == -signal.SIGKILL, (whole.seed, moment)
        kills += 1
    assert kills > len(names) / 2, whole.seed
    assert semcal_run(folder) == 0
    assert contents(folder) == whole.contents, whole.seed
