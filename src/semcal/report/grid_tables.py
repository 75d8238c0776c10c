"""The tables of a grid run, made from results.json alone, and their files in three formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from semcal.experiment.analyses.audit import audit_sheet
from semcal.experiment.finished import FinishedRun
from semcal.records import writing
from semcal.report.cost_tables import cost_tables, growth_table
from semcal.report.further_tables import further_tables
from semcal.report.paper_tables import paper_tables
from semcal.report.published import published_tables
from semcal.report.results import read_environment
from semcal.report.table_writers import csv_lines, csv_text, markdown, markdown_text, table_latex
from semcal.report.tables import Table, deviation_table

__all__ = ["grid_tables", "resampled_groups", "write_tables"]


def grid_tables(results: Mapping[str, Any]) -> list[Table]:
    """Every table of a run: the paper's in its order, published numbers beside ours, and those beyond."""
    tables = [*paper_tables(results), *published_tables(results), *further_tables(results)]
    rest = (growth_table(results["analyses"].get("growth")), deviation_table(results))
    tables += [table for table in rest if table is not None]
    note = resampled_groups(results)
    if not note:
        return tables
    return [
        replace(table, caption=f"{table.caption}. {note}") if "over questions" in table.caption else table
        for table in tables
    ]


def resampled_groups(results: Mapping[str, Any]) -> str:
    """Of which data sets intervals resample groups of questions, and how many; "" where none do."""
    of = [
        f"{row['dataset']} ({row['test_groups']} groups)"
        for row in results["analyses"]["splits"]
        if "test_groups" in row
    ]
    return f"Questions of one passage or group are resampled together: {', '.join(of)}" if of else ""


def write_tables(run: FinishedRun, results: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write NAME.md, NAME.csv and NAME.tex of every table, and 12-audit.csv; returns their paths.

    Parameters
    ----------
    run : FinishedRun
        Its draws fill the sheet of the audit.
    results : mapping
        The content of results.json.
    folder : Path
        Is made if it is not there.
    """
    texts = {}
    for table in [*grid_tables(results), *cost_tables(results, read_environment(run.folder))]:
        caption = markdown_text(table.caption, begins=True)
        texts[f"{table.name}.md"] = f"{caption}\n\n{markdown(table)}\n"
        texts[f"{table.name}.csv"] = csv_text(table)
        texts[f"{table.name}.tex"] = f"{table_latex(table)}\n"
    texts["12-audit.csv"] = _audit(run)
    for name, text in texts.items():
        with writing(folder / name) as handle:
            handle.write(text)
    return [folder / name for name in texts]


def _audit(run: FinishedRun) -> str:
    """The sheet of the first model on the first closed-book data set (else the first one)."""
    closed = [name for name in run.datasets if not run.open_book(name)]
    sheet = audit_sheet(run, run.models[0], (closed or run.datasets)[0])
    rows = [
        {**row, "clusters": " || ".join(" | ".join(cluster) for cluster in row["clusters"])} for row in sheet
    ]
    return csv_lines([list(sheet[0]), *(list(row.values()) for row in rows)])
