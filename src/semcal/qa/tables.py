"""Names of columns, and rows of CSV, TSV and Parquet files; a row that cannot be read is reported."""

from __future__ import annotations

import csv
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from semcal.errors import InputError, MissingExtraError, RowError, SemcalWarning, UsageError, shown
from semcal.records import Row, jsonl, row_of
from semcal.registry import check_name

#: Rows from which the names of columns are decided.
FIRST = 64
COMMON_NAMES: Mapping[str, tuple[str, ...]] = {
    "question": ("query",),
    "samples": ("responses", "completions"),
}
"""Other accepted names of a column, in any case."""
#: Columns beside which `answer` is the model's answer.
_OF_A_MODEL = {"samples", *COMMON_NAMES["samples"], "prediction"}
#: Several answers in one cell, not written as a list.
_SEVERAL = re.compile(r"[^\s;|]\s*[;|]\s*[^\s;|]")

Notify = Callable[[str], None]
"""Shows the user a note about a file that is not an error."""


def parse_columns(given: Sequence[str], known: Iterable[str]) -> dict[str, str]:
    """Return "question=Frage", … as {our name: the file's}.

    UsageError if one is no such pair, names no column of `known`, or is given twice.

    >>> parse_columns(["question=Frage", "answers=Die Antwort"], ("id", "question", "answers"))
    {'question': 'Frage', 'answers': 'Die Antwort'}
    """
    columns: dict[str, str] = {}
    for pair in given:
        ours, equals, theirs = pair.partition("=")
        if not (equals and theirs):
            raise UsageError(f"--columns {shown(pair)}: expected OURS=THEIRS, such as question=Frage")
        if check_name(ours.strip(), known, what="column of --columns") in columns:
            raise UsageError(f"--columns names {ours.strip()!r} twice")
        columns[ours.strip()] = theirs
    return columns


def check_different(names: Sequence[str], path: Path | str) -> None:
    """Refuse a file with two columns of one name: InputError."""
    for name, times in Counter(names).items():
        if times > 1:
            raise InputError(f"{times} columns of {path} are called {shown(name)}: rename or remove one")


def find_columns(
    keys: Sequence[str], known: Mapping[str, Sequence[str]], columns: Mapping[str, str]
) -> dict[str, str]:
    """Return the key of each known column that is not called by our name.

    `known` maps our names to the other accepted names of each, `columns` our names to those that the user has
    given.

    UsageError if the user names a column that does not exist, or two keys could be the same column.

    >>> find_columns(["ID", "Query", "Level"], {"id": (), "question": ("query",)}, {})
    {'id': 'ID', 'question': 'Query'}
    """
    found = {ours: check_name(theirs, keys, what="column") for ours, theirs in columns.items()}
    for ours, others in known.items():
        if ours in found or ours in keys:
            continue
        for name in (ours, *others):
            same = [key for key in keys if key.strip().lower() == name and key not in found.values()]
            if len(same) > 1:
                raise UsageError(
                    f"{' and '.join(map(shown, same))} could both be the column {ours!r}: say which with "
                    f"--columns {ours}=NAME (in Python: columns={{{ours!r}: NAME}})"
                )
            if same:
                found[ours] = same[0]
                break
    return found


def peek(
    rows: Iterator[Row | RowError],
    known: Mapping[str, Sequence[str]],
    columns: Mapping[str, str],
    *,
    labelled: bool = False,
    notify: Notify | None = None,
) -> tuple[dict[str, str], Iterator[Row | RowError]]:
    """Find the columns of a file from its first rows; return them with an iterator over all rows.

    `known` and `columns` as for `find_columns`. In a file of questions with their answers (`labelled`) the
    column `answer` may mean `answers`; beside `samples` or a `prediction` it is the model's. `notify` gets
    notes on the names found.

    SemcalWarning if most cells of `answers` hold several answers that are not written as a list.
    """
    first = list(islice(rows, FIRST))
    good = [row.data for row in first if isinstance(row, Row)]
    keys = list(dict.fromkeys(key for data in good for key in data))
    if labelled and _OF_A_MODEL.isdisjoint(key.strip().lower() for key in keys):
        known = {**known, "answers": (*known["answers"], "answer")}
    settled = len(first) < FIRST or set(columns.values()) <= set(keys)
    given = columns if settled else {ours: name for ours, name in columns.items() if name in keys}
    found = {**columns, **find_columns(keys, known, given)} if good else dict(columns)
    for ours, theirs in found.items():
        if notify and theirs != ours and ours in keys:
            notify(f"columns: {theirs!r} replaces {ours!r}, which is ignored")
    understood = [f"{theirs!r} as {ours}" for ours, theirs in found.items() if ours not in columns]
    if understood and notify:
        notify(f"columns: {', '.join(understood)}")
    if "answers" in known:
        _warn_of_several([data.get(found.get("answers", "answers")) for data in good])
    missing = {name: ours for ours, others in known.items() if ours not in found for name in (ours, *others)}
    return found, chain(first, _without_late(rows, frozenset(keys), missing))


def _without_late(
    rows: Iterable[Row | RowError], keys: frozenset[str], missing: Mapping[str, str]
) -> Iterator[Row | RowError]:
    """Refuse rows with a column that would be lost because it appears after the first rows."""
    for row in rows:
        if isinstance(row, Row) and not row.data.keys() <= keys:
            for key in row.data:
                ours = missing.get(key.strip().lower(), key)
                if key not in keys and key != ours:
                    yield row.error(
                        f"its column {shown(key)} is in none of the first {FIRST} rows, which determine "
                        f"the columns: call it {ours!r}, or give --columns {ours}={key[:40]}"
                    )
                    break
            else:
                yield row
            continue
        yield row


def _warn_of_several(cells: Sequence[Any]) -> None:
    texts = [cell for cell in cells if isinstance(cell, str) and not cell.lstrip().startswith("[")]
    several = [text for text in texts if _SEVERAL.search(text)]
    if len(several) > 1 and len(several) > len(cells) / 2:
        warnings.warn(
            f"most cells of 'answers' look like several answers in one text, such as {shown(several[0])}, "
            'and count as one: write several as a list of JSON, ["A", "B"]',
            SemcalWarning,
            stacklevel=2,
        )


def rename(rows: Iterable[Row | RowError], columns: Mapping[str, str]) -> Iterator[Row | RowError]:
    """Rename the columns of rows to ours, in place; a column that had that name before is dropped."""
    names = {theirs: ours for ours, theirs in columns.items() if ours != theirs}
    for row in rows:
        if isinstance(row, Row) and (here := {key: names[key] for key in row.data if key in names}):
            gone = here.values() - here.keys()
            data = {here.get(key, key): value for key, value in row.data.items() if key not in gone}
            yield Row(row.line, data)
        else:
            yield row


# ---- CSV, TSV and Parquet ----------------------------------------------------------------------------------

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
#: Characters of the header from which the delimiter is found.
WIDEST = 100_000


class _Lines:
    """The lines of a file for csv.reader, counted; a record that grows too long is an error."""

    def __init__(self, handle: TextIO) -> None:
        self._handle = handle
        self.number = 0
        self.size = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._handle.readline(jsonl.LONGEST + 1)
        if not line:
            raise StopIteration
        self.number += 1
        self.size += len(line)
        if self.size > jsonl.LONGEST:
            while line and not line.endswith("\n"):
                line = self._handle.readline(jsonl.LONGEST)
            raise csv.Error(f"longer than {jsonl.LONGEST} characters")
        return line


def find_delimiter(header: str, *, usual: str = ",", names: Collection[str] = ()) -> str:
    """Return the delimiter that gives a header line the most known `names` (lower case), then the most cells.

    The `usual` delimiter, that of the file's ending, wins ties.

    >>> find_delimiter("question;answers, all;level"), find_delimiter("question")
    (';', ',')
    """

    def score(delimiter: str) -> tuple[int, int, bool]:
        cells = next(csv.reader([header], delimiter=delimiter), [])
        known = sum(cell.strip().lower() in names for cell in cells)
        return known, len(cells), delimiter == usual

    return max(DELIMITERS, key=score)


def read_delimited(
    handle: TextIO, path: Path, *, usual: str, names: Collection[str], notify: Notify | None = None
) -> Iterator[Row | RowError]:
    """Yield the rows of a file, opened with newline="", whose first line names the columns.

    `usual` and `names` as for `find_delimiter`; `notify` is told of a delimiter that is not the usual one.
    InputError if the first line cannot be read, or names two columns alike.
    """
    first = next(filter(str.strip, iter(partial(handle.readline, WIDEST), "")), "")
    delimiter = find_delimiter(first, usual=usual, names=names)
    if delimiter != usual and notify:
        notify(f"{path}: cells are separated by {DELIMITERS[delimiter]}")
    handle.seek(0)
    lines = _Lines(handle)
    records = _records(lines, delimiter)
    header = next(records, None)
    if header is None:
        return
    if isinstance(header, RowError):
        raise InputError(f"the first line of {path} must name the columns: {header.reason}")
    columns = _columns(header[1], path)
    for record in records:
        yield record if isinstance(record, RowError) else _delimited_row(columns, *record, lines.number)


def _columns(cells: list[str], path: Path) -> list[str]:
    """The columns' names; a column without one is named by its number."""
    if fault := encoding_fault("".join(cells)):
        raise InputError(f"the first line of {path}, which names the columns, is {fault}")
    names = [cell.strip() or f"column {place}" for place, cell in enumerate(cells, start=1)]
    check_different(names, path)
    return names


def encoding_fault(text: str) -> str:
    """Return what is wrong with a text read with "surrogateescape" that is not UTF-8; "" if it is."""
    found = None if text.isascii() else re.search("[\udc80-\udcff]", text)
    return f"not UTF-8 (byte 0x{ord(found[0]) - 0xDC00:x}): save the file as UTF-8" if found else ""


def _records(lines: _Lines, delimiter: str) -> Iterator[tuple[int, list[str]] | RowError]:
    """Cells of every record that is not blank, with the line on which it starts."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        line, lines.size = lines.number + 1, 0
        try:
            cells = _next_cells(reader)
        except csv.Error as error:
            reason = f'not CSV ({error}): cells with quotes are written "like ""this"""'
            yield _bad(line, reason, lines.number)
            continue
        if cells is None:
            return
        if cells:
            yield line, cells


def _bad(first: int, reason: str, last: int) -> RowError:
    """The error of a record, with the lines that an open quote has taken into it."""
    if last > first:
        lines = f"line {last}" if last == first + 1 else f"lines {first + 1} to {last}"
        reason = f"a quote opened in line {first} and not closed there includes {lines}; {reason}"
    return RowError(first, reason, last=last)


def _next_cells(reader: Iterator[list[str]]) -> list[str] | None:
    """The next record. A cell may hold a whole book: the csv module's limit is lifted while it reads."""
    limit = csv.field_size_limit(2**31 - 1)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(limit)


def _delimited_row(names: list[str], line: int, cells: list[str], last: int) -> Row | RowError:
    if len(cells) != len(names):
        reason = f"expected {len(names)} cells ({', '.join(names)[:200]}), got {len(cells)}"
        return _bad(line, reason, last)
    row = Row(line, dict(zip(names, cells)))
    for name, cell in row.data.items():
        if fault := encoding_fault(cell):
            return row.error(f"{shown(name)} is {fault}")
    return row


def read_parquet(path: Path) -> Iterator[Row | RowError]:
    """Yield the rows of a Parquet file, numbered from 1.

    InputError if it is no Parquet file or has two columns of one name, MissingExtraError without pyarrow.
    """
    arrow, parquet = _pyarrow()
    numbers = count(1)
    try:
        with parquet.ParquetFile(path) as file:
            check_different(file.schema_arrow.names, path)
            for batch in file.iter_batches(batch_size=1024):
                for index in range(batch.num_rows):
                    yield _parquet_row(batch.slice(index, 1), next(numbers))
    except UnicodeDecodeError as error:
        raise InputError(
            f"the name of a column of {path} is not UTF-8 ({error.reason}): write the file again with another"
        ) from error
    except (arrow.ArrowException, OSError) as error:
        raise InputError(f"{path} is not a Parquet file that can be read: {error}") from error


def _parquet_row(row: Any, number: int) -> Row | RowError:
    cells: dict[str, Any] = {}
    bad = None
    for name in row.schema.names:
        try:
            cells[name] = json_value(row.column(name).to_pylist()[0])
        except UnicodeDecodeError as error:
            bad = bad or f"{shown(name)} is not UTF-8 ({error.reason}): write the file with texts in UTF-8"
        except OverflowError:
            bad = bad or f"{shown(name)} holds a date outside the years 1 to 9999: mend it, or leave it out"
        except (TypeError, ValueError) as error:  # a ValueError of pyarrow among them
            bad = bad or f"{shown(name)} cannot be read ({error}): leave that column out"
    return row_of(number, cells) if bad is None else Row(number, cells).error(bad)


def json_value(cell: Any) -> Any:
    """Return a cell of a table as a JSON value: dates in ISO 8601, decimals as numbers, arrays as lists.

    TypeError for what JSON cannot hold.
    """
    if isinstance(cell, (date, time)):
        return cell.isoformat()
    if isinstance(cell, Decimal):
        return float(cell)
    if isinstance(cell, Mapping):
        return {str(key): json_value(value) for key, value in cell.items()}
    if isinstance(cell, (list, tuple)):
        return [json_value(value) for value in cell]
    if cell is None or isinstance(cell, (str, int, float)):
        return cell
    if hasattr(cell, "tolist"):  # NumPy's numbers and arrays
        return json_value(cell.tolist())
    raise TypeError(f"a cell holds {type(cell).__name__}, which JSON cannot hold")


def _pyarrow() -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "data") from error
    return pyarrow, pyarrow.parquet
