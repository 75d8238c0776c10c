"""Read the questions and rows of a command, report bad rows, and process good rows in blocks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from semcal.cli import options as opt
from semcal.cli.console import info, progress, warn
from semcal.data.datasets import FIELDS, load_questions, read_questions
from semcal.data.question import Question
from semcal.data.sources import find_source, parse_columns, read_source_rows, rename
from semcal.errors import InputError, QuestionError, RowError, shown
from semcal.files import JsonLine, check_json_lines, dumps, read_rows, writing
from semcal.rows import Json, Row
from semcal.steps import Block, BlockOutcome, Stage, Step, WorkerState, located, run_stages
from semcal.store import Store
from semcal.workers import Executor, SerialExecutor

if TYPE_CHECKING:
    from semcal.fields.schema import Schema
    from semcal.models.prompting import PromptConfig
    from semcal.models.protocols import Sampler

#: Number of line ranges, and of ids, in a message about many rows.
NAMED = 3

_Item = TypeVar("_Item")


def as_line(row: Row) -> str:
    """Return the row as a line of a file."""
    return dumps(row.json)


def open_questions(
    file: str, columns: Sequence[str] | None, *, further: Sequence[str] = ()
) -> Iterator[Row | RowError]:
    """Read questions as rows; `columns` is the value of --columns, which may name `further` columns."""
    questions = read_questions(file, columns=parse_columns(columns or (), (*FIELDS, *further)))
    return (item if isinstance(item, RowError) else Row.of(item) for item in questions)


def read_to_sample(
    file: str, columns: Sequence[str] | None, schema: Schema | None, *, label: str
) -> Iterator[Row | InputError]:
    """Read questions; the references of structured answers are objects, and checked."""
    if schema is None:
        return open_questions(file, columns)
    from semcal.fields.rows import check_to_sample

    check = partial(check_to_sample, schema)
    return open_rows(file, columns, check, fields=("id", "question", "context"), label=label)


def counted(file: str, items: Iterator[_Item]) -> tuple[Iterator[_Item], int | None]:
    """Return the items of a file with their number; the items of a stream come without a number."""
    path = find_source(file)
    if not os.path.isfile(path):  # noqa: PTH113 - no error for a name that is too long
        return items, None
    in_memory = list(items)
    return iter(in_memory), len(in_memory)


def read_labelled(
    file: str, columns: Sequence[str] | None, bad: BadRows, *, limit: int | None = None
) -> list[Question]:
    """Read all questions with reference answers of a file, and report invalid ones."""
    try:
        return load_questions(
            file,
            columns=parse_columns(columns or (), FIELDS),
            on_bad_row=bad.report,
            answers_needed=True,
            limit=limit,
        )
    finally:
        bad.flush()


def open_rows(
    file: str,
    columns: Sequence[str] | None,
    check: Callable[[Row], object],
    *,
    fields: Sequence[str],
    label: str,
    tables: bool = False,
) -> Iterator[Row | InputError]:
    """Read the rows of a command with these `fields`; rows that `check` rejects become errors.

    Rows without an `id` are numbered. With `tables`, CSV and Parquet are read too; cells hold lists as JSON.
    """
    file = str(find_source(file))
    table = tables and Path(file).name.lower().removesuffix(".gz").endswith((".csv", ".tsv", ".parquet"))
    if table:
        source = read_source_rows(file)
    else:
        check_json_lines(file)
        source = read_rows(file)
    rows = _rows(rename(source, parse_columns(columns or (), fields)), table=table)
    return _without_partial_likelihoods(checked(rows, check), label)


def _rows(lines: Iterable[JsonLine | RowError], *, table: bool) -> Iterator[Row | InputError]:
    """Yield lines of a file as rows; missing ids are numbered, and cells of tables hold lists."""
    from semcal.inputs import listed_cells

    for number, line in enumerate(lines, 1):
        if isinstance(line, RowError):
            yield line
            continue
        try:
            yield Row({"id": str(number), **(listed_cells(line.data) if table else line.data)}, line.line)
        except InputError as error:
            yield line.error(str(error))


def _without_partial_likelihoods(rows: Iterable[Row | InputError], label: str) -> Iterator[Row | InputError]:
    """Set the log-likelihoods of a row to null if one of them is unknown, and report it."""
    with ProblemLog() as notes:
        for row in rows:
            if isinstance(row, Row) and isinstance(values := row.json.get("log_likelihoods"), list):
                # a sample without an answer (null) has no likelihood, so nothing is unknown
                texts = row.json.get("samples") or [""] * len(values)
                if unknown := sum(value is None and text is not None for value, text in zip(values, texts)):
                    reason = f"{unknown} of {len(values)} log-likelihoods unknown (null): all become null"
                    notes.add(reason, line=row.line, row_id=row.json.get("id"), where=f"{label}: ")
                    yield row.set(log_likelihoods=None)
                    continue
            yield row


def checked(rows: Iterable[Row | InputError], check: Callable[[Row], object]) -> Iterator[Row | InputError]:
    """Replace rows that `check` rejects (InputError) by their errors, before rows are cut into blocks."""
    for row in rows:
        if isinstance(row, Row):
            try:
                check(row)
            except InputError as error:
                yield located(row, error)
                continue
        yield row


def good_rows(rows: Iterable[Row | InputError], bad: BadRows) -> Iterator[Row]:
    """Report errors and yield the other rows."""
    for row in rows:
        if isinstance(row, InputError):
            bad.report(row)
        else:
            yield row


def show_first_prompt(model: Sampler, asking: PromptConfig, rows: Iterable[Row | InputError]) -> int:
    """Print the prompt of the first good row, report bad ones before it, and return the exit code."""
    with BadRows() as bad:
        opt.show_prompt(model, asking, (row.to_question() for row in good_rows(rows, bad)))
        return bad.exit_code()


class RowResults:
    """The output of a command: rows go block by block to the file `out`, or to stdout.

    `limit` counts bad rows as well; `total` is the number of rows, if known; `render` turns a row into text.
    """

    def __init__(
        self,
        label: str,
        out: Path | None,
        *,
        limit: int | None = None,
        total: int | None = None,
        render: Callable[[Row], str] = as_line,
    ) -> None:
        self.bad = BadRows()
        self.n_rows = 0
        self._label, self._out, self._limit, self._render = label, out, limit, render
        self._total = limit if total is None else min(total, limit or total)
        self._open = ExitStack()

    def __enter__(self) -> RowResults:
        self._open.enter_context(self.bad)
        self._handle = self._open.enter_context(writing(self._out, private=True))
        self._progress = self._open.enter_context(progress(self._label, self._total))
        return self

    def __exit__(self, *raised: Any) -> None:
        self._open.__exit__(*raised)
        if raised[0] is not None:
            return
        if not self.n_rows and not self.bad.count:
            info(f"{self._label}: the input holds no rows")
        if self._out is not None:
            info(f"{self._label}: {self.n_rows} rows in {self._out}")

    def blocks(
        self,
        rows: Iterable[Row | InputError],
        *steps: Step,
        workers: Executor[WorkerState] | None = None,
        cut: int | Callable[[Iterable[Row]], Iterator[list[Row]]] = 256,
        revisions: Json | None = None,
        store: Store | None = None,
    ) -> Iterator[BlockOutcome]:
        """Run steps on the good rows (`run_stages`, by default in this process), and yield the outcomes.

        `cut` is a number of rows, or a function that cuts rows into blocks. `store` holds finished blocks,
        which depend on the `revisions` of models.
        """
        stage, good = Stage(steps, revisions or {}), good_rows(islice(rows, self._limit), self.bad)
        return run_stages(
            stage.blocks(good, cut) if isinstance(cut, int) else (Block(stage, some) for some in cut(good)),
            workers=workers or SerialExecutor(WorkerState()),
            store=store,
            progress=self._progress,
            on_bad_row=self.bad.report,
        )

    def write(self, block: BlockOutcome) -> None:
        """Write the rows of a block, and report those that failed."""
        for row, reason in block.failures:
            self.bad.report(row.error(reason))
        self._handle.writelines(self._render(row) + "\n" for row in block.rows)
        self._handle.flush()
        self.bad.flush()
        self.n_rows += block.n_rows
        self._progress(self.n_rows)


class ProblemLog:
    """Print problems of rows on stderr, with all waiting problems of one kind in one line."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], _Kind] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()

    def add(
        self,
        reason: str,
        *,
        line: int | None = None,
        last: int | None = None,
        row_id: str | int | None = None,
        where: str = "",
    ) -> None:
        """Add a problem of a row, or of a question without a line."""
        key = where, _pattern(reason)
        self._waiting.setdefault(key, _Kind(where, reason)).add(line, last, row_id)

    def flush(self) -> None:
        """Print the problems that wait for others of their kind."""
        kinds = [*self._waiting.values()]
        self._waiting.clear()
        for kind in kinds:
            warn(str(kind))


class BadRows(ProblemLog):
    """A count of rows that cannot be used, with their reasons on stderr."""

    count = 0

    def report(self, error: InputError) -> None:
        """Print the reason, now or together with others of its kind."""
        self.count += 1
        if isinstance(error, RowError):
            self.add(error.reason, line=error.line, last=error.last, row_id=error.row_id)
        elif isinstance(error, QuestionError):
            self.add(error.reason, row_id=error.question_id)
        else:
            self.add(str(error))

    def reporter(self, questions: Iterable[Question]) -> Callable[[QuestionError], None]:
        """Return a function that reports errors of these questions with their lines."""
        by_id = {question.id: question for question in questions}
        return lambda error: self.report(by_id[error.question_id].error(error.reason))

    def exit_code(self) -> int:
        """Return 0 if every row was good, else 1 with a count on stderr."""
        self.flush()
        if self.count:
            rows = "row was" if self.count == 1 else "rows were"
            warn(f"{self.count} bad {rows} left out; the others are done")
        return 1 if self.count else 0


@dataclass
class _Kind:
    """Problems of one kind that are not printed yet."""

    where: str
    reason: str
    count: int = 0
    runs: list[list[int]] = field(default_factory=list)  # first and last line of each run
    ids: list[str] = field(default_factory=list)

    def add(self, first: int | None, last: int | None, row_id: str | int | None) -> None:
        self.count += 1
        if row_id is not None and len(self.ids) <= NAMED:
            self.ids.append(shown(row_id))
        if first is None:
            return
        if self.runs and self.runs[-1][1] + 1 == first:
            self.runs[-1][1] = last or first
        elif len(self.runs) <= NAMED:
            self.runs.append([first, last or first])

    def __str__(self) -> str:
        return f"{self.where}{self._place()}{self.reason}"

    def _place(self) -> str:
        ids = listed(self.ids)
        lines = listed([str(a) if a == b else f"{a}-{b}" for a, b in self.runs])
        if self.count > 1:
            ids = f"{self.count} rows, ids {ids}" if ids else f"{self.count} rows"
        elif not lines:
            return f"question {ids}: " if ids else ""
        elif ids:
            ids = f"id {ids}"
        named = f" ({ids})" if ids and lines else ids
        return f"line{'' if lines.isdecimal() else 's'} {lines}{named}: " if lines else f"{named}: "


def _pattern(reason: str) -> str:
    """Return the common part of problems of one kind: the reason without numbers and values."""
    return re.sub(r"\d+", "", reason.partition(", got ")[0])


def listed(names: Sequence[str]) -> str:
    """Return the first names, and … if there are more."""
    return ", ".join([*names[:NAMED], *(["…"] if len(names) > NAMED else [])])
