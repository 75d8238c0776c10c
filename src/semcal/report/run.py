"""A finished run read back: its results, its rows and the records that lie beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semcal.errors import InputError, StoreError
from semcal.pipeline.assess import Scores, scores_by_measure
from semcal.records import Row, read_object, read_rows

__all__ = ["SCHEMA", "Run", "read_run"]

#: The schema of results.json that this package reads.
SCHEMA = 1

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Run:
    """The results and rows of a run folder.

    Attributes
    ----------
    folder : Path
        Where the run lies.
    results : mapping
        The content of results.json.
    rows : mapping
        Set name → method → rows, one a question.
    scores : mapping
        Set name → method → measure → confidence and correctness of the rows.
    """

    folder: Path
    results: Mapping[str, Any]
    rows: Mapping[str, Mapping[str, Rows]]
    scores: Mapping[str, Mapping[str, Mapping[str | None, Scores]]]

    @property
    def methods(self) -> list[str]:
        """The methods in the order of results.json."""
        return list(self.results["methods"])

    @property
    def measures(self) -> list[str]:
        """The measures in the order of results.json."""
        return list(self.results["measures"])

    @property
    def sets(self) -> list[str]:
        """The names of the question sets in the order of results.json."""
        return [entry["name"] for entry in self.results["sets"]]

    def outcomes(
        self, set_name: str, method: str, measure: str
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Confidence and correctness of the questions for which the measure is defined.

        Returns
        -------
        confidence : float64 array of shape (N,)
        correct : bool array of shape (N,)
            Both empty where the measure is null everywhere or the method was not run on the set.
        """
        scores = self.scores[set_name].get(method, {}).get(measure, Scores())
        return np.array(scores.confidence, dtype=np.float64), np.array(scores.correct, dtype=np.bool_)


def read_run(folder: Path) -> Run:
    """Read results.json and the rows that it names.

    Parameters
    ----------
    folder : Path
        A run folder; paths in results.json are relative to it.

    Raises
    ------
    InputError
        If there is no results.json.
    StoreError
        If a file is damaged, missing or of another schema.
    """
    folder = Path(folder)
    path = folder / "results.json"
    if not path.is_file():
        raise InputError(f"no results.json in {folder}: give the folder of a finished run")
    results = read_object(path, remedy="run the command that made it again")
    if results.get("schema") != SCHEMA:
        raise StoreError(
            f"{path} has schema {results.get('schema')!r}, this version of semcal reads {SCHEMA}: "
            "make the report with the version that made the run"
        )
    rows = {
        entry["name"]: {
            method: _rows(folder / figures["rows"]) for method, figures in entry["methods"].items()
        }
        for entry in results["sets"]
    }
    scores = {
        name: {method: scores_by_measure(found) for method, found in methods.items()}
        for name, methods in rows.items()
    }
    return Run(folder, results, rows, scores)


def _rows(path: Path) -> Rows:
    if not path.is_file():
        raise StoreError(f"results.json names {path}, which is missing: run the command that made it again")
    rows: Rows = []
    for row in read_rows(path):
        if not isinstance(row, Row):
            raise StoreError(f"{path} is damaged: {row}")
        rows.append(row.data)
    return rows
