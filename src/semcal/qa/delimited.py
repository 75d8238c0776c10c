"""Rows of CSV and TSV: the delimiter is found from the header, bad records are reported."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import TextIO

from semcal.errors import InputError, RowError
from semcal.qa.columns import Tell, check_different
from semcal.records import Row, jsonl

__all__ = ["find_delimiter", "read_delimited"]

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
    """Return what separates the cells of a header line.

    Parameters
    ----------
    header : str
        The first line.
    usual : str
        The one that the file's ending means: taken where nothing speaks for another.
    names : collection of str
        Names of columns, in lower case, that are looked for: what makes more of them stand alone is the
        delimiter; of equal ones, what makes more cells.

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
    handle: TextIO, path: Path, *, usual: str, names: Collection[str], tell: Tell | None = None
) -> Iterator[Row | RowError]:
    """Yield the rows of an open file whose first line names the columns.

    Parameters
    ----------
    handle : TextIO
        Opened with newline="".
    path : Path
        For messages.
    usual, names
        As for `find_delimiter`.
    tell : callable, optional
        Is told of a delimiter that is not the usual one.

    Raises
    ------
    InputError
        If the first line cannot be read, or names two columns alike.
    """
    first = next(filter(str.strip, iter(partial(handle.readline, WIDEST), "")), "")
    delimiter = find_delimiter(first, usual=usual, names=names)
    if delimiter != usual and tell:
        tell(f"{path}: cells are separated by {DELIMITERS[delimiter]}")
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
        yield record if isinstance(record, RowError) else _row(columns, *record, lines.number)


def _columns(cells: list[str], path: Path) -> list[str]:
    """The columns' names; one without a name is called by its place."""
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
    """What is wrong with a record, and which lines a quote has taken into it."""
    if last > first:
        lines = f"line {last}" if last == first + 1 else f"lines {first + 1} to {last}"
        reason = f"a quote that opens in line {first} and is not closed there swallowed {lines}; {reason}"
    return RowError(first, reason, last=last)


def _next_cells(reader: Iterator[list[str]]) -> list[str] | None:
    """The next record. A cell may hold a whole book: the csv module's limit is lifted while it reads."""
    limit = csv.field_size_limit(2**31 - 1)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(limit)


def _row(names: list[str], line: int, cells: list[str], last: int) -> Row | RowError:
    if len(cells) != len(names):
        reason = f"expected {len(names)} cells ({', '.join(names)[:200]}), got {len(cells)}"
        return _bad(line, reason, last)
    return Row(line, dict(zip(names, cells)))
