"""The report of a grid run is the same whoever makes it, and what goes wrong elsewhere is told here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from made_up_grid import Grid, write_grid

from semcal.errors import StoreError
from semcal.experiment.analyses import analyse, pair_analysis
from semcal.experiment.finished import read_finished
from semcal.experiment.report import build
from semcal.workers import Executor, ProcessExecutor

TWO = Grid(
    models=("alpha-1b",),
    datasets={"made-up-trivia": False, "made-up-reading": True},
    methods=("Base", "SE", "TS"),
    runs=2,
    n=20,
    counts=(5, 10),
    resamples=100,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_grid(tmp_path_factory.mktemp("shared") / "run", TWO)


@pytest.fixture
def executor() -> Iterator[Executor[int]]:
    with ProcessExecutor(int, 2, preload=()) as workers:
        yield workers


def test_two_processes_write_the_bytes_that_one_writes(
    run: Path, executor: Executor[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = build.planned_figures
    monkeypatch.setattr(build, "planned_figures", lambda *given: every(*given)[:5])
    for name, workers in (("alone", None), ("shared", executor)):
        analyse(run, tmp_path / name, workers)
        build.build(run, tmp_path / name, workers)
    files = {
        name: {
            path.relative_to(tmp_path / name).as_posix(): path.read_bytes()
            for path in (tmp_path / name).rglob("*.*")
        }
        for name in ("alone", "shared")
    }
    assert executor.n_processes == 2
    assert {"results.json", "report.html", "figures/figure-03-scatter.pdf"} <= files["alone"].keys()
    assert files["shared"] == files["alone"]


def test_what_a_process_finds_damaged_is_named_and_nothing_is_written(
    executor: Executor[int], tmp_path: Path
) -> None:
    folder = write_grid(tmp_path / "run", TWO)
    path = next(folder.glob("samples/*/made-up-reading/TS_NLL/run1.jsonl"))
    path.write_text(path.read_text()[:-9])
    with pytest.raises(StoreError, match=r"made-up-reading/TS_NLL/run1\.jsonl"):
        analyse(folder, executor=executor)
    assert not (folder / "results.json").exists()


def test_a_part_shows_one_model_on_one_data_set_with_the_seeds_of_the_whole(run: Path) -> None:
    whole = read_finished(run)
    parts = whole.parts()
    assert [part.pairs for part in parts] == [[pair] for pair in whole.pairs]
    assert {row["dataset"] for row in pair_analysis(parts[1]).rows["confidence"]} == {"made-up-reading"}
    assert pair_analysis(parts[1]).scores.seed == (whole.settings.seed, 1)
