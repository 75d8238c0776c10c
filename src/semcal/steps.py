"""Steps that make rows of rows, and the one loop that runs them over the rows of a file.

A step is given the rows of a block in one piece, so what it makes does not depend on how many workers there
are. Sampling, clustering, measuring, grading and asking are steps.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from semcal.errors import InputError, QuestionError
from semcal.progress import note_block, note_resumed
from semcal.rows import Row
from semcal.store import Stage
from semcal.workers import Executor, Progress

if TYPE_CHECKING:
    from semcal.models.equivalence import Equivalence
    from semcal.models.protocols import AnyRecalibrator, LanguageModel, Sampler


@dataclass(frozen=True)
class RecalibratorSource:
    """Where a recalibrator comes from: its name (Base, SE), a temperature, or a fit in the run folder."""

    name: str
    temperature: float | None = None
    folder: str | None = None  # relative to the run folder
    fingerprint: str | None = None

    def key(self) -> Mapping[str, str | float]:
        """What it is, as it names blocks."""
        return {name: value for name, value in vars(self).items() if value is not None}


class WorkerState:
    """The models of a worker, and the run folder that recalibrators are read from.

    Jobs that need no model of a kind do without it.
    """

    def __init__(
        self,
        language_model: Sampler | None = None,
        equivalence: Equivalence | None = None,
        *,
        folder: Path = Path(),
    ) -> None:
        self.folder = folder
        self._language_model = language_model
        self._equivalence = equivalence
        self.costs: Counter[str] = Counter()  # what the job under way has spent: calls, draws, …

    @property
    def model(self) -> Sampler:
        """What answers are drawn from; it must be there."""
        assert self._language_model is not None
        return self._language_model

    @property
    def language_model(self) -> LanguageModel:
        """The language model, which must be there; UsageError if it is a server."""
        from semcal.models.protocols import with_states

        return with_states(self.model, "this needs hidden states or logits")

    @property
    def equivalence(self) -> Equivalence:
        """What decides which answers mean the same; it must be there."""
        assert self._equivalence is not None
        return self._equivalence

    def recalibrator(self, source: RecalibratorSource) -> AnyRecalibrator:
        """Return the recalibrator that a source stands for; a state that knows fits overrides this."""
        raise NotImplementedError(source)


RowCut: TypeAlias = Callable[[Iterator[Row]], Iterator[list[Row]]]
"""Cuts rows into blocks."""


class Step(Protocol):
    """Makes rows of the rows of a block; it can be pickled."""

    @property
    def name(self) -> str:
        """What its cost is counted towards, and its blocks are kept under."""

    def __call__(self, rows: Sequence[Row], models: WorkerState, progress: Progress, /) -> Sequence[Row]:
        """Make rows; `progress` is told how many questions are done, `models.costs` what was spent."""


@dataclass(frozen=True)
class StepResult:
    """The rows that steps have made of a block, and what they have spent."""

    rows: Sequence[Row]
    costs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class BlockJob:
    """Steps on the rows of a block, one after another, as a job of a worker."""

    steps: tuple[Step, ...]
    rows: tuple[Row, ...]

    def __call__(self, models: WorkerState, progress: Progress) -> StepResult:
        """Run the steps."""
        models.costs = Counter()
        rows: Sequence[Row] = self.rows
        for step in self.steps:
            rows = step(rows, models, progress)
        return StepResult(rows, models.costs)


@dataclass(frozen=True)
class BlockOutcome:
    """What came of a block."""

    n_rows: int  # of those that it was made of, without those that failed
    rows: Sequence[Row]
    costs: Mapping[str, int]
    failures: Sequence[tuple[Row, str]]  # rows that a server gave no answers to, and why


def run_steps(
    rows: Iterable[Row],
    steps: Sequence[Step],
    *,
    workers: Executor[WorkerState],
    cut: RowCut | int = 256,
    store: Stage | None = None,
    progress: Progress = lambda _: None,
    on_bad_row: Callable[[InputError], None] | None = None,
) -> Iterator[BlockOutcome]:
    """Run steps over rows, block by block, and yield what came of each block in order.

    `cut` is a number of rows or cuts them into blocks; the next blocks are begun while one is waited for.
    Blocks that `store` holds are read, the others are kept there. If the rows of a block raise InputError and
    `on_bad_row` is there to be told, the steps are run row by row, so that only the row at fault is lost.
    `progress` is told how many rows are done.
    """
    n_done: Counter[int] = Counter()

    def advance(number: int, size: int, count: int) -> None:
        if min(count, size) > n_done[number]:  # each step of a block counts the rows that it is given
            n_done[number] = min(count, size)
            progress(n_done.total())

    def keep(number: int, block: Sequence[Row], result: StepResult) -> StepResult:
        advance(number, len(block), len(block))
        note_block(progress)
        if store is None:
            return result
        kept = store.keep([row.json for row in block], [row.json for row in result.rows])
        return StepResult([Row(json) for json in kept], result.costs)

    def finish(block: Sequence[Row], future: Future[StepResult]) -> BlockOutcome:
        try:
            result = future.result()
        except InputError:
            if on_bad_row is None:
                raise
            result = _row_by_row(block, steps, workers, on_bad_row)
        reasons = {row.id: failure.reason for row in result.rows if (failure := row.failure) is not None}
        if not reasons:
            return BlockOutcome(len(block), result.rows, result.costs, ())
        failures = [(row, reasons[row.id]) for row in block if row.id in reasons]
        answered = [row for row in result.rows if row.id not in reasons]
        return BlockOutcome(len(block) - len(failures), answered, result.costs, failures)

    note_block(progress)
    waiting: deque[tuple[list[Row], Future[StepResult]]] = deque()
    for number, block in enumerate(_blocks(rows, cut) if isinstance(cut, int) else cut(iter(rows))):
        stored = None if store is None else store.find([row.json for row in block])
        if stored is None:
            future: Future[StepResult] = workers.submit(
                BlockJob(tuple(steps), tuple(block)),
                stage=steps[0].name if steps else "rows",
                finish=partial(keep, number, block),
                progress=partial(advance, number, len(block)),
            )
        else:
            note_resumed(progress, len(block))
            advance(number, len(block), len(block))
            future = Future()
            future.set_result(StepResult([Row(json) for json in stored]))
        waiting.append((block, future))
        if len(waiting) >= workers.n_ahead:
            yield finish(*waiting.popleft())
    while waiting:
        yield finish(*waiting.popleft())


def _row_by_row(
    block: Sequence[Row],
    steps: Sequence[Step],
    workers: Executor[WorkerState],
    on_bad_row: Callable[[InputError], None],
) -> StepResult:
    """Run the steps on each row alone; nothing is kept, as another call would not look for it."""
    rows: list[Row] = []
    costs: Counter[str] = Counter()
    for row in block:
        job = BlockJob(tuple(steps), (row,))
        try:
            result: StepResult = workers.submit(job, stage=steps[0].name if steps else "rows").result()
        except InputError as error:
            on_bad_row(located(row, error))
        else:
            rows += result.rows
            costs.update(result.costs)
    return StepResult(rows, costs)


def located(row: Row, error: InputError) -> InputError:
    """The error with the line and the id of its row."""
    return row.error(error.reason if isinstance(error, QuestionError) else str(error))


def _blocks(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    remaining = iter(rows)
    while block := list(islice(remaining, size)):
        yield block
