"""Who does the tasks of a command, and plans that wait for them; here one after another.

A job is done in one piece, and finished jobs come back in any order; whoever wants an order asks for it.
"""

from __future__ import annotations

import heapq
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar

from semcal.pipeline.footprint import SUMMED, TOGETHER, Footprint, Peak
from semcal.pipeline.processes import Job, Outcome, Tell, done, peak_memory_mb

__all__ = ["PATIENCE", "Alone", "Crew", "Held", "Plan", "Task", "together"]

#: Seconds that a process or a thread gets to end by itself.
PATIENCE = 5.0
Held = TypeVar("Held")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Task(Generic[Held]):
    """A job, and what is done with its result.

    Attributes
    ----------
    job : callable
        Maps what a worker holds, and a function that is told how many questions are done, to a result.
    stage : str
        What its time is counted towards.
    then : callable
        Applied to the result in this process, as soon as it is there: to keep it, say.
    rank : int
        Tasks of lower rank are begun first, of equal rank in order.
    tell : callable
        Is told in this process how many questions are done.
    """

    job: Job
    stage: str = "work"
    then: Callable[[Any], Any] = lambda value: value
    rank: int = 0
    tell: Tell = lambda _: None


@dataclass(frozen=True)
class _Applied:
    """A job that needs nothing of what a worker holds."""

    function: Callable[[Any], Any]
    item: Any

    def __call__(self, *_: object) -> Any:
        return self.function(self.item)


class Crew(ABC, Generic[Held]):
    """Those who do tasks: `Alone` or `Workers`.

    Attributes
    ----------
    seconds : dict of str to float
        CPU time spent on each stage so far.
    peaks : dict of str to float
        Largest resident memory (10⁶ bytes) of a process by the end of a task of each stage.
    """

    #: How many jobs can be under way at a time.
    count: int = 1
    #: How many processes have worked beside this one, those that died not counted.
    hired: int = 0
    #: How many tasks were begun again because their process had died.
    retries: int = 0

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.peaks: dict[str, float] = {}
        self._tasks: dict[int, Task[Held]] = {}
        self._values: dict[int, Outcome] = {}
        self._queue: list[tuple[int, int]] = []
        self._tickets = 0
        self._told: dict[Any, Any] = {}
        self._footprint = Footprint()

    def __enter__(self) -> Self:
        self._footprint.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(at_once=kind is not None)
        self._footprint.stop()

    def start(self, task: Task[Held]) -> int:
        """Take on a task, and return its number."""
        self._tickets += 1
        self._tasks[self._tickets] = task
        heapq.heappush(self._queue, (task.rank, self._tickets))
        self._begin()
        return self._tickets

    def wait(self) -> int:
        """Wait until one more task is finished, and return its number; what `then` raises is raised here.

        Raises
        ------
        RuntimeError
            If there is no unfinished task, so that nothing would ever come.
        """
        if not self._tasks:
            raise RuntimeError("there is no unfinished task to wait for; start one first")
        number, outcome = self._finish()
        task = self._tasks.pop(number)
        self._count("start", outcome.start)
        self._count(task.stage, outcome.seconds)
        self.peaks[task.stage] = max(self.peaks.get(task.stage, 0.0), outcome.peak_mb)
        for message in outcome.warnings:
            warnings.warn_explicit(message, type(message), task.stage, 0, registry=self._told)
        if outcome.error is None:
            outcome = replace(outcome, value=task.then(outcome.value))
        self._values[number] = outcome
        return number

    def finished(self, number: int) -> bool:
        """Whether the result of a task is there to be had."""
        return number in self._values

    def result(self, number: int) -> Any:
        """The result of a task, once; waits for it, and raises what the task raised.

        Raises
        ------
        RuntimeError
            If it will never come: it was given before, or its `then` has failed.
        """
        while not self.finished(number):
            if number not in self._tasks:
                raise RuntimeError(f"task {number} has no result to give; it was given before, or lost")
            self.wait()
        return self._values.pop(number).get()

    def each(self, function: Callable[[Any], Result], items: Sequence[Any], *, stage: str) -> list[Result]:
        """What a function makes of each item, in order; both can be pickled.

        Examples
        --------
        >>> Alone(None).each(abs, [-1, 2], stage="work")
        [1, 2]
        """
        return self.begin(function, items, stage=stage)()

    def begin(
        self, function: Callable[[Any], Result], items: Sequence[Any], *, stage: str, rank: int = 0
    ) -> Callable[[], list[Result]]:
        """Begin what `each` does; what is returned waits for the results and gives them, once."""
        numbers = [self.start(Task(_Applied(function, item), stage, rank=rank)) for item in items]
        return lambda: [self.result(number) for number in numbers]

    def _count(self, stage: str, seconds: float) -> None:
        if seconds:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    @property
    def peak(self) -> Peak:
        """The largest memory so far of this process and all that descend from it (10⁶ bytes).

        Where the system can tell: what all took at the same time, shared pages counted once, in samples taken
        about every second inside a `with` block and now; at least what one process is known to have taken.
        Elsewhere the sum of what each process took at most, whenever that was.
        """
        if self._footprint.look() is None or self._footprint.peak_mb is None:
            return Peak(self._summed_mb(), SUMMED)
        return Peak(max(self._footprint.peak_mb, peak_memory_mb(), *self.peaks.values()), TOGETHER)

    def _summed_mb(self) -> float:
        """The sum of what each process has taken at most so far."""
        return peak_memory_mb()

    def _begin(self) -> None:
        """Begin waiting tasks if any can be."""
        return

    def rest(self) -> None:
        """Let go of what processes hold; for tasks that come later it is loaded again."""
        return

    @abstractmethod
    def _finish(self) -> tuple[int, Outcome]:
        """The number and outcome of a task that was not finished before."""

    def close(self, *, at_once: bool = False) -> None:
        """Let go of the processes; `at_once` does not wait for their jobs."""
        del at_once


class Alone(Crew[Held]):
    """This process by itself.

    Parameters
    ----------
    held : object
        What every job is given.

    Examples
    --------
    >>> crew = Alone(10)
    >>> numbers = [crew.start(Task(lambda held, tell, n=n: held + n)) for n in range(3)]
    >>> [crew.result(number) for number in numbers]
    [10, 11, 12]
    """

    def __init__(self, held: Held) -> None:
        super().__init__()
        self._held = held

    def _finish(self) -> tuple[int, Outcome]:
        number = heapq.heappop(self._queue)[1]
        return number, done(self._tasks[number].job, self._held, self._tasks[number].tell)


#: Yields the tasks that it needs next, is sent their results, returns what came of it all.
Plan = Generator[Sequence[Task[Any]], list[Any], Result]


def together(
    crew: Crew[Any], plans: Sequence[Plan[Result]], meanwhile: Callable[[], object] = lambda: None
) -> list[Result]:
    """Carry out several plans at once: while one waits for its last task, others go on.

    What this process has to do `meanwhile` it does when all plans have begun. Plans, and that, may ask the
    crew for results themselves.

    Examples
    --------
    >>> def plan(start):
    ...     first, second = yield [Task(lambda held, _: held + start), Task(lambda held, _: held * start)]
    ...     (third,) = yield [Task(lambda held, _: held + first + second)]
    ...     return third
    >>> together(Alone(2), [plan(1), plan(10)])
    [7, 34]
    """
    found: dict[int, Result] = {}
    awaited: dict[int, list[int]] = {}

    def go_on(which: int, results: list[Any] | None) -> None:
        try:
            tasks = plans[which].send(results)  # type: ignore[arg-type]
        except StopIteration as end:
            found[which] = end.value
            return
        awaited[which] = [crew.start(task) for task in tasks]

    for which in range(len(plans)):
        go_on(which, None)
    meanwhile()
    while len(found) < len(plans):
        ready = [which for which, numbers in awaited.items() if all(map(crew.finished, numbers))]
        for which in ready:
            go_on(which, [crew.result(number) for number in awaited.pop(which)])
        if not ready:
            crew.wait()
    return [found[which] for which in range(len(plans))]
