"""Attention in parts, and the three levels behind it: exact for every prompt, length and window."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semcal.errors import SemcalWarning
from semcal.models import CausalLanguageModel, Prompt
from semcal.models.engine.draw import block_sums, draw_by_weights
from semcal.models.engine.network import AttentionConfig, PartialAttention, attend, attend_causally, merge
from semcal.models.engine.tree_cache import checked_network
from semcal.models.protocols import SampleRequest
from semcal.recalibration import ATS, SE, Base, BlockShape, Temperature

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "mistral sliding": ("mistral", {"sliding_window": 5}),
    "qwen2 partly sliding": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {}),
    "phi": ("phi", {}),
    "phi3": ("phi3", {}),
    "gpt2": ("gpt2", {}),
    "opt": ("opt", {}),
    "gemma2 soft-capped": ("gemma2", {"attn_logit_softcapping": 3.0, "sliding_window": 5}),
}
variants = pytest.mark.parametrize("variant", VARIANTS)


@cache
def network(variant: str) -> Any:
    family, options = VARIANTS[variant]
    return tiny_models.model(family, vocabulary=40, **options)


@cache
def language_model(variant: str, *, plain: bool = False, budget: int | None = None) -> CausalLanguageModel:
    model = CausalLanguageModel(network(variant), tiny_models.tokenizer(), name=variant, memory_budget=budget)
    if plain:
        model.network.patched = None
    return model


def plain_log_probs(variant: str, prompt: tuple[int, ...], answer: tuple[int, ...], t: float) -> list[float]:
    """From one full forward pass of plain transformers, in float64 behind the logits."""
    ids = torch.tensor([[*prompt, *answer]])
    with torch.no_grad():
        logits = network(variant)(ids, attention_mask=torch.ones_like(ids)).logits[0]
    log_probs = (logits.double() / t).log_softmax(-1)[len(prompt) - 1 :]
    return [float(log_probs[i, token]) for i, token in enumerate(answer)]


@variants
def test_every_architecture_of_the_interface_gets_three_levels(variant: str) -> None:
    assert language_model(variant).attention == "three levels"
    assert language_model(variant, plain=True).attention == "plain"


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
    [found] = language_model(variant).sample(
        SampleRequest(prompts, recalibrators=methods, seeds=[3], m=m, max_new_tokens=steps)
    )
    for method, of_prompts in zip(methods, found, strict=True):
        for prompt, draws in zip(prompts, of_prompts, strict=True):
            for draw in set(draws[:8]):
                expected = plain_log_probs(variant, prompt.token_ids, draw.token_ids, method.temperature)
                np.testing.assert_allclose(draw.token_log_probs, expected, rtol=0, atol=1e-4)


@variants
def test_three_levels_and_the_plain_way_give_the_same_draws_beams_and_scores(variant: str) -> None:
    prompts = [Prompt(f"q{i}", (*range(5, 20), *range(8, 10 + 2 * i))) for i in range(4)]
    three, plain = (language_model(variant, plain=way) for way in (False, True))
    options: dict[str, Any] = {"recalibrators": [Base(), SE()], "seeds": [1, 2], "m": 4, "max_new_tokens": 5}
    for one, other in zip(
        np.ravel(np.array(three.sample(SampleRequest(prompts, **options)), dtype=object)),
        np.ravel(np.array(plain.sample(SampleRequest(prompts, **options)), dtype=object)),
        strict=True,
    ):
        assert one.token_ids == other.token_ids
        np.testing.assert_allclose(one.token_log_probs, other.token_log_probs, rtol=0, atol=1e-4)
    beams = [way.beam(prompts, recalibrator=Base(), max_new_tokens=4) for way in (three, plain)]
    assert [beam.token_ids for beam in beams[0]] == [beam.token_ids for beam in beams[1]]
    answers = [[(6, 7, 8), (6, 7, 9, 4), ()], [], [(4,)], [(30, 31)]]
    scores = [way.score(prompts, answers, recalibrator=SE()) for way in (three, plain)]
    for of_three, of_plain in zip(*scores, strict=True):
        for a, b in zip(of_three, of_plain, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-4)


def test_ats_reads_the_same_temperatures_in_both_ways() -> None:
    ats = ATS(BlockShape(32, 48, heads=4, key_value_heads=2, head_dim=8)).requires_grad_(False)
    with torch.no_grad():
        ats.readout.weight.normal_(0, 0.3, generator=torch.Generator().manual_seed(0))
    prompts = [Prompt(f"q{i}", (*range(5, 20), *range(8, 10 + 2 * i))) for i in range(4)]
    answers = [[(6, 7, 8), (6, 7, 9, 4)], [(5,)], [(4,)], [(30, 31)]]
    scores = [
        language_model("llama", plain=way).score(prompts, answers, recalibrator=ats) for way in (False, True)
    ]
    base = language_model("llama").score(prompts, answers, recalibrator=Base())
    np.testing.assert_allclose(np.hstack(scores[0][0]), np.hstack(scores[1][0]), rtol=0, atol=1e-4)
    assert np.abs(np.hstack(scores[0][0]) - np.hstack(base[0])).max() > 1e-2


@variants
def test_neither_batches_nor_parts_of_a_pass_move_a_draw(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [Prompt(f"q{i}", (*range(5, 20), *range(8, 10 + 2 * i))) for i in range(5)]
    options: dict[str, Any] = {"recalibrators": [Base()], "m": 6, "max_new_tokens": 5}
    [whole] = language_model(variant).sample(SampleRequest(prompts, **options))[0]
    monkeypatch.setattr("semcal.models.engine.tree_cache._TOKENS_PER_PASS", {"cpu": 3})
    [parts] = language_model(variant).sample(SampleRequest(prompts, **options))[0]
    [alone] = language_model(variant, budget=1).sample(SampleRequest(prompts, **options))[0]
    for draws, *others in zip(whole, parts, alone, strict=True):
        for other in others:
            assert [draw.token_ids for draw in other] == [draw.token_ids for draw in draws]


@variants
def test_draws_beside_older_and_younger_questions_have_plain_log_probabilities(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two questions enter at every step, so that trees of all depths grow side by side."""
    prompts = [Prompt(f"q{i}", (*range(5, 20), *range(8, 10 + 2 * i))) for i in range(6)]
    options: dict[str, Any] = {"recalibrators": [Base()], "m": 3, "max_new_tokens": 5}
    [together] = language_model(variant).sample(SampleRequest(prompts, **options))[0]
    monkeypatch.setattr(
        "semcal.models.engine.decoding.Scheduler.admissible", lambda queue, *_, **__: min(2, len(queue))
    )
    [found] = language_model(variant).sample(SampleRequest(prompts, **options))[0]
    for prompt, draws, others in zip(prompts, found, together, strict=True):
        assert [draw.token_ids for draw in draws] == [draw.token_ids for draw in others]
        for draw in set(draws):
            expected = plain_log_probs(variant, prompt.token_ids, draw.token_ids, 1.0)
            np.testing.assert_allclose(draw.token_log_probs, expected, rtol=0, atol=1e-4)


def test_a_model_with_a_mask_of_its_own_runs_in_the_plain_way_and_says_so() -> None:
    """Attention sinks are a tensor that the layers add: not a level's business."""
    from transformers import GptOssConfig, GptOssForCausalLM

    config = GptOssConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=2,
        num_experts_per_tok=1,
        sliding_window=64,
        initializer_range=0.2,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    with pytest.warns(SemcalWarning, match=r"GptOssForCausalLM.*s_aux"):
        model = CausalLanguageModel(GptOssForCausalLM(config), tiny_models.tokenizer(), name="sinks")
    assert "attention='plain'" in repr(model)
    [[draws]] = model.sample(
        SampleRequest([Prompt("q", (5, 6, 7))], recalibrators=[Base()], m=2, max_new_tokens=3)
    )[0]
    assert len(draws) == 2


def test_a_window_that_the_layers_do_not_ask_for_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_models.model("mistral", sliding_window=300)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checked_network(model).patched is not None
    monkeypatch.setattr("semcal.models.engine.network.Network.windows", [300, None])
    with pytest.warns(SemcalWarning, match=r"\[300, 300\]"):
        assert checked_network(model).patched is None


def test_the_user_s_model_keeps_its_own_attention_and_weights() -> None:
    model = tiny_models.model("llama")
    before = model.config._attn_implementation
    patched = checked_network(model).patched
    assert model.config._attn_implementation == before != patched.config._attn_implementation
    assert patched.embed_tokens.weight is model.model.embed_tokens.weight
    assert patched.layers[1].mlp is not model.model.layers[1].mlp
    assert patched.layers[1].mlp.up_proj.weight is model.model.layers[1].mlp.up_proj.weight


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
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, 3, n, 8, generator=g) * 2 for n in (5, 12, 12))
    rule = AttentionConfig(0.3, softcap, window)
    visible = torch.rand(2, 1, 5, 12, generator=g) < 0.6
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
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 9, 8, generator=g) for _ in range(3))
    near = torch.ones(9, 9).tril().bool() & (torch.ones(9, 9).triu(1 - (window or 9)).bool())
    scores = (q @ k.transpose(-1, -2) * 0.5).masked_fill(~near, -torch.inf)
    found = attend_causally(q, k, v, AttentionConfig(0.5, None, window))
    torch.testing.assert_close(found.output, scores.softmax(-1) @ v, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.log_sum_exp, scores.logsumexp(-1), rtol=0, atol=1e-5)


def test_scores_in_several_parts_are_those_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 8, generator=g) for n in (7, 5, 5))
    visible = torch.rand(2, 1, 7, 5, generator=g) < 0.7
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
