"""What a user sees of long work: numbers that rise by one, and one bar at a time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semcal.cli import console
from semcal.data.question import Question
from semcal.models.distribution import Temperature
from semcal.models.equivalence import ExactMatch
from semcal.models.fakes import FakeLanguageModel
from semcal.models.prompting import PromptConfig
from semcal.models.protocols import Capabilities, SampleRequest
from semcal.models.sample import BLOCK_QUESTIONS, BLOCK_TOKENS, CHARACTERS
from semcal.progress import Advance, duration
from semcal.store import Store
from tests.json_rows import plan_sampling, question_blocks, sample_candidates

MODEL = FakeLanguageModel({f"Who built mill {i}?": {"Ana.": 0.6, "Bo.": 0.4} for i in range(70)})
QUESTIONS = [Question(f"q{i}", f"Who built mill {i}?", ("Ana",)) for i in range(70)]


@pytest.fixture(autouse=True)
def _groups_by_normal_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no equivalence is named answers are grouped by normal forms: that is not what is tested here."""
    monkeypatch.setattr("semcal.inputs.load_equivalence", lambda *_, **__: ExactMatch())


def test_a_function_of_the_user_hears_numbers_alone() -> None:
    told: list[int] = []
    advance = Advance(told.append, 4)
    for done in (1, 1, 3, 2):
        advance(done)
    Advance(None)(5)
    assert told == [5, 7]


def test_durations_are_said_as_people_do() -> None:
    assert [duration(s) for s in (0.2, 59.6, 3599.7)] == ["0 s", "1:00 min", "1:00 h"]


def cost(question: Question, m: int, ways: int, limit: int) -> int:
    return m * ways * limit + len(question.question + (question.context or "")) // CHARACTERS


@given(
    st.lists(st.integers(0, 30_000), max_size=40),
    st.integers(1, 20),
    st.integers(1, 30),
    st.sampled_from([None, 1, 10, 300]),
)
def test_blocks_hold_all_questions_in_order_and_no_more_tokens_than_allowed(
    lengths: list[int], m: int, ways: int, limit: int | None
) -> None:
    questions = [Question(str(i), "Who?", (), "x" * n if n else None) for i, n in enumerate(lengths)]
    blocks = list(question_blocks(MODEL, questions, m=m, ways=ways, max_new_tokens=limit))
    assert [question for block in blocks for question in block] == questions
    sizes = [[cost(q, m, ways, limit or (32 if q.context else 10)) for q in block] for block in blocks]
    for block in sizes:
        assert len(block) <= BLOCK_QUESTIONS
        assert len(block) == 1 or sum(block) <= BLOCK_TOKENS
    for block, following in pairwise(sizes):  # none is cut short
        assert len(block) == BLOCK_QUESTIONS or sum(block) + following[0] > BLOCK_TOKENS


def test_a_server_says_how_many_questions_make_a_block() -> None:
    class Server(FakeLanguageModel):
        capabilities = Capabilities(answers_a_request=5)  # 4 requests a question, 128 a block

    blocks = question_blocks(Server({"Who?": {"Ana": 1.0}}), QUESTIONS, m=10, ways=2, max_new_tokens=3000)
    assert [len(block) for block in blocks] == [32, 32, 6]


def sampled(told: list[int], keep: Store | None = None, n: int = 70, **more: Any) -> Sequence[Any]:
    under = {t: Temperature(t) for t in (1.0, 0.5)}
    how: dict[str, Any] = {"asking": PromptConfig(), "equivalence": ExactMatch(), "keep": keep, **more}
    return sample_candidates(MODEL, QUESTIONS[:n], under, progress=told.append, **how)[1.0]


def test_a_resumed_call_begins_where_the_finished_blocks_end(tmp_path: Any) -> None:
    assert len(list(question_blocks(MODEL, QUESTIONS, m=10, ways=2, max_new_tokens=None))) == 3
    sampled([], Store(tmp_path), n=50)  # two blocks, of which the second will have other questions
    told: list[int] = []
    rows = sampled(told, Store(tmp_path))
    assert told == list(range(30, 71))
    assert rows == sampled([])


def test_a_plan_counts_tokens_and_asks_the_first_question_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    sample = FakeLanguageModel.sample

    def counting(self: Any, request: SampleRequest, *args: Any) -> Any:
        asked.extend(prompt.question_id for prompt in request.prompts)
        return sample(self, request, *args)

    monkeypatch.setattr(FakeLanguageModel, "sample", counting)
    under, asking = [Temperature(1.0), Temperature(0.5)], PromptConfig()
    tokens, seconds = plan_sampling(
        MODEL, QUESTIONS, recalibrators=under, asking=asking, m=10, max_new_tokens=None
    )
    assert set(asked) == {"q0"}
    prompts = sum(len(prompt.token_ids) for prompt in asking.prompts(MODEL, QUESTIONS))
    assert tokens.startswith(f"tokens: {prompts:,} of prompts ({prompts // 70:,} per question), ")
    assert tokens.endswith("at most 14,000 of answers")  # 70 questions, 2 temperatures, 10 draws of 10 tokens
    assert seconds.startswith("time: one question took")


def test_a_plan_over_a_server_asks_nothing_and_counts_what_each_request_holds() -> None:
    class Server(FakeLanguageModel):
        capabilities = Capabilities(answers_a_request=1, may_charge=True)

        def encode(self, chat: Any) -> tuple[int, ...]:
            return ()

        def sample(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("asked")

    requests, tokens, cached, seconds = plan_sampling(
        Server({"Who?": {"Ana": 1.0}}),
        QUESTIONS,
        recalibrators=[Temperature(1.0), Temperature(0.5)],
        asking=PromptConfig(),
        m=4,
        max_new_tokens=3,
    )
    characters = sum(len(turn.content) for q in QUESTIONS for turn in PromptConfig().chat(q))
    assert requests == "requests: 560"
    once = characters // CHARACTERS
    assert tokens.startswith(f"tokens: about {8 * once:,} of prompts")
    assert f"about {8 * once - int(0.5 * 7 * once):,} " in cached
    assert f" {8 * once - int(0.9 * 7 * once):,} " in cached
    assert seconds.startswith("time: not measured")


# ---- Progress of commands: one bar on a terminal, lines in a pipe


def test_lines_carry_the_name_of_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "INTERVAL", 0.0)
    monkeypatch.setattr(console, "_quiet", False)
    with console.progress("measure", 4) as update:
        update(3)
    assert capsys.readouterr().err.startswith("measure: 3 of 4 (")
