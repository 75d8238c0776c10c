"""Progress of long work in Python: a bar on a terminal, a line in a notebook, otherwise nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from semcal.errors import UsageError, printable, shown

ShowProgress = Callable[[int], None] | bool | None
"""A function of the number of finished items; True for a bar on a terminal or in a notebook; or neither."""


class ProgressClock:
    """Report the number of finished items of `total`, and the remaining time.

    `show` gets the number and the remaining seconds, None before the first item is finished. The pace comes
    from the items that were finished at the last report, because those of a block finish nearly together. If
    the next ones take longer, the remaining time is at least half of the estimate for the present time. Items
    of an earlier call (`resume`) count as finished but not towards the pace.
    """

    def __init__(
        self,
        show: Callable[[int, float | None], None],
        total: int | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._show, self._total, self._clock = show, total, clock
        self._begun = self._told = clock()
        self._resumed = self.n_done = 0

    def __call__(self, n_done: int) -> None:
        """Take the number of finished items, not the increment."""
        self.n_done, self._told = n_done, self._clock()
        self._show(n_done, self.seconds_left())

    def resume(self, count: int) -> None:
        """Add `count` items that were already finished; the other work begins now."""
        self._resumed += count
        self._begun = self._clock()

    def seconds_left(self) -> float | None:
        """Return the estimated remaining seconds, None if unknown."""
        if self._total is None or self.n_done <= self._resumed:
            return None
        if self.n_done >= self._total:
            return 0.0
        done, left = self.n_done - self._resumed, self._total - self.n_done
        now = self._clock()
        estimate, told = ((moment - self._begun) * left / done for moment in (now, self._told))
        return max(estimate / 2, told - (now - self._told))


def note_resumed(progress: Callable[[int], None] | None, count: int) -> None:
    """Report `count` items that were already finished, if `progress` is not a user's function."""
    if progress is not None and hasattr(progress, "resume"):
        progress.resume(count)


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
def bar(label: str, total: int | None, noted: Callable[[str], str] = str) -> Iterator[ProgressClock]:
    """Show a bar on stderr until the block ends, and yield a function of the number of finished items.

    `noted` turns the label into the text before the bar. This text and the remaining time are refreshed.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task
    from rich.text import Text

    class Live(ProgressColumn):
        def __init__(self, text: Callable[[], str]) -> None:
            super().__init__()
            self._text = text

        def render(self, task: Task) -> Text:  # noqa: ARG002
            return Text(printable(self._text()))

    def left() -> str:
        seconds = clock.seconds_left()
        return "" if seconds is None else f"{duration(seconds)} left"

    clock = ProgressClock(lambda n_done, _: bars.update(task, completed=n_done), total)
    columns = (Live(lambda: noted(label)), BarColumn(), MofNCompleteColumn(), Live(left))
    bars = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bars.add_task(label, total=total)
    with bars:
        yield clock


def line_clock(
    label: str, total: int | None, every: float, write: Callable[[str], None], *, at_end: bool = False
) -> ProgressClock:
    """Return a clock that writes a line every few seconds, and with `at_end` for the last item."""
    start = last = time.monotonic()

    def show(n_done: int, seconds: float | None) -> None:
        nonlocal last
        time_now = time.monotonic()
        if time_now - last >= every or (at_end and total is not None and n_done >= total):
            last = time_now
            of_total = f" of {total}" if total else ""
            remaining = f", {duration(seconds)} left" if seconds else ""
            write(f"{label}: {n_done}{of_total} ({duration(time_now - start)}{remaining})")

    return ProgressClock(show, total)


def _line(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a line on stderr that overwrites itself, as notebooks support."""

    def write(text: str) -> None:
        sys.stderr.write(f"\r{text}  ")
        sys.stderr.flush()

    try:
        yield line_clock(label, total, INTERVAL, write, at_end=True)
    finally:
        sys.stderr.write("\n")
