"""Jobs of a grid: a kind and inputs as JSON, rows as JSON out, so that any process anywhere can do one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from semcal.pipeline.executor import Progress
from semcal.pipeline.store import read_block
from semcal.records import dumps

if TYPE_CHECKING:
    from semcal.experiment.shelf import Shelf

__all__ = ["KINDS", "GridJob"]

#: Kind of job → where the function is that does it: (shelf, inputs, tell) → rows.
KINDS: Mapping[str, str] = {
    "identify": "fit_jobs",
    "check": "fit_jobs",
    "features": "fit_jobs",
    "fit": "fit_jobs",
    "diagnose": "fit_jobs",
    "sample": "answer_jobs",
    "greedy": "answer_jobs",
    "cluster": "answer_jobs",
    "grade": "answer_jobs",
    "nli": "answer_jobs",
    "select": "row_jobs",
    "measure": "row_jobs",
    "plain": "plain_jobs",
    "overhead": "overhead_jobs",
}


@dataclass(frozen=True)
class GridJob:
    """One piece of work.

    Attributes
    ----------
    kind : str
        A key of `KINDS`.
    inputs : str
        JSON.
    unless : str or None
        A block, relative to the run folder: where it is there by now, it is read instead.
    """

    kind: str
    inputs: str
    unless: str | None = None

    def __call__(self, shelf: Shelf, tell: Progress) -> list[str]:
        """Do it; every row is a line of JSON."""
        if self.unless is not None and (shelf.folder / self.unless).exists():
            return read_block(shelf.folder / self.unless).lines
        module = import_module(f"semcal.experiment.{KINDS[self.kind]}")
        work: Callable[..., list[dict[str, Any]]] = getattr(module, self.kind)
        return list(map(dumps, work(shelf, json.loads(self.inputs), tell)))
