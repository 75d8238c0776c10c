"""ATS against transformers' decoder layer, and what ATS and Platt promise of every distribution."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from calibration_sets import made
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

import semcal
from semcal.errors import FitError, UsageError
from semcal.models.fakes import FakeLanguageModel
from semcal.models.load import load_model
from semcal.recalibration import ATS, BlockShape, Platt, TemperatureScaling
from semcal.recalibration.exact_solver import inverse_temperatures

SHAPE = BlockShape(16, 40, 4, 2, 6, rope_theta=500.0, rms_eps=1e-6)


def shaken(shape: BlockShape = SHAPE, seed: int = 0) -> ATS:
    """An ATS whose every weight, the read-out included, is random."""
    ats = ATS(shape).requires_grad_(False)
    g = torch.Generator().manual_seed(seed)
    for weight in ats.parameters():
        weight += torch.randn(weight.shape, generator=g) * 0.3
    return ats


def llama_layer(ats: ATS) -> tuple[LlamaDecoderLayer, LlamaRotaryEmbedding]:
    """transformers' decoder layer with the same weights."""
    s = ats.shape
    config = LlamaConfig(
        hidden_size=s.hidden_size,
        intermediate_size=s.intermediate_size,
        num_attention_heads=s.heads,
        num_key_value_heads=s.key_value_heads,
        head_dim=s.head_dim,
        rms_norm_eps=s.rms_eps,
        rope_parameters={"rope_type": "default", "rope_theta": s.rope_theta},
        rope_theta=s.rope_theta,
        num_hidden_layers=1,
        attn_implementation="eager",
    )
    layer = LlamaDecoderLayer(config, 0).eval().requires_grad_(False)
    pairs = {
        "input_layernorm": ats.attention_norm,
        "self_attn.q_proj": ats.query,
        "self_attn.k_proj": ats.key,
        "self_attn.v_proj": ats.value,
        "self_attn.o_proj": ats.out,
        "post_attention_layernorm": ats.mlp_norm,
        "mlp.gate_proj": ats.gate,
        "mlp.up_proj": ats.up,
        "mlp.down_proj": ats.down,
    }
    layer.load_state_dict({f"{name}.weight": part.weight for name, part in pairs.items()})
    return layer, LlamaRotaryEmbedding(config)


def plain(ats: ATS, states: torch.Tensor) -> torch.Tensor:
    """1/T (n,) at all positions of one sequence (n, d), by transformers' full causal forward."""
    layer, rotary = llama_layer(ats)
    n = len(states)
    mask = torch.full((n, n), -torch.inf).triu(1)[None, None]
    where = torch.arange(n)[None]
    out = layer(
        states[None],
        attention_mask=mask,
        position_ids=where,
        position_embeddings=rotary(states[None], where),
    )
    out = out[0] if isinstance(out, tuple) else out
    return ats.readout(out)[0, :, 0].exp().clamp(0.05, 20)


@pytest.mark.parametrize("prefix", [0, 7])
def test_answer_positions_alone_give_what_the_full_forward_of_transformers_gives(prefix: int) -> None:
    features = made(1, questions=5, references=3, prefix=prefix).features
    ats = shaken()
    expected = []
    for answer in range(len(features.answer_question)):
        question = features.answer_question[answer]
        start, length = int(features.prompt_start[question]), int(features.prompt_length[question])
        rows = features.predicting(answer)
        own = torch.cat([features.states[start : start + length], features.states[rows[1:]]])
        expected.append(plain(ats, torch.cat([features.prefix, own]))[-len(rows) :])
    reference = torch.cat(expected)
    assert reference.std() > 0.1
    assert torch.allclose(inverse_temperatures(ats, features), reference, rtol=1e-5, atol=1e-5)


def test_token_by_token_with_a_cache_gives_what_all_at_once_gives() -> None:
    ats, states = shaken(), torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(3))
    where = torch.arange(9).expand(2, -1)
    all_at_once = ats.inverse_temperature(
        states, where, *ats.keys_values(states, where), torch.ones(2, 9, 9).tril().bool()
    )
    keys = values = torch.zeros(2, 2, 0, 6)
    for i in range(9):
        k, v = ats.keys_values(states[:, i : i + 1], where[:, i : i + 1])
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        visible = torch.ones(2, 1, i + 1, dtype=torch.bool)
        one = ats.inverse_temperature(states[:, i : i + 1], where[:, i : i + 1], keys, values, visible)
        assert torch.allclose(one[:, 0], all_at_once[:, i], rtol=1e-5, atol=1e-5)
    assert torch.allclose(all_at_once[0], plain(ats, states[0]), rtol=1e-5, atol=1e-5)


def test_branches_of_a_tree_in_one_row_do_not_see_each_other() -> None:
    ats, states = shaken(), torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(4))
    # slots 0, 1 are the stem; 2, 3 one branch and 4 the other, which stands at the position of slot 2
    where = torch.tensor([[0, 1, 2, 3, 2]])
    tree = torch.tensor([[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 0, 0, 1]])
    found = ats.inverse_temperature(states, where, *ats.keys_values(states, where), tree[None].bool())[0]
    assert torch.allclose(found[:4], plain(ats, states[0, :4]), atol=1e-5)
    assert torch.allclose(found[4], plain(ats, states[0, [0, 1, 4]])[2], atol=1e-5)


def test_ats_and_platt_start_as_the_model_exactly() -> None:
    features = made(2).features
    assert torch.equal(inverse_temperatures(ATS(SHAPE), features), torch.ones(len(features.targets)))
    z = torch.randn(4, 9, generator=torch.Generator().manual_seed(0)) * 5
    for log_probs in (Platt(9).log_probs(z), ATS(SHAPE).log_probs(z, torch.full((4,), 1.0))):
        assert torch.equal(log_probs, torch.log_softmax(z, -1))


@pytest.mark.parametrize(("bias", "bound"), [(50.0, 20.0), (-50.0, 0.05)])
def test_a_temperature_at_its_bound_can_come_back_but_not_go_further(bias: float, bound: float) -> None:
    ats = ATS(SHAPE)
    torch.nn.init.constant_(ats.readout.bias, bias)
    states, where = torch.ones(1, 1, 16), torch.zeros(1, 1)
    for outward in (False, True):
        ats.zero_grad()
        visible = torch.ones(1, 1, 1).bool()
        beta = ats.inverse_temperature(states, where, *ats.keys_values(states, where), visible)
        assert float(beta.detach()) == pytest.approx(bound)
        (beta if (bias > 0) != outward else -beta).sum().backward()
        assert float(ats.readout.bias.grad) == pytest.approx(0 if outward else math.copysign(bound, bias))


@settings(max_examples=30)
@given(seed=st.integers(0, 99), scale=st.floats(0.1, 8))
def test_ats_keeps_the_order_of_tokens_and_gives_a_distribution(seed: int, scale: float) -> None:
    g = torch.Generator().manual_seed(seed)
    z, beta = torch.randn(5, 30, generator=g) * scale, torch.rand(5, generator=g) * 3 + 0.05
    log_p = ATS(SHAPE).log_probs(z, beta)
    assert log_p.dtype == torch.float32
    assert torch.allclose(log_p.exp().sum(-1), torch.ones(5), atol=1e-5)
    assert torch.equal(log_p.argmax(-1), z.argmax(-1))
    by_logit = log_p.gather(1, z.argsort(1))
    assert bool((by_logit.diff() >= 0).all())


def test_platt_is_its_formula_and_can_change_the_top_token() -> None:
    g = torch.Generator().manual_seed(0)
    platt = Platt(6).requires_grad_(False)
    platt.weight += torch.randn(6, generator=g)
    platt.bias += torch.randn(6, generator=g)
    z = torch.randn(50, 6, generator=g)
    expected = torch.softmax(torch.diag(platt.weight).double() @ z.double().T + platt.bias[:, None], 0).T
    assert torch.allclose(platt.log_probs(z).exp().double(), expected, atol=1e-6)
    assert bool((platt.log_probs(z).argmax(1) != z.argmax(1)).any())
    assert platt.log_probs(z.bfloat16()).dtype == torch.float32


def test_platt_never_brings_back_an_impossible_token_nor_learns_from_it() -> None:
    platt = Platt(3)
    with torch.no_grad():
        platt.weight[:] = torch.tensor([1.0, 0.0, -1.0])
    log_p = platt.log_probs(torch.tensor([[0.0, -torch.inf, -torch.inf]]))
    assert log_p.tolist() == [[0.0, -torch.inf, -torch.inf]]
    (-platt.log_probs(torch.tensor([0.0, 1.0, -torch.inf]))[1]).backward()
    assert bool(platt.weight.grad.isfinite().all())


@pytest.mark.parametrize(
    ("name", "value"), [("heads", 3), ("head_dim", 5), ("hidden_size", 0), ("rms_eps", -1.0)]
)
def test_a_block_that_cannot_be_is_refused(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=name):
        BlockShape(**{**vars(SHAPE), name: value})


def test_ats_refuses_a_set_of_answer_positions_only() -> None:
    with pytest.raises(FitError, match="whole"):
        inverse_temperatures(ATS(SHAPE), made(0, whole=False).features)


# ---- Recalibrators are fitted in the way of scikit-learn, and that gives what `semcal.fit` gives -----------

TABLE = {f"Who built mill {i}?": {"Ana.": 0.9, "Bo.": 0.1} for i in range(50)}
LABELED = [{"question": q, "answers": "Ana." if i % 3 else "Bo."} for i, q in enumerate(TABLE)]
MODEL = FakeLanguageModel(TABLE)


@pytest.mark.parametrize(
    ("estimator", "method"), [(TemperatureScaling("SS", 0.25), "TS"), (Platt(loss="SS", alpha=0.25), "Platt")]
)
def test_fit_on_a_model_gives_what_semcal_fit_gives_and_the_recalibrator_has_it(
    estimator: Any, method: str
) -> None:
    options: dict[str, Any] = {"seed": 3, "progress": False}
    if method == "Platt":
        options["learning_rate"] = 0.1
    expected = semcal.fit(MODEL, LABELED, method=method, loss="SS", alpha=0.25, **options)
    found = estimator.fit(MODEL, LABELED, **options)
    assert found.recalibrator is estimator
    assert repr(estimator) == repr(expected.recalibrator)
    assert (found.report, found.provenance) == (expected.report, expected.provenance)
    if method == "Platt":
        assert estimator.fingerprint() == expected.recalibrator.fingerprint()


def test_ats_takes_its_shape_from_the_model() -> None:
    model = load_model("atlas", device="cpu")
    labeled = [{"question": f"Who built mill {i}?", "answers": "Ana"} for i in range(50)]
    ats = ATS(loss="SS", alpha=0.5)
    assert repr(ats) == "ATS(loss='SS', alpha=0.5)"
    found = ats.fit(model, labeled, seed=2, progress=False)
    expected = semcal.fit(model, labeled, method="ATS", loss="SS", alpha=0.5, seed=2, progress=False)
    assert ats.shape == model.block_shape
    assert ats.fingerprint() == expected.recalibrator.fingerprint()
    assert found.report == expected.report


def test_the_prompt_of_a_fit_is_one_object() -> None:
    prompt = semcal.PromptConfig([{"question": "Who?", "answers": "Ana."}], system="Answer briefly.")
    found = TemperatureScaling().fit(MODEL, LABELED, prompt=prompt, progress=False)
    assert (found.asking.few_shot, found.asking.template) == (prompt.few_shot, prompt.template)
