"""Rows that bring a chat in place of a question, and templates in place of the built-in prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semcal.data.datasets import question_from_row
from semcal.data.question import (
    SYSTEM_MESSAGE,
    Question,
    Turn,
    answer_turn,
    chat,
    data_hash,
    plain_text,
    user_turn,
)
from semcal.data.splits import near_duplicates, question_key, question_ties
from semcal.data.template import Template, as_template
from semcal.errors import InputError, QuestionError, RowError, UsageError
from semcal.files import JsonLine
from semcal.models.fakes import FakeLanguageModel
from semcal.models.prompting import PromptConfig
from semcal.rows import Row

MODEL = FakeLanguageModel({"Who?": {"Ana": 1.0}})
BRIEF, WHO = Turn("system", "Be brief."), Turn("user", "Who?")
EXAMPLE = Question("e", "Who sang?", ("Bo",))


def asked(*turns: Turn, question: str = "") -> Question:
    return Question("7", question, messages=turns or (WHO,))


def as_json(*turns: Turn) -> list[dict[str, str]]:
    return [vars(turn) for turn in turns]


def read(**row: Any) -> Question:
    return question_from_row(JsonLine(7, row))


def test_a_row_with_messages_needs_no_question_and_is_written_as_it_was_read() -> None:
    question = read(messages=as_json(BRIEF, WHO), answers="Ana")
    assert (question.id, question.question, question.messages) == ("7", "", (BRIEF, WHO))
    assert question.row() == {"id": "7", "messages": as_json(BRIEF, WHO), "answers": ["Ana"]}
    assert Row.of(question).to_question() == question
    both = read(messages=as_json(WHO), question="Who was it?")
    assert (both.question, both.row()["question"]) == ("Who was it?", "Who was it?")
    assert read(messages='[{"role": "user", "content": "Who?"}]').messages == (WHO,)  # a cell of CSV


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        ("Who?", '"messages"|list'),
        ([{"role": "user"}], r'"messages"\[0\]'),
        ([{"role": "tool", "content": "a"}], r"\[0\] is 'tool'"),
        ([{"role": "user", "content": ["a"]}], "text"),
        ([{"role": "user", "content": " "}], "text"),
        ([{"role": "user", "content": "a", "name": "Bo"}], "'name'"),
        (as_json(WHO, Turn("assistant", "Ana")), "assistant"),
        (as_json(WHO, BRIEF, WHO), "system"),
    ],
)
def test_messages_that_are_none_are_refused_with_their_place(messages: Any, named: str) -> None:
    with pytest.raises(RowError, match=f"line 7: .*({named})"):
        read(messages=messages)


def test_examples_go_before_the_last_turn() -> None:
    start = (BRIEF, Turn("user", "Hi"), Turn("assistant", "Yes?"))
    shown = [EXAMPLE, Question("f", "", ("Cy",), messages=(BRIEF, Turn("user", "Who drew?")))]
    pairs = (
        Turn("user", "Who sang?"),
        Turn("assistant", "Bo."),
        Turn("user", "Who drew?"),
        Turn("assistant", "Cy."),
    )
    assert chat(asked(*start, WHO), few_shot=shown) == (*start, *pairs, WHO)


def test_hashes_and_keys_of_rows_without_messages_are_as_before_and_messages_count() -> None:
    plain = Question("7", "Who?", ("Ana",))
    assert data_hash([plain]) == data_hash([Question("7", "Who?", ("Ana",), messages=())])
    assert len({data_hash([q]) for q in (plain, asked(WHO), asked(BRIEF, WHO))}) == 3
    other = asked(Turn("user", "Where?"))
    assert question_key(asked()) == question_key(asked(Turn("user", "who")))
    assert question_key(asked()) != question_key(other)
    assert question_ties(asked(BRIEF, WHO).row()) == question_ties(asked(Turn("user", "WHO")).row())
    assert near_duplicates({"train": [asked()], "test": [other]}) == ()


@given(st.sampled_from(["Who?", "When was it, {context}?", "{a}"]), st.none() | st.just("Ana {question} it."))
def test_a_template_of_the_built_in_texts_is_the_built_in_prompt(question: str, context: str | None) -> None:
    user = "Question: {question}" if context is None else "Context: {context}\n\nQuestion: {question}"
    same = PromptConfig((), template=as_template({"system": SYSTEM_MESSAGE, "user": user}))
    row = Question("7", question, context=context)
    assert same.chat(row) == PromptConfig().chat(row)
    if context is None:
        built_in = PromptConfig((), template=Template())
        assert same.hash(MODEL) == PromptConfig().hash(MODEL) == built_in.hash(MODEL)


@given(
    st.none() | st.text(min_size=1),
    st.sampled_from([None, "{question}", "Text: {context}\n{question} {}"]),
    st.lists(st.sampled_from(["user", "assistant"]), max_size=3),
    st.booleans(),
)
def test_a_description_brings_the_prompt_back(system: Any, user: Any, roles: Any, examples: bool) -> None:
    template = Template(system, None, (*roles, "user")) if roles else Template(system, user)
    shown = (EXAMPLE, asked(BRIEF, WHO)) if examples and not user else ()
    prompt = PromptConfig(
        tuple(Question(e.id, e.question, ("Bo",), messages=e.messages) for e in shown), template=template
    )
    again = PromptConfig.from_description(prompt.describe())
    assert again.template == prompt.template
    assert again.hash(MODEL) == prompt.hash(MODEL)
    assert prompt.difference(again) is None


def test_the_hash_is_of_system_message_roles_turns_and_examples_and_not_of_what_is_said() -> None:
    def hash_of(*turns: Turn, few_shot: tuple[Question, ...] = ()) -> str:
        return PromptConfig(few_shot).hash(MODEL, asked(*turns))

    assert hash_of(BRIEF, WHO) == hash_of(BRIEF, Turn("user", "Where?"))
    hi, yes = Turn("user", "Hi"), Turn("assistant", "Yes?")
    kinds = [
        hash_of(*turns, WHO) for turns in ((), (BRIEF,), (Turn("system", "Be long."),), (hi, yes), (hi, hi))
    ]
    assert len({*kinds, hash_of(few_shot=(EXAMPLE,)), PromptConfig().hash(MODEL)}) == 7
    assert hash_of(BRIEF, WHO) == PromptConfig((), template=Template("Be brief.", "{question}")).hash(MODEL)


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ((WHO,), "the system message is none, expected 'Be brief.'"),
        (
            (BRIEF, Turn("user", "Hi"), Turn("assistant", "?"), WHO),
            "turns are user, assistant, user",
        ),
        (
            (BRIEF, Turn("user", "Name: Who?")),
            "the user's turn is 'Name: Who?', expected the form 'Q: {question}'",
        ),
    ],
)
def test_messages_of_another_template_are_told_what_differs(turns: Any, reason: str) -> None:
    prompt = PromptConfig((), template=Template("Be brief.", "Q: {question}"))
    with pytest.raises(QuestionError, match="of another template: ") as error:
        prompt.prompts(MODEL, [asked(*turns)])
    assert reason in str(error.value)
    assert prompt.template_of(asked(BRIEF, Turn("user", "Q: Who?")))
    assert PromptConfig((), template=prompt.template, force=True).chat(asked(*turns)) == turns


def test_rows_of_two_templates_are_told_apart_by_the_first() -> None:
    rows = [asked(BRIEF, WHO), Question("8", "Who?"), asked(WHO)]
    errors: list[QuestionError] = []
    prompt, alike = PromptConfig().settled(rows, errors.append)
    assert (alike, prompt.template) == (rows[:1], Template("Be brief.", None, ("user",)))
    assert "it has no 'messages'" in errors[0].reason
    assert "the system message is none" in errors[1].reason
    with pytest.raises(QuestionError, match="no 'messages'"):
        PromptConfig().settled(rows)


def test_few_shot_examples_begin_all_prompts_of_one_template() -> None:
    config = PromptConfig((EXAMPLE,))
    rows = [asked(BRIEF, WHO), Question("8", "Who?"), asked(BRIEF, Turn("user", "Who danced?"))]
    first, plain, third = config.prompts(MODEL, rows)
    assert first.token_ids[: third.examples] == third.token_ids[: third.examples]
    assert third.examples > len(MODEL.encode([BRIEF, WHO]))
    assert (plain.question, first.question) == ("Who?", "")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("user: 'Who?'", "{question}"),
        ("user: '{question} {name}'", "{name}"),
        ("user: '{question}'\nmodel: a", "'model'"),
        ("system: a", "'user'"),
        ("system: 3\nuser: '{question}'", "'system'"),
        ("- a", "'user'"),
        ("user: '{question}", "line 1, column 18"),
        ('user: "{question} \\ud83d"', "line 1, column 7"),
        ('system: "\\udc00"\nuser: "{question}"', "line 1, column 9"),
    ],
)
def test_a_template_that_is_none_is_refused(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(UsageError, match=rf"a\.yaml.*{named}"):
        as_template(tmp_path / "a.yaml")


def test_a_template_that_is_not_there_or_beside_a_system_message_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.yaml"):
        as_template(tmp_path / "none.yaml")
    with pytest.raises(UsageError, match="system message"):
        as_template(Template(), "Be brief.")


def test_braces_that_are_no_placeholders_stand_as_they_are() -> None:
    template = as_template({"user": '{question} Reply {"name": {}} or { a }.'})
    assert template is not None
    (turn,) = PromptConfig((), template=template).chat(Question("1", "Who, {context}?"))
    assert turn.content == 'Who, {context}? Reply {"name": {}} or { a }.'


def test_a_template_and_its_questions_agree_on_passages() -> None:
    with pytest.raises(InputError, match="'context'"):
        PromptConfig((), template=Template(None, "{question}")).chat(Question("1", "Who?", context="Ana."))
    with pytest.raises(InputError, match="'context'"):
        PromptConfig((), template=Template(None, "{context} {question}")).chat(Question("1", "Who?"))


# ---- The chat of spec.md, section 9, and its plain text ----------------------------------------------------

CLOSED = [Question("a", "Who flew first?", ("Ada", "Ada K.")), Question("b", "When?", ("1903",))]
OPEN = [Question("c", "Who flew?", ("Ada",), "Ada flew\n\nfar.")]


def test_an_open_book_chat_puts_the_passage_before_the_question():
    turns = chat(Question("x", "Where?", context="In Kent."), few_shot=OPEN)
    assert [turn.content for turn in turns[1:]] == [
        "Context: Ada flew\n\nfar.\n\nQuestion: Who flew?",
        "Ada.",
        "Context: In Kent.\n\nQuestion: Where?",
    ]


def test_examples_without_answers_are_errors():
    with pytest.raises(InputError, match="few-shot example 'd' has no answer"):
        chat("Who?", few_shot=[Question("d", "Why?")])


def test_the_text_of_a_prompt_waits_for_the_answer_and_is_a_prefix_of_the_text_with_it():
    assert plain_text([user_turn(OPEN[0])]) == "Context: Ada flew\n\nfar.\n\nQuestion: Who flew?\nAnswer:"
    prompt = chat("Where?", few_shot=CLOSED)
    assert plain_text([*prompt, answer_turn("Kent")]) == plain_text(prompt) + " Kent."
