"""Worker processes: a pool of `concurrent.futures` on a fork server that is replaced when one of them dies.

Each worker has one thread and does a job in one piece, so nothing that is rounded depends on their number.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from multiprocessing.context import BaseContext
from multiprocessing.util import Finalize
from types import FrameType
from typing import Any, NoReturn

from semcal.errors import SemcalError, WorkerError
from semcal.pipeline.executor import (
    PATIENCE,
    Job,
    JobOutcome,
    State,
    Task,
    ThreadedExecutor,
    as_exception,
    peak_memory_mb,
    run_job,
)

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
#: Keeps numpy's and SciPy's BLAS at one thread: each number of threads adds up in another order.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
#: Exit codes of workers that were told to end.
TOLD = (0, 128 + signal.SIGTERM, -signal.SIGTERM)


@dataclass(frozen=True)
class _Report:
    """What a worker says while it works: that it has begun a task, or how many questions are done."""

    number: int
    process: int
    n_done: int | None = None


@dataclass
class _Worker:
    """This process as a worker: what it was started with, and what it has loaded."""

    load: Callable[[], Any]
    reports: connection.Connection[Any, Any]
    state: list[Any] = field(default_factory=list)


_this: list[_Worker] = []


def _start_worker(load: Callable[[], Any], reports: connection.Connection[Any, Any]) -> None:
    """Initialise a worker process; it loads its state with the first job, so that errors belong to that."""
    gc.freeze()  # a collection would write to what is shared with other processes, and so copy it
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process in charge tells us
    _this.append(_Worker(load, reports))
    Finalize(None, _this.clear, exitpriority=0)  # closes files; such a process runs no functions of atexit
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGTERM, _leave)  # last: the pool would write of what is raised before this ends


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """End this process with its temporary files removed."""
    del frame
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _end_with_parent() -> None:
    """End this process when its parent has gone, however that ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE)
    os._exit(1)


def _work(number: int, job: Job) -> JobOutcome:
    """Do a job in a worker process."""
    (worker,) = _this
    worker.reports.send(_Report(number, os.getpid()))

    def work() -> JobOutcome:
        start = 0.0
        if not worker.state:
            worker.state.append(worker.load())
            start = time.process_time()
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)
        outcome = run_job(
            job, worker.state[0], lambda done: worker.reports.send(_Report(number, os.getpid(), done))
        )
        return replace(outcome, start=start, process=os.getpid())

    try:
        return run_recorded(work)
    except SystemExit as end:
        if end.code == 128 + signal.SIGTERM:
            os._exit(end.code)  # the pool would send it back, and go on
        return JobOutcome(error=as_exception(end))


def run_recorded(work: Callable[[], JobOutcome]) -> JobOutcome:
    """What comes of some work, and what was warned of on the way, in a form that survives pickling."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            outcome = work()
        except Exception as error:  # noqa: BLE001 - of loading
            outcome = JobOutcome(error=error, peak_mb=peak_memory_mb())
    if outcome.error is not None:
        outcome = replace(outcome, error=_portable(outcome.error))
    found = {str(one.message): one.message for one in caught if isinstance(one.message, Warning)}
    sent = (one if _travels(one) else UserWarning(f"{type(one).__name__}: {one}") for one in found.values())
    return replace(outcome, warnings=tuple(sent))


def _portable(error: Exception) -> Exception:
    """The error itself if it survives pickling, else its text; one that nobody meant says where it was."""
    where = "".join(traceback.format_exception(error))
    if not _travels(error):
        error = RuntimeError(f"{type(error).__name__}: {error}")
    if not isinstance(error, SemcalError):
        error.add_note(f"in a worker process:\n{where}")
    return error


def _travels(error: Exception) -> bool:
    """Whether an error or a warning survives pickling; some cannot be pickled, some not be made again."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - pickle raises what their classes raise
        return False
    return True


class _Pool(ProcessPoolExecutor):
    """The pool, with a pipe by which its workers report, and the exit codes of their processes."""

    def __init__(
        self, n_workers: int, context: BaseContext, load: Callable[[], Any], hear: Callable[[_Report], None]
    ) -> None:
        reader, self._writer = context.Pipe(duplex=False)
        super().__init__(n_workers, context, _start_worker, (load, self._writer))
        self._hear = hear
        self._listener = threading.Thread(target=self._listen, args=(reader,), daemon=True)
        self._listener.start()
        self._ended = False
        self.exit_codes: dict[int | None, int | None] = {}

    def _listen(self, reader: connection.Connection[Any, Any]) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._hear(reader.recv())

    def end(self, *, at_once: bool = False) -> None:
        """End all processes, and hear what they have said; `at_once` does not wait for their jobs."""
        if self._ended:
            return
        self._ended = True
        processes = list((self._processes or {}).values())
        if at_once:
            for process in processes:
                process.terminate()
            deadline = time.monotonic() + PATIENCE
            left = [process.sentinel for process in processes]
            while left and (rest := deadline - time.monotonic()) > 0:
                gone = connection.wait(left, rest)
                left = [one for one in left if one not in gone]
            for process in processes:
                if process.sentinel in left:
                    process.kill()
        self.shutdown(wait=True, cancel_futures=at_once)
        self.exit_codes = {process.pid: process.exitcode for process in processes}
        self._writer.close()
        self._listener.join()


class ProcessExecutor(ThreadedExecutor[State]):
    """Worker processes that each load their own copy of what jobs need.

    Processes start when there is work for them. Where one dies, all are replaced and the unfinished jobs done
    again; an interrupted or failed `with` block ends them, and so does the end of this process.

    `load` gives a process its state; it can be pickled. The fork server imports the modules of `preload`, by
    default what models need.
    """

    def __init__(
        self, load: Callable[[], State], n_workers: int, preload: Sequence[str] | None = None
    ) -> None:
        super().__init__([n_workers])
        self._load = load
        self._preload = PRELOAD if preload is None else preload
        self._pool: _Pool | None = None
        self._tasks: dict[int, Task] = {}
        self._process_of: dict[int, int] = {}
        self._process_peaks: dict[int, float] = {}
        self._prepare()

    def _prepare(self) -> None:
        """Let the fork server import what processes need, well before there is work for them."""
        start_context(self._preload)

    def _summed_mb(self) -> float:
        return peak_memory_mb() + sum(sorted(self._process_peaks.values())[-self.n_workers :])

    def _run(self, task: Task) -> JobOutcome:
        self._tasks[task.number] = task
        deaths = 0
        while True:
            self._process_of.pop(task.number, None)
            pool, outcome = self._try(task)
            if outcome is not None:
                del self._tasks[task.number]
                with self._lock:
                    self._process_peaks[outcome.process] = outcome.peak_mb
                    self.n_processes = min(self.n_workers, len(self._process_peaks))
                return outcome
            if self._cancelled:
                raise CancelledError
            codes = {pid: code for pid, code in pool.exit_codes.items() if code not in TOLD}
            process = self._process_of.get(task.number)
            if not codes or process in codes or process is None:
                deaths += 1  # it may be why its process has died
            if deaths == ATTEMPTS:
                raise WorkerError(self._given_up(task, codes.get(process, next(iter(codes.values()), None))))
            with self._lock:
                self.retries += 1

    def _try(self, task: Task) -> tuple[_Pool, JobOutcome | None]:
        """Have a worker do a task; no outcome where the pool broke, whose processes have then ended."""
        for _ in range(ATTEMPTS):
            with self._lock:
                if self._cancelled:
                    raise CancelledError
                if self._pool is None:
                    self._pool = _Pool(self.n_workers, start_context(self._preload), self._load, self._heard)
                pool = self._pool
                try:
                    with _uninterrupted():
                        future = pool.submit(_work, task.number, task.job)
                except BrokenProcessPool:
                    break
                except (EOFError, ConnectionError):  # the fork server has died: another one starts
                    self._pool = None
                    pool.end(at_once=True)
                    continue
            with suppress(BrokenProcessPool):
                return pool, future.result()
            break
        else:
            raise WorkerError(
                f"no worker process can be started: the process that starts them has died {ATTEMPTS} times; "
                "if memory is short, give --workers 1 or a smaller --memory"
            )
        with self._lock:
            pool.end()
            if self._pool is pool:
                self._pool = None
        return pool, None

    def _heard(self, report: _Report) -> None:
        if report.n_done is None:
            self._process_of[report.number] = report.process
        elif (task := self._tasks.get(report.number)) is not None:
            task.progress(report.n_done)

    def _given_up(self, task: Task, code: int | None) -> str:
        how = f"was killed by signal {-code}" if code and code < 0 else f"ended with exit code {code}"
        return (
            f"a worker process {how} at the same piece of work ({task.stage}) {ATTEMPTS} times; if memory is "
            "short, give --workers 1 or a smaller --memory"
        )

    def release(self) -> None:
        """End all processes; for later jobs others start."""
        with self._lock:
            if self._pool is not None:
                self._pool.end()
                self._pool = None

    def _stop(self) -> None:
        with self._lock:  # a thread may be starting a pool just now
            pool = self._pool
        if pool is not None:
            pool.end(at_once=self._cancelled)


class AdaptiveExecutor(ProcessExecutor[State]):
    """Runs serially until that has cost as much as starting workers; then uses workers.

    So little work never pays for a start, and much work one start too many at most. `state` is what jobs that
    are done here are given.
    """

    def __init__(self, load: Callable[[], State], n_workers: int, state: State) -> None:
        super().__init__(load, n_workers)
        self._state = state
        self._spent = 0.0

    def _prepare(self) -> None:
        """Nothing yet: workers may never be needed."""

    @property
    def n_ahead(self) -> int:
        return super().n_ahead if self._spent >= START else 1

    def _begin(self, task: Task) -> None:
        if self._spent >= START:
            super()._begin(task)
            return
        outcome = run_job(task.job, self._state, task.progress)
        self._spent += outcome.seconds
        self._settle(task, outcome)


def start_context(preload: Sequence[str] = PRELOAD) -> BaseContext:
    """How processes start: from a clean server that has imported what they need, or else each by itself.

    The server begins to import at once and nobody waits for it here.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    from multiprocessing.forkserver import ensure_running

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    with _uninterrupted():
        ensure_running()
    return context


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """What is started inside has one thread, and is deaf to Ctrl-C, which is for the process in charge."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    can_mask = hasattr(signal, "pthread_sigmask")
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if can_mask else set()
    try:
        yield
    finally:
        if can_mask:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
