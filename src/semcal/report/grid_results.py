"""results.json of a grid run, read back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from semcal.errors import StoreError
from semcal.experiment.analyses import SCHEMA
from semcal.records import read_object

__all__ = ["read_results"]


def read_results(folder: Path) -> Mapping[str, Any]:
    """The content of results.json of a grid run.

    Raises
    ------
    StoreError
        If it is missing, damaged or of another schema.
    """
    path = folder / "results.json"
    if not path.is_file():
        raise StoreError(f"{path} is missing: `semcal report {folder}` makes it")
    again = f"`semcal report {folder}` makes it again"
    found = read_object(path, remedy=again)
    if found.get("schema") != SCHEMA:
        raise StoreError(f"{path} has schema {found.get('schema')!r}, expected {SCHEMA}: {again}")
    return found
