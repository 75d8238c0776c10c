"""Work on fixed blocks of questions, by this process or by several: the same results for any number.

A job is done in one piece by one process with one thread, so nothing that is rounded depends on how many
processes there are. Finished jobs come back in any order; whoever wants an order asks for it.
"""

from __future__ import annotations

import heapq
import math
import multiprocessing
import pickle
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from queue import PriorityQueue, SimpleQueue
from typing import Any, Generic, Self, TypeVar

from semcal.errors import WorkerError
from semcal.pipeline.processes import Job, Outcome, Tell, Told, done, peak_memory_mb, serve, uninterrupted

__all__ = ["Alone", "AloneAtFirst", "Crew", "Plan", "Task", "TwoDevices", "Workers", "together"]

#: What worker processes import before they part, so that this is done once.
PRELOAD = (
    "semcal.engine.loading",
    "semcal.engine.nli",
    "transformers.generation.utils",
    "transformers.modeling_utils",
    "scipy.fft",
)
#: How often a job is tried whose process dies.
ATTEMPTS = 2
#: CPU seconds that it takes to start worker processes (docs/workers.md).
START = 5.0
#: Seconds that a process gets to end by itself.
PATIENCE = 5.0

Held = TypeVar("Held")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Task(Generic[Held]):
    """A job, and what is done with its result.

    Attributes
    ----------
    job : callable
        Maps what a worker holds, and a function that is told how many questions are done, to a result.
    stage : str
        What its time is counted towards.
    then : callable
        Applied to the result in this process, as soon as it is there: to keep it, say.
    rank : int
        Tasks of lower rank are begun first, of equal rank in order.
    tell : callable
        Is told in this process how many questions are done.
    """

    job: Job
    stage: str = "work"
    then: Callable[[Any], Any] = lambda value: value
    rank: int = 0
    tell: Tell = lambda _: None


@dataclass(frozen=True)
class _Applied:
    """A job that needs nothing of what a worker holds."""

    function: Callable[[Any], Any]
    item: Any

    def __call__(self, *_: object) -> Any:
        return self.function(self.item)


class Crew(ABC, Generic[Held]):
    """Those who do tasks: `Alone` or `Workers`.

    Attributes
    ----------
    seconds : dict of str to float
        CPU time spent on each stage so far.
    peaks : dict of str to float
        Largest resident memory (10⁶ bytes) of a process by the end of a task of each stage.
    """

    #: How many jobs can be under way at a time.
    count: int = 1
    #: How many processes have worked beside this one, those that died not counted.
    hired: int = 0
    #: How many tasks were begun again because their process had died.
    retries: int = 0

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.peaks: dict[str, float] = {}
        self._tasks: dict[int, Task[Held]] = {}
        self._values: dict[int, Outcome] = {}
        self._queue: list[tuple[int, int]] = []
        self._tickets = 0
        self._told: dict[Any, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(at_once=kind is not None)

    def start(self, task: Task[Held]) -> int:
        """Take on a task, and return its number."""
        self._tickets += 1
        self._tasks[self._tickets] = task
        heapq.heappush(self._queue, (task.rank, self._tickets))
        self._begin()
        return self._tickets

    def wait(self) -> int:
        """Wait until one more task is finished, and return its number; what `then` raises is raised here."""
        number, outcome = self._finish()
        task = self._tasks.pop(number)
        self._count("start", outcome.start)
        self._count(task.stage, outcome.seconds)
        self.peaks[task.stage] = max(self.peaks.get(task.stage, 0.0), outcome.peak_mb)
        for message in outcome.warnings:
            warnings.warn_explicit(message, type(message), task.stage, 0, registry=self._told)
        if outcome.error is None:
            outcome = replace(outcome, value=task.then(outcome.value))
        self._values[number] = outcome
        return number

    def result(self, number: int) -> Any:
        """The result of a task, once; waits for it, and raises what the task raised."""
        while number not in self._values:
            self.wait()
        return self._values.pop(number).get()

    def each(self, function: Callable[[Any], Result], items: Sequence[Any], *, stage: str) -> list[Result]:
        """What a function makes of each item, in order; both can be pickled.

        Examples
        --------
        >>> Alone(None).each(abs, [-1, 2], stage="work")
        [1, 2]
        """
        numbers = [self.start(Task(_Applied(function, item), stage)) for item in items]
        return [self.result(number) for number in numbers]

    def _count(self, stage: str, seconds: float) -> None:
        if seconds:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    @property
    def peak_mb(self) -> float:
        """Largest resident memory of this process and the workers' together, at most (10⁶ bytes)."""
        return peak_memory_mb()

    def _begin(self) -> None:
        """Begin waiting tasks if any can be."""
        return

    @abstractmethod
    def _finish(self) -> tuple[int, Outcome]:
        """The number and outcome of a task that was not finished before."""

    def close(self, *, at_once: bool = False) -> None:
        """Let go of the processes; `at_once` does not wait for their jobs."""
        del at_once


class Alone(Crew[Held]):
    """This process by itself.

    Parameters
    ----------
    held : object
        What every job is given.

    Examples
    --------
    >>> crew = Alone(10)
    >>> numbers = [crew.start(Task(lambda held, tell, n=n: held + n)) for n in range(3)]
    >>> [crew.result(number) for number in numbers]
    [10, 11, 12]
    """

    def __init__(self, held: Held) -> None:
        super().__init__()
        self._held = held

    def _finish(self) -> tuple[int, Outcome]:
        number = heapq.heappop(self._queue)[1]
        return number, done(self._tasks[number].job, self._held, self._tasks[number].tell)


class TwoDevices(Crew[Held]):
    """This process by itself, with a thread for the tasks of one stage, whose model has a device of its own.

    So answers are clustered on one device while the next ones are sampled on another. The seconds of a stage
    are those of its thread.

    Parameters
    ----------
    held : object
        What every job is given.
    stage : str
        The stage that has a thread of its own; the tasks of all others share another.

    Examples
    --------
    >>> with TwoDevices(10, "cluster") as crew:
    ...     numbers = [crew.start(Task(lambda held, _: held + 1, stage)) for stage in ("sample", "cluster")]
    ...     [crew.result(number) for number in numbers]
    [11, 11]
    """

    count = 2

    def __init__(self, held: Held, stage: str) -> None:
        super().__init__()
        self._held = held
        self._stage = stage
        self._finished: SimpleQueue[tuple[int, Outcome]] = SimpleQueue()
        self._lanes: tuple[PriorityQueue[tuple[float, int]], ...] = (PriorityQueue(), PriorityQueue())
        for lane in self._lanes:
            threading.Thread(target=self._work, args=(lane,), daemon=True).start()

    def _begin(self) -> None:
        while self._queue:
            rank, number = heapq.heappop(self._queue)
            self._lanes[self._tasks[number].stage == self._stage].put((rank, number))

    def _work(self, lane: PriorityQueue[tuple[float, int]]) -> None:
        while number := lane.get()[1]:
            task = self._tasks[number]
            self._finished.put((number, done(task.job, self._held, task.tell, clock=time.thread_time)))

    def _finish(self) -> tuple[int, Outcome]:
        return self._finished.get()

    def close(self, *, at_once: bool = False) -> None:
        """End both threads after the jobs that they are at."""
        for lane in self._lanes:
            lane.put((-math.inf if at_once else math.inf, 0))


@dataclass
class _Worker:
    """A process, our end of the connection to it, and the task that it is at."""

    process: BaseProcess
    connection: connection.Connection[Any, Any]
    number: int | None = None


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
    """

    def __init__(self, load: Callable[[], Held], count: int) -> None:
        super().__init__()
        self.count = count
        self._load = load
        self._workers: list[_Worker] = []
        self._attempts: dict[int, int] = {}
        self._peaks: dict[int | None, float] = {}
        self._prepare()

    def _prepare(self) -> None:
        """Let the processes import what they need, well before there is work for them."""
        _ = self._context

    @cached_property
    def _context(self) -> multiprocessing.context.BaseContext:
        return _starting()

    @property
    def peak_mb(self) -> float:
        """Largest resident memory of this process and the workers' together, at most (10⁶ bytes)."""
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
        with uninterrupted():
            process.start()
        theirs.close()
        self._workers.append(_Worker(process, ours))
        return self._workers[-1]

    def _hand(self, worker: _Worker, entry: tuple[int, int]) -> None:
        pickled = pickle.dumps(self._tasks[entry[1]].job)
        try:
            worker.connection.send_bytes(pickled)
            worker.number = entry[1]
        except OSError:  # it has died while it was idle: nobody's fault but its own
            heapq.heappush(self._queue, entry)
            self._dismiss(worker)

    def _finish(self) -> tuple[int, Outcome]:
        while True:
            self._begin()
            busy = [worker for worker in self._workers if worker.number is not None]
            signs = [sign for worker in busy for sign in (worker.connection, worker.process.sentinel)]
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
        worker.number = None
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


def _starting() -> multiprocessing.context.BaseContext:
    """How processes start: from a clean server that has imported what they need, or else each by itself.

    The server begins to import at once and nobody waits for it here.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    from multiprocessing.forkserver import ensure_running

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOAD))
    with uninterrupted():
        ensure_running()
    return context


#: Yields the tasks that it needs next, is sent their results, returns what came of it all.
Plan = Generator[Sequence[Task[Any]], list[Any], Result]


def together(crew: Crew[Any], plans: Sequence[Plan[Result]]) -> list[Result]:
    """Carry out several plans at once: while one waits for its last task, others go on.

    Examples
    --------
    >>> def plan(start):
    ...     first, second = yield [Task(lambda held, _: held + start), Task(lambda held, _: held * start)]
    ...     (third,) = yield [Task(lambda held, _: held + first + second)]
    ...     return third
    >>> together(Alone(2), [plan(1), plan(10)])
    [7, 34]
    """
    found: dict[int, Result] = {}
    awaited: dict[int, list[int]] = {}

    def go_on(which: int, results: list[Any] | None) -> None:
        try:
            tasks = plans[which].send(results)  # type: ignore[arg-type]
        except StopIteration as end:
            found[which] = end.value
            return
        awaited[which] = [crew.start(task) for task in tasks]

    ready: set[int] = set()
    for which in range(len(plans)):
        go_on(which, None)
    while len(found) < len(plans):
        for which, numbers in [(w, n) for w, n in awaited.items() if ready.issuperset(n)]:
            del awaited[which]
            ready.difference_update(numbers)
            go_on(which, [crew.result(number) for number in numbers])
        if awaited and not any(ready.issuperset(numbers) for numbers in awaited.values()):
            ready.add(crew.wait())
    return [found[which] for which in range(len(plans))]
