"""results.json and environment.json of a run, read back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from semcal.errors import StoreError
from semcal.experiment.analyses import SCHEMA
from semcal.records import read_object

__all__ = ["read_environment", "read_results"]


def read_results(folder: Path) -> Mapping[str, Any]:
    """The content of results.json; StoreError if it is missing, damaged or of another schema."""
    path = folder / "results.json"
    if not path.is_file():
        raise StoreError(f"{path} is missing: `semcal report {folder}` makes it")
    again = f"`semcal report {folder}` makes it again"
    found = read_object(path, remedy=again)
    if found.get("schema") != SCHEMA:
        raise StoreError(f"{path} has schema {found.get('schema')!r}, expected {SCHEMA}: {again}")
    return found


def read_environment(folder: Path) -> dict[str, Any]:
    """What is recorded of versions, machine and times; empty where nothing is, StoreError if damaged."""
    path = folder / "environment.json"
    return read_object(path, remedy="delete it; it holds no results") if path.is_file() else {}
