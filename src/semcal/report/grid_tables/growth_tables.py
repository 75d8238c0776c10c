"""The table beyond the paper's of how the work of clustering grows with the number of draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from semcal.report.tables import Cell, Column, Table, number

__all__ = ["growth_tables"]


def growth_tables(results: Mapping[str, Any]) -> list[Table]:
    """What clustering has to compare at each number of draws; none where all rows have as many."""
    rows = results["analyses"].get("growth")
    return [_growth(rows)] if rows else []


def _growth(rows: Sequence[Mapping[str, Any]]) -> Table:
    numbers = sorted({draws for row in rows for draws in row["draws"]})
    return Table(
        "growth",
        "Ordered pairs of distinct answers to a question, which clustering compares at most, by number of "
        "draws m, and the b of m^b through them (all draws distinct: 2 and a little more); of distinct "
        "answers and meanings the b alone",
        (
            *map(Column, ("Model", "Data set", "Candidate")),
            *(Column(f"m = {draws}", "Pairs") for draws in numbers),
            *(Column(name, "b") for name in ("pairs", "distinct", "meanings")),
        ),
        tuple(
            (
                *(Cell(row[key]) for key in ("model", "dataset", "candidate")),
                *(number(_at(row, draws), 1) for draws in numbers),
                *(number(row[name]["exponent"], 2) for name in ("pairs", "distinct", "meanings")),
            )
            for row in rows
        ),
        heads=3,
    )


def _at(row: Mapping[str, Any], draws: int) -> float | None:
    found: Mapping[int, float] = dict(zip(row["draws"], row["pairs"]["mean"]))
    return found.get(draws)
