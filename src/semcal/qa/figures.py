"""Numbers in figures: separators, decimal commas, powers, mixed fractions, units, and one form for one value.

Where a reading is ambiguous ("1,2,3", "1914,1918", "2^10") the figures stay as they are written, in one
piece, so that no part of them counts as a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

CURRENCIES = "$£€¥₹₩₽₺₦₱"
"""Signs of currencies."""

_MONTH_NAMES = (
    "january jan|february feb|march mar|april apr|may|june jun|july jul|august aug|september sept sep"
    "|october oct|november nov|december dec"
)

MONTHS = {name: n for n, names in enumerate(_MONTH_NAMES.split("|"), start=1) for name in names.split()}
"""Each name in lower case and the number of its month."""

SCALES = {
    "thousand": 3,
    "lakh": 5,
    "million": 6,
    "crore": 7,
    "billion": 9,
    "trillion": 12,
    "quadrillion": 15,
    "quintillion": 18,
}
"""Words that multiply the number before them, with the zeros that they add."""
LARGEST_SCALE = 36

_UNITS = """
mm millimetre millimetres millimeter millimeters|cm centimetre centimetres centimeter centimeters
m metre metres meter meters|km kilometre kilometres kilometer kilometers|inch inches|ft foot feet
yd yard yards|mi mile miles|mg milligram milligrams|g gram grams|kg kilo kilos kilogram kilograms
ton tons tonne tonnes|lb lbs|oz ounce ounces|ml millilitre millilitres milliliter milliliters
l litre litres liter liters|pint pints|gallon gallons|acre acres|ha hectare hectares|square sq|cubic
ms millisecond milliseconds|s sec secs second seconds|min mins minute minutes|h hr hrs hour hours|day days
week weeks|month months|year years|decade decades|degree degrees|hz hertz|khz kilohertz|mhz megahertz
ghz gigahertz|v volt volts|w watt watts|kw kilowatt kilowatts|mw megawatt megawatts|j joule joules
calorie calories|kcal|pa pascal pascals|mph|kmh|knot knots|bit bits|byte bytes|kb|mb|gb|tb
cent cents|dollar dollars|euro euros|pound pounds|yen|rupee rupees|franc francs
"""
UNITS = {
    spelling: names.split()[0]
    for names in _UNITS.replace("\n", "|").strip("|").split("|")
    for spelling in names.split()
}
"""Each spelling of a unit, and the one that represents it."""


def any_word(words: Iterable[str]) -> str:
    """A pattern of any of these words, written letter by letter, so that each letter is looked at once.

    >>> any_word(["six", "sixty", "ten"])
    '(?:six(?:ty)?|ten)'
    """
    rests: dict[str, list[str]] = {}
    for word in sorted(filter(None, words)):
        rests.setdefault(word[0], []).append(word[1:])
    return _either([re.escape(first) + _endings(rest) for first, rest in rests.items()])


def _endings(rests: Sequence[str]) -> str:
    """What may follow a letter; nothing, too, where a word is over."""
    further = any_word(rests) if any(rests) else ""
    if all(rests):
        return further.removeprefix("(?:").removesuffix(")") if "|" not in further else further
    return f"{further}?" if further else ""


def _either(patterns: Sequence[str]) -> str:
    return f"(?:{'|'.join(patterns)})"


_MONTH_BEFORE = re.compile(rf"\b(?:{'|'.join(MONTHS)})\b\.? $")
_SEPARATED = re.compile(
    r"[1-9](?<![0-9.,'_].)"
    r"(?:[0-9]{0,2}([,'_])[0-9]{3}(?:\1[0-9]{3})*|[0-9]?(?:,[0-9]{2})+,[0-9]{3})(?![0-9]|[,'_][0-9])"
)
_INNER = re.compile("[0-9][,'_][0-9]")
_POINTS = re.compile(r"(?<![\w.,:/^-])[1-9][0-9]{0,2}(?:\.[0-9]{3})+,[0-9]{1,2}(?![\w,.:/^])")
_BLANKS = re.compile(
    r"[1-9](?<![\w.,:/^].)(?<!\w-.)(?<![0-9] .)[0-9]{0,2}(?: [0-9]{3})+(?:[.,][0-9]{1,2})?"
    r"(?![\w:/^]|[.,-][0-9]| [0-9])"
)
_COMMA = re.compile(
    r"(?:0(?<![\w.,:/^].),[0-9]+|[0-9](?<![\w.,:/^].)[0-9]{0,2},[0-9]{1,2})(?![0-9]|[.,:/^][0-9])"
)
_POWER = re.compile(
    r"(?<![\w.,:/^])(?:([0-9]+(?:\.[0-9]+)?) ?[x×*·] ?)?10 ?(?:\^|\*\*) ?\+?([0-9]{1,2})(?![\w^]|[.,][0-9])"
)
_RAISED = re.compile(r"(?<=[0-9]) ?(?:\^|\*\*) ?(?=-?[0-9])")
_INDEX = re.compile(r"(?<=[^\W\d_])\^(?=[0-9])")
_MIXED = re.compile(r"(?<![0-9.,/:-])([0-9]+)[ -](1/2|1/4|3/4)(?![0-9/])")
_MIXED_PARTS = {"1/2": ".5", "1/4": ".25", "3/4": ".75"}
_NUMERAL = r"[0-9]+(?:\.[0-9]+)?"
_RANGE = re.compile(rf"([0-9](?<![\w.,/:-].)[0-9]*(?:\.[0-9]+)?) ?- ?({_NUMERAL}[ -]?({'|'.join(SCALES)}))\b")


def read_figures(text: str) -> str:
    """Write the figures of a folded text in one way.

    The text is in lower case, with single blanks and "-" for every dash. Thousands separators go, decimal
    commas become points, powers of ten are multiplied out, mixed fractions are added up, and both ends of a
    range get its scale.

    >>> read_figures("1,234,567"), read_figures("1 000 000"), read_figures("1,00,000"), read_figures("1,5")
    ('1234567', '1000000', '100000', '1.5')
    >>> read_figures("3 x 10^6"), read_figures("2 1/2"), read_figures("2-3 million"), read_figures("1,2,3")
    ('3000000', '2.5', '2 million-3 million', '1,2,3')
    """
    if _INNER.search(text):
        text = _POINTS.sub(_pointed, text)
        text = _SEPARATED.sub(lambda found: re.sub("[,'_]", "", found[0]), text)
        text = _COMMA.sub(lambda found: found[0].replace(",", "."), text)
    if " " in text:
        text = _BLANKS.sub(_joined, text)
    if "^" in text or "**" in text:
        text = _INDEX.sub("", _RAISED.sub("^", _POWER.sub(_multiplied, text)))
    if "/" in text:
        text = _MIXED.sub(lambda found: found[1] + _MIXED_PARTS[found[2]], text)
    return _RANGE.sub(r"\1 \3-\2", text) if "-" in text else text


def _pointed(found: re.Match[str]) -> str:
    return found[0].replace(".", "").replace(",", ".")


def _joined(found: re.Match[str]) -> str:
    """Join "10 000"; after a month the first figures are its day."""
    if _MONTH_BEFORE.search(found.string, max(0, found.start() - 12), found.start()):
        return found[0]
    return found[0].replace(" ", "").replace(",", ".")


def are_groups(before: str, first: str, second: str) -> bool:
    """Return whether two numerals, the first after the text `before`, would be one with a blank between.

    >>> are_groups("", "100", "200"), are_groups("", "100", "20"), are_groups("may ", "5", "800")
    (True, False, False)
    """
    found = _BLANKS.fullmatch(f"{first} {second}")
    return found is not None and not _MONTH_BEFORE.search(before)


def _multiplied(found: re.Match[str]) -> str:
    places = int(found[2])
    return shifted(found[1] or "1", places) if places <= LARGEST_SCALE else found[0]


def shifted(number: str, places: int) -> str:
    """Multiply a decimal numeral by a power of ten, exactly.

    >>> shifted("3.5", 6), shifted("0.5", 2), shifted("1.25", 1)
    ('3500000', '50', '12.5')
    """
    whole, _, fraction = number.partition(".")
    digits = whole + fraction.ljust(places, "0")
    point = len(whole) + places
    rest = digits[point:].rstrip("0")
    return (digits[:point].lstrip("0") or "0") + (f".{rest}" if rest else "")


# Signs before and after a number

_LEADS = "is|was|are|were|be|equals|of|to|at|about|around|than|from|by|between|and|or"
_MINUS = re.compile(rf"(^|[(\[=<>] ?|\b(?:{_LEADS}) )- (?=[{CURRENCIES}]? ?\.?[0-9])")
_DEGREES = re.compile(r"(?<=[0-9]) ?°(?: (?=[cfk]\b))?")
_CURRENCY_AFTER = re.compile(
    rf"(?<![\w.,:/^{CURRENCIES}-])(-?)({_NUMERAL}) ?([{CURRENCIES}])(?! ?[0-9{CURRENCIES}])"
)


def signed(text: str) -> str:
    """Attach minus, degree and currency signs to their numbers.

    >>> signed("- 5"), signed("it was - 5 ° c"), signed("5 €"), signed("apollo - 11")
    ('-5', 'it was -5°c', '€5', 'apollo - 11')
    """
    if "- " in text:
        text = _MINUS.sub(r"\1-", text)
    if "°" in text:
        text = _DEGREES.sub("°", text)
    return text if text.isascii() and "$" not in text else _CURRENCY_AFTER.sub(r"\1\3\2", text)


# One value, one form

_IDLE = re.compile(
    rf"(?<!\S)((-?[{CURRENCIES}]?-?)[0-9]+)\.([0-9]*?)(0+)(%|°[cfk]?)?(?!\S)(?: (?=([^\W\d_]+)\b))?"
)
_LAST_0 = re.compile(r"\.[0-9]*0(?![0-9])")
_HALF = re.compile(r"(?<!\S)(-?)1/2(?!\S)")
_SECOND = re.compile(r"(?<!\S)2nd(?! (?:century|centuries|millennium)\b)(?!\S)")


def one_form(words: str) -> str:
    """Write equal values alike: 7.0 as 7, 1/2 as 0.5, 2nd as "second".

    Trailing zeros go from a number alone, or with a currency, a per cent or degree sign, or a unit; elsewhere
    they may be part of a name ("python 3.10"). Three decimals that end in 0 may be thousands, and stay.

    >>> one_form("7.0"), one_form("$0.50"), one_form("7.50 km"), one_form("1/2"), one_form("2nd street")
    ('7', '$0.5', '7.5 km', '0.5', 'second street')
    >>> one_form("python 3.10"), one_form("1.500")
    ('python 3.10', '1.500')
    """
    if "." in words and _LAST_0.search(words):
        words = _IDLE.sub(_trimmed, words)
    if "1/2" in words:
        words = _HALF.sub(r"\g<1>0.5", words)
    return _SECOND.sub("second", words) if "2nd" in words else words


def _trimmed(found: re.Match[str]) -> str:
    number, before, decimals, idle, after, word = found.groups()
    alone = found[0] == found.string
    if len(decimals + idle) == 3 or not (alone or after or before.strip("-") or word in UNITS):
        return found[0]
    return number + (f".{decimals}" if decimals else "") + (after or "") + (" " if word else "")
