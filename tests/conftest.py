"""Fixtures that every test may use."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# A shell that starts the tests in the background makes them deaf to Ctrl-C, and so all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says something about the machine, not about the code.
settings.register_profile("semcal", deadline=None)
settings.load_profile("semcal")


@pytest.fixture(scope="session")
def semcal_data() -> Path:
    """The folder of public development data; tests that need it are skipped without it."""
    folder = os.environ.get("SEMCAL_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("set SEMCAL_DATA to the folder of development data")
    return Path(folder)
