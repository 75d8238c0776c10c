"""Work on fixed blocks of questions by several processes: the same results for any number.

A job is done in one piece by one process with one thread, so nothing that is rounded depends on how many
processes there are.
"""

from __future__ import annotations

import heapq
import multiprocessing
import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any

from semcal.errors import WorkerError
from semcal.pipeline.crews import PATIENCE, Crew, Held
from semcal.pipeline.processes import Outcome, Told, done, peak_memory_mb, serve, uninterrupted

__all__ = ["AloneAtFirst", "Workers"]

#: What worker processes that hold models import before they part, so that this is done once.
PRELOAD = (
    "semcal.engine.causal_lm",
    "semcal.engine.nli",
    "transformers.generation.utils",
    "transformers.modeling_utils",
    "scipy.fft",
)
#: How often a job is tried whose process dies.
ATTEMPTS = 2
#: CPU seconds that it takes to start worker processes (docs/workers.md).
START = 5.0


@dataclass
class _Worker:
    """A process, our end of the connection to it, the task that it is at, and whether it has done one."""

    process: BaseProcess
    connection: connection.Connection[Any, Any]
    number: int | None = None
    proven: bool = False


class Workers(Crew[Held]):
    """Several processes that each load their own copy of what jobs need.

    Processes start when there is work for them. One that dies is replaced and its job done again; an
    interrupted or failed `with` block ends them all, and so does the end of this process, however it ends.

    Parameters
    ----------
    load : callable
        Gives what every job of a process is given; it can be pickled.
    count : int
        Number of processes, each with one thread.
    preload : sequence of str
        Modules that they import before they part; what models need by default.
    """

    def __init__(self, load: Callable[[], Held], count: int, preload: Sequence[str] | None = None) -> None:
        super().__init__()
        self.count = count
        self._load = load
        self._preload = PRELOAD if preload is None else preload
        self._workers: list[_Worker] = []
        self._attempts: dict[int, int] = {}
        self._peaks: dict[int | None, float] = {}
        self._prepare()

    def _prepare(self) -> None:
        """Let the processes import what they need, well before there is work for them."""
        _ = self._context

    @cached_property
    def _context(self) -> multiprocessing.context.BaseContext:
        return _starting(self._preload)

    def _summed_mb(self) -> float:
        return peak_memory_mb() + sum(sorted(self._peaks.values())[-self.count :])

    def _begin(self) -> None:
        while self._queue:
            idle = next((worker for worker in self._workers if worker.number is None), None)
            if idle is None and len(self._workers) == self.count:
                return
            self._hand(idle or self._hire(), heapq.heappop(self._queue))

    def _hire(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(  # type: ignore[attr-defined]
            target=serve, args=(theirs, self._load, 1), name="semcal worker", daemon=True
        )
        _begun(process)
        theirs.close()
        self._workers.append(_Worker(process, ours))
        return self._workers[-1]

    def _hand(self, worker: _Worker, entry: tuple[int, int]) -> None:
        pickled = pickle.dumps(self._tasks[entry[1]].job)
        try:
            worker.connection.send_bytes(pickled)
            worker.number = entry[1]
        except OSError:
            if worker.proven:  # it has died while it was idle: nobody's fault but its own
                heapq.heappush(self._queue, entry)
                self._dismiss(worker)
            else:  # it has died before it could read the job, which may be why: that counts
                worker.number = entry[1]

    def _finish(self) -> tuple[int, Outcome]:
        while True:
            self._begin()
            busy = [worker for worker in self._workers if worker.number is not None]
            signs = [sign for worker in busy for sign in (worker.connection, worker.process.sentinel)]
            if not busy:
                raise RuntimeError("no process is at a task; those that were begun have been given up")
            ready = connection.wait(signs)
            for worker in busy:
                if worker.connection in ready or worker.process.sentinel in ready:
                    number = worker.number
                    assert number is not None
                    outcome = self._outcome(worker, number)
                    self._begin()
                    if outcome is not None:
                        return number, outcome

    def _outcome(self, worker: _Worker, number: int) -> Outcome | None:
        """What came of a worker's task; None if it is still at it, or has died and the task is done again."""
        try:
            if not worker.connection.poll():
                raise EOFError
            outcome: Outcome | Told = pickle.loads(worker.connection.recv_bytes())
        except (EOFError, OSError):
            return self._bury(worker, number)
        if isinstance(outcome, Told):
            self._tasks[number].tell(outcome.count)
            return None
        worker.number, worker.proven = None, True
        self._peaks[worker.process.pid] = outcome.peak_mb
        self.hired = min(self.count, len(self._peaks))
        return outcome

    def _bury(self, worker: _Worker, number: int) -> Outcome | None:
        self._dismiss(worker)
        self._attempts[number] = self._attempts.get(number, 0) + 1
        if self._attempts[number] < ATTEMPTS:
            self.retries += 1
            heapq.heappush(self._queue, (self._tasks[number].rank, number))
            return None
        code, stage = worker.process.exitcode, self._tasks[number].stage
        how = f"was killed by signal {-code}" if code and code < 0 else f"ended with exit code {code}"
        return Outcome(
            error=WorkerError(
                f"a worker process {how} at the same piece of work ({stage}) {ATTEMPTS} times; if memory is "
                "short, give --workers 1 or a smaller --memory"
            )
        )

    def _dismiss(self, worker: _Worker) -> None:
        worker.connection.close()
        worker.process.join(PATIENCE)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        self._workers.remove(worker)

    def rest(self) -> None:
        """End all processes; for tasks that come later others start."""
        self.close()

    def close(self, *, at_once: bool = False) -> None:
        """End all processes; `at_once` does not wait for their jobs."""
        for worker in self._workers:
            worker.connection.close()
            if at_once:
                worker.process.terminate()
        while self._workers:
            self._dismiss(self._workers[0])


class AloneAtFirst(Workers[Held]):
    """This process by itself until it has worked as long as it takes to start others; from then on they.

    So whoever has little to do never pays for a start, and who has much pays one start too many at most.

    Parameters
    ----------
    load, count
        As for `Workers`.
    held : object
        What every job that is done here is given.
    """

    def __init__(self, load: Callable[[], Held], count: int, held: Held) -> None:
        super().__init__(load, count)
        self._held = held
        self._alone = 0.0

    def _prepare(self) -> None:
        """Nothing yet: it may never be needed."""

    def _begin(self) -> None:
        if self._alone >= START:
            super()._begin()

    def _finish(self) -> tuple[int, Outcome]:
        if self._alone >= START:
            return super()._finish()
        number = heapq.heappop(self._queue)[1]
        outcome = done(self._tasks[number].job, self._held, self._tasks[number].tell)
        self._alone += outcome.seconds
        return number, outcome


def _begun(process: BaseProcess) -> None:
    """Start a process; where the server that processes part from has died, from the next one."""
    for _ in range(ATTEMPTS):
        with suppress(EOFError, ConnectionError), uninterrupted():
            return process.start()
    raise WorkerError(
        f"no worker process can be started: what they part from has died {ATTEMPTS} times; if memory is "
        "short, give --workers 1 or a smaller --memory"
    )


def _starting(preload: Sequence[str]) -> multiprocessing.context.BaseContext:
    """How processes start: from a clean server that has imported what they need, or else each by itself.

    The server begins to import at once and nobody waits for it here.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    from multiprocessing.forkserver import ensure_running

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    with uninterrupted():
        ensure_running()
    return context
