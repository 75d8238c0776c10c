"""A grid that is killed at any moment, or finds the disk full, goes on to the bytes of one that was not."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import signal
import time
from pathlib import Path

import mill_grid as mills
import pytest

pytestmark = [
    pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="a run is killed in a forked process"),
]

SMALL = ("methods=[Base, TS]", "sampling.counts=[6]", "fitting.losses=[[NLL, null]]")
FORK = multiprocessing.get_context("fork") if hasattr(os, "fork") else None


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory) -> tuple[dict[str, bytes], float]:
    """The contents of an uninterrupted run, and how many seconds it took."""
    folder = tmp_path_factory.mktemp("whole")
    start = time.perf_counter()
    mills.run(folder, mills.settings(data, *SMALL))
    return mills.contents(folder), time.perf_counter() - start


def _run(folder: Path, data: Path, largest: int | None) -> None:
    if largest is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    mills.run(folder, mills.settings(data, *SMALL))


def started(folder: Path, data: Path, largest: int | None = None):
    process = FORK.Process(target=_run, args=(folder, data, largest))
    process.start()
    return process


def killed_and_resumed(folder: Path, data: Path, seconds: float, kills: int, rng: random.Random) -> int:
    """Kill the run so often at moments within `seconds`, then let it end; how often it was still at work."""
    hit = 0
    for _ in range(kills):
        process = started(folder, data)
        process.join(rng.uniform(0, seconds))
        hit += process.is_alive()
        process.kill()
        process.join()
    last = started(folder, data)
    last.join()
    assert last.exitcode == 0
    return hit


def test_a_run_killed_at_random_moments_ends_at_the_same_bytes(whole, data: Path, tmp_path: Path) -> None:
    contents, seconds = whole
    assert killed_and_resumed(tmp_path, data, seconds / 2, 2, random.Random(5)) > 0
    assert mills.contents(tmp_path) == contents


@pytest.mark.slow
def test_twenty_five_kills_in_all_stages_change_nothing(whole, data: Path, tmp_path: Path) -> None:
    contents, seconds = whole
    rng, hits = random.Random(), 0
    for turn in range(5):
        folder = tmp_path / str(turn)
        hits += killed_and_resumed(folder, data, seconds / 2, 5, rng)
        assert mills.contents(folder) == contents
    assert hits > 5


def test_a_full_disk_is_an_error_and_keeps_what_was_finished(whole, data: Path, tmp_path: Path) -> None:
    """No file may grow beyond 12 kB: blocks of samples fit, verdicts and rows of tests do not."""
    contents, _ = whole
    process = started(tmp_path, data, 12_000)
    process.join()
    assert process.exitcode == 1
    kept = mills.contents(tmp_path)
    assert 0 < len(kept) < len(contents)
    assert kept.items() <= contents.items()
    mills.run(tmp_path, mills.settings(data, *SMALL))
    assert mills.contents(tmp_path) == contents
    assert not [path.name for path in tmp_path.rglob("*.part")]
