"""This process with a thread for each of two devices: one clusters answers while the other samples."""

from __future__ import annotations

import heapq
import math
import threading
import time
from functools import partial
from queue import PriorityQueue, SimpleQueue

from semcal.pipeline.crews import PATIENCE, Crew, Held, Task
from semcal.pipeline.processes import Outcome, done

__all__ = ["TwoDevices"]


class _GivenUp(BaseException):
    """Ends a job that nobody waits for any more."""


class TwoDevices(Crew[Held]):
    """This process by itself, with a thread for the tasks of one stage, whose model has a device of its own.

    The seconds of a stage are those of its thread.

    Parameters
    ----------
    held : object
        What every job is given.
    stage : str
        The stage that has a thread of its own; the tasks of all others share another.

    Examples
    --------
    >>> from semcal.pipeline.crews import Task
    >>> with TwoDevices(10, "cluster") as crew:
    ...     numbers = [crew.start(Task(lambda held, _: held + 1, stage)) for stage in ("sample", "cluster")]
    ...     [crew.result(number) for number in numbers]
    [11, 11]
    """

    count = 2

    def __init__(self, held: Held, stage: str) -> None:
        super().__init__()
        self._held = held
        self._stage = stage
        self._finished: SimpleQueue[tuple[int, Outcome]] = SimpleQueue()
        self._lanes: tuple[PriorityQueue[tuple[float, int]], ...] = (PriorityQueue(), PriorityQueue())
        self._given_up = False
        self._threads = [
            threading.Thread(target=self._work, args=(lane,), name="semcal device", daemon=True)
            for lane in self._lanes
        ]
        for thread in self._threads:
            thread.start()

    def _begin(self) -> None:
        while self._queue:
            rank, number = heapq.heappop(self._queue)
            self._lanes[self._tasks[number].stage == self._stage].put((rank, number))

    def _work(self, lane: PriorityQueue[tuple[float, int]]) -> None:
        while number := lane.get()[1]:
            task = self._tasks[number]
            try:
                outcome = done(task.job, self._held, partial(self._tell, task), clock=time.thread_time)
            except BaseException as error:  # noqa: BLE001 - a thread that ends is waited for for ever
                outcome = Outcome(error=RuntimeError(f"{type(error).__name__}: {error}"))
            self._finished.put((number, outcome))

    def _tell(self, task: Task[Held], count: int) -> None:
        if self._given_up:
            raise _GivenUp
        task.tell(count)

    def _finish(self) -> tuple[int, Outcome]:
        return self._finished.get()

    def close(self, *, at_once: bool = False) -> None:
        """End both threads after the jobs that they are at; `at_once` after the questions.

        They are waited for, if not for long: where one computes while Python ends, the whole process aborts.
        """
        self._given_up = at_once
        for lane in self._lanes:
            lane.put((-math.inf if at_once else math.inf, 0))
        for thread in self._threads:
            thread.join(PATIENCE)
