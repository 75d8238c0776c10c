"""Freed memory goes back to the system, and what a run took at most is known."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import psutil
import pytest

from semcal.workers import SerialExecutor, peak_memory_mb, run_job, trim_memory


def resident() -> float:
    return psutil.Process().memory_info().rss / 1e6


def freed() -> np.ndarray:
    """Take 200 MB in pieces and free all but the last, which keeps the C library from shrinking."""
    pieces = [np.ones(64_000, dtype=np.uint8) for _ in range(3125)]
    return pieces[-1]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library keeps what is freed")
@pytest.mark.parametrize(("seconds", "least", "most"), [(1.0, -math.inf, 50), (0.0, 100, 250)])
def test_a_long_job_leaves_nothing_that_it_has_freed(seconds: float, least: float, most: float) -> None:
    trim_memory()
    before, clock = resident(), iter([0.0, seconds])
    outcome = run_job(lambda *_: freed(), None, lambda _: None, clock=lambda: next(clock))
    assert outcome.error is None
    assert least <= resident() - before <= most


def test_an_executor_says_what_all_processes_can_have_taken() -> None:
    with SerialExecutor(None) as executor:
        assert executor.peak_memory_mb == peak_memory_mb() >= resident() - 1
        executor.n_processes, executor.peaks = 3, {"sample": 500.0, "grade": 200.0}
        assert executor.peak_memory_mb == peak_memory_mb() + 1500
