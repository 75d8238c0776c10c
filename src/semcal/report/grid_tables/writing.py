"""Every table of a run as Markdown, CSV and LaTeX, and the sheet of the audit."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from semcal.experiment.analyses.audit import audit_sheet
from semcal.experiment.finished import FinishedRun
from semcal.records import writing
from semcal.report.grid_costs import cost_tables
from semcal.report.grid_tables import grid_tables
from semcal.report.latex import latex
from semcal.report.results import read_environment
from semcal.report.tables import Cell, Table, markdown, markdown_text, one_line

__all__ = ["csv_text", "write_tables"]

_NUMBER = r"[-+−]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+−]?\d+)?\s?%?"
#: A number, or numbers that make an interval or carry an error: "−0.061", "-.1 to .2", "+.030 ± .012".
_NUMBERS = re.compile(rf"{_NUMBER}(?:\s*(?:to|[–…±,;])\s*{_NUMBER})*", re.IGNORECASE)
#: What a spreadsheet takes for a formula; it skips white space and knows full-width characters too.
_FORMULA = re.compile(r"[\s\ufeff\u200b]*[=+\-@＝＋－＠]")


def write_tables(run: FinishedRun, results: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write NAME.md, NAME.csv and NAME.tex of every table, and 12-audit.csv.

    Parameters
    ----------
    run : FinishedRun
        Its draws fill the sheet of the audit.
    results : mapping
        The content of results.json.
    folder : Path
        Is made if it is not there.

    Returns
    -------
    list of Path
        What was written.
    """
    written = []
    for table in [*grid_tables(results), *cost_tables(results, read_environment(run.folder))]:
        texts = {
            "md": f"{markdown_text(table.caption, begins=True)}\n\n{markdown(table)}\n",
            "csv": csv_text(table),
            "tex": f"{_latex(table)}\n",
        }
        for suffix, text in texts.items():
            written.append(_written(folder / f"{table.name}.{suffix}", text))
    return [*written, _written(folder / "12-audit.csv", _audit(run))]


def csv_text(table: Table) -> str:
    r"""The table in its layout, every number unrounded, with error and interval in columns of their own.

    Text stands in one line. Where it begins with =, +, - or @, behind white space too, a spreadsheet takes it
    for a formula: it gets an apostrophe before it, unless all of it is numbers: one, or an interval such as
    "-.1 to .2".

    Examples
    --------
    >>> from semcal.report.tables import Column
    >>> table = Table("t", "", (Column("Method"), Column("E-SC", "ACE")),
    ...     ((Cell("TS"), Cell("0.064", 0.0641, 0.012, True, (0.05, 0.08))),))
    >>> csv_text(table).splitlines()
    ['Method,ACE E-SC,ACE E-SC se,ACE E-SC low,ACE E-SC high', 'TS,0.0641,0.012,0.05,0.08']
    """
    places = range(len(table.columns))
    errors = [any(row[i].error is not None for row in table.rows) for i in places]
    intervals = [any(row[i].interval is not None for row in table.rows) for i in places]
    header, body = [], []
    for column, error, interval in zip(table.columns, errors, intervals):
        title = f"{column.group} {column.title}".strip()
        header += [title, *([f"{title} se"] * error), *([f"{title} low", f"{title} high"] * interval)]
    for row in table.rows:
        body.append(
            [entry for cell, *which in zip(row, errors, intervals) for entry in _entries(cell, *which)]
        )
    return _lines([header, *body])


def _entries(cell: Cell, error: bool, interval: bool) -> list[Any]:
    value = cell.text if cell.value is None else cell.value
    low, high = cell.interval or (None, None)
    return [value, *([cell.error] * error), *([low, high] if interval else [])]


def _latex(table: Table) -> str:
    """The table, and below it the same with intervals where there are any."""
    if not any(cell.interval for row in table.rows for cell in row):
        return latex(table)
    caption = table.caption.removesuffix(".")
    without = replace(table, caption=f"{caption}. Here without the intervals.")
    beside = replace(
        table,
        name=f"{table.name}-intervals",
        caption=f"{caption}. Here with the intervals over questions, without the errors over runs.",
    )
    return f"{latex(without)}\n\n{latex(beside, intervals=True)}"


def _audit(run: FinishedRun) -> str:
    """The sheet of the first model on the first closed-book data set (else the first one)."""
    closed = [name for name in run.datasets if not run.open_book(name)]
    rows = audit_sheet(run, run.models[0], (closed or run.datasets)[0])
    keys = list(rows[0])
    shown = [
        [" || ".join(" | ".join(c) for c in row[key]) if key == "clusters" else row[key] for key in keys]
        for row in rows
    ]
    return _lines([keys, *shown])


def _lines(rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([*map(_defused, row)] for row in rows)
    return text.getvalue()


def _defused(cell: Any) -> Any:
    """What no spreadsheet computes, in one line: see `csv_text`."""
    if not isinstance(cell, str):
        return cell
    text = one_line(cell)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBERS.fullmatch(text) else text


def _written(path: Path, text: str) -> Path:
    with writing(path) as handle:
        handle.write(text)
    return path
