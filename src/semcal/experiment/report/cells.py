"""Tables as plain data: their cells, and how rows of results become them.

The page shows a table as HTML, the command line with rich, `table_writers` as Markdown, LaTeX and CSV.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from semcal.measures import MEASURES
from semcal.metrics import METRICS
from semcal.recalibration.methods import RECALIBRATORS

MISSING = "–"

Row = Mapping[str, Any]
Rows = Sequence[Row]
Results = Mapping[str, Any]  # the content of results.json


@dataclass(frozen=True)
class Cell:
    """One entry of a table."""

    text: str  # as it is shown; "–" for what is undefined
    value: float | None = None  # the unrounded number; None for words and for what is undefined
    error: float | None = None  # its standard error, over questions or over runs as the caption says
    best: bool = False  # the best of its group
    interval: tuple[float, float] | None = None  # its 95 % interval over questions
    overall: bool = False  # the best of all groups of its data set, which are shown underlined
    tied: bool = False  # another of its group shows the same digits and is marked as well
    less_accurate: bool = False  # of a method that is significantly less accurate than Base: never the best

    @property
    def sign(self) -> str:
        """What stands behind the number."""
        return "†" if self.less_accurate else "⁼" if self.tied else ""

    @property
    def error_text(self) -> str:
        """The standard error as it is shown, "" where there is none."""
        return "" if self.error is None else f"±{self.error:.3f}"

    @property
    def interval_text(self) -> str:
        """The interval as it is shown, with as many digits as the number; "" where there is none."""
        if self.interval is None:
            return ""
        digits = len(self.text.rstrip("*)").partition(".")[2])
        return f"[{', '.join(number(end, digits).text for end in self.interval)}]"


@dataclass(frozen=True)
class Column:
    """The heading of a column, and the wider heading above it that it belongs to."""

    title: str
    group: str = ""


@dataclass(frozen=True)
class Table:
    """A table as plain data."""

    name: str  # fit for a file or an anchor
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    heads: int = 1  # how many leading columns name the row


@dataclass(frozen=True)
class Field:
    """A column of a table of results, and what it shows of a row."""

    title: str
    value: str | tuple[str, ...] | Callable[[Row], Any]  # a key, a path of keys, or a function; see `cell_of`
    group: str = ""
    digits: int = 3
    where: Row = field(default_factory=dict)  # in a pivot: values by which it finds its row
    larger: bool | None = None  # in a pivot: whether larger is better; None marks no best one

    def cell(self, row: Row | None) -> Cell:
        """What the column shows of a row, a dash of None."""
        if row is None:
            return number(None)
        key = (self.value,) if isinstance(self.value, str) else self.value
        cell = cell_of(_follow(row, key) if isinstance(key, tuple) else key(row), self.digits)
        return replace(cell, less_accurate=True) if row.get("less_accurate") else cell


def _follow(row: Row | None, path: Sequence[str]) -> Any:
    """The value at the end of a path of keys; None where the path ends early."""
    for key in path:
        row = None if row is None else row.get(key)
    return row


def number(value: float | int | None, digits: int = 3) -> Cell:
    """A cell with a number, or with a dash for None.

    >>> number(0.06449).text, number(2000).text, number(None).text, number(-0.5, 1).text
    ('0.064', '2000', '–', '−0.5')
    """
    if value is None:
        return Cell(MISSING)
    text = str(value) if isinstance(value, int) else f"{value:.{digits}f}"
    return Cell(text.replace("-", "−"), float(value))


def cell_of(value: Any, digits: int = 3) -> Cell:
    """A cell of words, of a number, of an entry over runs (mean, standard error, interval), or of nothing."""
    if isinstance(value, Cell):
        return value
    if isinstance(value, str):
        return Cell(value)
    if not isinstance(value, Mapping):
        return number(value, digits)
    cell = number(value["mean"], digits)
    if cell.value is None:
        return cell
    interval = value.get("interval")
    return replace(cell, error=value.get("se"), interval=tuple(interval) if interval else None)


def counted(n: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "row"), counted(2, "row")
    ('1 row', '2 rows')
    """
    return f"{n} {noun}{'' if n == 1 else 's'}"


def in_order(methods: Sequence[str]) -> list[str]:
    """Methods in the paper's order, others after them.

    >>> in_order(["ATS", "TS-grid", "TS", "Base"])
    ['Base', 'TS', 'ATS', 'TS-grid']
    """

    def place(name: str) -> float:
        return RECALIBRATORS[name].place if name in RECALIBRATORS else math.inf

    return sorted(methods, key=place)


def metric_title(metric: str) -> str:
    """How a metric of results.json is written for readers.

    >>> metric_title("brier"), metric_title("SE_conf")
    ('Brier score', 'SE_conf')
    """
    return METRICS[metric].title if metric in METRICS else metric


def larger_is_better(metric: str) -> bool:
    """Whether the larger value of a metric is known to be the better one."""
    return metric in METRICS and bool(METRICS[metric].larger_is_better)


def measures_in_order(measures: Sequence[str]) -> list[str]:
    """Measures in the order in which the paper's tables have them, others after these.

    >>> measures_in_order(["my own", "T-SC", "IC-SC", "E-SC"])
    ['E-SC', 'IC-SC', 'T-SC', 'my own']
    """
    return sorted(measures, key=lambda name: MEASURES[name].place if name in MEASURES else math.inf)


def mark(cells: Sequence[Cell], *, larger: bool) -> list[Cell]:
    """Mark the best of a group as it is shown; if several show the same digits, all of them, as tied.

    What is of a method less accurate than Base is never the best.
    """
    candidates = [cell for cell in cells if cell.value is not None and not cell.less_accurate]
    if not candidates or sum(cell.value is not None for cell in cells) < 2:
        return list(cells)
    best = (max if larger else min)(candidates, key=lambda cell: cell.value or 0.0).text
    tied = sum(cell.text == best for cell in candidates) > 1
    return [
        replace(cell, best=True, tied=tied) if not cell.less_accurate and cell.text == best else cell
        for cell in cells
    ]


def pivot(
    name: str,
    caption: str,
    rows: Iterable[Row],
    index: Mapping[str, str],
    fields: Sequence[Field],
    *,
    heads: Iterable[tuple[str, ...]] | None = None,
    underline: bool = False,
) -> Table:
    """Lay rows of results out: a table row for each value of `index`, a column for each field.

    `index` maps the keys whose values name a table row to their headings; `heads` are the values of each
    table row, by default those that there are. A field shows, of the results with these values, the first
    with those of its `where`. The best of a field that says which way it counts is marked among the rows that
    share all values of `index` but the last; with `underline` so is the best of these rows over all fields of
    a group.

    >>> rows = [{"method": m, "measure": "E-SC", "ace": ace} for m, ace in (("SE", 0.1234), ("TS", 0.05))]
    >>> fields = [Field("E-SC", "ace", "ACE", where={"measure": "E-SC"}, larger=False)]
    >>> [[cell.text for cell in row] for row in pivot("t", "", rows, {"method": "Method"}, fields).rows]
    [['SE', '0.123'], ['TS', '0.050']]
    """
    by_head: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        by_head.setdefault(tuple(row[key] for key in index), []).append(row)
    body: list[tuple[Cell, ...]] = []
    for _, group in groupby(by_head if heads is None else heads, key=lambda head: head[:-1]):
        names = list(group)
        columns = [
            [field.cell(_first(by_head.get(head, ()), field.where)) for head in names] for field in fields
        ]
        marked = _underlined(fields, columns) if underline else _marked(fields, columns)
        body += [(*map(Cell, head), *cells) for head, *cells in zip(names, *marked)]
    headings = (*map(Column, index.values()), *(Column(field.title, field.group) for field in fields))
    return Table(name, caption, headings, tuple(body), heads=len(index))


def _first(rows: Iterable[Row], where: Row) -> Row | None:
    return next((row for row in rows if all(row[key] == value for key, value in where.items())), None)


def _marked(fields: Sequence[Field], columns: Sequence[list[Cell]]) -> list[list[Cell]]:
    return [
        column if field.larger is None else mark(column, larger=field.larger)
        for field, column in zip(fields, columns)
    ]


def _underlined(fields: Sequence[Field], columns: Sequence[list[Cell]]) -> list[list[Cell]]:
    """Columns with their best marked, and the best of each group of columns as that overall."""
    marked = _marked(fields, columns)
    for group in dict.fromkeys(column.group for column in fields if column.larger is not None):
        places = [i for i, column in enumerate(fields) if column.group == group]
        values = [cell.value for i in places for cell in marked[i] if cell.best and cell.value is not None]
        if values:
            overall = number((max if fields[places[0]].larger else min)(values)).text
            for i in places:
                marked[i] = [replace(c, overall=c.best and c.text == overall) for c in marked[i]]
    return marked


def means_of(rows: Iterable[Row], keys: Sequence[str], **values: tuple[str, ...]) -> list[Row]:
    """A row for each value of the keys, with the mean of the known values at some paths; None without any.

    >>> means_of([{"a": 1, "b": 2.0}, {"a": 1, "b": None}], ["a"], mean=("b",))
    [{'a': 1, 'mean': 2.0}]
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    means: list[Row] = []
    for head, group in groups.items():
        defined = {
            name: [value for row in group if (value := _follow(row, path)) is not None]
            for name, path in values.items()
        }
        averages = {name: sum(at) / len(at) if at else None for name, at in defined.items()}
        means.append(dict(zip(keys, head)) | averages)
    return means
