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

    `show` gets the number, and the seconds that are left: None before the first item is finished. Of work in
    blocks (`end_block`), whose items are finished nearly together, whole blocks tell the pace; while a block
    takes longer than those before it, at least half of what all finished items tell is left. Items that an
    earlier call has finished (`resume`) count as done, and not towards the pace. Of items that take unlike
    times (`weigh`) the work tells the pace, not their number.
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
        self._work: tuple[float, float, float] | None = None
        self.n_done = 0

    def __call__(self, n_done: int) -> None:
        """Take the number of finished items, not the increment."""
        self.n_done = n_done
        self._show(n_done, self.seconds_left())

    def end_block(self) -> None:
        """Take the pace from what is finished now; with nothing finished the work in blocks begins now."""
        time_now = self._clock()
        if self.n_done <= self._resumed:
            self._begun = time_now
        self._block_end = self.n_done, time_now
        self._show(self.n_done, self.seconds_left())

    def resume(self, count: int) -> None:
        """Take `count` more items that were finished already."""
        self._resumed += count

    def weigh(self, done: float, left: float) -> None:
        """Take what was done so far of all work, and what is left of it, in any unit."""
        self._work = done, left, self._clock()

    def seconds_left(self) -> float | None:
        """Return how long the others will take from now on; None while nobody can tell."""
        if self._total is None or self.n_done <= self._resumed:
            return None
        if self.n_done >= self._total:
            return 0.0
        time_now = self._clock()
        if self._work is not None:
            done, left, last = self._work
            if not done:
                return None
            grown, told = ((now - self._begun) * left / done for now in (time_now, last))
            return max(grown / 2, told - (time_now - last))
        by_items = (time_now - self._begun) / (self.n_done - self._resumed) * (self._total - self.n_done)
        n_paced, last = self._block_end or (0, time_now)
        if n_paced <= self._resumed:
            return by_items
        pace = (last - self._begun) / (n_paced - self._resumed)
        return max(by_items / 2, pace * (self._total - n_paced) - (time_now - last))


def note_resumed(progress: Callable[[int], None] | None, count: int) -> None:
    """Tell what shows progress, but no user's function, that `count` more items were finished already."""
    if progress is not None and hasattr(progress, "resume"):
        progress.resume(count)


def note_block(progress: Callable[[int], None] | None) -> None:
    """Tell what shows progress that work in blocks begins, or that one has ended."""
    if progress is not None and hasattr(progress, "end_block"):
        progress.end_block()


def note_work(progress: Callable[[int], None] | None, done: float, left: float) -> None:
    """Tell what shows progress how much work is done and left, where items take unlike times."""
    if progress is not None and hasattr(progress, "weigh"):
        progress.weigh(done, left)


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
    """Return seconds as people say them.

    >>> duration(44.6), duration(200), duration(8000)
    ('45 s', '3:20 min', '2:13 h')
    """
    minutes, seconds = divmod(round(seconds), 60)
    if not minutes:
        return f"{seconds} s"
    return f"{minutes}:{seconds:02} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02} h"


#: Seconds between two changes of the line in a notebook.
INTERVAL = 0.25


@contextmanager
def shown_progress(progress: ShowProgress, label: str, total: int) -> Iterator[Callable[[int], None] | None]:
    """Yield what takes the number of finished items: `progress` itself if a function, else one that shows.

    With True a bar on a terminal and a line in a notebook; None where nobody watches, or with False.
    """
    if progress is not None and not isinstance(progress, bool) and not callable(progress):
        raise UsageError(f"progress must be True, False or a function of a number, got {shown(progress)}")
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
    """Show a bar on stderr until the block ends; yields what takes the number of finished items.

    `noted` makes the text before the bar of the label. It and the time left are made anew while one waits.
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


def _line(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A line on stderr that is written over, as output of notebooks allows."""
    start = last = time.monotonic()

    def show(n_done: int, seconds: float | None) -> None:
        nonlocal last
        time_now = time.monotonic()
        if time_now - last >= INTERVAL or n_done >= total:
            last = time_now
            remaining = "" if not seconds else f", {duration(seconds)} left"
            sys.stderr.write(f"\r{label}: {n_done} of {total} ({duration(time_now - start)}{remaining})  ")
            sys.stderr.flush()

    try:
        yield ProgressClock(show, total)
    finally:
        sys.stderr.write("\n")
