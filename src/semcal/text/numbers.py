"""Write the numbers of a text in digits: number words, quantities, separators, powers, fractions.

Texts are folded: lower case, single blanks, hyphens for dashes. `read_figures` reads figures first. If their
reading is ambiguous ("1,2,3", "1914,1918", "2^10"), the figures stay unchanged in one piece, so that no part
of them counts as a number. Then the text is split into words and the gaps between them. At each number word
a small grammar reads the longest number that begins there; all other text stays unchanged. A blank or a
hyphen links the words of one number; a comma may follow a scale such as "thousand".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from semcal.text import read_lists

CURRENCIES = "$£€¥₹₩₽₺₦₱"
"""Signs of currencies."""

WORD_LISTS = read_lists(Path(__file__).with_name("words.txt"))
_MONTH_NAMES, _OTHER_MONTHS, _UNITS = (
    WORD_LISTS[name].strip().replace("\n", "|").split("|") for name in ("months", "other months", "units")
)

MONTHS = {name: n for n, names in enumerate(_MONTH_NAMES, start=1) for name in names.split()}
"""Number of a month by its name in lower case."""

OTHER_MONTHS = {
    name: english.split()[0] for names, english in zip(_OTHER_MONTHS, _MONTH_NAMES) for name in names.split()
}
"""English name of a month by its German, French, Spanish, Italian, Portuguese or Dutch name."""

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
"""Number of zeros that a scale word adds to the number before the word."""
LARGEST_SCALE = 36

UNITS = {spelling: names.split()[0] for names in _UNITS for spelling in names.split()}
"""Representative spelling of a unit by each of its spellings."""


def any_word(words: Iterable[str]) -> str:
    """Return a pattern that matches any of these words and reads each letter only once.

    >>> any_word(["six", "sixty", "ten"])
    '(?:six(?:ty)?|ten)'
    """
    words, endings = set(words), dict[str, list[str]]()
    for word in sorted(words - {""}):
        endings.setdefault(word[0], []).append(word[1:])
    options = [re.escape(first) + any_word(tails) for first, tails in endings.items()]
    optional = "?" if "" in words and options else ""
    return f"(?:{'|'.join(options)}){optional}" if optional or len(options) > 1 else "".join(options)


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

    Thousands separators are removed, decimal commas become points, powers of ten are multiplied out, mixed
    fractions are added up, and both ends of a range get its scale.

    >>> read_figures("1,234,567"), read_figures("1 000 000"), read_figures("1,00,000"), read_figures("1,5")
    ('1234567', '1000000', '100000', '1.5')
    >>> read_figures("3 x 10^6"), read_figures("2 1/2"), read_figures("2-3 million"), read_figures("1,2,3")
    ('3000000', '2.5', '2 million-3 million', '1,2,3')
    """
    if _INNER.search(text):
        text = _POINTS.sub(lambda match: match[0].replace(".", "").replace(",", "."), text)
        text = _SEPARATED.sub(lambda match: re.sub("[,'_]", "", match[0]), text)
        text = _COMMA.sub(lambda match: match[0].replace(",", "."), text)
    if " " in text:
        text = _BLANKS.sub(_joined, text)
    if "^" in text or "**" in text:
        text = _INDEX.sub("", _RAISED.sub("^", _POWER.sub(_multiplied, text)))
    if "/" in text:
        text = _MIXED.sub(lambda match: match[1] + _MIXED_PARTS[match[2]], text)
    return _RANGE.sub(r"\1 \3-\2", text) if "-" in text else text


def _joined(match: re.Match[str]) -> str:
    """Join "10 000", unless a month is before it and the first figures are the day."""
    if _MONTH_BEFORE.search(match.string, max(0, match.start() - 12), match.start()):
        return match[0]
    return match[0].replace(" ", "").replace(",", ".")


def are_groups(before: str, first: str, second: str) -> bool:
    """Return whether a blank between two numerals would join them; `before` is the text before the first.

    >>> are_groups("", "100", "200"), are_groups("", "100", "20"), are_groups("may ", "5", "800")
    (True, False, False)
    """
    match = _BLANKS.fullmatch(f"{first} {second}")
    return match is not None and not _MONTH_BEFORE.search(before)


def _multiplied(match: re.Match[str]) -> str:
    places = int(match[2])
    return shifted(match[1] or "1", places) if places <= LARGEST_SCALE else match[0]


def shifted(number: str, places: int) -> str:
    """Multiply a decimal numeral by a power of ten, exactly.

    >>> shifted("3.5", 6), shifted("0.5", 2), shifted("1.25", 1)
    ('3500000', '50', '12.5')
    """
    integer, _, fraction = number.partition(".")
    digits = integer + fraction.ljust(places, "0")
    point = len(integer) + places
    decimals = digits[point:].rstrip("0")
    return (digits[:point].lstrip("0") or "0") + (f".{decimals}" if decimals else "")


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

    Trailing zeros are dropped if the number is alone or has a currency, a percent or degree sign, or a unit;
    otherwise they may be part of a name ("python 3.10"). Three decimals that end in 0 may be thousands, and
    stay unchanged.

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


def _trimmed(match: re.Match[str]) -> str:
    number, before, decimals, idle, after, word = match.groups()
    alone = match[0] == match.string
    if len(decimals + idle) == 3 or not (alone or after or before.strip("-") or word in UNITS):
        return match[0]
    return number + (f".{decimals}" if decimals else "") + (after or "") + (" " if word else "")


# Number words

_SMALL_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
    " seventeen eighteen nineteen"
)
_TENS_WORDS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SMALL = {word: value for value, word in enumerate(_SMALL_WORDS.split())}
_TENS = dict(zip(_TENS_WORDS.split(), range(20, 100, 10)))
_DECADES = {f"{word[:-1]}ies": value for word, value in _TENS.items()}
_SPOKEN_DIGITS = {word: str(value) for word, value in _SMALL.items() if value < 10} | {"oh": "0", "o": "0"}
_SCALE_ORDINALS = {f"{word}th": places for word, places in SCALES.items()}
_SHORT_SCALES = {"mn": 6, "bn": 9, "tn": 12}
_MONEY_SCALES = {"k": 3, "m": 6, "b": 9}  # "$5m" is an amount, "5m" may be five meters
_IRREGULAR = {1: "first", 2: "second", 3: "third", 5: "fifth", 8: "eighth", 9: "ninth", 12: "twelfth"}
_ORDINALS = {_IRREGULAR.get(n, f"{word}th"): n for word, n in _SMALL.items() if n}
_ORDINALS |= {f"{word[:-1]}ieth": value for word, value in _TENS.items()}
_DENOMINATORS = {word: n for word, n in _ORDINALS.items() if n > 2} | {"quarter": 4, "hundredth": 100}
_DECIMAL_PARTS = {("half", 1): "5", ("quarter", 1): "25", ("quarters", 3): "75"}
_CURRENCIES = frozenset(CURRENCIES)
_CENTURIES = frozenset({"century", "centuries", "millennium"})

NUMBER_WORDS = frozenset(
    [
        *(*_SMALL, *_TENS, *_DECADES, *SCALES, *_ORDINALS, *_SCALE_ORDINALS),
        *("hundred", "hundredth", "dozen", "half", "quarter", "minus", "negative"),
    ]
)
"""Words with which a number can begin. A text with none of these words and no digit has no number."""


_WORD = re.compile(r"([0-9]+(?:\.[0-9]+)?|[^\W\d_]+)")
_PERCENT = re.compile(r"(?<=[0-9])[ -]?(?:%|per[ -]?cent\b)")
_NUMBER_WORD = re.compile(
    rf"(?<![^\W\d_])(?:{any_word(NUMBER_WORDS)}\b|(?<=[0-9]) ?{any_word([*_SHORT_SCALES, *_MONEY_SCALES])}\b)"
)
_NO_ONE = re.compile(r"\bno-one\b")


class _Text(NamedTuple):
    """The words of a text, and the gaps before each word and after the last."""

    words: list[str]
    gaps: list[str]

    def linked(self, i: int) -> str:
        """Return word i if a blank or a hyphen links it to the word before, else ""."""
        return self.words[i] if i < len(self.words) and self.gaps[i] in (" ", "-") else ""

    def free(self, i: int) -> bool:
        """Return whether word i is neither joined to a neighbor ("2nd") nor a genitive ("one's")."""
        joined = i > 0 and self.gaps[i] == ""
        return not joined and (i + 1 == len(self.words) or self.gaps[i + 1] not in ("", "'"))


class _Integer(NamedTuple):
    """A whole number or ordinal, and the index of the word after it."""

    value: int
    end: int
    ordinal: bool = False


class _Numeral(NamedTuple):
    """A number as text, and the index of the word after it."""

    text: str
    end: int


def read_numbers(text: str) -> str:
    """Write the numbers of a folded text as digits.

    Thousands separators are removed. Number words and quantities become digits, ordinals become "21st",
    decades "1960s" and percentages "20%".

    >>> read_numbers("two thousand and five"), read_numbers("nineteen eighty-four"), read_numbers("1,234")
    ('2005', '1984', '1234')
    >>> read_numbers("the twenty-first century"), read_numbers("two thirds"), read_numbers("no one")
    ('the 21st century', '2/3', 'no one')
    """
    text = read_figures(text)
    if _NUMBER_WORD.search(text):
        text = _read_words(_NO_ONE.sub("no one", text) if "no-one" in text else text)
    return _PERCENT.sub("%", text) if "%" in text or "cent" in text else text


def _read_words(text: str) -> str:
    parts = _WORD.split(text)
    words = _Text(parts[1::2], parts[::2])
    out = [words.gaps[0]]
    i = 0
    while i < len(words.words):
        word = words.words[i]
        begins = word in NUMBER_WORDS or "0" <= word[0] <= "9"
        numeral = _read(words, i) if begins else None
        word, i = numeral or (word, i + 1)
        out += [word, words.gaps[i]]
    return "".join(out)


def _read(text: _Text, i: int) -> _Numeral | None:
    word = text.words[i]
    if "0" <= word[0] <= "9":
        return _quantity(text, i)
    if word not in NUMBER_WORDS or not text.free(i):
        return None
    if word in ("minus", "negative"):
        return _signed(text, i)
    if word == "half":
        return _half(text, i)
    if word == "second":
        return _Numeral("2nd", i + 1) if text.linked(i + 1) in _CENTURIES else None
    if word in _DENOMINATORS and (share := _share(text, i)):
        return share
    if word in _DECADES:
        return _Numeral(f"{_DECADES[word]}s", i + 1)
    if word == "dozen":
        return _Numeral("12", i + 1)
    return _year(text, i) or _number(text, i)


# Numbers in words


def _number(text: _Text, i: int) -> _Numeral | None:
    integer = _whole(text, i)
    if integer is None:
        return None
    if text.words[i] == "one" and integer.end == i + 1:  # not "no one", "one another" or "one of"
        after_no = i > 0 and text.words[i - 1] == "no" and text.linked(i) == "one"
        if after_no or text.linked(i + 1) in ("another", "of"):
            return None
    if integer.ordinal:
        return _Numeral(_ordinal(integer.value), integer.end)
    return _fraction(text, integer) or _scaled(
        text, _decimal(text, _Numeral(str(integer.value), integer.end))
    )


def _ordinal(value: int) -> str:
    teens = 10 <= value % 100 <= 20
    return f"{value}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(value % 10, 'th')}"


def _below_hundred(text: _Text, i: int, *, inside: bool = False) -> _Integer | None:
    """Read a number from 0 to 99 or its ordinal; "second" only `inside` a larger number."""
    word = text.words[i] if i < len(text.words) else ""
    if word in _TENS:
        after = text.linked(i + 1)
        if 0 < _SMALL.get(after, 0) < 10:
            return _Integer(_TENS[word] + _SMALL[after], i + 2)
        if 0 < _ORDINALS.get(after, 0) < 10 and (after != "second" or text.gaps[i + 1] == "-"):
            return _Integer(_TENS[word] + _ORDINALS[after], i + 2, ordinal=True)
        return _Integer(_TENS[word], i + 1)
    if word in _SMALL:
        return _Integer(_SMALL[word], i + 1)
    if word in _ORDINALS and (word != "second" or inside):
        return _Integer(_ORDINALS[word], i + 1, ordinal=True)
    return None


def _group(text: _Text, i: int, *, use_and: bool, inside: bool) -> _Integer | None:
    """Read a number that may precede "thousand": up to "ninety-nine hundred and ninety-nine"."""
    word = text.words[i] if i < len(text.words) else ""
    first = _Integer(1, i) if word in ("hundred", "hundredth") else _below_hundred(text, i, inside=inside)
    if first is None or first.ordinal:
        return first
    after = text.words[i] if first.end == i else text.linked(first.end)
    if after == "hundredth":
        return _Integer(first.value * 100, first.end + 1, ordinal=True)
    if after != "hundred":
        return first
    value, end = first.value * 100, first.end + 1  # the "(and) five" of "one hundred (and) five" follows
    with_and = use_and and text.linked(end) == "and"
    at = end + with_and
    small = _below_hundred(text, at, inside=with_and) if text.linked(at) else None
    if small is None or text.linked(small.end) in ("hundred", "hundredth"):
        return _Integer(value, end)
    return _Integer(value + small.value, small.end, small.ordinal)


def _whole(text: _Text, i: int) -> _Integer | None:
    """Read a whole number: groups with falling scales, then a last group without a scale."""
    use_and = i == 0 or text.words[i - 1] != "between"
    total, end, limit = 0, i, LARGEST_SCALE
    at, joint = i, ""
    while group := _scaled_group(text, at, first=end == i, use_and=use_and, inside=joint == "and"):
        integer, places = group
        # without a scale the last group may be "thousand and five", "thousand, five hundred"
        may_end = bool(places) or {"and": integer.value < 100, ",": integer.value >= 100}.get(joint, True)
        if integer.value >= 10**limit or places >= limit or not may_end:
            break
        total, end, limit = total + integer.value * 10**places, integer.end, places
        if integer.ordinal or not places:
            return _Integer(total, end, integer.ordinal)
        at, joint = _joint(text, end, use_and=use_and)
    return _Integer(total, end) if end > i else None


def _scaled_group(
    text: _Text, i: int, *, first: bool, use_and: bool, inside: bool
) -> tuple[_Integer, int] | None:
    """Read a group and the zeros that the scale words after it add: ("five", 6) of "five million"."""
    bare = first and (text.words[i] in SCALES or text.words[i] in _SCALE_ORDINALS)
    group = _Integer(1, i) if bare else _group(text, i, use_and=use_and, inside=inside)
    if group is None or group.ordinal:
        return (group, 0) if group else None
    places, end = 0, group.end
    while True:
        word = text.words[end] if bare and not places else text.linked(end)
        if word in _SCALE_ORDINALS:
            return _Integer(group.value, end + 1, ordinal=True), places + _SCALE_ORDINALS[word]
        if word not in SCALES or places + SCALES[word] >= LARGEST_SCALE:
            return _Integer(group.value, end), places
        places, end = places + SCALES[word], end + 1


def _joint(text: _Text, end: int, *, use_and: bool) -> tuple[int, str]:
    """Return the index of the group after a scale, and the word that joins it: "", "and" or ","."""
    if end >= len(text.words):
        return end, ""
    comma = text.gaps[end] == ", "
    if not comma and not text.linked(end):
        return len(text.words), ""
    if text.words[end] == "and":
        return (end + 1, "and") if use_and and text.linked(end + 1) else (len(text.words), "")
    return end, "," if comma else ""


def _year(text: _Text, i: int) -> _Numeral | None:
    """Read "nineteen eighty-four", "nineteen oh five", "nineteen sixties", "eighteen hundreds"."""
    century = _below_hundred(text, i)
    if century is None or century.ordinal or not 10 <= century.value <= 20:
        return None
    end = century.end
    after = text.linked(end)
    if after == "hundreds" or after in _DECADES:
        return _Numeral(f"{century.value}{_DECADES.get(after, '00')}s", end + 1)
    if after in ("oh", "o"):
        digit = _SPOKEN_DIGITS.get(text.linked(end + 1), "0")
        return _Numeral(f"{century.value}0{digit}", end + 2) if digit != "0" else None
    small = _below_hundred(text, end) if after else None
    if small is None or small.ordinal or small.value < 10:
        return None
    if text.gaps[end] == "-" and small.end == end + 1:  # "ten-fifteen" is a range
        return None
    goes_on = text.linked(small.end)
    if goes_on in ("hundred", "dozen", "point") or goes_on in SCALES:
        return None
    return _Numeral(f"{century.value}{small.value}", small.end)


def _fraction(text: _Text, integer: _Integer) -> _Numeral | None:
    """Read "two thirds", "one quarter", "one half" (which is 0.5)."""
    part = text.linked(integer.end)
    if integer.value == 1:
        if part == "half":
            return _scaled(text, _Numeral("0.5", integer.end + 1))
        below = _DENOMINATORS.get(part)
    else:
        below = _DENOMINATORS.get(part[:-1]) if part.endswith("s") else None
    if below is None or not 0 < integer.value < below:
        return None
    return _Numeral(f"{integer.value}/{below}", integer.end + 1)


def _share(text: _Text, i: int) -> _Numeral | None:
    """Read the "third" of "a third of it", or of a text that ends in "a third"."""
    is_share = i > 0 and text.words[i - 1] in ("a", "an") and text.linked(i) != ""
    ends = i + 1 == len(text.words) or text.linked(i + 1) == "of"
    return _Numeral(f"1/{_DENOMINATORS[text.words[i]]}", i + 1) if is_share and ends else None


def _half(text: _Text, i: int) -> _Numeral | None:
    """Read "half a million", "half-dozen", or a text that is only "half"."""
    at = i + 2 if text.linked(i + 1) == "a" else i + 1
    unit = text.linked(at)
    if unit == "dozen":
        return _Numeral("6", at + 1)
    if unit == "hundred" or unit in SCALES:
        return _scaled(text, _Numeral("0.5", at))
    alone = text.words == ["half"] or text.words == ["a", "half"]
    return _Numeral("0.5", i + 1) if alone else None


def _signed(text: _Text, i: int) -> _Numeral | None:
    """Read "minus seven", but not the subtraction "nine minus seven"."""
    before = text.words[i - 1] if text.linked(i) and i else ""
    if before in NUMBER_WORDS or before[:1].isdigit() or not text.linked(i + 1):
        return None
    word = text.words[i + 1]
    plain = _Numeral(word, i + 2) if word[0].isdigit() and text.free(i + 1) else None
    numeral = _read(text, i + 1) or plain
    return _Numeral(f"-{numeral.text}", numeral.end) if numeral and numeral.text[-1:].isdigit() else None


# Decimals and quantities


def _decimal(text: _Text, number: _Numeral) -> _Numeral:
    """Add the "point five" or "and a half" that may follow a whole number."""
    word, end = text.linked(number.end), number.end + 1
    if "." in number.text or word not in ("point", "and"):
        return number
    if word == "point":  # digits one by one, as in "six point oh two", or a number below a hundred
        digits = ""
        while (word := text.linked(end)) in _SPOKEN_DIGITS:
            digits, end = digits + _SPOKEN_DIGITS[word], end + 1
        if not digits and word:
            small = _below_hundred(text, end)
            if small is not None and not small.ordinal:
                digits, end = str(small.value), small.end
        return _Numeral(f"{number.text}.{digits}", end) if digits else number
    count = {"a": 1, "one": 1, "three": 3}.get(text.linked(end), 0)
    part = _DECIMAL_PARTS.get((text.linked(end + 1), count))
    if part is None:
        return number
    places = SCALES.get(text.words[number.end - 1], 0)  # of a scale word before "and"
    if not places:
        return _Numeral(f"{number.text}.{part}", end + 2)
    return _Numeral(str(int(number.text) + int(part) * 10 ** (places - len(part))), end + 2)


def _scaled(text: _Text, number: _Numeral) -> _Numeral:
    while True:
        word = text.linked(number.end)
        if word == "dozen" and "." not in number.text and len(number.text) < 16:
            return _Numeral(str(int(number.text) * 12), number.end + 1)
        places = 2 if word == "hundred" else SCALES.get(word, 0)
        if not places:
            return number
        number = _Numeral(shifted(number.text, places), number.end + 1)


def _quantity(text: _Text, i: int) -> _Numeral | None:
    """Read "3.5 million", "2 and a half million", "$5m": digits with a scale."""
    if text.gaps[i] in ("/", ":", ".", ",", "^") or (i and text.gaps[i] == ""):
        return None
    number = _Numeral(text.words[i], i + 1)
    sign = text.words[i + 1] if i + 1 < len(text.words) and text.gaps[i + 1] in ("", " ") else ""
    places = _SHORT_SCALES.get(sign, 0) or (SCALES.get(sign, 0) if text.gaps[i + 1] == "" else 0)
    if not places and text.gaps[i][-1:] in _CURRENCIES:
        places = _MONEY_SCALES.get(sign, 0)
    if places and (i + 2 == len(text.words) or text.gaps[i + 2] != ""):
        return _Numeral(shifted(number.text, places), i + 2)
    quantity = _scaled(text, _decimal(text, number))
    return quantity if quantity.end > i + 1 else None
