"""results.md of a grid run: what it shows in words, and its main tables, for a page of documentation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from semcal.experiment.finished import FinishedRun
from semcal.records import writing
from semcal.report.further_tables import ablation_tables
from semcal.report.grid_headline import facts, headline, headline_table, rules_note
from semcal.report.grid_tables import grid_tables
from semcal.report.table_writers import markdown, markdown_text
from semcal.report.tables import Table

__all__ = ["results_markdown", "write_markdown"]

Results = Mapping[str, Any]

#: Tables that are shown, by the beginning of their names; all of them stand in tables/.
SHOWN = (
    *("03-main", "04-entropy-short", "02-accuracies", "07-temperatures", "09-ace-mcb", "11-volatility-mcb"),
    *("transfer-ace", "13-agreement", "deciding-rules", "01-splits", "deviations"),
)


#: Tables that stand beside findings, with their intervals.
BESIDE = ("remedies", "remedies-scores")


def write_markdown(run: FinishedRun, results: Results, folder: Path) -> Path:
    """Write results.md into a folder."""
    target = folder / "results.md"
    with writing(target) as handle:
        handle.write(results_markdown(run, results))
    return target


def results_markdown(run: FinishedRun, results: Results) -> str:
    """Return claims with their verdicts, and the main tables without their intervals."""
    parts = [
        f"{markdown_text(facts(run, results), begins=True)} {headline(results)}",
        _with_caption(headline_table(results)),
        "## What the paper claims, and what this run shows",
        rules_note(results),
        *map(_claim, results["claims"]),
        *_beyond(results),
        "## Tables",
        *map(_with_caption, _shown(results)),
    ]
    return "\n\n".join(parts) + "\n"


def _beyond(results: Results) -> list[str]:
    """What we asked besides, each with its tables; nothing where nothing was."""
    findings = results.get("findings") or []
    tables = [table for table in ablation_tables(results) if table.name in BESIDE] if findings else []
    title = ["## Beyond the paper"] if findings else []
    return [*title, *map(_claim, findings), *map(_with_interval, tables)]


def _claim(claim: Mapping[str, Any]) -> str:
    return (
        f"**{claim['verdict'].capitalize()}**: {claim['claim']} ({claim['source']}) "
        f"{markdown_text(claim['because'])} *{claim['rule']}*"
    )


def _shown(results: Results) -> Iterator[Table]:
    tables = grid_tables(results)
    for name in SHOWN:
        yield from (table for table in tables if table.name.startswith(name))


def _with_interval(table: Table) -> str:
    return f"{markdown_text(table.caption, begins=True)}\n\n{markdown(table)}"


def _with_caption(table: Table) -> str:
    """The table without its intervals, which its caption speaks of."""
    if not any(cell.interval for row in table.rows for cell in row):
        return _with_interval(table)
    rows = tuple(tuple(replace(cell, interval=None) for cell in row) for row in table.rows)
    caption = f"{table.caption.removesuffix('.')}. Here without the intervals."
    return _with_interval(replace(table, caption=caption, rows=rows))
