"""The whole report of a grid run, from its folder: tables, results.md, figures and the page."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from semcal.experiment.analyses import analyse
from semcal.experiment.finished import read_finished
from semcal.pipeline.crews import Alone, Crew
from semcal.report.grid_explorer import Explorer, begin_explorer
from semcal.report.grid_figures import PlannedFigure, planned_figures, write_files
from semcal.report.grid_markdown import write_markdown
from semcal.report.grid_page import write_page
from semcal.report.grid_results import read_results
from semcal.report.grid_tables import write_tables
from semcal.report.listing import renew_listing
from semcal.report.page_figures import PageFigure, page_figure

__all__ = ["build", "remake"]


def remake(folder: Path, out: Path | None = None, crew: Crew[Any] | None = None) -> Path:
    """Analyse the stored samples of a run and build everything from that; parameters are those of `build`."""
    crew = crew or Alone(None)
    packing = begin_explorer(read_finished(Path(folder)), crew)
    analyse(folder, out, crew)
    return build(folder, out, crew, packing)


def build(
    folder: Path,
    out: Path | None = None,
    crew: Crew[Any] | None = None,
    packing: Callable[[], Explorer] | None = None,
) -> Path:
    """Write the tables, results.md, the figures and the page of a run whose results.json is there.

    Tables and figures of an older report that this one has not are removed (`semcal.report.listing`).

    Parameters
    ----------
    folder : Path
        A run folder.
    out : Path, optional
        Where results.json lies and everything is written; the run folder by default.
    crew : Crew, optional
        Who draws the figures and packs the questions; this process by default. The files are the same.
    packing : callable, optional
        Gives the packed questions, where that has begun (`semcal.report.grid_explorer.begin_explorer`).

    Returns
    -------
    Path
        The page, report.html.

    Raises
    ------
    InputError, StoreError
        As `read_finished`; also if results.json is missing, damaged or of another schema.
    """
    target, crew = Path(folder) if out is None else Path(out), crew or Alone(None)
    run, results = read_finished(Path(folder)), read_results(target)
    planned = list(enumerate(planned_figures(run, results)))
    drawing = crew.begin(partial(_written, folder=target / "figures"), planned, stage="report")
    written = write_tables(run, results, target / "tables")
    write_markdown(run, results, target)
    explorer = (packing or begin_explorer(run, crew))()
    drawn = [one for one in drawing() if one is not None]
    page = write_page(run, results, [figure for figure, _ in drawn], explorer, target)
    renew_listing(target, [*written, *(path for _, paths in drawn for path in paths)])
    return page


def _written(numbered: tuple[int, PlannedFigure], folder: Path) -> tuple[PageFigure, list[Path]] | None:
    """A figure drawn once, for its files and for the page."""
    number, planned = numbered
    figure = planned.drawn()
    if figure is None:
        return None
    return page_figure(figure, f"f{number}"), write_files(figure, folder)
