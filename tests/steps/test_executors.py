"""Worker processes: the same results for any number, and nothing lost, hidden or left behind."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path

import jobs_for_workers as jobs
import psutil
import pytest

from semcal.errors import MissingExtraError, QuestionError, RowError, SemcalWarning, UsageError, WorkerError
from semcal.workers import (
    JobOutcome,
    ProcessExecutor,
    SerialExecutor,
    peak_memory_mb,
    plan_workers,
    run_recorded,
)


@pytest.fixture(scope="module")
def two():
    with ProcessExecutor(jobs.ten, 2) as executor:
        yield executor


def done(executor, *all_jobs, **how):
    return [future.result() for future in [executor.submit(job, **how) for job in all_jobs]]


def test_results_belong_to_their_tasks_whatever_ends_first(two) -> None:
    tasks = [jobs.Add(n, seconds=0.05 * (n % 2 == 0)) for n in range(7)]
    assert done(two, *tasks) == done(SerialExecutor(10), *tasks) == [10 + n for n in range(7)]


def test_every_process_has_one_thread_and_there_are_as_many_as_asked_for(two) -> None:
    found = done(two, *[jobs.threads for _ in range(8)])
    assert {(threads, blas) for threads, blas, _ in found} == {(1, "1")}
    assert 1 <= len({process for *_, process in found} - {os.getpid()}) <= 2


def test_results_are_kept_as_they_come_and_progress_is_told(two) -> None:
    kept, told = [], []
    done(two, *[jobs.Add(n, 0.1) for n in range(4)], stage="add", finish=kept.append, progress=told.append)
    assert sorted(kept) == [10, 11, 12, 13]
    assert sorted(told) == [0, 1, 2, 3]
    assert two.seconds["add"] >= 0


@pytest.mark.parametrize(
    ("job", "error", "message"),
    [
        (jobs.refuse, QuestionError, "q7"),
        (jobs.unsendable, (AttributeError, RuntimeError), r"(?i)pickle"),
        (jobs.leave, RuntimeError, "SystemExit: left"),  # which is no exception
        (jobs.die, WorkerError, r"signal 9 .*dig.*--workers"),  # each time
    ],
)
def test_an_error_of_a_job_arrives_and_its_process_or_another_goes_on(two, job, error, message) -> None:
    with pytest.raises(error, match=message):
        done(two, job, stage="dig")
    assert done(two, jobs.Add(1)) == [11]


def test_another_error_says_where_it_was(two) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        done(two, jobs.break_down)
    assert "in a worker process" in caught.value.__notes__[0]
    assert "return 1 / 0" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    "error", [RowError(3, "odd"), QuestionError("q", "odd"), MissingExtraError("p", "x")]
)
def test_errors_survive_the_way_between_processes(error: Exception) -> None:

    copy = pickle.loads(pickle.dumps(run_recorded(lambda: JobOutcome(error=error)))).error
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_a_warning_is_given_here_once(two) -> None:
    with pytest.warns(SemcalWarning, match="this is odd") as caught:
        done(two, jobs.warn)
    assert len(caught) == 1


def test_what_fails_to_load_is_told_with_its_job() -> None:
    with ProcessExecutor(jobs.nothing, 1) as executor, pytest.raises(OSError, match="no such thing"):
        done(executor, jobs.Add(1))


def test_a_process_that_dies_is_replaced_and_its_job_done_again(two, tmp_path: Path) -> None:
    tasks = [jobs.Add(1, 0.05), jobs.DieOnce(tmp_path / "mark"), jobs.Add(2, 0.05)]
    assert done(two, *tasks) == [11, 10, 12]
    assert (tmp_path / "mark").exists()


def test_no_process_is_left_when_the_work_is_done_or_has_failed() -> None:
    before = set(multiprocessing.active_children())
    with ProcessExecutor(jobs.ten, 2) as executor:
        assert done(executor, jobs.Add(1), jobs.Add(2)) == [11, 12]
        assert executor.peak_memory_mb > 100
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), ProcessExecutor(jobs.ten, 2) as executor:
        interrupted(executor)
    assert time.monotonic() - start < 30
    assert set(multiprocessing.active_children()) <= before


def test_processes_that_are_released_are_gone_and_others_come_when_there_is_work() -> None:
    before = set(multiprocessing.active_children())
    with ProcessExecutor(jobs.ten, 1) as executor:
        (first,) = done(executor, jobs.process)
        executor.release()
        assert set(multiprocessing.active_children()) <= before
        (second,) = done(executor, jobs.process)
    assert first != second


def interrupted(executor) -> None:
    executor.submit(jobs.Add(1, seconds=60))
    raise KeyboardInterrupt


def test_others_are_hired_when_that_pays_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    with ProcessExecutor(jobs.ten, 2, state=20) as executor:
        assert done(executor, *[jobs.Add(n) for n in range(5)]) == [20, 21, 22, 23, 24]
        assert executor.n_processes == 0
        monkeypatch.setattr("semcal.workers.START", 0.0)
        assert done(executor, *[jobs.Add(n) for n in range(5)]) == [10, 11, 12, 13, 14]
        assert executor.n_processes >= 1


def test_functions_go_on_while_others_wait(two) -> None:
    gate = threading.Event()

    def first() -> int:
        assert gate.wait(60)
        return two.submit(jobs.Add(1)).result()

    def second() -> int:
        total = sum(two.submit(jobs.Add(n)).result() for n in range(3))
        gate.set()
        return total

    assert two.run_together([first, second]) == [11, 33]
    assert SerialExecutor(10).run_together([lambda: 1, second]) == [1, 33]


def test_a_function_that_fails_ends_the_others() -> None:
    def waits(executor):
        return executor.submit(jobs.Add(1, seconds=60)).result()

    def fails(executor):
        return executor.submit(jobs.refuse).result()

    start = time.monotonic()
    with pytest.raises(QuestionError, match="q7"), ProcessExecutor(jobs.ten, 2) as executor:
        executor.run_together([lambda: waits(executor), lambda: fails(executor)])
    assert time.monotonic() - start < 40


def test_a_result_that_could_not_be_kept_is_an_error() -> None:
    def keep(_: object) -> None:
        raise OSError("the disk is full")

    executor = SerialExecutor(10)
    kept, other = executor.submit(jobs.Add(1), finish=keep), executor.submit(jobs.Add(2))
    with pytest.raises(OSError, match="full"):
        kept.result()
    assert other.result() == 12


def test_jobs_that_were_given_up_are_not_waited_for() -> None:
    with ProcessExecutor(jobs.ten, 1) as executor:
        futures = [executor.submit(jobs.Add(1, seconds=60)) for _ in range(3)]
        executor.shutdown(cancel=True)
        for future in futures:
            with pytest.raises(CancelledError):
                future.result(30)
        with pytest.raises(CancelledError):
            executor.submit(jobs.Add(1))


def test_a_worker_that_is_ended_leaves_no_temporary_file(tmp_path: Path) -> None:
    with ProcessExecutor(jobs.ten, 1) as executor:
        executor.submit(jobs.WriteSlowly(tmp_path / "file"))
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if any(path.stat().st_size for path in tmp_path.glob(".file.*/file")):
                break  # the file itself: its folder is there before what removes it
            time.sleep(0.02)
        assert [path.name.startswith(".file.") for path in tmp_path.iterdir()] == [True]
        (worker,) = executor._workers.values()
        executor.shutdown(cancel=True)
    assert worker.process.exitcode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


SCRIPT = """
import os, sys
from pathlib import Path
import jobs_for_workers as jobs
from semcal.workers import ProcessExecutor
if __name__ == "__main__":
    with ProcessExecutor(jobs.ten, 2, preload=()) as executor:
        pids = [future.result() for future in [executor.submit(jobs.process) for _ in range(6)]]
        print(*sorted(set(pids)), flush=True)
        executor.submit(jobs.Add(1, seconds=60)).result()
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_the_process_that_is_in_charge(how: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "charge.py").write_text(SCRIPT.replace("seconds=60", "seconds=1"))
    path = os.pathsep.join([str(Path(jobs.__file__).parent), *sys.path])
    running = subprocess.Popen(
        [sys.executable, str(tmp_path / "charge.py")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    patience = threading.Timer(120, running.kill)
    patience.start()
    workers = [int(pid) for pid in running.stdout.readline().split()]
    patience.cancel()
    assert workers
    running.send_signal(how)
    _, stderr = running.communicate(timeout=60)
    assert running.returncode != 0
    assert stderr.count("Traceback") == (how == signal.SIGINT)  # that of the script itself, none of a worker
    deadline = time.monotonic() + 30
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, workers))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


GB = 10**9


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"weights": 10**7, "processors": 4, "memory": 20 * GB}, (4, 1)),
        ({"weights": 10**7, "processors": 4, "memory": 20 * GB, "blocks": 3}, (3, 1)),
        ({"weights": GB, "processors": 4, "memory": 20 * GB, "blocks": 1}, (1, 4)),
        ({"weights": 3 * GB, "processors": 8, "memory": 8 * GB}, (2, 1)),
        ({"weights": 16 * GB, "processors": 8, "memory": 20 * GB}, (1, 8)),
        ({"weights": 10**7, "processors": 4, "memory": 20 * GB, "on_cpu": False}, (1, 4)),
        ({"weights": None, "processors": 4, "memory": 20 * GB}, (1, 4)),
    ],
)
def test_processes_are_chosen_by_processors_memory_and_blocks(given, expected) -> None:
    found = plan_workers(None, **given)
    assert (found.n_workers, found.n_threads) == expected
    assert not found.requested


def test_a_number_that_is_asked_for_is_taken() -> None:
    found = plan_workers(3, weights=10**12, processors=1, memory=1, blocks=1)
    assert (found.n_workers, found.n_threads, found.requested) == (3, 1, True)
    with pytest.raises(UsageError, match="--workers"):
        plan_workers(0, weights=1)


# ---- Freed memory goes back to the system, and what a run took at most is known ----------------------------


def resident() -> float:
    return psutil.Process().memory_info().rss / 1e6


def test_an_executor_says_what_all_processes_can_have_taken() -> None:
    with SerialExecutor(None) as executor:
        assert executor.peak_memory_mb == peak_memory_mb() >= resident() - 1
        executor.n_processes, executor.peaks = 3, {"sample": 500.0, "grade": 200.0}
        assert executor.peak_memory_mb == peak_memory_mb() + 1500
