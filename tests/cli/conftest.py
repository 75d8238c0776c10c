"""What the tests of commands share: one tiny checkpoint for all of them."""

from __future__ import annotations

import pytest
import tiny_models


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The directory of a tiny model of random weights; it is not to be written to."""
    return str(tiny_models.save(tmp_path_factory.mktemp("model")))
