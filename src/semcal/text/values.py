"""Values of a normal form (numbers, dates, eras, naming letters, signs) and their comparison.

Grading and clustering share this comparison: an answer with a wrong value is wrong whatever its other words,
and different values are different meanings.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from semcal.text import cache_texts
from semcal.text.numbers import CURRENCIES, MONTHS, UNITS, WORD_LISTS

# ---- Letters, signs and Roman numerals that distinguish names: "Vitamin A", "C#", "O+", "Henry VIII" -------
# A normal form has neither case nor most punctuation, and its normal form must be the same text. Therefore
# the words around an "a" decide between article and letter.

_AUXILIARY_VERBS = frozenset(WORD_LISTS["auxiliary verbs"].split())
#: Function words without auxiliary verbs.
FUNCTION_WORDS = frozenset(WORD_LISTS["closed classes"].split()) - _AUXILIARY_VERBS
STOP_WORDS = FUNCTION_WORDS | _AUXILIARY_VERBS
"""Function words: the closed classes of grammar."""

# Letters

_LETTERED = frozenset(WORD_LISTS["lettered"].split())
"""Words before a letter that is a name."""
_NEVER_AFTER_ARTICLE = frozenset(WORD_LISTS["connectives"].split())
_KEYS = frozenset(["major", "minor", "flat", "sharp", "positive", "negative"])


def without_articles(words: Sequence[str]) -> list[str]:
    """Drop English articles, but not the letter A.

    An "a" is a letter after a word such as "hepatitis" ("hepatitis a virus"), before a word that never
    follows an article ("a or b"), before a final "minor" or "major" ("sonata in a minor"), and at the end of
    the text.

    >>> without_articles("the hepatitis a virus".split()), without_articles("a mill by the river".split())
    (['hepatitis', 'a', 'virus'], ['mill', 'by', 'river'])
    """
    words = [word for word in words if word != "the" and word != "an"]
    if "a" not in words:
        return words
    return [word for i, word in enumerate(words) if word != "a" or _is_letter(words, i)]


def _is_letter(words: Sequence[str], i: int) -> bool:
    if i + 1 == len(words) or (i and words[i - 1] in _LETTERED):
        return True
    return words[i + 1] in _NEVER_AFTER_ARTICLE or (words[i + 1] in _KEYS and i + 2 == len(words))


# Signs

KEPT = {0xE000 + ord(sign): sign for sign in "+-#<>=*/^&|()"}
"""Private-use characters that replace signs while punctuation is dropped."""
_STAND_IN = {ord(sign): chr(code) for code, sign in KEPT.items()}
_AT_END = re.compile(
    r"(?<!\w)(?=[0-9]*[^\W\d_])([^\W_]+)(\+{1,2}|#|-(?! (?:and|or|to) \w+-\w))(?![\w+#-])( \w)?"
)
_COMPARED = re.compile(r"(?<![^\W_])([^\W_]+[%°]?) ?([<>=]{1,2}) ?(?=[-.$£€¥]*([^\W_]+))")


_OPERATOR = re.compile(
    r"[\w)] (?:[+*^]|&&|\|\|) [\w(\\]|(?:(?<![^\W\d_])[a-z]{1,2}[+^]|[0-9)][+*]|\)\^|\w&&|\w\|\|)[\w(\\]"
    r"|(?<![^\W_])[a-z][0-9]* [-/] [a-z0-9](?![^\W\d_])"
    r"|[0-9)] - (?:[a-z]|[0-9]+ ?/ ?[a-z])(?![^\W_])|[)] ?- ?[(]"
)
_OPERATORS = re.compile(r" ?(&&|\|\||[<>=]+|[*^/+()]|(?<=[\w)])-(?=[\w(\\])|(?<= )-(?= )) ?")
_PROSE = re.compile(r"(?<!\\)\b(?!sqrt|frac|sinh|cosh|tanh|alpha|beta|gamma|theta)[^\W\d_]{4}")


def is_formula(text: str) -> bool:
    """Return whether a folded text has operators between operands and, besides function names, no words.

    >>> is_formula("1 - 1/e"), is_formula("3 - 1"), is_formula("vitamin a + b")
    (True, False, False)
    """
    return _OPERATOR.search(text) is not None and not _PROSE.search(text)


def keep_signs(text: str) -> str:
    """Replace the signs of a folded text that are part of its answer by characters of `KEPT`.

    These signs are + and # at the end of a word with a letter ("c++", "ca2+"); a minus at the end of a
    letter, of "ab" or of a word with a digit ("o-", "no3-"), and of a final word of two letters ("cn-"; but
    "pre-" and "al- amin" have a hyphen); and < > = with a number or a single letter on one side. In a formula
    all operators are kept.

    >>> [keep_signs(text).translate(KEPT) for text in ("c++", "5<3", "x=y", "a+b")]
    ['c++', '5 < 3', 'x = y', 'a + b']
    """
    if is_formula(text):
        return _OPERATORS.sub(lambda match: f" {match[1].translate(_STAND_IN)} ", text)
    return _COMPARED.sub(_compared, _AT_END.sub(_at_end, text))


def _at_end(match: re.Match[str]) -> str:
    word, sign, following = match.groups()
    charged = len(word) == 1 or word == "ab" or not word.isalpha() or (len(word) == 2 and not following)
    return word + sign.translate(_STAND_IN) + (following or "") if sign != "-" or charged else match[0]


def _compared(match: re.Match[str]) -> str:
    first, sign, second = match.groups()
    if first[0].isdigit() or second[0].isdigit() or len(first) == 1 or len(second) == 1:
        return f"{first} {sign.translate(_STAND_IN)} "
    return match[0]


_CODE = re.compile(
    r"""[\\^] | \w@\w | \w_\w | [<>=] | && | \|\| | \(\) | ^!\w | ^~?(?:/[\w.-]+){2,}/?$ | ^\[.*\]$
    | \w\[[\w:,\ ]*\] | ^-?\d*(?:sin|cos|tan|ln|log|exp|sqrt)\b | ^[a-zO]\w*\(\w[\w,\ ]*\)$
    | ^[a-z]{1,12}\ --?[a-zA-Z]\w*$
    | (?<![\w/])(?:[a-z0-9]{1,3}[*+]|\w{1,3}\ [*+]\ )\w{1,3}(?![\w/])
    | (?<!\w)\w{1,3}\ [-/]\ \w{1,3}(?!\w) | \d/[a-z](?!\w) | \)\ ?[-*/+]""",
    re.X,
)


def is_code(text: str) -> bool:
    """Return whether a raw text is a formula, a command, an identifier, a path or an e-mail address.

    >>> [is_code(text) for text in ("a + b", "foo_bar", "ls -l", "AC/DC", "B-52", "C++", "O+")]
    [True, True, True, False, False, False, False]
    """
    return _CODE.search(text) is not None


# Roman numerals

_ROMAN = re.compile(r"(?!l$)(?:xl|l?x{0,3})(?:ix|iv|v?i{0,3})")  # up to lxxxix; "c", "d", "mix" are words
_LETTER_VALUES = {"i": 1, "v": 5, "x": 10, "l": 50}
_TENS = ("", "x", "xx", "xxx", "xl", "l", "lx", "lxx", "lxxx")
_ONES = ("", "i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix")
_NO_NAMES = STOP_WORDS.union(MONTHS, WORD_LISTS["no names"].split())
_ORDINAL = re.compile(
    r" the (second|[1-9][0-9]?(?:st|nd|rd|th))"
    r"(?=[^\w '-]|$| of\b(?! (?:his|her|its|their|these|those|them)\b))"
)
_LAST_WORD = re.compile(r"[^\W_]+$")


def roman_value(word: str) -> str:
    """Return the value of a Roman numeral below 90 as digits, "" for any other word.

    >>> roman_value("xiv"), roman_value("mix"), roman_value("c")
    ('14', '', '')
    """
    if not _ROMAN.fullmatch(word):
        return ""
    values = [_LETTER_VALUES[letter] for letter in word]
    return str(sum(-value if value < after else value for value, after in zip(values, [*values[1:], 0])))


def read_names(text: str) -> str:
    """Write "henry the 8th" as "henry viii".

    The ordinal must end the text or precede punctuation or "of". The word before "the" must be a name, not a
    month, a day of the week, a function word or a verb.

    >>> read_names("elizabeth the second"), read_names("henry the 8th of england"), read_names("may the 4th")
    ('elizabeth ii', 'henry viii of england', 'may the 4th')
    """
    return _ORDINAL.sub(_named, text) if " the " in text else text


def _named(match: re.Match[str]) -> str:
    ordinal = match[1]
    before = _LAST_WORD.search(match.string, max(0, match.start() - 30), match.start())
    name = before[0] if before else ""
    value = 2 if ordinal == "second" else int(ordinal[:-2])
    is_name = len(name) > 1 and name.isalpha() and name not in _NO_NAMES
    if not is_name or name.endswith(("ing", "shed", "ted")) or value > 89:
        return match[0]
    return f" {_TENS[value // 10]}{_ONES[value % 10]}"


# ---- Values -----------------------------------------------------------------------------------------------


class Values(NamedTuple):
    """The values that a normal form states.

    Numbers, dates and Roman numerals count by value: "8th", "viii", "$8" and "8.0" are "8". A number BC ends
    in " bc", a day of a month is "--12-19", and any other word with a digit is unchanged ("f-16").
    """

    numbers: Counter[str]
    names: Counter[str]  # single letters, and words that end in a sign ("c#", "ab-")
    marks: frozenset[str]  # currencies, "%" and "°"
    relations: frozenset[str]  # "<" and ">", also with "="
    units: frozenset[str]  # units in one spelling each, temperature scales, 12-hour or 24-hour clock
    words: frozenset[str]  # all words


_DIGIT = re.compile(r"[0-9]")
_STATES = re.compile(
    r"[0-9+#<>=]|-(?!\S)|\bsecond\b|\b[ivxl]+\b|\b[a-z]\b|\b(?:dollars?|euros?|pounds?|yen|rupees?)\b"
)
_PLAIN = re.compile(
    rf"(-?)[{CURRENCIES}]?(-?)([0-9]+(?:\.[0-9]+)?|[0-9]+/0*[1-9][0-9]*)(%|°[a-z]?|st|nd|rd|th)?"
)
_NONE: frozenset[str] = frozenset()
_LONGEST = 400  # maximum digits of a number compared by value
_MOST = 100  # maximum numbers in two texts that are compared pair by pair
_SENTENCE = 8  # maximum words of a text that is only an answer
_ALIKE = 0.6  # minimum Jaccard index of two sentences that differ only in values
_AGES = ("century", "centuries", "millennium", "millennia", "years")
_JOINTS = ("and", "or", "to", "until", "through")
_BC = re.compile(r"(?<=\w) (?:bce|b c(?: e)?|before christ|before (?:the )?common era)(?!\S)")
_AD = re.compile(r"(\b(?:[0-9]\w*|century|centuries|millennium)) (?:ce|c e|common era|anno domini)(?!\S)")
_AD_FIRST = re.compile(r"(?<!\S)(?<![0-9] )(?<!century )(?:ad|anno domini) ([0-9]+(?:-[0-9]+)?)(?!\S)")
_MARK = re.compile(rf"[{CURRENCIES}%°]")
_CURRENCY_WORDS = {"dollar": "$", "euro": "€", "pound": "£", "yen": "¥", "rupee": "₹"}
_BEFORE_DATES = frozenset(
    ["on", "of", "at", "by", "since", "until", "till", "from", "in", "was", "is", "dated"]
)
_DAY = re.compile(r"(0?[1-9]|[12][0-9]|3[01])(?:st|nd|rd|th)?")
_ISO = re.compile(r"[0-9]{4}-(?:0[1-9]|1[0-2])(?:-(?:0[1-9]|[12][0-9]|3[01]))?")
_ISO_OR_YEAR = re.compile(rf"[0-9]+|{_ISO.pattern}")
_TIME = re.compile("[0-9]{1,2}:[0-9]{2}")
_RANGE = re.compile(r"(-?[0-9.]+)-([0-9.]+)((?: bc)?)")
_MIXED = re.compile(r"[a-z]*([0-9]+(?:\.[0-9]+)?)(?!s$)[a-z]*")


@cache_texts(1 << 15)
def values_of(form: str) -> Values:
    """Return the values that a normal form states.

    >>> sorted(values_of("henry viii in 1509").numbers), sorted(values_of("44 bc").numbers)
    (['1509', '8'], ['44 bc'])
    >>> sorted(values_of("december 19").numbers), sorted(values_of("type ab-").names)
    (['--12-19'], ['ab-'])
    """
    words = _one_bc(form).split()
    if not _STATES.search(form):
        return Values(Counter(), Counter(), _NONE, _NONE, _NONE, frozenset(words))
    numbers = Counter(_numbers(words))
    units = frozenset(_units(words)) if numbers else frozenset()
    marks = {_CURRENCY_WORDS[unit] for unit in units if unit in _CURRENCY_WORDS}
    return Values(
        numbers,
        Counter(word for word in words if _is_name(word)),
        frozenset(marks.union(*(_MARK.findall(word) for word in words if _DIGIT.search(word)))),
        frozenset(word for word in words if word[0] in "<>"),
        units,
        frozenset(words),
    )


def one_era(form: str) -> str:
    """Write the eras of a normal form as "bc" and "ad", after the year.

    >>> one_era("753 bce"), one_era("ad 70"), one_era("5th century ce")
    ('753 bc', '70 ad', '5th century ad')
    """
    if not _DIGIT.search(form):
        return form
    return _AD_FIRST.sub(r"\1 ad", _AD.sub(r"\1 ad", _one_bc(form)))


def _one_bc(form: str) -> str:
    return _BC.sub(" bc", form) if " b" in form else form


def _numbers(words: Sequence[str]) -> Iterator[str]:
    for i, word in enumerate(words):
        if word == "second":
            yield _day(words, i, "2") or "2"
        elif _DIGIT.search(word):
            day, era = _DAY.fullmatch(word), _era(words, i)
            if era and _ISO.fullmatch(word):  # as "14 october 1066 bc"
                yield from [f"-{word[4:]}"] * (len(word) == 10)
                word = word[:4]
            yield (day and not era and _day(words, i, day[1])) or _canonical(word) + era
        elif value := roman_value(word):
            yield value


def _units(words: Sequence[str]) -> Iterator[str]:
    half_day = "am" in words or "pm" in words
    for word in words:
        unit = word.lstrip("-0123456789.")
        if unit in UNITS:
            yield UNITS[unit]
        elif unit.startswith("°"):
            yield unit
        elif unit in ("am", "pm"):
            yield "half day"
        elif _TIME.fullmatch(word) and not half_day:
            yield "day"


def _day(words: Sequence[str], i: int, day: str) -> str:
    """Return "--12-19" for a 19 next to a month (ISO 8601:2000), "" if no month is next to this day."""
    after = i + 2 if words[i + 1 : i + 2] == ["of"] else i + 1
    before = [] if _is_year_of_day(words, i) else words[max(0, i - 1) : i]
    for beside in (words[after : after + 1], before):
        if beside and beside[0] in MONTHS:
            return f"--{MONTHS[beside[0]]:02d}-{int(day):02d}"
    return ""


def _era(words: Sequence[str], i: int) -> str:
    """Find " bc" after word i, after its "century", or after a second number: "6th and 4th bc"."""
    following = [*words[i + 1 : i + 5], "", "", "", ""]
    if following[0] in _JOINTS and _DIGIT.search(following[1]):
        following = following[2:]
    return " bc" if following[0] == "bc" or (following[1] == "bc" and following[0] in _AGES) else ""


def _is_year_of_day(words: Sequence[str], i: int) -> bool:
    """Return whether a day precedes the month before word i: "19 august 14", not "apollo 11 july 20"."""
    at = i - 3 if words[max(0, i - 2) : i - 1] == ["of"] else i - 2
    if at < 0 or not (words[at] == "second" or _DAY.fullmatch(words[at])):
        return False
    return at == 0 or words[at - 1] in _BEFORE_DATES or words[i + 1 : i + 2] in (["ad"], ["ce"])


def _canonical(word: str) -> str:
    """Drop the currency sign, ordinal ending and trailing zeros of a plain number."""
    match = _PLAIN.fullmatch(word) if len(word) < _LONGEST else None
    if not match:
        return word
    minus, inner_minus, number, after = match.groups()
    value = Fraction(number) * (-1 if minus or inner_minus else 1)
    return f"{value}%" if after == "%" else str(value)


def _is_name(word: str) -> bool:
    if len(word) == 1:
        return "a" <= word <= "z"
    return word[-1] in "+#-" and word[-2] not in "<>="


def contradict(first: Values, second: Values, *, finer: bool = False, coarser: bool = False) -> bool:
    """Return whether each of two `Values` has a number, letter, sign or mark that the other lacks.

    Extra values on one side only are not a contradiction. With `finer` (`coarser`), a date of `first` may
    match a coarser (finer) date of `second`: 1988-12-19 is finer than 1988 and 19 December.

    >>> contradict(values_of("henry vii"), values_of("henry viii"))
    True
    >>> contradict(values_of("1988-12-19"), values_of("1988"), finer=True)
    False
    """
    return (
        _names_differ(first, second)
        or _each_has_more(first.marks, second.marks)
        or _each_has_more(first.relations, second.relations)
        or _numbers_differ(first.numbers, second.numbers, finer=finer, coarser=coarser)
    )


def _each_has_more(first: frozenset[str], second: frozenset[str]) -> bool:
    return not (first <= second or second <= first)


def _names_differ(first: Values, second: Values) -> bool:
    extra, missing = first.names - second.names, second.names - first.names
    if _lacks_a_sign(extra, second) or _lacks_a_sign(missing, first):
        return True
    return bool(extra and missing) and not (
        _are_initials(extra, second.words - first.words) or _are_initials(missing, first.words - second.words)
    )


def _are_initials(names: Counter[str], words: frozenset[str]) -> bool:
    """Return whether each letter may abbreviate a word: the f of "john f marsh" for "fitzroy"."""
    first = {word[0] for word in words if len(word) > 2 and word not in STOP_WORDS}
    return all(name in first for name in names)


def _lacks_a_sign(names: Counter[str], values: Values) -> bool:
    """Return whether the values include one of these words without its sign: "ab" and "ab-"."""
    return any(len(name) > 1 and name.rstrip("+#-") in values.words for name in names)


def _numbers_differ(first: Counter[str], second: Counter[str], *, finer: bool, coarser: bool) -> bool:
    if not first or not second:
        return False
    less, more = first - second, second - first
    _take_ranges(less, more)
    _take_ranges(more, less)
    extra, missing = list(less.elements()), list(more.elements())
    if min(len(extra), len(missing)) > _MOST:
        return True
    for a in extra[:]:
        for b in missing:
            same = _reads_as(a, b) or _reads_as(b, a)
            if same or (finer and _is_finer(a, b, missing)) or (coarser and _is_finer(b, a, extra)):
                extra.remove(a)
                missing.remove(b)
                break
    return bool(extra) and bool(missing)


def _take_ranges(numbers: Counter[str], endpoints: Counter[str]) -> None:
    """Remove "1939-1945" and its endpoints if the endpoints include both 1939 and 1945."""
    for number in list(numbers.elements()):
        span = None if _ISO.fullmatch(number) else _RANGE.fullmatch(number)
        ends = [f"{_canonical(end)}{span[3]}" for end in span.groups()[:2]] if span else []
        if ends and all(endpoints[end] >= count for end, count in Counter(ends).items()):
            numbers.subtract([number])
            endpoints.subtract(ends)


def _reads_as(number: str, spelling: str) -> bool:
    if number.endswith("%"):  # 50% is 0.5, and may be written 50
        return _PLAIN.fullmatch(number) is not None and spelling in (
            number[:-1],
            str(Fraction(number[:-1]) / 100),
        )
    if number.startswith("--"):  # 19 December may be written 19 or, of another month, 9/11
        month, day = int(number[2:4]), int(number[5:])
        return spelling in (str(day), str(Fraction(month, day)), str(Fraction(day, month)))
    if number.endswith("s") and number[:-1].isdigit():  # the 60s are the 1960s
        return len(number) == 5 and spelling == number[2:]
    if number.endswith(":00"):
        return spelling == number[:-3]
    mixed = _MIXED.fullmatch(number)  # "b52" is "b 52", "5km" is "5 km"
    return mixed is not None and mixed[0] != mixed[1] and _canonical(mixed[1]) == spelling


def _is_finer(date: str, value: str, context: Sequence[str]) -> bool:
    """Return whether an ISO date is finer than `value`; next to a year BC, a day of a month never matches."""
    if not _ISO.fullmatch(date):
        return False
    day = "" if any(text.endswith(" bc") for text in context) else f"-{date[4:]}"
    return value in (date[:4], date[:7]) or (len(date) == 10 and value == day)


def month_and_day(form: str) -> tuple[str, str] | None:
    """Return the month and the day of a form that has no other words, else None; the day may be "".

    >>> month_and_day("30th of april"), month_and_day("may"), month_and_day("may day")
    (('04', '30'), ('05', ''), None)
    """
    words = [word for word in form.split() if word != "of"]
    months = [MONTHS[word] for word in words if word in MONTHS]
    days = [match[1] for word in words if (match := _DAY.fullmatch("2" if word == "second" else word))]
    if len(months) != 1 or len(words) != 1 + len(days) or len(days) > 1:
        return None
    return f"{months[0]:02d}", days[0].zfill(2) if days else ""


def values_read(forms: Sequence[str], finished: Sequence[bool]) -> list[str]:
    """Return the forms without the last number of each form that was cut off in any sample.

    >>> values_read(["december 194", "1941-12", "henry"], [False, True, False])
    ['december', '1941-12', 'henry']
    """
    cut = {form for form, is_finished in zip(forms, finished, strict=True) if not is_finished}
    parts = [form.rpartition(" ") if form in cut else (form, "", "") for form in forms]
    return [before if values_of(last).numbers else before + blank + last for before, blank, last in parts]


def values_differ(a: str, b: str) -> bool:
    """Return whether two normal forms state different values, and therefore differ in meaning.

    They differ if each has a number, date, amount, era, day of a month, Roman numeral, naming letter or sign
    that the other lacks. Amounts in different units (5 km, 5000 m) are not compared. Two forms that are only
    a date differ if their granularity differs (1988, 1988-12); with other words such dates do not differ.
    Two sentences (more than 8 words each) are compared only if the Jaccard index of their words without
    digits is at least 0.6: otherwise their values may not belong to the answer.

    >>> values_differ("1988-12-19", "1988"), values_differ("3.50", "3.5"), values_differ("20%", "30%")
    (True, False, True)
    >>> values_differ("henry vii", "henry viii"), values_differ("20 km", "12 miles")
    (True, False)
    """
    first, second = values_of(a), values_of(b)
    if first.units and second.units and not first.units & second.units:
        return False
    among_words = not (_ISO_OR_YEAR.fullmatch(a) and _ISO_OR_YEAR.fullmatch(b))
    return contradict(first, second, finer=among_words, coarser=among_words) and not _say_other_things(a, b)


def _say_other_things(a: str, b: str) -> bool:
    """Return whether two texts are sentences with few words in common (Jaccard index, without digits)."""
    texts = a.split(), b.split()
    if min(map(len, texts)) <= _SENTENCE:
        return False
    first, second = ({word for word in words if not _DIGIT.search(word)} for words in texts)
    return len(first & second) < _ALIKE * len(first | second)
