"""What a run costs: seconds by stage and fit."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import mill_grid as mills
import pytest

from semcal.experiment.grid import BlockProgress, Clock, Grid, costs, fit_label
from semcal.rows import Row
from semcal.steps import Block, Stage, Step, WorkerState, run_stages
from semcal.store import Store
from semcal.workers import SerialExecutor

pytestmark = pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")


def block_of(stage: str) -> Block:
    return Block(Stage((SimpleNamespace(name=stage),)), ())


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "environment.json").read_text())


def test_the_record_counts_fits_by_model_and_method(small: Path) -> None:
    found = record(small)
    assert found["fits"] == {"one": {"TS": {"seconds": found["cpu_seconds"]["fit"], "fits": 2}}}


def test_writing_costs_twice_counts_them_once(small: Path, tmp_path: Path) -> None:
    shutil.copy(small / "environment.json", tmp_path)
    executor = SerialExecutor(mills.state_of(tmp_path))
    grid = Grid(mills.settings(tmp_path, *mills.SMALL), tmp_path, executor, mills.silent)
    before = record(tmp_path)
    grid.executor.seconds["sample"] = 5.0
    for _ in range(2):
        grid.write_costs()
    after = record(tmp_path)
    assert after["cpu_seconds"]["sample"] == before["cpu_seconds"]["sample"] + 5.0
    assert after["sessions"] == before["sessions"] + 1
    assert after["fits"] == before["fits"]


def test_what_was_spent_is_added_up_over_sessions() -> None:
    label = fit_label("a model", "ATS")
    first = costs({}, seconds={label: 2.0, "sample": 1.0}, peaks={label: 9.0}, made={label: 1})
    found = costs(first, seconds={label: 4.0}, peaks={label: 7.0, "sample": 3.0}, made={label: 2})
    assert found == {
        "cpu_seconds": {"fit": 6.0, "sample": 1.0},
        "peak_memory_mb_by_stage": {"fit": 9.0, "sample": 3.0},
        "fits": {"a model": {"ATS": {"seconds": 6.0, "fits": 3}}},
    }


def test_shares_of_the_time_add_up() -> None:
    clock = Clock()
    clock.add({"sample": 6.0, "fit": 1.5})
    clock.add({"sample": 1.5, "report": 1.0})
    assert [line.split() for line in clock.table()] == [
        ["sample", "7.5", "s", "75%"],
        ["fit", "1.5", "s", "15%"],
        ["report", "1.0", "s", "10%"],
    ]


def test_a_grid_tells_of_each_finished_block(tmp_path: Path) -> None:
    settings, told = mills.settings(tmp_path, *mills.SMALL), ([], [])
    for one in told:
        executor = SerialExecutor(mills.state_of(tmp_path / "run"))
        Grid(settings, tmp_path / "run", executor, lambda *_, one=one: nullcontext(one.append)).run()
    assert told[0][:3] == told[1][:3] == [1, 2, 3]
    assert told[0][-1] == told[1][-1]


# ---- Blocks are asked for by a thread for each data set at the same time -----------------------------------

THREADS, BLOCKS = 8, 6


class Slow(Counter[str]):
    """Takes its time between reading a count and writing it."""

    def __getitem__(self, name: str) -> int:
        found = super().__getitem__(name)
        time.sleep(0.001)
        return found


@dataclass(frozen=True)
class CountStep(Step):
    name: ClassVar[str] = "sample"
    number: str

    def __call__(self, *_: Any) -> list[Row]:
        return [Row({"number": self.number})]


def blocks_of(thread: int) -> list[Block]:
    return [Block(Stage((CountStep(f"{thread} {number}"),)), ()) for number in range(BLOCKS)]


def test_no_thread_loses_a_row_that_was_made(tmp_path: Path) -> None:
    progress = BlockProgress(lambda _: None, Counter(), Slow())
    store, workers = Store(tmp_path), SerialExecutor(WorkerState())

    def run(thread: int) -> list[Any]:
        return list(run_stages(blocks_of(thread), workers=workers, store=store, on_block=progress))

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(run, range(THREADS)))
    assert progress.made == {"sample": THREADS * BLOCKS}
