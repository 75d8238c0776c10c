"""Questions in several ways, block by block, so that an interrupted sampling goes on where it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from semcal.engine.equivalence import Equivalence
from semcal.engine.language_model import LanguageModel
from semcal.pipeline.grid import rows_at_temperatures
from semcal.pipeline.prompting import Asking
from semcal.pipeline.store import Stage, Store
from semcal.qa.datasets import Question

__all__ = ["in_blocks", "rows_in_blocks"]

#: Questions that are sampled in one piece.
BLOCK = 64

Rows = list[dict[str, Any]]
Way = TypeVar("Way")


def in_blocks(
    ways: Iterable[Way],
    questions: Sequence[Question],
    compute: Callable[[Sequence[Question]], Rows],
    *,
    stage: Stage,
    progress: Callable[[int], None] | None = None,
) -> dict[Way, Rows]:
    """Work through questions in blocks of 64, and sort the rows by the way in which they were made.

    Parameters
    ----------
    ways : iterable
        Temperatures or candidates, distinct.
    questions : sequence of Question
        What is cut into blocks.
    compute : callable
        A block of questions → its rows: all under the first way, then all under the next.
    stage : Stage
        Where finished blocks are kept.
    progress : callable, optional
        Called with the number of finished questions.

    Returns
    -------
    dict of way to list of dict
        Rows in the order of `questions`.
    """
    rows: dict[Way, Rows] = {way: [] for way in ways}
    for start in range(0, len(questions), BLOCK):
        block = questions[start : start + BLOCK]
        found = stage.rows([question.row() for question in block], partial(compute, block))
        for number, of_way in enumerate(rows.values()):
            of_way += found[number * len(block) : (number + 1) * len(block)]
        if progress is not None:
            progress(start + len(block))
    return rows


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

    stage = Stage(Store(keep) if keep else None, "temperatures", settings)
    return in_blocks(temperatures, questions, sampled, stage=stage, progress=progress)
