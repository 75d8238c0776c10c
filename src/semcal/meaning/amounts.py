"""Values and amounts of one answer: numbers, times of day, dates, ranges, and amounts with a unit.

The rules (`semcal.meaning.rules`) compare them. Number words, powers, scales and clock times get one spelling
before (`with_figures`).
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache
from typing import Any

from semcal.meaning.words import WORD_LISTS, any_listed, word_groups, word_pairs
from semcal.text import cache_texts
from semcal.text.normal_form import normal_form
from semcal.text.numbers import NUMBER_WORDS
from semcal.text.values import month_and_day

UNIT_SYMBOLS: dict[str, str] = {}  # symbol by spelling
SIZES: dict[str, tuple[str, Fraction]] = {}  # dimension and size by symbol
_PLAIN = [("", "", 0)]
_STEPS = [("k", "kilo", 3), ("M", "mega", 6), ("G", "giga", 9), ("T", "tera", 12)]
_STEPS += [("m", "milli", -3), ("c", "centi", -2), ("µ", "micro", -6), ("n", "nano", -9), ("p", "pico", -12)]
for _list, _steps in (("scaled", _PLAIN + _STEPS), ("unscaled", _PLAIN)):
    for _symbol, _dimension, _factor, *_names in word_groups(_list):
        for _short, _long, _places in _steps:
            SIZES[_short + _symbol] = _dimension, Fraction(_factor) * Fraction(10) ** _places
            _spelled = [_long + name + s for name in (_symbol, *_names) for s in ("", "s") if len(name) > 1]
            _spelled += [_short + name for name in (_symbol, *_names) if len(name) < 6]
            UNIT_SYMBOLS |= dict.fromkeys(_spelled, _short + _symbol)


_SMALL = WORD_LISTS["numbers"].split()
_SMALL_WORD = re.compile(
    rf"(?<!\bno )\b(?:{'|'.join(_SMALL)})\b(?!-| (?:half|quarter|third|fourth|fifth)s?\b)", re.I
)
_SCORE = re.compile(rf"\b({'|'.join(_SMALL)}|\d+)(?:-({'|'.join(_SMALL)}|nil)| to (nil))\b", re.I)
_OR_MORE = re.compile(
    r"(?<![\w.])(\d[\d.,]*(?: [^\W\d]+)?) (?:or|and) "
    r"(?:(more|older|over|above|up)|less|younger|fewer|under|below)\b",
    re.I,
)
_HOLIDAYS = word_pairs("holidays")
_HOLIDAY = re.compile(rf"\b(?:{'|'.join(_HOLIDAYS)})\b", re.I)
_MEASURED = re.compile(
    r"(?<=\w) (?:long|tall|high|wide|deep|thick|old|away|of age|above sea level"
    r"|in (?:length|height|width|depth|total))$",
    re.I,
)
_AND_A_HALF = re.compile(r"\b(?:an?|one) (\w+) and a half\b", re.I)
_FROM_TO = re.compile(r"\b(?:from (\d+) (?:to|until|till)|between (\d+) and) (\d+)(?= [^\W\d])", re.I)

_TIMES_POWER = re.compile(
    r"(?<![\d.,])(\d+(?:\.\d+)?)(?: ?[x*] ?10\^(?:\{(-?\d\d?)\}|(-?\d\d?)\b)|e(-?\d\d?)\b)"
)
_DEGREES = re.compile(r"(?<=\d) degrees? (?=[CF]\b)")
_POINTED_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:\.\d{3}){2,}(?![\d.,])")
_FOREIGN_SCALE = re.compile(
    r"\b(\d+(?:,\d+)?) (?:(millionen|millones|milioni)|(?:milliarden?|milliards?|miliardi|mil millones))\b",
    re.I,
)
_A_SECOND = re.compile(r"(?<=\w[sre]) an? (?=second\b|hour\b)", re.I)
_AREA = re.compile(r"(cubic )|(?:square|sq\.?) (?=\w)", re.I)
_KM_PER_HOUR = re.compile("kilomet(?:re|er)s per hour", re.I)
_PAST_OR_TO = re.compile(
    r"\b(?:(half)|(?:a )?quarter) (?:(past|after)|to|before) (\d\d?(?!\d)|noon|midnight)\b", re.I
)
_CURRENCY = re.compile(r"\bUS ?(?=\$)|\b(USD|EUR|GBP|JPY) ?(?=\d)")
_CURRENCIES = {None: "", "USD": "$", "EUR": "€", "GBP": "£", "JPY": "¥"}

_SCALES = {"": 0, "trillion": 12} | dict.fromkeys(("k", "K", "thousand"), 3)
_SCALES |= dict.fromkeys(("M", "mn", "million"), 6) | dict.fromkeys(("B", "bn", "billion"), 9)
_ABOUT = re.compile(r"^(?:[a-z] ?= ?|on |about |approximately |around |roughly |circa )|(?: off)$")
_SCALED = re.compile(r"(-?\d{1,30}(?:\.\d{1,30})?) ?([kKMB]|mn|bn)")  # "5 m" means meters
_POWER_OF_TEN = re.compile(r"(-?\d{1,30}(?:\.\d{1,30})?)(?: ?[x*] ?10\^\{?|e)([+-]?\d{1,2})\}?")
_PLAIN_POWER = re.compile(r"(\d{1,3})(?:\^|\*\*)\{?(\d\d?)\}?")
_NUMBER = re.compile(
    r"(?:(\d+) (?=\d+/))?(-?\d{1,60}(?:\.\d{1,60})?)(?:/([1-9]\d{0,9}))?(%?)|(\d+) (?:in|out of) (\d+)"
)
_NO_NUMBERS = {"none": 0, "nil": 0, "nought": 0, "noon": 720, "midday": 720, "midnight": 0}
_CLOCK = re.compile(
    r"(?:(?:at|um) )?(\d{1,2})(?:([:.h])(\d\d))?(?: ?(?:o'clock|(uhr|h)))?"
    r"(?: ?(?:([ap])\.?m\.?|(?:in the |du |de la )?(?:(mor\w+|matin|mañana)"
    r"|(afternoon|evening|nachmittags|abends|soir|tarde)|(?:at )?(night|nachts))))?"
)
AMOUNT = re.compile(
    r"([$€£¥])\s?(-?\d[\d.,]*\d|\d)\s?(thousand|million|trillion|billion|bn|k)?"
    r"|(-?\d[\d.,]*\d|\d)\s?(thousand|million|trillion|billion|bn)?[\s-]?"
    r"(?:degrees?\s(?=[CFcf]))?(°\s?[CF]\b|[%°€£$¥]|[^\W\d_][\w²/-]*)"
)
_BOUNDED = re.compile(
    r"(?:(at least|(?:a )?minimum(?: of)?|no (?:less|fewer) than)|(more than|over|above)"
    r"|(at most|up to|(?:a )?max(?:imum|\.)?(?: of)?|(?:no|not) (?:more|longer|later|greater) than)"
    r"|(less than|fewer than|under|below)) (.+)",
    re.I,
)
_PART_OF_UNIT = re.compile(r"(?:(?:(\d+)[ -])?(\d+)/([1-9]\d*)(?: of)?|half)(?: an?)? ([^\W\d].*)", re.I)
_HOURS = re.compile(r"(?:from |between )?(\d.{0,9}?) ?(?:to|until|till|and|-) ?(\d.{0,18})")
_MONTH_OF_YEAR = re.compile(r"(0[1-9]|[2-9]|1[0-2])[/.](1[5-9]\d\d|20\d\d)")
_PARTS = re.compile(r",? (?:and )?(?=\d)")
BOUND = re.compile(r"\b(?:at (?:(least)|most)|(?:(more)|less) than) (\d\S*)")
_RANGE = re.compile(
    r"(?:from |between )?(\d[\d,]*(?:\.\d+)?) ?(?:to|until|till|through|-|:) ?(\d[\d,]*(?:\.\d+)?)"
)
ASKS_FOR_SHARE = re.compile(rf"\b{any_listed('share')}\b", re.I)
_POINTED_DATE = re.compile(r"\b(\d{1,2})\.(\d{1,2})\.([12]\d{3})\b")
_ISO_DATE = re.compile(r"(?:(?:on|in|am|le|el|il|op|em) )?(\d{4}-\d\d(?:-\d\d)?)")
_SLASHED = re.compile(r"(?:(?:on|le|el|il|am) )?(\d\d?)/(\d\d?)/([12]\d{3})")
_BLOOD = re.compile(r"(?:type |blood type )?(ab?|b|o)[ -]?(?:rh ?)?(\+|-|positive|negative)")
_DECADE = re.compile(r"(?:in )?(\d\d)?(\d0)s")
_CENTURY = re.compile(r"(?:in )?(\d\d?)(?:(?:st|nd|rd|th) century|00s)")
NEAR = Fraction(1, 5)
"""Maximum relative difference of two amounts that may be a rounded conversion."""


def with_figures(text: str) -> str:
    """Write small numbers, powers, scales, clock times and currencies in figures, "3 x 10^2" as "300"."""
    text = _A_SECOND.sub(" per ", text)
    if " per " in text:
        text = _KM_PER_HOUR.sub("km/h", text.replace("miles per hour", "mph")).replace(" per second", "/s")
    text = _DEGREES.sub("°", _AREA.sub(lambda match: "cubic" if match[1] else "sq", text))
    text = _POINTED_THOUSANDS.sub(lambda match: match[0].replace(".", ""), text)
    text = _FOREIGN_SCALE.sub(
        lambda match: f"{match[1].replace(',', '.')} {'m' if match[2] else 'b'}illion", text
    )
    text = _SCORE.sub(lambda match: f"{_digits(match[1])}-{_digits(match[2] or match[3])}", text)
    text = _TIMES_POWER.sub(lambda match: _shifted(match[1], int(match[2] or match[3] or match[4])), text)
    text = re.sub(r"(?<=\d) ?[x*] ?(?=\d)", " x ", text)
    text = _CURRENCY.sub(lambda match: _CURRENCIES[match[1]], text.replace("12 noon", "noon"))
    text = _SMALL_WORD.sub(lambda match: _digits(match[0]), _AND_A_HALF.sub(r"1.5 \1", text))
    text = _HOLIDAY.sub(lambda match: _HOLIDAYS[match[0].lower()], text)
    text = _OR_MORE.sub(lambda match: f"at {'least' if match[2] else 'most'} {match[1]}", text)
    return _FROM_TO.sub(r"\1\2-\3", _PAST_OR_TO.sub(_clock_time, text))


@cache
def _counts() -> list[tuple[re.Pattern[str], re.Pattern[str], dict[str, str]]]:
    """Return for each language the words for "how many", and the numbers below 100 by their words."""
    found = []
    for asked, compound, *words in word_groups("counts"):
        ones, tens = words[:20], words[20:]
        numbers = {word: str(number) for number, word in enumerate(ones)}
        for ten, name in enumerate(tens, 2):
            numbers[name] = str(10 * ten)
            for one, unit in enumerate(ones[1:10], 1):
                joined = compound.replace("_", " ").format(u=unit, t=name)
                numbers[re.sub(r"(?<=nt)[ia](?=[uo])|(?<=ein)s(?=und)", "", joined)] = str(10 * ten + one)
        numbers = {word: number for word, number in numbers.items() if number != "1" or word == "eins"}
        names = "|".join(sorted(numbers, key=len, reverse=True))
        found.append((re.compile(rf"\b{asked}", re.I), re.compile(rf"\b({names})\b(?!-)", re.I), numbers))
    return found


def with_counts(question: str, text: str) -> str:
    """Write the number words of an answer in digits if its question is "how many?" in another language.

    >>> with_counts("Wie viele sind es?", "vierundzwanzig"), with_counts("Combien ?", "dix-sept ans")
    ('24', '17 ans')
    """
    language = _language(question)
    if language is None:
        return text
    _, named, numbers = language
    return "".join([numbers.get(part.lower(), part) for part in named.split(text)])


@cache_texts(1 << 12)
def _language(question: str) -> tuple[re.Pattern[str], re.Pattern[str], dict[str, str]] | None:
    return next((language for language in _counts() if language[0].search(question)), None)


def _clock_time(match: re.Match[str]) -> str:
    """Write "quarter to 9" as "8:45", and "half past noon" as "12:30 pm"."""
    named = match[3].isalpha()
    hour, past = 12 if named else int(match[3]), bool(match[1] or match[2])
    afternoon = " pm" if (match[3].lower() == "noon") == past else " am"
    time = f"{hour}:{'30' if match[1] else '15'}" if past else f"{(hour - 2) % 12 + 1}:45"
    return time + afternoon * named


def _shifted(number: str, places: int) -> str:
    whole, _, rest = number.partition(".")
    if places < 0:
        return f"0.{(whole + rest).zfill(len(rest) - places)}"
    moved = f"{whole}{(rest + '0' * places)[:places]}".lstrip("0").rjust(1, "0")
    return f"{moved}.{rest[places:]}" if rest[places:] else moved


def _digits(word: str) -> str:
    word = "zero" if word.lower() == "nil" else word.lower()
    return str(_SMALL.index(word)) if word in _SMALL else word


def unit_symbol(name: str) -> str:
    """Return the symbol of a unit, "" for another word; short names are case-sensitive."""
    if name.endswith("/s") and len(name) > 4:
        rate = f"{unit_symbol(name[:-2])}/s"
        return rate if rate in SIZES else ""
    return UNIT_SYMBOLS.get(name.replace("° ", "°")) or (
        UNIT_SYMBOLS.get(name.lower(), "") if len(name) > 2 else ""
    )


def single_value(figures: str) -> tuple[str, Any] | None:
    """Return kind and value of a number, a time of day, a date or a range; 9.11.1989 is in November."""
    text = figures.lower()
    if len(text) > 60:
        return None
    if text in _NO_NUMBERS:
        return "clock" if text[0] == "m" or text == "noon" else "number", Fraction(_NO_NUMBERS[text])
    if blood := _BLOOD.fullmatch(text):
        return "blood", (blood[1], blood[2][:1].translate({112: "+", 110: "-"}))
    if NUMBER_WORDS.isdisjoint(re.split("[ -]", text)) and not any(map(str.isdigit, text)):
        return None
    text = _ABOUT.sub("", text)
    if time := _time_of_day(text):
        return time
    if hours := _HOURS.fullmatch(text):
        opens, closes = map(_time_of_day, hours.groups())
        if opens and closes and closes[0] == "clock":
            return "hours", (opens[1], closes[1])
    if month := _MONTH_OF_YEAR.fullmatch(text):
        return "month", f"{month[2]}-{month[1].zfill(2)}"
    if power := _SCALED.fullmatch(figures) or _POWER_OF_TEN.fullmatch(text):
        return "number", Fraction(power[1]) * Fraction(10) ** (_SCALES.get(power[2]) or int(power[2]))
    if charge := re.fullmatch(r"(\d)([+-])", text):  # of an ion
        return "number", Fraction(charge[2] + charge[1])
    if power := _PLAIN_POWER.fullmatch(text):
        return "number", Fraction(int(power[1]) ** int(power[2]))
    form = normal_form(_POINTED_DATE.sub(r"\3/\2/\1", text))
    if spread := _RANGE.fullmatch(form if " to " in form else text):  # "sixteen to nine"
        return "range", tuple(number.replace(",", "") for number in spread.groups())
    if date := _ISO_DATE.fullmatch(form):
        return "date" if len(date[1]) > 7 else "month", date[1]
    if slashed := _SLASHED.fullmatch(form):  # in either order
        first, second, year = slashed[1].zfill(2), slashed[2].zfill(2), slashed[3]
        return "slashed", (f"{year}-{first}-{second}", f"{year}-{second}-{first}")
    if day := month_and_day(form):
        return "day", day
    century = _CENTURY.fullmatch(form)
    if century and not (form.endswith("00s") and (len(century[1]) < 2 or century[1] in ("19", "20"))):
        return "century", int(century[1]) + (form[-1] == "s")
    if decade := _DECADE.fullmatch(form):
        return "decade", (decade[1] or "19", decade[2])
    number = _NUMBER.fullmatch(form)
    if not number:
        return None
    if number[5]:
        return "number", Fraction(int(number[5]), int(number[6]) or 1)
    share = Fraction(number[2]) / int(number[3] or 1) / (100 if number[4] else 1)
    return "number", int(number[1] or 0) + share


def _time_of_day(text: str) -> tuple[str, int] | None:
    """Return the minutes of a clock time, of kind "half day" if it may be in either half of the day."""
    clock = _CLOCK.fullmatch(text)
    if clock is None:
        return None
    hour, minute = int(clock[1]), int(clock[3] or 0)
    kind = "clock"
    if any(clock.groups()[4:]):
        early = clock[6] or clock[5] == "a" or (clock[8] and not 5 < hour < 12)
        hour = hour % 12 + 12 * (not early) if 0 < hour <= 12 else 24
    elif not (clock[4] or (clock[2] == ":" and (hour > 12 or text[0] == "0"))):
        kind = "half day" if clock[2] == ":" or "o'clock" in text else ""
    return (kind, hour * 60 + minute) if kind and hour < 24 and minute < 60 else None


def amount_of(text: str) -> tuple[str, Any] | None:
    """Return the dimension and the size of an amount, such as 90 minutes or 1 hour 30 minutes.

    The dimension of a bounded amount begins with the sign of its bound: "at least an hour" is "≥time".
    """
    text = _MEASURED.sub("", text)
    if bound := _BOUNDED.fullmatch(text):
        sign = ">" if bound[2] else "<" if bound[4] else "≥" if bound[1] else "≤"
        size = amount_of(bound[5]) or single_value(bound[5])
        return size and (sign + size[0], size[1])
    if part := _PART_OF_UNIT.fullmatch(text):
        unit = _one_amount(f"1 {part[4]}")
        share = Fraction(int(part[2]), int(part[3])) if part[2] else Fraction(1, 2)
        return unit and (unit[0], unit[1] * (int(part[1] or 0) + share))
    text = re.sub(r"^an? (?=\w)", "1 ", text)
    found = [_one_amount(part) for part in _PARTS.split(_ABOUT.sub("", text))]
    amounts = [amount for amount in found if amount is not None]
    sizes = [size for _, size in amounts]
    if len(amounts) < len(found) or sizes != sorted(sizes, reverse=True):
        return None
    dimensions = {dimension for dimension, _ in amounts}
    return (dimensions.pop(), sum(sizes)) if len(dimensions) == 1 else None


def _one_amount(text: str) -> tuple[str, Any] | None:
    match = AMOUNT.fullmatch(text)
    unit = unit_symbol(match[1] or match[6]) if match else ""
    number = re.sub(r",(\d\d?)$", r".\1", match[2] or match[4]).replace(",", "") if match else ""
    if not match or not unit or number.count(".") > 1:
        return None
    dimension, size = SIZES[unit]
    return dimension, Fraction(number) * 10 ** _SCALES[match[3] or match[5] or ""] * size
