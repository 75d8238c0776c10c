"""Questions enter as others leave: when, within what memory, and with the same draws."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from hypothesis import given
from hypothesis import strategies as st

from semcal.models import CausalLanguageModel, Generation, Prompt
from semcal.models.engine.decoding import Scheduler, TreeSizes
from semcal.models.engine.tree_cache import ThreeLevelCache
from semcal.models.protocols import SampleRequest
from semcal.recalibration import ATS, SE, Base, BlockShape, Temperature

HEAD = (*range(5, 12), *range(5, 12), 5)
PROMPTS = [Prompt(f"q{i}", (*HEAD, *(5 + (7 * i + 3 * j) % 7 for j in range(3 + i % 9)))) for i in range(24)]


@cache
def language_model(tokens: int = 10**6) -> CausalLanguageModel:
    """With room for the keys and values of so many tokens; of 12 tokens, two end an answer."""
    network = tiny_models.model("llama", vocabulary=12, seed=0)
    model = CausalLanguageModel(network, tiny_models.tokenizer(), name="tiny", memory_budget=1)
    budget = tokens * model.network.bytes_per_token
    return CausalLanguageModel(network, tiny_models.tokenizer(), name="tiny", memory_budget=budget)


def sample(model: CausalLanguageModel, prompts: Sequence[Prompt] = PROMPTS, m: int = 4) -> list[Generation]:
    found = model.sample(
        SampleRequest(
            prompts, recalibrators=[Base(), SE(), Temperature(1.5)], seeds=[1, 2], m=m, max_new_tokens=6
        )
    )
    return [draw for run in found for one in run for draws in one for draw in draws]


def tokens_of(draws: Sequence[Generation]) -> list[tuple[int, ...]]:
    return [draw.token_ids for draw in draws]


class Seen:
    """Calls of the cache: rows of every step, and how many prompts were prefilled beside how many others."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[int] = []
        self.prefilled: list[tuple[int, int]] = []
        self.held: list[int] = []
        extend, prefill = ThreeLevelCache.extend, ThreeLevelCache.prefill

        def extended(cache: ThreeLevelCache, new: Any) -> Any:
            outputs = extend(cache, new)
            self.rows.append(len(new))
            self.held.append(cache.tokens_held)
            return outputs

        def prefilled(cache: ThreeLevelCache, prompts: Any, **options: Any) -> Any:
            self.prefilled.append((len(prompts), len(cache.lengths)))
            return prefill(cache, prompts, **options)

        for room in (1, 300, 600, 800, 1200):  # loading runs small trees, too
            language_model(room)
        language_model()
        monkeypatch.setattr(ThreeLevelCache, "extend", extended)
        monkeypatch.setattr(ThreeLevelCache, "prefill", prefilled)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(monkeypatch)


def test_questions_enter_beside_others_and_every_draw_stays_the_same(seen: Seen) -> None:
    expected = sample(language_model())
    assert seen.prefilled == [(len(PROMPTS), 0)]
    for room in (800, 1200):
        seen.prefilled.clear()
        seen.held.clear()
        found = sample(language_model(room))
        assert tokens_of(found) == tokens_of(expected)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one.token_log_probs, other.token_log_probs, rtol=0, atol=1e-4)
        assert sum(count for count, _ in seen.prefilled) >= len(PROMPTS)
        assert any(beside for _, beside in seen.prefilled)
        assert max(seen.held) <= room


def test_the_same_call_takes_the_same_steps_to_the_same_bits(seen: Seen) -> None:
    model = language_model(800)
    first, steps = sample(model), (list(seen.rows), list(seen.prefilled))
    seen.rows.clear()
    seen.prefilled.clear()
    assert sample(model) == first
    assert (seen.rows, seen.prefilled) == steps


def test_trees_larger_than_expected_send_the_last_questions_back(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = sample(language_model())
    seen.prefilled.clear()
    seen.held.clear()
    monkeypatch.setattr(TreeSizes, "remaining", lambda *_: 1.0)
    found = sample(language_model(300))
    assert tokens_of(found) == tokens_of(expected)
    assert sum(count for count, _ in seen.prefilled) > len(PROMPTS)
    assert max(seen.held) <= 300


def test_a_question_larger_than_the_budget_stands_by_itself(seen: Seen) -> None:
    expected = tokens_of(sample(language_model()))
    seen.prefilled.clear()
    assert tokens_of(sample(language_model(1))) == expected
    assert seen.prefilled == [(1, 0)] * len(PROMPTS)


def test_attentive_temperatures_follow_their_question(seen: Seen) -> None:
    ats = ATS(BlockShape(32, 48, heads=4, key_value_heads=2, head_dim=8)).requires_grad_(False)
    with torch.no_grad():
        ats.readout.weight.normal_(0, 0.3, generator=torch.Generator().manual_seed(0))
    options: dict[str, Any] = {"recalibrators": [Base(), ats], "m": 10, "max_new_tokens": 6}
    found, expected = (
        language_model(room).sample(SampleRequest(PROMPTS, **options))[0] for room in (1200, 10**6)
    )
    assert any(beside for _, beside in seen.prefilled)
    for one, other in zip(np.ravel(found), np.ravel(expected), strict=True):  # type: ignore[call-overload]
        assert one.token_ids == other.token_ids
        np.testing.assert_allclose(one.token_log_probs, other.token_log_probs, rtol=0, atol=1e-4)


def test_cut_answers_cost_the_same_whoever_stands_beside_them() -> None:
    options: dict[str, Any] = {"recalibrators": [Base()], "m": 6, "max_new_tokens": 4}
    cut = {"cut": lambda _, draw: (0, len(draw.text), True)}
    found, expected = (
        language_model(room).sample(SampleRequest(PROMPTS, **options, **cut))[0] for room in (200, 10**6)
    )
    closed = 0
    for one, other in zip(np.ravel(found), np.ravel(expected), strict=True):  # type: ignore[call-overload]
        assert (one.rescored is None) == (other.rescored is None)
        closed += one.rescored is not None
        np.testing.assert_allclose(one.rescored or (), other.rescored or (), rtol=0, atol=1e-4)
    assert closed


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.integers(1, 200),
    st.integers(0, 60),
    st.integers(1, 30),
)
def test_whoever_enters_has_room_by_what_is_expected(
    tokens: list[int], budget: int, min_tokens: int, tree: int
) -> None:
    scheduler, rows, columns = Scheduler(tokens, budget=budget, min_tokens=min_tokens), 0, 0
    while scheduler:
        count = scheduler.admissible(tree, rows=rows, columns=columns, trees=rows * tree)
        if not count:
            assert rows
            rows = columns = 0
            continue
        columns = max([columns, *(tokens[i] for i in scheduler.take(count))])
        rows += count
        assert rows == 1 or rows * (columns + tree) <= budget


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
