"""Made-up runs that several tests read."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_run import write_run

SMALL = {"sets": ("made-up-trivia", "made-up-reading"), "measures": ("E-SC", "L-SC")}


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two sets and two measures; read it, do not change it."""
    return write_run(tmp_path_factory.mktemp("small"), **SMALL)


@pytest.fixture
def own_run(tmp_path: Path) -> Path:
    """A run of one set and two measures for one test to change."""
    return write_run(tmp_path / "run", sets=("made-up-trivia",), measures=("E-SC", "L-SC"), n=12)
