"""The first answer ends at the first newline or sentence; full stops of abbreviations end nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semcal.meaning.answer import AnswerSpan, first_answer
from tests.tables import texts

PIECES = [
    *texts("""
Ana | J. | U.S. | Dr. | 3.5 | velis | The | No. | 5 | . | ? | ! | ... | (
"""),
    '"',
    " ",
    "\n",
]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("Toreth", "Toreth"),
        ("Toreth.", "Toreth"),
        ("Toreth. It is a town.", "Toreth"),
        ("toreth. it is a town.", "toreth"),
        ("Toreth\nQuestion: Where?", "Toreth"),
        ("Toreth\r\nQuestion: Where?", "Toreth"),
        ("Toreth! And more.", "Toreth!"),
        ("1987. The next one", "1987"),
        ("3.5 metres. About", "3.5 metres"),
        ("No. He did not.", "No"),
        ('"Toreth". It is', '"Toreth"'),
        ('"Toreth." It is', '"Toreth."'),
        ("(Toreth.) It is", "(Toreth.)"),
        # after an abbreviation a word that opens sentences opens one
        ("in the U.S. The rest", "in the U.S."),
        ("at 5 a.m. He said", "at 5 a.m."),
        ("Ana Velis Jr. She said", "Ana Velis Jr."),
        ("Malcolm X. He said", "Malcolm X"),
        ("vitamin C. It is", "vitamin C"),
        ("Amartya Sen. He is", "Amartya Sen"),
        ("Ana Velis Jr.. He is", "Ana Velis Jr."),
        ("J. A. Velis", "J. A. Velis"),
    ],
)
def test_the_answer_ends_with_its_first_sentence_or_line(raw, text):
    assert first_answer(raw).text == text


WHOLE = texts("""
J. R. R. Velis | J.R.R. Velis | Ana C. Velis | Ana P. Velis | St. Orlin | Dr. Ana Velis
Lt. Col. Velis | No. 5 | Vol. 2 | Toreth D.C. is the capital | at 5 a.m. on Monday | 5 p.m. Eastern
the U.S. Senate | Velis v. Orlin | Velis Inc. of Toreth | Ana Velis Jr. and others | Wait... for me
Yahoo! is one | example.org | 1.5.2 | c. 1515 | on Dec. 7
""")


@pytest.mark.parametrize("answer", WHOLE)
def test_full_stops_inside_abbreviations_initials_and_decimals_end_no_sentence(answer):
    assert first_answer(answer) == AnswerSpan(answer, len(answer))
    assert first_answer(f"{answer}. The rest").text in (answer, f"{answer}.")


@pytest.mark.parametrize(
    "answer", ["U.S.", "5 p.m.", "Ana Velis Jr.", "Velis Inc.", "J. R.", "and so on ..."]
)
def test_the_full_stop_of_an_abbreviation_is_kept(answer):
    assert first_answer(answer) == AnswerSpan(answer, len(answer))


def test_the_end_counts_the_full_stop_and_what_closes_with_it():
    assert first_answer("Toreth. More").end == len("Toreth.")
    assert first_answer('"Toreth." More').end == len('"Toreth."')
    assert first_answer("Toreth  \nMore").end == len("Toreth")
    for raw, end in (("", 0), (" ", 0), ("\n\n", 0), (" \t\n", 0), (".", 1)):
        assert first_answer(raw) == AnswerSpan("", end)


def test_blanks_and_newlines_before_the_answer_are_skipped_but_counted():
    assert first_answer("\n \n Toreth. More") == AnswerSpan("Toreth", len("\n \n Toreth."))


@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=12).map("".join)))
@settings(deadline=None)
def test_the_answer_lies_in_the_text_and_cutting_again_changes_nothing(raw):
    answer = first_answer(raw)
    assert 0 <= answer.end <= len(raw)
    assert answer.text in raw[: answer.end]
    assert answer.text == answer.text.strip()
    assert first_answer(raw[: answer.end]) == answer
