"""Numbers in words, quantities, fractions and separators become digits."""

from __future__ import annotations

import random
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from num2words import num2words

from semcal.text.normal_form import normal_form
from semcal.text.numbers import read_numbers
from tests.tables import pairs

RNG = random.Random(5)
WHOLE_NUMBERS = [*range(10_000), *(RNG.randrange(10 ** RNG.randint(5, 12)) for _ in range(2000))]


def forms(*texts: str) -> list[str]:
    return [read_numbers(text) for text in texts]


def ordinal(number: int) -> str:
    teens = 10 <= number % 100 <= 20
    return f"{number}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def test_every_whole_number_in_words_is_read():
    wrong = [n for n in WHOLE_NUMBERS if read_numbers(num2words(n)) != str(n)]
    assert wrong == []


def test_whole_numbers_are_read_without_hyphens_commas_and_and():
    for n in WHOLE_NUMBERS[::7]:
        words = num2words(n).replace("-", " ").replace(",", "").replace(" and ", " ")
        assert read_numbers(words) == str(n)


def test_negative_numbers_in_words_are_read():
    assert [read_numbers(num2words(-n)) for n in range(1, 300)] == [str(-n) for n in range(1, 300)]


def test_every_ordinal_but_second_is_read():
    numbers = [n for n in WHOLE_NUMBERS if n not in (0, 2)]
    wrong = [n for n in numbers if read_numbers(num2words(n, to="ordinal")) != ordinal(n)]
    assert wrong == []


def test_years_are_read_as_they_are_spoken():
    years = range(1000, 2100)
    assert [read_numbers(num2words(year, to="year")) for year in years] == [str(year) for year in years]


@given(st.decimals(0, 10**6, places=3, allow_nan=False))
@settings(deadline=None)
def test_decimals_in_words_are_read(number):
    assert Decimal(read_numbers(num2words(number))) == number


@given(st.integers(0, 10**15))
@settings(deadline=None)
def test_thousands_separators_go(number):
    assert read_numbers(f"{number:,}") == str(number)
    assert read_numbers(f"about {number:,} of them") == f"about {number} of them"


DIGITS = pairs("""
nineteen oh five → 1905 | nineteen-oh-five → 1905 | twenty twelve → 2012 | twenty twenty-one → 2021
nineteen-eighty-four → 1984 | nineteen hundred and five → 1905 | fifteen hundred → 1500
nineteen thirty-nine to nineteen forty-five → 1939 to 1945 | nineteen sixties → 1960s
eighteen hundreds → 1800s | the sixties → the 60s | fifteen twenty thousand → 15 20000
ten-fifteen → 10-15 | twenty-five → 25 | twenty five → 25 | twenty, five → 20, 5 | five million → 5000000
5 million → 5000000 | 5million → 5000000 | 3.5 million → 3500000 | three point five million → 3500000
seven and a half million → 7500000 | a million and a half → a 1500000
two hundred thousand million → 200000000000 | half a million → 500000 | half-dozen → 6 | a dozen → a 12
two dozen → 24 | a hundred → a 100 | a thousand and one → a 1001 | 5 lakh → 500000 | $5 million → $5000000
$2.5m → $2500000 | £3bn → £3000000000 | 5m → 5m | 2-3 million → 2000000-3000000
$20 - 30 million → $20000000-30000000 | 10:30 million → 10:30 1000000 | one hundred two hundred → 100 200
one thousand two thousand → 1000 2000 | between one hundred and twenty → between 100 and 20
two thousand, five hundred → 2500 | one thousand, two of them → 1000, 2 of them | zero point five → 0.5
six point oh two → 6.02 | three point fourteen → 3.14 | twenty point lead → 20 point lead
two and a half → 2.5 | 2 and a half → 2.5 | two and three quarters → 2.75 | 2 1/2 → 2.5 | two thirds → 2/3
three-quarters → 3/4 | one third → 1/3 | a third of it → a 1/3 of it | a third time → a 3rd time
four quarters → 4 quarters | one half → 0.5 | half → 0.5 | a half → a 0.5 | half past five → half past 5
minus one point five percent → -1.5% | negative 40 → -40 | nine minus five → 9 minus 5
twenty per cent → 20% | 20 % → 20% | twenty first → 21st | the twenty-first century → the 21st century
third → 3rd | henry the eighth → henry the 8th | thirty-second → 32nd
thirty second spot → 30 second spot | one hundred and second → 102nd
the second century → the 2nd century | two thousandth → 2000th
""")


@pytest.mark.parametrize(("text", "digits"), DIGITS)
def test_words_of_numbers_become_these_digits(text, digits):
    assert read_numbers(text) == digits


@pytest.mark.parametrize(
    "text",
    [
        "second",
        "a second",
        "the second opinion",
        "no one",
        "one another",
        "one of them",
        "one's own",
        "someone won, for weight and fortune often tend to tension",
        "millions of dozens",
        "2nd",
        "henry viii",
        "negative",
        "half the population",
    ],
)
def test_what_is_no_number_stays(text):
    assert read_numbers(text) == text


def test_no_one_is_no_one_with_a_hyphen_too():
    assert forms("no-one", "no one hundred", "one") == ["no one", "no 100", "1"]


def test_numbers_in_a_title_are_read_wherever_they_stand():
    assert normal_form("One Direction") == normal_form("one direction") == "1 direction"
    assert normal_form("Apollo Eleven") == normal_form("Apollo 11")


def test_endless_numbers_do_no_harm():
    assert read_numbers("million " * 2000).startswith("1000")
    assert normal_form("9" * 6000) == "9" * 6000
    assert normal_form("9" * 6000 + " million") == "9" * 6000 + "0" * 6
