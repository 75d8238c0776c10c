"""Refusals are recognised by a short list, and what might be an answer never is."""

from __future__ import annotations

import pytest

from semcal.meaning.answer import is_refusal


@pytest.mark.parametrize(
    "text",
    [
        "I don't know.",
        "I do not know who built the mill",
        "dont know how many",
        "Honestly, I don't know",
        "I'm not sure.",
        "im not sure",
        "I’m really not certain about that",
        "I'm not sure, but",
        "I am not sure but i think",
        "I'm not sure, but I don't know",
        "I'm not sure of the answer, probably",
        "No idea",
        "I have no idea.",
        "I'm sorry, I don't have enough information to answer",
        "As an AI language model, I do not have access to that",
        "Unfortunately, I cannot answer that question",
        "Sorry, I can't help with that",
        "It cannot be determined from the passage.",
        "It is not known",
        "Not specified in the passage",
        "There is no information about that",
        "I'm not familiar with that mill",
    ],
)
def test_an_answer_that_only_says_it_has_none_is_a_refusal(text):
    assert is_refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Odo Brand",
        "I'm not sure, but it was Odo Brand",
        "I'm not sure. Maybe 1875",
        "I don't know, probably the Sull",
        "not sure Belmar",
        "I Don't Know How to Love Him",
        "I Don't Know Why",
        "I Can't Tell You Why",
        "I Am Not a Number",
        "I am Legend",
        "No Country for Old Men",
        "Not Fade Away",
        "Information Society",
        "Unknown",
        "Nobody",
        "No",
    ],
)
def test_what_may_be_an_answer_is_none(text):
    assert not is_refusal(text)
