"""What a run costs: seconds and memory by stage; and how far it is."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import mill_grid as mills
import pytest

from semcal.experiment.grid import Grid
from semcal.workers import SerialExecutor

pytestmark = pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "environment.json").read_text())


def test_writing_costs_twice_counts_them_once(small: Path, tmp_path: Path) -> None:
    shutil.copy(small / "environment.json", tmp_path)
    executor = SerialExecutor(mills.state_of(tmp_path))
    grid = Grid(mills.settings(tmp_path, *mills.SMALL), tmp_path, executor, mills.silent)
    before = record(tmp_path)
    grid.executor.seconds["sample"] = 5.0
    grid.executor.peaks["sample"] = 1e6
    for _ in range(2):
        grid.write_costs()
    after = record(tmp_path)
    assert after["cpu_seconds"]["sample"] == before["cpu_seconds"]["sample"] + 5.0
    assert after["peak_memory_mb_by_stage"] == {**before["peak_memory_mb_by_stage"], "sample": 1e6}
    assert after["sessions"] == before["sessions"] + 1


def test_each_finished_block_is_reported_up_to_the_planned_number(tmp_path: Path) -> None:
    told: list[int] = []
    totals: list[int | None] = []

    def progress(_: str, total: int | None) -> nullcontext[Any]:
        totals.append(total)
        return nullcontext(told.append)

    for _ in range(2):  # the second finds all blocks
        executor = SerialExecutor(mills.state_of(tmp_path / "run"))
        Grid(mills.settings(tmp_path, *mills.SMALL), tmp_path / "run", executor, progress).run()
    assert told == [*range(1, totals[0] + 1)] * 2
