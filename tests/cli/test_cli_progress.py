"""What is shown while work goes on: one bar on a terminal, lines in a pipe, and no bar inside another."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from semcal.cli import console


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What bars are told on a terminal, as (label, done); -1 where a bar ends."""
    told: list[tuple[str, int]] = []

    @contextmanager
    def bar(label: str, total: int | None, note: object) -> Iterator[Callable[[int], None]]:
        yield lambda done: told.append((label, done))
        told.append((label, -1))

    monkeypatch.setattr(console, "bar", bar)
    monkeypatch.setattr(console, "_quiet", False)
    terminal = SimpleNamespace(isatty=lambda: True)
    streams = SimpleNamespace(stdin=io.StringIO(), stdout=io.StringIO(), stderr=terminal)
    monkeypatch.setattr(console, "sys", streams)
    return told


def test_stages_end_one_bar_before_the_next(bars: list[tuple[str, int]]) -> None:
    with console.successive_progress() as begin:
        begin("features", 3)(3)
        begin("fit", 2)(1)
    assert bars == [("features", 3), ("features", -1), ("fit", 1), ("fit", -1)]


@pytest.mark.parametrize("side", ["stdin", "stdout"])
def test_commands_of_a_pipe_draw_no_bars(
    side: str, bars: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    with os.fdopen(read) as stdin, os.fdopen(write, "w") as stdout:
        monkeypatch.setattr(console.sys, side, stdin if side == "stdin" else stdout)
        with console.progress("measure", 4) as update:
            update(4)
    assert bars == []


def test_lines_carry_the_name_of_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "INTERVAL", 0.0)
    monkeypatch.setattr(console, "_quiet", False)
    with console.progress("measure", 4) as update:
        update(3)
    assert capsys.readouterr().err.startswith("measure: 3 of 4 (")
