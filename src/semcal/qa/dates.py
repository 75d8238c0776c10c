"""English dates in ISO 8601 at the granularity that they state, without a clock.

A date needs a day, a month and a year, or a month and a year; everything else stays text: a bare month,
a day without a year, years before Christ, 03/04/1988 (March or April?), one end of a range whose other
end is no full date.
"""

from __future__ import annotations

import re
from calendar import monthrange

__all__ = ["read_dates"]

_NAMES = (
    "january jan|february feb|march mar|april apr|may|june jun|july jul|august aug|september sept sep"
    "|october oct|november nov|december dec"
)
_MONTHS = {name: n for n, names in enumerate(_NAMES.split("|"), start=1) for name in names.split()}
_MONTH = rf"(?P<month>{'|'.join(sorted(_MONTHS, key=len, reverse=True))})\b\.?"
_NO_YEAR = r"(?!\w|[-/.,][0-9]|%)(?! ?b\.? ?c(?:\b|e))"
_YEAR = rf"(?P<year>[12][0-9]{{3}}){_NO_YEAR}"
_DAY = r"(?P<day>[0-3]?[0-9](?:st|nd|rd|th)?|second)(?!\w)"
_WEEKDAY = r"(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day,? (?:the )?)?"
_START = r"(?<![\w/.:-])"
_COMMA = r"(?: ?, ?| of |, of | )"

_WRITTEN = (
    rf"{_START}{_WEEKDAY}{_MONTH},? (?:the )?{_DAY}{_COMMA}{_YEAR}",
    rf"{_START}{_WEEKDAY}{_DAY}(?: day)?(?: of |[ -]){_MONTH}(?:,? of |,? ?|-){_YEAR}",
    rf"{_START}(?P<year>[12][0-9]{{3}}),? {_MONTH} {_DAY}(?![ ,]*[0-9])",
)
_MONTH_AND_YEAR = rf"{_START}{_MONTH}{_COMMA}(?P<year>1[0-9]{{3}}|20[0-9]{{2}}){_NO_YEAR}"
_FIGURES = (
    r"(?<![\w/.:-])(?P<first>[0-9]{1,2})(?P<sign>[/.-])(?P<second>[0-9]{1,2})(?P=sign)(?P<year>[12][0-9]{3})"
    r"(?!\w|[-/.][0-9])",
    r"(?<![\w/.:-])(?P<year>[12][0-9]{3})(?P<sign>[/.-])(?P<month>[0-9]{1,2})(?P=sign)(?P<day>[0-9]{1,2})"
    r"(?!\w|[-/.][0-9])",
)
_DATES = [re.compile(pattern) for pattern in (*_WRITTEN, _MONTH_AND_YEAR, *_FIGURES)]

# A date after one of these is the end of a range or list whose beginning borrows its month or year.
_BORROWED = re.compile(
    rf"(?:(?<![0-9])[0-3]?[0-9](?:st|nd|rd|th)?|\b(?:{'|'.join(_MONTHS)})\.?)"
    r"(?: ?[-/,&] ?| (?:and|or|to|until|till|through|thru) )(?:the )?$"
)
_DAY_BEFORE = re.compile(r"(?<![0-9])[0-3]?[0-9](?:st|nd|rd|th)?(?: of)? $")
# Month names that are also first names, surnames or verbs: with a year alone they need a word like these before.
_NAMELIKE = frozenset({"march", "april", "may", "june", "august", "jan"})
_LEADS = frozenset(
    "in on of by since until till til from to after before during around about circa between and or through"
    " early late mid middle beginning end start ca c for at as".split()
)


def read_dates(text: str) -> str:
    """Write the dates of a folded text, numbers in digits, in ISO form.

    Parameters
    ----------
    text : str
        In lower case, numbers in digits.

    Returns
    -------
    str
        The text with YYYY-MM-DD or YYYY-MM in place of dates.

    Examples
    --------
    >>> read_dates("the 4th of july, 1776"), read_dates("december 7th, 1941"), read_dates("in july 1776")
    ('the 1776-07-04', '1941-12-07', 'in 1776-07')
    >>> read_dates("19/12/1988"), read_dates("03/04/1988"), read_dates("theresa may, 2016")
    ('1988-12-19', '03/04/1988', 'theresa may, 2016')
    """
    for pattern in _DATES:
        text = pattern.sub(_iso, text)
    return text


def _iso(found: re.Match[str]) -> str:
    """The date in ISO form, or the text as it was where it is none."""
    parts = found.groupdict()
    before = found.string[: found.start()]
    if _BORROWED.search(before):
        return found[0]
    year = int(parts["year"])
    if "first" in parts:
        month, day = _month_and_day(int(parts["first"]), int(parts["second"]))
    else:
        month = _MONTHS.get(parts["month"]) or int(parts["month"])
        day = _day(parts.get("day"))
        if day is None:
            return f"{year}-{month:02d}" if _opens_month(before, parts["month"]) else found[0]
    valid = 1 <= month <= 12 and 1 <= day <= monthrange(year, month)[1]
    return f"{year}-{month:02d}-{day:02d}" if valid else found[0]


def _day(day: str | None) -> int | None:
    if day is None:
        return None
    return 2 if day == "second" else int(day.rstrip("stndrh"))


def _month_and_day(first: int, second: int) -> tuple[int, int]:
    """Month and day of 19/12 and 12/19; month 0 where it may be either."""
    if first == second or second > 12:
        return first, second
    return (second, first) if first > 12 else (0, 0)


def _opens_month(before: str, month: str) -> bool:
    """Whether a month and a year may stand after these words: no day before, and no name or verb."""
    words = before.split()
    if not words or not before.endswith(" "):
        return True
    if _DAY_BEFORE.search(before):
        return False
    return month not in _NAMELIKE or words[-1] in _LEADS or not words[-1][-1].isalnum()
