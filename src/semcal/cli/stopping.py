"""SIGTERM ends a command as Ctrl-C does: its files and processes are cleaned up, what was kept is said."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Terminated", "terminable"]


class Terminated(KeyboardInterrupt):
    """SIGTERM; whoever cleans up after Ctrl-C cleans up after it."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `Terminated` where the block is when SIGTERM comes, unless it is ignored or handled already."""
    try:
        free = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        if free:
            signal.signal(signal.SIGTERM, _terminate)
    except ValueError:  # only the main thread may handle signals
        free = False
    try:
        yield
    finally:
        if free:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:
    del frame
    signal.signal(number, signal.SIG_IGN)  # a second one must not interrupt the cleaning up
    raise Terminated
