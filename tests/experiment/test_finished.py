"""A finished run is read whole or refused by the name of the file that is at fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_up_grid import Grid, write_grid

from semcal.errors import InputError, StoreError
from semcal.experiment.finished import is_grid_run, read_finished
from semcal.measures import MEASURES


def only_file(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def test_names_and_numbers_come_from_the_settings(grid_folder: Path) -> None:
    run = read_finished(grid_folder)
    assert run.models == ["alpha-1b", "beta/2b"]
    assert run.datasets == ["made-up-trivia", "made-up-reading"]
    assert run.methods == ["Base", "SE", "TS", "ATS", "Platt"]
    assert run.measures == list(MEASURES)
    assert (run.runs, run.m, run.bins, run.resamples, run.seed, run.problems) == (3, 10, 15, 100, 0, 0)
    assert [run.open_book(name) for name in run.datasets] == [False, True]


def test_rows_are_those_of_the_file_in_its_order(grid_folder: Path) -> None:
    run = read_finished(grid_folder)
    rows = run.rows("beta/2b", "made-up-reading", "TS SS 0.25", 2)
    assert [row["id"] for row in rows] == [f"made-up-reading-{i:04d}" for i in range(40)]
    assert {(row["model"], row["candidate"], row["run"]) for row in rows} == {("beta/2b", "TS SS 0.25", 2)}


def test_other_numbers_of_draws_are_found_and_read(grid_folder: Path) -> None:
    run = read_finished(grid_folder)
    assert run.draws_of("alpha-1b", "made-up-trivia", "Base") == [5, 10, 15, 20, 25]
    assert run.draws_of("alpha-1b", "made-up-trivia", "Base", run=1) == [10]
    few, usual = (run.rows("alpha-1b", "made-up-trivia", "Base", draws=k)[3]["samples"] for k in (5, 10))
    assert few == usual[:5]


def test_refused_rows_of_the_data_are_counted(tmp_path: Path) -> None:
    grid = Grid(models=("a",), datasets={"d": False}, methods=("Base",), runs=1, n=2, counts=())
    problem = {"dataset": "d", "line": 3, "reason": "no answers"}
    assert read_finished(write_grid(tmp_path, grid, problems=[problem] * 2)).problems == 2


def test_a_folder_without_settings_is_no_run(tmp_path: Path) -> None:
    assert not is_grid_run(tmp_path)
    with pytest.raises(InputError, match=r"no settings\.yaml in .*semcal run"):
        read_finished(tmp_path)


@pytest.mark.parametrize("content", ["seed: [", "seed: 0", "- 1"])
def test_damaged_settings_are_named(own_grid: Path, content: str) -> None:
    (own_grid / "settings.yaml").write_text(content)
    with pytest.raises(StoreError, match=r"settings\.yaml (is damaged|lacks)"):
        read_finished(own_grid)


def test_a_missing_selection_is_named(own_grid: Path) -> None:
    only_file(own_grid, "selection/*/*.json").unlink()
    with pytest.raises(StoreError, match=r"made-up-trivia\.json is missing"):
        read_finished(own_grid)


@pytest.mark.parametrize("change", ["truncated", "no methods", "a method less"])
def test_a_damaged_selection_is_named(own_grid: Path, change: str) -> None:
    path = only_file(own_grid, "selection/*/*.json")
    found = json.loads(path.read_text())
    if change == "no methods":
        del found["methods"]
    elif change == "a method less":
        del found["methods"]["TS"]
    path.write_text(json.dumps(found)[: -5 if change == "truncated" else None])
    with pytest.raises(StoreError, match=r"made-up-trivia\.json (is damaged|lacks)"):
        read_finished(own_grid)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda text: text[:-20], "is damaged .line 12"),
        (lambda text: text.partition("\n")[2], "holds 11 questions, expected 12"),
        (lambda text: text.replace('"greedy_correct"', '"other"', 1), "line 1 lacks greedy_correct"),
    ],
)
def test_damaged_rows_are_named(own_grid: Path, change, complaint: str) -> None:
    run = read_finished(own_grid)
    path = run.samples_path("alpha-1b", "made-up-trivia", "Base", 1)
    path.write_text(change(path.read_text()))
    with pytest.raises(StoreError, match=rf"Base/run1\.jsonl,? {complaint}"):
        run.rows("alpha-1b", "made-up-trivia", "Base", 1)


def test_missing_rows_are_named(own_grid: Path) -> None:
    with pytest.raises(StoreError, match=r"run0\.n25\.jsonl is missing"):
        read_finished(own_grid).rows("alpha-1b", "made-up-trivia", "Base", draws=25)
