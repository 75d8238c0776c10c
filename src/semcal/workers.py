"""What does jobs: this process (`SerialExecutor`) or worker processes (`ProcessExecutor`), and how many pay.

A job is a function of what a worker holds; it can be pickled. Each worker process has one thread, loads what
it holds once, and does a job in one piece, so results do not depend on their number. Ray:
`experiment.ray_executor`.
"""

from __future__ import annotations

import ctypes
import gc
import math
import multiprocessing
import os
import pickle
import resource
import signal
import sys
import threading
import time
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from queue import Empty, PriorityQueue
from types import FrameType
from typing import Any, Generic, NoReturn, Self, TypeVar

from semcal.errors import SemcalError, UsageError, WorkerError
from semcal.registry import PLUGINS, load_plugins

State = TypeVar("State")
Result = TypeVar("Result")
Progress = Callable[[int], None]
"""Is told how many questions are done."""
Job = Callable[[Any, Progress], Any]
"""Maps what a worker holds to a result, and may report progress; it can be pickled."""

#: Seconds that a process or a thread gets to end by itself.
PATIENCE = 5.0
#: CPU seconds of a job from which it is worth some milliseconds to give its memory back.
LONG = 0.5
#: How often a job is tried whose process dies.
ATTEMPTS = 2
#: CPU seconds that it takes to start worker processes (docs/workers.md).
START = 5.0
#: Keeps numpy's and SciPy's BLAS at one thread: each number of threads adds up in another order.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
#: What processes that hold models import before they part, so that this is done once.
PRELOAD = (
    "semcal.models.causal_lm",
    "semcal.models.nli",
    "transformers.generation.utils",
    "transformers.modeling_utils",
    "scipy.fft",
)

# ---- How many workers --------------------------------------------------------------------------------------

#: What a process takes beside its weights: libraries, keys and values, rows.
OVERHEAD = 5 * 10**8
#: Weights from which one process by itself gains from more than one thread (docs/workers.md).
THREADS_FROM = 2 * 10**8
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "*.onnx")


@dataclass(frozen=True)
class WorkerPlan:
    """A number of worker processes, the threads of each, and why."""

    n_workers: int  # 1 is this process by itself
    n_threads: int  # of PyTorch in each process
    reason: str
    requested: bool = False  # whether that many were asked for

    def __str__(self) -> str:
        processes = "1 process" if self.n_workers == 1 else f"{self.n_workers} processes"
        threads = "1 thread" if self.n_threads == 1 else f"{self.n_threads} threads"
        return f"{processes} of {threads} ({self.reason})"


def plan_workers(
    requested: int | None,
    *,
    weights: int | None,
    blocks: int | None = None,
    on_cpu: bool = True,
    processors: int | None = None,
    memory: int | None = None,
) -> WorkerPlan:
    """Choose how many processes do the work; UsageError if less than one is requested.

    As many as there are processors, `blocks` of questions (if known), and copies of the models' `weights`
    (bytes; unknown: one process) that fit into the memory that is free: several processes of one thread are
    faster than one of several threads for every size that was tried (docs/workers.md). A process by itself
    gets all processors as threads if its models are large. A number that is `requested` is that many
    processes of one thread each. Where models do not run on a CPU, one process alone serves the device.
    `processors` and `memory` are by default what this machine says that it has.

    >>> print(plan_workers(None, weights=10**7, blocks=15, processors=2, memory=8 * 10**9))
    2 processes of 1 thread (2 processors, weights of 10 MB)
    >>> print(plan_workers(None, weights=16 * 10**9, blocks=15, processors=8, memory=24 * 10**9))
    1 process of 8 threads (no memory for a second copy of 16000 MB)
    """
    if requested is not None and requested < 1:
        raise UsageError(f"--workers is {requested}; give 1 or more, or leave it out to have it chosen")
    processors = processors or cores()
    if requested is not None:
        return WorkerPlan(requested, 1, "as asked", requested=True)
    if not on_cpu:
        return WorkerPlan(1, processors, "the model does not run on the CPU")
    if weights is None:
        return WorkerPlan(1, processors, "the size of the model is not known before it is here")
    size = f"{weights / 1e6:.0f} MB"
    memory = _available_memory() if memory is None else memory
    n_copies = memory // (weights + OVERHEAD)
    n_threads = processors if weights >= THREADS_FROM else 1
    if blocks is not None and blocks <= 1:
        return WorkerPlan(1, n_threads, "one block of questions")
    if processors > 1 and n_copies <= 1:
        return WorkerPlan(1, n_threads, f"no memory for a second copy of {size}")
    n_workers = max(1, min(processors, n_copies, blocks or processors))
    return WorkerPlan(n_workers, 1, f"{processors} processor{'s' * (processors > 1)}, weights of {size}")


def _available_memory() -> int:
    import psutil

    return int(psutil.virtual_memory().available)


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_disk(directory: Path) -> int:
    """Bytes of the weights in a checkpoint's directory; 0 if there are none."""
    sizes = [sum(path.stat().st_size for path in directory.glob(pattern)) for pattern in _WEIGHTS]
    return next((size for size in sizes if size), 0)


def has_gpu() -> bool:
    """Whether there may be a GPU, without asking PyTorch."""
    nodes = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
    return not sys.platform.startswith("linux") or any(map(os.path.exists, nodes))


# ---- Memory ------------------------------------------------------------------------------------------------

#: What a peak counts, in words, as environment.json has them.
TOGETHER = "all processes at the same time, shared pages once"
RESIDENT = "all processes at the same time; shared pages more than once"
SUMMED = "the sum of what each process took at most, whenever that was; shared pages more than once"
#: Seconds between two samples; more where looking takes more than this share of the time.
INTERVAL, SHARE = 1.0, 0.005


@dataclass(frozen=True)
class Peak:
    """The largest memory of a command."""

    mb: float  # 10⁶ bytes
    counts: str  # `TOGETHER`, `RESIDENT` or `SUMMED`

    def record(self) -> dict[str, float | str]:
        """What environment.json holds of it."""
        return {"peak_memory_mb": self.mb, "peak_memory_counts": self.counts}

    def __str__(self) -> str:
        return f"{self.mb:.0f} MB ({self.counts})"


def memory_in_use() -> Peak:
    """Return what this process and all that descend from it take now.

    Linux says of every process its proportional set size (PSS): a page that n processes share counts 1/n in
    each, so that a sum over processes counts it once. Elsewhere it is the sum of resident memory.
    """
    import psutil

    process, total, counts = psutil.Process(), 0, TOGETHER
    for member in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):  # what has ended takes nothing
            memory = member.memory_full_info()
            counts = TOGETHER if hasattr(memory, "pss") else RESIDENT
            total += getattr(memory, "pss", memory.rss)
    return Peak(total / 1e6, counts)


class MemoryMonitor:
    """Samples `memory_in_use` by a thread, as no system keeps the largest sum; `peak` is that so far."""

    def __init__(self, *, interval: float = INTERVAL) -> None:
        self._interval = interval
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.peak = Peak(0.0, TOGETHER)

    def start(self) -> None:
        """Look every so often from now on."""
        if self._thread is None:
            self.look()
            self._stop.clear()
            self._thread = threading.Thread(target=self._watch, name="semcal memory", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Look no more; the peak stays."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None

    def look(self) -> Peak:
        """The largest sum, now included."""
        self.peak = max(self.peak, memory_in_use(), key=lambda peak: peak.mb)
        return self.peak

    def _watch(self) -> None:
        pause = self._interval
        while not self._stop.wait(pause):
            start = time.thread_time()
            self.look()
            pause = max(self._interval, (time.thread_time() - start) / SHARE)


def peak_memory_mb() -> float:
    """Return the largest resident memory of this process so far, in megabytes (10⁶ bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e6


def trim_memory() -> None:
    """Let the C library return to the system what has been freed; nothing where it cannot."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


# ---- Jobs --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobOutcome:
    """What came of a job, and what it cost."""

    value: Any = None
    error: Exception | None = None
    warnings: tuple[Warning, ...] = ()  # each text once
    seconds: float = 0.0  # CPU time of the job
    elapsed: float = 0.0  # time of the job by the clock
    start: float = 0.0  # CPU time of its process before its first job; 0 after that
    peak_mb: float = 0.0  # largest resident memory of its process so far (10⁶ bytes)


@dataclass(frozen=True)
class Task:
    """A job that was submitted."""

    job: Job
    stage: str
    finish: Callable[[Any], Any]
    priority: int
    progress: Progress
    future: Future[Any] = field(default_factory=Future)


def _call(function: Callable[[Any], Any], item: Any, *_: object) -> Any:
    """A function of an item as a job: it needs nothing that a worker holds."""
    return function(item)


class JobRun:
    """Measures the job that a `with` block does, whose `value` it is given.

    An error of the job is part of the `outcome` and raised where that is wanted; an interruption passes.
    After a long job freed memory goes back to the system: else it would stay with this process in pieces, too
    small for the next one.
    """

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        self._clock, self._start, self._begun = clock, clock(), time.perf_counter()
        self.value: Any = None
        self.outcome = JobOutcome()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> bool:
        failure = error if isinstance(error, Exception) else None
        seconds, elapsed = self._clock() - self._start, time.perf_counter() - self._begun
        self.outcome = JobOutcome(
            self.value, failure, seconds=seconds, elapsed=elapsed, peak_mb=peak_memory_mb()
        )
        if seconds >= LONG:
            trim_memory()
        return failure is not None


def run_job(
    job: Job, state: Any, progress: Progress, *, clock: Callable[[], float] = time.process_time
) -> JobOutcome:
    """Do a job here."""
    with JobRun(clock) as run:
        run.value = job(state, progress)
    return run.outcome


def run_recorded(work: Callable[[], JobOutcome]) -> JobOutcome:
    """What comes of some work, and what was warned of on the way, in a form that survives pickling."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            outcome = work()
        except _Terminated:
            raise
        except BaseException as error:  # noqa: BLE001 - of loading, or a panic of a library
            outcome = JobOutcome(error=as_exception(error), peak_mb=peak_memory_mb())
    if outcome.error is not None:
        outcome = replace(outcome, error=_portable(outcome.error))
    messages = {str(entry.message): entry.message for entry in caught if isinstance(entry.message, Warning)}
    portable = (
        message if _is_portable(message) else UserWarning(f"{type(message).__name__}: {message}")
        for message in messages.values()
    )
    return replace(outcome, warnings=tuple(portable))


def as_exception(error: BaseException) -> Exception:
    """The error itself if it is an Exception, else one that says what it was."""
    return error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")


def _portable(error: Exception) -> Exception:
    """The error itself if it survives pickling, else its text; one that nobody meant says where it was."""
    where = "".join(traceback.format_exception(error))
    if not _is_portable(error):
        error = RuntimeError(f"{type(error).__name__}: {error}")
    if not isinstance(error, SemcalError):
        error.add_note(f"in a worker process:\n{where}")
    return error


def _is_portable(value: object) -> bool:
    """Whether a value survives pickling; some cannot be pickled, some not be made again."""
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:  # noqa: BLE001 - pickle raises what their classes raise
        return False
    return True


# ---- Executors ---------------------------------------------------------------------------------------------


def _unchanged(value: Any) -> Any:
    return value


def _silent(_: int) -> None:
    return None


class Executor(ABC, Generic[State]):
    """Does jobs, and counts what they cost. Results do not depend on which executor is used."""

    n_workers: int = 1  # jobs that can be under way at a time
    n_processes: int = 0  # processes that have worked at a time beside this one
    retries: int = 0  # jobs that were begun again because their process had ended
    in_process: bool = False  # whether jobs are done in this process

    def __init__(self, state: State | None = None) -> None:
        self._state = state  # what jobs that are done when they are submitted are given
        self.seconds: dict[str, float] = {}  # CPU time by stage
        self.elapsed: dict[str, tuple[int, float]] = {}  # jobs, and their time by the clock, by stage
        self.peaks: dict[str, float] = {}  # largest memory (10⁶ bytes) of a process after a job, by stage
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
        finish: Callable[[Any], Any] = _unchanged,
        priority: int = 0,
        progress: Progress = _silent,
    ) -> Future[Any]:
        """Have a job done.

        Its cost is counted towards `stage`. In this process `finish` is applied to the result as soon as it
        is there, one at a time, and `progress` is told how many questions are done. Jobs of lower `priority`
        numbers are begun first, of equal ones in order. The future gives the result of `finish`, or raises
        what the job or `finish` raised; CancelledError if the executor was shut down first.
        """
        task = Task(job, stage, finish, priority, progress)
        if self.works_here:
            with JobRun() as run:  # not `run_job`, so that what is done stands one call below
                run.value = job(self._state, progress)
            self._settle(task, run.outcome)
        else:
            self._begin(task)
        return task.future

    def map(
        self, function: Callable[[Any], Result], items: Sequence[Any], *, stage: str, priority: int = 0
    ) -> Iterator[Result]:
        """Begin `function` of every item now; the results come in order. All of them can be pickled.

        >>> list(SerialExecutor(None).map(abs, [-1, 2], stage="work"))
        [1, 2]
        """
        futures = [
            self.submit(partial(_call, function, item), stage=stage, priority=priority) for item in items
        ]
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
        """The largest memory so far of this process and all that descend from it.

        What they took at the same time, in samples taken about every second inside a `with` block and now; at
        least what one process is known to have taken.
        """
        peak = self._memory.look()
        return replace(peak, mb=max(peak.mb, peak_memory_mb(), *self.peaks.values()))

    def release(self) -> None:
        """Let go of what workers hold; for later jobs it is loaded again."""
        return

    def shutdown(self, *, cancel: bool = False) -> None:
        """Let go of the workers once all jobs are done; with `cancel` at once."""
        del cancel

    @property
    def works_here(self) -> bool:
        """Whether a job is done in this process when it is submitted."""
        return False

    def _begin(self, task: Task) -> None:
        """See to it that a task is done; in the end `_settle` it."""
        raise NotImplementedError

    def _settle(self, task: Task, outcome: JobOutcome) -> None:
        """Count what a task has cost, pass its warnings on, and give its future the result."""
        try:
            with self._lock:
                self._count("start", outcome.start)
                self._count(task.stage, outcome.seconds)
                jobs, elapsed = self.elapsed.get(task.stage, (0, 0.0))
                self.elapsed[task.stage] = jobs + 1, elapsed + outcome.elapsed
                self.peaks[task.stage] = max(self.peaks.get(task.stage, 0.0), outcome.peak_mb)
                for message in outcome.warnings:
                    warnings.warn_explicit(message, type(message), task.stage, 0, registry=self._warned)
                if outcome.error is None:
                    outcome = replace(outcome, value=task.finish(outcome.value))
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
    works_here = True

    def __init__(self, state: State) -> None:
        super().__init__(state)

    def run_together(self, functions: Sequence[Callable[[], Result]]) -> list[Result]:
        """Run functions one after another: none could go on while another's job is done."""
        results: list[Result] = []
        for function in functions:  # a comprehension would be one frame more below all that they do
            results.append(function())
        return results


class ThreadedExecutor(Executor[State]):
    """Threads that take tasks by priority, do each by `_run`, and settle it."""

    def __init__(self, n_threads: int) -> None:
        super().__init__()
        self.n_workers = n_threads
        self._cancelled = False
        self._numbers = count()
        self._queue: PriorityQueue[tuple[float, int, Task | None]] = PriorityQueue()
        self._threads = [
            threading.Thread(target=self._work, name="semcal worker", daemon=True) for _ in range(n_threads)
        ]
        for thread in self._threads:
            thread.start()

    @abstractmethod
    def _run(self, task: Task) -> JobOutcome:
        """Do a task; CancelledError if the executor is shut down meanwhile."""

    def _stop(self) -> None:
        """End what jobs run in."""

    def _begin(self, task: Task) -> None:
        if self._cancelled:
            _cancel(task.future)
        else:
            self._queue.put((task.priority, next(self._numbers), task))

    def _work(self) -> None:
        while (task := self._queue.get()[2]) is not None:
            try:
                self._settle(task, self._run(task))
            except CancelledError:
                _cancel(task.future)
            except BaseException as error:  # noqa: BLE001 - a thread that ends is waited for for ever
                self._settle(task, JobOutcome(error=as_exception(error)))

    def shutdown(self, *, cancel: bool = False) -> None:
        """Let go of the workers once all jobs are done; with `cancel` at once."""
        self._cancelled = self._cancelled or cancel
        for _ in self._threads:
            self._queue.put((-math.inf if cancel else math.inf, next(self._numbers), None))
        if cancel:
            self._stop()
        deadline = time.monotonic() + PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()) if cancel else None)
        with suppress(Empty):
            while True:
                task = self._queue.get_nowait()[2]
                if task is not None:
                    _cancel(task.future)
        if not cancel:
            self._stop()


def _cancel(future: Future[Any]) -> None:
    """Cancel a future so that `wait` and `as_completed` hear of it, not `result` alone."""
    if future.cancel():
        future.set_running_or_notify_cancel()


class ProcessExecutor(ThreadedExecutor[State]):
    """Worker processes, one for each thread here, which each load their own copy of what jobs need.

    A process starts when there is work for it. Where one dies, another does its job again; an interrupted or
    failed `with` block ends all of them, and so does the end of this process.

    `load` gives a process what it holds; it can be pickled. They part from a server that has imported the
    modules of `preload`. With `state`, which jobs that are done here are given, jobs are done in this process
    until they have cost as much as starting workers: so little work never pays for a start, and much work one
    start too many at most.
    """

    def __init__(
        self,
        load: Callable[[], State],
        n_workers: int,
        *,
        preload: Sequence[str] = PRELOAD,
        state: State | None = None,
    ) -> None:
        super().__init__(n_workers)
        self._load, self._preload, self._state = load, preload, state
        self._workers: dict[int, _Worker] = {}  # by thread
        if state is None:
            start_context(preload)  # it begins to import well before there is work

    @property
    def n_ahead(self) -> int:
        return 1 if self.works_here else super().n_ahead

    @property
    def works_here(self) -> bool:
        """Whether jobs are still done in this process: until they have cost as much as a start."""
        return self._state is not None and sum(self.seconds.values()) < START

    def _run(self, task: Task) -> JobOutcome:
        for attempt in range(ATTEMPTS):
            if attempt:
                with self._lock:
                    self.retries += 1
            worker = self._worker()
            try:
                return worker.do(task.job, task.progress)
            except (EOFError, ConnectionError):  # it has died
                if self._cancelled:
                    raise CancelledError from None
                worker.end()
            except BaseException:
                worker.process.kill()  # what it says later must not be taken for what another job gives
                raise
        code = worker.process.exitcode or 0
        how_it_ended = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise WorkerError(
            f"a worker process {how_it_ended} at the same piece of work ({task.stage}) {ATTEMPTS} times; if "
            "memory is short, give --workers 1 or a smaller --memory"
        )

    def _worker(self) -> _Worker:
        """The worker of this thread, a new one if there is none that lives."""
        thread = threading.get_ident()
        with self._lock:
            if self._cancelled:
                raise CancelledError
            if thread not in self._workers or not self._workers[thread].process.is_alive():
                self._workers[thread] = _start_worker(self._preload, self._load)
                self.n_processes = max(self.n_processes, len(self._workers))
            return self._workers[thread]

    def release(self) -> None:
        """End all processes; for later jobs others start."""
        with self._lock:  # a thread may be starting one just now
            workers = list(self._workers.values())
            self._workers.clear()
        for worker in workers if self._cancelled else ():
            worker.process.terminate()
        for worker in workers:
            worker.end(at_once=self._cancelled)

    _stop = release


# ---- Worker processes --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Worker:
    """A process that does one job at a time, and the pipe to it."""

    process: multiprocessing.process.BaseProcess
    pipe: Connection[Any, Any]

    def do(self, job: Job, progress: Progress) -> JobOutcome:
        """Have a job done; EOFError or ConnectionError if the process ends."""
        self.pipe.send(job)
        while not isinstance(message := self.pipe.recv(), JobOutcome):
            progress(message)
        return message

    def end(self, *, at_once: bool = False) -> None:
        """See that the process ends, which has no job; `at_once` one that may have, and was told to end."""
        if not at_once:
            self.pipe.close()
        self.process.join(PATIENCE if at_once else None)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self.pipe.close()


def _start_worker(preload: Sequence[str], load: Callable[[], Any]) -> _Worker:
    context = start_context(preload)
    for _ in range(ATTEMPTS):
        pipe, far_end = context.Pipe()
        process = context.Process(target=_serve, args=(load, far_end, [*PLUGINS]), daemon=True)  # type: ignore[attr-defined]
        try:
            with _uninterrupted(), far_end:  # closed here, so that its end is heard of
                process.start()
            return _Worker(process, pipe)
        except (EOFError, ConnectionError):  # the fork server has died: another one starts
            pipe.close()
    raise WorkerError(
        f"no worker process can be started: the process that starts them has died {ATTEMPTS} times; "
        "if memory is short, give --workers 1 or a smaller --memory"
    )


def start_context(preload: Sequence[str] = PRELOAD) -> BaseContext:
    """How processes start: from a clean server that has imported what they need, as PyTorch has threads.

    The server begins to import at once and nobody waits for it here.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    with _uninterrupted():
        ensure_running()
    return context


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """What is started inside has one thread, and is deaf to Ctrl-C, which is for the process in charge."""
    before = {name: os.environ[name] for name in ONE_THREAD if name in os.environ}
    os.environ.update(ONE_THREAD)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name in ONE_THREAD.keys() - before:
            del os.environ[name]
        os.environ.update(before)


class _Terminated(SystemExit):
    """SIGTERM in a worker: `with` blocks end, so that no temporary file is left."""


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    del frame
    signal.signal(number, signal.SIG_IGN)
    raise _Terminated(128 + number)


def _end_with_parent() -> None:
    """End this process when its parent has gone, however that ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE)
    os._exit(1)


def _serve(load: Callable[[], Any], pipe: Connection[Any, Any], plugins: Sequence[str]) -> None:
    """Do jobs in a worker process; what it holds is loaded with the first, so that errors belong to that."""
    gc.freeze()  # a collection would write to what is shared with other processes, and so copy it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _terminate)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    state: list[Any] = []

    def work(content: bytes) -> JobOutcome:
        if not state:
            load_plugins(plugins)
        job, start = pickle.loads(content), 0.0
        if not state:
            state.append(load())
            start = time.process_time()
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)
        return replace(run_job(job, state[0], pipe.send), start=start)

    try:
        with suppress(EOFError, ConnectionError):  # no more jobs, or nobody to give them
            while True:
                _send(pipe, run_recorded(partial(work, pipe.recv_bytes())))
    finally:
        state.clear()  # closes files


def _send(pipe: Connection[Any, Any], outcome: JobOutcome) -> None:
    try:
        pipe.send(outcome)
    except ConnectionError:
        raise
    except Exception as error:  # noqa: BLE001 - of pickling, which raises what classes raise
        pipe.send(replace(outcome, value=None, error=_portable(error)))
