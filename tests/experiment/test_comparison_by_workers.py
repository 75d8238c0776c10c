"""A comparison by several processes: the bytes of one, also if they are killed; and what it says it cost."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import mills
import pytest

from semcal.experiment.comparison import Comparison
from semcal.experiment.environment import Clock
from semcal.experiment.settings import Settings
from semcal.pipeline.executor import SerialExecutor
from semcal.pipeline.memory_usage import SUMMED, TOGETHER
from semcal.pipeline.process_executor import ProcessExecutor

pytestmark = pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")


def contents(out: Path) -> dict[str, bytes]:
    """Everything that a run promises to be the same, byte for byte: all but what it cost."""
    files = [path for path in out.rglob("*.json*") if path.name != "environment.json"]
    return {str(file.relative_to(out)): file.read_bytes() for file in files}


def compare(out: Path, executor=None, told: list[int] | None = None) -> dict:
    @contextmanager
    def progress(_label: str, _total: int | None):
        yield lambda done: told.append(done) if told is not None else None

    settings = Settings(block=9, resamples=100)
    return Comparison(executor or SerialExecutor(mills.models()), out, settings, progress).run(mills.sets())


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("alone")
    compare(out)
    return contents(out)


@pytest.mark.parametrize("count", [2, 3])
def test_any_number_of_processes_gives_the_same_bytes(count: int, tmp_path: Path, alone) -> None:
    told: list[int] = []
    with ProcessExecutor(mills.models, count) as executor:
        compare(tmp_path, executor, told)
    assert contents(tmp_path) == alone
    blocks = 2 + 3
    assert told == list(range(1, 2 * 5 + 2 * blocks + 1))


def test_workers_killed_in_the_middle_change_nothing(tmp_path: Path, alone) -> None:
    with ProcessExecutor(mills.models, 2) as executor:

        def kill() -> None:
            while len(list((tmp_path / "blocks").rglob("*.jsonl"))) < 3:
                time.sleep(0.005)
            os.kill(executor._workers[0].process.pid, signal.SIGKILL)

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        compare(tmp_path, executor)
        killer.join(60)
    assert contents(tmp_path) == alone


def test_an_interruption_keeps_the_blocks_that_were_finished(tmp_path: Path, alone) -> None:
    class Enough(list):
        def append(self, done: int) -> None:
            if done == 10:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), ProcessExecutor(mills.models, 2) as executor:
        compare(tmp_path, executor, Enough())
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "blocks").rglob("*.jsonl")}
    assert len(kept) >= 5
    with ProcessExecutor(mills.models, 2) as executor:
        compare(tmp_path, executor)
    assert contents(tmp_path) == alone
    again = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "blocks").rglob("*.jsonl")}
    assert again.items() >= kept.items()


def test_the_environment_record_holds_the_cost_and_the_results_do_not(tmp_path: Path) -> None:
    results = compare(tmp_path)
    record = json.loads((tmp_path / "environment.json").read_text())
    stages = {"fit", "sample", "cluster", "measure and grade", "evaluate"}
    assert set(record["cpu_seconds"]) == stages
    assert all(seconds > 0 for seconds in record["cpu_seconds"].values())
    assert record["seconds"] > 0
    assert (record["processes"], record["nli_calls"] > 0) == (1, True)
    assert 50 < record["peak_memory_mb"] < 10_000
    assert record["peak_memory_counts"] in (TOGETHER, SUMMED)
    assert not {"cpu_seconds", "seconds", "processes", "peak_memory_mb", "peak_memory_counts"} & set(results)


def test_shares_of_the_time_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    clock.add({"sample": 6.0, "fit": 1.5})
    clock.add({"sample": 1.5, "report": 1.0})
    assert [line.split() for line in clock.table()] == [
        ["sample", "7.5", "s", "75%"],
        ["fit", "1.5", "s", "15%"],
        ["report", "1.0", "s", "10%"],
    ]
