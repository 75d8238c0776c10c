"""A run of the made-up world that several tests read."""

from __future__ import annotations

from pathlib import Path

import mill_grid as mills
import pytest


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two methods on two data sets (`mills.SMALL`); read it, do not change it."""
    folder = tmp_path_factory.mktemp("small")
    mills.run(folder, mills.settings(folder, *mills.SMALL))
    return folder
