"""How many blocks of each stage a grid has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from semcal.experiment.grid_candidates import FITTED, candidates_of, fits_of, nothing_to_choose
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
    extras = settings.extras
    chosen = nothing_to_choose(settings, candidates_of(settings)) and not extras.score_maps
    asked = test if chosen else validation + test
    found = Counter({"check": 1, "select": 1 - chosen, "greedy": test, "measure": test})
    found += Counter(dict.fromkeys(("sample", "cluster", "grade"), asked))
    if set(settings.methods) & set(FITTED):
        fits = len(fits_of(settings, FITTED))
        found += Counter({"features": 1, "diagnose": int(extras.token_losses), "fit": fits})
    found["plain"] = test * extras.without_normal_forms
    found["nli"] = test * extras.entailment * ("Base" in settings.methods)
    return +found


def block_count(settings: GridSettings, questions: int) -> int:
    """Blocks that so many questions are cut into."""
    return -(-questions // settings.block)
