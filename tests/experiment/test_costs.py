"""What a run costs: seconds by stage and fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mill_grid as mills
import pytest

from semcal.experiment.cell import fit_label
from semcal.experiment.grid import Clock, Grid, costs
from semcal.workers import SerialExecutor

pytestmark = pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")
SMALL = (
    "methods=[Base, TS]",
    "sampling.counts=[4]",
    "fitting.losses=[[NLL, null], [SS, 0.5]]",
    "runs.count=1",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    mills.run(folder, mills.settings(folder, *SMALL))
    return folder


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "environment.json").read_text())


def test_the_record_counts_fits_by_model_and_method(folder: Path) -> None:
    found = record(folder)
    assert found["fits"] == {"one": {"TS": {"seconds": found["cpu_seconds"]["fit"], "fits": 2 * 2}}}


def test_writing_costs_twice_counts_them_once(folder: Path) -> None:
    grid = Grid(mills.settings(folder, *SMALL), folder, SerialExecutor(mills.state_of(folder)), mills.silent)
    before = record(folder)
    grid.executor.seconds["sample"] = 5.0
    for _ in range(2):
        grid.write_costs()
    after = record(folder)
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
