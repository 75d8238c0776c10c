"""What a run was made with, and what it cost: versions, machine, memory, seconds by stage."""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

__all__ = ["PACKAGES", "Clock", "environment", "peak_memory_mb", "versions"]

PACKAGES = ("semcal", "torch", "transformers", "numpy", "scipy", "rapidfuzz", "matplotlib")


def versions() -> dict[str, str | None]:
    """Return the installed version of each package that results depend on (None if absent)."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def peak_memory_mb() -> float:
    """Return the largest resident memory of this process so far, in megabytes (10⁶ bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e6


def environment() -> dict[str, Any]:
    """Return versions and machine as plain data."""
    return {
        "versions": versions(),
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
    }


class Clock:
    """Seconds spent in each stage, added up over calls."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time inside the block towards `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
