"""Made-up runs that several tests read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_up_grid import Grid, write_grid

from semcal.experiment.analyses import analyse
from semcal.experiment.finished import read_results

#: One model on one data set: enough for every figure and table.
ONE = Grid(
    models=("alpha-1b",),
    datasets={"made-up-trivia": False},
    methods=("Base", "SE", "TS"),
    runs=2,
    n=30,
    counts=(5, 10),
    resamples=100,
)


@pytest.fixture(scope="session")
def analysed_grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grid run of one model on one data set with its results.json; read it, do not change it."""
    folder = write_grid(tmp_path_factory.mktemp("analysed") / "run", ONE)
    analyse(folder)
    return folder


@pytest.fixture(scope="session")
def made_up_results(analysed_grid: Path) -> dict[str, Any]:
    """The results of that run."""
    return dict(read_results(analysed_grid))
