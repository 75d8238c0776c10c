"""Likelihoods of answers that are cut or met the token limit: those of scoring, and what runs for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tiny_models
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semcal.models import CausalLanguageModel, Generation, Prompt
from semcal.models.protocols import SampleRequest
from semcal.recalibration import ATS, SE, Base, BlockShape, Platt, Temperature

PROMPTS = [Prompt(f"q{i}", (*range(20, 45), *range(100 + 7 * i, 104 + 9 * i))) for i in range(5)]
STEPS = 6


class Counted:
    """A tiny model, and how often its body ran on how many tokens."""

    def __init__(self, family: str = "llama", template: str | None = tiny_models.TEMPLATE) -> None:
        model = tiny_models.model(family)
        self.calls = self.tokens = 0
        model.get_input_embeddings().register_forward_pre_hook(self._count)
        self.model = CausalLanguageModel(model, tiny_models.tokenizer(template=template), name="tiny")

    def _count(self, _: object, inputs: tuple) -> None:
        self.calls += 1
        self.tokens += inputs[0].numel()

    def of(self, job: Callable[[], object]) -> tuple[int, int]:
        """Calls and tokens of a job."""
        calls, tokens = self.calls, self.tokens
        job()
        return self.calls - calls, self.tokens - tokens


LLAMA = Counted()
PLAIN = Counted("gpt2", template=None)


def at_token(model: CausalLanguageModel, count: int) -> Callable[[Generation], int | None]:
    """Cut behind so many tokens."""
    return lambda draw: len(model.format.text(draw.token_ids[:count]))


def behind(cut: Callable[[Generation], int | None]) -> Callable[[Prompt, Generation], tuple[int, int, bool]]:
    """Cut as `sample` wants it told, with nothing passed over."""
    return lambda _, draw: (0, len(draw.text) if (end := cut(draw)) is None else end, True)


def check(model: CausalLanguageModel, cut: Callable, recalibrators: list, m: int = 6, seed: int = 0) -> int:
    """Compare with scoring what is left of each draw; how many draws were cut."""
    found = model.sample(
        SampleRequest(
            PROMPTS, recalibrators=recalibrators, m=m, seeds=[seed], max_new_tokens=STEPS, cut=behind(cut)
        )
    )[0]
    plain = model.sample(
        SampleRequest(PROMPTS, recalibrators=recalibrators, m=m, seeds=[seed], max_new_tokens=STEPS)
    )[0]
    cuts = 0
    for recalibrator, of_prompts, uncut in zip(recalibrators, found, plain, strict=True):
        ends = [[cut(draw) for draw in draws] for draws in uncut]
        wanted = [
            [model.complete(draw, len(draw.text) if end is None else end) for draw, end in zip(*pair)]
            for pair in zip(uncut, ends)
        ]
        scores = model.score(PROMPTS, wanted, recalibrator=recalibrator)
        for draws, *expected in zip(of_prompts, uncut, ends, wanted, scores, strict=True):
            for draw, same, end, tokens, score in zip(draws, *expected, strict=True):
                assert draw.token_ids == same.token_ids
                assert (draw.rescored is None) == (tokens == draw.token_ids)
                cuts += end is not None
                assert draw.rescored is None or draw.rescored == pytest.approx(score, abs=1e-4)
    return cuts


def ats() -> ATS:
    """Temperatures that differ from token to token."""
    layer = ATS(BlockShape(32, 64, 4, 2, 8)).requires_grad_(False)
    layer.readout.weight.normal_(std=0.1, generator=torch.manual_seed(0))
    return layer


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


def test_cut_answers_run_nothing() -> None:
    model = LLAMA.model

    def sample(cut: Callable | None) -> Callable[[], object]:
        return lambda: model.sample(
            SampleRequest(
                PROMPTS, recalibrators=[Base(), SE()], m=10, max_new_tokens=STEPS, cut=cut and behind(cut)
            )
        )[0]

    sample(None)()  # so that the prefix has run
    plain = LLAMA.of(sample(None))
    for count in range(STEPS):
        assert LLAMA.of(sample(at_token(model, count))) == plain


def test_of_answers_that_met_the_limit_the_last_tokens_run() -> None:
    """One question, so that no padding runs: a token more for each distinct answer that is not finished."""
    model, one = LLAMA.model, PROMPTS[:1]

    def sample(cut: Callable | None = None) -> list[Generation]:
        return model.sample(
            SampleRequest(one, recalibrators=[Base()], m=10, max_new_tokens=STEPS, cut=cut and behind(cut))
        )[0][0][0]

    draws = sample()
    unfinished = {draw.token_ids for draw in draws if not draw.finished}
    assert len(unfinished) > 1
    calls, tokens = LLAMA.of(sample)
    assert LLAMA.of(lambda: sample(lambda draw: None if draw.finished else len(draw.text))) == (
        calls + 1,
        tokens + len(unfinished),
    )
    shorter = at_token(model, STEPS - 1)
    assert LLAMA.of(lambda: sample(lambda draw: None if draw.finished else shorter(draw))) == (calls, tokens)


def test_a_limit_as_long_as_the_model_allows_leaves_room_for_the_end_of_turn() -> None:
    fits = CausalLanguageModel(
        tiny_models.model("llama", limit=len(PROMPTS[0].token_ids) + STEPS),
        tiny_models.tokenizer(),
        name="tiny",
    )
    [[draws]] = fits.sample(
        SampleRequest(
            PROMPTS[:1],
            recalibrators=[Base()],
            m=10,
            max_new_tokens=STEPS,
            cut=behind(lambda draw: None if draw.finished else len(draw.text)),
        )
    )[0]
    assert {len(draw.rescored or ()) for draw in draws if not draw.finished} == {STEPS + 1}


def plain_log_probs(prompt: Prompt, lead: tuple[int, ...], tokens: tuple[int, ...]) -> list[float]:
    """Of tokens after the prompt and a lead-in, by plain transformers."""
    before = (*prompt.token_ids, *lead)
    logits = tiny_models.model("llama")(torch.tensor([[*before, *tokens]])).logits[0]
    scores = logits[len(before) - 1 : -1].log_softmax(-1)
    return scores[torch.arange(len(tokens)), torch.tensor(tokens)].tolist()


@pytest.mark.parametrize("finished", [True, False], ids=["whole", "cut"])
def test_what_follows_a_lead_in_is_scored_behind_it_as_plain_transformers_do(finished: bool) -> None:
    """A lead-in of two tokens: drawn values where all the rest is the answer, else with an end of turn."""
    model, seen = LLAMA.model, 0

    def cut(_: Prompt, draw: Generation) -> tuple[int, int, bool]:
        end = len(draw.text) if finished and draw.finished else len(model.format.text(draw.token_ids[:4]))
        return len(model.format.text(draw.token_ids[:2])), end, True

    (found,) = model.sample(
        SampleRequest(
            PROMPTS, recalibrators=[Base()], m=200 if finished else 20, max_new_tokens=STEPS, cut=cut
        )
    )[0]
    for prompt, draws in zip(PROMPTS, found, strict=True):
        for draw in draws:
            start, end, _ = cut(prompt, draw)
            if draw.lead != 2 or not 0 < start < end or "\ufffd" in draw.text:
                continue
            sampled = draw.rescored is None
            assert sampled == (finished and draw.finished)
            tokens = draw.token_ids if sampled else model.complete(draw, end, start)
            scores = draw.token_log_probs if sampled else draw.rescored
            assert tokens[:2] == draw.token_ids[:2]
            assert list(scores[2:]) == pytest.approx(
                plain_log_probs(prompt, tokens[:2], tokens[2:]), abs=1e-4
            )
            seen += sampled == finished
    assert seen > 5


def test_an_answer_that_begins_inside_a_token_is_encoded_anew_behind_its_lead_in() -> None:
    model, seen = LLAMA.model, 0
    (found,) = model.sample(
        SampleRequest(
            PROMPTS,
            recalibrators=[Base()],
            m=20,
            max_new_tokens=STEPS,
            cut=lambda _, d: (len(d.text) // 2, len(d.text), True),
        )
    )[0]
    for prompt, draws in zip(PROMPTS, found, strict=True):
        for draw in draws:
            if draw.rescored is None or "\ufffd" in draw.text:
                continue
            start = len(draw.text) // 2
            tokens = model.complete(draw, len(draw.text), start)
            lead, answer = tokens[: draw.lead], tokens[draw.lead :]
            assert model.format.text(lead) == draw.text[: len(model.format.text(lead))]
            assert not draw.text[len(model.format.text(lead)) : start].strip()
            assert list(draw.rescored[draw.lead :]) == pytest.approx(
                plain_log_probs(prompt, lead, answer), abs=1e-4
            )
            seen += tokens[:-1] != draw.token_ids
    assert seen > 5
