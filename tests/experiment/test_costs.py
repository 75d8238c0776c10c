"""What a run costs: seconds by stage and fit, overhead of recalibrators, growth with the number of draws."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import mill_grid as mills
import pytest
from made_up_grid import Grid as MadeUp
from made_up_grid import write_grid

from semcal.experiment.analyses.answers import growth
from semcal.experiment.environment import Clock, added, fit_label
from semcal.experiment.finished import read_finished
from semcal.experiment.grid import Grid
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


def test_base_and_every_fitted_method_are_timed_on_the_same_tokens(folder: Path) -> None:
    rows = record(folder)["overhead"]["one"]
    assert [(row["method"], row["candidate"]) for row in rows] == [("Base", "Base"), ("TS", "TS NLL")]
    assert len({row["tokens"] for row in rows}) == 1
    assert rows[0]["tokens"] >= 8 * 4
    assert all(row["seconds"] > 0 for row in rows)


def test_no_time_gets_into_what_is_compared(folder: Path) -> None:
    assert not list((folder / "blocks").glob("overhead"))
    for path in folder.rglob("*.jsonl"):
        assert "seconds" not in path.read_text(), path


def test_writing_costs_twice_counts_them_once(folder: Path) -> None:
    grid = Grid(mills.settings(folder, *SMALL), folder, SerialExecutor(mills.state_of(folder)), mills.silent)
    before = record(folder)
    grid.executor.seconds["sample"] = 5.0
    for _ in range(2):
        grid.write_costs()
    after = record(folder)
    assert after["cpu_seconds"]["sample"] == before["cpu_seconds"]["sample"] + 5.0
    assert after["sessions"] == before["sessions"] + 1
    assert (after["fits"], after["overhead"]) == (before["fits"], before["overhead"])


def test_what_was_spent_is_added_up_over_sessions() -> None:
    label = fit_label("a model", "ATS")
    first = added({}, seconds={label: 2.0, "sample": 1.0}, peaks={label: 9.0}, made={label: 1})
    found = added(first, seconds={label: 4.0}, peaks={label: 7.0, "sample": 3.0}, made={label: 2})
    assert found == {
        "cpu_seconds": {"fit": 6.0, "sample": 1.0},
        "peak_memory_mb_by_stage": {"fit": 9.0, "sample": 3.0},
        "fits": {"a model": {"ATS": {"seconds": 6.0, "fits": 3}}},
    }


def test_growth_is_counted_on_the_rows_of_each_number_of_draws(tmp_path: Path) -> None:
    made_up = MadeUp(models=("m",), datasets={"d": False}, methods=("Base",), runs=1, counts=(5, 20), n=30)
    run = read_finished(write_grid(tmp_path, made_up))
    (row,) = growth(run)
    assert row["draws"] == [5, 10, 20]
    means = []
    for draws in row["draws"]:
        distinct = [len(set(one["normal_forms"])) for one in run.rows("m", "d", "Base", draws=draws)]
        means.append(sum(k * (k - 1) for k in distinct) / 30)
    assert row["pairs"]["mean"] == pytest.approx(means)
    x, y = ([math.log(v) for v in values] for values in (row["draws"], means))
    middle = sum(x) / 3
    slope = sum((a - middle) * b for a, b in zip(x, y)) / sum((a - middle) ** 2 for a in x)
    assert row["pairs"]["exponent"] == pytest.approx(slope, abs=1e-9)


def test_one_number_of_draws_has_no_growth(tmp_path: Path) -> None:
    made_up = MadeUp(models=("m",), datasets={"d": False}, methods=("Base",), runs=1, counts=(), n=10)
    assert growth(read_finished(write_grid(tmp_path, made_up))) == []


def test_shares_of_the_time_add_up() -> None:
    clock = Clock()
    clock.add({"sample": 6.0, "fit": 1.5})
    clock.add({"sample": 1.5, "report": 1.0})
    assert [line.split() for line in clock.table()] == [
        ["sample", "7.5", "s", "75%"],
        ["fit", "1.5", "s", "15%"],
        ["report", "1.0", "s", "10%"],
    ]
