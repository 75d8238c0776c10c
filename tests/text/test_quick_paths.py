"""What was made quick in normal forms and grading decides as the slow way does."""

from __future__ import annotations

import re
from collections import Counter

from hypothesis import assume, given
from hypothesis import strategies as st

from semcal.grading.rules import RuleGrader, Thresholds, squad_f1
from semcal.text import normal_form as forms
from semcal.text import values
from semcal.text.normal_form import normal_form
from semcal.text.numbers import any_word

WORDS = st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=12)
MARKS = " -–.,/'$%+#<=^°€(²½…éø\u00ad\u0301\u2044"
PARTS = ["the", "a", "five", "twenty", "million", "may", "4", "1939", "45", ".5", "x"]
PIECES = st.sampled_from([*PARTS, *MARKS, " ", " "])
TEXTS = st.lists(PIECES, max_size=12).map("".join)


@given(WORDS, st.text("abc", max_size=6))
def test_a_pattern_of_words_matches_each_of_them_and_nothing_else(words, text):
    assert bool(re.fullmatch(any_word(words), text)) == (text in words)


@given(TEXTS)
def test_the_normal_form_is_where_the_rules_change_nothing_any_more(text):
    text = text.lower().replace("^{", "")
    assume(not forms._whole_code(text))  # a code is its own form
    folded = forms._folded(text)
    while (form := forms._reduced(folded)) != folded:
        folded = forms._folded(form)
    assert normal_form(text) == form


@given(st.text())
def test_a_form_without_signs_of_values_states_none(text):
    form = normal_form(text)
    if not values._STATES.search(form):
        words = form.split()
        assert [*values._numbers(words), *filter(values._is_name, words)] == []


LETTERS = st.lists(st.sampled_from(["pp", "qq", "rr", "ss", "tt", "uu"]), min_size=1, max_size=9)


@given(LETTERS, LETTERS)
def test_f1_accepts_what_squads_f1_puts_above_one_half(prediction, reference):
    grader = RuleGrader(rules=["F1"], thresholds=Thresholds(numerals=False))
    accepted = grader.grade("", [" ".join(prediction)], [" ".join(reference)]).correct
    assert accepted == (squad_f1(Counter(prediction), Counter(reference)) > Thresholds.f1)
