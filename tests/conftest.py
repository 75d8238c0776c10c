"""Fixtures that every test may use."""

# ruff: noqa: E402
from __future__ import annotations

import os

# Before numpy and torch are imported: several test processes share the processors, and threads of a small
# matrix product mostly wait for each other, by spinning (docs/workers.md).
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import gc
import json
import re
import signal
import threading
import time
from collections.abc import Generator, Iterator
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import typer.testing
from hypothesis import HealthCheck, settings
from made_up_grid import Grid, write_grid

from semcal.experiment.analyses import analyse

pytest_plugins = ["llama_fixtures"]

# A command line is built once, and not for each of some thousand commands.
typer.testing._get_command = cache(typer.testing._get_command)

# A shell that starts the tests in the background makes them deaf to Ctrl-C, and so all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says something about the machine, not about the code. Examples are the same in
# each run, so that none fails by chance; `pytest --hypothesis-profile=random` tries others.
BUSY = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("random", **BUSY)
settings.register_profile("semcal", **BUSY, derandomize=True, database=None, max_examples=50)
settings.load_profile("semcal")


#: Files that take long, begun first: else one process would be at the last of them when the others are done.
LONG = (
    "tests/real/",
    "tests/test_docs_code.py",
    "tests/test_notebooks.py",
    "tests/servers/test_grid_over_servers.py",
    "tests/servers/test_calibrate_over_servers.py",
    "tests/report/test_calibrated_page.py",
    "tests/experiment/test_grid_killed.py",
    "tests/metrics/test_risk.py",
    "tests/cli/test_cli_workers.py",
)


#: Without PyTorch the tests of the light core run, and what needs more than it brings is skipped.
HAS_TORCH = find_spec("torch") is not None
LACKING = re.compile("No module named|which is not installed")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    report = yield
    return _skipped_without_torch(report, collector.path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    return _skipped_without_torch(report, item.path)


def _skipped_without_torch(report: Any, path: Path) -> Any:
    if report.failed and not HAS_TORCH and LACKING.search(str(report.longrepr)):
        report.outcome, report.longrepr = "skipped", (str(path), 0, "Skipped: needs more than the light core")
    return report


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def pytest_collection_finish() -> None:
    """Look for no garbage among what was collected: each look would take a third of a second more."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def idle_afterwards() -> Iterator[None]:
    """No thread that a test left behind uses the processor: it would slow down all tests that follow."""
    yield
    for _ in range(20):  # what ends by itself may take a while
        before = time.process_time()
        time.sleep(0.5)
        if time.process_time() - before < 0.25:
            return
    pytest.fail(f"one of these threads never waits: {[one.name for one in threading.enumerate()]}")


@pytest.fixture(scope="session")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A new folder for each test, numbered here: `mktemp` would list all others to find its number."""
    root = tmp_path_factory.mktemp("caches")
    return (root / str(number) for number in count())


@pytest.fixture(autouse=True)
def own_cache(caches: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache for each test: what one test has found out no other relies on."""
    folder = next(caches)
    folder.mkdir()
    monkeypatch.setenv("SEMCAL_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def semcal_data() -> Path:
    """The folder of public development data; tests that need it are skipped without it."""
    folder = os.environ.get("SEMCAL_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("set SEMCAL_DATA to the folder of development data")
    return Path(folder)


@pytest.fixture(scope="session")
def grid_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up run of the grid: two models, two data sets, five methods, three runs; do not change it."""
    return write_grid(tmp_path_factory.mktemp("grid") / "run")


@pytest.fixture(scope="session")
def grid_results(grid_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What results.json of that run holds."""
    folder = tmp_path_factory.mktemp("results")
    analyse(grid_folder, folder)
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return found


@pytest.fixture
def own_grid(tmp_path: Path) -> Path:
    """A run of the grid, of one model and one data set, for one test to change."""
    grid = Grid(models=("alpha-1b",), datasets={"made-up-trivia": False}, runs=2, n=12, counts=())
    return write_grid(tmp_path / "run", grid)
