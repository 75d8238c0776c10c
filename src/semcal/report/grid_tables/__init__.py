"""The tables of a grid run as plain data, made from results.json alone, and written in three formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from semcal.report.grid_tables.further_tables import further_tables
from semcal.report.grid_tables.growth_tables import growth_tables
from semcal.report.grid_tables.paper_tables import paper_tables
from semcal.report.grid_tables.remedy_tables import remedy_tables
from semcal.report.grid_tables.token_tables import token_tables
from semcal.report.published import published_tables
from semcal.report.tables import Table, deviation_table

__all__ = ["grid_tables"]


def grid_tables(results: Mapping[str, Any]) -> list[Table]:
    """Every table of a run: the paper's in its order, published numbers beside ours, and what goes beyond.

    Parameters
    ----------
    results : mapping
        The content of results.json (schema 3).
    """
    deviations = deviation_table(results)
    beyond = [
        *further_tables(results),
        *token_tables(results),
        *remedy_tables(results),
        *growth_tables(results),
        *([deviations] if deviations else []),
    ]
    tables = [*paper_tables(results), *published_tables(results), *beyond]
    note = clusters_in_words(results)
    return [_noted(table, note) if "over questions" in table.caption else table for table in tables]


def _noted(table: Table, note: str) -> Table:
    return replace(table, caption=f"{table.caption}. {note}") if note else table


def clusters_in_words(results: Mapping[str, Any]) -> str:
    """Of which data sets intervals resample groups of questions, and how many; "" where none do."""
    of = [
        f"{row['dataset']} ({row['test_groups']} groups)"
        for row in results["analyses"]["splits"]
        if "test_groups" in row
    ]
    return f"Questions of one passage or group are resampled together: {', '.join(of)}" if of else ""
