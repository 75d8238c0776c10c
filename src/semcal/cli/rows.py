"""Read the questions and rows of a command, report bad ones, and work on good ones in blocks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from semcal.cli.console import info, progress, warn
from semcal.errors import InputError, QuestionError, RowError, shown
from semcal.pipeline.rows import FAILED
from semcal.qa.column_names import COMMON_NAMES, parse_columns, peek, rename
from semcal.qa.datasets import FIELDS, load_questions, read_questions
from semcal.qa.questions import Question
from semcal.qa.sources import read_source_rows
from semcal.records import Row, dumps, read_rows, writing
from semcal.records.jsonl import check_json_lines

#: Runs of lines, and ids, that a message about many rows names.
NAMED = 3
#: What may differ between problems of one kind. A quoted word may be the name of a column, which may not.
_VALUES = re.compile(r"""\(.*?\)|question '[^']*'|\d+|'\w+'|"\w+"|'[^']*'|"[^"]*\"""", re.DOTALL)

Data = Mapping[str, Any]
#: What a command works on: a row of a file, or a question.
Item = TypeVar("Item", Row, Question)
Anything = TypeVar("Anything")


#: Maps blocks of items, and a function that gets the number of finished items, to each block in order with a
#: function that returns its result rows; blocks may be begun ahead.
Work: TypeAlias = Callable[
    [Iterable[list[Item]], Callable[[int], None]],
    Iterator[tuple[list[Item], Callable[[], Sequence[Data]]]],
]


#: Cuts items into blocks.
Cut: TypeAlias = Callable[[Iterator[Item]], Iterator[list[Item]]]


def open_questions(file: str, columns: Sequence[str] | None, *, label: str) -> Iterator[Question | RowError]:
    """Read questions; `columns` is the option."""
    return read_questions(file, columns=parse_columns(columns or (), FIELDS), notify=_note_of(label))


def counted(file: str, items: Iterator[Anything]) -> tuple[Iterator[Anything], int | None]:
    """The items of a file, read to its end, with their number; those of a stream as they come, and None."""
    if not os.path.isfile(file):  # noqa: PTH113 - a name that is too long is no file, and no error yet
        return items, None
    found = list(items)
    return iter(found), len(found)


def read_labelled(
    file: str, columns: Sequence[str] | None, bad: BadRows, *, label: str, limit: int | None = None
) -> list[Question]:
    """Read all questions with reference answers of a file, and report those that cannot be used."""
    try:
        return load_questions(
            file,
            columns=parse_columns(columns or (), FIELDS),
            notify=_note_of(label),
            on_bad_row=bad.report,
            answers_needed=True,
            limit=limit,
        )
    finally:
        bad.flush()


def open_rows(
    file: str,
    columns: Sequence[str] | None,
    check: Callable[[Data], object],
    *,
    fields: Sequence[str],
    label: str,
    tables: bool = False,
) -> Iterator[Row | InputError]:
    """Read the rows of a command that knows `fields`; those that `check` refuses become errors.

    With `tables` CSV, TSV and Parquet are read too: a list stands in a cell as JSON, and rows without an `id`
    are numbered.
    """
    table = tables and Path(file).name.lower().removesuffix(".gz").endswith((".csv", ".tsv", ".parquet"))
    note = _note_of(label)
    if table:
        source = read_source_rows(file, names=fields, notify=note)
    else:
        check_json_lines(file)
        source = read_rows(file)
    known = {name: COMMON_NAMES.get(name, ()) for name in fields}
    found, source = peek(source, known, parse_columns(columns or (), fields), notify=note)
    rows: Iterable[Row | InputError] = rename(source, found)
    rows = map(_listed, count(1), rows) if table else rows
    return _without_partial_likelihoods(checked(rows, check), label)


def _listed(number: int, row: Row | InputError) -> Row | InputError:
    """A row of a table as one of JSON Lines."""
    from semcal.pipeline.inputs import listed_cells

    if isinstance(row, InputError):
        return row
    try:
        return Row(row.line, {"id": str(number), **listed_cells(row.data)})
    except InputError as error:
        return _located(row, error)


def _note_of(label: str) -> Callable[[str], None]:
    return lambda text: info(f"{label}: {text}")


def _without_partial_likelihoods(rows: Iterable[Row | InputError], label: str) -> Iterator[Row | InputError]:
    """Make the log-likelihoods of a row null where one of them is, and say so."""
    notes = ProblemLog()
    try:
        for row in rows:
            given = row.data.get("log_likelihoods") if isinstance(row, Row) else None
            if not isinstance(row, Row) or not isinstance(given, list) or None not in given:
                notes.flush()
                yield row
                continue
            reason = f"{given.count(None)} of {len(given)} log-likelihoods unknown (null): all become null"
            error = row.error(reason)
            notes.add(reason, line=row.line, row_id=error.row_id, where=f"{label}: ")
            yield Row(row.line, {**row.data, "log_likelihoods": None})
    finally:
        notes.close()


def checked(
    items: Iterable[Item | InputError], check: Callable[[Any], object]
) -> Iterator[Item | InputError]:
    """Replace each item that `check` refuses (InputError) by its error, before blocks are cut."""
    for item in items:
        if not isinstance(item, InputError):
            try:
                check(item.data if isinstance(item, Row) else item)
            except InputError as error:
                yield _located(item, error)
                continue
        yield item


def _located(item: Row | Question, error: InputError) -> InputError:
    """The error with the line and the id of its item."""
    return item.error(error.reason if isinstance(error, QuestionError) else str(error))


def good_items(items: Iterable[Item | InputError], bad: BadRows) -> Iterator[Item]:
    """Report errors and yield the other items."""
    for item in items:
        if isinstance(item, InputError):
            bad.report(item)
        else:
            bad.flush()
            yield item


def run_rows(
    items: Iterable[Item | InputError],
    out: Path | None,
    *,
    work: Work[Item],
    label: str,
    block: int | Cut[Item] = 256,
    limit: int | None = None,
    total: int | None = None,
    render: Callable[[Data], str] = dumps,
) -> int:
    """Stream items through `work`, block by block, to `out` (or stdout) and return the exit code.

    A block holds `block` items, or that cuts it. `out` appears whole or not at all; `render` writes a result
    row as text; `total` is how many items there are, where that is known.
    """
    done = 0
    total = limit if total is None else min(total, limit or total)
    with BadRows() as bad, writing(out) as handle, progress(label, total) as update:
        for count, results in block_results(items, bad, work, update, block=block, limit=limit):
            handle.writelines(render(row) + "\n" for row in results)
            handle.flush()
            done += count
            update(done)
    if not done and not bad.count:
        info(f"{label}: the input holds no rows")
    if out is not None:
        info(f"{label}: {done} rows in {out}")
    return bad.exit_code()


def block_results(
    items: Iterable[Item | InputError],
    bad: BadRows,
    work: Work[Item],
    update: Callable[[int], None],
    *,
    block: int | Cut[Item] = 256,
    limit: int | None = None,
) -> Iterator[tuple[int, Sequence[Data]]]:
    """Work through blocks: of each the number of its good items, and their results.

    If the rows of a block raise InputError, the block is done again item by item, so that only the item at
    fault is lost. `limit` counts bad items as well.
    """
    good = good_items(islice(items, limit), bad)
    blocks = _blocks(good, block) if isinstance(block, int) else block(good)
    for part, result in work(blocks, update):
        try:
            results = list(result())
        except InputError:
            results = list(_one_by_one(part, work, bad))
        yield len(part) - _report_failures(part, results, bad), [row for row in results if FAILED not in row]


def _report_failures(part: Sequence[Item], results: Sequence[Data], bad: BadRows) -> int:
    """Report the items to which a server gave no answers, each once, and return how many they are."""
    failed = {row["id"]: row[FAILED] for row in results if FAILED in row}
    for item in part if failed else ():
        name = str(item.data.get("id")) if isinstance(item, Row) else item.id
        if name in failed:
            bad.report(item.error(failed[name]))
    return len(failed)


def _blocks(items: Iterator[Item], size: int) -> Iterator[list[Item]]:
    while block := list(islice(items, size)):
        yield block


def in_this_process(rows_of: Callable[[Sequence[Item]], Sequence[Data]]) -> Work[Item]:
    """Work through one block after another."""

    def work(
        blocks: Iterable[list[Item]], update: Callable[[int], None]
    ) -> Iterator[tuple[list[Item], Callable[[], Sequence[Data]]]]:
        del update
        for block in blocks:
            yield block, partial(rows_of, block)

    return work


def _one_by_one(block: Sequence[Item], work: Work[Item], bad: BadRows) -> Iterator[Data]:
    for (item,), rows in work(([item] for item in block), lambda _: None):
        try:
            yield from rows()
        except InputError as error:
            bad.report(_located(item, error))


class BadRows:
    """Counts rows that cannot be used, and prints why on stderr."""

    def __init__(self) -> None:
        self.count = 0
        self._log = ProblemLog()

    def __enter__(self) -> BadRows:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()

    def report(self, error: InputError) -> None:
        """Print the reason, now or together with others of its kind."""
        self.count += 1
        if isinstance(error, RowError):
            self._log.add(error.reason, line=error.line, last=error.last, row_id=error.row_id)
        elif isinstance(error, QuestionError):
            self._log.add(error.reason, row_id=error.question_id)
        else:
            self._log.add(str(error))

    def flush(self) -> None:
        """Print what was held back to be grouped: a good row has come."""
        self._log.flush()

    def exit_code(self) -> int:
        """0 when every row was good, else 1 with a count on stderr."""
        self._log.close()
        if self.count:
            rows = "row was" if self.count == 1 else "rows were"
            warn(f"{self.count} bad {rows} left out; the rest is done")
        return 1 if self.count else 0


class ProblemLog:
    """Prints problems of rows on stderr; consecutive ones of one kind make one line.

    A kind that comes again later is only counted, and printed once more at the end (`close`).
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], _Kind] = {}
        self._pending: tuple[str, str] | None = None

    def add(
        self,
        reason: str,
        *,
        line: int | None = None,
        last: int | None = None,
        row_id: str | int | None = None,
        where: str = "",
    ) -> None:
        """Take up a problem of a row, or of a question that has no line."""
        kind = where, _pattern(reason, row_id)
        if kind != self._pending:
            self.flush()
        if kind not in self._kinds:
            self._kinds[kind] = _Kind(where, reason)
            self._pending = kind
        self._kinds[kind].add(line, last, row_id)

    def flush(self) -> None:
        """Print the kind that was held back to be grouped."""
        if self._pending is not None:
            kind = self._kinds[self._pending]
            warn(str(kind))
            self._kinds[self._pending] = _Kind(kind.where, kind.reason, kind.before + kind.count)
            self._pending = None

    def close(self) -> None:
        """Print everything that is not printed yet."""
        self.flush()
        for kind in self._kinds.values():
            if kind.count:
                warn(str(kind))
        self._kinds.clear()


@dataclass
class _Kind:
    """Problems of one kind that are not printed yet."""

    where: str
    reason: str
    before: int = 0  # how many were printed already
    count: int = 0
    runs: list[list[int]] = field(default_factory=list)  # first and last line of consecutive ones
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
        if self.count > 1 or self.before:
            more = "more " if self.before else ""
            rows = f"{self.count} {more}row{'' if self.count == 1 else 's'}"
            ids = f"{rows}, ids {ids}" if ids else rows
        elif not lines:
            return f"question {ids}: " if ids else ""
        elif ids:
            ids = f"id {ids}"
        named = f" ({ids})" if ids and lines else ids
        return f"line{'' if lines.isdecimal() else 's'} {lines}{named}: " if lines else f"{named}: "


def _pattern(reason: str, row_id: str | int | None) -> str:
    """What problems of one kind have in common: the reason without id, numbers and what was got."""
    text = reason.partition(", got ")[0]
    text = text if row_id is None else text.replace(shown(row_id), "")
    return _VALUES.sub(lambda found: found[0] if found[0][1:-1].isidentifier() else "", text)


def listed(names: Sequence[str]) -> str:
    """The first names, and … where there are more.

    >>> listed(["'a'", "'b'", "'c'", "'d'"])
    "'a', 'b', 'c', …"
    """
    return ", ".join([*names[:NAMED], *(["…"] if len(names) > NAMED else [])])
