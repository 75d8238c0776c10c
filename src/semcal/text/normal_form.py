"""The normal form of an answer (spec 5.3), which clustering and grading compare.

Unicode is folded, numbers and dates are written in one way, then English articles and punctuation are dropped
as in SQuAD's evaluation, except inside numerals.

Dates become ISO 8601 at their own granularity, without the time. A date needs a day, a month and a year, or
a month and a year. All else stays text: a bare month, a day without a year, years BC, ambiguous figures
(03/04/1988), and the end of a range or list whose beginning shares its month or year ("14 and 15 August
1945").
"""

from __future__ import annotations

import re
import unicodedata
from calendar import monthrange
from collections.abc import Sequence

from semcal.text import cache_texts
from semcal.text.numbers import (
    CURRENCIES,
    MONTHS,
    NUMBER_WORDS,
    OTHER_MONTHS,
    WORD_LISTS,
    any_word,
    are_groups,
    one_form,
    read_numbers,
    signed,
)
from semcal.text.values import KEPT, is_formula, keep_signs, read_names, without_articles

_MONTH_NAMES = "|".join(sorted(MONTHS, key=len, reverse=True))
_ANY_MONTH = re.compile(rf"\b{any_word(MONTHS)}\b")
_ANY_YEAR = re.compile("[12][0-9]{3}")

_MONTH = rf"(?P<month>{_MONTH_NAMES})\b\.?"
_BEFORE = r"(?<![\w/.:-])"
_BEFORE_IT = (
    r"(?<![\w/.:-].)"  # as _BEFORE, but after the first character: the search can look for that character
)
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
    rf"(?P<first>[0-9]{_BEFORE_IT}[0-9]?)(?P<sign>[/.-])(?P<second>[0-9]{{1,2}})(?P=sign){_YEAR}"
)
_YEAR_FIRST = re.compile(
    rf"(?P<year>[12]{_BEFORE_IT}[0-9]{{3}})(?P<sign>[/.])(?P<month>[0-9]{{1,2}})(?P=sign)(?P<day>[0-9]{{1,2}}){_AFTER}"
)

# Texts before a date that ends a range or list.
_A_DAY = r"(?<![0-9])(?<![0-9]{4}-)(?<![0-9]{4}-[0-9]{2}-)[0-3]?[0-9](?:st|nd|rd|th)?"
_JOINT = r"(?: ?[-/,&] ?| (?:and|or|to|until|till|through|thru) | )(?:(?:early|mid|late|the)[ -])?$"
_MONTH_BEFORE = re.compile(rf"\b(?:{_MONTH_NAMES})\b\.?(?:\[[0-9]+\])?(?: (?:the )?{_A_DAY})?{_JOINT}")
_DAY_BEFORE = re.compile(rf"{_A_DAY}(?: of)?{_JOINT}")

# Without a day, the name of a month counts only at the beginning or after one of these words: neither
# "Theresa May (2016)" nor "Red October (1990)" is a date. "of" counts only after words such as "as" or "end".
_LEADS = frozenset(WORD_LISTS["leads"].split())
_OF_LEADS = frozenset({"as", "beginning", "start", "middle", "end", "month", "part", "half"})
_NEARBY = 60  # characters before a date that are searched
_WORD = re.compile(r"[^\W_]+")


def read_dates(text: str) -> str:
    """Write the dates of a folded text as YYYY-MM-DD or YYYY-MM, without a day of the week before them.

    The text is in lower case, with single blanks, "-" for every dash and numbers in digits.

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
        text = _YEAR_MONTH_DAY.sub(_iso_date, text)
        text = _MONTH_YEAR.sub(_month_and_year, text)
    return _YEAR_FIRST.sub(_iso_date, _FIGURES.sub(_in_figures, text))


def _leads_to_month(before: str) -> bool:
    """Return whether a month and a year may follow this text; articles and punctuation are ignored."""
    words = [word for word in _WORD.findall(before[-_NEARBY:]) if word not in _ARTICLES]
    if not words:
        return True
    return words[-1] in _LEADS or (words[-1] == "of" and words[-2:-1] != [] and words[-2] in _OF_LEADS)


def _month_first(match: re.Match[str]) -> str:
    return match[0] if _MONTH_BEFORE.search(_before(match)) else _iso_date(match)


def _day_first(match: re.Match[str]) -> str:
    return match[0] if _is_borrowed(match) else _iso_date(match)


def _iso_date(match: re.Match[str]) -> str:
    name, day = match["month"], match["day"]
    month = MONTHS.get(name) or int(name)
    return _iso(int(match["year"]), month, 2 if day == "second" else int(day.rstrip("stndrh"))) or match[0]


def _month_and_year(match: re.Match[str]) -> str:
    """Rewrite a month and a year, unless the month ends a range, has a day, or may be part of a name."""
    if _is_borrowed(match) or not _leads_to_month(_before(match)):
        return match[0]
    return f"{match['year']}-{MONTHS[match['month']]:02d}"


def _in_figures(match: re.Match[str]) -> str:
    """Rewrite 19/12/1988 and 12/19/1988, but no date in which either number may be the month."""
    first, second = int(match["first"]), int(match["second"])
    month, day = (second, first) if first > 12 else (first, second)
    if day <= 12 and day != month:
        return match[0]
    return _iso(int(match["year"]), month, day) or match[0]


def _is_borrowed(match: re.Match[str]) -> bool:
    before = _before(match)
    return bool(_MONTH_BEFORE.search(before) or _DAY_BEFORE.search(before))


def _before(match: re.Match[str]) -> str:
    return match.string[max(0, match.start() - _NEARBY) : match.start()]


def _iso(year: int, month: int, day: int) -> str | None:
    valid = 1 <= month <= 12 and 1 <= day <= monthrange(year, month)[1]
    return f"{year}-{month:02d}-{day:02d}" if valid else None


TEXT_RULES = 6
"""Version of the rules for normal forms, values and grades: part of the names of stored blocks."""

_ARTICLES = frozenset({"a", "an", "the"})
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63"
_QUOTES = "\u2018\u2019\u201a\u201b\u2032\u02bc\u02b9\u00b4"
_UNIFIED = {ord(c): "-" for c in _DASHES} | {ord(c): "'" for c in _QUOTES} | {0x2044: "/", 0x2215: "/"}


class _Dropped(dict[int, str | None]):
    """Characters to drop (None): ASCII punctuation as in SQuAD, Unicode punctuation and format characters."""

    def __missing__(self, code: int) -> str | None:
        character = chr(code)
        drop = unicodedata.category(character)[0] == "P" or unicodedata.category(character) == "Cf"
        self[code] = None if drop or character in "$+<=>^`|~" else character
        return self[code]


_DROPPED = _Dropped()
_NUMBER = re.compile(rf"[0-9]|\b{any_word(NUMBER_WORDS)}\b")
_PLAIN_LETTERS = str.maketrans(
    {"ø": "o", "ł": "l", "đ": "d", "ħ": "h", "ŧ": "t", "ı": "i", "æ": "ae", "œ": "oe"}
)
_DIACRITICS = re.compile("(?<=[a-z])[\u0300-\u036f]+")
_SUPERSCRIPT = re.compile("(?<=[0-9])([\u207a\u207b]?[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+)(?!\u2044)")
_FRACTION_SLASH = re.compile(r"([0-9]*)([0-9])\u2044([0-9]{1,9})(?![0-9])")
_DASH = "[\u2012-\u2015-]"
_YEARS = re.compile(
    rf"([12](?<![\w.,/-].)[0-9])([0-9]{{2}})( ?{_DASH} ?)([0-9]{{2}})(?![\w/%]|[.,][0-9]|{_DASH}[0-9])"
)
_SPACED_RANGE = re.compile(r"(?<![\w./:-])([0-9]+(?:\.[0-9]+)?) - (?=[0-9]+(?:\.[0-9]+)?(?![\w/:-]|\.[0-9]))")
_SIGN = re.compile(r"[+#<>=*^]|[-/](?!\w)|&&|\|\|")
_CODE_SIGN = re.compile(r"[@_\\/!]")
_CODE = re.compile(r"!\w+|[\w.+-]+@[\w.-]+|[A-Za-z]:\\\S*|~?(?:/[\w.-]+){2,}/?|[A-Za-z]\w*_\w+(?:\(\))?")
_MEGA = re.compile(r"(?:(?<=[0-9])\s?|(?<=[0-9] )|^)M(W|V|J|Pa)\b(?<!^MV)(?<!^MJ)(?<!^MPa)")
_UNITS_OF_M = {"W": "watt", "V": "volt", "J": "joule", "Pa": "pascal"}
_UNSURE_MONTHS = {"mars", "mai", "mei", "marco", "mayo", "maart", "augustus"}
_OTHER_MONTH = any_word(OTHER_MONTHS.keys() - _UNSURE_MONTHS)
_OTHER_DATE = re.compile(
    rf"(?<=[0-9])(?<![0-9]{{3}})(?:\.|er|º)? ?(?:de |di )?(?:({_OTHER_MONTH})\b\.?(?: del? (?=[0-9]))? ?"
    rf"|({any_word(_UNSURE_MONTHS)})(?=$|[^\w ]|(?: del?)? [12][0-9])(?: del? )?)"
    rf"|(?<!\w)({any_word(OTHER_MONTHS.keys() - _UNSURE_MONTHS - MONTHS.keys())}) (?:del? |do )?"
    r"(?=[12][0-9]{3}\b)"
)
_NUMERAL = re.compile(
    rf"((?=[-+{CURRENCIES}.0-9])(?:(?<!\w)-|(?<=[^\W\d_])\+)?(?:[{CURRENCIES}] ?-?)?"
    r"(?:[0-9]+|(?<!\w)\.[0-9]+)(?:[.:/+,-][0-9]+|\^-?[0-9]+)*(?:%|°[^\W\d_]?|[^\W\d_]*))"
)
_BARE_POINT = re.compile(r"(?<![0-9])(?=\.[0-9])")
_GENITIVE = re.compile(r"'[^\W\d_]")
_LETTER_AND_HYPHEN = re.compile(r"(?<!\w)[^\W\d_]-$")


def normal_form(text: str) -> str:
    """Return the form in which different spellings of one answer are equal.

    The result has lower-case words with single blanks, and is empty only if `text` is empty or blank. The
    steps are, in this order: fold NFKC and case; unify dashes and quotes; write number words as digits and
    dates in ISO 8601; drop English articles and punctuation. Punctuation stays inside numbers, ranges,
    fractions and times, and so do the signs of a number, a comparison or the end of a word ("-7", "$5",
    "20%", "5 < 3", "C#"). Latin letters lose their diacritics. If no word would be left ("The", "*"), the
    result is the folded text. The function is idempotent. Source of the rules for articles and punctuation:
    Rajpurkar et al., SQuAD: 100,000+ questions for machine comprehension of text, 2016 (the evaluation
    script's `normalize_answer`).

    >>> normal_form("The Twenty-First Century"), normal_form("3.5 million"), normal_form("4 July, 1776")
    ('21st century', '3500000', '1776-07-04')
    >>> normal_form("1939–1945"), normal_form("Theresa May"), normal_form("−7"), normal_form("A+")
    ('1939-1945', 'theresa may', '-7', 'a+')
    """
    if _CODE_SIGN.search(text) and (code := _whole_code(text)):
        return code
    text = _MEGA.sub(_mega, text) if "M" in text else text
    folded = _folded(text.replace("{", "").replace("}", "") if "^{" in text else text)
    while (form := _reduced(folded)) != folded:  # dropped punctuation may join numbers
        if form.isascii() and form.replace(" ", "").isalpha() and not _NUMBER.search(form):
            break  # lower-case words without a number are final
        folded = _folded(form)
    return form


_CODES = re.compile(
    r"\b(?:(?<!dress )(?<!genetic )codes?\b(?! name)|versions?|identifiers?|ids?|hash|isbn"
    r"|(?:serial|part|model) numbers?|passwords?|e-?mails?|urls?|file ?(?:name|path)s?|license plates?)\b",
    re.IGNORECASE,
)
_MAY_BE_CODE = re.compile(r"\S*[0-9._@\\/]\S*")
_CODE_LABEL = re.compile(r"(?=[A-Za-z]+[0-9])[A-Za-z0-9]{4,}|\S+@\S+|\S*[\\_]\S*")


_VERSION = re.compile(r"^[vV](?=\d+\.\d)")


def letter_form(text: str) -> str:
    """Return a text in Unicode NFC without outer blanks.

    >>> letter_form(" Ab\u0065\u0301 ") == "Ab\u00e9"
    True
    """
    return unicodedata.normalize("NFC", text).strip()


def code_form(text: str) -> str:
    """Return the form of a code, which keeps case, dots and signs.

    Outer quotes, a final period, "()", a leading "+" or "#", and the "v" of a version are removed.

    >>> code_form(" `ab12`. "), code_form("AB12"), code_form("v1.10")
    ('ab12', 'AB12', '1.10')
    """
    bare = letter_form(text).strip("\"'`").rstrip(".").strip("\"'`").lstrip("+#").removesuffix("()")
    return " ".join(_VERSION.sub("", bare).split())


def asks_for_code(question: str, labels: Sequence[str] = ()) -> bool:
    """Return whether the answer is a code: the question asks for one, or all labels are surely codes.

    If the question asks for a code, a label that cannot be a code still makes the result False.

    >>> asks_for_code("Which code is printed?", ["1.10"]), asks_for_code("Which code?", ["King James"])
    (True, False)
    >>> asks_for_code("Which one?", ["ab12", "cd34"]), asks_for_code("Which one?", ["F-16"])
    (True, False)
    """
    if _names_code(question):
        return all(map(_MAY_BE_CODE.fullmatch, labels))
    return bool(labels) and all(map(_CODE_LABEL.fullmatch, labels))


@cache_texts(1 << 12)
def _names_code(question: str) -> bool:
    return _CODES.search(question) is not None


def _whole_code(text: str) -> str:
    """Return the form of a path, identifier, negated name or e-mail address; "" for any other text."""
    code = code_form(text)
    if not _CODE.fullmatch(code):
        return ""
    return code.casefold().removesuffix("()")


def _mega(match: re.Match[str]) -> str:
    """Write out mega units, because case folding would make "MW" equal to "mW"."""
    return f" mega{_UNITS_OF_M[match[1]]}"


def _english_month(match: re.Match[str]) -> str:
    after_day, unsure, before_year = match.groups()
    return f"{OTHER_MONTHS[before_year]} " if before_year else f" {OTHER_MONTHS[after_day or unsure]} "


def _reduced(folded: str) -> str:
    bare = _with_numerals(folded) if _NUMBER.search(folded) else _bare(folded)
    words = bare.split()
    if not _ARTICLES.isdisjoint(words):
        words = without_articles(words)
    # only articles and punctuation: "a" for "A.", "a+" for "A+"
    return " ".join(words) or folded.strip(" .,;:!?'\"()[]") or folded


def _bare(text: str) -> str:
    """Drop punctuation, except signs that are part of the answer."""
    if _SIGN.search(text):
        return keep_signs(text).translate(_DROPPED).translate(KEPT)
    return text.translate(_DROPPED)


def _folded(text: str) -> str:
    """Remove case and compatibility forms, and unify blanks, dashes and quotes."""
    if not text.isascii():
        text = _unicode_folded(text)
    return " ".join(text.lower().split())


def _unicode_folded(text: str) -> str:
    """Fold case and compatibility forms (Unicode D146); write fractions, dashes and quotes in ASCII."""
    text = _SUPERSCRIPT.sub(r"^\1", text)
    text = unicodedata.normalize("NFKD", unicodedata.normalize("NFD", text).casefold()).casefold()
    text = _DIACRITICS.sub("", text.translate(_PLAIN_LETTERS))
    if text.isascii():
        return text
    text = unicodedata.normalize("NFKC", text).replace(" \u0301", "'")
    if "\u2044" in text:
        text = _FRACTION_SLASH.sub(_fraction, text)
    return _YEARS.sub(_full_years, text).translate(_UNIFIED)


def _fraction(match: re.Match[str]) -> str:
    """Split "21⁄2", which NFKC makes of "2½", if one Unicode character can be the fraction."""
    integer, numerator, denominator = match.groups()
    mixed = integer and 0 < int(numerator) < int(denominator) <= 10
    return f"{integer}{' ' if mixed else ''}{numerator}/{denominator}"


def _full_years(match: re.Match[str]) -> str:
    """Complete "1939–45", but not "2008-09" with a bare hyphen if 09 may be a month in ISO form."""
    century, first, dash, last = match.groups()
    may_be_month = dash == "-" and 1 <= int(last) <= 12 and _leads_to_month(match.string[: match.start()])
    if int(last) <= int(first) or may_be_month:
        return match[0]
    return f"{century}{first}-{century}{last}"


def _with_numerals(folded: str) -> str:
    """Write numbers and dates in one way, and drop the punctuation between them."""
    if "-" in folded:
        folded = _YEARS.sub(_full_years, folded)
    text = read_numbers(folded)
    if _OTHER_DATE.search(text):
        text = _OTHER_DATE.sub(_english_month, text)
    text = signed(read_names(read_dates(text)))
    if " - " in text and not is_formula(text):
        text = _SPACED_RANGE.sub(r"\1-", text)
    signs = _SIGN.search(text)
    parts = _NUMERAL.split(keep_signs(text) if signs else text)
    gaps = [*map(_between, parts[::2])]
    for i in range(1, len(gaps) - 1):
        if (
            gaps[i].isspace()
            and parts[2 * i] != " "
            and are_groups(parts[2 * i - 2], parts[2 * i - 1], parts[2 * i + 1])
        ):
            gaps[i] = " , "  # "100, 200" is not 100200
    parts[::2] = gaps
    parts[1::2] = map(_unspaced, parts[1::2])
    words = one_form("".join(parts))
    return words.translate(KEPT) if signs else words


def _unspaced(numeral: str) -> str:
    """Return a numeral without blanks inside, with its minus first and a digit before its point."""
    numeral = numeral.replace(" ", "")
    if numeral[1:2] == "-" and numeral[0] in CURRENCIES:
        numeral = f"-{numeral[0]}{numeral[2:]}"
    return _BARE_POINT.sub("0", numeral) if "." in numeral else numeral


def _between(text: str) -> str:
    """Drop the punctuation of the text between numerals, and separate the text from them by blanks."""
    if not text:
        return ""
    bare = text.translate(_DROPPED)
    if _DROPPED[ord(text[0])] is None and not _GENITIVE.match(text):
        bare = f" {bare}"  # "26-year-old", "6'2"; but "1960's" is "1960s"
    if _DROPPED[ord(text[-1])] is None and not _LETTER_AND_HYPHEN.search(text):
        bare = f"{bare} "  # "covid-19"; but "f-16" is "f16"
    return bare
