"""Jobs and what they are given, where a worker process can import them."""

from __future__ import annotations

import os
import signal
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

from semcal.errors import QuestionError, SemcalWarning
from semcal.files import atomic_write


def ten() -> int:
    return 10


def nothing() -> int:
    raise OSError("there is no such thing")


@dataclass(frozen=True)
class Add:
    number: int
    seconds: float = 0.0

    def __call__(self, held, tell):
        tell(self.number)
        time.sleep(self.seconds)
        return held + self.number


def process(held, tell):
    return os.getpid()


def threads(held, tell):
    import torch

    return torch.get_num_threads(), os.environ["OPENBLAS_NUM_THREADS"], os.getpid()


def refuse(held, tell):
    raise QuestionError("q7", "it is no question")


def break_down(held, tell):
    return 1 / 0


def warn(held, tell):
    for _ in range(3):
        warnings.warn("this is odd", SemcalWarning, stacklevel=1)


def unsendable(held, tell):
    return lambda: None


@dataclass(frozen=True)
class DieOnce:
    """Kills the process that does it, unless an earlier one has left its mark."""

    mark: Path

    def __call__(self, held, tell):
        if not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return held


def die(held, tell):
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class WriteSlowly:
    """Writes half of a file, and then takes its time."""

    path: Path

    def __call__(self, held, tell):
        with atomic_write(self.path) as handle:
            handle.write(b"half")
            handle.flush()
            time.sleep(60)


def leave(held, tell):
    """Raises what is no Exception, as a panic of the tokenizers library does."""
    raise SystemExit("left")
