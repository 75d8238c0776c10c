"""A finished run is read whole or refused by the name of the file that is at fault."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
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
    assert (run.runs, run.m, run.settings.evaluation.resamples, run.refused()) == (3, 10, 100, [])
    assert [run.open_book(name) for name in run.datasets] == [False, True]


def test_rows_are_those_of_the_file_in_its_order(grid_folder: Path) -> None:
    run = read_finished(grid_folder)
    rows = run.rows("beta/2b", "made-up-reading", "TS SS 0.25", 2)
    assert [row["id"] for row in rows] == [f"made-up-reading-{i:04d}" for i in range(40)]
    assert {(row["model"], row["candidate"], row["run"]) for row in rows} == {("beta/2b", "TS SS 0.25", 2)}


def test_other_numbers_of_draws_are_read(grid_folder: Path) -> None:
    run = read_finished(grid_folder)
    few, usual = (run.rows("alpha-1b", "made-up-trivia", "Base", draws=k)[3]["samples"] for k in (5, 10))
    assert few == usual[:5]


def test_refused_rows_of_the_data_are_counted(tmp_path: Path) -> None:
    grid = Grid(models=("a",), datasets={"d": False}, methods=("Base",), runs=1, n=2, counts=())
    problem = {"dataset": "d", "line": 3, "reason": "no answers"}
    assert read_finished(write_grid(tmp_path, grid, problems=[problem] * 2)).refused() == [problem] * 2


def test_a_folder_without_settings_is_no_run(tmp_path: Path) -> None:
    assert not is_grid_run(tmp_path)
    with pytest.raises(InputError, match=r"settings\.yaml"):
        read_finished(tmp_path)


def without(key: str) -> Callable[[str], str]:
    return lambda text: json.dumps({name: value for name, value in json.loads(text).items() if name != key})


SETTINGS, SELECTION, ROWS = "settings.yaml", "selection/*/*.json", "samples/*/*/Base/run1.jsonl"


@pytest.mark.parametrize(
    ("pattern", "change"),
    [
        (SETTINGS, lambda _: "seed: ["),
        (SETTINGS, lambda _: "seed: 0"),
        (SETTINGS, lambda _: "- 1"),
        (SELECTION, None),
        (SELECTION, lambda text: text[:-5]),
        (SELECTION, without("methods")),
        (SELECTION, lambda text: text.replace('"TS":', '"other":')),
        (ROWS, None),
        (ROWS, lambda text: text[:-20]),
        (ROWS, lambda text: text.partition("\n")[2]),
    ],
)
def test_a_missing_or_damaged_file_is_named(own_grid: Path, pattern: str, change) -> None:
    path = only_file(own_grid, pattern)
    text = path.read_text()
    path.unlink()
    if change is not None:
        path.write_text(change(text))
    with pytest.raises(StoreError, match=re.escape(path.name)):
        read_finished(own_grid).rows("alpha-1b", "made-up-trivia", "Base", 1)
