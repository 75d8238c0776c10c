"""Rows of CSV, TSV and Parquet files; a record or row that cannot be read is reported."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator
from datetime import date, time
from decimal import Decimal
from functools import partial
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from semcal.errors import InputError, MissingExtraError, RowError, shown
from semcal.qa.columns import Notify, check_different
from semcal.records import Row, jsonl, row_of

__all__ = ["find_delimiter", "read_delimited", "read_parquet"]

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

    Examples
    --------
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
    names = [cell.strip() or f"column {place}" for place, cell in enumerate(cells, start=1)]
    check_different(names, path)
    return names


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
    return Row(line, dict(zip(names, cells)))


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
    except (arrow.ArrowException, OSError) as error:
        raise InputError(f"{path} is not a Parquet file that can be read: {error}") from error


def _parquet_row(row: Any, number: int) -> Row | RowError:
    cells: dict[str, Any] = {}
    bad = None
    for name in row.schema.names:
        try:
            cells[name] = _json_value(row.column(name).to_pylist()[0])
        except UnicodeDecodeError as error:
            bad = bad or f"{shown(name)} is not UTF-8 ({error.reason}): write the file with texts in UTF-8"
        except OverflowError:
            bad = bad or f"{shown(name)} holds a date outside the years 1 to 9999: mend it, or leave it out"
        except (TypeError, ValueError) as error:  # a ValueError of pyarrow among them
            bad = bad or f"{shown(name)} cannot be read ({error}): leave that column out"
    return row_of(number, cells) if bad is None else Row(number, cells).error(bad)


def _json_value(cell: Any) -> Any:
    """A Parquet cell as a JSON value: dates and times in ISO 8601, decimals as numbers."""
    if isinstance(cell, (date, time)):
        return cell.isoformat()
    if isinstance(cell, Decimal):
        return float(cell)
    if isinstance(cell, dict):
        return {str(key): _json_value(value) for key, value in cell.items()}
    if isinstance(cell, (list, tuple)):
        return [_json_value(value) for value in cell]
    if cell is None or isinstance(cell, (str, int, float)):
        return cell
    raise TypeError(f"a cell holds {type(cell).__name__}, which JSON cannot hold")


def _pyarrow() -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "data") from error
    return pyarrow, pyarrow.parquet
