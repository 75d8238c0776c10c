"""What a run with `keep: chosen` removes once it is done with it: features, and recalibrators not chosen.

Blocks stay, so nothing is asked twice; what is needed again all the same is made again (`fitted_again`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from semcal.experiment.cells import Cell

__all__ = ["remove_answered", "remove_features", "remove_unchosen"]


def remove_features(cell: Cell) -> None:
    """Remove the states of the calibration questions."""
    if cell.settings.keep == "chosen":
        _remove_states(cell.stages.store.root / cell.calibration_at()["features"])


def remove_unchosen(cell: Cell, chosen: Collection[str]) -> None:
    """Remove features, and the fits of all candidates but the chosen ones."""
    remove_features(cell)
    _remove_fits(cell, {(name, run) for name, run in cell.fitted if name not in chosen})


def remove_answered(cell: Cell, used: Collection[str]) -> None:
    """Once the test questions are answered, remove all but the first run's fits of what the methods use."""
    remove_features(cell)
    _remove_fits(cell, {(name, run) for name, run in cell.fitted if name not in used or run > 0})


def _remove_fits(cell: Cell, which: Collection[tuple[str, int]]) -> None:
    for key in which if cell.settings.keep == "chosen" else ():
        shutil.rmtree(cell.stages.store.root / cell.fitted[key]["folder"], ignore_errors=True)


def _remove_states(folder: Path) -> None:
    """Remove a folder of features so that a kill in between leaves none that look finished.

    A process that has mapped the file may hold on to it for a while. Cutting it short frees its space now;
    nobody reads it any more.
    """
    (folder / "blocks.jsonl").unlink(missing_ok=True)
    with suppress(FileNotFoundError):
        os.truncate(folder / "states.bin", 0)
    shutil.rmtree(folder, ignore_errors=True)
