"""Draws: from the model's distribution, by the question's own numbers, whatever the batch."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
import tiny_models
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from semcal.models import CausalLanguageModel, Generation, Prompt
from semcal.models.drawing import inverse_cdf, most_likely
from semcal.models.language_model import SampleRequest, common_prefix
from semcal.recalibration import SE, Base, Temperature

PROMPTS = [Prompt(f"q{i}", (*range(20, 45), *range(100 + 7 * i, 104 + 9 * i))) for i in range(8)]


@cache
def language_model(budget: int | None = None) -> CausalLanguageModel:
    model = tiny_models.model("llama")
    return CausalLanguageModel(model, tiny_models.tokenizer(), name="tiny", memory_budget=budget)


class Allowing:
    """A recalibrator that leaves but some tokens possible."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = list(tokens)

    method = "Allowing"

    def log_probs(self, logits: torch.Tensor) -> torch.Tensor:
        mask = torch.full_like(logits, -torch.inf)
        mask[..., self.tokens] = 0
        return (logits + mask).log_softmax(-1)


def tokens(draws: list[Generation]) -> list[tuple[int, ...]]:
    return [draw.token_ids for draw in draws]


def sample(
    prompts: list[Prompt], m: int = 10, budget: int | None = None, seed: int = 0
) -> list[list[Generation]]:
    return language_model(budget).sample(
        SampleRequest(prompts, m=m, seeds=[seed], recalibrators=[Base()], max_new_tokens=6)
    )[0][0]


def chi_square(seen: np.ndarray, expected: np.ndarray) -> float:
    """The p-value; cells in which few are expected are thrown together."""
    common = expected >= 5
    rare = expected[~common].sum() >= 5
    observed = [*seen[common], seen[~common].sum()] if rare else seen[common]
    wanted = [*expected[common], expected[~common].sum()] if rare else expected[common]
    return float(stats.chisquare(observed, np.array(wanted) * np.sum(observed) / np.sum(wanted)).pvalue)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_first_tokens_come_as_often_as_the_model_says(temperature: float) -> None:
    model = language_model()
    [[draws]] = model.sample(
        SampleRequest(
            PROMPTS[:1], m=20_000, seeds=[5], recalibrators=[Temperature(temperature)], max_new_tokens=1
        )
    )[0]
    [state] = model.features(PROMPTS[:1], [[(0,)]]).states
    expected = (model.logits(state[None])[0].double() / temperature).softmax(-1).numpy() * 20_000
    seen = np.bincount([draw.token_ids[0] for draw in draws], minlength=400)
    assert chi_square(seen, expected) > 0.01


def test_whole_answers_come_as_often_as_the_model_says() -> None:
    """Three tokens possible, three steps: every one of the sequences against its product of probabilities."""
    model, among = language_model(), Allowing(50, 51, 4)
    [[draws]] = model.sample(
        SampleRequest(PROMPTS[:1], m=20_000, seeds=[2], recalibrators=[among], max_new_tokens=3)
    )[0]
    seen = Counter(tokens(draws))
    [scores] = model.score(PROMPTS[:1], [list(seen)], recalibrator=among)
    expected = [np.exp(sum(log_probs)) * 20_000 for log_probs in scores]
    assert sum(expected) == pytest.approx(20_000, rel=1e-4)
    assert all(ids[-1] == 4 or len(ids) == 3 for ids in seen)
    assert chi_square(np.array(list(seen.values())), np.array(expected)) > 0.01


def test_batches_and_the_order_of_questions_move_no_draw() -> None:
    together = sample(PROMPTS)
    for budget in (1, 300_000):
        assert [tokens(d) for d in sample(PROMPTS, budget=budget)] == [tokens(d) for d in together]
    shuffled = [5, 2, 7, 0, 1, 6, 3, 4]
    again = sample([PROMPTS[i] for i in shuffled])
    assert [tokens(d) for d in again] == [tokens(together[i]) for i in shuffled]
    assert tokens(sample(PROMPTS[3:4])[0]) == tokens(together[3])


def test_more_draws_or_recalibrators_move_no_draw() -> None:
    few = sample(PROMPTS, m=1)
    many = sample(PROMPTS, m=100)
    assert [tokens(d[:1]) for d in many] == [tokens(d) for d in few]
    methods = language_model().sample(
        SampleRequest(PROMPTS, m=3, recalibrators=[SE(), Base()], max_new_tokens=6)
    )[0]
    assert [tokens(d) for d in methods[1]] == [tokens(d[:3]) for d in many]


def test_a_shorter_limit_cuts_the_same_draws() -> None:
    model = language_model()
    [longer] = model.sample(SampleRequest(PROMPTS, recalibrators=[Base()], max_new_tokens=7))[0]
    [shorter] = model.sample(SampleRequest(PROMPTS, recalibrators=[Base()], max_new_tokens=2))[0]
    assert [tokens(d) for d in shorter] == [[ids[:2] for ids in tokens(d)] for d in longer]


def test_another_seed_gives_other_draws() -> None:
    assert [tokens(d) for d in sample(PROMPTS, seed=1)] != [tokens(d) for d in sample(PROMPTS, seed=2)]


def test_the_question_s_id_and_not_its_place_decides() -> None:
    twins = [
        Prompt("a", PROMPTS[0].token_ids),
        Prompt("b", PROMPTS[0].token_ids),
        Prompt("a", PROMPTS[0].token_ids),
    ]
    a, b, again = map(tokens, sample(twins))
    assert a == again
    assert a != b


@pytest.mark.parametrize(
    "ids",
    [
        [(7,)],
        [(7,), (8,), (7,)],
        [(7,), (7, 8), (7, 8, 9)],
        [(7, 8), (9, 8, 5), (300,)],
        [(7, 8, 9)] * 3,
    ],
    ids=["one token", "single tokens", "nested", "nothing in common", "identical"],
)
def test_prompts_of_any_shape_give_the_draws_that_each_gives_alone(ids: list[tuple[int, ...]]) -> None:
    prompts = [Prompt(f"q{i}", prompt) for i, prompt in enumerate(ids)]
    together = sample(prompts)
    assert [tokens(d) for d in together] == [tokens(sample([prompt])[0]) for prompt in prompts]


def test_an_answer_may_be_empty() -> None:
    [[draws]] = language_model().sample(
        SampleRequest(PROMPTS[:1], m=2, recalibrators=[Allowing(4)], max_new_tokens=5)
    )[0]
    assert draws == [Generation("", (4,), (0.0,), finished=True)] * 2


def test_the_token_limit_leaves_a_draw_unfinished() -> None:
    [[draws]] = language_model().sample(
        SampleRequest(PROMPTS[:1], m=2, recalibrators=[Allowing(50)], max_new_tokens=5)
    )[0]
    assert [draw.token_ids for draw in draws] == [(50,) * 5] * 2
    assert not any(draw.finished for draw in draws)


def test_tokens_of_probability_0_are_never_drawn() -> None:
    allowed = (3, 7, 50, 51, 52, 399)
    [samples] = language_model().sample(
        SampleRequest(PROMPTS, m=50, recalibrators=[Allowing(*allowed)], max_new_tokens=4)
    )[0]
    drawn = {token for draws in samples for draw in draws for token in draw.token_ids}
    assert drawn <= set(allowed)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=12).filter(any),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=8),
)
def test_an_inverse_cdf_draws_the_token_that_holds_the_uniform(weights: list[int], u: list[float]) -> None:
    log_probs = torch.tensor([weights, weights], dtype=torch.float32).log()
    rows = torch.tensor([i % 2 for i in range(len(u))])
    drawn = inverse_cdf(log_probs, rows, torch.tensor(u, dtype=torch.float64)).tolist()
    steps = np.cumsum(np.exp(log_probs[0].double().numpy()))
    for token, number in zip(drawn, u, strict=True):
        assert weights[token] > 0
        assert number * steps[-1] < steps[token] + 1e-5
        assert token == 0 or number * steps[-1] >= steps[token - 1] - 1e-5


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
