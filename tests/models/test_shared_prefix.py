"""The prefix of the last call is kept: what a later call runs, and that it changes no bit."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tiny_engine import Counted, ats, sample

from semcal.data.question import Question
from semcal.models import CausalLanguageModel, Prompt
from semcal.models.engine.decoding import kept_length
from semcal.models.prompting import PromptConfig, shared_length
from semcal.recalibration import Base, Temperature

HEAD = tuple(range(20, 60))
PROMPTS = [Prompt(f"q{i}", (*HEAD, 100 + 7 * i, *range(104, 108 + i))) for i in range(6)]
#: With another prefix.
OTHERS = [Prompt(prompt.question_id, prompt.token_ids[1:]) for prompt in PROMPTS]
ANSWERS = [[(51, 52, 4), (51, 60, 4)]] * 6


JOBS: dict[str, Callable[[CausalLanguageModel], Any]] = {
    "sample": lambda model: sample(model, [Base(), ats()], PROMPTS, m=4),
    "greedy": lambda model: model.greedy(PROMPTS, recalibrator=Base()),
    "beam": lambda model: model.beam(PROMPTS, recalibrator=Temperature(2.0)),
    "score": lambda model: model.score(PROMPTS, ANSWERS, recalibrator=ats()),
    "features": lambda model: model.features(PROMPTS, ANSWERS, whole=True).states.tolist(),
}


@pytest.mark.parametrize("plain", [False, True], ids=["three levels", "plain"])
def test_calls_of_every_kind_run_the_prefix_once_and_give_the_same_bits(plain: bool) -> None:
    counted = Counted(plain=plain)
    counted.of(JOBS["greedy"])
    for job in JOBS.values():
        _, alone, expected = Counted(plain=plain).of(job)
        assert counted.of(job)[1:] == (alone - len(HEAD), expected)


def test_another_prefix_takes_the_place_of_the_last() -> None:
    counted = Counted()
    runs = [
        counted.of(lambda model, asked=asked: model.greedy(asked, recalibrator=Base()))[1]
        for asked in (PROMPTS, PROMPTS, OTHERS, OTHERS, PROMPTS)
    ]
    assert [runs[0] - runs[1], runs[2] - runs[3], runs[4] - runs[0]] == [len(HEAD), len(HEAD) - 1, 0]


def test_a_prefix_larger_than_the_budget_is_not_kept() -> None:
    counted = Counted(budget=Counted().model.network.bytes_per_token * (len(HEAD) - 1))
    first, second = (counted.of(JOBS["greedy"])[1] for _ in range(2))
    assert first == second


def test_a_prefix_of_other_weights_is_not_read() -> None:
    counted = Counted()
    _, before, first = counted.of(JOBS["score"])
    with torch.no_grad():
        counted.model.network.model.model.layers[0].self_attn.k_proj.weight.mul_(1.5)
    _, after, second = counted.of(JOBS["score"])
    assert before == after
    assert second != first


def test_threads_share_a_prefix_or_run_their_own() -> None:
    model = Counted().model
    expected = [model.greedy(asked, recalibrator=Base()) for asked in (PROMPTS, OTHERS)]
    with ThreadPoolExecutor(4) as threads:
        asked = [PROMPTS, OTHERS] * 6
        assert list(threads.map(lambda some: model.greedy(some, recalibrator=Base()), asked)) == expected * 6


def prompts_with_examples(tails: list[tuple[int, ...]], examples: int) -> list[Prompt]:
    beginning = tuple(range(3, 3 + examples))
    return [Prompt(str(i), (*beginning, *tail), examples=examples) for i, tail in enumerate(tails)]


def test_examples_are_kept_apart_from_what_a_block_happens_to_share() -> None:
    block = prompts_with_examples([(50, 51, 60), (50, 51, 61), (50, 51, 62)], examples=20)
    assert shared_length(block) == 22
    assert kept_length(block, 22) == 20  # two tokens, twice again, are less than the examples
    many = prompts_with_examples([(50, 51, 60 + i) for i in range(12)], examples=20)
    assert kept_length(many, 22) == 22  # eleven times two are more
    assert kept_length(block[:1], 22) == 20  # so a single question finds the examples of the last one
    unknown = [Prompt(one.question_id, one.token_ids) for one in block]
    assert kept_length(unknown, 22) == 22


def test_prompts_say_how_many_tokens_are_the_examples() -> None:
    asking = PromptConfig((Question("e", "Who sang it?", ("Bo",)),))
    questions = [Question("a", "Which bird?"), Question("b", "Who?", (), "A passage.")]
    model = Counted().model
    found = asking.prompts(model, questions)
    assert all(0 < one.examples < len(one.token_ids) for one in found)
    assert len({one.token_ids[: min(p.examples for p in found)] for one in found}) == 1
    assert [one.examples for one in PromptConfig().prompts(model, questions)] == [0, 0]
