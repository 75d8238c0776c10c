"""Stored verdicts of entailment (verdicts.sqlite of a run), read and never written."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType

from semcal.errors import StoreError

__all__ = ["StoredVerdicts"]

#: The next model after one, by a step in the index; DISTINCT would read the whole file.
_NEXT = "SELECT min(model) FROM verdicts WHERE model > ?"
_FIND = (
    "SELECT premise, hypothesis, entails FROM verdicts WHERE model = ? AND question = ? "
    "AND premise IN ({places}) ORDER BY premise, hypothesis"
)


class StoredVerdicts:
    """The verdicts of a run by question; none where there is no file.

    Parameters
    ----------
    path : Path
        As `CachedEquivalence` writes it.

    Raises
    ------
    StoreError
        If the file is damaged or something else.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database: sqlite3.Connection | None = None
        self._models: list[str] = []

    def __enter__(self) -> StoredVerdicts:
        if self._path.is_file():
            self._database = sqlite3.connect(self._address(), uri=True)
            ((name,),) = self._rows(_NEXT, "")
            while name is not None:
                self._models.append(name)
                ((name,),) = self._rows(_NEXT, name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._database is not None:
            self._database.close()

    def among(self, question: str, forms: Collection[str], numbers: Mapping[str, int]) -> list[int]:
        """[premise, hypothesis, entails, premise, …] for the normal forms of a question, by their numbers."""
        if len(forms) < 2:
            return []
        find = _FIND.format(places=", ".join("?" * len(forms)))
        rows = [row for model in self._models for row in self._rows(find, model, question, *forms)]
        return [
            item
            for premise, hypothesis, entails in rows
            if hypothesis in forms
            for item in (numbers[str(premise)], numbers[str(hypothesis)], int(entails))
        ]

    def _address(self) -> str:
        """Read-only; where nothing waits in a log, without the files that even readers leave beside it."""
        log = self._path.with_name(f"{self._path.name}-wal")
        settled = "" if log.is_file() and log.stat().st_size else "&immutable=1"
        return f"{self._path.resolve().as_uri()}?mode=ro{settled}"

    def _rows(self, statement: str, *values: str) -> list[tuple[str, ...]]:
        assert self._database is not None
        try:
            return self._database.execute(statement, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise StoreError(
                f"{self._path} cannot be read ({error}): it is no file of verdicts, or damaged; "
                "delete it and run `semcal run` again"
            ) from error
