"""A grid that is killed in any stage, or finds the disk full, goes on to the bytes of one that was not."""

from __future__ import annotations

import os
import random
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mill_grid as mills
import pytest
from threadpoolctl import threadpool_limits

from semcal.experiment.analyses import analyse
from semcal.workers import PRELOAD, start_context

pytestmark = [
    pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning"),
    pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="the system cannot limit the size of a file"),
]

SMALL = (
    *mills.SMALL[1:],
    "methods=[Base, TS, Calibrated]",
    "calibrated={questions: 8}",
    "evaluation.resamples=100",
)
STAGES = ("features", "fit", "sample", "cluster", "grade", "select", "measure", "evaluate")
STAGES += ("calibrate", "apply")
#: The stage whose work a file outside of blocks/ is.
FILES = {
    "work": "features",
    "recalibrators": "fit",
    "selection": "measure",
    "calibrations": "calibrate",
    "samples": "measure",
    "results.json": "evaluate",
}
HOW = ("cut short", "before", "after")


@dataclass(frozen=True)
class Moment:
    """While a file of the run folder gets its name: cut short before, or before, or after it."""

    name: str
    how: str


def stage_of(name: str) -> str:
    first, *others = Path(name).parts
    return others[0] if first == "blocks" else FILES.get(first, first)


def deadly(folder: Path, moment: Moment) -> Callable[[Path, Path], Any]:
    """`Path.replace`, by which every finished file gets its name, that kills its process at a moment."""
    replace = Path.replace

    def replaced(path: Path, target: Path) -> Any:
        if target == folder / moment.name:
            if moment.how == "cut short":
                os.truncate(path, path.stat().st_size // 2)
            elif moment.how == "after":
                replace(path, target)
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(path, target)

    return replaced


def ran(folder: Path, data: Path) -> None:
    """A run and its figures."""
    mills.run(folder, mills.settings(data, *SMALL))
    analyse(folder)


def contents(folder: Path) -> dict[str, bytes]:
    """What must be the same, without the unfinished files of processes that were killed."""
    path = folder / "results.json"
    found = mills.contents(folder) | ({path.name: path.read_bytes()} if path.exists() else {})
    return {name: content for name, content in found.items() if ".semcal.part" not in name}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory) -> tuple[dict[str, bytes], list[str]]:
    """The contents of an uninterrupted run, and its files in the order in which they got their names."""
    folder, written = tmp_path_factory.mktemp("whole"), dict[str, None]()
    replace = Path.replace

    def told(path: Path, target: Path) -> Any:
        written[str(target.relative_to(folder))] = None
        return replace(path, target)

    # Worker processes have one thread, and each number of threads adds up in another order.
    with pytest.MonkeyPatch.context() as patch, threadpool_limits(1):
        patch.setattr(Path, "replace", told)
        ran(folder, data)
    return contents(folder), list(written)


def _run(folder: Path, data: Path, moment: Moment | None, largest: int | None) -> None:
    if moment is not None:
        Path.replace = deadly(folder, moment)  # type: ignore[method-assign]
    if largest is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    ran(folder, data)


def ended(folder: Path, data: Path, moment: Moment | None = None, largest: int | None = None) -> int:
    """How the process of a run ended.

    It parts from a clean server, never from this process: threads of OpenMP that other tests have used here
    would be gone in a fork, and torch would wait for them for ever.
    """
    process = start_context(PRELOAD).Process(target=_run, args=(folder, data, moment, largest))
    process.start()
    process.join(300)
    assert process.exitcode is not None, process.kill()
    return process.exitcode


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_killed_in_every_stage_ends_at_the_same_bytes(
    seed: int, whole, data: Path, tmp_path: Path
) -> None:
    """Ten kills in one folder, one a stage, each at a file and in a way that the seed draws."""
    expected, written = whole
    rng = random.Random(seed)
    names = [rng.choice([name for name in written if stage_of(name) == stage]) for stage in STAGES]
    for name in sorted(names, key=written.index):
        moment = Moment(name, rng.choice(HOW))
        assert ended(tmp_path, data, moment) == -signal.SIGKILL, moment
        assert contents(tmp_path).items() <= expected.items()
    assert ended(tmp_path, data) == 0
    assert contents(tmp_path) == expected
    assert not [path.name for path in tmp_path.rglob("*.part")]


def test_a_full_disk_is_an_error_and_keeps_what_was_finished(whole, data: Path, tmp_path: Path) -> None:
    """No file may grow beyond 12 kB: blocks of samples fit, verdicts and rows of tests do not."""
    expected, _ = whole
    assert ended(tmp_path, data, largest=12_000) == 1
    kept = contents(tmp_path)
    assert 0 < len(kept) < len(expected)
    assert kept.items() <= expected.items()
    assert ended(tmp_path, data) == 0
    assert contents(tmp_path) == expected
    assert not [path.name for path in tmp_path.rglob("*.part")]
