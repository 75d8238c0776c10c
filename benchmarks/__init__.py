"""Benchmarks, one module each: all by `python -m benchmarks`, one by `python -m benchmarks.NAME`.

A module has `results()`, which returns rows as flat dicts that are printed as a table and kept in
runs/bench.json, or `main(arguments)`, which prints Markdown, or both. For `python -m benchmarks --quick` it
declares `QUICK`, a dict from names of its own constants to tiny values, which are set before it runs. If it
has `quick_runs(folder)`, `main` runs once with each list of arguments that this function returns; small files
that the arguments name are written to the folder.

A benchmark that cannot run raises `NotRun`. One that lacks an opponent gets a row that says so by `not_run`.
"""

from __future__ import annotations

import os
from pathlib import Path

DATA = "SEMCAL_DATA"


class NotRun(SystemExit):
    """A benchmark cannot run; the message says what it needs."""

    def __init__(self, needs: str) -> None:
        super().__init__(not_run(needs))


def not_run(needs: str) -> str:
    """Return the cell of a row that is left out."""
    return f"not run: needs {needs}"


def data_folder() -> Path:
    """Return the folder of public data, which SEMCAL_DATA names."""
    folder = os.environ.get(DATA)
    if not folder or not Path(folder).is_dir():
        raise NotRun(f"{DATA}, the folder of public data")
    return Path(folder)
