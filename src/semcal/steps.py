"""Steps that map rows to rows, and `run_stages`, the one loop that runs them.

A *step* maps the rows of a block to rows: sampling, clustering, measuring, grading and asking are steps. A
*stage* is a sequence of steps for each block, with the models and files that its rows depend on. A stage
processes a block in one piece, so its rows do not depend on the number of workers. In memory a block is a
list of rows; only the store knows their JSON.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from semcal.errors import InputError, QuestionError
from semcal.rows import Json, Row
from semcal.store import Store, find_rows, keep_rows, keeping_replies, key_of, replies_beside
from semcal.text.normal_form import TEXT_RULES
from semcal.workers import Executor, Progress

if TYPE_CHECKING:
    from semcal.models.equivalence import Equivalence
    from semcal.models.protocols import AnyRecalibrator, LanguageModel, Sampler

#: Steps whose rows depend on the version of the rules for texts.
OF_TEXTS = frozenset(["cluster", "grade", "greedy", "nli", "select", "measure"])


@dataclass(frozen=True)
class RecalibratorSource:
    """The source of a recalibrator: its name (Base, SE), a temperature, or a fit in the run folder."""

    name: str
    temperature: float | None = None
    folder: str | None = None  # relative to the run folder
    fingerprint: str | None = None

    def key(self) -> Mapping[str, str | float]:
        """Return the fields for the names of blocks."""
        return {name: value for name, value in vars(self).items() if value is not None}


class WorkerState:
    """The models of a worker, and the run folder with the recalibrators.

    A model may be missing if no job needs it.
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
        self.costs: Counter[str] = Counter()  # costs of the current job: calls, draws, …

    def choose(self, models: Any) -> None:
        """Select the models for the next job; this class holds only the given ones."""

    @property
    def model(self) -> Sampler:
        """The model that samples answers, which must be present."""
        assert self._language_model is not None
        return self._language_model

    @property
    def language_model(self) -> LanguageModel:
        """The local language model, which must be present; UsageError if the model is a server."""
        from semcal.models.protocols import with_states

        return with_states(self.model, "this needs hidden states or logits")

    @property
    def equivalence(self) -> Equivalence:
        """The equivalence of answers, which must be present."""
        assert self._equivalence is not None
        return self._equivalence

    def recalibrator(self, source: RecalibratorSource) -> AnyRecalibrator:
        """Return the recalibrator of a source; subclasses that know fits override this method."""
        raise NotImplementedError(source)


class Step(Protocol):
    """Transform one block of rows. Steps must be picklable."""

    name: ClassVar[str]
    """The name for its costs and for its folder of blocks."""
    needs: ClassVar[tuple[str, ...]] = ()
    """The kinds of models that the step uses: "model", "equivalence"."""

    def key(self) -> Json:
        """Return the settings that its rows depend on, by default its fields."""
        return {name: key_of(value) for name, value in vars(self).items()}

    def __call__(self, rows: Sequence[Row], models: Any, progress: Progress, /) -> Sequence[Row]:
        """Return rows; report finished questions to `progress` and costs to `models.costs`."""


@dataclass(frozen=True)
class Stage:
    """A sequence of steps for each block of rows, with the data that names its blocks in a store."""

    steps: tuple[Step, ...]
    revisions: Json = field(default_factory=dict)  # of the models that the steps need
    #: The keys of its rows that are stored; other keys come from the input rows. All keys if empty.
    adds: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()  # written beside its blocks, which are made again if a file is missing
    models: Any = None  # for `WorkerState.choose`

    @property
    def name(self) -> str:
        """The name of the first step, and of the folder of blocks."""
        return self.steps[0].name if self.steps else "rows"

    def key(self) -> Json:
        """Return the settings and revisions that its rows depend on."""
        of_texts = any(step.name in OF_TEXTS for step in self.steps)
        return {
            "steps": [{"name": step.name, **step.key()} for step in self.steps],
            **self.revisions,
            **({"text_rules": TEXT_RULES} if of_texts else {}),
        }

    def blocks(self, rows: Iterable[Row], size: int) -> Iterator[Block]:
        """Cut rows into blocks of `size` rows."""
        remaining = iter(rows)
        while some := list(islice(remaining, size)):
            yield Block(self, some)


@dataclass(frozen=True)
class Block:
    """Rows that a stage processes in one piece."""

    stage: Stage
    rows: Sequence[Row]
    label: Json = field(default_factory=dict)  # a description for readers of the store

    def path(self, store: Store) -> Path:
        """Return the file for the result, named by the stage and the input rows."""
        return store.path(self.stage.name, {**self.stage.key(), "inputs": [row.json for row in self.rows]})

    def is_in(self, store: Store) -> bool:
        """Return whether the result seems to be stored, without reading it."""
        return all(path.exists() for path in (*self.stage.files, self.path(store)))

    def find(self, path: Path) -> list[Row] | None:
        """Return the stored result, None if missing."""
        kept = find_rows(path) if all(file.exists() for file in self.stage.files) else None
        return None if kept is None else self._whole(kept)

    def keep(self, path: Path, rows: Sequence[Row]) -> list[Row]:
        """Store the result, and return it as `find` will."""
        adds = self.stage.adds
        kept = [{key: row[key] for key in adds if key in row} if adds else row.json for row in rows]
        return self._whole(keep_rows(path, kept, self.label))

    def _whole(self, kept: Sequence[Json]) -> list[Row]:
        """Return the stored rows with the other keys of the input rows."""
        if not self.stage.adds:
            return list(map(Row, kept))
        if [row["id"] for row in self.rows] == [row["id"] for row in kept]:
            return [Row({**given.json, **row}) for given, row in zip(self.rows, kept)]
        by_id = {row["id"]: row.json for row in self.rows}
        return [Row({**by_id[row["id"]], **row}) for row in kept]


@dataclass(frozen=True)
class StageResult:
    """The rows that a stage made from a block, and the costs."""

    rows: Sequence[Row]
    costs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class StageJob:
    """A stage on some rows, as a job of a worker."""

    stage: Stage
    rows: tuple[Row, ...]
    replies: Path | None = None  # file for replies of servers until the block is stored

    def __call__(self, models: WorkerState, progress: Progress) -> StageResult:
        """Run the steps."""
        models.choose(self.stage.models)
        models.costs = Counter()
        rows: Sequence[Row] = self.rows
        with keeping_replies(self.replies):
            for step in self.stage.steps:
                rows = step(rows, models, progress)
        return StageResult(rows, models.costs)


@dataclass(frozen=True)
class BlockOutcome:
    """The outcome of a block."""

    n_rows: int  # the input rows that did not fail
    rows: Sequence[Row]
    costs: Mapping[str, int]
    failures: Sequence[tuple[Row, str]]  # rows without answers from a server, with the reason

    @classmethod
    def of(cls, block: Block, result: StageResult) -> BlockOutcome:
        """Set the rows apart that a server did not answer."""
        reasons = {row.id: failure.reason for row in result.rows if (failure := row.failure) is not None}
        failures = [(row, reasons[row.id]) for row in block.rows if reasons and row.id in reasons]
        answered = [row for row in result.rows if row.id not in reasons] if reasons else result.rows
        return cls(len(block.rows) - len(failures), answered, result.costs, failures)


def _silent(*_: object) -> None:
    return None


def run_stages(
    blocks: Iterable[Block],
    *,
    workers: Executor[Any],
    store: Store | None = None,
    progress: Progress = _silent,
    on_block: Callable[[Block, int], None] = _silent,
    on_bad_row: Callable[[InputError], None] | None = None,
) -> Iterator[BlockOutcome]:
    """Run the stage of each block, and yield the outcomes in order.

    Later blocks start before earlier ones are finished. Blocks in `store` are read. New blocks are stored as
    soon as they are finished; until then, the replies of servers are stored. If the rows of a block raise
    InputError and `on_bad_row` is given, the stage runs row by row, so that only the invalid row is lost.
    `progress` gets the number of finished rows, `on_block` each finished block with its number of new rows.
    """
    n_done: Counter[int] = Counter()

    def advance(number: int, size: int, count: int) -> None:
        if min(count, size) > n_done[number]:  # each step of a block counts its input rows
            n_done[number] = min(count, size)
            progress(n_done.total())

    def keep(number: int, block: Block, path: Path | None, result: StageResult) -> StageResult:
        advance(number, len(block.rows), len(block.rows))
        on_block(block, len(result.rows))
        return result if path is None else StageResult(block.keep(path, result.rows), result.costs)

    def begin(block: Block, path: Path | None, rows: Sequence[Row], **how: Any) -> Future[StageResult]:
        job = StageJob(block.stage, tuple(rows), None if path is None else replies_beside(path))
        return workers.submit(job, stage=block.stage.name, **how)

    def finish(block: Block, path: Path | None, future: Future[StageResult]) -> BlockOutcome:
        try:
            result = future.result()
        except InputError:
            if on_bad_row is None:
                raise
            one_by_one = ((row, begin(block, path, [row])) for row in block.rows)
            result = _without_bad_rows(one_by_one, on_bad_row)
        return BlockOutcome.of(block, result)

    waiting: deque[tuple[Block, Path | None, Future[StageResult]]] = deque()
    for number, block in enumerate(blocks):
        size, path = len(block.rows), None if store is None else block.path(store)
        stored = None if path is None else block.find(path)
        if stored is None:
            finishing = partial(keep, number, block, path)
            future = begin(block, path, block.rows, finish=finishing, progress=partial(advance, number, size))
        else:
            advance(number, size, size)
            on_block(block, 0)
            future = Future()
            future.set_result(StageResult(stored))
        waiting.append((block, path, future))
        if len(waiting) >= workers.n_ahead:
            yield finish(*waiting.popleft())
    while waiting:
        yield finish(*waiting.popleft())


def _without_bad_rows(
    results: Iterable[tuple[Row, Future[StageResult]]], on_bad_row: Callable[[InputError], None]
) -> StageResult:
    """Join results of single rows. They are not stored: the next call has to report the bad rows again."""
    rows: list[Row] = []
    costs: Counter[str] = Counter()
    for row, future in results:
        try:
            result = future.result()
        except InputError as error:
            on_bad_row(located(row, error))
        else:
            rows += result.rows
            costs.update(result.costs)
    return StageResult(rows, costs)


def located(row: Row, error: InputError) -> InputError:
    """Return the error with the line and the id of its row."""
    return row.error(error.reason if isinstance(error, QuestionError) else str(error))
