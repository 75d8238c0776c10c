"""Benchmarks, one module each: all with `python -m benchmarks`, one with `python -m benchmarks.NAME`.

A module has `results()`, which returns rows as flat dicts that are printed as a table and stored in
runs/bench.json, or `main(arguments)`, which prints Markdown, or both. For `python -m benchmarks --quick` it
declares `QUICK`, a dict from names of its own constants to tiny values, which are set before it runs. If it
has `quick_runs(folder)`, `main` runs once with each list of arguments that this function returns; small files
for the arguments are written to the folder.

A benchmark that cannot run raises `NotRun`. If only an opponent is missing, `not_run` makes a row for it.
"""

from __future__ import annotations

import os
from pathlib import Path

DATA = "SEMCAL_DATA"


class NotRun(SystemExit):
    """A benchmark cannot run; the message names the missing requirement."""

    def __init__(self, needs: str) -> None:
        super().__init__(not_run(needs))


def not_run(needs: str) -> str:
    """Return the cell of a row that is left out."""
    return f"not run: needs {needs}"


def data_folder() -> Path:
    """Return the folder of public data in SEMCAL_DATA."""
    folder = os.environ.get(DATA)
    if not folder or not Path(folder).is_dir():
        raise NotRun(f"{DATA}, the folder of public data")
    return Path(folder)
