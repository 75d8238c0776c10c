"""Progress of long work in Python: a bar on a terminal, a line in a notebook, nothing elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from semcal.errors import UsageError, printable, shown

ShowProgress = Callable[[int], None] | bool | None
"""A function that gets the number of finished items; True to show it where a person watches; or neither."""


class ProgressClock:
    """Shows the number of finished items of `total`, and how long the others will take.

    `show` gets the number, and the seconds that are left: None while nobody can tell. Of work in blocks
    (`end_block`), whose items are finished nearly together, whole blocks alone tell the pace. Items that an
    earlier call has finished (`resume`) count as done, and not towards the pace.
    """

    def __init__(
        self,
        show: Callable[[int, float | None], None],
        total: int | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._show, self._total, self._clock = show, total, clock
        self._begun, self._resumed = clock(), 0
        self._block_end: tuple[int, float] | None = None
        self.done = 0

    def __call__(self, done: int) -> None:
        """Take the number of finished items, not the increment."""
        self.done = done
        self._show(done, self._seconds_left())

    def end_block(self) -> None:
        """Take the pace from what is finished now; with nothing finished the work in blocks begins now."""
        now = self._clock()
        if self.done <= self._resumed:
            self._begun = now
        self._block_end = self.done, now
        self._show(self.done, self._seconds_left())

    def resume(self, count: int) -> None:
        """Take `count` more items that were finished already."""
        self._resumed += count

    def _seconds_left(self) -> float | None:
        now = self._clock()
        done, at = self._block_end or (self.done, now)
        if self._total is None or done <= self._resumed:
            return None
        pace = (at - self._begun) / (done - self._resumed)
        return max(0.0, pace * (self._total - done) - (now - at)) if self.done < self._total else 0.0


def note_resumed(progress: Callable[[int], None] | None, count: int) -> None:
    """Tell what shows progress, but no user's function, that `count` more items were finished already."""
    if progress is not None and hasattr(progress, "resume"):
        progress.resume(count)


def note_block(progress: Callable[[int], None] | None) -> None:
    """Tell what shows progress that work in blocks begins, or that one has ended."""
    if progress is not None and hasattr(progress, "end_block"):
        progress.end_block()


class Advance:
    """Tells `progress` of items that are finished after `before` others, of each number once."""

    def __init__(self, progress: Callable[[int], None] | None, before: int = 0) -> None:
        self._progress, self._before, self._told = progress, before, before

    def __call__(self, done: int) -> None:
        """Take how many of the items after the others are finished."""
        if self._progress is not None and self._before + done > self._told:
            self._told = self._before + done
            self._progress(self._told)


def duration(seconds: float) -> str:
    """Return seconds as people say them.

    >>> duration(44.6), duration(200), duration(8000)
    ('45 s', '3:20 min', '2:13 h')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60}:{whole % 60:02} min" if whole < 3600 else f"{whole // 3600}:{whole // 60 % 60:02} h"
    )


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
    elif given and total and sys.stderr is not None and sys.stderr.isatty():
        with bar(label, total) as update:
            yield update
    else:
        yield None


@contextmanager
def bar(label: str, total: int | None, noted: Callable[[str], str] = str) -> Iterator[ProgressClock]:
    """Show a bar on stderr until the block ends; yields what takes the number of finished items.

    `noted` makes the text before the bar of the label.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    label_column, left_column = (
        TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[left]")
    )
    columns = (label_column, BarColumn(), MofNCompleteColumn(), left_column)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(printable(label), total=total, left="")

        def show(done: int, seconds: float | None) -> None:
            left = "" if seconds is None else f"{duration(seconds)} left"
            bars.update(task, completed=done, description=printable(noted(label)), left=left)

        yield ProgressClock(show, total)


def _line(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A line on stderr that is written over, as output of notebooks allows."""
    start = last = time.monotonic()

    def show(done: int, seconds: float | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= INTERVAL or done >= total:
            last = now
            left = "" if not seconds else f", {duration(seconds)} left"
            sys.stderr.write(f"\r{label}: {done} of {total} ({duration(now - start)}{left})  ")
            sys.stderr.flush()

    try:
        yield ProgressClock(show, total)
    finally:
        sys.stderr.write("\n")
