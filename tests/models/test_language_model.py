"""The language model against plain transformers: the same logits, log-probabilities and answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from transformers import GenerationConfig

from semcal.errors import InputError, ModelError
from semcal.models import CausalLanguageModel, Prompt
from semcal.models.distribution import Greedy
from semcal.models.protocols import SampleRequest
from semcal.recalibration import SE, Base, Temperature

# family, options of its configuration: the promised ones, heads that do more than multiply, local attention
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tied": True}),
    "mistral": ("mistral", {}),
    "mistral sliding": ("mistral", {"sliding_window": 9}),
    "qwen2": ("qwen2", {}),
    "qwen2 sliding": ("qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    "gpt2": ("gpt2", {}),
    "gpt2 untied": ("gpt2", {"tied": False}),
    "gemma2 soft-capped": ("gemma2", {"final_logit_softcapping": 2.0, "sliding_window": 9}),
    "cohere scaled": ("cohere", {}),
    "granite scaled": ("granite", {}),
}
variants = pytest.mark.parametrize("variant", VARIANTS)
HEAD = tuple(range(20, 45))
PROMPTS = [Prompt(f"q{i}", (*HEAD, *range(100 + 7 * i, 104 + 9 * i))) for i in range(5)]
ANSWERS = [
    [(51, 52, 53, 4), (51, 52, 4), (51,), ()],
    [(60, 61, 4)],
    [],
    [(4,), (51, 52, 53, 4), (51, 52, 53, 4), (51, 99, 53, 4)],
    [tuple(range(70, 82))],
]


@cache
def network(variant: str) -> Any:
    family, options = VARIANTS[variant]
    return tiny_models.model(family, **options)


@cache
def language_model(variant: str = "llama") -> CausalLanguageModel:
    return CausalLanguageModel(network(variant), tiny_models.tokenizer(), name=variant, revision="r")


def plain_log_probs(
    variant: str, prompt: Prompt, answer: Sequence[int], temperature: float = 1.0
) -> list[float]:
    """Each answer token's log-probability from one full forward pass of plain transformers."""
    ids = [*prompt.token_ids, *answer]
    with torch.no_grad():
        logits = network(variant)(torch.tensor([ids]), attention_mask=torch.ones((1, len(ids)))).logits[0]
    log_probs = (logits.double() / temperature).log_softmax(-1)
    start = len(prompt.token_ids) - 1
    return [float(log_probs[start + i, token]) for i, token in enumerate(answer)]


@variants
def test_sampled_log_probabilities_are_those_of_a_plain_forward_pass(variant: str) -> None:
    recalibrators = [Base(), SE(), Temperature(3.0)]
    samples = language_model(variant).sample(
        SampleRequest(PROMPTS, m=4, recalibrators=recalibrators, max_new_tokens=6)
    )[0]
    for of_method, temperature in zip(samples, [1.0, 0.5, 3.0], strict=True):
        for prompt, draws in zip(PROMPTS, of_method, strict=True):
            for draw in draws:
                expected = plain_log_probs(variant, prompt, draw.token_ids, temperature)
                np.testing.assert_allclose(draw.token_log_probs, expected, rtol=0, atol=1e-4)


@variants
def test_scores_are_those_of_a_plain_forward_pass(variant: str) -> None:
    scores = language_model(variant).score(PROMPTS, ANSWERS, recalibrator=Temperature(1.7))
    for prompt, given, scored in zip(PROMPTS, ANSWERS, scores, strict=True):
        for answer, log_probs in zip(given, scored, strict=True):
            np.testing.assert_allclose(
                log_probs, plain_log_probs(variant, prompt, answer, 1.7), rtol=0, atol=1e-4
            )


@variants
def test_the_head_makes_the_model_s_logits_of_the_features(variant: str) -> None:
    found = language_model(variant).features(PROMPTS, ANSWERS)
    logits = language_model(variant).logits(found.states[found.predicting_rows()])
    rows = [
        (q, a, i) for q, given in enumerate(ANSWERS) for a, ids in enumerate(given) for i in range(len(ids))
    ]
    assert found.targets.tolist() == [ANSWERS[q][a][i] for q, a, i in rows]
    assert found.states.dtype == logits.dtype == torch.float32
    for row, (q, a, i) in enumerate(rows):
        ids = [*PROMPTS[q].token_ids, *ANSWERS[q][a][:i]]
        with torch.no_grad():
            output = network(variant)(torch.tensor([ids]), attention_mask=torch.ones((1, len(ids))))
        torch.testing.assert_close(logits[row], output.logits[0, -1], rtol=0, atol=1e-4)


def greedy_by_hand(variant: str, prompt: Prompt, steps: int, stops: frozenset[int]) -> list[int]:
    ids = list(prompt.token_ids)
    for _ in range(steps):
        with torch.no_grad():
            ids.append(int(network(variant)(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        if ids[-1] in stops:
            break
    return ids[len(prompt.token_ids) :]


@variants
def test_greedy_answers_are_those_of_the_plain_model(variant: str) -> None:
    model = language_model(variant)
    answers = model.greedy(PROMPTS, recalibrator=Temperature(2.0), max_new_tokens=7)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        assert list(answer.token_ids) == greedy_by_hand(variant, prompt, 7, model.format.stops)
        expected = plain_log_probs(variant, prompt, answer.token_ids, 2.0)
        np.testing.assert_allclose(answer.token_log_probs, expected, rtol=0, atol=1e-4)


def small_vocabulary(family: str, seed: int) -> CausalLanguageModel:
    """A model in whose beams the end of turn comes often: of 12 tokens, 2 and 4 end it."""
    model = tiny_models.model(family, vocabulary=12, seed=seed)
    return CausalLanguageModel(model, tiny_models.tokenizer(), name=family)


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
@pytest.mark.parametrize("num_beams", [1, 4])
def test_beam_answers_are_those_of_transformers_generate(family: str, num_beams: int) -> None:
    prompts = [Prompt(f"q{i}", (5, 6, 7, *(5 + (i * j) % 7 for j in range(i + 1)))) for i in range(8)]
    config = GenerationConfig(
        num_beams=num_beams, do_sample=False, max_new_tokens=6, eos_token_id=[2, 4], pad_token_id=0
    )
    lengths = set()
    for seed in range(3):
        model = small_vocabulary(family, seed)
        assert model.format.stops == {2, 4}
        answers = model.beam(prompts, recalibrator=Base(), num_beams=num_beams, max_new_tokens=6)
        for prompt, answer in zip(prompts, answers, strict=True):
            ids = torch.tensor([prompt.token_ids])
            mask = torch.ones_like(ids)
            whole = model.network.model.generate(ids, attention_mask=mask, generation_config=config)
            assert list(answer.token_ids) == whole[0, ids.shape[1] :].tolist()
            assert answer.finished == (answer.token_ids[-1] in (2, 4))
            lengths.add(len(answer.token_ids))
    assert len(lengths) > 1


@pytest.mark.parametrize("budget", [1, 50_000, 10**9])
def test_batches_of_any_size_give_the_same_numbers(budget: int) -> None:
    model = CausalLanguageModel(network("llama"), tiny_models.tokenizer(), name="x", memory_budget=budget)
    expected = language_model().score(PROMPTS, ANSWERS, recalibrator=Base())
    scores = model.score(PROMPTS, ANSWERS, recalibrator=Base())
    for one, other in zip(expected, scores, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
    assert model.greedy(PROMPTS, recalibrator=Base())[3].token_ids == (
        language_model().greedy(PROMPTS[3:4], recalibrator=Base())[0].token_ids
    )


@variants
def test_the_states_of_whole_sequences_are_the_plain_model_s(variant: str) -> None:
    model = language_model(variant)
    found = model.features(PROMPTS, ANSWERS, whole=True)
    for q, given in enumerate(ANSWERS):
        start, length = int(found.prompt_start[q]), int(found.prompt_length[q])
        for a, ids in enumerate(given):
            answer = found.answer_question.tolist().index(q) + a
            behind = int(found.answer_start[answer])
            states = [
                found.prefix,
                found.states[start : start + length],
                found.states[behind : behind + len(ids) - 1],
            ]
            with torch.no_grad():
                plain = model.network.model(input_ids=torch.tensor([[*PROMPTS[q].token_ids, *ids[:-1]]]))
            torch.testing.assert_close(
                model.logits(torch.cat(states)), plain.logits[0].float(), rtol=0, atol=1e-4
            )


def test_logits_in_several_parts_are_those_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = language_model()
    states = model.features(PROMPTS, ANSWERS).states
    whole, samples = (
        model.logits(states),
        model.sample(SampleRequest(PROMPTS, m=3, recalibrators=[Base(), SE()]))[0],
    )
    monkeypatch.setattr("semcal.models.engine.network._MAX_LOGITS", 3 * 400)
    torch.testing.assert_close(model.logits(states), whole, rtol=0, atol=1e-5)
    again = model.sample(SampleRequest(PROMPTS, m=3, recalibrators=[Base(), SE()]))[0]
    for one, other in zip(np.ravel(samples), np.ravel(again), strict=True):  # type: ignore[call-overload]
        assert one.token_ids == other.token_ids
    scores = model.score(PROMPTS, ANSWERS, recalibrator=Base())
    np.testing.assert_allclose(scores[1][0], plain_log_probs("llama", PROMPTS[1], ANSWERS[1][0]), atol=1e-4)


def test_features_can_be_learnt_from() -> None:
    states = language_model().features(PROMPTS, ANSWERS).states
    weight = torch.ones(states.shape[1], requires_grad=True)
    (states @ weight).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(weight.grad, states.sum(0))


def called(model: CausalLanguageModel, method: str, prompts: Sequence[Prompt], options: Any) -> Any:
    """What a method returns; `sample` takes its options as a request."""
    if method == "sample":
        return model.sample(SampleRequest(prompts, **options))
    return getattr(model, method)(prompts, **options)


@pytest.mark.parametrize("method", ["sample", "greedy", "beam", "score"])
def test_a_prompt_that_leaves_no_room_for_the_answer_is_an_error_naming_the_question(method: str) -> None:
    model = CausalLanguageModel(tiny_models.model("llama", limit=32), tiny_models.tokenizer(), name="x")
    fits, over = Prompt("short", tuple(range(10, 34))), Prompt("long", tuple(range(10, 35)))
    options: dict[str, dict[str, Any]] = {
        "sample": {"m": 1, "recalibrators": [Base()], "max_new_tokens": 8},
        "greedy": {"recalibrator": Base(), "max_new_tokens": 8},
        "beam": {"recalibrator": Base(), "max_new_tokens": 8},
        "score": {"answers": [[tuple(range(50, 58))]], "recalibrator": Base()},
    }
    assert called(model, method, [fits], options[method])
    with pytest.raises(InputError, match="question 'long'"):
        called(model, method, [over], options[method])


def long_rope(limit: int = 512) -> Any:
    factors = {"short_factor": [1.0] * 4, "long_factor": [3.0] * 4}
    rope = {"rope_type": "longrope", **factors, "original_max_position_embeddings": 64}
    return tiny_models.model(
        "phi3", limit=limit, rope_scaling=rope, original_max_position_embeddings=64, num_attention_heads=4
    )


def test_a_sequence_whose_length_would_turn_the_keys_of_the_prefix_is_refused_not_run_otherwise() -> None:
    network = long_rope()
    model = CausalLanguageModel(network, tiny_models.tokenizer(), name="phi3")
    answer = tuple(range(200, 205))
    fits, over = Prompt("short", (*HEAD, *range(100, 134))), Prompt("long", (*HEAD, *range(100, 135)))
    (((*got,),),) = model.score([fits], [[answer]], recalibrator=Base())
    ids = torch.tensor([[*fits.token_ids, *answer]])
    with torch.no_grad():
        expected = network(ids).logits[0, len(fits.token_ids) - 1 : -1].log_softmax(-1)
    assert got == pytest.approx(expected[range(5), list(answer)].tolist(), abs=1e-4)
    with pytest.raises(InputError, match=r"question 'long'.*longrope"):
        model.score([fits, over], [[answer], [answer]], recalibrator=Base())


def test_long_rotary_factors_that_can_never_be_reached_change_no_limit() -> None:
    model = CausalLanguageModel(long_rope(limit=48), tiny_models.tokenizer(), name="phi3")
    with pytest.raises(InputError, match="48"):
        model.greedy([Prompt("long", tuple(range(100, 140)))], recalibrator=Base(), max_new_tokens=9)


def test_an_empty_prompt_is_an_error_naming_the_question() -> None:
    with pytest.raises(InputError, match="question 'none'"):
        language_model().greedy([Prompt("none", ())], recalibrator=Base())


def test_an_empty_answer_has_no_scores_and_no_states() -> None:
    model = language_model()
    assert model.score(PROMPTS[:2], [[], [()]], recalibrator=Base()) == [[], [()]]
    assert len(model.features(PROMPTS, [[], [()], [], [], []]).targets) == 0


def test_answers_must_come_for_every_prompt() -> None:
    with pytest.raises(InputError, match="5 prompts, but 1"):
        language_model().score(PROMPTS, [[]], recalibrator=Base())


def test_a_model_that_looks_ahead_or_keeps_no_keys_and_values_is_refused() -> None:
    """BERT's decoder head without a causal mask, and recurrent layers."""
    from transformers import BertConfig, BertLMHeadModel, MambaConfig, MambaForCausalLM

    config = BertConfig(
        vocab_size=400, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    config.is_decoder = False
    with pytest.raises(ModelError, match="BertLMHeadModel"):
        CausalLanguageModel(BertLMHeadModel(config), tiny_models.tokenizer(), name="bert")
    config = MambaConfig(vocab_size=400, hidden_size=32, num_hidden_layers=2, state_size=4)
    with pytest.raises(ModelError, match="MambaForCausalLM"):
        CausalLanguageModel(MambaForCausalLM(config), tiny_models.tokenizer(), name="mamba")


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("method", ["sample", "sample greedily", "greedy", "beam", "score"])
def test_probabilities_that_are_no_numbers_are_an_error_whatever_is_asked(method: str, value: float) -> None:
    model = CausalLanguageModel(tiny_models.model("llama"), tiny_models.tokenizer(), name="broken")
    with torch.no_grad():
        model.network.model.lm_head.weight.copy_(torch.full((400, 32), value))
    options: dict[str, dict[str, Any]] = {
        "sample": {"m": 1, "recalibrators": [Base()]},
        "sample greedily": {"m": 1, "recalibrators": [Greedy()]},
        "greedy": {"recalibrator": Base()},
        "beam": {"recalibrator": Base()},
        "score": {"answers": [[(51, 52)]], "recalibrator": Base()},
    }
    with pytest.raises(ModelError, match="finite"):
        called(model, method.split()[0], PROMPTS[:1], options[method])


def test_a_token_that_the_model_does_not_know_is_an_error_naming_the_question() -> None:
    model, known = language_model(), Prompt("good", (5, 6))
    for token in (-1, 400):
        with pytest.raises(InputError, match=f"'odd'.* {token}"):
            model.greedy([known, Prompt("odd", (5, token, 6))], recalibrator=Base())
        with pytest.raises(InputError, match=f"'good'.* {token}"):
            model.score([known], [[(7,), (7, token)]], recalibrator=Base())


def test_an_end_of_turn_that_the_model_does_not_know_is_an_error() -> None:
    small = tiny_models.model("llama", vocabulary=4)  # the template's end of turn is token 4
    model = CausalLanguageModel(small, tiny_models.tokenizer(), name="small")
    prompt, options = Prompt("q", (1, 2)), {"recalibrators": [Base()], "m": 1}
    assert model.sample(SampleRequest([prompt], **options))[0]
    with pytest.raises(ModelError, match="token 4"):
        model.sample(SampleRequest([prompt], cut=lambda *_: (0, 0, True), **options))[0]


def test_a_stop_that_the_model_does_not_know_is_never_drawn() -> None:
    plain = language_model()
    model = CausalLanguageModel(network("llama"), tiny_models.tokenizer(), name="llama")
    kind = type(model.format)
    model.format.__class__ = type("More", (kind,), {"stops": plain.format.stops | {400, 7000}})
    assert model.beam(PROMPTS, recalibrator=Base()) == plain.beam(PROMPTS, recalibrator=Base())
    assert model.greedy(PROMPTS, recalibrator=Base()) == plain.greedy(PROMPTS, recalibrator=Base())
