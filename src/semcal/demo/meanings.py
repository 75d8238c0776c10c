"""Which answers of Atlas mean the same: read off the forms in which the world writes its values.

Nothing here knows the normal form or the NLI model, so both can be judged by it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import date
from functools import cache, partial
from pathlib import Path
from typing import Any

MONTHS, _ONES, _TENS = map(
    str.split,
    (
        "January February March April May June July August September October November December",
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
        " sixteen seventeen eighteen nineteen",
        "zero ten twenty thirty forty fifty sixty seventy eighty ninety",
    ),
)
_MONTH = "|".join(MONTHS)
#: What `tools/atlas` writes of its world: relation → kind of value and wordings; titles, trades.
_WORDS: Any = json.loads(Path(__file__).with_name("meanings.json").read_text(encoding="utf-8"))
_DATES = (
    re.compile(rf"(?P<day>[0-9]{{1,2}}) (?P<month>{_MONTH}) (?P<year>[0-9]{{4}})"),
    re.compile(rf"(?P<month>{_MONTH}) (?P<day>[0-9]{{1,2}}), (?P<year>[0-9]{{4}})"),
    re.compile(r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"),
)
_TOWN = re.compile(r"([A-Z][a-z]+)(?:, ([A-Z][a-z]+))?")
_PERSON = re.compile(rf"(?:(?:{'|'.join(_WORDS['titles'])}) )?([A-Z][a-z]+ [A-Z][a-z]+)")
_TRADE = re.compile(rf"(?:an? )?({'|'.join(_WORDS['trades'])})")
_DIGITS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})|[0-9]{1,6}")


Value = str | int | date | tuple[str, str | None]


def number_words(number: int) -> str:
    """Write a whole number under a million in words.

    >>> number_words(47), number_words(350), number_words(340_000)
    ('forty-seven', 'three hundred and fifty', 'three hundred and forty thousand')
    """
    if number < 20:
        return _ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens] + (f"-{_ONES[ones]}" if ones else "")
    if number < 1000:
        hundreds, below = divmod(number, 100)
        return f"{_ONES[hundreds]} hundred" + (f" and {number_words(below)}" if below else "")
    thousands, below = divmod(number, 1000)
    return f"{number_words(thousands)} thousand" + (f" {number_words(below)}" if below else "")


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
    for read in _readers(question):
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
    kinds = (
        relation["kind"]
        for relation in _WORDS["relations"].values()
        if any(_wording(text).fullmatch(question) for text in relation["questions"])
    )
    return tuple(_READERS[kind] for kind in dict.fromkeys(kinds))


@cache
def _wording(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text).replace(r"\{s\}", ".+"))


def _town(text: str) -> Value | None:
    match = _TOWN.fullmatch(text)
    return match and (match[1], match[2])


def _name(pattern: re.Pattern[str], text: str) -> Value | None:
    match = pattern.fullmatch(text)
    return match and match[1]


def _day(text: str) -> Value | None:
    match = next(filter(None, (one.fullmatch(text) for one in _DATES)), None)
    if match is None:
        return None
    month = match["month"]
    number = int(month) if month.isdecimal() else MONTHS.index(month) + 1
    try:
        return date(int(match["year"]), number, int(match["day"]))
    except ValueError:  # 30 February
        return None


def _year(text: str) -> Value | None:
    return int(text) if re.fullmatch(r"[0-9]{4}", text) else _years().get(text)


def _number(text: str) -> Value | None:
    return int(text.replace(",", "")) if _DIGITS.fullmatch(text) else _numbers().get(text)


@cache
def _years() -> Mapping[str, int]:
    """Words → year."""
    return {
        f"{number_words(n // 100)} {number_words(n % 100)}": n for n in range(1010, 2000) if n % 100 >= 10
    }


@cache
def _numbers() -> Mapping[str, int]:
    """Words → number: all under a thousand, and whole thousands under a million."""
    return {number_words(n): n for n in (*range(1000), *range(1000, 1_000_000, 1000))}


_READERS: Mapping[str, Callable[[str], Value | None]] = {
    "Place": _town,
    "Person": partial(_name, _PERSON),
    "Trade": partial(_name, _TRADE),
    "Date": _day,
    "Year": _year,
    "Number": _number,
}
