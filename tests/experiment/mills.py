"""A made-up world that worker processes can import: a model that is sure of one of three answers."""

from __future__ import annotations

import random
from dataclasses import dataclass

from semcal.engine.fakes import FakeEquivalence, FakeLanguageModel
from semcal.pipeline.worker_state import WorkerState
from semcal.qa.datasets import Question


@dataclass(frozen=True)
class Mills:
    name: str
    open_book: bool
    few_shot: tuple[Question, ...]
    calibration_train: tuple[Question, ...]
    test: tuple[Question, ...]


def models(n: int = 24) -> WorkerState:
    rng = random.Random(1)
    table = {}
    for number in range(2 * n):
        sure = rng.choice([0.5, 0.7, 0.9])
        table[f"Who built mill {number}?"] = {
            "Ana.": sure,
            "Dr Ana.": 0.6 * (1 - sure),
            "Bo.": 0.4 * (1 - sure),
        }
    return WorkerState(FakeLanguageModel(table), FakeEquivalence([{"ana", "dr ana"}]))


def sets(n: int = 24) -> list[Mills]:
    """Two sets of unlike size on the same mills."""
    questions = tuple(
        Question(f"q{k}", f"Who built mill {k}?", ("Ana",) if k % 3 else ("Bo",)) for k in range(2 * n)
    )
    return [
        Mills("few", False, (), questions[: n // 2], questions[n : n + 10]),
        Mills("many", False, questions[:1], questions[1:n], questions[n:]),
    ]
