"""Dates become ISO 8601 at the granularity that they state; names, ranges and guesses do not."""

from __future__ import annotations

import calendar
import re
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semcal.text.normal_form import normal_form, read_dates
from tests.tables import pairs, texts

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
a March 1921 report → 1921-03 report
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
10.13.4 | 1803 (10.0.17134.112) | 553-25-4594
""")


@pytest.mark.parametrize("text", NO_DATES)
def test_what_is_no_date_stays(text):
    assert read_dates(text) == text
    assert not ISO_DATE.search(normal_form(text).removeprefix("1988-13-01"))


@pytest.mark.parametrize(
    "title",
    ["Theresa May (2016)", "Red October (1990)", "The Songs of August (1962)", "September (1987 film)"],
)
def test_a_year_in_brackets_makes_no_date_of_a_name_or_title(title):
    assert not ISO_DATE.search(normal_form(title))


def test_the_end_of_a_range_is_no_date_even_when_its_dash_is_gone():
    assert normal_form("24 August – 3 October 1572") == "24 august 3 october 1572"
    assert normal_form("14 & 15 August 1945") == "14 15 august 1945"


def test_a_range_of_years_is_completed_and_is_no_month():
    assert normal_form("1939–45") == normal_form("1939-45") == normal_form("1939 – 1945") == "1939-1945"
    assert normal_form("2008–09") == "2008-2009"
    assert normal_form("2008-09") == normal_form("September 2008") == "2008-09"
    assert normal_form("Orlin 2008-09") == "orlin 2008-2009"
    assert normal_form("in 2008-09") == "in 2008-09"
    assert normal_form("1945–39") == "1945-39"
