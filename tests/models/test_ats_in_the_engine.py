"""ATS and Platt inside sampling, beam search and scoring: one distribution, the plain one."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch
from tiny_engine import PROMPTS, assert_same, ats, language_model, network, sample, token_ids

from semcal.data.question import chat
from semcal.errors import UsageError
from semcal.models import Prompt
from semcal.models.fakes import FakeLanguageModel
from semcal.models.protocols import SampleRequest
from semcal.recalibration import ATS, SE, Base, Platt

VOCABULARY = 400


@cache
def platt() -> Platt:
    generator = torch.Generator().manual_seed(1)
    found = Platt(VOCABULARY).requires_grad_(False)
    found.weight.add_(0.3 * torch.randn(found.weight.shape, generator=generator))
    found.bias.add_(0.5 * torch.randn(found.bias.shape, generator=generator))
    return found


def plainly(variant: str, method: ATS, prompt: Prompt, answer: tuple[int, ...]) -> list[float]:
    """Each answer token's log-probability: one plain pass, then the block over all its states at once."""
    ids = torch.tensor([[*prompt.token_ids, *answer]])
    with torch.no_grad():
        output = network(variant)(ids, output_hidden_states=True)
        states, positions = output.hidden_states[-1], torch.arange(ids.shape[1])[None]
        keys, values = method.keys_values(states, positions)
        causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()[None]
        beta = method.inverse_temperature(states, positions, keys, values, causal)
        log_probs = (output.logits[0].double() * beta[0, :, None]).log_softmax(-1)
    start = len(prompt.token_ids) - 1
    return [float(log_probs[start + i, token]) for i, token in enumerate(answer)]


@pytest.mark.parametrize("variant", ["llama", "gpt2", "mistral sliding"])
def test_drawn_and_scored_tokens_have_the_log_probabilities_of_a_plain_pass(variant: str) -> None:
    method, model = ats(variant), language_model(variant)
    base, drawn = sample(model, [Base(), method], m=5, max_new_tokens=6)
    scores = model.score(PROMPTS, [[d.token_ids for d in draws] for draws in drawn], recalibrator=method)
    for prompt, draws, scored in zip(PROMPTS, drawn, scores, strict=True):
        for draw, score in zip(draws, scored, strict=True):
            expected = plainly(variant, method, prompt, draw.token_ids)
            np.testing.assert_allclose(draw.token_log_probs, expected, rtol=0, atol=1e-4)
            np.testing.assert_allclose(draw.token_log_probs, score, rtol=0, atol=1e-5)
    assert token_ids(drawn) != token_ids(base)


def test_several_recalibrators_share_a_pass_and_change_nothing_in_each_other() -> None:
    model, methods = language_model(), [ats(), SE(), platt(), ats("llama", 3), Base()]
    together = sample(model, methods, m=4, max_new_tokens=5)
    for method, draws in zip(methods, together, strict=True):
        assert_same(draws, sample(model, [method], m=4, max_new_tokens=5))


@pytest.mark.parametrize("recalibrator", [ats(), platt()], ids=["ATS", "Platt"])
def test_greedy_and_beam_answers_are_scored_as_given(recalibrator: ATS | Platt) -> None:
    model = language_model()
    for found in (
        model.greedy(PROMPTS, recalibrator=recalibrator, max_new_tokens=5),
        model.beam(PROMPTS, recalibrator=recalibrator, num_beams=3, max_new_tokens=5),
    ):
        scores = model.score(PROMPTS, [[best.token_ids] for best in found], recalibrator=recalibrator)
        for best, (score,) in zip(found, scores, strict=True):
            np.testing.assert_allclose(best.token_log_probs, score, rtol=0, atol=1e-5)


def test_the_fake_model_says_that_it_has_no_states() -> None:
    model = FakeLanguageModel({"Who?": {"Ana": 1.0}})
    prompt = Prompt("q", model.encode(chat("Who?")))
    with pytest.raises(UsageError, match="ATS"):
        model.sample(SampleRequest([prompt], recalibrators=[ats()]))[0]


def test_a_temperature_is_read_only_where_its_own_draws_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many other branches the tree has: reading is a block of the model for each recalibrator."""
    model, method, others = language_model(), ats(), [SE(), Base(), platt(), ats("llama", 3)]
    rows: Counter[int] = Counter()
    plain = ATS.queries

    def counted(self: ATS, states: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        rows[id(self)] += states.shape[1]
        return plain(self, states, positions)

    monkeypatch.setattr(ATS, "queries", counted)
    sample(model, [method], m=4, max_new_tokens=5)
    alone = rows[id(method)]
    sample(model, [method, *others], m=4, max_new_tokens=5)
    assert rows[id(method)] == 2 * alone
