"""What a run was made with, and what it cost: versions, machine, seconds by stage."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("semcal", "torch", "transformers", "numpy", "scipy", "rapidfuzz", "matplotlib")


def versions() -> dict[str, str | None]:
    """Return the installed version of each package that results depend on (None if absent)."""
    installed: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            installed[package] = None
    return installed


def environment() -> dict[str, Any]:
    """Return versions and machine as plain data."""
    return {
        "versions": versions(),
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
    }


class Clock:
    """CPU seconds by stage, of this process and those that work for it, and seconds in all."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}  # of CPU, in the order in which they were first counted
        self._begun = time.perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds since the clock was made."""
        return time.perf_counter() - self._begun

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the CPU time of this process inside the block towards `name`."""
        start = time.process_time()
        try:
            yield
        finally:
            self.add({name: time.process_time() - start})

    def add(self, seconds: Mapping[str, float]) -> None:
        """Count CPU time that was spent elsewhere."""
        for name, more in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + more

    def table(self) -> list[str]:
        """A line for each stage: its CPU seconds, and its share of all of them; the largest first."""
        total = sum(self.seconds.values()) or 1.0
        ranked = sorted(self.seconds.items(), key=lambda pair: -pair[1])
        return [f"{name:<18} {spent:7.1f} s {spent / total:5.0%}" for name, spent in ranked]
