"""Questions enter as others leave: when, within what memory, and with the same draws."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import tiny_models
from tiny_engine import assert_same, ats, flat, sample, token_ids

from semcal.models import CausalLanguageModel, Prompt
from semcal.models.engine.decoding import Scheduler, TreeSizes
from semcal.models.engine.tree_cache import ThreeLevelCache
from semcal.recalibration import SE, Base, Temperature

HEAD = (*range(5, 12), *range(5, 12), 5)
PROMPTS = [Prompt(f"q{i}", (*HEAD, *(5 + (7 * i + 3 * j) % 7 for j in range(3 + i % 9)))) for i in range(24)]


@cache
def language_model(tokens: int = 10**6) -> CausalLanguageModel:
    """With room for the keys and values of so many tokens; of 12 tokens, two end an answer."""
    network = tiny_models.model("llama", vocabulary=12, seed=0)
    model = CausalLanguageModel(network, tiny_models.tokenizer(), name="tiny", memory_budget=1)
    budget = tokens * model.network.bytes_per_token
    return CausalLanguageModel(network, tiny_models.tokenizer(), name="tiny", memory_budget=budget)


def drawn(room: int = 10**6, seeds: tuple[int, ...] = (1, 2)) -> Any:
    """The draws of these runs within such a room."""
    methods = [Base(), SE(), Temperature(1.5)]
    return [
        sample(language_model(room), methods, PROMPTS, seeds=[seed], m=4, max_new_tokens=6) for seed in seeds
    ]


class Seen:
    """Calls of the cache: rows of every step, and how many prompts were prefilled beside how many others."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        extend, prefill = ThreeLevelCache.extend, ThreeLevelCache.prefill
        self.clear()

        def extended(cache: ThreeLevelCache, new: Any) -> Any:
            outputs = extend(cache, new)
            self.rows.append(len(new))
            self.held.append(cache.tokens_held)
            return outputs

        def prefilled(cache: ThreeLevelCache, prompts: Any, **options: Any) -> Any:
            self.prefilled.append((len(prompts), len(cache.lengths)))
            return prefill(cache, prompts, **options)

        for room in (1, 300, 800, 1200, 1500, 10**6):  # loading runs small trees, too
            language_model(room)
        monkeypatch.setattr(ThreeLevelCache, "extend", extended)
        monkeypatch.setattr(ThreeLevelCache, "prefill", prefilled)

    def clear(self) -> None:
        self.rows: list[int] = []
        self.prefilled: list[tuple[int, int]] = []
        self.held: list[int] = []


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(monkeypatch)


@pytest.fixture(scope="module")
def expected() -> Any:
    """The draws where there is room for all."""
    return drawn()


@pytest.mark.parametrize("room", [800, 1200])
def test_questions_enter_beside_others_and_every_draw_stays_the_same_to_the_bit(
    room: int, seen: Seen, expected: Any
) -> None:
    found = drawn(room)
    assert_same(found, expected)
    assert sum(count for count, _ in seen.prefilled) >= len(PROMPTS)
    assert any(beside for _, beside in seen.prefilled)
    assert max(seen.held) <= room
    steps = seen.rows, seen.prefilled
    seen.clear()
    assert drawn(room) == found
    assert (seen.rows, seen.prefilled) == steps


def test_trees_larger_than_expected_send_the_last_questions_back(
    seen: Seen, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TreeSizes, "remaining", lambda *_: 1.0)
    assert token_ids(drawn(300)) == token_ids(expected)
    assert sum(count for count, _ in seen.prefilled) > 2 * len(PROMPTS)
    assert max(seen.held) <= 300


def test_a_question_larger_than_the_budget_stands_by_itself(seen: Seen, expected: Any) -> None:
    assert token_ids(drawn(1, seeds=(1,))) == token_ids(expected[0])
    assert seen.prefilled == [(1, 0)] * len(PROMPTS)


def test_attentive_temperatures_follow_their_question(seen: Seen) -> None:
    how: dict[str, Any] = {"m": 10, "max_new_tokens": 6}
    models = language_model(1500), language_model()
    assert_same(*(sample(model, [Base(), ats()], PROMPTS, **how) for model in models))
    assert any(beside for _, beside in seen.prefilled)


def test_questions_leave_in_the_plain_way_as_well() -> None:
    plain = CausalLanguageModel(
        tiny_models.model("llama", vocabulary=12, seed=0), tiny_models.tokenizer(), name="tiny"
    )
    plain.network.patched = None
    how = {"m": 1, "max_new_tokens": 6}
    assert_same(*(sample(model, [Base(), ats()], PROMPTS, **how) for model in (plain, language_model())))


def test_cut_answers_cost_the_same_whoever_stands_beside_them() -> None:
    how: dict[str, Any] = {"m": 6, "max_new_tokens": 4, "cut": lambda _, draw: (0, len(draw.text), True)}
    models = language_model(200), language_model()
    found, expected = (flat(sample(model, [Base()], PROMPTS, **how)) for model in models)
    for one, other in zip(found, expected, strict=True):
        assert (one.rescored is None) == (other.rescored is None)
        np.testing.assert_allclose(one.rescored or (), other.rescored or (), rtol=0, atol=1e-4)
    assert any(one.rescored is not None for one in found)


def test_small_prompts_wait_for_each_other_unless_they_are_the_last() -> None:
    scheduler = Scheduler([10] * 8, budget=100, min_tokens=45)
    assert scheduler.admissible(10) == 5
    assert scheduler.take(2) == [0, 1]
    assert scheduler.admissible(10, rows=2, columns=10, trees=20) == 0
    assert scheduler.take(4) == [2, 3, 4, 5]
    assert scheduler.admissible(10, rows=2, columns=10, trees=20) == 2
    scheduler.put_back([3, 5])
    assert scheduler.take(3) == [3, 5, 6]


def test_those_that_stay_can_hold_what_they_need_and_one_always_does() -> None:
    scheduler = Scheduler([1], budget=10, min_tokens=0)
    assert [scheduler.fitting(costs) for costs in ([4, 6], [4, 7, 1], [11, 1])] == [2, 1, 1]


def test_expected_trees_fall_from_what_is_possible_to_what_was_seen() -> None:
    sizes = TreeSizes(draws=10, steps=3)
    assert sizes.remaining() == 30
    sizes.add(4)
    sizes.record_step([0, 8], [0, 20])
    assert sizes.remaining() == 2 + 2 * 5
    sizes.add(2)
    sizes.remove_newest(1)
    sizes.record_step([0, 2, 6], [0, 10, 8])
    assert sizes.remaining() == 2 + 6 / 4 + 8 / 4
    assert sizes.remaining(1) == 6 / 4 + 8 / 4
    sizes.record_step([], [])
    sizes.record_step([], [])
    assert [sizes.remaining(age) for age in range(4)] == [2 + 6 / 5, 6 / 5, 0, 0]
