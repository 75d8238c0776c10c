"""Draws: from the model's distribution, by the question's own numbers, whatever the batch."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tiny_engine import PROMPTS, language_model, sample, token_ids

from semcal.models import Generation
from semcal.models.distribution import uniforms
from semcal.models.engine.draw import inverse_cdf, most_likely
from semcal.models.prompting import common_prefix
from semcal.recalibration import Base, Temperature


class Allowing:
    """A recalibrator that leaves but some tokens possible."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = list(tokens)

    method = "Allowing"

    def log_probs(self, logits: torch.Tensor) -> torch.Tensor:
        mask = torch.full_like(logits, -torch.inf)
        mask[..., self.tokens] = 0
        return (logits + mask).log_softmax(-1)


def p_value(seen: np.ndarray, expected: np.ndarray) -> float:
    """By the χ² test of the cells in which at least five are expected."""
    counts, wanted = seen[expected >= 5], expected[expected >= 5]
    return float(stats.chisquare(counts, wanted * counts.sum() / wanted.sum()).pvalue)


def test_first_tokens_come_as_often_as_the_model_says() -> None:
    model, temperature = language_model(), 0.5
    how = {"m": 20_000, "seeds": [5], "max_new_tokens": 1}
    [[draws]] = sample(model, [Temperature(temperature)], PROMPTS[:1], **how)
    [state] = model.features(PROMPTS[:1], [[(0,)]]).states
    expected = (model.logits(state[None])[0].double() / temperature).softmax(-1).numpy() * 20_000
    assert p_value(np.bincount([draw.token_ids[0] for draw in draws], minlength=400), expected) > 0.01


def test_whole_answers_come_as_often_as_the_model_says() -> None:
    """Three tokens possible, three steps: every one of the sequences against its product of probabilities."""
    model, among = language_model(), Allowing(50, 51, 4)
    [[draws]] = sample(model, [among], PROMPTS[:1], m=20_000, seeds=[2], max_new_tokens=3)
    seen = Counter(token_ids(draws))
    [scores] = model.score(PROMPTS[:1], [list(seen)], recalibrator=among)
    expected = np.array([np.exp(sum(log_probs)) * 20_000 for log_probs in scores])
    assert sum(expected) == pytest.approx(20_000, rel=1e-4)
    assert all(ids[-1] == 4 or len(ids) == 3 for ids in seen)
    assert p_value(np.array(list(seen.values())), expected) > 0.01


def test_a_shorter_limit_cuts_the_same_draws() -> None:
    longer, shorter = (sample(language_model(), [Base()], max_new_tokens=limit) for limit in (7, 2))
    assert token_ids(shorter) == [ids[:2] for ids in token_ids(longer)]


def test_an_answer_may_be_empty_and_the_token_limit_leaves_one_unfinished() -> None:
    methods = [Allowing(4), Allowing(50)]
    [[empty], [long]] = sample(language_model(), methods, PROMPTS[:1], m=2, max_new_tokens=5)
    assert empty == [Generation("", (4,), (0.0,), finished=True)] * 2
    assert [(draw.token_ids, draw.finished) for draw in long] == [((50,) * 5, False)] * 2


def test_uniforms_at_the_edges_draw_possible_tokens() -> None:
    log_probs = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).log()
    u = torch.tensor([0.0, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert inverse_cdf(log_probs, torch.zeros(3, dtype=torch.long), u).tolist() == [1, 3, 3]


def test_of_equally_likely_tokens_greedy_takes_the_first() -> None:
    log_probs = torch.tensor([[0.1, 0.3, 0.3, 0.3], [0.4, 0.1, 0.1, 0.4]]).log()
    assert most_likely(log_probs, torch.tensor([1, 0]), torch.zeros(2)).tolist() == [0, 1]


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), max_size=6).map(tuple), min_size=1, max_size=6))
def test_the_common_prefix_is_the_longest_that_all_share(sequences: list[tuple[int, ...]]) -> None:
    length = common_prefix(sequences)
    assert len({ids[:length] for ids in sequences}) == 1
    assert any(len(ids) == length for ids in sequences) or len({ids[: length + 1] for ids in sequences}) > 1


# ---- The uniforms behind the draws


@settings(deadline=None)
@given(
    seed=st.integers(-(2**70), 2**70),
    question=st.text(max_size=20),
    m=st.integers(1, 5),
    steps=st.integers(1, 7),
)
def test_asking_for_more_draws_or_steps_changes_no_number(
    seed: int, question: str, m: int, steps: int
) -> None:
    few = uniforms(seed, question, m=m, steps=steps)
    many = uniforms(seed, question, m=m + 3, steps=steps + 5)
    assert few.shape == (m, steps)
    assert few.dtype == np.float64
    np.testing.assert_array_equal(many[:m, :steps], few)
    np.testing.assert_array_equal(
        uniforms(seed, question, m=2, steps=steps, first=m), many[m : m + 2, :steps]
    )
    assert few.min() >= 0
    assert few.max() < 1


def test_the_numbers_are_the_same_everywhere() -> None:
    first = [0.841436681877091, 0.2898994400171683]
    expected = [first, [0.1417195428116933, 0.6017195332300354]]
    np.testing.assert_array_equal(uniforms(0, "q1", m=2, steps=2), expected)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(((0, "q1"), other) for other in ((1, "q1"), (0, "q2"), (0, "q1 "), (-1, "q1"))),
        ((1, "2:a"), (12, ":a")),
        ((1, "1a"), (11, "a")),
    ],
)
def test_another_seed_or_question_gives_other_numbers(one: tuple[int, str], other: tuple[int, str]) -> None:
    assert not np.isin(*(uniforms(*of, m=4, steps=4) for of in (one, other))).any()


def test_the_numbers_are_uniform_and_uncorrelated_between_draws_steps_and_questions() -> None:
    cube = np.stack([uniforms(3, f"q{i}", m=20, steps=10) for i in range(200)])
    assert stats.kstest(cube.ravel(), "uniform").pvalue > 0.01
    for a, b in [(cube[:, :-1], cube[:, 1:]), (cube[..., :-1], cube[..., 1:]), (cube[:-1], cube[1:])]:
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.02
