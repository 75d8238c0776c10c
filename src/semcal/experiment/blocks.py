"""Questions at several temperatures, block by block, so that an interrupted sampling goes on where it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from semcal.engine.equivalence import Equivalence
from semcal.engine.language_model import LanguageModel
from semcal.experiment.store import Store
from semcal.pipeline.grid import rows_at_temperatures
from semcal.pipeline.prompting import Asking
from semcal.qa.datasets import Question

__all__ = ["rows_in_blocks"]

#: Questions that are sampled in one piece.
BLOCK = 64

Rows = list[dict[str, Any]]


def rows_in_blocks(
    model: LanguageModel,
    questions: Sequence[Question],
    temperatures: Sequence[float],
    *,
    asking: Asking,
    equivalence: Equivalence,
    m: int = 10,
    seed: int = 0,
    max_new_tokens: int | None = None,
    progress: Callable[[int], None] | None = None,
    keep: Path | None = None,
) -> dict[float, Rows]:
    """Sample, cluster, measure and grade questions as `rows_at_temperatures` does, a block at a time.

    Parameters
    ----------
    model, questions, temperatures, asking, equivalence, m, seed, max_new_tokens
        As in `rows_at_temperatures`.
    progress : callable, optional
        Called with the number of finished questions.
    keep : Path, optional
        A folder for finished blocks.

    Returns
    -------
    dict of float to list of dict
        Temperature → rows in the order of `questions`.
    """
    how: dict[str, Any] = {"m": m, "seed": seed, "max_new_tokens": max_new_tokens}
    settings = {
        **how,
        "model": model.revision,
        "prompt": asking.hash(model),
        "equivalence": [equivalence.name, equivalence.revision],
        "temperatures": list(temperatures),
    }

    def sampled(block: Sequence[Question]) -> Rows:
        found = rows_at_temperatures(
            model, block, temperatures, equivalence=equivalence, asking=asking, **how
        )
        return [row for t in temperatures for row in found[t]]

    rows: dict[float, Rows] = {t: [] for t in temperatures}
    for start in range(0, len(questions), BLOCK):
        block = questions[start : start + BLOCK]
        key = {**settings, "questions": [question.row() for question in block]}
        compute = partial(sampled, block)
        found = Store(keep).rows("temperatures", key, compute) if keep else compute()
        for number, t in enumerate(temperatures):
            rows[t] += found[number * len(block) : (number + 1) * len(block)]
        if progress is not None:
            progress(start + len(block))
    return rows
