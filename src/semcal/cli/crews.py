"""Who does the work of a command, this process or several, and the blocks of a row command among them."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from semcal.cli.console import detail
from semcal.cli.resuming import Resumable
from semcal.cli.streams import Item

if TYPE_CHECKING:
    from semcal.pipeline.crews import Crew
    from semcal.pipeline.models import Models
    from semcal.pipeline.processes import Job
    from semcal.pipeline.sharing import Shared

__all__ = ["SharedRows", "chosen", "crew_for", "peeked", "reporters", "tell_peak"]

#: What processes that make a report import before they part.
REPORTING = ("semcal.experiment.analyses", "semcal.report.build")

Rows = Sequence[Mapping[str, Any]]
Anything = TypeVar("Anything")


def chosen(
    asked: int | None,
    label: str,
    *,
    device: str | None,
    blocks: int | None,
    model: str | None = None,
    equivalence: str | None = None,
    at_once: bool = False,
) -> Shared:
    """Choose how many processes a command uses, `at_once` or when that pays; -v says so."""
    from semcal.cli.loading import weights_of
    from semcal.pipeline.sharing import share_out, uses_cpu

    weights = weights_of(model=model, equivalence=equivalence)
    shared = share_out(asked, weights=weights, blocks=blocks, on_cpu=uses_cpu(device))
    surely = at_once or shared.asked or shared.processes == 1
    detail(f"{label}: {'' if surely else 'up to '}{shared}")
    return shared


@contextmanager
def crew_for(
    shared: Shared,
    load: Callable[[], Anything],
    *,
    at_once: bool = False,
    devices: tuple[str | None, str | None] = (None, None),
) -> Iterator[tuple[Crew[Anything], Callable[[], Anything]]]:
    """Give those who do the work, and what gives what this process itself holds; say at the end what it took.

    A number of processes that was asked for starts `at_once`, and this one loads nothing before it is asked
    to; one that was chosen when that pays. One process whose language model and NLI model have a device each
    (`devices`) clusters while it samples.
    """
    from semcal.pipeline.crews import Alone
    from semcal.pipeline.devices import TwoDevices
    from semcal.pipeline.workers import AloneAtFirst, Workers

    held = cache(partial(_loaded, load, shared.threads))
    crews: Crew[Anything]
    if shared.processes > 1:
        now = at_once or shared.asked
        crews = Workers(load, shared.processes) if now else AloneAtFirst(load, shared.processes, held())
    else:
        crews = TwoDevices(held(), "cluster") if _differ(*devices) else Alone(held())
    with crews as crew:
        yield crew, held
        tell_peak(crew)


def _loaded(load: Callable[[], Anything], threads: int) -> Anything:
    """What a process holds that uses so many threads."""
    held = load()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    return held


@contextmanager
def reporters(run: Path) -> Iterator[Crew[None]]:
    """Give those who make the report of a run of the grid: a process for each processor.

    They begin to import before this process does; a run of one model on one data set is not shared.
    """
    from semcal.pipeline.crews import Alone
    from semcal.pipeline.sharing import share_out
    from semcal.pipeline.workers import Workers

    pairs = len(list((run / "selection").glob("*/*.json")))
    count = share_out(None, weights=0, blocks=pairs).processes
    with Workers(_nothing, count, REPORTING) if count > 1 else Alone(None) as crew:
        yield crew


def _nothing() -> None:
    """What a process needs to have loaded for a report."""


def _differ(device: str | None, nli_device: str | None) -> bool:
    """Whether the NLI model was given a device that the language model is not on."""
    if nli_device is None:
        return False
    from semcal.engine.checkpoints import choose_device

    return choose_device(device) != choose_device(nli_device)


def tell_peak(crew: Crew[Any]) -> None:
    """Say with -v how much memory was used at most."""
    of = f" of this process and {crew.hired} more" if crew.hired else ""
    detail(f"peak memory{of}: {crew.peak}")


def peeked(items: Iterable[Anything], block: int, limit: int | None) -> tuple[Iterator[Anything], int | None]:
    """The items up to the limit, and the number of blocks that they make: 0, 1, or None for more."""
    rest = islice(items, limit)
    first = list(islice(rest, block + 1))
    return chain(first, rest), None if len(first) > block else min(1, len(first))


class SharedRows(Generic[Item]):
    """The blocks of a row command as tasks of a crew, a few ahead of what is written.

    Parameters
    ----------
    crew : Crew
        Who does them.
    job_of : callable
        Maps a block of items to the job that gives its rows.
    stage : str
        The command.
    then : callable
        Turns what a job gives into rows, in this process.
    kept : Resumable, optional
        Where finished blocks are kept and found again.
    inputs : callable
        Maps an item to what stands for it there.
    """

    def __init__(
        self,
        crew: Crew[Models],
        job_of: Callable[[Sequence[Item]], Job],
        *,
        stage: str,
        then: Callable[[Any], Rows] = list,
        kept: Resumable | None = None,
        inputs: Callable[[Item], Mapping[str, Any]],
    ) -> None:
        self._crew = crew
        self._job_of: Callable[[Sequence[Item]], Job] = job_of
        self._stage = stage
        self._then = then
        self._kept = kept or Resumable(None, {}, fresh=False)
        self._inputs: Callable[[Item], Mapping[str, Any]] = inputs
        self._told: dict[int, int] = {}

    def __call__(self, block: Sequence[Item]) -> Rows:
        """The rows of a block, now."""
        return self._begin(block, lambda _: None)()

    def ahead(
        self, parts: Iterable[list[Item]], update: Callable[[int], None]
    ) -> Iterator[tuple[list[Item], Callable[[], Rows]]]:
        """Each block with what gives its rows, in turn; the next ones are begun meanwhile."""
        most = 1 if self._crew.count == 1 else 2 * self._crew.count
        waiting: deque[tuple[list[Item], Callable[[], Rows]]] = deque()
        for number, part in enumerate(parts):
            waiting.append((part, self._begin(part, partial(self._tell, update, number))))
            if len(waiting) == most:
                yield waiting.popleft()
        yield from waiting

    def _tell(self, update: Callable[[int], None], number: int, count: int) -> None:
        self._told[number] = count
        update(sum(self._told.values()))

    def _begin(self, block: Sequence[Item], tell: Callable[[int], None]) -> Callable[[], Rows]:
        from semcal.pipeline.crews import Task

        inputs = [self._inputs(item) for item in block]
        found = self._kept.find(inputs)
        if found is not None:
            tell(len(block))
            return lambda: found

        def keep(result: Any) -> Rows:
            tell(len(block))
            return self._kept.keep(inputs, self._then(result))

        number = self._crew.start(Task(self._job_of(block), self._stage, keep, tell=tell))
        return partial(self._crew.result, number)
