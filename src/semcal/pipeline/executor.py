"""Job executors like those of `concurrent.futures`: serial, or threads that wait for worker processes or Ray.

Results do not depend on which is used. Worker processes: `process_executor`; Ray: `experiment.ray_executor`.
"""

from __future__ import annotations

import math
import resource
import sys
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from queue import Empty, PriorityQueue
from typing import Any, Generic, Self, TypeVar

from semcal.pipeline.worker_state import SUMMED, TOGETHER, MemoryMonitor, Peak, trim_memory

#: Seconds that a process or a thread gets to end by itself.
PATIENCE = 5.0
#: CPU seconds of a job from which it is worth some milliseconds to give its memory back.
LONG = 0.5
State = TypeVar("State")
Result = TypeVar("Result")
Progress = Callable[[int], None]
"""Is told how many questions are done."""
Job = Callable[[Any, Progress], Any]
"""Maps a worker's state to a result, and may report progress; it can be pickled."""


@dataclass(frozen=True)
class JobOutcome:
    """What came of a job, and what it cost."""

    value: Any = None
    error: Exception | None = None
    warnings: tuple[Warning, ...] = ()  # each text once
    seconds: float = 0.0  # CPU time of the job
    start: float = 0.0  # CPU time of its process before its first job; 0 after that
    peak_mb: float = 0.0  # largest resident memory of its process so far (10⁶ bytes)
    process: int = 0  # its process; 0 is this one


@dataclass(frozen=True)
class Task:
    """A job that was submitted."""

    number: int
    job: Job
    stage: str
    then: Callable[[Any], Any]
    priority: int
    progress: Progress
    future: Future[Any] = field(default_factory=Future)


def peak_memory_mb() -> float:
    """Return the largest resident memory of this process so far, in megabytes (10⁶ bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e6


def run_job(
    job: Job, state: Any, progress: Progress, *, clock: Callable[[], float] = time.process_time
) -> JobOutcome:
    """Do a job here; its errors are part of the outcome, an interruption is not.

    After a long one freed memory goes back to the system: else it would stay with this process in pieces, too
    small for the next job.
    """
    begun = clock()
    value, error = None, None
    try:
        value = job(state, progress)
    except Exception as raised:  # noqa: BLE001 - whatever it is, it is raised where the result is wanted
        error = raised
    outcome = JobOutcome(value, error, seconds=clock() - begun, peak_mb=peak_memory_mb())
    if outcome.seconds >= LONG:
        trim_memory()
    return outcome


def _same(value: Any) -> Any:
    return value


def _silent(_: int) -> None:
    return None


@dataclass(frozen=True)
class _Call:
    """A function of an item as a job: it needs no worker's state."""

    function: Callable[[Any], Any]
    item: Any

    def __call__(self, *_: object) -> Any:
        return self.function(self.item)


class Executor(ABC, Generic[State]):
    """Does jobs, and counts what they cost."""

    n_workers: int = 1  # jobs that can be under way at a time
    n_processes: int = 0  # processes that have worked beside this one, those that died not counted
    retries: int = 0  # jobs that were begun again because their process had ended
    in_process: bool = False  # whether jobs are done in this process

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}  # CPU time by stage
        self.peaks: dict[str, float] = {}  # largest memory (10⁶ bytes) of a process after a job, by stage
        self._numbers = count(1)
        self._warned: dict[Any, Any] = {}
        self._memory = MemoryMonitor()
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        self._memory.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.shutdown(cancel=kind is not None)
        self._memory.stop()

    def submit(
        self,
        job: Job,
        *,
        stage: str = "work",
        then: Callable[[Any], Any] = _same,
        priority: int = 0,
        progress: Progress = _silent,
    ) -> Future[Any]:
        """Have a job done.

        Its cost is counted towards `stage`. In this process `then` is applied to the result as soon as it is
        there, one at a time, and `progress` is told how many questions are done. Jobs of lower `priority`
        numbers are begun first, of equal ones in order. The future gives the result of `then`, or raises what
        the job or `then` raised; CancelledError if the executor was shut down first.
        """
        task = Task(next(self._numbers), job, stage, then, priority, progress)
        self._begin(task)
        return task.future

    def map(
        self, function: Callable[[Any], Result], items: Sequence[Any], *, stage: str, priority: int = 0
    ) -> Iterator[Result]:
        """Begin `function` of every item now; the results come in order. All of them can be pickled.

        >>> list(SerialExecutor(None).map(abs, [-1, 2], stage="work"))
        [1, 2]
        """
        futures = [self.submit(_Call(function, item), stage=stage, priority=priority) for item in items]
        return (future.result() for future in futures)

    def run_together(self, functions: Sequence[Callable[[], Result]]) -> list[Result]:
        """Run functions that submit jobs and wait for them, each in a thread."""
        with ThreadPoolExecutor(max(1, len(functions)), "semcal cell") as threads:
            futures = [threads.submit(function) for function in functions]
            try:
                ended, _ = wait(futures, return_when=FIRST_EXCEPTION)
                return [future.result() for future in sorted(ended, key=futures.index)]
            except BaseException:
                self.shutdown(cancel=True)  # else the other threads would wait for their jobs
                raise

    @property
    def n_ahead(self) -> int:
        """How many jobs to submit before the first result is waited for, so that no worker waits."""
        return 1 if self.n_workers == 1 else 2 * self.n_workers

    @property
    def peak_memory(self) -> Peak:
        """The largest memory so far of this process and all that descend from it (10⁶ bytes).

        Where the system can tell: what all took at the same time, shared pages counted once, in samples taken
        about every second inside a `with` block and now; at least what one process is known to have taken.
        Elsewhere the sum of what each process took at most, whenever that was.
        """
        if self._memory.look() is None or self._memory.peak_mb is None:
            return Peak(self._summed_mb(), SUMMED)
        return Peak(max(self._memory.peak_mb, peak_memory_mb(), *self.peaks.values()), TOGETHER)

    def _summed_mb(self) -> float:
        """The sum of what each process has taken at most so far."""
        return peak_memory_mb()

    def release(self) -> None:
        """Let go of what workers hold; for later jobs it is loaded again."""
        return

    def shutdown(self, *, cancel: bool = False) -> None:
        """Let go of the workers once all jobs are done; with `cancel` at once."""
        del cancel

    @abstractmethod
    def _begin(self, task: Task) -> None:
        """Do a task, or see to it that it is done; in the end `_settle` it."""

    def _settle(self, task: Task, outcome: JobOutcome) -> None:
        """Count what a task has cost, pass its warnings on, and give its future the result."""
        try:
            with self._lock:
                self._count("start", outcome.start)
                self._count(task.stage, outcome.seconds)
                self.peaks[task.stage] = max(self.peaks.get(task.stage, 0.0), outcome.peak_mb)
                for message in outcome.warnings:
                    warnings.warn_explicit(message, type(message), task.stage, 0, registry=self._warned)
                if outcome.error is None:
                    outcome = replace(outcome, value=task.then(outcome.value))
        except Exception as error:  # noqa: BLE001 - it is raised where the result is wanted
            outcome = replace(outcome, error=error)
        if outcome.error is not None:
            task.future.set_exception(outcome.error)
        else:
            task.future.set_result(outcome.value)

    def _count(self, stage: str, seconds: float) -> None:
        if seconds:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds


class SerialExecutor(Executor[State]):
    """Does each job in this process when it is submitted; each is given the same `state`."""

    in_process = True

    def __init__(self, state: State) -> None:
        super().__init__()
        self._state = state

    def _begin(self, task: Task) -> None:
        self._settle(task, run_job(task.job, self._state, task.progress))

    def run_together(self, functions: Sequence[Callable[[], Result]]) -> list[Result]:
        """Run functions one after another: none could go on while another's job is done."""
        return [function() for function in functions]


class ThreadedExecutor(Executor[State]):
    """Threads that take tasks by priority, do each by `_run`, and settle it.

    `lanes` says for each queue of tasks how many threads take from it; `_lane` where a task belongs.
    """

    def __init__(self, lanes: Sequence[int]) -> None:
        super().__init__()
        self.n_workers = sum(lanes)
        self._cancelled = False
        self._queues: list[PriorityQueue[tuple[float, int, Task | None]]] = [PriorityQueue() for _ in lanes]
        self._threads = [
            threading.Thread(target=self._work, args=(queue,), name="semcal lane", daemon=True)
            for queue, n_threads in zip(self._queues, lanes)
            for _ in range(n_threads)
        ]
        for thread in self._threads:
            thread.start()

    @abstractmethod
    def _run(self, task: Task) -> JobOutcome:
        """Do a task; CancelledError if the executor is shut down meanwhile."""

    def _lane(self, task: Task) -> int:
        """Which queue a task belongs to."""
        del task
        return 0

    def _begin(self, task: Task) -> None:
        if self._cancelled:
            _cancel(task.future)
        else:
            self._queues[self._lane(task)].put((task.priority, task.number, task))

    def _work(self, queue: PriorityQueue[tuple[float, int, Task | None]]) -> None:
        while (task := queue.get()[2]) is not None:
            try:
                self._settle(task, self._run(task))
            except CancelledError:
                _cancel(task.future)
            except BaseException as error:  # noqa: BLE001 - a thread that ends is waited for for ever
                self._settle(task, JobOutcome(error=as_exception(error)))

    def shutdown(self, *, cancel: bool = False) -> None:
        """Let go of the workers once all jobs are done; with `cancel` at once."""
        self._cancelled = self._cancelled or cancel
        for queue in self._queues * len(self._threads):
            queue.put((-math.inf if cancel else math.inf, next(self._numbers), None))
        if cancel:
            self._stop()
        deadline = time.monotonic() + PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()) if cancel else None)
        for queue in self._queues:
            with suppress(Empty):
                while True:
                    task = queue.get_nowait()[2]
                    if task is not None:
                        _cancel(task.future)
        if not cancel:
            self._stop()

    def _stop(self) -> None:
        """End what jobs run in."""


def _cancel(future: Future[Any]) -> None:
    """Cancel a future so that `wait` and `as_completed` hear of it, not `result` alone."""
    if future.cancel():
        future.set_running_or_notify_cancel()


def as_exception(error: BaseException) -> Exception:
    """The error itself if it is an Exception, else one that says what it was."""
    return error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")


class _GivenUp(BaseException):
    """Ends a job that nobody waits for any more."""


class TwoDeviceExecutor(ThreadedExecutor[State]):
    """This process with a thread for the jobs of some `stages`, whose model has a device of its own.

    So answers are clustered on one device while the next are sampled on the other; the jobs of all other
    stages share another thread. The seconds of a stage are those of its thread.
    """

    in_process = True

    def __init__(self, state: State, stages: Collection[str]) -> None:
        self._state, self._stages = state, stages
        super().__init__([1, 1])

    def _lane(self, task: Task) -> int:
        return int(task.stage in self._stages)

    def _run(self, task: Task) -> JobOutcome:
        def progress(n_done: int) -> None:
            if self._cancelled:
                raise _GivenUp
            task.progress(n_done)

        try:
            return run_job(task.job, self._state, progress, clock=time.thread_time)
        except _GivenUp:
            raise CancelledError from None
