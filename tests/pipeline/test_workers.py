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
from multiprocessing.popen_forkserver import Popen
from pathlib import Path

import jobs_for_workers as jobs
import pytest

from semcal.errors import MissingExtraError, QuestionError, RowError, SemcalWarning, UsageError, WorkerError
from semcal.pipeline.crews import Alone, Task, together
from semcal.pipeline.devices import TwoDevices
from semcal.pipeline.processes import Outcome, _pickled
from semcal.pipeline.sharing import available_memory, cores, on_disk, share_out
from semcal.pipeline.workers import AloneAtFirst, Workers


@pytest.fixture(scope="module")
def two():
    with Workers(jobs.ten, 2) as crew:
        yield crew


def done(crew, *tasks):
    return [crew.result(number) for number in [crew.start(task) for task in tasks]]


def test_results_belong_to_their_tasks_whatever_ends_first(two) -> None:
    tasks = [Task(jobs.Add(n, seconds=0.05 * (n % 2 == 0))) for n in range(7)]
    assert done(two, *tasks) == done(Alone(10), *tasks) == [10 + n for n in range(7)]


def test_every_process_has_one_thread_and_there_are_as_many_as_asked_for(two) -> None:
    found = done(two, *[Task(jobs.Threads()) for _ in range(8)])
    assert {(threads, blas) for threads, blas, _ in found} == {(1, "1")}
    assert 1 <= len({process for *_, process in found} - {os.getpid()}) <= 2


def test_products_have_the_same_bits_in_any_process(two) -> None:
    tasks = [Task(jobs.Product(seed)) for seed in range(4)]
    with Workers(jobs.ten, 1) as one:
        assert done(two, *tasks) == done(one, *tasks)


def test_results_are_kept_as_they_come_and_progress_is_told(two) -> None:
    kept, told = [], []
    numbers = [two.start(Task(jobs.Add(n), "add", kept.append, tell=told.append)) for n in range(4)]
    while numbers:
        two.wait()
        numbers.pop()
    assert sorted(kept) == [10, 11, 12, 13]
    assert sorted(told) == [0, 1, 2, 3]
    assert two.seconds["add"] >= 0


def test_tasks_of_low_rank_go_first() -> None:
    order: list[int] = []
    crew = Alone(0)
    for n in (3, 1, 2, 0):
        crew.start(Task(jobs.Add(n), then=order.append, rank=n))
    for _ in range(4):
        crew.wait()
    assert order == [0, 1, 2, 3]


def test_an_error_of_ours_arrives_as_it_is(two) -> None:
    with pytest.raises(QuestionError, match="it is no question") as caught:
        done(two, Task(jobs.Refuse()))
    assert caught.value.question_id == "q7"
    assert done(two, Task(jobs.Add(1))) == [11]


def test_another_error_says_where_it_was(two) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        done(two, Task(jobs.Break()))
    assert "in a worker process" in caught.value.__notes__[0]
    assert "return 1 / 0" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    "error", [RowError(3, "odd"), QuestionError("q", "odd"), MissingExtraError("p", "x")]
)
def test_errors_survive_the_way_between_processes(error: Exception) -> None:

    copy = pickle.loads(_pickled(Outcome(error=error))).error
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_a_warning_is_given_here_once(two) -> None:
    with pytest.warns(SemcalWarning, match="this is odd") as caught:
        done(two, Task(jobs.Warn()))
    assert len(caught) == 1


def test_a_warning_that_cannot_travel_comes_as_its_text(two) -> None:
    with pytest.warns(UserWarning, match="OddWarning: all is odd"):
        assert done(two, Task(jobs.WarnOddly())) == [10]


def test_a_result_that_cannot_travel_is_an_error(two) -> None:
    with pytest.raises((AttributeError, RuntimeError), match=r"(?i)pickle"):
        done(two, Task(jobs.Unsendable()))


def test_what_fails_to_load_is_told_with_its_job() -> None:
    with Workers(jobs.nothing, 1) as crew, pytest.raises(OSError, match="no such thing"):
        done(crew, Task(jobs.Add(1)))


def test_a_process_that_dies_is_replaced_and_its_job_done_again(two, tmp_path: Path) -> None:
    tasks = [Task(jobs.Add(1, 0.05)), Task(jobs.DieOnce(tmp_path / "mark")), Task(jobs.Add(2, 0.05))]
    assert done(two, *tasks) == [11, 10, 12]
    assert (tmp_path / "mark").exists()


def test_a_job_that_kills_its_process_each_time_is_given_up_with_an_error(two) -> None:
    with pytest.raises(
        WorkerError, match=r"was killed by signal 9 at the same piece of work \(dig\) 2 times"
    ):
        done(two, Task(jobs.Die(), "dig"))
    assert done(two, Task(jobs.Add(1))) == [11]


def test_an_idle_process_that_is_gone_is_not_missed() -> None:
    with Workers(jobs.ten, 1) as crew:
        (process,) = done(crew, Task(jobs.Process()))
        os.kill(process, signal.SIGKILL)
        time.sleep(0.1)
        assert done(crew, Task(jobs.Add(5))) == [15]


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_server_of_processes_that_has_died_is_started_again(
    deaths: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, left = Popen._launch, [EOFError("unexpected EOF")] * deaths

    def launched(popen, process) -> None:
        if left:
            raise left.pop()
        launch(popen, process)

    monkeypatch.setattr(Popen, "_launch", launched)
    with Workers(jobs.ten, 1) as crew:
        if deaths == 1:
            assert done(crew, Task(jobs.Add(1))) == [11]
        else:
            with pytest.raises(WorkerError, match="no worker process can be started"):
                done(crew, Task(jobs.Add(1)))


class Hired(Workers):
    """Workers that are hired a few times at most, so that a test which fails ends."""

    hires = 0

    def _hire(self):
        self.hires += 1
        assert self.hires < 10
        return super()._hire()


def test_a_process_that_ends_before_it_has_read_a_large_job_is_not_replaced_for_ever() -> None:
    with (
        Hired(jobs.DeadlyLoad(), 1) as crew,
        pytest.raises(WorkerError, match=r"exit code 3 at the same piece of work \(pack\) 2 times"),
    ):
        done(crew, Task(jobs.Large(), "pack"))


def test_no_process_is_left_when_the_work_is_done_or_has_failed() -> None:
    before = set(multiprocessing.active_children())
    with Workers(jobs.ten, 2) as crew:
        assert done(crew, Task(jobs.Add(1)), Task(jobs.Add(2))) == [11, 12]
        assert crew.peak.mb > 50
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Workers(jobs.ten, 2) as crew:
        interrupted(crew)
    assert time.monotonic() - start < 30
    assert set(multiprocessing.active_children()) <= before


def test_processes_that_rest_are_gone_and_others_come_when_there_is_work() -> None:
    before = set(multiprocessing.active_children())
    with Workers(jobs.ten, 1) as crew:
        (first,) = done(crew, Task(jobs.Process()))
        crew.rest()
        assert set(multiprocessing.active_children()) <= before
        (second,) = done(crew, Task(jobs.Process()))
    assert first != second


def interrupted(crew) -> None:
    crew.start(Task(jobs.Add(1, seconds=60)))
    raise KeyboardInterrupt


def test_others_are_hired_when_that_pays_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    with AloneAtFirst(jobs.ten, 2, 20) as crew:
        assert done(crew, *[Task(jobs.Add(n)) for n in range(5)]) == [20, 21, 22, 23, 24]
        assert crew.hired == 0
        monkeypatch.setattr("semcal.pipeline.workers.START", 0.0)
        assert done(crew, *[Task(jobs.Add(n)) for n in range(5)]) == [10, 11, 12, 13, 14]
        assert crew.hired >= 1


def test_plans_go_on_while_others_wait() -> None:
    order: list[tuple[str, int]] = []

    def plan(name: str, rounds: int):
        total = 0
        for n in range(rounds):
            results = yield [Task(jobs.Add(n)), Task(jobs.Add(n + 1))] if n else []
            order.append((name, n))
            total += sum(results)
        return total

    assert together(Alone(0), [plan("a", 3), plan("b", 2), plan("c", 0)]) == [8, 3, 0]
    assert [n for name, n in order if name == "a"] == [0, 1, 2]
    assert order.index(("b", 1)) < order.index(("a", 2))


@pytest.mark.parametrize("several", [False, True])
def test_plans_may_ask_the_crew_themselves(several: bool, two) -> None:
    crew = two if several else Alone(10)

    def waits(number: int):
        (result,) = yield [Task(jobs.Add(number))]
        return result

    def asks(number: int):
        yield []
        return crew.result(crew.start(Task(jobs.Add(number), rank=1)))  # the others' tasks end before this

    def meanwhile() -> None:
        crew.begin(abs, [-1], stage="work")()

    plans = [waits(1), asks(2), waits(3)]
    assert together(crew, plans, meanwhile) == [11, 12, 13]


@pytest.mark.parametrize("kind", [Alone, Workers, TwoDevices])
def test_waiting_for_what_will_never_come_is_an_error(kind: type, two) -> None:
    crew = two if kind is Workers else kind(10, *["cluster"] * (kind is TwoDevices))
    with pytest.raises(RuntimeError, match="there is no unfinished task to wait for"):
        crew.wait()
    number = crew.start(Task(jobs.Add(1)))
    assert crew.result(number) == 11
    with pytest.raises(RuntimeError, match=f"task {number} has no result to give"):
        crew.result(number)
    if crew is not two:
        crew.close()


def test_a_result_that_could_not_be_kept_is_not_waited_for() -> None:
    def keep(_: object) -> None:
        raise OSError("the disk is full")

    crew = Alone(10)
    kept, other = crew.start(Task(jobs.Add(1), then=keep)), crew.start(Task(jobs.Add(2)))
    with pytest.raises(OSError, match="full"):
        crew.result(kept)
    with pytest.raises(RuntimeError, match="has no result to give"):
        crew.result(kept)
    assert crew.result(other) == 12


def test_tasks_that_were_given_up_are_not_waited_for() -> None:
    with Workers(jobs.ten, 1) as crew:
        number = crew.start(Task(jobs.Add(1, seconds=60)))
        crew.close(at_once=True)
        with pytest.raises(RuntimeError, match="no process is at a task"):
            crew.result(number)


def test_a_worker_that_is_ended_leaves_no_temporary_file(tmp_path: Path) -> None:
    with Workers(jobs.ten, 1) as crew:
        crew.start(Task(jobs.WriteSlowly(tmp_path / "file")))
        deadline = time.monotonic() + 60
        while not list(tmp_path.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert [path.name.startswith(".file.") for path in tmp_path.iterdir()] == [True]
        (worker,) = crew._workers
        crew.close(at_once=True)
    assert worker.process.exitcode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


SCRIPT = """
import os, sys
from pathlib import Path
import jobs_for_workers as jobs
from semcal.pipeline import workers
from semcal.pipeline.crews import Task
from semcal.pipeline.workers import Workers
workers.PRELOAD = ()
if __name__ == "__main__":
    with Workers(jobs.ten, 2) as crew:
        pids = [crew.result(n) for n in [crew.start(Task(jobs.Process())) for _ in range(6)]]
        print(*sorted(set(pids)), flush=True)
        crew.result(crew.start(Task(jobs.Add(1, seconds=60))))
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
        ({"weights": 10**7, "processors": 4, "memory": 20 * GB, "blocks": 1}, (1, 1)),
        ({"weights": GB, "processors": 4, "memory": 20 * GB, "blocks": 1}, (1, 4)),
        ({"weights": 3 * GB, "processors": 8, "memory": 8 * GB}, (2, 1)),
        ({"weights": 16 * GB, "processors": 8, "memory": 20 * GB}, (1, 8)),
        ({"weights": 10**7, "processors": 1, "memory": 20 * GB}, (1, 1)),
        ({"weights": 10**7, "processors": 4, "memory": 20 * GB, "on_cpu": False}, (1, 4)),
        ({"weights": None, "processors": 4, "memory": 20 * GB}, (1, 4)),
        ({"weights": 10**7, "processors": 4, "memory": 1}, (1, 1)),
    ],
)
def test_processes_are_chosen_by_processors_memory_and_blocks(given, expected) -> None:
    found = share_out(None, **given)
    assert (found.processes, found.threads) == expected
    assert not found.asked


def test_a_number_that_is_asked_for_is_taken() -> None:
    found = share_out(3, weights=10**12, processors=1, memory=1, blocks=1)
    assert (found.processes, found.threads, found.asked) == (3, 1, True)
    with pytest.raises(UsageError, match="--workers is 0"):
        share_out(0, weights=1)


def test_this_machine_says_what_it_has(tmp_path: Path) -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)
    memory = available_memory()
    assert memory is None or memory > 10**6
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    (tmp_path / "pytorch_model.bin").write_bytes(bytes(10))
    assert on_disk(tmp_path) == 1000


def test_a_stage_with_a_device_of_its_own_is_worked_on_beside_the_others() -> None:
    begun = threading.Event()

    def sample(held: int, _: object) -> bool:
        return begun.wait(timeout=60)

    def cluster(held: int, _: object) -> int:
        begun.set()
        return held

    with TwoDevices(10, "cluster") as crew:
        assert done(crew, Task(sample, "sample"), Task(cluster, "cluster")) == [True, 10]
        assert set(crew.seconds) <= {"sample", "cluster"}


def test_two_devices_give_what_one_gives_and_raise_what_it_raises() -> None:
    tasks = [Task(jobs.Add(n), "cluster" if n % 2 else "sample", rank=-n) for n in range(9)]
    with TwoDevices(10, "cluster") as crew:
        assert done(crew, *tasks) == done(Alone(10), *tasks)
        with pytest.raises(QuestionError, match="it is no question"):
            done(crew, Task(jobs.Refuse(), "cluster"))
        assert done(crew, Task(jobs.Add(1), "cluster")) == [11]
        with pytest.raises(RuntimeError, match="SystemExit: left"):
            done(crew, Task(jobs.Leave(), "cluster"))
        assert done(crew, Task(jobs.Add(1), "cluster")) == [11]


def test_a_thread_computes_no_more_when_its_crew_is_interrupted() -> None:
    begun = threading.Event()

    def sample(held: int, tell) -> None:
        begun.set()
        end = time.monotonic() + 60
        while time.monotonic() < end:
            tell(1)

    def interrupted(crew) -> None:
        for stage in ("sample", "cluster", "sample"):
            crew.start(Task(sample, stage))
        assert begun.wait(timeout=60)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), TwoDevices(10, "cluster") as crew:
        interrupted(crew)
    assert not [thread for thread in threading.enumerate() if thread.name == "semcal device"]
