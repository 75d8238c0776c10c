"""A worker process: it loads what it needs once, does one job after another, and says what each one cost."""

from __future__ import annotations

import gc
import os
import pickle
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from semcal.errors import SemcalError
from semcal.pipeline.footprint import give_back

__all__ = ["ONE_THREAD", "Job", "Outcome", "Tell", "Told", "done", "peak_memory_mb", "serve", "uninterrupted"]

Tell = Callable[[int], None]
"""Is told how many questions are done."""
Job = Callable[[Any, Tell], Any]
"""Maps what a worker has loaded to a result, and may tell how far it is; it can be pickled."""

#: CPU seconds of a job from which it is worth some milliseconds to give its memory back.
LONG = 0.5
#: Keeps numpy's and SciPy's BLAS at one thread: each number of threads adds up in another order.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Told:
    """How far a job is: the number of questions done."""

    count: int


@dataclass(frozen=True)
class Outcome:
    """What came of a job.

    Attributes
    ----------
    value : object
        What it returned.
    error : Exception or None
        What it raised.
    warnings : tuple of Warning
        What it warned of, each text once.
    seconds : float
        CPU time of the job.
    start : float
        CPU time of the process before its first job; 0 after that.
    peak_mb : float
        Largest resident memory of the process so far (10⁶ bytes).
    """

    value: Any = None
    error: Exception | None = None
    warnings: tuple[Warning, ...] = ()
    seconds: float = 0.0
    start: float = 0.0
    peak_mb: float = 0.0

    def get(self) -> Any:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


def peak_memory_mb() -> float:
    """Return the largest resident memory of this process so far, in megabytes (10⁶ bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e6


def done(
    job: Job, held: Any, tell: Tell, *, start: float = 0.0, clock: Callable[[], float] = time.process_time
) -> Outcome:
    """Do a job here; its errors are part of the outcome, an interruption is not.

    After a long one the memory that it has freed goes back to the system: it would stay with this process
    else, in pieces that the next job does not fit into.
    """
    begun = clock()
    value, error = None, None
    try:
        value = job(held, tell)
    except Exception as raised:  # noqa: BLE001 - whatever it is, it is raised where the result is wanted
        error = raised
    outcome = Outcome(value, error, (), clock() - begun, start, peak_memory_mb())
    if outcome.seconds >= LONG:
        give_back()
    return outcome


def serve(connection: Connection, load: Callable[[], Any], threads: int) -> None:
    """Do the jobs that come through the connection until its other end has gone."""
    gc.freeze()  # a collection would write to what is shared with other processes, and so copy it
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever is in charge tells us by closing the connection
    signal.signal(signal.SIGTERM, _leave)
    held: list[Any] = []

    def tell(count: int) -> None:
        connection.send_bytes(pickle.dumps(Told(count)))

    def work(pickled: bytes) -> Outcome:
        start = 0.0
        if not held:
            held.append(load())
            start = time.process_time()
        job = pickle.loads(pickled)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(threads)
        return done(job, held[0], tell, start=start)

    with suppress(EOFError, OSError):
        while True:
            connection.send_bytes(_pickled(_recorded(work, connection.recv_bytes())))


def _leave(number: int, frame: FrameType | None) -> None:
    """End this process with its temporary files removed."""
    del frame
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _recorded(work: Callable[[bytes], Outcome], pickled: bytes) -> Outcome:
    """The outcome of a job with what was warned of on the way."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            outcome = work(pickled)
        except Exception as error:  # noqa: BLE001 - of loading, or of reading the job
            outcome = Outcome(error=error, peak_mb=peak_memory_mb())
    told = {str(one.message): one.message for one in caught if isinstance(one.message, Warning)}
    sent = (one if _travels(one) else UserWarning(f"{type(one).__name__}: {one}") for one in told.values())
    return replace(outcome, warnings=tuple(sent))


def _pickled(outcome: Outcome) -> bytes:
    """An outcome as bytes; what cannot be pickled is an error of the job."""
    if outcome.error is not None:
        return pickle.dumps(replace(outcome, error=_portable(outcome.error)))
    try:
        return pickle.dumps(outcome)
    except Exception as error:  # noqa: BLE001 - pickle raises what the value's class raises
        return pickle.dumps(replace(outcome, value=None, error=_portable(error)))


def _portable(error: Exception) -> Exception:
    """The error itself if it survives pickling, else its text; one that nobody meant says where it was."""
    where = "".join(traceback.format_exception(error))
    if not _travels(error):
        error = RuntimeError(f"{type(error).__name__}: {error}")
    if not isinstance(error, SemcalError):
        error.add_note(f"in a worker process:\n{where}")
    return error


def _travels(told: Exception) -> bool:
    """Whether an error or a warning survives pickling; some cannot be pickled, some not be made again."""
    try:
        pickle.loads(pickle.dumps(told))
    except Exception:  # noqa: BLE001 - pickle raises what their classes raise
        return False
    return True


@contextmanager
def uninterrupted() -> Iterator[None]:
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
