"""What a run has cost: seconds by stage, memory, and what fits took."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from semcal.workers import Peak


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


Record = Mapping[str, Any]
_FIT = "fit "


def fit_label(model: str, method: str) -> str:
    """What the time of a fit is counted towards."""
    return f"{_FIT}{method} {model}"


def added(
    before: Record, *, seconds: Mapping[str, float], peaks: Mapping[str, float], made: Mapping[str, int]
) -> dict[str, Any]:
    """Add what a session has spent to what is recorded.

    `seconds` (of CPU), `peaks` (memory, 10⁶ bytes) and `made` (rows) are by stage, those of fits by
    `fit_label`. Returns {cpu_seconds, peak_memory_mb_by_stage, fits}: by stage, by stage, and {seconds, fits}
    by model and method.
    """
    spent: Counter[str] = Counter(before.get("cpu_seconds", {}))
    highest = dict(before.get("peak_memory_mb_by_stage", {}))
    for label, more in seconds.items():
        spent[_stage(label)] += more  # type: ignore[assignment]
    for label, peak in peaks.items():
        highest[_stage(label)] = max(peak, highest.get(_stage(label), 0.0))
    fits = {model: dict(of_model) for model, of_model in before.get("fits", {}).items()}
    for label in dict.fromkeys(label for label in (*seconds, *made) if label.startswith(_FIT)):
        method, _, model = label.removeprefix(_FIT).partition(" ")
        recorded = fits.setdefault(model, {}).get(method, {"seconds": 0.0, "fits": 0})
        fits[model][method] = {
            "seconds": recorded["seconds"] + seconds.get(label, 0.0),
            "fits": recorded["fits"] + made.get(label, 0),
        }
    return {"cpu_seconds": dict(spent), "peak_memory_mb_by_stage": highest, "fits": fits}


def higher(before: Record, peak: Peak) -> dict[str, Any]:
    """The higher of a session's peak of memory and the one on record, if that counts the same.

    >>> before = Peak(900.0, "all of it").record()
    >>> higher(before, Peak(800.0, "all of it"))["peak_memory_mb"]
    900.0
    >>> higher(before, Peak(800.0, "something else"))["peak_memory_mb"]
    800.0
    """
    recorded = before.get("peak_memory_mb", 0.0) if before.get("peak_memory_counts") == peak.counts else 0.0
    return Peak(max(peak.mb, recorded), peak.counts).record()


def _stage(label: str) -> str:
    return "fit" if label.startswith(_FIT) else label
