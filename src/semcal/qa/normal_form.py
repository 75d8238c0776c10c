"""The normal form of an answer (spec 5.3): what clustering and grading compare.

Unicode is folded, numbers and dates are written in one way, then English articles and punctuation go as
in SQuAD's evaluation, except inside numerals.
"""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal

from semcal.qa.dates import leads_to_month, read_dates
from semcal.qa.numbers import NUMBER_WORDS, any_word, read_numbers

__all__ = ["normal_form", "text_form", "values_differ"]

_ARTICLES = frozenset({"a", "an", "the"})
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63"
_QUOTES = "\u2018\u2019\u201a\u201b\u2032\u02bc\u02b9\u00b4"
_UNIFIED = {ord(c): "-" for c in _DASHES} | {ord(c): "'" for c in _QUOTES} | {0x2044: "/", 0x2215: "/"}


class _Dropped(dict[int, str | None]):
    """Characters to drop (None): ASCII punctuation as in SQuAD, what Unicode calls punctuation or format."""

    def __missing__(self, code: int) -> str | None:
        character = chr(code)
        drop = unicodedata.category(character)[0] == "P" or unicodedata.category(character) == "Cf"
        self[code] = None if drop or character in "$+<=>^`|~" else character
        return self[code]


_DROPPED = _Dropped()
_NUMBER = re.compile(rf"[0-9]|\b{any_word(NUMBER_WORDS)}\b")
_FRACTION_SLASH = re.compile(r"([0-9]*)([0-9])\u2044([0-9]{1,9})(?![0-9])")
_DASH = "[\u2012-\u2015-]"
_YEARS = re.compile(
    rf"([12](?<![\w.,/-].)[0-9])([0-9]{{2}})( ?{_DASH} ?)([0-9]{{2}})(?![\w/%]|[.,][0-9]|{_DASH}[0-9])"
)
_SPACED_RANGE = re.compile(r"(?<![\w./:-])([0-9]+(?:\.[0-9]+)?) - (?=[0-9]+(?:\.[0-9]+)?(?![\w/:-]|\.[0-9]))")
_NUMERAL = re.compile(
    r"((?=[-+$.0-9])(?:(?<!\w)-|(?<=[^\W\d_])\+)?(?:\$ ?)?"
    r"(?:[0-9]+|(?<!\w)\.[0-9]+)(?:[.:/+-][0-9]+)*(?:%|[^\W\d_]*))"
)
_BARE_POINT = re.compile(r"(?<![0-9])(?=\.[0-9])")
_GENITIVE = re.compile(r"'[^\W\d_]")
_LETTER_AND_HYPHEN = re.compile(r"(?<!\w)[^\W\d_]-$")
_DATE = re.compile(r"[0-9]{4}-(?:0[1-9]|1[0-2])(?:-(?:0[1-9]|[12][0-9]|3[01]))?")
_PLAIN = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?)(?:st|nd|rd|th)?")


def normal_form(text: str) -> str:
    """Return the form under which two writings of one answer are equal.

    Parameters
    ----------
    text : str
        An answer, whole; it is not cut.

    Returns
    -------
    str
        Lower-case words with single blanks. Empty only if `text` is empty or blank.

    Notes
    -----
    In this order: NFKC and case folding; dashes and quotes unified; number words to digits, dates to ISO
    8601 at the granularity that they state; English articles and punctuation dropped, except inside
    numbers, ranges, fractions and times, a leading minus, "$" before and "%" after a number. Where nothing
    would be left ("A+", "The", "*") the folded text stays. Applying it twice changes nothing.

    References
    ----------
    Rajpurkar et al., SQuAD: 100,000+ questions for machine comprehension of text, 2016 (the evaluation
    script's `normalize_answer`).

    Examples
    --------
    >>> normal_form("The Twenty-First Century"), normal_form("3.5 million"), normal_form("4 July, 1776")
    ('21st century', '3500000', '1776-07-04')
    >>> normal_form("1939–1945"), normal_form("Theresa May"), normal_form("−7"), normal_form("A+")
    ('1939-1945', 'theresa may', '-7', 'a+')
    """
    folded = _folded(text)
    while (form := _reduced(folded)) != folded:  # what dropped punctuation brought together is read again
        if form.isascii() and form.replace(" ", "").isalpha() and not _NUMBER.search(form):
            break  # lower-case words without a number: nothing is left to do
        folded = _folded(form)
    return form


def text_form(text: str) -> str:
    """Return what the normal form would be if no number and no date were read: SQuAD's normalisation.

    Parameters
    ----------
    text : str
        An answer, whole.

    Returns
    -------
    str
        Lower-case words without English articles and punctuation, which goes inside numbers as well. Empty
        only if `text` is empty or blank.

    References
    ----------
    As `normal_form`.

    Examples
    --------
    >>> text_form("The  Twenty-First Century"), text_form("May 3, 1820"), text_form("-3.5")
    ('twentyfirst century', 'may 3 1820', '35')
    """
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    words = [word for word in folded.translate(_DROPPED).split() if word not in _ARTICLES]
    return " ".join(words) or _remainder(folded)


def _reduced(folded: str) -> str:
    """Apply every rule once to a folded text."""
    bare = _with_numerals(folded) if _NUMBER.search(folded) else folded.translate(_DROPPED)
    words = bare.split()
    if not _ARTICLES.isdisjoint(words):
        words = [word for word in words if word not in _ARTICLES]
    return " ".join(words) or _remainder(folded)


def _remainder(folded: str) -> str:
    """What stands for a text that is all articles and punctuation: "a" for "A.", "a+" for "A+"."""
    return folded.strip(" .,;:!?'\"()[]") or folded


def _folded(text: str) -> str:
    """Without case and compatibility forms, with single blanks, one kind of dash and one of quote."""
    if not text.isascii():
        text = _unicode_folded(text)
    return " ".join(text.lower().split())


def _unicode_folded(text: str) -> str:
    """Compatibility caseless folding (Unicode D146); fractions, dashes and quotes in ASCII."""
    text = unicodedata.normalize("NFKD", unicodedata.normalize("NFD", text).casefold()).casefold()
    text = unicodedata.normalize("NFKC", text).replace(" \u0301", "'")
    if "\u2044" in text:
        text = _FRACTION_SLASH.sub(_fraction, text)
    return _YEARS.sub(_full_years, text).translate(_UNIFIED)


def _fraction(found: re.Match[str]) -> str:
    """NFKC makes "21⁄2" of "2½": the last digit is a numerator of its own if one character can hold it."""
    whole, numerator, denominator = found.groups()
    apart = whole and 0 < int(numerator) < int(denominator) <= 10
    return f"{whole}{' ' if apart else ''}{numerator}/{denominator}"


def _full_years(found: re.Match[str]) -> str:
    """Complete "1939–45"; "2008-09" with a bare hyphen stays where it may be a month in ISO form."""
    century, first, dash, last = found.groups()
    may_be_month = dash == "-" and 1 <= int(last) <= 12 and leads_to_month(found.string[: found.start()])
    if int(last) <= int(first) or may_be_month:
        return found[0]
    return f"{century}{first}-{century}{last}"


def _with_numerals(folded: str) -> str:
    """Write numbers and dates in one way, and drop the punctuation between them."""
    if "-" in folded:
        folded = _YEARS.sub(_full_years, folded)
    text = read_dates(read_numbers(folded))
    parts = _NUMERAL.split(_SPACED_RANGE.sub(r"\1-", text) if " - " in text else text)
    parts[::2] = map(_between, parts[::2])
    parts[1::2] = [_unspaced(numeral) for numeral in parts[1::2]]
    return "".join(parts)


def _unspaced(numeral: str) -> str:
    """A numeral without blanks inside, and with a digit before its point."""
    return _BARE_POINT.sub("0", numeral.replace(" ", "")) if "." in numeral else numeral.replace(" ", "")


def _between(text: str) -> str:
    """Drop the punctuation of what stands beside numerals, which it leaves set apart from them."""
    if not text:
        return ""
    bare = text.translate(_DROPPED)
    if _DROPPED[ord(text[0])] is None and not _GENITIVE.match(text):
        bare = f" {bare}"  # "26-year-old", "6'2"; but "1960's" is "1960s"
    if _DROPPED[ord(text[-1])] is None and not _LETTER_AND_HYPHEN.search(text):
        bare = f"{bare} "  # "covid-19"; but "f-16" is "f16"
    return bare


def values_differ(a: str, b: str) -> bool:
    """Say whether two normal forms are both wholly a date or a plain number, and different ones.

    Plain numbers are whole numbers, decimals and ordinals, compared by value ("3.50" is 3.5, "3rd" is 3);
    numbers with a unit, a currency or a per cent sign, fractions and ranges are not plain, and nothing is
    said about them. A date differs from one of another granularity: 1988 is not 1988-12.

    Parameters
    ----------
    a, b : str
        Normal forms.

    Examples
    --------
    >>> values_differ("1988-12-19", "1988"), values_differ("3.50", "3.5"), values_differ("20%", "30%")
    (True, False, False)
    """
    first, second = _value(a), _value(b)
    return first is not None and second is not None and first != second


def _value(form: str) -> str | Decimal | None:
    """The date or number that a normal form is, if it is nothing else."""
    if _DATE.fullmatch(form):
        return form
    found = _PLAIN.fullmatch(form)
    return Decimal(found[1]) if found else None
