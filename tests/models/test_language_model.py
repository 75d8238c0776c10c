"""The language model against plain transformers: the same logits, log-probabilities and answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from tiny_engine import PROMPTS as SIX
from tiny_engine import VARIANTS, assert_same, language_model, network, plain_log_probs, sample
from transformers import GenerationConfig

from semcal.errors import InputError, ModelError
from semcal.models import CausalLanguageModel, Prompt
from semcal.models.distribution import Greedy
from semcal.models.protocols import SampleRequest
from semcal.recalibration import SE, Base, Temperature

variants = pytest.mark.parametrize("variant", VARIANTS)
PROMPTS = SIX[:5]
ANSWERS = [
    [(51, 52, 53, 4), (51, 52, 4), (51,), ()],
    [(60, 61, 4)],
    [],
    [(4,), (51, 52, 53, 4), (51, 52, 53, 4), (51, 99, 53, 4)],
    [tuple(range(70, 82))],
]


@variants
def test_scores_are_those_of_a_plain_forward_pass(variant: str) -> None:
    scores = language_model(variant).score(PROMPTS, ANSWERS, recalibrator=Temperature(1.7))
    for prompt, given, scored in zip(PROMPTS, ANSWERS, scores, strict=True):
        for answer, log_probs in zip(given, scored, strict=True):
            expected = plain_log_probs(variant, prompt.token_ids, answer, 1.7)
            np.testing.assert_allclose(log_probs, expected, rtol=0, atol=1e-4)


@variants
def test_the_states_of_whole_sequences_are_the_plain_model_s(variant: str) -> None:
    """The head makes the model's logits of them."""
    model = language_model(variant)
    found = model.features(PROMPTS, ANSWERS, whole=True)
    for q, given in enumerate(ANSWERS):
        start, length = int(found.prompt_start[q]), int(found.prompt_length[q])
        for a, ids in enumerate(given):
            behind = int(found.answer_start[found.answer_question.tolist().index(q) + a])
            states = [
                found.prefix,
                found.states[start : start + length],
                found.states[behind : behind + len(ids) - 1],
            ]
            with torch.no_grad():
                plain = network(variant)(torch.tensor([[*PROMPTS[q].token_ids, *ids[:-1]]])).logits[0]
            torch.testing.assert_close(model.logits(torch.cat(states)), plain, rtol=0, atol=1e-4)


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
        expected = plain_log_probs(variant, prompt.token_ids, answer.token_ids, 2.0)
        np.testing.assert_allclose(answer.token_log_probs, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
@pytest.mark.parametrize("num_beams", [1, 4])
def test_beam_answers_are_those_of_transformers_generate(family: str, num_beams: int) -> None:
    """In the beams of such small vocabularies the end of turn comes often: of 12 tokens, 2 and 4 end it."""
    prompts = [Prompt(f"q{i}", (5, 6, 7, *(5 + (i * j) % 7 for j in range(i + 1)))) for i in range(8)]
    config = GenerationConfig(
        num_beams=num_beams, do_sample=False, max_new_tokens=6, eos_token_id=[2, 4], pad_token_id=0
    )
    lengths = set()
    for seed in range(2):
        plain = tiny_models.model(family, vocabulary=12, seed=seed)
        model = CausalLanguageModel(plain, tiny_models.tokenizer(), name=family)
        assert model.format.stops == {2, 4}
        answers = model.beam(prompts, recalibrator=Base(), num_beams=num_beams, max_new_tokens=6)
        for prompt, answer in zip(prompts, answers, strict=True):
            ids = torch.tensor([prompt.token_ids])
            whole = plain.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
            assert list(answer.token_ids) == whole[0, ids.shape[1] :].tolist()
            assert answer.finished == (answer.token_ids[-1] in (2, 4))
            lengths.add(len(answer.token_ids))
    assert len(lengths) > 1


@pytest.mark.parametrize("budget", [1, 50_000])
def test_batches_of_any_size_give_the_same_numbers(budget: int) -> None:
    models = language_model(), language_model(budget=budget)
    expected, scores = (model.score(PROMPTS, ANSWERS, recalibrator=Base()) for model in models)
    for one, other in zip(expected, scores, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
    assert_same(*(model.greedy(PROMPTS, recalibrator=Base()) for model in models))


def test_logits_in_several_parts_are_those_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model, methods = language_model(), [Base(), SE()]
    states = model.features(PROMPTS, ANSWERS).states
    whole, samples = model.logits(states), sample(model, methods, m=3)
    monkeypatch.setattr("semcal.models.engine.network._MAX_LOGITS", 3 * 400)
    torch.testing.assert_close(model.logits(states), whole, rtol=0, atol=1e-5)
    assert_same(sample(model, methods, m=3), samples)
    scores = model.score(PROMPTS, ANSWERS, recalibrator=Base())
    expected = plain_log_probs("llama", PROMPTS[1].token_ids, ANSWERS[1][0])
    np.testing.assert_allclose(scores[1][0], expected, atol=1e-4)


def test_features_can_be_learnt_from() -> None:
    states = language_model().features(PROMPTS, ANSWERS).states
    weight = torch.ones(states.shape[1], requires_grad=True)
    (states @ weight).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(weight.grad, states.sum(0))


# What is refused

SHORT: dict[str, dict[str, Any]] = {
    "sample": {"m": 1, "recalibrators": [Base()], "max_new_tokens": 8},
    "sample greedily": {"m": 1, "recalibrators": [Greedy()], "max_new_tokens": 8},
    "greedy": {"recalibrator": Base(), "max_new_tokens": 8},
    "beam": {"recalibrator": Base(), "max_new_tokens": 8},
    "score": {"answers": [[tuple(range(50, 58))]], "recalibrator": Base()},
}
calls = pytest.mark.parametrize("call", SHORT)


def called(model: CausalLanguageModel, call: str, prompts: Sequence[Prompt]) -> Any:
    """What a method returns; `sample` takes its options as a request."""
    if call.startswith("sample"):
        return model.sample(SampleRequest(prompts, **SHORT[call]))
    return getattr(model, call)(prompts, **SHORT[call])


@calls
def test_a_prompt_that_leaves_no_room_for_the_answer_is_an_error_naming_the_question(call: str) -> None:
    model = CausalLanguageModel(tiny_models.model("llama", limit=32), tiny_models.tokenizer(), name="x")
    assert called(model, call, [Prompt("short", tuple(range(10, 34)))])
    with pytest.raises(InputError, match="'long'"):
        called(model, call, [Prompt("long", tuple(range(10, 35)))])


@calls
@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_probabilities_that_are_no_numbers_are_an_error_whatever_is_asked(call: str, value: float) -> None:
    model = CausalLanguageModel(tiny_models.model("llama"), tiny_models.tokenizer(), name="broken")
    with torch.no_grad():
        model.network.model.lm_head.weight.fill_(value)
    with pytest.raises(ModelError, match="finite"):
        called(model, call, PROMPTS[:1])


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
    fits, over = (Prompt(f"to {end}", (*range(20, 45), *range(100, end))) for end in (134, 135))
    (((*got,),),) = model.score([fits], [[answer]], recalibrator=Base())
    with torch.no_grad():
        logits = network(torch.tensor([[*fits.token_ids, *answer]])).logits[0]
    expected = logits[len(fits.token_ids) - 1 : -1].log_softmax(-1)[range(5), list(answer)]
    assert got == pytest.approx(expected.tolist(), abs=1e-4)
    with pytest.raises(InputError, match=r"'to 135'.*longrope"):
        model.score([fits, over], [[answer], [answer]], recalibrator=Base())


@pytest.mark.parametrize(
    ("prompts", "answers", "named"),
    [
        ([Prompt("none", ())], [[]], "'none'"),
        *(([PROMPTS[0], Prompt("odd", (5, token))], [[], []], f"'odd'.* {token}") for token in (-1, 400)),
        *((PROMPTS[:1], [[(7,), (7, token)]], f"'q0'.* {token}") for token in (-1, 400)),
        (PROMPTS, [[]], "^answers: got 1 "),
    ],
)
def test_prompts_and_answers_that_the_model_cannot_read_are_named(
    prompts: list[Prompt], answers: Any, named: str
) -> None:
    with pytest.raises(InputError, match=named):
        language_model().score(prompts, answers, recalibrator=Base())


def test_a_model_that_looks_ahead_or_keeps_no_keys_and_values_is_refused() -> None:
    """BERT's decoder head without a causal mask, and recurrent layers."""
    for family in ("bert", "mamba"):
        with pytest.raises(ModelError, match=f"(?i){family}"):
            CausalLanguageModel(tiny_models.model(family), tiny_models.tokenizer(), name="other")


def test_an_end_of_turn_that_the_model_does_not_know_is_an_error_and_a_stop_is_never_drawn() -> None:
    small = tiny_models.model("llama", vocabulary=4)  # the template's end of turn is token 4
    model = CausalLanguageModel(small, tiny_models.tokenizer(), name="small")
    prompt, options = Prompt("q", (1, 2)), {"recalibrators": [Base()], "m": 1}
    assert model.sample(SampleRequest([prompt], **options))[0]
    with pytest.raises(ModelError, match="token 4"):
        model.sample(SampleRequest([prompt], cut=lambda *_: (0, 0, True), **options))[0]
    plain = language_model()
    model = CausalLanguageModel(network(), tiny_models.tokenizer(), name="llama")
    kind = type(model.format)
    model.format.__class__ = type("More", (kind,), {"stops": plain.format.stops | {400, 7000}})
    assert model.beam(PROMPTS, recalibrator=Base()) == plain.beam(PROMPTS, recalibrator=Base())
    assert model.greedy(PROMPTS, recalibrator=Base()) == plain.greedy(PROMPTS, recalibrator=Base())
