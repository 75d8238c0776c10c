"""One answer as the rules read it: its text without markup and hedges, and its words in one spelling.

Markup, citations and hedges are removed; units, abbreviations and denials get one spelling. Each answer is
read once (`wording_of`).
"""

from __future__ import annotations

import re
import unicodedata
from functools import cached_property, lru_cache
from typing import Any

from semcal.meaning.amounts import AMOUNT, BOUND, amount_of, single_value, unit_symbol, with_figures
from semcal.meaning.answer import is_refusal
from semcal.meaning.spelling import stem_of
from semcal.meaning.words import any_listed, listed_words, related_words, word_groups, word_pairs
from semcal.text import cache_texts
from semcal.text.normal_form import normal_form
from semcal.text.values import is_code, one_era, roman_value

LONGEST = 400
"""Maximum characters of an answer that the rules read."""

FUNCTION, _ARTICLES, NEGATORS, TITLES, _UNOPPOSED, _AUXILIARIES = map(
    listed_words, ("function", "articles", "negators", "titles", "unopposed", "auxiliaries")
)
_PARTICLES = frozenset(["de", "von", "van"])
_CONTENTLESS = FUNCTION | NEGATORS
_PREFIXES = ("un", "in", "im", "ir", "il", "non", "dis", "a")
_PRIVATIVE = re.compile(r"a\w{4,}(?:ic|ical|al|ous|ive|ism|ist|ally)")
_OPPOSITES = related_words(word_groups("opposites"))
_ONE_NAME = {name: names[0] for names in word_groups("one name") for name in names}
_EXPANDED, _ALONE = word_pairs("expanded"), word_pairs("alone")
_EXPAND = re.compile(rf"(?<!\S)(?:{'|'.join(sorted(map(re.escape, _EXPANDED), key=len)[::-1])})(?!\S)")


def _expanded(text: str) -> str:
    return _EXPAND.sub(lambda match: _EXPANDED[match[0]], text)


def content_of(name: str) -> list[str]:
    words = _expanded(name).split()
    words = [word for word in words if word not in _ARTICLES] or words
    words = [word for word in words if word not in _CONTENTLESS] or words
    return [_ONE_NAME.get(word, word) for word in words]


@lru_cache(maxsize=1 << 14)
def rivals_of(word: str) -> frozenset[str]:
    """Return the opposites of a word: listed ones, and words that differ by a negative prefix."""
    found = _OPPOSITES.get(word) or _OPPOSITES.get(stem_of(word), frozenset())
    if len(word) > 3:
        longer = [prefix + word for prefix in _PREFIXES if prefix != "a" or _PRIVATIVE.fullmatch(f"a{word}")]
        found |= frozenset(longer) - _UNOPPOSED
    shorter = [word.removeprefix(prefix) for prefix in _PREFIXES if word.startswith(prefix)]
    shorter = [rest for rest in shorter if f"a{rest}" != word or _PRIVATIVE.fullmatch(word)]
    return found | {rest for rest in shorter if len(rest) > 3 and word not in _UNOPPOSED}


_ALIKE = str.maketrans("’‘“”„−–—‐‑×⋅·", '\'\'"""-----***')
_PICTURES = str.maketrans({"👍": " yes ", "👎": " no ", "♭": " flat", "♯": "#"})
_WRAPPED = re.compile(
    r'\{\s*"\w+"\s*:\s*"?([^"{}]*)"?\s*\}|\$+([^$]+)\$+|\\boxed\{([^{}]*)\}|\\\(([^()]*)\\\)'
)
_LATEX_TEXT = re.compile(r"\\(?:text|mathrm|mathbf|textbf)\{([^{}]*)\}")
_INDEX = re.compile(r"(?<=[A-Za-z)])_\{?(\d+)\}?")
_INDEXED = re.compile(r"(?:[A-Z][a-z]?(?:_\{?\d+\}?)?)+")
_ITEM = re.compile(r"\s*(?:[-*•]|\d{1,2}[.)])\s+(\S.*)")
_FRACTION = re.compile(r"\\[dt]?frac\{(\w+)\}\{(\w+)\}")
_EMPHASIS = re.compile(r"(?<!\w)(\*\*?|`{1,3}|__?|<(\w{1,10})>)(?=\S)(.+?)(?<=\S)(?:\1|</\2>)(?!\w)")
_LINK = re.compile(r"\[([^\[\]]{1,200})\]\(\S{1,300}\)|(?<=\S) ?\(?https?://\S+")
_CITED = re.compile(r"(?<=\w)\s*\[\d{1,2}\](?=[\s.,;]|$)|(?:(?<=\b[12]\d{3})|(?<=[^\W\d_]{4}))[¹²³](?!\w)")
_EDGES = re.compile(r"^[\"'(<\s]+(?=[\w$€£-])|(?<=[\w)%°$€£])[\"'.!>;\s]+$|(?<=^\w)[).]+$")
_HEDGES = re.compile(any_listed("leading hedges"), re.I)
_LAST_HEDGE = re.compile(
    r",?\ (?:i (?:think|believe|guess)|as far as i know|if i remember correctly|inc|ltd|llc|plc|gmbh|corp)$",
    re.I,
)
_UNIT = re.compile(r"(?<=\d)(?:\s?degrees?(?=\s[CFcf]))?[\s-]?(°\s?[CF]\b|[^\W\d_][\w²/]*)")
_MARKS = re.compile("[\u0300-\u036f]")
_DOTTED = re.compile(r"\b(?:[a-z]\.){2,}")
NOT = re.compile(r"\b(ca|wo)n't\b|n't\b|(?<=\bcan)not\b")
_NOT_OTHER = re.compile(
    r"(?<=\w)(?:, (?:and |but )?not| (?:and|but) not|,? (?:rather than|instead of)) [^,.;]+$"
    r"|^not [^,.;]+,? but (?!also)"
)
_BEFORE_NUMBER = re.compile(
    r"\b(?:(over|above)|(under|below)|(ca?\.?)|(max(?:imum)?\.?)|(min(?:imum)?\.?)|(no\.?)) (?=[$€£]?\d)"
    r"|#(?=\d)"
)
_READ_AS = ("more than ", "less than ", "about ", "at most ", "at least ", "number ")
_CERTAIN = re.compile(r" without (?:a |any )?(?:doubt|hesitation|delay|exception|difficulty|problems?)\b")
_FREE = re.compile(r"\b([a-z]{3,})-free\b")
_IN_YEAR = re.compile(r"\bin the year (?=\d)")
_AD = re.compile(r"(?:(?<=\d)|(?<=century)) ad\b")
_SEASON = re.compile(r"\b(?:(spring|summer|winter)|fall|autumn)(?: of)?(?= [12]\d{3}\b)")
_SAME_YEAR = re.compile(r"(?:from )?([a-z]+) ([12]\d{3})( (?:to|until|and) [a-z]+ \2)$")
_SPLIT = re.compile(r"[^\w%°$€£¥²/:.+-]|[.:](?!\d)|(?<!\d)[/-](?!\d)|(?<=°)(?=[nsew]\b)")
_ASIDE = re.compile(r'"[^"]*"|\([^)]*\)')
_SHARP = re.compile(r"\b([A-G])[- ]sharp\b")
_WORD = re.compile(r"[^\W\d_]\w*")
_LETTER = re.compile(r"\b[A-HJ-Z]\b(?![.'’])")
BE = re.compile(r"\b(?:is|are|was|were|been|being|wurde|est|fue)\b")
_NO_NAME = re.compile(r"[ivxl]+|\w*(?:four|fif|six|seven|eigh|nin|ten|teen|tie)th|first|second|third")
_LIST = re.compile(r",\s*(?:(?:and|or|&)\s+)?|;\s*|(\s+(?:and|&|or|und|et|y)\s+)")

_ORDINAL = re.compile(r"^(\d+)(?:st|nd|rd|th)$")
_REFUSAL = re.compile(any_listed("other refusals"), re.I)


class Wording:
    """One answer: its original text, the text without markup and hedges, and its words in one spelling."""

    def __init__(self, text: str) -> None:
        self.whole = len(text) <= LONGEST
        code = plain(text[:LONGEST]).translate(_ALIKE)
        code = code if code.isascii() else code.translate(_PICTURES).strip()
        self.code = _SHARP.sub(r"\1#", _EDGES.sub("", code))
        self.raw = _without_hedges(self.code)
        self.figures = with_figures(self.raw)
        form = _form(self.figures)
        spaced = " ".join(_SPLIT.sub(" ", form).split())
        words = _expanded(_ALONE.get(spaced, spaced)).split()
        spelled = [(len(word) > 1 and roman_value(word)) or word for word in words]
        spelled[-1:] = ["1"] if self.raw.endswith(" I") else spelled[-1:]  # "Henry I"
        words = [_ONE_NAME.get(word, word) for word in spelled]
        self.renamed = words != spelled
        letters = {*_LETTER.findall(self.raw)}  # "from A to B"
        articles = _ARTICLES - {"a"} if "A" in letters and len(letters) > 1 else _ARTICLES
        articles = articles - {"un"} if "UN" in self.raw else articles
        self.words = [word for word in words if word not in articles] or words
        self.stems = [*map(stem_of, self.words)]
        ended = len(self.words) > 1 and self.words[-1] in _AUXILIARIES  # "Nobody did."
        self.names = _without_titles(self.words[:-1] if ended else self.words)
        content = [stem for word, stem in zip(self.words, self.stems) if word not in _CONTENTLESS]
        self.content = content or [word for word in self.words if word not in NEGATORS]
        self.kept = frozenset(self.content)
        self.forms = frozenset([*self.words, *self.stems])
        self.rivals = frozenset().union(*map(rivals_of, self.words))
        denied = _ASIDE.sub("", form).split() if '"' in form or "(" in form else words
        self.negated = sum(word in NEGATORS for word in denied) % 2 == 1
        self.passive = " by " in form and BE.search(form) is not None
        self.is_code = is_code(self.code)
        self.refuses = self.whole and (is_refusal(self.code) or _REFUSAL.match(self.code) is not None)
        self.numeric = any(map(str.isdigit, self.figures))
        self.capitals = frozenset(_bare(word)[:3] for word in _WORD.findall(self.raw) if word[0].isupper())

    def is_name(self, word: str) -> bool:
        """Return whether a word is capitalized as a name, and neither a numeral nor an ordinal."""
        named = len(word) > 2 and word.isalpha() and word[:3] in self.capitals
        return named and word not in FUNCTION and not _NO_NAME.fullmatch(word)

    @cached_property
    def value(self) -> tuple[str, Any] | None:
        """Kind and value of an answer that is only one number, time, date, range or amount."""
        return (single_value(self.figures) or amount_of(self.figures)) if len(self.figures) < 60 else None

    @cached_property
    def units(self) -> dict[str, str]:
        """Known unit by number."""
        found = [(m[2] or m[4], unit_symbol(m[1] or m[6])) for m in AMOUNT.finditer(self.figures)]
        return {number.replace(",", ""): unit for number, unit in found if unit}

    @cached_property
    def bounds(self) -> dict[str, bool]:
        """Bounded numbers: True for a lower bound, False for an upper bound."""
        found = BOUND.findall(" ".join(self.words))
        return {number: bool(least or more) for least, more, number in found}

    @cached_property
    def stated(self) -> str:
        """The text in figures, with its lead-ins."""
        return with_figures(self.code)

    @cached_property
    def numbered(self) -> list[str]:
        """The words of "13th Amendment" and "Amendment XIII" in one order; [] for other answers."""
        form = normal_form(self.raw).split() if len(self.words) < 5 else []
        words = sorted(_ORDINAL.sub(r"\1", roman_value(word) or word) for word in form if word != "no")
        named = len(words) > 1 and words[0].isdigit() and not words[1].isdigit()
        return words if named and not set(words) >= set(form) else []

    @cached_property
    def members(self) -> list[list[str]]:
        """The members of a list; [] for any other answer."""
        parts = _LIST.split(self.raw)
        if len(parts) < 4 and not any(parts[1::2]):
            return []
        members = [wording_of(part).names for part in parts[::2] if part.strip()]
        return members if len(members) > 1 and all(0 < len(member) < 4 for member in members) else []


wording_of = cache_texts(1 << 14)(Wording)


@cache_texts(1 << 14)
def plain(text: str) -> str:
    """Return a text of at most `LONGEST` characters without markup, links and citations.

    >>> plain("**Turin** [3]"), plain(r"$\\frac{1}{2}$"), plain('{"answer": "Turin"}')
    ('Turin', '1/2', 'Turin')
    """
    if len(text) > LONGEST or (text.isascii() and text.isalnum()):
        return text
    items = [*map(_ITEM.fullmatch, filter(str.strip, text.splitlines()))] if "\n" in text.strip() else []
    listed = " and ".join(", ".join(item[1] for item in items if item).rsplit(", ", 1))
    text = " ".join((listed if items and all(items) else text).split())
    if any(mark in text for mark in "{$\\_"):
        text = _LATEX_TEXT.sub(r"\1", text)
        text = _INDEX.sub(r"\1", text) if "$" in text or _INDEXED.fullmatch(text) else text
        wrapped = _WRAPPED.fullmatch(text.rstrip("."))
        text = next(filter(None, wrapped.groups()), text) if wrapped else text
        text = _FRACTION.sub(r"\1/\2", text).strip()
    for _ in range(3 if any(mark in text for mark in "*`_<") else 0):  # marks within marks
        text = _EMPHASIS.sub(lambda match: match[3].removeprefix("json "), text)
    if "](" in text or "://" in text:
        text = _LINK.sub(lambda match: match[1] or "", text).strip()
    if "[" in text or not text.isascii():
        text = _CITED.sub("", text)
    return text


def _without_hedges(text: str) -> str:
    """Remove hedges and lead-ins such as "I think it is"."""
    rest = _LAST_HEDGE.sub("", text)
    for _ in range(4):
        lead = _HEDGES.match(rest)
        if lead is None:
            break
        rest = rest[lead.end() :]
    return rest.strip("\"' ") or text


def _bare(text: str) -> str:
    """Fold the case and drop diacritics; replace a single Greek letter by its name."""
    if text.isascii():
        return text.lower()
    if len(text) == 1 and "GREEK" in unicodedata.name(text, ""):
        return unicodedata.name(text).split()[-1].lower()
    return _MARKS.sub("", unicodedata.normalize("NFKD", text).casefold())


def _form(text: str) -> str:
    text = _UNIT.sub(lambda match: f" {unit_symbol(match[1]) or match[1]}", text)
    form = _BEFORE_NUMBER.sub(lambda match: _READ_AS[(match.lastindex or 6) - 1], _bare(text))
    if "." in form:
        form = _DOTTED.sub(lambda match: f"{match[0].replace('.', '')} ", form)
    form = _FREE.sub(r"without \1", form) if "-free" in form else form
    if "n" in form:
        form = _NOT_OTHER.sub("", NOT.sub(" not", _CERTAIN.sub("", form)).replace("not only ", ""))
    form = f"{form[:-2]}street" if form.endswith(" st") else form
    if any(map(str.isdigit, form)):
        form = _SEASON.sub(lambda match: match[1] or "autumn", _AD.sub("", one_era(_IN_YEAR.sub("", form))))
        form = _SAME_YEAR.sub(r"\1\3", form)
    return re.sub(r"(?<=[a-z])-(?=[a-z])", " ", form.replace("'s", " s"))


def _without_titles(words: list[str]) -> list[str]:
    start = 0
    while start < len(words) - 1 and words[start] in TITLES:
        start += 1
    first = words[start] if start else ""
    return words[start:] if start and first.isalpha() and first not in FUNCTION - _PARTICLES else words
