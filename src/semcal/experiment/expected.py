"""How many blocks of each stage a grid has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from semcal.experiment.grid_candidates import FITTED, fits_of
from semcal.experiment.grid_settings import GridSettings

__all__ = ["block_count", "expected_blocks"]

Sizes = Mapping[str, int]


def expected_blocks(settings: GridSettings, sizes: Sizes) -> Counter[str]:
    """Blocks by stage of one model on a data set whose parts have these sizes.

    Examples
    --------
    >>> from semcal.experiment.reading import settings_of
    >>> settings = settings_of({"models": [{"name": "a", "path": "atlas"}], "equivalence": "exact",
    ...                         "datasets": [{"name": "d", "source": "d.jsonl"}], "methods": ["Base", "TS"]})
    >>> found = expected_blocks(settings, {"calibration_train": 10, "validation": 60, "test": 110})
    >>> found["fit"], found["sample"], found["measure"]
    (1, 5, 3)
    """
    validation, test = block_count(settings, sizes["validation"]), block_count(settings, sizes["test"])
    found = Counter({"check": 1, "select": 1, "greedy": test, "measure": test, "plain": test})
    found += Counter(dict.fromkeys(("sample", "cluster", "grade"), validation + test))
    if set(settings.methods) & set(FITTED):
        found += Counter({"features": 1, "diagnose": 1, "fit": len(fits_of(settings, FITTED))})
    if "Base" in settings.methods:
        found["nli"] = test
    return found


def block_count(settings: GridSettings, questions: int) -> int:
    """Blocks that so many questions are cut into."""
    return -(-questions // settings.block)
