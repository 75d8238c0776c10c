"""Attention in parts, and the three levels behind it: exact for every prompt, length and window."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_engine import PROMPTS, VARIANTS, assert_plain, assert_same, ats, language_model, sample, token_ids

from semcal.errors import SemcalWarning
from semcal.models import CausalLanguageModel, Prompt
from semcal.models.engine.draw import block_sums, draw_by_weights
from semcal.models.engine.network import AttentionConfig, PartialAttention, attend, attend_causally, merge
from semcal.models.engine.tree_cache import checked_network
from semcal.recalibration import SE, Base, Temperature

variants = pytest.mark.parametrize("variant", VARIANTS)

prompts_of_any_shape = st.lists(
    st.tuples(st.integers(0, 12), st.lists(st.integers(5, 39), min_size=1, max_size=12)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=12, deadline=None)
@given(
    shapes=prompts_of_any_shape,
    variant=st.sampled_from(list(VARIANTS)),
    m=st.sampled_from([1, 3, 100]),
    steps=st.integers(1, 6),
    data=st.data(),
)
def test_draws_of_any_prompts_have_the_log_probabilities_of_a_plain_forward_pass(
    shapes: list[tuple[int, list[int]]], variant: str, m: int, steps: int, data: Any
) -> None:
    head = tuple(data.draw(st.lists(st.integers(5, 39), min_size=12, max_size=12)))
    prompts = [Prompt(f"q{i}", (*head[:shared], *own)) for i, (shared, own) in enumerate(shapes)]
    methods = [Base(), Temperature(2.5)]
    found = sample(language_model(variant), methods, prompts, seeds=[3], m=m, max_new_tokens=steps)
    for method, of_prompts in zip(methods, found, strict=True):
        assert_plain(variant, prompts, [draws[:8] for draws in of_prompts], method.temperature)


@variants
def test_draws_beside_older_and_younger_questions_have_plain_log_probabilities(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two questions enter at every step, so that trees of all depths grow side by side.

    Neither batches nor parts of a pass move a draw.
    """
    methods, how = [Base(), SE(), Temperature(3.0)], {"m": 3, "max_new_tokens": 5}
    model = language_model(variant)
    assert model.attention == "three levels"
    together = token_ids(sample(model, methods, **how))
    with monkeypatch.context() as patch:
        patch.setattr("semcal.models.engine.tree_cache._TOKENS_PER_PASS", {"cpu": 3})
        assert token_ids(sample(model, methods, **how)) == together
    assert token_ids(sample(language_model(variant, budget=1), methods, **how)) == together
    monkeypatch.setattr(
        "semcal.models.engine.decoding.Scheduler.admissible", lambda queue, *_, **__: min(2, len(queue))
    )
    found = sample(model, methods, **how)
    assert token_ids(found) == together
    for draws, temperature in zip(found, (1.0, 0.5, 3.0), strict=True):
        assert_plain(variant, PROMPTS, draws, temperature)


@pytest.mark.parametrize("variant", ["mistral sliding", "gpt2", "gemma2 soft-capped"])
def test_three_levels_and_the_plain_way_give_the_same_draws_beams_and_scores(variant: str) -> None:
    ways = three, plain = [language_model(variant, plain=plain) for plain in (False, True)]
    assert (three.attention, plain.attention) == ("three levels", "plain")
    methods = [Base(), SE(), ats(variant)]
    assert_same(*(sample(way, methods, seeds=[1, 2], m=4, max_new_tokens=5) for way in ways))
    beams = [token_ids(way.beam(PROMPTS, recalibrator=Base(), max_new_tokens=4)) for way in ways]
    assert beams[0] == beams[1]
    answers = [[(6, 7, 8), (6, 7, 9, 4), ()], [], [(4,)], [(30, 31)], [], []]
    for method in methods:
        scores = [way.score(PROMPTS, answers, recalibrator=method) for way in ways]
        for of_three, of_plain in zip(*scores, strict=True):
            for a, b in zip(of_three, of_plain, strict=True):
                np.testing.assert_allclose(a, b, rtol=0, atol=1e-4)


def test_a_model_with_a_mask_of_its_own_runs_in_the_plain_way_and_says_so() -> None:
    """Attention sinks are a tensor that the layers add: not a level's business."""
    experts = {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 64}
    sinks = tiny_models.model("gpt_oss", vocabulary=40, **experts)
    with pytest.warns(SemcalWarning, match=r"GptOssForCausalLM.*s_aux"):
        model = CausalLanguageModel(sinks, tiny_models.tokenizer(), name="sinks")
    assert "attention='plain'" in repr(model)
    [[draws]] = sample(model, [Base()], [Prompt("q", (5, 6, 7))], m=2, max_new_tokens=3)
    assert len(draws) == 2


def test_a_window_that_the_layers_do_not_ask_for_is_not_trusted() -> None:
    model = tiny_models.model("qwen2", use_sliding_window=True, sliding_window=300, max_window_layers=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checked_network(model).patched is not None
    model.config.layer_types = ["sliding_attention", "full_attention"]
    with pytest.warns(SemcalWarning, match=r"\[None, 300\]"):
        assert checked_network(model).patched is None


def test_the_user_s_model_keeps_its_own_attention_and_weights() -> None:
    model = tiny_models.model("llama")
    before = model.config._attn_implementation
    patched = checked_network(model).patched
    assert model.config._attn_implementation == before != patched.config._attn_implementation
    assert patched.embed_tokens.weight is model.model.embed_tokens.weight
    assert patched.layers[1].mlp is not model.model.layers[1].mlp
    assert patched.layers[1].mlp.up_proj.weight is model.model.layers[1].mlp.up_proj.weight


# Parts of attention


def states(seed: int, *lengths: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 3, n, 8, generator=g) for n in lengths]


@settings(max_examples=30, deadline=None)
@given(
    cut=st.integers(1, 11),
    window=st.none() | st.integers(1, 14),
    softcap=st.none() | st.floats(0.5, 5),
    seed=st.integers(0, 99),
)
def test_parts_merge_to_the_softmax_over_all_keys(
    cut: int, window: int | None, softcap: float | None, seed: int
) -> None:
    q, k, v = (2 * one for one in states(seed, 5, 12, 12))
    rule = AttentionConfig(0.3, softcap, window)
    visible = torch.rand(2, 1, 5, 12, generator=torch.Generator().manual_seed(seed)) < 0.6
    visible[..., -1] = True
    scores = torch.einsum("bhqd,bhkd->bhqk", q.double(), k.double()) * 0.3
    if softcap is not None:
        scores = (scores / softcap).tanh() * softcap
    expected = scores.masked_fill(~visible, -torch.inf).softmax(-1) @ v.double()
    halves = [slice(None, cut), slice(cut, None)]
    parts = [attend(q, k[:, :, half], v[:, :, half], rule, visible[..., half]) for half in halves]
    torch.testing.assert_close(merge(parts).double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("window", [None, 3, 40])
def test_causal_attention_sees_itself_and_what_its_window_holds(window: int | None) -> None:
    q, k, v = states(0, 9, 9, 9)
    near = torch.ones(9, 9).tril().bool() & (torch.ones(9, 9).triu(1 - (window or 9)).bool())
    scores = (q @ k.transpose(-1, -2) * 0.5).masked_fill(~near, -torch.inf)
    found = attend_causally(q, k, v, AttentionConfig(0.5, None, window))
    torch.testing.assert_close(found.output, scores.softmax(-1) @ v, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.log_sum_exp, scores.logsumexp(-1), rtol=0, atol=1e-5)


def test_scores_in_several_parts_are_those_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = states(0, 7, 5, 5)
    visible = torch.rand(2, 1, 7, 5, generator=torch.Generator().manual_seed(0)) < 0.7
    whole = attend(q, k, v, AttentionConfig(0.5), visible)
    monkeypatch.setattr("semcal.models.engine.network._MAX_SCORES", 60)
    parts = attend(q, k, v, AttentionConfig(0.5), visible)
    seen = visible.any(-1).expand(2, 3, 7)
    torch.testing.assert_close(parts.output[seen], whole.output[seen], rtol=0, atol=1e-6)
    torch.testing.assert_close(parts.log_sum_exp[seen], whole.log_sum_exp[seen], rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_no_dtype_overflows_where_nothing_is_seen_or_many_keys_weigh_alike(dtype: torch.dtype) -> None:
    query, key, value = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 4096, 4), torch.full((1, 1, 4096, 4), 30.0)
    visible = torch.tensor([True, False])[:, None].expand(2, 4096)
    far = attend(*(states.to(dtype) for states in (query, key, value)), AttentionConfig(0.5), visible)
    near = PartialAttention(torch.ones(1, 1, 2, 4, dtype=dtype), torch.zeros(1, 1, 2))
    found = merge([far, near])[0, 0, :, 0].float()
    expected = torch.tensor([(30 * 4096 + 1) / 4097, 1.0])
    torch.testing.assert_close(found, expected, rtol=2 * torch.finfo(dtype).eps, atol=0)


@settings(deadline=None)
@given(
    st.integers(1, 400),
    st.integers(0, 99),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=6),
)
def test_blocks_draw_the_token_that_the_sum_over_the_vocabulary_draws(
    size: int, seed: int, u: list[float]
) -> None:
    """The rule, literally: the first token v with F(v) > u F(last), in float64; some weights are 0."""
    generator = np.random.default_rng(seed)
    weights = (generator.random((2, size)) ** 8 * (generator.random((2, size)) < 0.5)).astype(np.float32)
    weights[:, generator.integers(size)] = 1
    rows = np.arange(len(u)) % 2
    held = torch.from_numpy(weights)
    sums, uniforms = block_sums(held), torch.tensor(u, dtype=torch.float64)
    drawn = draw_by_weights(lambda row, token: held[row, token], sums, size, torch.from_numpy(rows), uniforms)
    for row, number, token in zip(rows, u, drawn.tolist(), strict=True):
        steps = np.cumsum(weights[row].astype(np.float64))
        assert weights[row, token] > 0
        if np.abs(number - steps / steps[-1]).min() > 1e-12:
            assert token == int(np.argmax(steps > number * steps[-1]))
