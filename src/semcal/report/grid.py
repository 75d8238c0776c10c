"""The whole report of a grid run, from its folder: tables, and beside them figures and the page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from semcal.errors import StoreError
from semcal.experiment.analyses import SCHEMA
from semcal.experiment.finished import read_finished
from semcal.report.grid_tables.writing import write_tables

__all__ = ["build", "read_results"]


def build(folder: Path, out: Path | None = None) -> Path:
    """Write the tables of a run whose results.json is there.

    Parameters
    ----------
    folder : Path
        A run folder.
    out : Path, optional
        Where results.json lies and everything is written; the run folder by default.

    Returns
    -------
    Path
        The folder of the tables.

    Raises
    ------
    InputError, StoreError
        As `read_finished`; also if results.json is missing, damaged or of another schema.
    """
    target = Path(folder) if out is None else Path(out)
    write_tables(read_finished(folder), read_results(target), target / "tables")
    return target / "tables"


def read_results(folder: Path) -> Mapping[str, Any]:
    """The content of results.json of a grid run."""
    path = folder / "results.json"
    if not path.is_file():
        raise StoreError(f"{path} is missing: `semcal report {folder}` makes it")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # UnicodeDecodeError is one as well
        raise StoreError(f"{path} is damaged ({error}): `semcal report {folder}` makes it") from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        shown = found.get("schema") if isinstance(found, dict) else type(found).__name__
        raise StoreError(
            f"{path} has schema {shown!r}, expected {SCHEMA}: `semcal report {folder}` makes it again"
        )
    return found
