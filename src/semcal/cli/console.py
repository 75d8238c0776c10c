"""Messages on stderr (`warn` always, `info` unless -q, `debug` with -v) and the progress of long work."""

from __future__ import annotations

import multiprocessing
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TextIO

__all__ = [
    "debug",
    "info",
    "loading",
    "nli_calls",
    "progress",
    "set_quiet",
    "set_verbose",
    "successive_progress",
    "warn",
]

#: Seconds between two plain lines of progress.
INTERVAL = 5.0

_quiet = False
_verbose = False


@dataclass
class _Running:
    """One piece of work in progress."""

    label: str
    show: Callable[[int], None]
    done: int = 0

    def update(self, done: int) -> None:
        self.done = done
        self.show(done)


_running: list[_Running] = []


def set_quiet(quiet: bool) -> None:
    """Silence `info`, `debug` and `progress` (option -q)."""
    global _quiet
    _quiet = quiet


def set_verbose(verbose: bool) -> None:
    """Let `debug` print (option -v)."""
    global _verbose
    _verbose = verbose


def warn(text: str) -> None:
    """Print a line on stderr, whatever the options."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def info(text: str) -> None:
    """Print a line on stderr unless -q was given."""
    if not _quiet:
        warn(text)


def debug(text: str) -> None:
    """Print a line on stderr if -v was given, and not -q."""
    if _verbose:
        info(text)


@contextmanager
def loading() -> Iterator[None]:
    """Show "loading" on a terminal, unless other progress is shown."""
    worker = multiprocessing.parent_process() is not None
    if _quiet or worker or _running or not sys.stderr.isatty() or _in_a_pipe():
        yield
        return
    from rich.console import Console

    _running.append(_Running("loading", lambda _: None))
    try:
        with Console(stderr=True).status("loading"):
            yield
    finally:
        _running.pop()


@contextmanager
def progress(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show how much of `total` is done: a bar on a terminal, a line every few seconds elsewhere.

    Yields a function that takes the number of finished items (not the increment). Nested in another of the
    same label, its items are added to the outer ones. Commands in a pipe share a terminal, so they print
    lines with their names instead of bars that would overwrite each other.
    """
    if _quiet or total == 0:
        yield lambda _done: None
    elif _running and _running[-1].label == label:
        around = _running[-1]
        yield lambda done: around.show(around.done + done)
    else:
        alone = sys.stderr.isatty() and not _in_a_pipe()
        with _bar(label, total) if alone else nullcontext(_lines(label, total)) as show:
            _running.append(_Running(label, show))
            try:
                yield _running[-1].update
            finally:
                _running.pop()


@contextmanager
def successive_progress() -> Iterator[Callable[[str, int], Callable[[int], None]]]:
    """Show one `progress` after another: yields a function that begins the next (label, total)."""
    with ExitStack() as current:

        def begin(label: str, total: int) -> Callable[[int], None]:
            current.close()
            return current.enter_context(progress(label, total))

        yield begin


def _in_a_pipe() -> bool:
    """Whether another command stands before or after this one."""
    return any(_is_pipe(stream) for stream in (sys.stdin, sys.stdout))


def _is_pipe(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):  # closed, or no file at all
        return False


@contextmanager
def _bar(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(label, total=total)
        yield lambda done: bars.update(task, completed=done)


def _lines(label: str, total: int | None) -> Callable[[int], None]:
    start = last = time.monotonic()

    def update(done: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= INTERVAL:
            last = now
            of = f" of {total}" if total else ""
            warn(f"{label}: {done}{of} ({now - start:.0f} s)")

    return update


def nli_calls(name: str, calls: int, pairs: int) -> str:
    """How many NLI calls clustering took, and how many it saved.

    >>> nli_calls("atlas", 80, 900)
    '80 NLI calls of atlas, 11.2 times fewer than for all 900 ordered pairs'
    """
    fewer = f", {pairs / calls:.1f} times fewer than for all {pairs} ordered pairs" if calls else ""
    return f"{calls} NLI calls of {name}{fewer}"
