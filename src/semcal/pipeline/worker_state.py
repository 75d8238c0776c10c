"""Workers: what each holds, how many this machine allows, and what memory they take.

Processes of one thread share no work inside a matrix product, so they wait for nothing; threads do. They cost
memory, though, and a start.

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
from typing import TYPE_CHECKING, Any

from semcal.errors import StoreError, UsageError

if TYPE_CHECKING:
    from semcal.engine.equivalence import Equivalence
    from semcal.engine.language_model import LanguageModel, Sampler
    from semcal.recalibration.attentive import AnyRecalibrator

#: What a process takes beside its weights: libraries, keys and values, rows.
OVERHEAD = 5 * 10**8
#: Weights from which one process by itself gains from more than one thread (docs/workers.md).
THREADS_FROM = 2 * 10**8
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "*.onnx")

#: What a peak counts, in words, as environment.json has them.
TOGETHER = "all processes at the same time, shared pages once"
SUMMED = "the sum of what each process took at most, whenever that was; shared pages more than once"
#: Seconds between two samples; more where looking takes more than this share of the time.
INTERVAL, SHARE = 1.0, 0.005


@dataclass(frozen=True)
class WorkerPlan:
    """A number of worker processes, the threads of each, and why."""

    n_workers: int  # 1 is this process by itself
    n_threads: int  # of PyTorch in each process
    reason: str
    asked: bool = False  # whether that many were asked for

    def __str__(self) -> str:
        processes = "1 process" if self.n_workers == 1 else f"{self.n_workers} processes"
        threads = "1 thread" if self.n_threads == 1 else f"{self.n_threads} threads"
        return f"{processes} of {threads} ({self.reason})"


def plan_workers(
    asked: int | None,
    *,
    weights: int | None,
    blocks: int | None = None,
    on_cpu: bool = True,
    processors: int | None = None,
    memory: int | None = None,
) -> WorkerPlan:
    """Choose how many processes do the work; UsageError if less than one is asked for.

    As many as there are processors, `blocks` of questions (if known), and copies of the models' `weights`
    (bytes; unknown: one process) that fit into the memory that is free: several processes of one thread are
    faster than one of several threads for every size that was tried (docs/workers.md). A process by itself
    gets all processors as threads if its models are large. A number that was `asked` for is that many
    processes of one thread each. Where models do not run on a CPU, one process alone serves the device.
    `processors` and `memory` are by default what this machine says that it has.

    >>> print(plan_workers(None, weights=10**7, blocks=15, processors=2, memory=8 * 10**9))
    2 processes of 1 thread (2 processors, weights of 10 MB)
    >>> print(plan_workers(None, weights=16 * 10**9, blocks=15, processors=8, memory=24 * 10**9))
    1 process of 8 threads (no memory for a second copy of 16000 MB)
    """
    if asked is not None and asked < 1:
        raise UsageError(f"--workers is {asked}; give 1 or more, or leave it out to have it chosen")
    processors = processors or cores()
    if asked is not None:
        return WorkerPlan(asked, 1, "as asked", asked=True)
    if not on_cpu:
        return WorkerPlan(1, processors, "the model does not run on the CPU")
    if weights is None:
        return WorkerPlan(1, processors, "the size of the model is not known before it is here")
    size = f"{weights / 1e6:.0f} MB"
    memory = available_memory() if memory is None else memory
    room = processors if memory is None else memory // (weights + OVERHEAD)
    alone = processors if weights >= THREADS_FROM else 1
    if blocks is not None and blocks <= 1:
        return WorkerPlan(1, alone, "one block of questions")
    if processors > 1 and room <= 1:
        return WorkerPlan(1, alone, f"no memory for a second copy of {size}")
    count = max(1, min(processors, room, blocks or processors))
    return WorkerPlan(count, 1, f"{processors} processor{'s' * (processors > 1)}, weights of {size}")


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory() -> int | None:
    """Bytes of memory that are free or can be freed; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(found["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in found else None


def on_disk(directory: Path) -> int:
    """Bytes of the weights in a checkpoint's directory; 0 if there are none."""
    sizes = [sum(path.stat().st_size for path in directory.glob(pattern)) for pattern in _WEIGHTS]
    return next((size for size in sizes if size), 0)


def has_gpu() -> bool:
    """Whether there may be a GPU, without asking PyTorch."""
    nodes = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
    return not sys.platform.startswith("linux") or any(map(os.path.exists, nodes))


def uses_cpu(device: str | None) -> bool:
    """Whether models run on the CPU; where a GPU may be, PyTorch is asked."""
    if device is not None:
        return device == "cpu"
    if not has_gpu():
        return True
    from semcal.engine.loading import choose_device

    return choose_device().type == "cpu"


# ---- The memory of a command -------------------------------------------------------------------------------


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


@dataclass(frozen=True)
class RecalibratorSource:
    """Where a recalibrator comes from: its name (Base, SE), a temperature, or a fit in the run folder."""

    name: str
    temperature: float | None = None
    folder: str | None = None  # relative to the run folder
    fingerprint: str | None = None

    def key(self) -> dict[str, Any]:
        """What it is, as it names blocks."""
        return {name: value for name, value in vars(self).items() if value is not None}


class WorkerState:
    """The models of a worker, and the run folder that recalibrators are read from.

    Jobs that need no model of a kind do without it.
    """

    def __init__(
        self,
        language_model: Sampler | None = None,
        equivalence: Equivalence | None = None,
        *,
        folder: Path = Path(),
    ) -> None:
        self.folder = folder
        self._language_model = language_model
        self._equivalence = equivalence
        self._fitted: dict[str, AnyRecalibrator] = {}

    @property
    def model(self) -> Sampler:
        """What answers are drawn from; it must be there."""
        assert self._language_model is not None
        return self._language_model

    @property
    def language_model(self) -> LanguageModel:
        """The language model, which must be there; UsageError if it is a server."""
        from semcal.engine.language_model import with_states

        return with_states(self.model, "this needs hidden states or logits")

    @property
    def equivalence(self) -> Equivalence:
        """What decides which answers mean the same; it must be there."""
        assert self._equivalence is not None
        return self._equivalence

    def recalibrator(self, source: RecalibratorSource | AnyRecalibrator) -> AnyRecalibrator:
        """What a source stands for.

        StoreError if what lies in the run folder is damaged or another one.
        """
        from semcal.recalibration.attentive import fingerprint
        from semcal.recalibration.saving import from_pretrained
        from semcal.recalibration.temperature import SE, Base, Temperature

        if not isinstance(source, RecalibratorSource):
            return source
        if source.temperature is not None:
            return Temperature(source.temperature)
        if source.folder is None or source.fingerprint is None:
            return {"Base": Base, "SE": SE}[source.name]()
        if source.fingerprint not in self._fitted:
            found, _ = from_pretrained(self.folder / source.folder)
            if fingerprint(found) != source.fingerprint:
                raise StoreError(
                    f"{self.folder / source.folder} holds another recalibrator than the one that this run "
                    "was made with; delete the folder blocks/fit and run the same command again"
                )
            self._fitted[source.fingerprint] = found
        return self._fitted[source.fingerprint]
