"""What is said to a person on stderr: complaints, and progress on long work."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["complain", "progress", "say", "set_quiet"]

#: Seconds between two plain lines of progress.
INTERVAL = 5.0

_quiet = False


def set_quiet(quiet: bool) -> None:
    """Silence `say` and `progress` (option -q); complaints are always made."""
    global _quiet
    _quiet = quiet


def complain(text: str) -> None:
    """Print a line on stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def say(text: str) -> None:
    """Print a line on stderr unless -q was given."""
    if not _quiet:
        complain(text)


@contextmanager
def progress(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show how much of `total` is done: a bar on a terminal, a line every few seconds elsewhere.

    Yields a function that takes the number of finished items (not the increment).
    """
    if _quiet or total == 0:
        yield lambda _done: None
    elif sys.stderr.isatty():
        with _bar(label, total) as update:
            yield update
    else:
        yield _lines(label, total)


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
            complain(f"{label}: {done}{of} ({now - start:.0f} s)")

    return update
