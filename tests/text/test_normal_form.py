"""What the normal form keeps, drops and unifies."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.text_quality import (
    SAMPLES,
    became_date,
    golden_verdicts,
    group_verdicts,
    pair_verdicts,
    sample_answers,
)
from semcal.text.normal_form import asks_for_code, code_form, letter_form, normal_form
from semcal.text.numbers import NUMBER_WORDS
from tests.tables import pairs, texts

WORDS = texts("""
and | a | an | the | point | oh | of | no | another | hundreds | thirds | to | between | may | march | july
december | bn | bc | 2016 | 1988 | 5 | 12 | 3.5 | .5 | 1,234 | 5m | 100 | 1939-45 | 2008–09 | first | century
henry | vitamin | minor | ab | c | s | th | - | – | ' | ’ | , | . | $ | % | percent | ½ | ⁄ | / | : | ( | )
+ | é | İ | = | < | # | ° | ^ | * | € | ² | ø | _
""")
WORDS += [*sorted(NUMBER_WORDS), "\u0345", "\u200b"]
TEXTS = st.one_of(
    st.text(),
    st.lists(st.sampled_from([*WORDS, " ", " ", " "]), max_size=12).map("".join),
    st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join),
)
SUPERSCRIPTS = re.compile("[⁺⁻⁰¹²³⁴-⁹]")
any_text = settings(deadline=None, max_examples=400)


@given(TEXTS)
@any_text
def test_a_normal_form_is_its_own_normal_form(text):
    form = normal_form(text)
    assert normal_form(form) == form


@given(TEXTS)
@any_text
def test_only_blank_texts_have_an_empty_normal_form(text):
    assert bool(normal_form(text)) == bool(text.strip())


@given(TEXTS)
@any_text
def test_case_and_compatibility_characters_play_no_part(text):
    text = SUPERSCRIPTS.sub("", text)  # 10⁶ is no 106
    form = normal_form(text)
    assert normal_form(text.casefold()) == form
    for name in ("NFC", "NFKC", "NFKD"):
        assert normal_form(unicodedata.normalize(name, text)) == form


@given(st.text(st.characters(max_codepoint=127)))
@any_text
def test_upper_and_lower_case_agree_in_ascii(text):
    assume(not re.search("(?i)[0-9] ?m(?:w|v|j|pa)|mw", text))  # megawatts and milliwatts
    assert normal_form(text.upper()) == normal_form(text.lower())


FORMS = pairs("""
The Tower of Orlin. → tower of orlin | Orlin’s “Blue”  tower → orlins blue tower | well-known → wellknown
U.S. → us | Ana Velis (a poet) → ana velis poet | ３０ kg → 30 kg | ¿Qué? → que | STRASSE → strasse
Straße → strasse | R´Lan → rlan | Henry VIII → henry viii | 3.14 → 3.14 | −7 → -7 | (-7) → -7 | 2/3 → 2/3
⅔ → 2/3 | 2½ → 2.5 | 11⁄16 → 11/16 | 1939–1945 → 1939-1945 | 10 - 15 → 10-15 | 16:18 → 16:18 | 9/11 → 9/11
.5 → 0.5 | -.5 → -0.5 | $ 5.25 → $5.25 | $.25 → $0.25 | 3.5 % → 3.5% | UTC+05:30 → utc+05:30
10.13.4 → 10.13.4 | 44 BC → 44 bc | 1, 2, 3 → 1 2 3 | 6'2" → 6 2 | 26-man team → 26 man team
eighteenth-century art → 18th century art | Catch-22 → catch 22 | F-16 → f16 | No.5 → no 5
mid-1960s → mid 1960s | the 1960's → 1960s | '60s → 60s | UTC-05:30 → utc 05:30 | A+ → a+ | * → * | . → .
The → the | A. → a | (A) → a | The The → the the | Hepatitis A → hepatitis a
the hepatitis A virus → hepatitis a virus | Plan A. → plan a | Vitamin A → vitamin a
Type A or Type B → type a or type b | the answer is A → answer is a | from A to Z → from a to z
Sonata in A minor → sonata in a minor | a mill by a river → mill by river | a minor planet → minor planet
an apple → apple | a dozen → 12 | O+ → o+ | O− → o- | AB- blood → ab- blood | C# → c# | C++. → c++
(A+) → a+ | grade A- → grade a- | Ca2+ → ca2+ | NO3− → no3- | 5<3 → 5 < 3 | 5 > 3 → 5 > 3 | x=y → x = y
p < .05 → p < 0.05 | 90 ° → 90° | 30 °C → 30°c | 5 € → €5 | £ 5 → £5 | $-5 → -$5 | #1 → 1 | ~50 → 50
pre- and post-war → pre and postwar | B- and T-cells → b and tcells | al- Orlin → al orlin
<em>Orlin</em> → emorlinem | - 5 → -5 | it was - 5 °C → it was -5°c | Orlin - 5 mills → orlin 5 mills
1,5 → 1.5 | 0,125 → 0.125 | 1,5 million → 1500000 | 1 000 000 → 1000000 | 10 000,5 → 10000.5
1,00,000 → 100000 | 12,34,567 → 1234567 | 1'000'000 → 1000000 | 1.234,56 → 1234.56 | 10^6 → 1000000
10⁶ → 1000000 | 3 × 10^6 → 3000000 | 2^10 → 2^10 | 2¹⁰ → 2^10 | 10⁻³ → 10^-3 | x² → x2 | 1,2,3 → 1,2,3
1914,1918 → 1914,1918 | 800 555 1234 → 800 555 1234 | 100, 200, 300 → 100 , 200 , 300
March 13, 624 → march 13 624 | 4 July,1776 → 1776-07-04 | Python 3.10 → python 3.10 | 7.500 → 7.500
May the Fourth → may 4th | Friday the 13th → friday 13th | he won the second → he won second
the second of three → second of 3 | ой → ой | 44 BCE → 44 bce
One Direction → 1 direction | Apollo Eleven → apollo 11
p+q → p + q | p - q → p - q | (p + q) * 2 → ( p + q ) * 2 | e^{3} - 1 → e3 - 1 | 1 − 1/e → 1 - 1 / e
p && q → p && q | !ready → !ready | run_all() → run_all | /var/log → /var/log
j.doe@example.org → j.doe@example.org | 8 MW → 8 megawatt | 8 mW → 8 mw
AC/DC → acdc | McDonald → mcdonald | iPhone → iphone | B-52 → b52 | Type O+ → type o+ | C++ → c++
M*A*S*H → mash | UTC+8 → utc+8 | Yahoo! → yahoo | Vitamin A + C → vitamin a c | 3 - 1 → 3-1
10 - 15 km → 10-15 km | 9/11 → 9/11 | MV Orlin → mv orlin | 7000+ (as of 2022) → 7000 as of 2022
9. November 1989 → 1989-11-09 | le 3 août 1904 → le 1904-08-03 | 3 de marzo de 1904 → 1904-03-03
1er mai 1904 → 1904-05-01 | 3 dicembre 1904 → 1904-12-03 | 3 de março de 1904 → 1904-03-03
3 maart 1904 → 1904-03-03 | Oktober 1904 → 1904-10 | Mars 2020 → mars 2020
in 1268 Marco Polo left → in 1268 marco polo left | 2 Mai Tais → 2 mai tais
""")


@pytest.mark.parametrize(
    ("text", "form"),
    [*FORMS, ("soft\u00adly", "softly"), ("D:\\logs\\a.txt", "d:\\logs\\a.txt")],
)
def test_each_text_has_this_form(text, form):
    assert normal_form(text) == form


@pytest.mark.parametrize(
    "written",
    [
        ["7", "7.0", "7.00"],
        ["0.5", "0.50", ".5", "½", "1/2", "half", "one half"],
        ["$5", "$5.00", "5 $"],
        ["7.5 km", "7.50 km"],
        ["3.5%", "3.50 %"],
        ["second", "2nd", "the 2nd"],
        ["the second century", "2nd century"],
        ["1/3", "one third", "⅓"],
        ["Elizabeth II", "Elizabeth the Second", "elizabeth the 2nd"],
        ["Henry VIII", "Henry the Eighth", "Henry the 8th."],
        ["Henry VIII of Orlin", "Henry the Eighth of Orlin"],
        ["José Ibáñez", "Jose Ibanez"],
        ["Łódź", "Lodz"],
        ["Ærøskøbing", "Aeroskobing"],
        ["Đorđe Œuvre", "Dorde Oeuvre"],
        ["one million", "1 000 000", "1,000,000", "10^6"],
    ],
)
def test_one_value_has_one_form(written):
    assert len(set(map(normal_form, written))) == 1


def test_the_form_of_a_code_keeps_case_and_dots() -> None:
    assert code_form('"kx7".') == "kx7" != code_form("KX7")
    assert code_form("2.10") != code_form("2.1")
    assert letter_form(" Kx7. ") == "Kx7."


def test_a_question_or_all_labels_show_that_codes_are_asked_for() -> None:
    assert asks_for_code("Which version is it?", ["2.10"])
    assert asks_for_code("Which one?", ["kx71", "j.doe@example.org"])
    assert not asks_for_code("Which version of the tale?", ["The Old Mill"])
    assert not asks_for_code("What dress code was set?", ["2.10"])
    assert not asks_for_code("Which one?", ["kx71", "Turin"])


# ---- The normal form on public answers (docs/meaning-evidence.md); needs SEMCAL_DATA -----------------------


def share(verdicts: list[bool]) -> float:
    return sum(verdicts) / len(verdicts)


def test_every_golden_string_has_its_normal_form(semcal_data):
    assert share(golden_verdicts(semcal_data)) == 1


def test_equal_and_unequal_numbers_are_told_apart(semcal_data):
    assert share(pair_verdicts(semcal_data)) >= 0.995


def test_references_in_words_have_the_normal_form_of_those_in_digits(semcal_data):
    assert share(group_verdicts(semcal_data)) >= 0.96


def test_no_answer_without_a_year_and_a_month_becomes_a_date(semcal_data):
    month = re.compile(r"jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|[0-9]+[/.-][0-9]+", re.IGNORECASE)
    dated = [
        answer for name in SAMPLES for answer in sample_answers(semcal_data, name) if became_date(answer)
    ]
    assert len(dated) > 1000
    assert [answer for answer in dated if not (month.search(answer) and re.search("[0-9]{4}", answer))] == []
