"""Which normal forms state different values: one comparison for grading and for clustering."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semcal.grading.rules import RuleGrader, Thresholds, squad_f1
from semcal.text.normal_form import normal_form
from semcal.text.values import contradict, month_and_day, values_differ, values_of
from tests.tables import pairs

WORDS = """
7 8 7.0 1/2 50% 60% $5 £5 5€ 1066 bc bce ad century 5th december 19 20 1988-12-19 1988-12 1988 henry vii viii
second a b c# c++ ab+ ab- x < > = 5 km m 30°c pm 17:00 5:00 1939-1945 to and 1939 1945 60s 1960s b52 52 mill
"""
TEXTS = st.lists(st.sampled_from(WORDS.split()), max_size=6).map(" ".join)
many = settings(deadline=None, max_examples=500)


def differ(a: str, b: str) -> bool:
    return values_differ(normal_form(a), normal_form(b))


@given(st.one_of(TEXTS, st.text()), st.one_of(TEXTS, st.text()))
@many
def test_values_differ_is_symmetric_and_never_true_of_one_text(a, b):
    assert differ(a, b) == differ(b, a)
    assert not differ(a, a)


@given(TEXTS, TEXTS)
@many
def test_finer_dates_only_ever_take_contradictions_away(a, b):
    one, other = values_of(normal_form(a)), values_of(normal_form(b))
    assert contradict(one, other) or not contradict(one, other, finer=True)


DIFFERENT = pairs("""
7 → 8 | -7 → 7 | - 5 → 5 | 3.5 → 3.51 | 1988 → 1989 | in 1988 → in 1989 | 1988-12-19 → 1988-12-20
1988-12-19 → 1988-12 | 1988-12 → 1988 | 3rd → 4th | 10000000 → 100000000 | $5 → $6 | $5 → £5 | 50% → 60%
50% → $50 | 20 km → 30 km | 20 km → 30 kilometres | 1/2 → 1/3 | 44 BC → 45 BC | 44 BC → 44 | 44 BC → AD 44
5th century BC → 5th century | the 6th and 4th centuries BC → the 6th and 4th centuries
264-146 BC → 264-146 | 19 August 14 BC → 19 August 14 AD | 19 August 14 BC → 19 August 14
19th of August, 14 BC → August 19, AD 14 | August 14 BC → August 14 AD
the second of August 14 BC → 2 August 14 AD | 15 March 44 BC → 44 | 5 May 1200 BC → 5 May 1200
on 5 May 1200 BC in Kent → on 5 May 1200 in Kent | 1066-10-14 BC → 1066-10-14 | 1066-10 BC → October 1066
Henry VII → Henry VIII | Rocky II → Rocky 3 | December 19 → December 20 | December 19 → 19 November
1939-1945 → 1914-1918 | F-16 → F-15 | 1960s → 1970s | Hepatitis A → Hepatitis B
the influenza A virus → influenza B virus | Ana B. Marsh → Ana C. Marsh | O+ → O- | C# → C++
the C language → the C# language | type AB → type AB+ | 5<3 → 5>3 | 90° → 90%
14 juillet → 14 juin | am 3. Oktober → am 3. November
""")


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_different_values_differ(a, b):
    assert differ(a, b)


def test_sentences_are_compared_by_values_only_where_they_say_the_same_otherwise():
    built = "the old lighthouse of Tarn was built by Odo Brand in {}"
    other = "Odo Brand, who lived until {}, made the light of that place for its fishermen"
    assert differ(built.format(1907), built.format(1912))
    assert not differ(built.format(1907), other.format(1950))
    assert differ("1907", other.format(1950))
    assert differ("built by Odo Brand in 1907", other.format(1950))


@given(
    st.lists(st.sampled_from([f"ana{c}" for c in "abcdefghij"]), min_size=9, unique=True),
    st.lists(st.sampled_from([f"kai{c}" for c in "abcdefghij"]), max_size=9, unique=True),
)
def test_how_much_sentences_may_have_of_their_own(shared, own):
    one, other = " ".join([*shared, "1907"]), " ".join([*shared, *own, "1912"])
    assert differ(one, other) == (len(shared) >= 0.6 * (len(shared) + len(own)))


AGREEING = pairs("""
7 → 7.0 | 007 → 7 | 3rd → 3 | 2/4 → half | 50% → 50 | 50% → half | $5 → 5 dollars | 44 BC → 44 B.C.E.
AD 79 → 79 | 19 August 14 → 19 August 14 AD | 19 August 14 → AD 14 | August 14 → 14 August 14 AD
15 March 44 BC → 44 BC | 15 March 44 BC → 15 March | 5 May 1200 AD → 5 May 1200
1066-10-14 BC → 14 October 1066 BC | 1066-10-14 BC → 1066 BC
on 5 May 1200 in Kent after 44 BC → in 1200 in Kent | 44 BC → Toreth | 300 BC to 200 BC → 300 to 200 BC
1939-1945 → from 1939 to 1945 | the 60s → the 1960s | B-52 → B 52 | 5km → 5 km | Rocky II → Rocky 2
December 19 → 19th of December | 9/11 → September 11 | 5:00 → 5 | it opened in 1988 → on 19 December 1988
in December 1988 → 19 December 1988 at noon | December 19 → 19 December 1988 | Henry → Henry VIII
Toreth → 1988 | Vitamin A → Vitamin | Ana B. Marsh → A. Bela Marsh | 3 octubre → October 3
""")


@pytest.mark.parametrize(
    ("a", "b"),
    [*AGREEING, ("", "7"), ("9" * 5000, "9" * 5000)],
)
def test_values_that_agree_or_that_only_one_states_do_not_differ(a, b):
    assert not differ(a, b)


@pytest.mark.parametrize(
    ("a", "b"), [("5 km", "5000 m"), ("100 °C", "212 °F"), ("17:00", "5 pm"), ("2 years", "24 months")]
)
def test_nothing_is_said_of_amounts_in_other_units(a, b):
    assert not differ(a, b)
    assert contradict(
        values_of(normal_form(a)), values_of(normal_form(b))
    )  # not rescued by the words around it


def test_a_finer_date_meets_a_coarser_one():
    day = values_of("1988-12-19")
    for coarser in ("1988", "1988-12", "december 19"):
        assert contradict(day, values_of(coarser))
        assert not contradict(day, values_of(coarser), finer=True)
        assert contradict(values_of(coarser), day, finer=True)


def test_a_form_is_wholly_a_month_and_a_day_or_it_is_not():
    whole = [month_and_day(form) for form in ("april 30", "30th of april", "april second", "april")]
    assert whole == [("04", "30"), ("04", "30"), ("04", "02"), ("04", "")]
    assert not any(map(month_and_day, ("april 31 mills", "april may", "april 32", "may day")))


LETTERS = st.lists(st.sampled_from(["pp", "qq", "rr", "ss", "tt", "uu"]), min_size=1, max_size=9)


@given(LETTERS, LETTERS)
def test_f1_accepts_what_squads_f1_puts_above_one_half(prediction, reference):
    grader = RuleGrader(rules=["F1"], thresholds=Thresholds(numerals=False))
    accepted = grader.grade("", [" ".join(prediction)], [" ".join(reference)]).correct
    assert accepted == (squad_f1(Counter(prediction), Counter(reference)) > Thresholds.f1)
