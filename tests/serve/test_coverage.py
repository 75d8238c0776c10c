"""What a calibration does not cover is refused by name, or answered without a probability."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semcal.data.question import SYSTEM_MESSAGE, Question, user_turn
from semcal.data.template import Template
from semcal.models.fakes import FakeLanguageModel
from semcal.models.prompting import PromptConfig
from semcal.serve.requests import Coverage, Covered, Message
from tests.serve.serving import TABLE, WROTE, Running, running, uq_of

#: Every option of a request that would draw otherwise, with a value that is not covered.
OTHERWISE: dict[str, Any] = {
    "temperature": 0.2,
    "max_tokens": 2,
    "max_completion_tokens": 9,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.05,
    "presence_penalty": 0.5,
    "frequency_penalty": -1,
    "repetition_penalty": 1.1,
    "logit_bias": {"50256": -100},
    "stop": ["\n"],
    "tools": [{"type": "function", "function": {"name": "look"}}],
    "reasoning_effort": "low",
    "n": 2,
    "logprobs": True,
    "top_logprobs": 3,
    "response_format": {"type": "json_object"},
    "tool_choice": "required",
}
NEUTRAL: dict[str, Any] = {
    **{name: field.json_schema_extra["enum"][0] for name, field in Covered.model_fields.items()},
    "temperature": 1,
    "max_tokens": 10,
    "max_completion_tokens": 4000,
    "seed": 7,
    "user": "u",
    "metadata": {"a": "b"},
    "store": False,
    "service_tier": "auto",
    "parallel_tool_calls": True,
}
SYSTEM = {"role": "system", "content": SYSTEM_MESSAGE}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as one:
        yield one


@pytest.fixture(scope="module")
def lenient() -> Iterator[Running]:
    with running(uncovered="answer") as one:
        yield one


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_would_draw_otherwise_is_refused_or_set_aside_and_named(
    name: str, server: Running, lenient: Running
) -> None:
    refused = server.chat(WROTE, **{name: OTHERWISE[name]})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (400, "not_covered", name)
    assert "omit it" in error["message"]
    reply = lenient.chat(WROTE, **{name: OTHERWISE[name]}).json()
    assert reply["choices"][0]["message"]["content"] == "Ana Velis"
    beside = reply["semcal"]
    assert (beside["confidence"], beside["abstained"], beside["uncovered"]) == (None, False, [name])
    assert all(meaning["probability"] is None for meaning in beside["meanings"])
    assert "similar probability" not in beside["explanation"]


@pytest.mark.parametrize("options", [NEUTRAL, dict.fromkeys(NEUTRAL)])
def test_values_that_change_nothing_are_taken(options: dict[str, Any], server: Running) -> None:
    reply = server.chat(WROTE, **options)
    assert reply.status_code == 200, reply.text
    assert reply.json()["semcal"]["confidence"] == uq_of().ask(WROTE).confidence


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": WROTE}],
        [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Yes?"},
            {"role": "user", "content": WROTE},
        ],
    ],
)
def test_another_template_is_refused_by_what_differs_or_answered_without_a_probability(
    messages: list[dict[str, str]], server: Running, lenient: Running
) -> None:
    error = server.chat(messages).json()["error"]
    assert (error["code"], error["param"]) == ("not_covered", "messages")
    assert ("system message" if len(messages) == 2 else "turns are user, assistant, user") in error["message"]
    assert "Be brief." not in error["message"]  # nor the calibration's own, which is the operator's
    assert "Answer" not in error["message"]
    reply = lenient.chat(messages)
    assert reply.status_code == 200
    assert reply.json()["semcal"]["confidence"] is None
    assert reply.headers["x-semcal-probability"] == "null"


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": [{"type": "text", "text": WROTE}]}],
        [{"role": "user", "content": f"Question: {WROTE}"}],
        [SYSTEM, {"role": "user", "content": WROTE}],
        [{**SYSTEM, "role": "developer"}, {"role": "user", "content": f"Question: {WROTE}"}],
        [{"role": "user", "content": WROTE, "refusal": None, "tool_calls": []}],
    ],
)
def test_all_ways_to_say_the_same_prompt_are_covered(messages: list[Any], server: Running) -> None:
    assert server.chat(messages).json()["semcal"]["confidence"] == uq_of().ask(WROTE).confidence


CHAT = [
    {"role": "system", "content": "Answer with a name."},
    {"role": "user", "content": "I have a question."},
    {"role": "assistant", "content": "Which?"},
    {"role": "user", "content": WROTE},
]


def test_a_calibration_of_chats_covers_such_chats() -> None:
    asking = PromptConfig(template=Template("Answer with a name.", None, ("user", "assistant", "user")))
    with running(uq_of(FakeLanguageModel(TABLE), asking=asking)) as server:
        reply = server.chat(CHAT)
        assert reply.status_code == 200, reply.text
        assert reply.json()["semcal"]["confidence"] is not None
        for other in (CHAT[1:], CHAT[-1:], [*CHAT[:3], CHAT[3], CHAT[2], CHAT[3]]):
            assert server.chat(other).json()["error"]["code"] == "not_covered"
        assert server.post("/v1/semcal/check", {"question": WROTE, "answer": "Bo"}).status_code == 400


def coverage(template: Template) -> Coverage:
    uq = uq_of(asking=PromptConfig(template=template))
    assert uq.calibration is not None
    return Coverage(uq.calibration, uq.sampling)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(str.strip)


@given(text=TEXT)
def test_a_question_alone_is_its_own_id_and_in_the_form_of_the_template_the_same(text: str) -> None:
    cover = coverage(Template())
    turn = user_turn(Question("", text)).content
    asked = cover.question([Message(role="user", content=turn)])
    assert (asked.question.id, asked.question.question, asked.uncovered) == (text, text, ())


@given(text=TEXT, passage=TEXT)
def test_a_passage_in_the_form_of_the_template_is_read(text: str, passage: str) -> None:
    form = "P {context} Q {question} E"
    cover = coverage(Template("Read.", form))
    content = form.replace("{context}", passage, 1).replace("{question}", text, 1)
    asked = cover.question([Message(role="user", content=content)])
    chat = PromptConfig(template=cover.template).chat(asked.question)
    assert (chat[-1].content, asked.uncovered) == (content, ())
    bare = cover.question([Message(role="user", content="Who?")])
    assert "expected the form" in bare.uncovered[0][1]


@given(first=TEXT, text=TEXT, other=TEXT)
def test_the_id_of_a_chat_depends_on_what_came_before(first: str, text: str, other: str) -> None:
    cover = coverage(Template(None, None, ("user", "assistant", "user")))

    def id_of(*contents: str) -> str:
        roles = ("user", "assistant", "user")
        return cover.question(
            [Message(role=role, content=content) for role, content in zip(roles, contents)]
        ).question.id

    assert id_of(first, "Yes?", text) == id_of(first, "Yes?", text)
    assert id_of(first, "Yes?", text).startswith(text)
    assert (id_of(first, "Yes?", text) == id_of(other, "Yes?", text)) == (first == other)


PASSAGE = "Mirna lies in Orland."


def test_a_calibration_of_questions_without_a_passage_covers_none_that_has_one() -> None:
    with running(uq_of(open_book=False)) as server:
        assert server.chat(WROTE).status_code == 200
        content = user_turn(Question("", WROTE, context=PASSAGE)).content
        error = server.chat(content).json()["error"]
        assert (error["code"], error["param"]) == ("not_covered", "messages")
        assert "'context' is present" in error["message"]


def test_a_calibration_of_questions_with_a_passage_covers_none_without() -> None:
    given = {"question": WROTE, "answer": "Bo"}
    with running(uq_of(open_book=True, answer_kind="given")) as server:
        assert server.post("/v1/semcal/check", {**given, "context": PASSAGE}).status_code == 200
        error = server.post("/v1/semcal/check", given).json()["error"]
        assert (error["code"], error["param"]) == ("not_covered", "context")
        assert "'context' is missing" in error["message"]
        assert "Add a context (" in error["message"]
