"""Results as tables for a terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from semcal.report.tables import Cell, summary_table

__all__ = ["comparison_table", "metrics_table"]


def _shown(value: Any) -> str:
    if value is None or value != value:
        return "–"
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, list):
        return "[" + ", ".join("–" if item is None else f"{item:.3f}" for item in value) + "]"
    return str(value)


def metrics_table(results: list[dict[str, Any]]) -> Table:
    """Metrics down, measures across."""
    table = Table(box=None, pad_edge=False)
    table.add_column("metric", overflow="fold")
    for result in results:
        table.add_column(Text(str(result.get("measure", "value"))), justify="right", overflow="fold")
    fullest = max(results, key=len)
    for key, first in fullest.items():
        if key == "measure":
            continue
        if isinstance(first, dict):
            for inner in first:
                table.add_row(f"{key} of {inner}", *(_shown((r.get(key) or {}).get(inner)) for r in results))
        else:
            table.add_row(key, *(_shown(result.get(key)) for result in results))
    return table


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
