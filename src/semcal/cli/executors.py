"""The executor of a command, and the blocks of a row command as its jobs."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from semcal.cli.console import debug
from semcal.cli.rows import Item
from semcal.engine.equivalence import names_a_server
from semcal.errors import UsageError
from semcal.pipeline.store import UnfinishedWork

if TYPE_CHECKING:
    from semcal.pipeline.executor import Executor, Job
    from semcal.pipeline.machine import WorkerPlan
    from semcal.pipeline.worker_state import WorkerState

#: Stages whose jobs use the NLI model.
NLI_STAGES = ("cluster", "nli", "plain")
Rows = Sequence[Mapping[str, Any]]
Anything = TypeVar("Anything")


def choose_workers(
    asked: int | None,
    label: str,
    *,
    device: str | None,
    blocks: int | None,
    model: str | None = None,
    equivalence: str | None = None,
    at_once: bool = False,
) -> WorkerPlan:
    """Choose how many processes a command uses, `at_once` or when that pays; -v says so."""
    from semcal.cli.options import weights_of
    from semcal.pipeline.machine import WorkerPlan, cores, plan_workers, uses_cpu

    if names_a_server(model) or names_a_server(equivalence):
        if asked is not None:
            raise UsageError("one process asks a server; leave --workers out, and use --concurrency")
        return WorkerPlan(1, cores(), "a server answers")
    weights = weights_of(model=model, equivalence=equivalence)
    plan = plan_workers(asked, weights=weights, blocks=blocks, on_cpu=uses_cpu(device))
    surely = at_once or plan.asked or plan.n_workers == 1
    debug(f"{label}: {'' if surely else 'up to '}{plan}")
    return plan


@contextmanager
def open_executor(
    plan: WorkerPlan,
    load: Callable[[], Anything],
    *,
    at_once: bool = False,
    devices: tuple[str | None, str | None] = (None, None),
) -> Iterator[tuple[Executor[Anything], Callable[[], Anything]]]:
    """Give the executor, and what loads this process's own state; say at the end what memory it took.

    Workers that were asked for start `at_once`, and this process loads nothing before it is asked to; workers
    that were chosen start when that pays. One process whose language model and NLI model have a device each
    (`devices`) clusters while it samples.
    """
    from semcal.pipeline.executor import SerialExecutor, TwoDeviceExecutor
    from semcal.pipeline.process_executor import AdaptiveExecutor, ProcessExecutor

    state = cache(partial(_loaded, load, plan.n_threads))
    chosen: Executor[Anything]
    if plan.n_workers > 1 and (at_once or plan.asked):
        chosen = ProcessExecutor(load, plan.n_workers)
    elif plan.n_workers > 1:
        chosen = AdaptiveExecutor(load, plan.n_workers, state())
    else:
        chosen = TwoDeviceExecutor(state(), NLI_STAGES) if _differ(*devices) else SerialExecutor(state())
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


def _differ(device: str | None, nli_device: str | None) -> bool:
    """Whether the NLI model was given a device that the language model is not on."""
    if nli_device is None:
        return False
    from semcal.engine.checkpoints import choose_device

    return choose_device(device) != choose_device(nli_device)


def show_peak(executor: Executor[Any]) -> None:
    """Say with -v how much memory was used at most."""
    of = f" of this process and {executor.n_processes} more" if executor.n_processes else ""
    debug(f"peak memory{of}: {executor.peak_memory}")


def peeked(items: Iterable[Anything], block: int, limit: int | None) -> tuple[Iterator[Anything], int | None]:
    """The items up to the limit, and the number of blocks that they make: 0, 1, or None for more."""
    rest = islice(items, limit)
    first = list(islice(rest, block + 1))
    return chain(first, rest), None if len(first) > block else min(1, len(first))


@dataclass(frozen=True)
class RowBlocks(Generic[Item]):
    """The blocks of a row command as jobs, a few ahead of what is written."""

    executor: Executor[WorkerState]
    job_of: Callable[[Sequence[Item]], Job]
    inputs: Callable[[Item], Mapping[str, Any]]  # what stands for an item where finished blocks are kept
    stage: str  # the command
    then: Callable[[Any], Rows] = list  # turns what a job gives into rows, in this process
    unfinished: UnfinishedWork = field(default_factory=partial(UnfinishedWork, None, {}, fresh=False))

    def __call__(
        self, blocks: Iterable[list[Item]], update: Callable[[int], None]
    ) -> Iterator[tuple[list[Item], Callable[[], Rows]]]:
        """Each block in order with a function that returns its rows; the next ones are begun meanwhile."""
        n_done: Counter[int] = Counter()

        def progress(number: int, count: int) -> None:
            n_done[number] = count
            update(n_done.total())

        waiting: deque[tuple[list[Item], Callable[[], Rows]]] = deque()
        for number, block in enumerate(blocks):
            waiting.append((block, self._begin(block, partial(progress, number))))
            if len(waiting) >= self.executor.n_ahead:
                yield waiting.popleft()
        yield from waiting

    def _begin(self, block: Sequence[Item], progress: Callable[[int], None]) -> Callable[[], Rows]:
        inputs = [self.inputs(item) for item in block]
        found = self.unfinished.find(inputs)
        if found is not None:
            progress(len(block))
            return lambda: found

        def keep(result: Any) -> Rows:
            progress(len(block))
            return self.unfinished.keep(inputs, self.then(result))

        job = self.job_of(block)
        return self.executor.submit(job, stage=self.stage, then=keep, progress=progress).result
