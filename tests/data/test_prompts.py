"""The chat of spec.md, section 9, and its plain text."""

from __future__ import annotations

import pytest

from semcal.data.question import SYSTEM_MESSAGE, Question, Turn, answer_turn, chat, plain_text, user_turn
from semcal.errors import InputError

CLOSED = [Question("a", "Who flew first?", ("Ada", "Ada K.")), Question("b", "When?", ("1903",))]
OPEN = [Question("c", "Who flew?", ("Ada",), "Ada flew\n\nfar.")]


def test_a_closed_book_chat_is_system_examples_question():
    assert chat("Where?", few_shot=CLOSED) == (
        Turn("system", SYSTEM_MESSAGE),
        Turn("user", "Question: Who flew first?"),
        Turn("assistant", "Ada."),
        Turn("user", "Question: When?"),
        Turn("assistant", "1903."),
        Turn("user", "Question: Where?"),
    )


def test_an_open_book_chat_puts_the_passage_before_the_question():
    turns = chat(Question("x", "Where?", context="In Kent."), few_shot=OPEN)
    assert [turn.content for turn in turns[1:]] == [
        "Context: Ada flew\n\nfar.\n\nQuestion: Who flew?",
        "Ada.",
        "Context: In Kent.\n\nQuestion: Where?",
    ]
    assert turns == chat("Where?", few_shot=OPEN, context="In Kent.")


def test_the_system_message_asks_for_the_bare_answer_with_a_full_stop_and_can_be_left_out():
    assert "bare answer" in SYSTEM_MESSAGE
    assert "full stop" in SYSTEM_MESSAGE
    assert chat("Who?", system=None) == (Turn("user", "Question: Who?"),)


@pytest.mark.parametrize(
    ("answer", "said"), [("Ada", "Ada."), ("Ada K.", "Ada K."), ("3.5", "3.5."), ("Jeopardy!", "Jeopardy!.")]
)
def test_an_answer_ends_in_one_full_stop(answer, said):
    assert answer_turn(answer) == Turn("assistant", said)


def test_prompts_of_one_data_set_share_all_but_the_last_turn():
    assert chat("Who?", few_shot=CLOSED)[:-1] == chat("What?", few_shot=CLOSED)[:-1]


def test_examples_without_answers_and_double_passages_are_errors():
    with pytest.raises(InputError, match="few-shot example 'd' has no answer"):
        chat("Who?", few_shot=[Question("d", "Why?")])
    with pytest.raises(InputError, match=r"'c' .*`context`"):
        chat(OPEN[0], context="Other.")


def test_plain_text_says_the_same_and_waits_for_the_answer():
    assert plain_text(chat("Where?", few_shot=CLOSED[:1], system="Be brief.")) == (
        "Be brief.\n\nQuestion: Who flew first?\nAnswer: Ada.\n\nQuestion: Where?\nAnswer:"
    )
    assert plain_text([user_turn(OPEN[0])]) == "Context: Ada flew\n\nfar.\n\nQuestion: Who flew?\nAnswer:"


def test_the_text_of_a_prompt_is_a_prefix_of_the_text_with_its_answer():
    prompt = chat("Where?", few_shot=CLOSED)
    assert plain_text([*prompt, answer_turn("Kent")]) == plain_text(prompt) + " Kent."
