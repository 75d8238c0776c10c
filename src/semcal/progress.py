"""Progress of long work in Python: a bar on a terminal, a line in a notebook, otherwise nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from semcal.errors import UsageError, printable, shown

ShowProgress = Callable[[int], None] | bool | None
"""A function of the number of finished items; True for a bar on a terminal or in a notebook; or neither."""


class Advance:
    """Report finished items to `progress`, after `before` others, each number once.

    An item counts `weight`, for items that are worked on in several passes.
    """

    def __init__(self, progress: Callable[[int], None] | None, before: float = 0, weight: float = 1) -> None:
        self._progress, self._before, self._weight, self._told = progress, before, weight, int(before)

    def __call__(self, n_done: int) -> None:
        """Report `n_done` finished items after the others."""
        done = int(self._before + n_done * self._weight + 1e-9)  # whole items in spite of rounding
        if self._progress is not None and done > self._told:
            self._told = done
            self._progress(done)


def duration(seconds: float) -> str:
    """Return a duration as a short text.

    >>> duration(44.6), duration(200), duration(8000)
    ('45 s', '3:20 min', '2:13 h')
    """
    minutes, seconds = divmod(round(seconds), 60)
    if not minutes:
        return f"{seconds} s"
    return f"{minutes}:{seconds:02} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02} h"


#: Seconds between two updates of the line in a notebook.
INTERVAL = 0.25


@contextmanager
def shown_progress(progress: ShowProgress, label: str, total: int) -> Iterator[Callable[[int], None] | None]:
    """Yield a function of the number of finished items: `progress` itself, or a display.

    True shows a bar on a terminal and a line in a notebook. None is yielded elsewhere, and with False.
    """
    if progress is not None and not isinstance(progress, bool) and not callable(progress):
        raise UsageError(f"progress is {shown(progress)}; expected True, False or a function of a number")
    if not isinstance(progress, bool):
        yield progress
    elif progress and total and "ipykernel" in sys.modules:
        yield from _line(label, total)
    elif progress and total and sys.stderr is not None and sys.stderr.isatty():
        with bar(label, total) as update:
            yield update
    else:
        yield None


@contextmanager
def bar(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr until the block ends, and yield a function of the number of finished items."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    name = TextColumn("{task.description}", markup=False)
    columns = (name, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(printable(label), total=total)
        yield lambda n_done: bars.update(task, completed=n_done)


def line_writer(
    label: str, total: int | None, every: float, write: Callable[[str], None], *, at_end: bool = False
) -> Callable[[int], None]:
    """Return a function that writes a line every few seconds, and with `at_end` for the last item."""
    start = last = time.monotonic()

    def update(n_done: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= every or (at_end and n_done == total):
            last = now
            of_total = f" of {total}" if total else ""
            write(f"{label}: {n_done}{of_total} ({duration(now - start)})")

    return update


def _line(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a line on stderr that overwrites itself, as notebooks support."""

    def write(text: str) -> None:
        sys.stderr.write(f"\r{text}  ")
        sys.stderr.flush()

    try:
        yield line_writer(label, total, INTERVAL, write, at_end=True)
    finally:
        sys.stderr.write("\n")
