"""`keep: chosen`: a run that removes what it is done with has the results of one that keeps everything."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mill_grid as mills
import pytest

from semcal.experiment.analyses import analyse
from semcal.experiment.answer_steps import GridJob
from semcal.experiment.finished import forget_from, state_of
from semcal.experiment.grid import Grid
from semcal.workers import SerialExecutor

pytestmark = pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")

SMALL = (
    "methods=[Base, TS, Platt]",
    "sampling.counts=[6]",
    "evaluation.resamples=100",
    "fitting.solver=sgd",
    "runs.refit=true",
)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("data")


def run(folder: Path, data: Path, keep: str, *more: str) -> tuple[Grid, list[str]]:
    """A run, and what it said."""
    said: list[str] = []
    settings = mills.settings(data, *SMALL, f"keep={keep}", *more)
    grid = Grid(settings, folder, SerialExecutor(mills.state_of(folder)), mills.silent, on_remade=said.append)
    grid.run()
    return grid, said


@pytest.fixture(scope="module")
def all_kept(data: Path, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("all")
    run(folder, data, "all")
    analyse(folder)
    return folder


@pytest.fixture(scope="module")
def chosen_kept(data: Path, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("chosen")
    run(folder, data, "chosen")
    analyse(folder)
    return folder


def used_in(folder: Path, dataset: str, *, also: bool = False) -> set[str]:
    """The fitted candidates that methods use for a measure, and `also` those of comparisons."""
    found = json.loads((folder / f"selection/one/{dataset}.json").read_text())
    choices = [found["methods"], *([*found["by_loss"].values(), *found["by_draws"].values()] if also else [])]
    names = {one["candidate"] for some in choices for of in some.values() for one in of.values()}
    return names - {"Base"}


def kept_in(folder: Path, dataset: str) -> set[str]:
    root = folder / "recalibrators" / "one" / dataset
    return {str(path.parent.relative_to(root)).replace("_", " ") for path in root.rglob("calibration.json")}


def test_results_are_those_of_a_run_that_keeps_everything(all_kept: Path, chosen_kept: Path) -> None:
    every, some = mills.contents(all_kept), mills.contents(chosen_kept)
    assert some.items() < every.items()
    assert {name.partition("/")[0] for name in every.keys() - some.keys()} == {"recalibrators"}
    assert (all_kept / "results.json").read_bytes() == (chosen_kept / "results.json").read_bytes()


def test_what_nothing_chose_and_features_are_gone(all_kept: Path, chosen_kept: Path) -> None:
    unchosen = 0
    for dataset in ("mill", "barn"):
        used, every = used_in(chosen_kept, dataset), kept_in(all_kept, dataset)
        assert kept_in(chosen_kept, dataset) == used
        asked = used_in(chosen_kept, dataset, also=True)
        assert every >= asked | {f"{name}/run1" for name in asked}
        unchosen += len(every) - 2 * len(asked)
    assert unchosen > 0
    assert not list((chosen_kept / "work").rglob("states.bin"))
    assert len(list((all_kept / "work").rglob("states.bin"))) == 2
    assert state_of(chosen_kept).complete


@pytest.mark.parametrize(("keep", "most"), [("chosen", 1), ("all", 2)])
def test_features_of_one_model_and_data_set_exist_at_a_time(
    keep: str, most: int, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    work = GridJob.__call__

    def counted(job: GridJob, *args: Any) -> list[str]:
        lines = work(job, *args)
        seen.append(sum(path.stat().st_size > 0 for path in tmp_path.rglob("states.bin")))
        return lines

    monkeypatch.setattr(GridJob, "__call__", counted)
    run(tmp_path, data, keep)
    assert max(seen) == most


def test_a_finished_run_makes_nothing_again(chosen_kept: Path, data: Path) -> None:
    grid, said = run(chosen_kept, data, "chosen")
    assert not grid.made
    assert said == []


def test_starting_again_from_a_stage_says_what_is_fitted_again(
    chosen_kept: Path, data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "again"
    shutil.copytree(chosen_kept, folder)
    expected = mills.contents(folder)
    forget_from(folder, "sample")
    _, said = run(folder, data, "chosen")
    assert mills.contents(folder) == expected
    assert [line.partition(":")[0] for line in said if "(run 1)" in line] == ["one on mill", "one on barn"]
    assert all("recalibrators that were not kept are needed again" in line for line in said)
    assert not list((folder / "work").rglob("states.bin"))


def test_a_missing_block_of_answers_brings_back_what_it_was_asked_under_and_was_removed(
    chosen_kept: Path, data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "again"
    shutil.copytree(chosen_kept, folder)
    expected = mills.contents(folder)
    test = [path for path in folder.glob("blocks/sample/*") if '"test"' in path.read_text()]
    test[0].unlink()
    _, (said,) = run(folder, data, "chosen")
    dataset = said.partition(":")[0].removeprefix("one on ")
    used, asked = used_in(folder, dataset), used_in(folder, dataset, also=True)
    assert said.startswith(f"one on {dataset}: {2 * len(asked) - len(used)} recalibrators")
    assert not [name for name in used if f"{name} (run 0)" in said]
    assert mills.contents(folder) == expected


def test_what_is_kept_may_change_within_a_run(chosen_kept: Path, data: Path, tmp_path: Path) -> None:
    """The fits that were removed come back with `keep: all`, the same bytes."""
    folder = tmp_path / "other"
    shutil.copytree(chosen_kept, folder)
    grid, _ = run(folder, data, "all")
    assert set(grid.made) == {"features", *(label for label in grid.made if label.startswith("fit "))}
    assert "keep: all" in (folder / "settings.yaml").read_text()
