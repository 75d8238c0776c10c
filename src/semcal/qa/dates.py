"""Writes English dates in ISO 8601 at the granularity that they state, without a clock.

A date needs a day, a month and a year, or a month and a year. Everything else stays text: a bare month, a
day without a year, years BC, 03/04/1988 (March or April?), and the end of a range or list that gives its
month or year to the beginning ("14 and 15 August 1945").
"""

from __future__ import annotations

import re
from calendar import monthrange

from semcal.qa.figures import MONTHS, any_word

__all__ = ["leads_to_month", "read_dates"]

_MONTH_NAMES = "|".join(sorted(MONTHS, key=len, reverse=True))
_ANY_MONTH = re.compile(rf"\b{any_word(MONTHS)}\b")
_ANY_YEAR = re.compile("[12][0-9]{3}")

_MONTH = rf"(?P<month>{_MONTH_NAMES})\b\.?"
_BEFORE = r"(?<![\w/.:-])"
_BEFORE_IT = r"(?<![\w/.:-].)"  # the same behind the first character, so that the search can look for that
_WORKS = "film|movie|novel|book|play|song|single|album|ep|tv|series|band|magazine"
_AFTER = rf"(?!\w|[-/.,][0-9]|%)(?! ?b\.? ?c(?:\b|e))(?! (?:{_WORKS})\b)"  # "fourth of july (1989 film)"
_YEAR = rf"(?P<year>[12][0-9]{{3}}){_AFTER}"
_DAY = r"(?P<day>[0-3]?[0-9](?:st|nd|rd|th)?|second)(?!\w)"
_WEEKDAY = r"(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day,? (?:the )?)?"
_TO_YEAR = r"(?: ?, ?|,? of | )"

_MONTH_DAY_YEAR = re.compile(rf"{_BEFORE}{_WEEKDAY}{_MONTH},? (?:the )?{_DAY}{_TO_YEAR}{_YEAR}")
_DAY_MONTH_YEAR = re.compile(
    rf"{_BEFORE}{_WEEKDAY}{_DAY}(?: day)?(?: of |[ -]){_MONTH}(?:{_TO_YEAR}|-){_YEAR}"
)
_YEAR_MONTH_DAY = re.compile(rf"{_BEFORE}(?P<year>[12][0-9]{{3}}),? {_MONTH} {_DAY}(?! ?[-/,&]? ?[0-9])")
_MONTH_YEAR = re.compile(rf"{_BEFORE}{_MONTH}{_TO_YEAR}(?P<year>1[0-9]{{3}}|20[0-9]{{2}}){_AFTER}")
_FIGURES = re.compile(
    rf"(?P<one>[0-9]{_BEFORE_IT}[0-9]?)(?P<sign>[/.-])(?P<two>[0-9]{{1,2}})(?P=sign){_YEAR}"
)
_YEAR_FIRST = re.compile(
    rf"(?P<year>[12]{_BEFORE_IT}[0-9]{{3}})(?P<sign>[/.])(?P<month>[0-9]{{1,2}})(?P=sign)(?P<day>[0-9]{{1,2}}){_AFTER}"
)

# What comes before a date that ends a range or list.
_A_DAY = r"(?<![0-9])(?<![0-9]{4}-)(?<![0-9]{4}-[0-9]{2}-)[0-3]?[0-9](?:st|nd|rd|th)?"
_JOINT = r"(?: ?[-/,&] ?| (?:and|or|to|until|till|through|thru) | )(?:(?:early|mid|late|the)[ -])?$"
_MONTH_BEFORE = re.compile(rf"\b(?:{_MONTH_NAMES})\b\.?(?:\[[0-9]+\])?(?: (?:the )?{_A_DAY})?{_JOINT}")
_DAY_BEFORE = re.compile(rf"{_A_DAY}(?: of)?{_JOINT}")

# With a year alone, a month is one only at the beginning or where a word like these leads to it: neither
# "Theresa May (2016)" nor "Red October (1990)" is a date, and "of" leads to one only after "as" or "end".
_LEADS = frozenset(
    [
        *("in", "on", "by", "since", "until", "till", "from", "to", "after", "before", "during", "for"),
        *("around", "about", "circa", "ca", "between", "beyond", "and", "or", "through", "at", "as"),
        *("early", "mid", "late", "beginning", "middle", "end", "start"),
    ]
)
_OF_LEADS = frozenset({"as", "beginning", "start", "middle", "end", "month", "part", "half"})
_ARTICLES = frozenset({"a", "an", "the"})
_NEARBY = 60  # characters before a date that are looked at
_WORD = re.compile(r"[^\W_]+")


def read_dates(text: str) -> str:
    """Write the dates of a folded text as YYYY-MM-DD or YYYY-MM, without a day of the week before them.

    The text is in lower case, with single blanks, "-" for every dash and numbers in digits.

    Examples
    --------
    >>> read_dates("the 4th of july, 1776"), read_dates("december 7th, 1941"), read_dates("in july 1776")
    ('the 1776-07-04', '1941-12-07', 'in 1776-07')
    >>> read_dates("19/12/1988"), read_dates("03/04/1988"), read_dates("theresa may, 2016")
    ('1988-12-19', '03/04/1988', 'theresa may, 2016')
    """
    if not _ANY_YEAR.search(text):
        return text
    if _ANY_MONTH.search(text):
        text = _MONTH_DAY_YEAR.sub(_month_first, text)
        text = _DAY_MONTH_YEAR.sub(_day_first, text)
        text = _YEAR_MONTH_DAY.sub(_whole, text)
        text = _MONTH_YEAR.sub(_month_and_year, text)
    return _YEAR_FIRST.sub(_whole, _FIGURES.sub(_in_figures, text))


def leads_to_month(before: str) -> bool:
    """Return whether a month and a year may follow this text; articles and punctuation are ignored."""
    words = [word for word in _WORD.findall(before[-_NEARBY:]) if word not in _ARTICLES]
    if not words:
        return True
    return words[-1] in _LEADS or (words[-1] == "of" and words[-2:-1] != [] and words[-2] in _OF_LEADS)


def _month_first(found: re.Match[str]) -> str:
    return found[0] if _MONTH_BEFORE.search(_before(found)) else _whole(found)


def _day_first(found: re.Match[str]) -> str:
    return found[0] if _is_borrowed(found) else _whole(found)


def _whole(found: re.Match[str]) -> str:
    """Day, month and year in ISO form."""
    name, day = found["month"], found["day"]
    month = MONTHS.get(name) or int(name)
    return _iso(int(found["year"]), month, 2 if day == "second" else int(day.rstrip("stndrh"))) or found[0]


def _month_and_year(found: re.Match[str]) -> str:
    """Month and year, unless the month ends a range, belongs to a day, or may be part of a name."""
    if _is_borrowed(found) or not leads_to_month(_before(found)):
        return found[0]
    return f"{found['year']}-{MONTHS[found['month']]:02d}"


def _in_figures(found: re.Match[str]) -> str:
    """19/12/1988 and 12/19/1988; unchanged where either number may be the month."""
    one, two = int(found["one"]), int(found["two"])
    month, day = (two, one) if one > 12 else (one, two)
    if day <= 12 and day != month:
        return found[0]
    return _iso(int(found["year"]), month, day) or found[0]


def _is_borrowed(found: re.Match[str]) -> bool:
    before = _before(found)
    return bool(_MONTH_BEFORE.search(before) or _DAY_BEFORE.search(before))


def _before(found: re.Match[str]) -> str:
    """The few words before a match."""
    return found.string[max(0, found.start() - _NEARBY) : found.start()]


def _iso(year: int, month: int, day: int) -> str | None:
    valid = 1 <= month <= 12 and 1 <= day <= monthrange(year, month)[1]
    return f"{year}-{month:02d}-{day:02d}" if valid else None
