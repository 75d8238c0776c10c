"""The paper's layout of a table of methods: rows are data sets × methods, columns metrics × measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from semcal.report.tables import Cell, Column, Table, mark, number

__all__ = ["Block", "columns_of", "in_order", "index", "method_table", "over_runs_cell"]

Row = Mapping[str, Any]
#: The paper's order of methods.
ORDER = ("Base", "SE", "TS", "Platt", "ATS")
#: The paper's order of measures in its tables.
COLUMNS = ("E-SC", "L-SC", "ML-SC", "B-SC", "IC-SC", "T-SC", "G-SC")


@dataclass(frozen=True)
class Block:
    """The columns of one metric: its heading, its cell in a row of an analysis, and which way it counts.

    Attributes
    ----------
    title : str
    cell : callable
        A row of the analysis → the entry over runs, or a number.
    larger : bool or None
        Whether larger is better; None marks nothing.
    """

    title: str
    cell: Callable[[Row], Any]
    larger: bool | None


def index(rows: Sequence[Row], *keys: str) -> dict[tuple[Any, ...], Row]:
    """The rows by some of their values."""
    return {tuple(row[key] for key in keys): row for row in rows}


def in_order(methods: Sequence[str]) -> list[str]:
    """Methods in the paper's order, others after them.

    Examples
    --------
    >>> in_order(["ATS", "TS-grid", "TS", "Base"])
    ['Base', 'TS', 'ATS', 'TS-grid']
    """
    return sorted(methods, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


def columns_of(measures: Sequence[str]) -> list[str]:
    """Measures in the order in which the paper's tables have them.

    Examples
    --------
    >>> columns_of(["T-SC", "IC-SC", "E-SC"])
    ['E-SC', 'IC-SC', 'T-SC']
    """
    return [name for name in COLUMNS if name in measures]


def over_runs_cell(found: Any, digits: int = 3) -> Cell:
    """A cell of an entry over runs (mean, standard error, interval), of a number, or of nothing."""
    if not isinstance(found, Mapping):
        return number(found, digits)
    cell = number(found["mean"], digits)
    if cell.value is None:
        return cell
    interval = found.get("interval")
    return replace(cell, error=found.get("se"), interval=tuple(interval) if interval else None)


def method_table(
    rows: Sequence[Row],
    *,
    name: str,
    caption: str,
    model: str,
    datasets: Sequence[str],
    methods: Sequence[str],
    measures: Sequence[str],
    blocks: Sequence[Block],
    underline: bool = False,
    extra: Block | None = None,
) -> Table:
    """Lay out one model: rows data set × method, for each block a column a measure.

    Parameters
    ----------
    rows : sequence of mapping
        Of an analysis, by model, dataset, method and measure.
    underline : bool
        Whether the best of a data set (over methods and measures of a block) is marked as well.
    extra : Block, optional
        A last column, of the first measure, which its heading names.
    """
    found = index(rows, "model", "dataset", "method", "measure")
    columns = [Column("Data set"), Column("Method")]
    columns += [Column(measure, block.title) for block in blocks for measure in measures]
    columns += [Column(f"{extra.title}, {measures[0]}")] if extra else []
    body: list[tuple[Cell, ...]] = []
    for dataset in datasets:
        grid = {
            block.title: [
                [_cell(found.get((model, dataset, method, measure)), block) for method in methods]
                for measure in measures
            ]
            for block in blocks
        }
        marked = [_marked(grid[block.title], block, underline) for block in blocks]
        for i, method in enumerate(methods):
            cells = [column[i] for of_block in marked for column in of_block]
            last = [_cell(found.get((model, dataset, method, measures[0])), extra)] if extra else []
            body.append((Cell(dataset), Cell(method), *cells, *last))
    return Table(name, caption, tuple(columns), tuple(body), heads=2)


def _cell(row: Row | None, block: Block) -> Cell:
    return over_runs_cell(None if row is None else block.cell(row))


def _marked(columns: list[list[Cell]], block: Block, underline: bool) -> list[list[Cell]]:
    """The columns [measure][method] of one block and data set, with the best of each column marked."""
    if block.larger is None:
        return columns
    marked = [mark(column, larger=block.larger) for column in columns]
    known = [cell.value for column in columns for cell in column if cell.value is not None]
    if not underline or not known:
        return marked
    overall = number((max if block.larger else min)(known)).text
    return [[replace(c, overall=c.best and c.text == overall) for c in column] for column in marked]
