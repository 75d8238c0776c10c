"""Memory of all processes at the same time: nothing is counted twice, and what is freed goes back."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path

import numpy as np
import psutil
import pytest

from semcal.workers import (
    RESIDENT,
    TOGETHER,
    MemoryMonitor,
    Peak,
    SerialExecutor,
    memory_in_use,
    run_job,
    trim_memory,
)

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="the system does not say what processes share"
)

HOLD = "held = b'x' * int(200e6); print('held', flush=True); input()"
IN_A_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLD!r}])"
FORK = """
import os
from semcal.workers import memory_in_use
held = b"x" * int(200e6)
before = memory_in_use().mb
reader, writer = os.pipe()
if os.fork():
    print(before, memory_in_use().mb)
else:
    os.close(writer)
    os.read(reader, 1)  # until the first has written its line, or has failed
    os._exit(0)
os.close(writer)
"""


@pytest.fixture(autouse=True)
def no_server() -> None:
    """No process of other tests is left that still imports: it descends from this one, so it would count."""
    forkserver._forkserver._stop()  # another starts when one is needed


@contextmanager
def holding(code: str = HOLD) -> Iterator[None]:
    """A process that holds 200 MB, or one of its own that does."""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
        process.communicate("\n")


#: Megabytes that the process of the tests may give back, or come to share with another, between two looks.
SLACK = 10


@pytest.fixture
def watched() -> MemoryMonitor:
    watched = MemoryMonitor()
    watched.look()
    return watched


def test_what_two_processes_hold_one_after_the_other_is_counted_once(watched: MemoryMonitor) -> None:
    before = memory_in_use().mb
    for _ in range(2):
        with holding():
            watched.look()
    assert 200 - SLACK <= watched.peak.mb - before < 300


def test_what_two_processes_hold_at_the_same_time_is_added_up(watched: MemoryMonitor) -> None:
    before = memory_in_use().mb
    with holding(), holding():
        watched.look()
    assert 390 <= watched.peak.mb - before < 500


def test_the_children_of_a_child_count(watched: MemoryMonitor) -> None:
    before = memory_in_use().mb
    with holding(IN_A_CHILD):
        watched.look()
    assert 200 - SLACK <= watched.peak.mb - before < 300


def test_pages_that_two_processes_share_count_once() -> None:
    found = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True)
    alone, both = map(float, found.stdout.split())
    assert alone >= 200
    assert both - alone < 50


def test_a_thread_looks_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semcal.workers.SHARE", 1.0)  # of its time: else it would pause for seconds
    watched = MemoryMonitor(interval=0.01)
    watched.start()
    before, deadline = watched.peak.mb, time.monotonic() + 30
    with holding():
        while watched.peak.mb < before + 200 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert [thread for thread in threading.enumerate() if thread.name == "semcal memory"]
    watched.stop()
    assert watched.peak.mb >= before + 200
    assert not [thread for thread in threading.enumerate() if thread.name == "semcal memory"]


def test_a_crew_says_what_all_took_together_and_at_least_what_one_took() -> None:
    with SerialExecutor(None) as executor:
        with holding():
            now = memory_in_use().mb
            assert executor.peak_memory.mb >= now - SLACK
        most = executor.peak_memory.mb + 500.0  # more than this process ever took, in other tests too
        executor.peaks["sample"] = most
        assert executor.peak_memory == Peak(most, TOGETHER)


def test_where_the_system_does_not_say_resident_memory_is_added_up_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(psutil.Process, "memory_full_info", psutil.Process.memory_info)
    with SerialExecutor(None) as executor:
        assert executor.peak_memory.counts == RESIDENT
        assert executor.peak_memory.mb > 20
    assert str(Peak(1234.5, RESIDENT)) == f"1234 MB ({RESIDENT})"


def freed() -> np.ndarray:
    """Take 200 MB in pieces and free all but the last, which keeps the C library from shrinking."""
    pieces = [np.ones(64_000, dtype=np.uint8) for _ in range(3125)]
    return pieces[-1]


def test_freed_memory_goes_back_to_the_system_when_it_is_told_to() -> None:
    kept = freed()
    before = memory_in_use().mb
    trim_memory()
    assert before - memory_in_use().mb > 150
    assert kept.all()


@pytest.mark.parametrize(("seconds", "least", "most"), [(1.0, -math.inf, 50), (0.0, 100, 250)])
def test_a_long_job_leaves_nothing_that_it_has_freed(seconds: float, least: float, most: float) -> None:
    trim_memory()
    before, clock = memory_in_use().mb, iter([0.0, seconds])
    outcome = run_job(lambda *_: freed(), None, lambda _: None, clock=lambda: next(clock))
    assert outcome.error is None
    assert least <= memory_in_use().mb - before <= most
