"""The whole report of a grid run, from its folder: tables, results.md, figures and the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from semcal.experiment.finished import read_finished
from semcal.report.grid_figures import GridFigure, grid_figures, write_files
from semcal.report.grid_markdown import write_markdown
from semcal.report.grid_page import write_page
from semcal.report.grid_results import read_results
from semcal.report.grid_tables.writing import write_tables
from semcal.report.listing import renew_listing

__all__ = ["build"]


def build(folder: Path, out: Path | None = None) -> Path:
    """Write the tables, results.md, the figures and the page of a run whose results.json is there.

    Tables and figures of an older report that this one has not are removed (`semcal.report.listing`).

    Parameters
    ----------
    folder : Path
        A run folder.
    out : Path, optional
        Where results.json lies and everything is written; the run folder by default.

    Returns
    -------
    Path
        The page, report.html.

    Raises
    ------
    InputError, StoreError
        As `read_finished`; also if results.json is missing, damaged or of another schema.
    """
    target = Path(folder) if out is None else Path(out)
    run, results = read_finished(Path(folder)), read_results(target)
    written = write_tables(run, results, target / "tables")
    write_markdown(run, results, target)
    figures = _written(grid_figures(run, results), target / "figures", written)
    page = write_page(run, results, figures, target)
    renew_listing(target, written)
    return page


def _written(figures: Iterator[GridFigure], folder: Path, written: list[Path]) -> Iterator[GridFigure]:
    """The figures, each written to its files as it goes by, so that it is drawn only once."""
    for figure in figures:
        written += write_files(figure, folder)
        yield figure
