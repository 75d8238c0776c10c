"""Truncated draws: what stays possible is what the warpers of transformers leave, ties included."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tiny_engine import language_model, sample
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from semcal.data.question import chat
from semcal.errors import ModelError, UsageError
from semcal.models import Prompt
from semcal.models.engine.draw import Truncation
from semcal.models.fakes import FakeLanguageModel
from semcal.recalibration import Base, Platt, Temperature

#: As in the published code of the paper.
REFERENCE = Truncation(top_k=50, top_p=0.9)
PROMPT = Prompt("q", (*range(20, 45), 101, 102, 103))


def warped(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """The distribution (F, V) that `generate` of transformers would draw from."""
    ids = torch.zeros((len(logits), 1), dtype=torch.long)
    scores = TemperatureLogitsWarper(temperature)(ids, logits)
    if top_k:
        scores = TopKLogitsWarper(top_k)(ids, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(ids, scores)
    return scores.double().softmax(1)


def left(log_probs: torch.Tensor, possible: torch.Tensor) -> torch.Tensor:
    """What is left, in order of size: of equally likely tokens transformers keeps any."""
    return log_probs.masked_fill(~possible, -torch.inf).sort(1).values


def clear_of_the_edge(log_probs: torch.Tensor, top_k: int, top_p: float) -> bool:
    """Whether no token stands where float32 and float64 may disagree about `top_p`, but exactly on it."""
    if top_k:
        least = log_probs.topk(min(top_k, log_probs.shape[1])).values[:, -1:]
        log_probs = log_probs.masked_fill(log_probs < least, -torch.inf)
    off = (log_probs.double().softmax(1).sort(1).values.cumsum(1) - (1 - top_p)).abs()
    return bool((off > 1e-5).all())


FEW_LEVELS = st.lists(st.integers(-3, 3), min_size=1, max_size=40)  # so that most tokens tie with others
ANY_LOGITS = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=300)


@settings(deadline=None, max_examples=100)
@given(
    st.one_of(FEW_LEVELS, ANY_LOGITS),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.one_of(st.just(0), st.integers(1, 60)),
    st.one_of(st.just(1.0), st.floats(0.01, 0.99)),
)
def test_the_possible_tokens_are_those_that_transformers_leaves(
    values: list[float], temperature: float, top_k: int, top_p: float
) -> None:
    logits = torch.tensor([values, values[::-1]], dtype=torch.float32)
    log_probs = Temperature(temperature).log_probs(logits)
    assume(len(log_probs[0].unique()) == len(logits[0].unique()))  # no logits apart by less than rounding
    assume(top_p == 1 or clear_of_the_edge(log_probs, top_k, top_p))
    expected = warped(logits, temperature, top_k, top_p) > 0
    found = Truncation(top_k, top_p).possible(log_probs)
    assert torch.equal(left(log_probs, found), left(log_probs, expected))


@pytest.mark.parametrize("top_p", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("top_k", [0, 2, 3])
def test_of_equally_likely_tokens_at_the_edge_the_later_ones_stay(top_k: int, top_p: float) -> None:
    """Quarters, so that the sums are exact in float32 and stand exactly on the edge."""
    log_probs = torch.full((1, 4), 0.25).log()
    found = Truncation(top_k, top_p).possible(log_probs)
    assert found.sum() == (warped(log_probs, 1.0, top_k, top_p) > 0).sum()
    assert found[0].tolist() == [4 - round(4 * top_p) <= token for token in range(4)]


def test_the_recorded_log_probability_is_that_of_the_whole_vocabulary() -> None:
    model = language_model()
    methods = [Base(), Platt(model.network.vocabulary).requires_grad_(False)]
    found = sample(model, methods, [PROMPT], m=6, max_new_tokens=5, truncation=REFERENCE)
    for method, [draws] in zip(methods, found, strict=True):
        [scores] = model.score([PROMPT], [[draw.token_ids for draw in draws]], recalibrator=method)
        for draw, score in zip(draws, scores, strict=True):
            assert draw.token_log_probs == pytest.approx(score, abs=1e-4)


def test_the_fake_model_truncates_too() -> None:
    model = FakeLanguageModel({"Who?": {"Ana": 0.6, "Bo": 0.3, "Cy": 0.1}})
    prompt = Prompt("q", model.encode(chat("Who?")))
    [[draws]] = sample(model, [Base()], [prompt], m=60, truncation=Truncation(top_p=0.7))
    assert {draw.text for draw in draws} == {"Ana", "Bo"}
    assert {round(float(np.exp(sum(draw.token_log_probs))), 4) for draw in draws} == {0.6, 0.3}


def test_options_out_of_range_and_what_is_no_distribution_are_refused() -> None:
    with pytest.raises(UsageError, match="top_k"):
        Truncation(top_k=-1)
    with pytest.raises(UsageError, match="top_p"):
        Truncation(top_p=1.5)
    u, rows = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    for truncation in (REFERENCE, Truncation(top_k=2), Truncation(top_p=0.5)):
        with pytest.raises(ModelError, match="finite"):
            truncation(torch.full((1, 5), torch.nan), rows, u)
