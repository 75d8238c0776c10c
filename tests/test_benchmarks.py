"""The runner of benchmarks, on made-up ones; `make bench-quick` runs the real ones."""

from __future__ import annotations

import json
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import __main__ as runner


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Make a benchmark of the name `made_up` with these attributes."""

    def make(**attributes: Any) -> ModuleType:
        module = ModuleType("benchmarks.made_up", "A made-up benchmark.\n\nMore.")
        vars(module).update({"SIZE": 1000, "QUICK": {"SIZE": 2}} | attributes)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return module

    return make


def test_quick_sets_constants_for_the_run_alone(made_up: Any, capsys: Any) -> None:
    module = made_up()
    module.results = lambda: [{"size": module.SIZE}] * module.SIZE
    found = runner.run("made_up", quick=True)
    assert (found.rows, found.printed, found.failure) == ([{"size": 2}] * 2, 2, "")
    assert module.SIZE == 1000
    assert "## made_up\n\nA made-up benchmark.\n" in capsys.readouterr().out
    module.SIZE = 3
    assert runner.run("made_up").printed == 3


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"QUICK": None}, "QUICK is missing"),
        ({"results": lambda: 1 / 0}, "ZeroDivisionError"),
        ({"results": list}, "no row"),
        ({"main": lambda _: sys.stdout.write("| head |\n| --- |") and None}, "no row"),
        ({"main": lambda _: sys.stdout.write("| head |\n| --- |\n| row |")}, "SystemExit: "),
    ],
)
def test_a_failure_is_told_and_stops_nothing(
    made_up: Any, attributes: dict[str, Any], words: str, capsys: Any
) -> None:
    made_up(**attributes)
    found = runner.run("made_up", quick=True)
    assert words in found.failure
    assert "no row" in words or "Traceback" in capsys.readouterr().out


def test_the_status_says_of_failures_and_a_quick_run_keeps_its_rows_apart(
    made_up: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pkgutil, "iter_modules", lambda _: [pkgutil.ModuleInfo(None, "made_up", False)])
    module = made_up(results=lambda: [{"size": module.SIZE}])
    assert [runner.main([]), runner.main(["--quick", "made_up"])] == [0, 0]
    sizes = [
        json.loads((tmp_path / "runs" / name).read_text())["benchmarks"]["made_up"][0]["size"]
        for name in ("bench.json", "bench-quick.json")
    ]
    assert sizes == [1000, 2]
    module.results = list
    assert runner.main(["--quick"]) == 1
    assert runner.main(["--quick", "unknown"]) == 2
