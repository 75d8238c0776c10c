"""Numbers in words, quantities, fractions and separators become digits."""

from __future__ import annotations

import calendar
import random
import re
from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from num2words import num2words

from semcal.text.normal_form import normal_form, read_dates
from semcal.text.numbers import any_word, read_numbers
from tests.tables import pairs, texts

RNG = random.Random(5)
WHOLE_NUMBERS = [*range(10_000), *(RNG.randrange(10 ** RNG.randint(5, 12)) for _ in range(2000))]


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
the second century → the 2nd century | two thousandth → 2000th | no-one → no one
no one hundred → no 100 | one → 1
""")


@pytest.mark.parametrize(("text", "digits"), DIGITS)
def test_words_of_numbers_become_these_digits(text, digits):
    assert read_numbers(text) == digits


NO_NUMBERS = texts("""
second | a second | the second opinion | no one | one another | one of them | one's own
someone won, for weight and fortune often tend to tension | millions of dozens | 2nd | henry viii
negative | half the population
""")


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_what_is_no_number_stays(text):
    assert read_numbers(text) == text


def test_endless_numbers_do_no_harm():
    assert read_numbers("million " * 2000).startswith("1000")
    assert normal_form("9" * 6000) == "9" * 6000
    assert normal_form("9" * 6000 + " million") == "9" * 6000 + "0" * 6


# ---- Dates become ISO 8601 at the granularity that they state; names, ranges and guesses do not ------------

ISO_DATE = re.compile(r"[0-9]{4}-(?:0[1-9]|1[0-2])(?![0-9])")
DATES = st.dates(date(1000, 1, 1), date(2999, 12, 31))


def spellings(day: date) -> list[str]:
    name, short = calendar.month_name[day.month], calendar.month_abbr[day.month]
    return [
        f"{name} {day.day}, {day.year}",
        f"{name} {day.day} {day.year}",
        f"{day.day} {name} {day.year}",
        f"{day.day} {name}, {day.year}",
        f"{day.day:02d}-{short}-{day.year}",
        f"{short}. {day.day}, {day.year}",
        f"the {day.day}th of {name}, {day.year}",
        f"{calendar.day_name[day.weekday()]}, {day.day} {name} {day.year}",
        f"{day.year} {name} {day.day}",
        f"{day.year}/{day.month}/{day.day}",
        day.isoformat(),
    ]


@given(DATES)
@settings(deadline=None)
def test_every_spelling_of_a_date_is_the_iso_date(day):
    assert {normal_form(text) for text in spellings(day)} == {day.isoformat()}


@given(DATES)
@settings(deadline=None)
def test_dates_in_figures_are_read_unless_day_and_month_can_be_told_apart_by_no_one(day):
    clear = day.day > 12 or day.day == day.month
    for text in (f"{day.day}/{day.month}/{day.year}", f"{day.month}/{day.day}/{day.year}"):
        assert normal_form(text) == (day.isoformat() if clear else text)
    assert (normal_form(f"{day.day}.{day.month}.{day.year}") == day.isoformat()) == clear


@given(st.integers(1000, 2099), st.integers(1, 12))
@settings(deadline=None)
def test_a_month_and_a_year_state_no_day(year, month):
    name = calendar.month_name[month]
    assert {normal_form(f"{name} {year}"), normal_form(f"{name}, {year}")} == {f"{year}-{month:02d}"}
    assert normal_form(f"in {name} of {year}") == f"in {year}-{month:02d}"


DATED = pairs("""
December seventh, nineteen forty-one → 1941-12-07 | the second of May, nineteen fourteen → 1914-05-02
May 2nd 1914 → 1914-05-02 | He left on 5 May 1821 by sea → he left on 1821-05-05 by sea
from 3 May 1821 to 4 June 1830 → from 1821-05-03 to 1830-06-04
9 February 1976 (aged 30) → 1976-02-09 aged 30 | late March 1921 → late 1921-03
as of March 1921 → as of 1921-03 | the end of March 1921 → end of 1921-03
a March 1921 report → 1921-03 report | 24 August – 3 October 1572 → 24 august 3 october 1572
14 & 15 August 1945 → 14 15 august 1945 | 1939–45 → 1939-1945 | 1939-45 → 1939-1945
1939 – 1945 → 1939-1945 | 1945–39 → 1945-39 | 2008–09 → 2008-2009 | 2008-09 → 2008-09
September 2008 → 2008-09 | Orlin 2008-09 → orlin 2008-2009 | in 2008-09 → in 2008-09
""")


@pytest.mark.parametrize(("text", "form"), DATED)
def test_dates_among_words(text, form):
    assert normal_form(text) == form


NO_DATES = texts("""
may | march | dec | july 4 | 4th of july | march 15, 44 bc | 5 may 1200 bc | may 1200 b.c.
03/04/1988 | 3.4.1988 | 30/02/1988 | 31 november 1988 | november 31, 1988 | february 29, 1900
1988-13-01 | theresa may | theresa may, 2016 | theresa may 2016 | april ludgate | august strindberg
jan velis 1988 | miss march 1990 | flood: november 1986 | red september 1990
the songs of june 1962 | born on the 4th of july 1989 film | october 1987 novel
either october[15] or november 2017 | it may be 12 or 13 | they may 1500 times | the march of time
may day 1920 | 1939-1945 | 14 and 15 august 1945 | 26-30 august 1914 | august 24-26, 1572
july - august 1914 | july and august 1914 | 24 august - 3 october 1572
august 24 to october 3, 1572 | late february or early march 2020 | march 5000 | summer 1988
10.13.4 | 1803 (10.0.17134.112) | 553-25-4594 | theresa may (2016) | red october (1990)
the songs of august (1962) | september (1987 film)
""")


@pytest.mark.parametrize("text", NO_DATES)
def test_what_is_no_date_stays(text):
    assert read_dates(text) == text
    assert not ISO_DATE.search(normal_form(text).removeprefix("1988-13-01"))


WORDS = st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=12)


@given(WORDS, st.text("abc", max_size=6))
def test_a_pattern_of_words_matches_each_of_them_and_nothing_else(words, text):
    assert bool(re.fullmatch(any_word(words), text)) == (text in words)
