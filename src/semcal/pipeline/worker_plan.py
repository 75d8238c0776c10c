"""How many worker processes of how many threads: as many as the processors and the size of the models allow.

Processes of one thread share no work inside a matrix product, so they wait for nothing; threads do. They cost
memory, though, and a start.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from semcal.errors import UsageError

__all__ = ["WorkerPlan", "available_memory", "cores", "has_gpu", "on_disk", "plan_workers", "uses_cpu"]

#: What a process takes beside its weights: libraries, keys and values, rows.
OVERHEAD = 5 * 10**8
#: Weights from which one process by itself gains from more than one thread (docs/workers.md).
THREADS_FROM = 2 * 10**8
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


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
    from semcal.engine.checkpoints import choose_device

    return choose_device().type == "cpu"
