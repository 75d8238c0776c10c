"""results.json and environment.json of a grid run, read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from semcal.errors import StoreError
from semcal.experiment.analyses import SCHEMA

__all__ = ["read_environment", "read_results"]


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


def read_environment(folder: Path) -> dict[str, Any]:
    """What is recorded of versions, machine and times; empty where nothing is.

    Raises
    ------
    StoreError
        If it is damaged.
    """
    path = folder / "environment.json"
    if not path.is_file():
        return {}
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # UnicodeDecodeError is one as well
        raise StoreError(f"{path} is damaged ({error}): delete it; it holds no results") from error
    return found
