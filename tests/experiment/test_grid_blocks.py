"""The blocks of a grid are asked for by a thread for each data set at the same time."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import mill_grid as mills
import pytest

from semcal.experiment.grid import BlockProgress, Grid
from semcal.rows import Row
from semcal.steps import Block, Stage, Step, WorkerState, run_stages
from semcal.store import Store
from semcal.workers import SerialExecutor

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
    progress = BlockProgress(lambda _: None, Counter(), {}, Slow())
    store, workers = Store(tmp_path), SerialExecutor(WorkerState())

    def run(thread: int) -> list[Any]:
        return list(run_stages(blocks_of(thread), workers=workers, store=store, on_block=progress))

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(run, range(THREADS)))
    assert progress.made == {"sample": THREADS * BLOCKS}


@pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")
def test_what_can_be_done_while_the_first_job_of_a_model_starts_is_done_then(tmp_path: Path) -> None:
    told: list[str] = []
    executor = SerialExecutor(mills.state_of(tmp_path / "run"))
    settings = mills.settings(tmp_path, "methods=[Base]", "sampling.counts=[]")
    grid = Grid(
        settings, tmp_path / "run", executor, mills.silent, while_starting=lambda: told.append("called")
    )
    grid.run()
    assert told == ["called"] * len(settings.models)
