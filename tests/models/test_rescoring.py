"""Likelihoods of answers that are cut or met the token limit: those of scoring, and what runs for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tiny_models
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_engine import PROMPTS as SIX
from tiny_engine import Counted, ats, flat, plain_log_probs, sample

from semcal.models import CausalLanguageModel, Generation, Prompt
from semcal.recalibration import SE, Base, Platt, Temperature

PROMPTS = SIX[:5]
STEPS = 6
Cut = Callable[[Generation], int | None]

LLAMA = Counted()
PLAIN = Counted("gpt2", template=None)


def draws(model: CausalLanguageModel, methods: list[Any], cut: Cut | None = None, **how: Any) -> Any:
    """Draws of which what follows a cut is left out, with nothing passed over."""

    def told(_: Prompt, draw: Generation) -> tuple[int, int, bool]:
        assert cut is not None
        return 0, len(draw.text) if (end := cut(draw)) is None else end, True

    how = {"prompts": PROMPTS, "max_new_tokens": STEPS, **how}
    return sample(model, methods, **how, **({} if cut is None else {"cut": told}))


def at_token(model: CausalLanguageModel, count: int) -> Cut:
    """Cut behind so many tokens."""
    return lambda draw: len(model.format.text(draw.token_ids[:count]))


def check(model: CausalLanguageModel, cut: Cut, recalibrators: list[Any], m: int = 6, seed: int = 0) -> int:
    """Compare with scoring what is left of each draw; how many draws were cut."""
    found = draws(model, recalibrators, cut, m=m, seeds=[seed])
    plain = draws(model, recalibrators, m=m, seeds=[seed])
    cuts = 0
    for recalibrator, of_prompts, uncut in zip(recalibrators, found, plain, strict=True):
        wanted = [
            [model.complete(one, len(one.text) if (end := cut(one)) is None else end) for one in of_prompt]
            for of_prompt in uncut
        ]
        scores = model.score(PROMPTS, wanted, recalibrator=recalibrator)
        for of_prompt, *expected in zip(of_prompts, uncut, wanted, scores, strict=True):
            for draw, same, tokens, score in zip(of_prompt, *expected, strict=True):
                assert draw.token_ids == same.token_ids
                assert (draw.rescored is None) == (tokens == draw.token_ids)
                cuts += cut(same) is not None
                assert draw.rescored is None or draw.rescored == pytest.approx(score, abs=1e-4)
    return cuts


@pytest.mark.parametrize("counted", [LLAMA, PLAIN], ids=["template", "plain text"])
@settings(deadline=None, max_examples=12)
@given(st.integers(0, STEPS), st.integers(0, 10**6), st.sampled_from([1, 7]))
def test_cut_answers_cost_what_scoring_says(counted: Counted, count: int, seed: int, m: int) -> None:
    """Behind any number of tokens; unfinished ones with all their tokens among them."""
    platt = Platt(counted.model.network.vocabulary).requires_grad_(False)
    methods = [Base(), SE(), platt, Temperature(2.0), *([ats()] if counted is LLAMA else [])]
    cut = at_token(counted.model, count)
    assert check(counted.model, cut, methods, m, seed) == len(methods) * 5 * m


@pytest.mark.parametrize("counted", [LLAMA, PLAIN], ids=["template", "plain text"])
def test_a_cut_inside_a_token_asks_for_other_tokens(counted: Counted) -> None:
    assert check(counted.model, lambda draw: len(draw.text) // 2, [Base(), SE()]) == 60


def test_only_what_is_to_be_cut_is_rescored() -> None:
    cuts = check(LLAMA.model, lambda draw: 0 if "a" in draw.text else None, [Base()], m=20)
    assert 0 < cuts < 100


def run_by(cut: Cut | None = None, **how: Any) -> tuple[int, int]:
    """Calls and tokens of the model that draws take."""
    return LLAMA.of(lambda model: draws(model, [Base(), SE()], cut, m=10, **how))[:2]


def test_cut_answers_run_nothing() -> None:
    run_by()  # so that the prefix has run
    plain = run_by()
    for count in range(STEPS):
        assert run_by(at_token(LLAMA.model, count)) == plain


def test_of_answers_that_met_the_limit_the_last_tokens_run() -> None:
    """One question, so that no padding runs: a token more for each distinct answer that is not finished."""
    one = {"prompts": PROMPTS[:1]}
    found = draws(LLAMA.model, [Base(), SE()], m=10, **one)
    unfinished = {draw.token_ids for draw in flat(found) if not draw.finished}
    assert len(unfinished) > 1
    calls, tokens = run_by(**one)
    whole = run_by(lambda draw: None if draw.finished else len(draw.text), **one)
    assert whole == (calls + 1, tokens + len(unfinished))
    shorter = at_token(LLAMA.model, STEPS - 1)
    assert run_by(lambda draw: None if draw.finished else shorter(draw), **one) == (calls, tokens)


def test_a_limit_as_long_as_the_model_allows_leaves_room_for_the_end_of_turn() -> None:
    network = tiny_models.model("llama", limit=len(PROMPTS[0].token_ids) + STEPS)
    fits = CausalLanguageModel(network, tiny_models.tokenizer(), name="tiny")
    found = draws(fits, [Base()], lambda draw: None if draw.finished else len(draw.text), prompts=PROMPTS[:1])
    assert {len(draw.rescored or ()) for draw in flat(found) if not draw.finished} == {STEPS + 1}


@pytest.mark.parametrize("finished", [True, False], ids=["whole", "cut"])
def test_what_follows_a_lead_in_is_scored_behind_it_as_plain_transformers_do(finished: bool) -> None:
    """A lead-in of two tokens: drawn values where all the rest is the answer, else with an end of turn."""
    model, seen = LLAMA.model, 0

    def cut(_: Prompt, draw: Generation) -> tuple[int, int, bool]:
        end = len(draw.text) if finished and draw.finished else len(model.format.text(draw.token_ids[:4]))
        return len(model.format.text(draw.token_ids[:2])), end, True

    m = 200 if finished else 20
    (found,) = sample(model, [Base()], PROMPTS, m=m, max_new_tokens=STEPS, cut=cut)
    for prompt, of_prompt in zip(PROMPTS, found, strict=True):
        for draw in of_prompt:
            start, end, _ = cut(prompt, draw)
            if draw.lead != 2 or not 0 < start < end or "\ufffd" in draw.text:
                continue
            sampled = draw.rescored is None
            assert sampled == (finished and draw.finished)
            tokens = draw.token_ids if sampled else model.complete(draw, end, start)
            scores = draw.token_log_probs if sampled else draw.rescored
            assert tokens[:2] == draw.token_ids[:2]
            expected = plain_log_probs("llama", (*prompt.token_ids, *tokens[:2]), tokens[2:])
            assert list(scores[2:]) == pytest.approx(expected, abs=1e-4)
            seen += sampled == finished
    assert seen > 5


def test_an_answer_that_begins_inside_a_token_is_encoded_anew_behind_its_lead_in() -> None:
    model, seen = LLAMA.model, 0
    how: dict[str, Any] = {"cut": lambda _, d: (len(d.text) // 2, len(d.text), True), "m": 20}
    (found,) = sample(model, [Base()], PROMPTS, max_new_tokens=STEPS, **how)
    for prompt, of_prompt in zip(PROMPTS, found, strict=True):
        for draw in of_prompt:
            if draw.rescored is None or "\ufffd" in draw.text:
                continue
            start = len(draw.text) // 2
            tokens = model.complete(draw, len(draw.text), start)
            lead, answer = tokens[: draw.lead], tokens[draw.lead :]
            assert model.format.text(lead) == draw.text[: len(model.format.text(lead))]
            assert not draw.text[len(model.format.text(lead)) : start].strip()
            expected = plain_log_probs("llama", (*prompt.token_ids, *lead), answer)
            assert list(draw.rescored[draw.lead :]) == pytest.approx(expected, abs=1e-4)
            seen += tokens[:-1] != draw.token_ids
    assert seen > 5
