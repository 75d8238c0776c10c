"""Executors of jobs in this process (`SerialExecutor`) or in worker processes (`ProcessExecutor`).

A job is a picklable function of the state of a worker. Each worker process has one thread, loads its state
once, and does a job in one piece, so results do not depend on the number of workers. Ray:
`experiment.ray_executor`.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import pickle
import platform
import resource
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_EXCEPTION,
    CancelledError,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import connection, util
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from types import FrameType
from typing import Any, Generic, NoReturn, Self, TypeVar

from semcal.errors import SemcalError, UsageError, WorkerError
from semcal.registry import PLUGINS, load_plugins

State = TypeVar("State")
_Result = TypeVar("_Result")
Progress = Callable[[int], None]
"""Function that is called with the number of finished questions."""
Job = Callable[[Any, Progress], Any]
"""Picklable function that maps the state of a worker to a result, and may report progress."""

#: Seconds for a process or a thread to end by itself.
PATIENCE = 5.0
#: CPU seconds of a job from which its memory is returned to the system.
LONG = 0.5
#: Maximum number of attempts at a job whose process dies.
ATTEMPTS = 2
#: CPU seconds to start worker processes (docs/workers.md).
START = 5.0
#: Keeps numpy's and SciPy's BLAS at one thread, because the order of sums depends on the number of threads.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
#: Modules that the server of worker processes imports once for all of them.
PRELOAD = (
    "semcal.models.causal_lm",
    "semcal.models.nli",
    "transformers.generation.utils",
    "transformers.modeling_utils",
    "scipy.fft",
)

# ---- How many workers --------------------------------------------------------------------------------------

#: Memory of a process without its weights: libraries, keys and values, rows.
OVERHEAD = 5 * 10**8
#: Size of weights from which a single process gains from more than one thread (docs/workers.md).
THREADS_FROM = 2 * 10**8
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "*.onnx")


@dataclass(frozen=True)
class WorkerPlan:
    """A number of worker processes, and the threads of each."""

    n_workers: int  # 1 means this process alone
    n_threads: int = 1  # of PyTorch in each process
    requested: bool = False  # whether the user gave the number

    def __str__(self) -> str:
        return f"processes: {self.n_workers}, threads of each: {self.n_threads}"


def plan_workers(
    requested: int | None,
    *,
    weights: int | None,
    blocks: int | None = None,
    on_cpu: bool = True,
    processors: int | None = None,
    memory: int | None = None,
) -> WorkerPlan:
    """Choose the number of worker processes; UsageError if less than one is requested.

    Unless `requested`, the number is the smallest of the processors, the `blocks` of questions (if known),
    and the copies of the models' `weights` (bytes; None if unknown: one process) that fit into free memory.
    Processes of one thread are faster than threads (docs/workers.md); a single process with large models, or
    on another device than the CPU, has a thread for each processor.
    """
    if requested is not None:
        if requested < 1:
            raise UsageError(
                f"--workers is {requested}; expected 1 or more. Leave it out for an automatic choice."
            )
        return WorkerPlan(requested, requested=True)
    processors = processors or cores()
    if not on_cpu or weights is None:
        return WorkerPlan(1, processors)
    if memory is None:
        import psutil

        memory = int(psutil.virtual_memory().available)
    n_workers = min(processors, memory // (weights + OVERHEAD), processors if blocks is None else blocks)
    if n_workers > 1:
        return WorkerPlan(n_workers)
    return WorkerPlan(1, processors if weights >= THREADS_FROM else 1)


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_disk(directory: Path) -> int:
    """Return the bytes of the weights in a checkpoint's directory, 0 if there are none."""
    sizes = [sum(path.stat().st_size for path in directory.glob(pattern)) for pattern in _WEIGHTS]
    return next((size for size in sizes if size), 0)


def has_gpu() -> bool:
    """Return whether there may be a GPU, without importing PyTorch."""
    nodes = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
    return not sys.platform.startswith("linux") or any(map(os.path.exists, nodes))


# ---- Memory ------------------------------------------------------------------------------------------------


def peak_memory_mb() -> float:
    """Return the largest resident memory of this process so far, in megabytes (10⁶ bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e6


def trim_memory() -> None:
    """Return freed memory to the system, if the C library supports it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


# ---- Jobs --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobOutcome:
    """The result of a job, and its cost."""

    value: Any = None
    error: Exception | None = None
    warnings: tuple[Warning, ...] = ()  # each text once
    seconds: float = 0.0  # CPU time of the job
    start: float = 0.0  # CPU time of its process before its first job; 0 after that
    peak_mb: float = 0.0  # largest resident memory of its process so far (10⁶ bytes)


def _call(function: Callable[[Any], Any], item: Any, *_: object) -> Any:
    return function(item)


def run_job(job: Job, state: Any, progress: Progress) -> JobOutcome:
    """Do a job in this process. The outcome holds its error; interruptions are raised.

    After a long job, freed memory returns to the system; otherwise it would stay in this process in pieces
    that are too small for the next job.
    """
    start = time.process_time()
    value, failure = None, None
    try:
        value = job(state, progress)
    except Exception as error:  # noqa: BLE001 - it is raised where the result is wanted
        failure = error
    seconds = time.process_time() - start
    if seconds >= LONG:
        trim_memory()
    return JobOutcome(value, failure, seconds=seconds, peak_mb=peak_memory_mb())


#: The states that this process has loaded for jobs of others, by their pickled loaders.
_states: dict[bytes, Any] = {}


def run_pickled(load: bytes, job: bytes, plugins: Sequence[str], progress: Progress) -> JobOutcome:
    """Do a job of another process with one thread; the first job loads the state.

    `load` and `job` are pickled. `plugins` are loaded first, because unpickling may need them.
    """

    def work() -> JobOutcome:
        start = 0.0
        if load not in _states:
            load_plugins(plugins)
            _states[load] = pickle.loads(load)()
            start = time.process_time()
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)
        return replace(run_job(pickle.loads(job), _states[load], progress), start=start)

    return run_recorded(work)


def run_recorded(work: Callable[[], JobOutcome]) -> JobOutcome:
    """Return the outcome of work, with its warnings, in a picklable form."""
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
    """Return an Exception itself, and any other error as a RuntimeError with its text."""
    return error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")


def _portable(error: Exception) -> Exception:
    where = "".join(traceback.format_exception(error))
    if not _is_portable(error):
        error = RuntimeError(f"{type(error).__name__}: {error}")
    if not isinstance(error, SemcalError):
        error.add_note(f"in a worker process:\n{where}")
    return error


def _is_portable(value: object) -> bool:
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


class Executor(Generic[State]):
    """An executor of jobs that counts their cost. Results do not depend on the kind of executor."""

    n_workers: int = 1  # maximum number of simultaneous jobs
    n_processes: int = 0  # largest number of simultaneous worker processes so far
    retries: int = 0  # jobs that were started again because their process had ended

    def __init__(self, state: State | None = None) -> None:
        self._state = state  # the state for jobs that are done in this process
        self.seconds: dict[str, float] = {}  # CPU time by stage
        self.peaks: dict[str, float] = {}  # largest memory (10⁶ bytes) of a process after a job, by stage
        self._warned: dict[Any, Any] = {}
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.shutdown(cancel=kind is not None)

    def submit(
        self,
        job: Job,
        *,
        stage: str = "work",
        finish: Callable[[Any], Any] = _unchanged,
        progress: Progress = _silent,
    ) -> Future[Any]:
        """Submit a job and return its future.

        The cost of the job counts towards `stage`. This process applies `finish` to each result, one at a
        time, and calls `progress` with the number of finished questions. The future returns the result of
        `finish`, or raises the error of the job or of `finish`. It raises CancelledError if the executor was
        shut down first.
        """
        if not self.works_here:
            return self._begin(lambda: self._settle(self._run(job, stage, progress), stage, finish))
        future: Future[Any] = Future()
        try:
            future.set_result(self._settle(run_job(job, self._state, progress), stage, finish))
        except Exception as error:  # noqa: BLE001 - it is raised where the result is wanted
            future.set_exception(error)
        return future

    def map(
        self, function: Callable[[Any], _Result], items: Sequence[Any], *, stage: str
    ) -> Iterator[_Result]:
        """Submit `function` for every item now, and iterate over the results in order. All are picklable.

        >>> list(SerialExecutor(None).map(abs, [-1, 2], stage="work"))
        [1, 2]
        """
        futures = [self.submit(partial(_call, function, item), stage=stage) for item in items]
        return (future.result() for future in futures)

    def run_together(self, functions: Sequence[Callable[[], _Result]]) -> list[_Result]:
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
        """Number of jobs to submit before waiting for the first result, so that no worker is idle."""
        return 1 if self.works_here or self.n_workers == 1 else 2 * self.n_workers

    @property
    def peak_memory_mb(self) -> float:
        """Upper bound of the memory of this process and all its workers so far (10⁶ bytes).

        It is the sum of the largest resident memory of each, without shared memory.
        """
        return peak_memory_mb() + self.n_processes * max(self.peaks.values(), default=0.0)

    def release(self) -> None:
        """Release the states of workers; later jobs load them again."""

    def shutdown(self, *, cancel: bool = False) -> None:
        """Release the workers after all jobs; with `cancel`, at once."""

    @property
    def works_here(self) -> bool:
        """True if a submitted job is done at once in this process."""
        return False

    def _begin(self, work: Callable[[], Any]) -> Future[Any]:
        raise NotImplementedError

    def _run(self, job: Job, stage: str, progress: Progress) -> JobOutcome:
        raise NotImplementedError

    def _settle(self, outcome: JobOutcome, stage: str, finish: Callable[[Any], Any]) -> Any:
        """Count the cost of a job, repeat its warnings, and return its result or raise its error."""
        with self._lock:
            for name, seconds in (("start", outcome.start), (stage, outcome.seconds)):
                if seconds:
                    self.seconds[name] = self.seconds.get(name, 0.0) + seconds
            self.peaks[stage] = max(self.peaks.get(stage, 0.0), outcome.peak_mb)
            for message in outcome.warnings:
                warnings.warn_explicit(message, type(message), stage, 0, registry=self._warned)
            if outcome.error is not None:
                raise outcome.error
            return finish(outcome.value)


class SerialExecutor(Executor[State]):
    """An executor that does each submitted job at once in this process, with the same `state`."""

    works_here = True

    def run_together(self, functions: Sequence[Callable[[], _Result]]) -> list[_Result]:
        """Run functions one after another, as their jobs run in this process."""
        return [function() for function in functions]


class ThreadedExecutor(Executor[State]):
    """An executor with a pool of threads, each of which waits for a job that `_run` does elsewhere."""

    def __init__(self, n_threads: int) -> None:
        super().__init__()
        self.n_workers = n_threads
        self._cancelled = False
        self._threads = ThreadPoolExecutor(n_threads, "semcal worker")

    def _begin(self, work: Callable[[], Any]) -> Future[Any]:
        if self._cancelled:
            raise CancelledError
        return self._threads.submit(work)

    def _stop(self) -> None:
        """End the workers of this executor; if it is cancelled, `_run` then ends with CancelledError."""

    def shutdown(self, *, cancel: bool = False) -> None:
        """Release the workers after all jobs; with `cancel`, at once."""
        self._cancelled = self._cancelled or cancel
        self._threads.shutdown(wait=not cancel, cancel_futures=cancel)
        self._stop()
        self._threads.shutdown()


class ProcessExecutor(ThreadedExecutor[State]):
    """An executor with one worker process for each thread, each with its own state.

    A process starts when it is needed, in a pool of its own, so that its death ends no other job. If a
    process dies, another does its job again. An interrupted or failed `with` block ends all processes, and so
    does the end of this process.

    The picklable `load` returns the state of a process. Processes fork from a server that has imported the
    modules of `preload`. With `state`, jobs are done in this process until they have cost as much as the
    start of workers: little work needs no start, and much work pays at most one start too many.
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
        self._load, self._preload, self._state = pickle.dumps(load), preload, state
        self._workers: dict[int, _Worker] = {}  # by thread
        if state is None:
            start_context(preload)  # imports begin well before there is work

    @property
    def works_here(self) -> bool:
        """True until the jobs in this process have cost as much as the start of workers."""
        return self._state is not None and sum(self.seconds.values()) < START

    def _run(self, job: Job, stage: str, progress: Progress) -> JobOutcome:
        pickled = pickle.dumps(job)
        for attempt in range(ATTEMPTS):
            if attempt:
                with self._lock:
                    self.retries += 1
            worker = None
            try:
                worker = self._worker()
                return worker.run(self._load, pickled, progress)
            except BaseException as error:
                if worker is not None:
                    with self._lock:
                        self._workers.pop(threading.get_ident(), None)
                    worker.process.kill()  # its later messages must not be mistaken for those of another job
                if self._cancelled:
                    raise CancelledError from None
                if not isinstance(error, BrokenProcessPool):
                    raise
        how = worker.how_it_ended() if worker else "cannot be started"
        raise WorkerError(
            f"a worker process {how} during the same job ({stage}) {ATTEMPTS} times. If memory is "
            "short, give --workers 1 or a smaller model.memory."
        )

    def _worker(self) -> _Worker:
        thread = threading.get_ident()
        with self._lock:
            if not self._cancelled and (thread not in self._workers or self._workers[thread].has_ended):
                self._workers[thread] = _Worker(self._preload)
                self.n_processes = max(self.n_processes, len(self._workers))
            if self._cancelled:  # maybe while it was starting: the function that waits for the lock ends it
                raise CancelledError
            return self._workers[thread]

    def release(self) -> None:
        """End all processes; later jobs start others."""
        if self._cancelled:  # at once: Ctrl-C may come again while the lock is waited for
            self._terminate()
        with self._lock:  # a thread may be starting one just now
            if self._cancelled:
                self._terminate()
            workers = list(self._workers.values())
            self._workers.clear()
        for worker in workers:
            worker.end(at_once=self._cancelled)

    _stop = release

    def _terminate(self) -> None:
        for worker in list(self._workers.values()):
            worker.process.terminate()


# ---- Worker processes --------------------------------------------------------------------------------------


class _Worker:
    """A process that does one job at a time, and the pipe for its progress."""

    def __init__(self, preload: Sequence[str]) -> None:
        context = start_context(preload)
        self._told, tell = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(1, context, _begin_worker, (tell,))
        try:
            with _uninterrupted(), tell:  # closed here, so that the reader sees the end of the process
                self._pool.submit(os.getpid)  # starts the process
        except (EOFError, ConnectionError) as error:  # the server that starts processes has died
            raise BrokenProcessPool from error
        (self.process,) = self._pool._processes.values()

    @property
    def has_ended(self) -> bool:
        """True once the process has ended. The sentinel shows it; only the pool may read the exit code."""
        return bool(connection.wait([self.process.sentinel], 0))

    def run(self, load: bytes, job: bytes, progress: Progress) -> JobOutcome:
        """Do a job; BrokenProcessPool if the process ends."""
        done = self._pool.submit(_work, load, job, [*PLUGINS])
        while (number := self._hear()) is not None:
            progress(number)
        return done.result()

    def _hear(self) -> int | None:
        with suppress(EOFError, OSError):
            number: int | None = self._told.recv()
            return number
        return None

    def end(self, *, at_once: bool = False) -> None:
        """End the idle process; with `at_once`, end a terminated process that may be busy."""
        if at_once and not connection.wait([self.process.sentinel], PATIENCE):
            self.process.kill()
        self._pool.shutdown()
        self._told.close()

    def how_it_ended(self) -> str:
        """Describe the end of a process that has died."""
        self.end()
        code = self.process.exitcode or 0
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def start_context(preload: Sequence[str] = PRELOAD) -> BaseContext:
    """Return the start method of processes: a fork of a clean server, as PyTorch has threads.

    The server begins to import `preload` at once; this function does not wait.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    with _uninterrupted():
        ensure_running()
    return context


@contextmanager
def _uninterrupted() -> Iterator[None]:
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
    """End this process when its parent has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE)
    os._exit(1)


def _begin_worker(tell: Connection) -> None:
    gc.freeze()  # a collection would write to pages shared with other processes, and so copy them
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _terminate)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    util.Finalize(None, _states.clear, exitpriority=0)  # closes files
    _pipes.append(tell)


#: The pipe for the progress of this process, if it is a worker.
_pipes: list[Connection] = []


def _work(load: bytes, job: bytes, plugins: Sequence[str]) -> JobOutcome:
    (tell,) = _pipes
    try:
        return run_pickled(load, job, plugins, tell.send)
    except _Terminated:
        _states.clear()
        os._exit(128 + signal.SIGTERM)
    finally:
        with suppress(ConnectionError):
            tell.send(None)


# ---- Versions and the machine, for the record of a run -----------------------------------------------------

PACKAGES = ("semcal", "torch", "transformers", "numpy", "scipy", "rapidfuzz", "matplotlib")


def versions() -> dict[str, str | None]:
    """Return the installed version of each package that results depend on (None if absent)."""
    installed: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            installed[package] = None
    return installed


def environment() -> dict[str, Any]:
    """Return versions of packages and data of the machine as plain data."""
    return {
        "versions": versions(),
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
    }
