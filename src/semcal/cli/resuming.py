"""What a long command has finished, kept beside its --out until that is whole."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from semcal.cli.console import info
from semcal.cli.output import unfinished
from semcal.errors import UsageError
from semcal.experiment.store import Store
from semcal.records import dumps, remove_leftovers, write_rows

__all__ = ["SETTINGS", "Resumable"]

#: What the kept blocks were made with.
SETTINGS = "settings.json"
#: The folders of what is kept: blocks of rows, states of trainings.
PARTS = ("blocks", "trainings")
Rows = Sequence[Mapping[str, Any]]


class Resumable:
    """Keeps what one command has finished under `<out>.unfinished/`; without `out` it keeps nothing.

    Parameters
    ----------
    out : Path or None
        The command's --out.
    settings : mapping
        Everything but the input rows that results depend on.
    fresh : bool
        Forget what an earlier call has left.
    """

    def __init__(self, out: Path | None, settings: Mapping[str, Any], *, fresh: bool) -> None:
        self._folder = None if out is None else unfinished(out)
        self._settings = settings
        if fresh:
            self.finish()
        self._refuse_other_work()

    @property
    def folder(self) -> Path:
        """Where a command with an `out` keeps what it has finished."""
        assert self._folder is not None
        return self._folder

    def begin(self) -> None:
        """Note what is being made, so that another call does not take it for its own."""
        if not (self.folder / SETTINGS).exists():
            write_rows(self.folder / SETTINGS, [self._settings])

    def _refuse_other_work(self) -> None:
        if self._folder is None or not (self._folder / SETTINGS).is_file():
            return
        if (self._folder / SETTINGS).read_bytes().strip() != dumps(self._settings).encode():
            if not any(path.is_file() for part in PARTS for path in (self._folder / part).rglob("*")):
                (self._folder / SETTINGS).unlink()  # that call failed before it finished anything
                return
            raise UsageError(
                f"{self._folder} holds unfinished work of a call with other options; run that again to "
                "finish it, or give --fresh to drop it"
            )
        info(f"going on with what {self._folder} holds")

    def find(self, inputs: Rows) -> list[dict[str, Any]] | None:
        """Return the results of a block of input rows if they are on disk already."""
        return None if self._folder is None else Store(self._folder).find("rows", self._key(inputs))

    def keep(self, inputs: Rows, results: Rows) -> list[dict[str, Any]]:
        """Write the results of a block of input rows, and return them."""
        if self._folder is None:
            return [dict(row) for row in results]
        self.begin()
        return Store(self._folder).keep("rows", self._key(inputs), results)

    def _key(self, inputs: Rows) -> dict[str, Any]:
        return {"settings": self._settings, "inputs": list(inputs)}

    def finish(self) -> None:
        """Remove what was kept: the --out file is whole now."""
        if self._folder is not None and self._folder.is_dir():
            remove_leftovers(self._folder)
            for part in PARTS:
                shutil.rmtree(self._folder / part, ignore_errors=True)
            (self._folder / SETTINGS).unlink(missing_ok=True)
            if not any(self._folder.iterdir()):
                self._folder.rmdir()
