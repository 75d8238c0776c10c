"""Metrics as tables for a terminal."""

from __future__ import annotations

import re
from typing import Any

from rich.table import Table
from rich.text import Text

__all__ = ["metrics_tables"]


def _shown(value: Any) -> str:
    if value is None or value != value:
        return "–"
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, list):
        return "[" + ", ".join("–" if item is None else f"{item:.3f}" for item in value) + "]"
    return str(value)


def metrics_tables(results: list[dict[str, Any]], width: int) -> list[Table]:
    """Metrics down, measures across: as many tables as it takes for each to fit a width of characters."""
    rows = _rows(max(results, key=len))
    shown = [[_metric(result, *row) for row in rows] for result in results]
    names = [key if inner is None else f"{key} {inner}" for key, inner in rows]
    heads = [str(result.get("measure", "value")) for result in results]
    first = max(map(len, ["metric", *names]))
    widths = [max(map(len, [head, *column])) + 1 for head, column in zip(heads, shown)]
    tables, part = [], [0]
    for number in range(1, len(results) + 1):
        if number < len(results) and first + sum(widths[i] for i in [*part, number]) <= width:
            part.append(number)
        else:
            tables.append(_table(names, [heads[i] for i in part], [shown[i] for i in part]))
            part = [number]
    return tables


def _rows(result: dict[str, Any]) -> list[tuple[str, str | None]]:
    """What stands in the rows: a metric, or a metric at one of its places."""
    return [
        (key, inner)
        for key, value in result.items()
        if key not in ("measure", "se", "interval")
        for inner in (value if isinstance(value, dict) else (None,))
    ]


def _metric(result: dict[str, Any], key: str, inner: str | None) -> str:
    """A value, with its standard error and interval where there are some: 0.0940 ±.0150 [.064, .124]."""
    value = result.get(key) if inner is None else (result.get(key) or {}).get(inner)
    error, interval = (result.get(kind, {}).get(key) for kind in ("se", "interval"))
    if inner is not None or interval is None:
        return _shown(value)
    return f"{_shown(value)} ± {_short(error)} [{_short(interval[0])}, {_short(interval[1])}]"


def _short(value: float | None) -> str:
    return "–" if value is None or value != value else re.sub(r"^(-?)0\.", r"\1.", f"{value:.3f}")


def _table(names: list[str], heads: list[str], columns: list[list[str]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for number, head in enumerate(["metric", *heads]):
        table.add_column(Text(head), justify="right" if number else "left", overflow="fold")
    for row in zip(names, *columns):
        table.add_row(*row)
    return table
