"""Writes English number words, quantities and numbers with separators as digits.

`read_numbers` works on folded text (lower case, single blanks, hyphens for dashes). It splits the text
into words and the gaps between them, and at each number word a small grammar reads the longest number that
begins there; everything else is left as it was. The words of one number are linked by a blank or a hyphen,
after "thousand" and the like also by a comma.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from semcal.qa.figures import CURRENCIES, LARGEST_SCALE, SCALES, any_word, read_figures, shifted

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
_MONEY_SCALES = {"k": 3, "m": 6, "b": 9}  # "$5m" is an amount, "5m" may be five metres
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
"""Words with which a number can begin; a text without one of them and without a digit holds no number."""


_WORD = re.compile(r"([0-9]+(?:\.[0-9]+)?|[^\W\d_]+)")
_PERCENT = re.compile(r"(?<=[0-9])[ -]?(?:%|per[ -]?cent\b)")
_NUMBER_WORD = re.compile(
    rf"(?<![^\W\d_])(?:{any_word(NUMBER_WORDS)}\b|(?<=[0-9]) ?{any_word([*_SHORT_SCALES, *_MONEY_SCALES])}\b)"
)
_NO_ONE = re.compile(r"\bno-one\b")


class _Text(NamedTuple):
    """Words, and the gaps before each of them and after the last."""

    words: list[str]
    gaps: list[str]

    def linked(self, i: int) -> str:
        """Word i if a blank or a hyphen links it to the one before, else ""."""
        return self.words[i] if i < len(self.words) and self.gaps[i] in (" ", "-") else ""

    def free(self, i: int) -> bool:
        """Whether word i is neither glued to a neighbour ("2nd") nor a genitive ("one's")."""
        glued = i > 0 and self.gaps[i] == ""
        return not glued and (i + 1 == len(self.words) or self.gaps[i + 1] not in ("", "'"))


class _Whole(NamedTuple):
    """A whole number that was read, the index of the word after it, and whether it is an ordinal."""

    value: int
    end: int
    ordinal: bool = False


class _Found(NamedTuple):
    """A number as text, and the index of the word after it."""

    text: str
    end: int


def read_numbers(text: str) -> str:
    """Write the numbers of a folded text as digits.

    Thousands separators go, number words and quantities become digits, ordinals "21st", decades "1960s",
    percentages "20%".

    >>> read_numbers("two thousand and five"), read_numbers("nineteen eighty-four")
    ('2005', '1984')
    >>> read_numbers("seven and a half million"), read_numbers("3.5 million"), read_numbers("1,234")
    ('7500000', '3500000', '1234')
    >>> read_numbers("the twenty-first century"), read_numbers("two thirds"), read_numbers("no one")
    ('the 21st century', '2/3', 'no one')
    """
    text = read_figures(text)
    if _NUMBER_WORD.search(text):
        text = _read_words(_NO_ONE.sub("no one", text) if "no-one" in text else text)
    return _PERCENT.sub("%", text) if "%" in text or "cent" in text else text


def _read_words(text: str) -> str:
    """Replace number words, and digits with a scale, by digits."""
    parts = _WORD.split(text)
    words = _Text(parts[1::2], parts[::2])
    out = [words.gaps[0]]
    i = 0
    while i < len(words.words):
        word = words.words[i]
        begins = word in NUMBER_WORDS or "0" <= word[0] <= "9"
        found = _read(words, i) if begins else None
        word, i = found or (word, i + 1)
        out += [word, words.gaps[i]]
    return "".join(out)


def _read(text: _Text, i: int) -> _Found | None:
    """Read the number that begins at word i, if one does."""
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
        return _Found("2nd", i + 1) if text.linked(i + 1) in _CENTURIES else None
    if word in _DENOMINATORS and (share := _share(text, i)):
        return share
    if word in _DECADES:
        return _Found(f"{_DECADES[word]}s", i + 1)
    if word == "dozen":
        return _Found("12", i + 1)
    return _year(text, i) or _number(text, i)


# Numbers in words


def _number(text: _Text, i: int) -> _Found | None:
    """Read a cardinal, an ordinal, a fraction, a decimal or a quantity."""
    whole = _whole(text, i)
    if whole is None or _is_pronoun(text, i, whole):
        return None
    if whole.ordinal:
        return _Found(_ordinal(whole.value), whole.end)
    return _fraction(text, whole) or _scaled(text, _decimal(text, _Found(str(whole.value), whole.end)))


def _is_pronoun(text: _Text, i: int, whole: _Whole) -> bool:
    """Whether this is the "one" of "no one", "one another" or "one of"."""
    if text.words[i] != "one" or whole.end > i + 1:
        return False
    after_no = i > 0 and text.words[i - 1] == "no" and text.linked(i) == "one"
    return after_no or text.linked(i + 1) in ("another", "of")


def _ordinal(value: int) -> str:
    teens = 10 <= value % 100 <= 20
    return f"{value}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(value % 10, 'th')}"


def _below_hundred(text: _Text, i: int, *, inside: bool = False) -> _Whole | None:
    """Read 0 to 99, or the ordinal of it; "second" only `inside` a larger number."""
    word = text.words[i] if i < len(text.words) else ""
    if word in _TENS:
        after = text.linked(i + 1)
        if 0 < _SMALL.get(after, 0) < 10:
            return _Whole(_TENS[word] + _SMALL[after], i + 2)
        if 0 < _ORDINALS.get(after, 0) < 10 and (after != "second" or text.gaps[i + 1] == "-"):
            return _Whole(_TENS[word] + _ORDINALS[after], i + 2, ordinal=True)
        return _Whole(_TENS[word], i + 1)
    if word in _SMALL:
        return _Whole(_SMALL[word], i + 1)
    if word in _ORDINALS and (word != "second" or inside):
        return _Whole(_ORDINALS[word], i + 1, ordinal=True)
    return None


def _group(text: _Text, i: int, *, use_and: bool, inside: bool) -> _Whole | None:
    """Read what may stand before "thousand": up to "ninety-nine hundred and ninety-nine"."""
    word = text.words[i] if i < len(text.words) else ""
    first = _Whole(1, i) if word in ("hundred", "hundredth") else _below_hundred(text, i, inside=inside)
    if first is None or first.ordinal:
        return first
    after = text.words[i] if first.end == i else text.linked(first.end)
    if after == "hundredth":
        return _Whole(first.value * 100, first.end + 1, ordinal=True)
    if after != "hundred":
        return first
    return _rest_of_hundred(text, first.value * 100, first.end + 1, use_and=use_and)


def _rest_of_hundred(text: _Text, value: int, end: int, *, use_and: bool) -> _Whole:
    """Add the "(and) five" of "one hundred (and) five"."""
    with_and = use_and and text.linked(end) == "and"
    at = end + with_and
    rest = _below_hundred(text, at, inside=with_and) if text.linked(at) else None
    if rest is None or text.linked(rest.end) in ("hundred", "hundredth"):
        return _Whole(value, end)
    return _Whole(value + rest.value, rest.end, rest.ordinal)


def _whole(text: _Text, i: int) -> _Whole | None:
    """Read a whole number: groups with falling scales, then a last group without one."""
    use_and = i == 0 or text.words[i - 1] != "between"
    total, end, limit = 0, i, LARGEST_SCALE
    at, joint = i, ""
    while group := _scaled_group(text, at, first=end == i, use_and=use_and, inside=joint == "and"):
        whole, places = group
        if whole.value >= 10**limit or places >= limit or not (places or _may_end(whole.value, joint)):
            break
        total, end, limit = total + whole.value * 10**places, whole.end, places
        if whole.ordinal or not places:
            return _Whole(total, end, whole.ordinal)
        at, joint = _joint(text, end, use_and=use_and)
    return _Whole(total, end) if end > i else None


def _scaled_group(
    text: _Text, i: int, *, first: bool, use_and: bool, inside: bool
) -> tuple[_Whole, int] | None:
    """Read a group and the zeros that the scale words after it add: ("five", 6) of "five million"."""
    bare = first and (text.words[i] in SCALES or text.words[i] in _SCALE_ORDINALS)
    group = _Whole(1, i) if bare else _group(text, i, use_and=use_and, inside=inside)
    if group is None or group.ordinal:
        return (group, 0) if group else None
    places, end, ordinal = _places(text, group.end, bare=bare)
    return _Whole(group.value, end, ordinal), places


def _joint(text: _Text, end: int, *, use_and: bool) -> tuple[int, str]:
    """Where the next group would begin after a scale, and what joins it: "", "and" or ","."""
    if end >= len(text.words):
        return end, ""
    comma = text.gaps[end] == ", "
    if not comma and not text.linked(end):
        return len(text.words), ""
    if text.words[end] == "and":
        return (end + 1, "and") if use_and and text.linked(end + 1) else (len(text.words), "")
    return end, "," if comma else ""


def _may_end(value: int, joint: str) -> bool:
    """Whether a last group of this value may follow: "thousand and five", "thousand, five hundred"."""
    return value < 100 if joint == "and" else value >= 100 if joint == "," else True


def _places(text: _Text, end: int, *, bare: bool) -> tuple[int, int, bool]:
    """Read the scale words at `end`: how many zeros they stand for, where they end, whether ordinal."""
    places = 0
    while True:
        word = text.words[end] if bare and not places else text.linked(end)
        if word in _SCALE_ORDINALS:
            return places + _SCALE_ORDINALS[word], end + 1, True
        if word not in SCALES or places + SCALES[word] >= LARGEST_SCALE:
            return places, end, False
        places, end = places + SCALES[word], end + 1


def _year(text: _Text, i: int) -> _Found | None:
    """Read "nineteen eighty-four", "nineteen oh five", "nineteen sixties", "eighteen hundreds"."""
    century = _below_hundred(text, i)
    if century is None or century.ordinal or not 10 <= century.value <= 20:
        return None
    end = century.end
    after = text.linked(end)
    if after == "hundreds" or after in _DECADES:
        return _Found(f"{century.value}{_DECADES.get(after, '00')}s", end + 1)
    if after in ("oh", "o"):
        digit = _SPOKEN_DIGITS.get(text.linked(end + 1), "0")
        return _Found(f"{century.value}0{digit}", end + 2) if digit != "0" else None
    rest = _below_hundred(text, end) if after else None
    if rest is None or rest.ordinal or rest.value < 10:
        return None
    if text.gaps[end] == "-" and rest.end == end + 1:  # "ten-fifteen" is a range
        return None
    goes_on = text.linked(rest.end)
    if goes_on in ("hundred", "dozen", "point") or goes_on in SCALES:
        return None
    return _Found(f"{century.value}{rest.value}", rest.end)


def _fraction(text: _Text, whole: _Whole) -> _Found | None:
    """Read "two thirds", "one quarter", "one half" (which is 0.5)."""
    part = text.linked(whole.end)
    if whole.value == 1:
        if part == "half":
            return _scaled(text, _Found("0.5", whole.end + 1))
        below = _DENOMINATORS.get(part)
    else:
        below = _DENOMINATORS.get(part[:-1]) if part.endswith("s") else None
    if below is None or not 0 < whole.value < below:
        return None
    return _Found(f"{whole.value}/{below}", whole.end + 1)


def _share(text: _Text, i: int) -> _Found | None:
    """Read the "third" of "a third of it", or of a text that ends in "a third"."""
    is_share = i > 0 and text.words[i - 1] in ("a", "an") and text.linked(i) != ""
    ends = i + 1 == len(text.words) or text.linked(i + 1) == "of"
    return _Found(f"1/{_DENOMINATORS[text.words[i]]}", i + 1) if is_share and ends else None


def _half(text: _Text, i: int) -> _Found | None:
    """Read "half a million", "half-dozen", or a text that says nothing but "half"."""
    at = i + 2 if text.linked(i + 1) == "a" else i + 1
    of = text.linked(at)
    if of == "dozen":
        return _Found("6", at + 1)
    if of == "hundred" or of in SCALES:
        return _scaled(text, _Found("0.5", at))
    alone = text.words == ["half"] or text.words == ["a", "half"]
    return _Found("0.5", i + 1) if alone else None


def _signed(text: _Text, i: int) -> _Found | None:
    """Read "minus seven", but not the subtraction "nine minus seven"."""
    before = text.words[i - 1] if text.linked(i) and i else ""
    if before in NUMBER_WORDS or before[:1].isdigit() or not text.linked(i + 1):
        return None
    word = text.words[i + 1]
    plain = _Found(word, i + 2) if word[0].isdigit() and text.free(i + 1) else None
    found = _read(text, i + 1) or plain
    return _Found(f"-{found.text}", found.end) if found and found.text[-1:].isdigit() else None


# Decimals and quantities


def _decimal(text: _Text, number: _Found) -> _Found:
    """Add the "point five" or "and a half" that may follow a whole number."""
    if "." in number.text:
        return number
    word = text.linked(number.end)
    if word == "point":
        return _after_point(text, number)
    if word == "and":
        return _and_a_half(text, number)
    return number


def _after_point(text: _Text, number: _Found) -> _Found:
    """Read digits one by one ("six point oh two"), or a number below a hundred ("three point fourteen")."""
    end = number.end + 1
    digits = ""
    while (word := text.linked(end)) in _SPOKEN_DIGITS:
        digits, end = digits + _SPOKEN_DIGITS[word], end + 1
    if not digits and text.linked(end):
        rest = _below_hundred(text, end)
        if rest is not None and not rest.ordinal:
            digits, end = str(rest.value), rest.end
    return _Found(f"{number.text}.{digits}", end) if digits else number


def _and_a_half(text: _Text, number: _Found) -> _Found:
    """Read "and a half", "and three quarters"; after "million" it is half a million."""
    at = number.end + 1
    count = {"a": 1, "one": 1, "three": 3}.get(text.linked(at), 0)
    part = _DECIMAL_PARTS.get((text.linked(at + 1), count))
    if part is None:
        return number
    places = SCALES.get(text.words[number.end - 1], 0)
    if not places:
        return _Found(f"{number.text}.{part}", at + 2)
    return _Found(str(int(number.text) + int(part) * 10 ** (places - len(part))), at + 2)


def _scaled(text: _Text, number: _Found) -> _Found:
    """Multiply by the "hundred", "million" or "dozen" that may follow."""
    while True:
        word = text.linked(number.end)
        if word == "dozen" and "." not in number.text and len(number.text) < 16:
            return _Found(str(int(number.text) * 12), number.end + 1)
        places = 2 if word == "hundred" else SCALES.get(word, 0)
        if not places:
            return number
        number = _Found(shifted(number.text, places), number.end + 1)


def _quantity(text: _Text, i: int) -> _Found | None:
    """Read "3.5 million", "2 and a half million", "$5m": digits with a scale."""
    if text.gaps[i] in ("/", ":", ".", ",", "^") or (i and text.gaps[i] == ""):
        return None
    number = _Found(text.words[i], i + 1)
    sign = text.words[i + 1] if i + 1 < len(text.words) and text.gaps[i + 1] in ("", " ") else ""
    places = _SHORT_SCALES.get(sign, 0) or (SCALES.get(sign, 0) if text.gaps[i + 1] == "" else 0)
    if not places and text.gaps[i][-1:] in _CURRENCIES:
        places = _MONEY_SCALES.get(sign, 0)
    if places and (i + 2 == len(text.words) or text.gaps[i + 2] != ""):
        return _Found(shifted(number.text, places), i + 2)
    found = _scaled(text, _decimal(text, number))
    return found if found.end > i + 1 else None
