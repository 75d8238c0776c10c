"""Memory usage of a command: what this process and all that it has started take at the same time.

Linux says of every process its proportional set size (PSS): a page that n processes share counts 1/n in each,
so that a sum over processes counts it once. It is sampled, for no system keeps the largest sum; a peak
between two samples is missed. Elsewhere nothing can be said but what each process took at most by itself.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["SUMMED", "TOGETHER", "MemoryMonitor", "Peak", "memory_in_use_mb", "trim_memory"]

#: What a peak counts, in words, as environment.json has them.
TOGETHER = "all processes at the same time, shared pages once"
SUMMED = "the sum of what each process took at most, whenever that was; shared pages more than once"
#: Seconds between two samples; more where looking takes more than this share of the time.
INTERVAL, SHARE = 1.0, 0.005


@dataclass(frozen=True)
class Peak:
    """The largest memory of a command."""

    mb: float  # 10⁶ bytes
    counts: str  # `TOGETHER` or `SUMMED`

    def record(self) -> dict[str, Any]:
        """What environment.json holds of it."""
        return {"peak_memory_mb": self.mb, "peak_memory_counts": self.counts}

    def __str__(self) -> str:
        return f"{self.mb:.0f} MB ({self.counts})"


def memory_in_use_mb() -> float | None:
    """Return what this process and all that descend from it take now, in 10⁶ bytes.

    Resident memory, pages that several processes share counted once; None where the system does not say.
    """
    own = os.getpid()
    if not Path(f"/proc/{own}/task/{own}/children").exists():  # nor does every Linux
        return None
    with suppress(OSError):
        return (_pss(own) + sum(map(_pss_or_gone, _descendants(own)))) / 1e6
    return None


class MemoryMonitor:
    """Samples the memory of this process and all that descend from it, by a thread.

    `peak_mb` is the largest sum so far, as `memory_in_use_mb` counts; None where the system does not say.
    """

    def __init__(self, *, interval: float = INTERVAL) -> None:
        self._interval = interval
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.peak_mb: float | None = None

    def start(self) -> None:
        """Look every so often from now on."""
        if self._thread is None and self.look() is not None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._watch, name="semcal memory", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Look no more; the peak stays."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None

    def look(self) -> float | None:
        """The sum now; the peak is at least that from now on."""
        found = memory_in_use_mb()
        if found is not None:
            self.peak_mb = max(found, self.peak_mb or 0.0)
        return found

    def _watch(self) -> None:
        pause = self._interval
        while not self._stop.wait(pause):
            begun = time.thread_time()
            self.look()
            pause = max(self._interval, (time.thread_time() - begun) / SHARE)


def trim_memory() -> None:
    """Let the C library return to the system what has been freed; nothing where it cannot."""
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], object] | None:
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def _pss(pid: int) -> int:
    """Proportional set size in bytes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/{pid}/smaps_rollup has no line Pss")


def _pss_or_gone(pid: int) -> int:
    """The same of a process that may have ended; what has ended takes nothing."""
    try:
        return _pss(pid)
    except OSError:
        return 0


def _descendants(pid: int) -> Iterator[int]:
    """All processes that a process has started, and those that they have."""
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        children: list[int] = []
        with suppress(OSError):
            children = list(map(int, path.read_text(encoding="ascii").split()))
        for child in children:
            yield child
            yield from _descendants(child)
