"""A made-up run of the grid that several tests read."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_grid import Grid, write_grid


@pytest.fixture(scope="session")
def grid_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, two data sets, five methods, three runs; read it, do not change it."""
    return write_grid(tmp_path_factory.mktemp("grid") / "run")


@pytest.fixture
def own_grid(tmp_path: Path) -> Path:
    """A run of one model and one data set for one test to change."""
    grid = Grid(models=("alpha-1b",), datasets={"made-up-trivia": False}, runs=2, n=12, counts=())
    return write_grid(tmp_path / "run", grid)
