"""The tables of a grid run as plain data, made from results.json alone, and written in three formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semcal.report.grid_tables.further_tables import further_tables
from semcal.report.grid_tables.paper_tables import paper_tables
from semcal.report.tables import Table, deviation_table

__all__ = ["grid_tables"]


def grid_tables(results: Mapping[str, Any]) -> list[Table]:
    """Every table of a run: the paper's in its order, then what goes beyond it.

    Parameters
    ----------
    results : mapping
        The content of results.json (schema 2).
    """
    deviations = deviation_table(results)
    return [*paper_tables(results), *further_tables(results), *([deviations] if deviations else [])]
