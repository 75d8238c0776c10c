"""The whole report of a run, from its folder: results.json, tables, results.md, figures and the page."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from semcal.errors import StoreError
from semcal.experiment.analyses import analyse
from semcal.experiment.finished import FinishedRun, read_finished, read_results
from semcal.experiment.report.cells import Results, Table
from semcal.experiment.report.explorer import Explorer, begin_explorer
from semcal.experiment.report.page import PageFigure, page_figure, write_page
from semcal.experiment.report.report_figures import PlannedFigure, planned_figures, write_files
from semcal.experiment.report.report_tables import CLAIMS, REPORT_TABLES, less_accurate_in_words, write_tables
from semcal.experiment.report.summary import calibrated_findings, facts, headline_table
from semcal.experiment.report.table_writers import markdown, markdown_text
from semcal.files import dumps, read_object, writing
from semcal.workers import Executor, SerialExecutor

#: The tables and figures of a report, listed beside it, so that a later one can remove what is stale.
MANIFEST = "report-files.json"
FOLDERS = ("tables", "figures")


def remake(
    folder: Path, out: Path | None = None, executor: Executor[Any] | None = None, *, figures: bool = False
) -> Path:
    """Analyse the stored samples of a run and build everything from that; parameters are those of `build`."""
    executor = executor or SerialExecutor(None)
    packing = begin_explorer(read_finished(Path(folder)), executor)
    analyse(folder, out, executor)
    return build(folder, out, executor, packing, figures=figures)


def build(
    folder: Path,
    out: Path | None = None,
    executor: Executor[Any] | None = None,
    packing: Callable[[], Explorer] | None = None,
    *,
    figures: bool = False,
) -> Path:
    """Write the tables, results.md, the figures and the page of a run whose results.json is there.

    Tables and figures of an older report that this one has not are removed (`renew_manifest`).

    results.json lies in `out`, where everything is written, by default the run folder. `executor` draws the
    figures and packs the questions, by default this process; `packing` gives the packed questions, where that
    has begun (`begin_explorer`). With `figures` they are written as PDF and PNG even if the run's settings
    leave them to the page. Raises as `read_finished`, also if results.json is missing, damaged or of another
    schema.
    """
    target, executor = Path(folder) if out is None else Path(out), executor or SerialExecutor(None)
    run, results = read_finished(Path(folder)), read_results(target)
    planned = list(enumerate(planned_figures(run, results)))
    in_files = figures or (run.settings.get("extras") or {}).get("figure_files", True)
    drawing = executor.map(
        partial(_drawn, folder=target / "figures" if in_files else None), planned, stage="report"
    )
    written = write_tables(run, results, target / "tables")
    with writing(target / "results.md") as handle:
        handle.write(results_markdown(run, results))
    explorer = (packing or begin_explorer(run, executor))()
    figures_drawn = [entry for entry in drawing if entry is not None]
    page = write_page(run, results, [figure for figure, _ in figures_drawn], explorer, target)
    renew_manifest(target, [*written, *(path for _, paths in figures_drawn for path in paths)])
    return page


def _drawn(numbered: tuple[int, PlannedFigure], folder: Path | None) -> tuple[PageFigure, list[Path]] | None:
    """A figure drawn once, for its files, if there is a folder for them, and for the page."""
    number, planned = numbered
    figure = planned.drawn()
    if figure is None:
        return None
    return page_figure(figure, f"f{number}"), [] if folder is None else write_files(figure, folder)


# ---- results.md -------------------------------------------------------------------------------------------


def results_markdown(run: FinishedRun, results: Results) -> str:
    """Return what changed, the contrasts behind the claims, and the main tables without their intervals."""
    entries = REPORT_TABLES.values()
    deciding = [table for entry in entries if entry.decides for table in entry.tables(results)]
    listed = [table for entry in entries if entry.in_markdown for table in entry.tables(results)]
    parts = [
        markdown_text(facts(run, results), begins=True),
        *map(markdown_text, less_accurate_in_words(results)),
        "\n".join(f"- {markdown_text(finding.line)}" for finding in calibrated_findings(results)),
        _with_caption(headline_table(results)),
        *(f"## {CLAIMS.title}\n\n{_with_interval(table)}" for table in deciding),
        "## Tables",
        *map(_with_caption, listed),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _with_interval(table: Table) -> str:
    return f"{markdown_text(table.caption, begins=True)}\n\n{markdown(table)}"


def _with_caption(table: Table) -> str:
    """The table without its intervals, which its caption speaks of."""
    if not any(cell.interval for row in table.rows for cell in row):
        return _with_interval(table)
    rows = tuple(tuple(replace(cell, interval=None) for cell in row) for row in table.rows)
    caption = f"{table.caption.removesuffix('.')}. Here without the intervals."
    return _with_interval(replace(table, caption=caption, rows=rows))


# ---- What an older report left ---------------------------------------------------------------------------


def renew_manifest(folder: Path, written: Iterable[Path]) -> list[Path]:
    """Remove what an older report in the folder wrote and this one did not, and list what this one wrote.

    A file is removed only if the older list names it and it still holds the bytes that were written: what a
    user put there or edited stays. Returns what was removed; StoreError if that list is damaged.
    """
    listed = {path.relative_to(folder).as_posix(): _digest(path) for path in written}
    removed = [
        folder / name
        for name, digest in _older(folder).items()
        if name not in listed and (folder / name).is_file() and _digest(folder / name) == digest
    ]
    for path in removed:
        path.unlink()
    with writing(folder / MANIFEST) as handle:
        handle.write(dumps({"schema": 1, "files": listed}, indent=1) + "\n")
    return removed


def _older(folder: Path) -> dict[str, str]:
    """Name → checksum of what the last report listed; nothing where there was none."""
    path = folder / MANIFEST
    if not path.is_file():
        return {}
    remedy = "delete it and make the report again"
    files = read_object(path, remedy=remedy).get("files")
    if not isinstance(files, dict) or not all(map(_is_ours, files)):
        raise StoreError(f"{path} names files outside of {' and '.join(FOLDERS)}: {remedy}")
    return files


def _is_ours(name: str) -> bool:
    """Whether a name is that of a file right below one of the report's folders."""
    parts = PurePosixPath(name).parts
    return len(parts) == 2 and parts[0] in FOLDERS and parts[1] != ".."


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
