"""The learning curve from labelled questions in one call, and questions block by block."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semcal.engine.fakes import FakeEquivalence, FakeLanguageModel
from semcal.pipeline.calibration_set import CalibrationSet, calibration_features
from semcal.pipeline.learning_curve import (
    curve_of_labels,
    grid_around,
    learning_curve,
    subset_fit,
    subset_temperatures,
)
from semcal.pipeline.prompting import PromptConfig
from semcal.pipeline.select import GRID
from semcal.pipeline.store import Store
from semcal.pipeline.temperature_grid import rows_at_temperatures
from semcal.qa.questions import Question

ASKING, SAME = PromptConfig(), FakeEquivalence()


def world(n: int) -> tuple[FakeLanguageModel, list[Question]]:
    """A model of two answers whose logits are twice what the truth calls for."""
    rng = random.Random(0)
    table, questions = {}, []
    for number in range(n):
        truth = rng.uniform(-3, 3)
        said = 1 / (1 + math.exp(-2 * truth))
        table[text := f"Who built mill {number}?"] = {"Ana.": said, "Bo.": 1 - said}
        right = "Ana." if rng.random() < 1 / (1 + math.exp(-truth)) else "Bo."
        questions.append(Question(f"q{number}", text, (right,)))
    return FakeLanguageModel(table), questions


MODEL, QUESTIONS = world(200)
VALIDATION = QUESTIONS[110:]


class Stopping(FakeLanguageModel):
    """A model that is killed after so many calls of `sample`, and counts them."""

    def __init__(self, calls: int) -> None:
        super().__init__({q.question: {"Ana.": 0.5, "Bo.": 0.5} for q in QUESTIONS})
        self.left, self.calls = calls, 0

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        if self.calls == self.left:
            raise KeyboardInterrupt
        self.calls += 1
        return super().sample(*args, **kwargs)


def features() -> Any:
    labelled = CalibrationSet.of(MODEL, QUESTIONS[:110], asking=ASKING)
    return calibration_features(MODEL, labelled, asking=ASKING)


def test_it_is_the_curve_of_the_whole_grid(tmp_path: Path) -> None:
    states = features()
    how = {"asking": ASKING, "equivalence": SAME, "m": 4}
    told: dict[str, list[int]] = {}

    def stage(label: str, total: int) -> Any:
        return told.setdefault(f"{label} {total}", []).append

    found = curve_of_labels(
        MODEL, states, VALIDATION, sizes=(25, 50, 500), subsets=3, progress=stage, keep=tmp_path, **how
    )
    assert set(found.temperatures) == {0, 25, 50, 110}
    assert told == {"subsets 7": list(range(1, 8)), "validation 90": list(range(1, 91))}
    fitted = subset_temperatures(subset_fit(MODEL, states), 110, sizes=(25, 50, 110), subsets=3)
    rows = rows_at_temperatures(MODEL, VALIDATION, GRID, **how)
    whole = learning_curve(fitted, rows)
    assert found.temperatures == whole.temperatures
    for ours, theirs in zip(found.table(), whole.table(), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-9)


def test_finished_blocks_are_not_sampled_again(tmp_path: Path) -> None:
    how = {"asking": ASKING, "equivalence": SAME, "m": 3, "keep": Store(tmp_path)}
    with pytest.raises(KeyboardInterrupt):
        rows_at_temperatures(Stopping(1), VALIDATION, (1.0, 2.0), **how)
    after = Stopping(99)
    rows = rows_at_temperatures(after, VALIDATION, (1.0, 2.0), **how)
    assert after.calls == 1
    plain = rows_at_temperatures(Stopping(99), VALIDATION, (1.0, 2.0), **{**how, "keep": None})
    assert rows == plain
    assert [row["id"] for row in rows[2.0]] == [question.id for question in VALIDATION]
    other = Stopping(99)
    rows_at_temperatures(other, VALIDATION, (1.0, 3.0), **how)
    assert other.calls == 2


@given(st.lists(st.floats(0.05, 20), min_size=1, max_size=5))
def test_every_temperature_keeps_both_its_neighbours(temperatures: list[float]) -> None:
    kept = grid_around(temperatures)
    assert set(kept) <= set(GRID)
    for t in temperatures:
        below, above = [g for g in GRID if g <= t], [g for g in GRID if g >= t]
        assert {(below or above)[-1 if below else 0]} & set(kept)
        assert {(above or below)[0 if above else -1]} & set(kept)
