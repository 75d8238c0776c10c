"""The task that times a cell's recalibrators; its result is a time, and so is kept in no block."""

from __future__ import annotations

import json
from collections.abc import Sequence

from semcal.experiment.cells import Cell
from semcal.experiment.grid_candidates import FITTED, candidates_of
from semcal.experiment.grid_jobs import GridJob
from semcal.experiment.question_sets import row_of

__all__ = ["QUESTIONS", "overhead_job"]

#: Validation questions whose answers are timed.
QUESTIONS = 8


def overhead_job(cell: Cell) -> GridJob | None:
    """Time Base and the first candidate of each fitted method that is there; None where there is none."""
    settings = cell.settings
    names = {
        method: name
        for method, given in candidates_of(settings).items()
        if method in FITTED and (name := _first_at_hand(cell, [one.name for one in given]))
    }
    if not names:
        return None
    recalibrators = [
        {**cell.reference(name), "method": method} for method, name in {"Base": "Base", **names}.items()
    ]
    inputs = {
        **cell.where(),
        "questions": [row_of(question) for question in cell.questions("validation")[:QUESTIONS]],
        "recalibrators": recalibrators,
        "m": settings.sampling.m,
        "longest": settings.max_new_tokens(open_book=cell.parts.open_book),
    }
    return GridJob("overhead", json.dumps(inputs, ensure_ascii=False))


def _first_at_hand(cell: Cell, names: Sequence[str]) -> str | None:
    """The first of some candidates that is fitted and kept."""
    folders = {name: cell.fitted[name, 0]["folder"] for name in names if (name, 0) in cell.fitted}
    root = cell.stages.store.root
    return next((name for name, at in folders.items() if (root / at / "calibration.json").exists()), None)
