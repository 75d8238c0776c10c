"""What carries out a command: this process or worker processes, which do blocks of rows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar

from semcal.cli import options as opt
from semcal.cli.console import debug
from semcal.errors import UsageError
from semcal.models.equivalence import names_a_server

if TYPE_CHECKING:
    from semcal.workers import Executor, WorkerPlan

Anything = TypeVar("Anything")


def choose_workers(
    requested: int | None,
    label: str,
    *,
    device: str | None,
    blocks: int | None,
    model: str | None = None,
    equivalence: str | None = None,
    at_once: bool = False,
) -> WorkerPlan:
    """Choose how many processes a command uses, `at_once` or when that pays; -v says so."""
    from semcal.workers import WorkerPlan, cores, plan_workers

    if names_a_server(model) or names_a_server(equivalence):
        if requested is not None:
            raise UsageError("one process asks a server; leave --workers out, and use --concurrency")
        return WorkerPlan(1, cores(), "a server answers")
    weights = opt.weights_of(model=model, equivalence=equivalence)
    plan = plan_workers(requested, weights=weights, blocks=blocks, on_cpu=_uses_cpu(device))
    surely = at_once or plan.requested or plan.n_workers == 1
    debug(f"{label}: {'' if surely else 'up to '}{plan}")
    return plan


def _uses_cpu(device: str | None) -> bool:
    """Whether models run on the CPU; where a GPU may be, PyTorch is asked."""
    from semcal.workers import has_gpu

    if device is not None or not has_gpu():
        return device in (None, "cpu")
    from semcal.models.loading import choose_device

    return choose_device().type == "cpu"


@contextmanager
def open_executor(
    plan: WorkerPlan, load: Callable[[], Anything], *, at_once: bool = False
) -> Iterator[tuple[Executor[Anything], Callable[[], Anything]]]:
    """Give the executor, and what loads this process's own state; say at the end what memory it took.

    Workers that were asked for start `at_once`, and this process loads nothing before it is asked to; workers
    that were chosen start when that pays.
    """
    from semcal.workers import ProcessExecutor, SerialExecutor

    state = cache(partial(_loaded, load, plan.n_threads))
    chosen: Executor[Anything]
    if plan.n_workers == 1:
        chosen = SerialExecutor(state())
    else:
        chosen = ProcessExecutor(load, plan.n_workers, state=None if at_once or plan.requested else state())
    with chosen as executor:
        yield executor, state
        show_peak(executor)


def _loaded(load: Callable[[], Anything], n_threads: int) -> Anything:
    """The state of a process that uses so many threads, or fewer if PyTorch was told to (OMP_NUM_THREADS)."""
    state = load()
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        torch.set_num_threads(min(n_threads, torch.get_num_threads()))
    return state


def show_peak(executor: Executor[Any]) -> None:
    """Say with -v how much memory was used at most."""
    workers = f" of this process and {executor.n_processes} more" if executor.n_processes else ""
    debug(f"peak memory{workers}: {executor.peak_memory}")


def peeked(items: Iterable[Anything], block: int, limit: int | None) -> tuple[Iterator[Anything], int | None]:
    """The items up to the limit, and the number of blocks that they make: 0, 1, or None for more."""
    limited = islice(items, limit)
    first = list(islice(limited, block + 1))
    return chain(first, limited), None if len(first) > block else min(1, len(first))
