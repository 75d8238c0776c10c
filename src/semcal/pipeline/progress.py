"""Progress of long work in Python: a bar on a terminal, a line in a notebook, nothing elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from semcal.errors import UsageError, shown

ShowProgress = Callable[[int], None] | bool | None
"""A function that gets the number of finished items; True to show it where a person watches; or neither."""
#: Seconds between two changes of the line in a notebook.
INTERVAL = 0.25


@contextmanager
def shown_progress(given: ShowProgress, label: str, total: int) -> Iterator[Callable[[int], None] | None]:
    """Yield what takes the number of finished items: `given` itself if it is a function, else one that shows.

    With True a bar on a terminal and a line in a notebook; None where nobody watches, or with False.
    """
    if given is not None and not isinstance(given, bool) and not callable(given):
        raise UsageError(f"progress must be True, False or a function of a number, got {shown(given)}")
    if not isinstance(given, bool):
        yield given
    elif given and total and "ipykernel" in sys.modules:
        yield from _line(label, total)
    elif given and total and sys.stderr.isatty():
        with bar(label, total) as update:
            yield update
    else:
        yield None


@contextmanager
def bar(label: str, total: int | None, noted: Callable[[str], str] = str) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr until the block ends; yields what takes the number of finished items.

    `noted` makes the text before the bar of the label.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(label, total=total)
        yield lambda done: bars.update(task, completed=done, description=noted(label))


def _line(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A line on stderr that is written over, as output of notebooks allows."""
    start = last = time.monotonic()

    def update(done: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= INTERVAL or done >= total:
            last = now
            sys.stderr.write(f"\r{label}: {done} of {total} ({now - start:.0f} s)")
            sys.stderr.flush()

    try:
        yield update
    finally:
        sys.stderr.write("\n")
