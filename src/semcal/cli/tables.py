"""The results of `semcal demo` as tables for a terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from semcal.report.tables import Cell, summary_table

__all__ = ["comparison_table"]


def comparison_table(results: dict[str, Any], metric: str) -> Table:
    """Sets and methods down, measures across: one metric with its standard error over questions."""
    summary = summary_table(results, metrics=(metric,))
    better = "lower" if metric == "ace" else "higher"
    table = Table(box=None, pad_edge=False, title=f"{metric.upper()} ± standard error ({better} is better)")
    for number, column in enumerate(summary.columns):
        table.add_column(column.title, justify="left" if number < summary.heads else "right", no_wrap=True)
    for row in summary.rows:
        table.add_row(*(_cell(cell) for cell in row))
    return table


def _cell(cell: Cell) -> Text:
    error = "" if cell.error is None else " " + cell.error_text.replace("±0.", "±.")
    return Text.assemble((cell.text, "bold" if cell.best else ""), (error, "dim"))
