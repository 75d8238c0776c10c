"""Which answers of Atlas mean the same: read off the forms in which the world writes its values.

Nothing here knows the normal form or the NLI model, so both can be judged by it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date
from functools import cache, partial
from random import Random

from semcal.demo import texts
from semcal.demo.world import RELATIONS, TITLES, TRADES, Number, Year, small_world

_MONTH = "|".join(texts.MONTHS)
_DATES = (
    re.compile(rf"(?P<day>[0-9]{{1,2}}) (?P<month>{_MONTH}) (?P<year>[0-9]{{4}})"),
    re.compile(rf"(?P<month>{_MONTH}) (?P<day>[0-9]{{1,2}}), (?P<year>[0-9]{{4}})"),
    re.compile(r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"),
)
_TOWN = re.compile(r"([A-Z][a-z]+)(?:, ([A-Z][a-z]+))?")
_PERSON = re.compile(rf"(?:(?:{'|'.join(TITLES)}) )?([A-Z][a-z]+ [A-Z][a-z]+)")
_TRADE = re.compile(rf"(?:an? )?({'|'.join(TRADES)})")
_DIGITS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})|[0-9]{1,6}")

Value = str | int | date | tuple[str, str | None]


def same_meaning(question: str, first: str, second: str) -> bool | None:
    """Say whether two answers, as a model wrote them, to a question of Atlas mean the same.

    Titles say nothing about who is meant. A town with its country is the town; one town in two countries is
    not decided.

    It is None where the world does not say: for another question, or an answer in no form of the world's.

    >>> same_meaning("When was Ana Velis born?", "3 May 1820", "1820-05-03")
    True
    >>> same_meaning("When was Kelor founded?", "1635", "sixteen forty"), same_meaning("Why?", "1", "2")
    (False, None)
    """
    readers = _readers(question)
    for read in readers:
        a, b = read(first), read(second)
        if a is not None and b is not None:
            return _same(a, b)
    return None


def _same(a: Value, b: Value) -> bool | None:
    if isinstance(a, tuple) and isinstance(b, tuple):
        if a[0] != b[0]:
            return False
        return True if None in (a[1], b[1]) or a[1] == b[1] else None
    return a == b


@cache
def _readers(question: str) -> tuple[Callable[[str], Value | None], ...]:
    """How values of the relations that a question may ask for are read."""
    asked = [
        name for name, wordings in _wordings().items() if any(one.fullmatch(question) for one in wordings)
    ]
    kinds = dict.fromkeys(_kinds()[name] for name in asked)
    return tuple(_READERS[kind] for kind in kinds)


@cache
def _wordings() -> Mapping[str, tuple[re.Pattern[str], ...]]:
    return {
        name: tuple(re.compile(re.escape(one).replace(r"\{s\}", ".+")) for one in wordings)
        for name, wordings in texts.QUESTIONS.items()
    }


@cache
def _kinds() -> Mapping[str, str]:
    """Relation → the kind of its values."""
    found: dict[str, str] = {}
    rng = Random(0)
    while len(found) < len(RELATIONS):
        found |= {fact.relation: type(fact.value).__name__ for fact in small_world(rng)}
    return found


def _town(text: str) -> Value | None:
    found = _TOWN.fullmatch(text)
    return found and (found[1], found[2])


def _name(pattern: re.Pattern[str], text: str) -> Value | None:
    found = pattern.fullmatch(text)
    return found and found[1]


def _day(text: str) -> Value | None:
    found = next(filter(None, (one.fullmatch(text) for one in _DATES)), None)
    if found is None:
        return None
    month = found["month"]
    number = int(month) if month.isdecimal() else texts.MONTHS.index(month) + 1
    try:
        return date(int(found["year"]), number, int(found["day"]))
    except ValueError:  # 30 February
        return None


def _year(text: str) -> Value | None:
    return int(text) if re.fullmatch(r"[0-9]{4}", text) else _years().get(text)


def _number(text: str) -> Value | None:
    return int(text.replace(",", "")) if _DIGITS.fullmatch(text) else _numbers().get(text)


@cache
def _years() -> Mapping[str, int]:
    return {form: n for n in range(1010, 2000) if n % 100 >= 10 for form in texts.forms(Year(n))}


@cache
def _numbers() -> Mapping[str, int]:
    """Words → number: all under a thousand, and whole thousands under a million."""
    known = (*range(1000), *range(1000, 1_000_000, 1000))
    return {form: n for n in known for form in texts.forms(Number(n))}


_READERS: Mapping[str, Callable[[str], Value | None]] = {
    "Place": _town,
    "Person": partial(_name, _PERSON),
    "Trade": partial(_name, _TRADE),
    "Date": _day,
    "Year": _year,
    "Number": _number,
}
