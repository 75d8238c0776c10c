"""Rules that compare two answers to one question without a model: the same, different, or undecided.

The rules read the question and the original answers (`semcal.meaning.wording`), because normal forms lack
case and signs. The rules cover English, and some German, French and Spanish. The word lists (`words.txt`)
were written for semcal.

The first rule with a verdict decides a pair. Rules for values, signs, polarity and amounts precede rules for
names; aliases are last. For answers longer than `LONGEST` characters only the polarity counts.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from rapidfuzz.fuzz import ratio

from semcal.meaning.amounts import ASKS_FOR_SHARE, NEAR, UNIT_SYMBOLS, amount_of, unit_symbol, with_counts
from semcal.meaning.asides import is_aside
from semcal.meaning.spelling import compare_spellings, is_acronym, sound_of, stem_of, symbols_of
from semcal.meaning.wording import (
    BE,
    FUNCTION,
    LONGEST,
    NEGATORS,
    NOT,
    TITLES,
    Wording,
    content_of,
    rivals_of,
    wording_of,
)
from semcal.meaning.words import (
    any_listed,
    listed_words,
    related_words,
    word_groups,
    word_pairs,
    word_pattern,
)
from semcal.text import cache_texts
from semcal.text.normal_form import asks_for_code, code_form, normal_form
from semcal.text.values import roman_value, values_differ, values_of, values_read

_SENTENCE = 16  # maximum words of a sentence that is searched for a denial

# ---- Word lists

_MODIFIERS = listed_words("modifiers")
_CONFUSED, _NICKNAMES = map(related_words, map(word_groups, ("confused", "nicknames")))
#: Classes of names: two questions that any member may answer, and the members, with all their names.
_CLASSES = Path(__file__).with_name("classes.txt")
_CONVERSES = related_words(word_groups("converses"))
_ONE_VERB = {stem_of(verb): verbs[0] for verbs in word_groups("one verb") for verb in verbs}
_SUBSTANCES = word_pairs("substances")


def read_classes() -> Iterator[tuple[list[str], list[list[str]]]]:
    """Yield the questions of each class of names, and the names of each member."""
    for line in _CLASSES.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            questions, _, members = line.partition(":")
            names = [[name.strip() for name in member.split("=")] for member in members.split(",")]
            yield [question.strip() for question in questions.split("|")], names


@cache
def _members() -> dict[str, dict[int, int]]:
    """Map the content of each name, also in the plural, to its classes, and its member in each."""
    found: dict[str, dict[int, int]] = {}
    for number, (questions, members) in enumerate(read_classes()):
        if not _closed(questions[0]):  # yes and no are left to their own rule
            for place, names in enumerate(members):
                for *first, last in (content_of(name) for name in names):
                    for word in (last, f"{last}s", f"{last}es"):
                        found.setdefault(" ".join(map(stem_of, [*first, word])), {})[number] = place
    return found


# ---- Values and amounts

_UNSURE = [set(units) for units in word_groups("unsure")]


def _by_value(question: str, s: Wording, t: Wording) -> bool | None:
    """Compare two answers that are each one value: numbers, times, dates, amounts, ranges or scores."""
    values = s.value, t.value
    if values[0] and values[1] and values[0][0] != values[1][0]:
        kinds = dict(filter(None, values))
        if kinds.keys() == {"date", "slashed"}:
            return kinds["date"] in kinds["slashed"]
        if {"month", "date"} & kinds.keys() and kinds.get("number", 0) > 999:
            return False  # 1990, May 1990
        if kinds.keys() == {"clock", "half day"}:
            apart = kinds["clock"] - kinds["half day"]
            return apart == 0 or (None if apart % 720 == 0 else False)
        values = amount_of(s.figures), amount_of(t.figures)  # "2 h" is a duration or a time of day
    if values[0] is None or values[1] is None:
        return None
    (kind, x), (other_kind, y) = values[0], values[1]
    if len({match[1] for match in map(_UNKNOWN.match, (s.raw, t.raw)) if match}) == 2:  # x = 3, y = 3
        return False
    if kind != other_kind:
        return True if {kind, other_kind} == {"pound", "sterling"} and x == y else None
    texts = s.raw, t.raw
    shares = sum("%" in text or "cent" in text for text in texts) if kind == "number" else 0
    if x == y:
        if kind == "number" and {"none"} & {text.lower() for text in texts} and not _COUNTS.search(question):
            return None
        parts = any("/" in text or text[-1:].isalpha() for text in texts)
        return True if shares != 1 or parts or ASKS_FOR_SHARE.search(question) else None
    if kind.lstrip("≥≤<>") == "number":
        unsure = shares == 1 or any(re.search(r"\.\d{3}$|\d,\d{1,2}$", text) for text in texts)
        return None if unsure else False
    if kind in ("clock", "half day", "hours", "month", "date", "day", "blood", "century", "decade"):
        return False
    unsure = kind in ("range", "calories") or isinstance(x, tuple)
    return None if unsure or abs(x - y) <= NEAR * max(abs(x), abs(y)) else False


_UNKNOWN = re.compile(r"([A-Za-z]) ?=")
_COUNTS = word_pattern("how many")


def _by_amount(_: str, s: Wording, t: Wording) -> bool | None:
    """Separate equal numbers with different units, and bounds in different directions."""
    if not (s.numeric and t.numeric):
        return None
    for number, one in s.units.items():
        other = t.units.get(number, one)
        both = {one, other}
        scale = both & {"K", "B"} and both.isdisjoint(("°C", "°F"))  # 50K people, 5B dollars
        if len(both) == 2 and not scale and both not in _UNSURE and {one[:-2], other[:-2]}.isdisjoint(both):
            return False
    opposed = any(t.bounds.get(number, low) != low for number, low in s.bounds.items())
    return False if opposed and s.negated == t.negated else None


def _by_count(question: str, s: Wording, t: Wording) -> bool | None:
    """Merge answers to "how many?" that state one equal number, and otherwise only words of the question."""
    if not _COUNTS.search(question) or s.negated != t.negated or s.bounds != t.bounds:
        return None
    numbers = [values_of(normal_form(answer.figures)).numbers for answer in (s, t)]
    if len(numbers[0]) != 1 or numbers[0] != numbers[1]:
        return None
    asked = {stem[:4] for stem in wording_of(question).kept}
    extra = {stem[:4] for stem in s.kept | t.kept if stem.isalpha() and len(stem) > 2 and stem != "about"}
    return True if extra <= asked else None


# ---- Signs

_COMMAND = re.compile(r"\bcommands?\b", re.I)
_COMMAND_LINE = re.compile(r"[a-z][\w.-]*(?: [\w./~:=-]+){1,4}")
_CHEMICAL = word_pattern("chemistry")
_FORMULA = re.compile(r"(?:[A-Z][a-z]?\d{0,2})+(?:\^?\d?[+-])?")
_CAMEL_CASE = re.compile(r"[a-z]+(?:[A-Z][a-z]+){1,6}(?:\(\))?")
_OPTION_NAME = re.compile(r"--?[A-Za-z][\w-]*|\.[a-z]\w{0,5}")  # also an ending of files
_GENE = re.compile(r"[A-Z]{3,6}\d{0,2}")
_MINUS = re.compile(r"-(?:\d*[a-z]\b|(?:sin|cos|tan|log|ln|exp|sqrt)\b)")
_FLAG = re.compile(r"\b(?:flag|option|switch|argument|parameter)s?\b", re.I)
_TOKEN = re.compile(r"[^\W_]+|[<>=!&|+*]+|\S")
_ISOTOPE = re.compile(r"([⁰¹²³⁴-⁹]{1,3})([A-Z][a-z]?)|([A-Z][a-z]?)-?(\d{2,3})")
_SKIN = re.compile("[\ufe0f\U0001f3fb-\U0001f3ff]")
_SIGNS = re.compile(r"[#+]|-(?!\w)").findall
_OPTION = re.compile(r"(?:option |choice |answer )?\(?([A-Ha-h])(?:([).:])(?: +(.+))?)?", re.S)
_OPTIONS = re.compile(r"(?:^|[\s(])[Aa][).:] ?\S[^\0]*[\s(][Bb][).:] ?\S")


def _by_code(question: str, s: Wording, t: Wording) -> bool | None:
    """Compare codes by case, dots and signs if the question asks for a code; separate unlike commands."""
    if asks_for_code(question, (s.code, t.code)):
        return code_form(s.code) == code_form(t.code)
    commands = _COMMAND.search(question) and all(map(_COMMAND_LINE.fullmatch, (s.code, t.code)))
    return False if commands and not (s.kept <= t.kept or t.kept <= s.kept) else None


def _substance(text: str) -> str:
    """Return the name of a substance or an isotope given by its formula, "carbon-14" for C-14 and ¹⁴C."""
    isotope = _ISOTOPE.fullmatch(text)
    if isotope and (name := _SUBSTANCES.get(isotope[2] or isotope[3])):
        return f"{name}-{unicodedata.normalize('NFKC', isotope[1] or isotope[4])}"
    return _SUBSTANCES.get(text, text.lower())


def _by_sign(question: str, s: Wording, t: Wording) -> bool | None:
    """Compare each sign in code and formulas, and the case in chemical symbols and units."""
    x, y = s.code, t.code
    if all(map(_CAMEL_CASE.fullmatch, (x, y))):
        return x.removesuffix("()") == y.removesuffix("()")
    if all(map(_OPTION_NAME.fullmatch, (x, y))):
        return x == y
    if x != y and all(map(_GENE.fullmatch, (x, y))) and x.rstrip("0123456789") == y.rstrip("0123456789"):
        return False  # CFTR, CFTR2
    if not (s.is_code or t.is_code):
        negative = (_MINUS.match(x) is None) != (_MINUS.match(y) is None)
        if negative and x.lstrip("-") == y.lstrip("-") and not _FLAG.search(question):
            return False
        first, second = _substance(x), _substance(y)
        lettered = min(len(x), len(y)) == 1 and _OPTIONS.search(question)  # C) Nitrogen
        if first == second and (first == x.lower()) != (second == y.lower()) and not lettered:
            return True
        if len(x) < 5 and x != y and x.lower() == y.lower():
            units = x in UNIT_SYMBOLS and y in UNIT_SYMBOLS and UNIT_SYMBOLS[x] != UNIT_SYMBOLS[y]
            return False if units or (_CHEMICAL.search(question) and x[1:] != y[1:]) else None
        if _CHEMICAL.search(question):
            if x != y and unit_symbol(x) == unit_symbol(y) != "":
                return True
            formulas = symbols_of(x), symbols_of(y)
            if formulas[0].lower() != formulas[1].lower() and all(map(_FORMULA.fullmatch, formulas)):
                return False
        pictures = not (s.words and t.words) and not any(map(str.isalnum, x + y))
        return _SKIN.sub("", x) == _SKIN.sub("", y) if pictures else None
    x, y = symbols_of(x), symbols_of(y)
    if x == y:
        return True
    if x.lower() == y.lower():
        return False if re.search(r"[\\_]", x + y) and x[1:] != y[1:] else None
    if re.sub(r"[\W_]", "", x).lower() == re.sub(r"[\W_]", "", y).lower():
        return False
    if not (s.is_code and t.is_code):
        return None
    rest = _unlike(_TOKEN.findall(x), _TOKEN.findall(y))
    added = not all(rest) and "=" not in (*rest[0], *rest[1])  # O(n), O(n^2)
    return False if added or max(map(len, rest)) == 1 or x[0] == "[" == y[0] else None


def _by_option(question: str, s: Wording, t: Wording) -> bool | None:
    """Compare options by their letters: "A) Paris" is A."""
    first, second = _OPTION.fullmatch(s.raw), _OPTION.fullmatch(t.raw)
    if not first or not second:
        return None
    shown = _OPTIONS.search(question) is not None
    if not shown and any(match[3] and match[2] == "." for match in (first, second)):  # "A. Lincoln"
        return None
    if first[1].lower() != second[1].lower():
        return False
    return True if shown or not (first[3] and second[3]) else None


# ---- Polarity

_CLOSED = re.compile(
    rf"(?:^|[.:!?] +)[¿\s]*{any_listed('closed')} |-(?:il|elle|ils|elles|on|ce)\b|true or false", re.I
)
_OR_NOT = re.compile(r",? (?:or not|oder nicht|ou non|o no)(?=\s?[?.]?$)", re.I)
_CHOICE = re.compile(r"(?<!true) (?:or|oder|ou) (?!false|not\b)", re.I)
_POLAR = re.compile(
    r"(?:(?:this|that|the|it)(?: (?:claim|statement|answer|sentence))?(?:'s| is) )?"
    rf"(?:(?:(?:of course|\w+ly) )?(?P<no>{any_listed('no')})|(?P<yes>{any_listed('yes')}))"
    rf"(?![\w-]| {any_listed('nothing')}\b)",
    re.I,
)
_YES_OR_NO = re.compile(r"(?:(yes|oui|ja|sí)|no|non|nein)(?:[,.!;]|$)", re.I)
_NEGATED = re.compile(rf"\b{any_listed('negators')}\b|n't", re.I)


@cache_texts(1 << 12)
def _closed(question: str) -> Wording | None:
    """Return the question if it asks for yes or no and has no denial."""
    if not _CLOSED.search(question) or _CHOICE.search(question):
        return None
    asked = Wording(_OR_NOT.sub("", question[-LONGEST:]))
    return None if asked.negated else asked


def _by_polarity(question: str, s: Wording, t: Wording) -> bool | None:
    """Compare yes and no as answers to a closed question."""
    asked = _closed(question)
    for one, other in ((s, t), (t, s)):  # "No, he was acquitted" and "He was acquitted"
        polar = _YES_OR_NO.match(one.raw)
        if polar and polar[0][-1:] == "," and wording_of(one.raw[polar.end() :].strip()).words == other.words:
            return True
    if asked is None:
        x, y = _YES_OR_NO.match(s.raw), _YES_OR_NO.match(t.raw)
        return False if x and y and bool(x[1]) != bool(y[1]) else None
    x, y = _POLAR.match(s.raw), _POLAR.match(t.raw)
    said = _affirms(x, s, asked), _affirms(y, t, asked)
    if None in said:
        return None
    return False if said[0] != said[1] else True if x or y or s.kept <= t.kept or t.kept <= s.kept else None


def _affirms(polar: re.Match[str] | None, answer: Wording, asked: Wording) -> bool | None:
    """Read yes, no or neither from the first word, or from a first clause in the words of the question."""
    if polar:
        return polar["yes"] is not None
    clause = wording_of(re.split("[.,;:]", answer.raw, maxsplit=1)[0])
    added = [w for w in clause.words if stem_of(w) in clause.kept - asked.kept - FUNCTION]
    opposed = all(not asked.forms.isdisjoint(rivals_of(word)) for word in added)  # "It is unstable"
    return (len(added) % 2 == 1) == clause.negated if clause.words and opposed else None


def _by_refusal(_: str, s: Wording, t: Wording) -> bool | None:
    return True if s.refuses and t.refuses else None


def _by_negation(question: str, s: Wording, t: Wording) -> bool | None:
    """Separate an answer from its denial, except in long sentences, which may deny other things."""
    if _denies(s.code, t.code) or _denies(t.code, s.code):  # "Ada, not Bo" and "Bo"
        return False
    if max(len(s.words), len(t.words)) > _SENTENCE:
        return None
    if not (s.negated or t.negated):
        return None
    if s.negated and t.negated:
        return (s.content == t.content != []) or None
    denial, other = (s, t) if s.negated else (t, s)
    last = max((i for i, word in enumerate(denial.words) if word in NEGATORS), default=0)
    short = last < 4 and not _NEGATED.search(question)
    if short and denial.words[last + 1 :] == other.words:  # "found not guilty"
        return False
    if len(other.words) > 2 and [word for word in denial.words if word not in NEGATORS] == other.words:
        return False
    shared = s.kept & t.kept
    if not shared or len(shared) < 0.75 * max(len(s.kept), len(t.kept)) or _NEGATED.search(question):
        return None
    return None if not s.rivals.isdisjoint(t.kept - shared) else False


# ---- Words

_NO_LIST = re.compile(r'"|\b(?:[Ii]l y a|it|who|which|that|is|was|are|by|in|from|for|while|said|with|of)\b')
_UMLAUT = re.compile("[äöüÄÖÜ]")
_SHORT_LISTS = ("bosnia", "trinidad", "antigua", "serbia")  # short for "Bosnia and Herzegovina"
_SYMMETRIC = frozenset(map(stem_of, listed_words("symmetric")))
_BESIDE = (
    r"(?:(?:days?|weeks?|months?|years?) (?:after|before)|except|(?:all|every\w+|any\w+) but|next to"
    r"|(?:miles|km|kilomet(?:re|er)s) from)"
)
_OF = re.compile(
    rf"(?:\b(?:{any_listed('kin')} of|{_BESIDE})|^(?:the |an? )?(?:\w+ )?{any_listed('things')} (?:of|on)"
    r"|^(?:the|an?) (?:\w+ ){1,3}(?:near|outside|close to)) (?:the |an? )?(.+)"
)
_WHOSE = re.compile(
    rf"(?:the |an? |one of )?(.+?)'s? (?:\w+ )?(?:{any_listed('kin')}\b.*|(?!{any_listed('eponyms')}\b)\w+$)"
)
_DEPICTED = word_pattern("depicted")
_DEMONYM = re.compile(r"\w+(?:ican|ish|ese|ian)|french|german|dutch|greek|late|young|old")


def _unlike(x: Sequence[str], y: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return two texts without the words with which both begin and end."""
    start, end, shorter = 0, 0, min(len(x), len(y))
    while start < shorter and x[start] == y[start]:
        start += 1
    while end < shorter - start and x[-1 - end] == y[-1 - end]:
        end += 1
    return x[start : len(x) - end], y[start : len(y) - end]


_PLACE = re.compile(r"\b(?:where|city|town|village|place|district|wo|où|dónde|dove)\b", re.I)
_IN_ORDER = word_pattern("in order")
_JOINT = re.compile(r"\b(?:and|or|und|oder|et|y)\b")  # "&" is tested before


def _by_list(question: str, s: Wording, t: Wording) -> bool | None:
    """Compare lists by their members; separate a list from one of its members."""
    x, y = s.members, t.members
    if not (x or y) or _NO_LIST.search(s.raw) or _NO_LIST.search(t.raw):
        return None
    options = [" or " in s.raw, " or " in t.raw]
    if x and y:
        rest = list(y)
        for member in x:
            found = next((other for other in rest if _one_member(member, other, t)), None)
            rest = [other for other in rest if other is not found]
        headless = any(  # "the legislative and the judicial branch"
            all(member in b for member in [*a[:-1], a[-1][:-1]]) for a, b in ((x, y), (y, x))
        )
        if len(x) == len(y) and (not rest or headless):
            if _IN_ORDER.search(question) and not all(_one_member(a, b, t) for a, b in zip(x, y)):
                return False
            return True if options[0] == options[1] else None
        nouns = [sorted(stem_of(member[-1]) for member in members) for members in (x, y)]
        return False if (len(rest) < len(y) or nouns[0] == nouns[1]) and not any(options) else None
    one, many, listed = (t, x, s.raw) if x else (s, y, t.raw)
    if any(options) or "&" in listed or one.names[0] in _SHORT_LISTS:
        return None
    if many[0] == one.names and _PLACE.search(question) and not _JOINT.search(listed):
        return None  # London, England, United Kingdom
    return False if one.names in many else None


def _one_member(x: Sequence[str], y: Sequence[str], answer: Wording) -> bool:
    """Return whether two members of lists are the same, or one is the first or last part of the other."""
    if len(x) == len(y) and x[0][0] == y[0][0] and x[-1].isalpha() and ratio(" ".join(x), " ".join(y)) > 85:
        return True
    if not (set(x) <= set(y) or set(y) <= set(x)) or not all(map(str.isalpha, set(x) ^ set(y))):
        return False
    return stem_of(x[-1]) == stem_of(y[-1]) or (x[0] == y[0] and answer.is_name(x[0]))


def _relation(answer: Wording) -> tuple[frozenset[str], str, frozenset[str], frozenset[str]] | None:
    """Return A, R, B and other content of "A is R than B", "A is B's R", "B's R is A" or "B was R by A"."""
    places = [place for place, stem in enumerate(answer.stems) if stem in _CONVERSES]
    if len(places) != 1 or answer.negated or answer.numeric:
        return None
    before, after = answer.words[: places[0]], answer.words[places[0] + 1 :]
    if before[-1:] == ["s"]:
        be = next((place for place, word in enumerate(before) if BE.fullmatch(word)), 0)
        before, after = (before[:be], before[be + 1 :]) if be else (after, before)
    elif answer.passive:
        before, after = after, before
    sides = [[word for word in side if word not in FUNCTION] for side in (before, after)]
    a, b = (frozenset(stem_of(w) for w in [*filter(answer.is_name, side)] or side) for side in sides)
    relation = answer.stems[places[0]]
    return (a, relation, b, answer.kept - a - b - {relation}) if a and b and a != b else None


def _by_roles(_: str, s: Wording, t: Wording) -> bool | None:
    """Compare the two sides of a relation, and of a verb in the active and the passive voice."""
    first, second = _relation(s), _relation(t)
    if first and second and first[3] == second[3]:
        (left, relation, right), (other_left, other, other_right) = first[:3], second[:3]
        converse = relation == other or other in _CONVERSES[relation]
        if converse and {left, right} == {other_left, other_right}:
            return (left == other_left) == (relation == other)
    if len(s.content) < 2:
        return None
    if s.passive != t.passive:
        said, done = ([_ONE_VERB.get(stem, stem) for stem in answer.content] for answer in (s, t))
        alike = len(said) > 2 and sorted(said) == sorted(done) and s.negated == t.negated
        return said != done if alike else None
    if s.kept != t.kept:
        return None
    x, y = _unlike(s.stems, t.stems)
    if not 2 < len(x) == len(y) < 30 or sorted(x) != sorted(y):
        return None
    for i in range(1, len(x) - 1):
        for j in range(i + 1, len(x)):
            if y == [*x[j:], *x[i:j], *x[:i]]:
                verb = x[i:j]
                named = all(any(word.startswith(name) for name in t.capitals) for word in verb)
                start = next(place for place, (a, b) in enumerate(zip(s.stems, t.stems)) if a != b)
                owned = s.stems[start + len(x) :][:1] == ["s"] and BE.fullmatch(verb[0])  # "X is Y's mother"
                symmetric = _SYMMETRIC.issuperset(verb) and verb != ["to"] and not owned
                return None if named or symmetric else False
    return None


_SALT = re.compile(r"(\w{3,})(?:[aeiy]ne|ate|ide|ite|ic|ous)")  # sulfuric, sulfurous


def _by_opposite(_: str, s: Wording, t: Wording) -> bool | None:
    """Separate answers that differ only in a word and its opposite."""
    if len(s.words) == len(t.words) < 3:
        x, y = _unlike(s.words, t.words)
        salts = _SALT.fullmatch(x[0]) if len(x) == 1 else None
        other_salt = _SALT.fullmatch(y[0]) if salts else None
        if len(x) == 1 and y[0] in _CONFUSED.get(x[0], ()):
            return False
        if salts and other_salt and salts[1] == other_salt[1]:
            return False
    x, y = (_ARTICLE.sub("", answer.raw) for answer in (s, t))
    acronyms = x.isalpha() and y.isalpha() and x.isupper() and y.isupper() and s.words != t.words
    if acronyms and 2 < len(x) == len(y) < 6:
        return None if sorted(x) == sorted(y) else False  # NATO, OTAN
    if s.rivals.isdisjoint(t.forms):
        return None
    x = [word for word in s.words if word not in t.words]
    y = [word for word in t.words if word not in s.words]
    if [word for word in s.content if word in t.kept] != [word for word in t.content if word in s.kept]:
        return None
    for one, other in ((one, other) for one in x for other in y):
        if other in rivals_of(one) or stem_of(other) in rivals_of(one):
            rest = [word for word in (*x, *y) if word not in FUNCTION and word not in (one, other)]
            rest = [word for word in rest if rivals_of(word).isdisjoint(rest)]  # "speeds up", "slows down"
            denied = s.negated != t.negated and one not in NEGATORS and other not in NEGATORS
            if denied and one[-4:] == other[-4:] and NEGATORS.issuperset(rest):  # "not stable", "unstable"
                return True
            if len(rest) < (2 if s.kept & t.kept else 1) and not denied:
                return False
    return None


def _by_class(_: str, s: Wording, t: Wording) -> bool | None:
    """Separate answers that differ only in two members of a class ("the violin", "the viola").

    What is said of a person before the name, as in "Captain Ada Velis", is left to a model.
    """
    if s.negated or t.negated or max(len(s.words), len(t.words)) > _SENTENCE:
        return None
    x, y = _unlike(s.content, t.content)
    of_one_person = s.names[-2:] == t.names[-2:] and all(map(s.is_name, s.names[-2:]))
    if not x or not y or of_one_person:
        return None
    for one, other in ((x, y), (s.content, t.content)):
        first, second = (_members().get(" ".join(stems), {}) for stems in (one, other))
        if any(first[number] != second[number] for number in first.keys() & second.keys()):
            return False
    levels = first.keys() & _places(), second.keys() & _places()
    return False if all(levels) and levels[0].isdisjoint(levels[1]) else None  # Paris, France


@cache
def _places() -> frozenset[int]:
    """Return the classes of continents, countries, states and cities, which hold one another."""
    asked = [questions[0] for questions, _ in read_classes()]
    return frozenset(
        n for n, one in enumerate(asked) if re.match("which (?:continent|country|us state|city)", one)
    )


_WORK = word_pattern("works")
_PARTS = ("part", "volume", "chapter", "episode", *map(str, range(2, 20)))


_KIND = re.compile(r"\b(?:kind|type|sort|breed|species|form) of (?:an? )?(\w+)", re.I)


def _by_name(question: str, s: Wording, t: Wording) -> bool | None:
    """Separate answers that share only part of a name ("North Korea"), or name a relative ("X's brother")."""
    if len(s.names) == len(t.names) == 1 and min(len(s.words), len(t.words)) == 2:  # "Mr. Velis", "Dr. Lenz"
        (p,), (q,) = s.names, t.names
        if s.is_name(p) and t.is_name(q) and max(ratio(p, q), ratio(sound_of(p), sound_of(q))) < 60:
            return False
    if not s.kept & t.kept:
        return None
    kind = _KIND.search(question)
    if kind and (s.content == [stem_of(kind[1].lower())]) != (t.content == [stem_of(kind[1].lower())]):
        return False  # "What kind of cloud is it?", "a cloud"
    for one, other in ((s.raw.lower(), t.raw.lower()), (t.raw.lower(), s.raw.lower())):
        core = _ARTICLE.sub("", one)
        if (
            not _DEPICTED.search(question)
            and core in other
            and core in [match[1] for match in (_OF.search(other), _WHOSE.match(other)) if match]
        ):
            return False
    x, y = _unlike(s.names, t.names)
    number = [*x, *y] if not (x and y) and _WORK.search(question) else []
    if number and number[0] in _PARTS and number[-1:] == (s if x else t).names[-1:] and number[-1].isdigit():
        return False  # "The Mill", "The Mill 2"
    longest = max(len(s.names), len(t.names))
    added, longer = [*x, *y], s if x else t
    if not (x and y) and added == longer.names[:2][: len(added)] and not _MODIFIERS.isdisjoint(added):
        return False if all(longer.is_name(name) or name in FUNCTION for name in longer.names) else None
    if len(added) == 1:
        word = added[0]
        if word in ("flat", "sharp") and len(longer.names[0]) == 1:  # keys in music
            return False
        middles = [[name for name in names[1:-1] if len(name) == 1] for names in (s.names, t.names)]
        full = longest < 6 and len(s.names[0]) > 1 and s.names[0] == t.names[0] and s.names[-1] == t.names[-1]
        if full and longer.names[-1] in _SCHOOLS and longer.is_name(word):
            return False
        return False if full and word.isalpha() and all(middles) and middles[0] != middles[1] else None
    if not x or not y or longest > 5 or "(" in s.raw or "(" in t.raw:
        return None
    reigns = len(s.names) == len(t.names) == 2 and s.names[1] == t.names[1] and s.names[1].isdigit()
    if not reigns and not any(s.is_name(word) and t.is_name(word) for word in s.names if word in t.names):
        return None
    person = min(len(x), len(y)) == 1 and s.names[-1] == t.names[-1] and not set(x) & set(y)
    if person and len(s.names) - len(x) > 1 and (_DEMONYM.fullmatch(x[0]) or _DEMONYM.fullmatch(y[0])):
        return None
    for letters, given, answer in ((x, y, t), (y, x, s)):
        abbreviated = person and all(len(letter) == 1 for letter in letters)
        if abbreviated and answer.is_name(given[0]) and given[0][0] not in letters:
            return False
    begin = min(4, len(x[0]), len(y[0]))
    variants = any(len(one) == 1 < len(two) and _abbreviates(one[0], two) for one, two in ((x, y), (y, x)))
    variants = variants or _is_short(x[0], y[0]) or x[0][:begin] == y[0][:begin] or ratio(x[0], y[0]) > 72
    names = s.is_name(x[0]) and t.is_name(y[0]) and not variants
    return False if names and (person or len(x) == len(y) == 1) else None


def _is_short(x: str, y: str) -> bool:
    """Return whether one word is the initial or a nickname of the other."""
    return x[0] == y[0] if min(len(x), len(y)) == 1 else y in _NICKNAMES.get(x, ())


def _by_aside(question: str, s: Wording, t: Wording) -> bool | None:
    """Separate a name from a sentence that mentions it only beside its answer."""
    long, short = (s, t) if len(s.words) > len(t.words) else (t, s)
    if len(long.words) < len(short.words) + 2:
        return None
    return False if is_aside(question, long.stated, short.figures) else None


_ALTERNATIVES = re.compile(
    r"((?:[\w-]+ ){0,3}[\w-]+),? (?:or|oder|ou|o) ((?:[\w-]+ ?){1,3})(?:\s?\?|$)", re.I
)


@cache_texts(1 << 12)
def _alternatives(question: str) -> tuple[frozenset[str], frozenset[str]] | None:
    """Return the words of only the first, and of only the second alternative of "X or Y?"."""
    if not (found := _ALTERNATIVES.search(question[-LONGEST:])) or _OR_NOT.search(question):
        return None
    length = len(found[2].split())
    one, other = (wording_of(" ".join(option.split()[-length:])).kept for option in found.groups())
    return one - other, other - one


def _by_choice(question: str, s: Wording, t: Wording) -> bool | None:
    """Compare answers to "X or Y?" if each has words of only one alternative."""
    alternatives = _alternatives(question)
    if alternatives is None or s.negated or t.negated:
        return None
    first, second = alternatives
    said = [wording_of(one.code.partition(" than ")[0]).kept for one in (s, t)]
    if all(" than " in one.code for one in (s, t)) and (said[0] ^ said[1]) - first - second:
        return None  # "X is larger than Y", "Y is smaller than X"
    chosen = {(bool(kept & first), bool(kept & second)) for kept in said}
    if chosen < {(True, False), (False, True)}:
        asked = wording_of(question)
        echo = not chosen or asked.words[0] in s.words + t.words
        return True if not echo and s.kept | t.kept <= asked.kept else None
    return False if chosen == {(True, False), (False, True)} else None


def _by_script(_: str, s: Wording, t: Wording) -> bool | None:
    """Compare short answers in other scripts by their spelling."""
    foreign = not (s.raw.isascii() or t.raw.isascii()) and max(len(s.words), len(t.words)) < 4
    return compare_spellings(s.raw, t.raw) if foreign else None


_TITLED = word_pattern("titled")
_REMARK = re.compile(r"\s\(([^()]+)\)$")
_CORRECTED = word_pattern("corrected")
_APPOSED = re.compile(
    r"([^,]+), (?:(?:an?|the|who|which|also known as|born) (?!.*\b(?:and|or|not)\b)\w.*\b[a-z]{3}.*"
    r"|an? [A-Z]\w+|(?:at|with) (?:about |around |over )?[$€£]?\d.*)"
)

_PERSON = word_pattern("persons")
_NO_PERSON, _SCHOOLS, _NEUTRAL = map(listed_words, ("groups", "schools", "neutral"))
#: Questions for a thing by its name: "Which city is called Saigon?"
_NAMED_THING = re.compile(
    r"(?:in |on |at )?which (?!name|word|term)\w+ (?:(?!renamed|former|previous).)+$", re.I | re.S
)
_PRONOUNS = frozenset(["it", "they", "he", "she"])
_PLACED = frozenset(["in", "on", "at", "during", "im", "am", "um", "en"])
_NAMING = word_pattern("naming")


def _by_alias(question: str, s: Wording, t: Wording) -> bool | None:
    """Merge equal forms, acronyms, transcriptions, and names with initials or nicknames."""
    joined = ["".join(answer.words) for answer in (s, t)]
    umlauts = (
        [re.sub("(?<=[aou])e", "", word) for word in joined] if _UMLAUT.search(s.raw + t.raw) else joined
    )
    if s.names == t.names or (umlauts[0] == umlauts[1] and joined[0].isalpha()):
        if (s.renamed or t.renamed) and _asks_for_name(question):
            return None
        return _SIGNS(s.raw) == _SIGNS(t.raw) or None
    x, y = _unlike(s.words, t.words)
    for short, long, one, other in ((x, y, s, t), (y, x, t, s)):
        if (
            len(short) == 1 < len(long)
            and 1 < len(short[0]) < 7
            and short[0].upper() in one.raw.replace(".", "")
        ):
            capitals = "".join(re.findall("[A-Z]", other.raw)).lower()
            if short[0] == capitals or _abbreviates(short[0], long):
                return True
    if (_shortens(question, s, t) or _shortens(question, t, s)) and not _asks_for_name(question):
        return True
    plural = s.stems == t.stems and s.raw[-1:] != t.raw[-1:] and not _TITLED.search(question)
    if plural and any(answer.raw.islower() for answer in (s, t)):
        return True
    if _sounds_alike(s, t) or s.numbered == t.numbered != [] or _adds(s, t) or _adds(t, s):
        return True
    if len(s.names) != len(t.names) or len(s.names) < 2 or s.names[-1] != t.names[-1]:
        middle = _PERSON.search(question) and (_with_middle(s, t) or _with_middle(t, s))
        return True if middle else None
    pairs = [(p, q) for p, q in zip(s.names, t.names) if p != q]
    named = all(min(len(p), len(q)) == 1 or (s.is_name(p) and t.is_name(q)) for p, q in pairs)
    return True if named and all(p.isalpha() and q.isalpha() and _is_short(p, q) for p, q in pairs) else None


def _asks_for_name(question: str) -> bool:
    return _NAMING.search(question) is not None and not _NAMED_THING.match(question)


@cache
def _pseudonyms() -> dict[str, str]:
    pairs = word_pairs("pseudonyms").items()
    return {" ".join(wording_of(other).names): " ".join(wording_of(name).names) for other, name in pairs}


def _shortens(question: str, short: Wording, long: Wording) -> bool:
    """Return whether an answer has the words of another one, without its subject, noun, preposition or names.

    "It falls" shortens "Demand falls", "the upper one" "the upper lake", "June" "in June", "Dr. Velis" and
    "Velis" "Ada Velis"; a pseudonym shortens the usual name.
    """
    first, *rest = short.words
    head = long.words[: -len(rest)] if rest else []
    if first in _PRONOUNS and rest and long.words[len(head) :] == rest:
        return frozenset(map(stem_of, head)) <= wording_of(question).kept
    if rest == ["1"] and short.code.lower().startswith("the ") and short.code.endswith("one"):
        return len(long.words) == 2 and long.words[0] == first and not long.numeric
    if long.words[0] in _PLACED and long.words[1:] == short.words:
        return _TITLED.search(question) is None
    if _pseudonyms().get(" ".join(short.names)) == " ".join(long.names):
        return True
    names = [name for name in long.names if name not in ("jr", "sr")]
    last = names[-2:] if names[-2:-1] == ["de"] else names[-1:]
    if last != short.names or last[-1] in _NO_PERSON or not all(map(long.is_name, names[: -len(last)])):
        return False
    titled = short.words[0] in _NEUTRAL and short.words != short.names
    bare = short.words == short.names and _PERSON.search(question) is not None
    return (
        (titled or bare) and 1 < len(long.names) < 5 and long.words == long.names and short.is_name(last[-1])
    )


def _abbreviates(letters: str, words: Sequence[str]) -> bool:
    """Return whether letters are the initials of words, or an acronym of those that are no function words."""
    content = [word for word in words if word not in FUNCTION]
    if letters in ("".join([word[0] for word in content]), "".join([word[0] for word in words])):
        return True
    return letters.isalpha() and len(letters) > 2 and is_acronym(letters, content)


def _adds(short: Wording, long: Wording) -> bool:
    """Return whether a longer answer only adds a remark in parentheses, a country or an apposition."""
    if long.names[: len(short.names)] != short.names:
        return False
    remark = _REMARK.search(long.code)
    if remark and not _CORRECTED.search(remark[1]):
        core = wording_of(long.code[: remark.start()])
        plain_remark = core.value is not None or re.fullmatch(r"\D+|[12]\d{3}", remark[1])
        return plain_remark is not None and core.names == short.names
    rest = long.names[len(short.names) :]
    if rest[:1] == ["of"] and (short.names[-1].isdigit() or roman_value(short.names[-1])):
        return len(short.names) == 2 and long.is_name(rest[-1])
    named = _APPOSED.fullmatch(long.code)
    return (
        named is not None
        and wording_of(named[1]).names == short.names
        and all(map(short.is_name, short.names))
    )


def _sounds_alike(s: Wording, t: Wording) -> bool:
    """Return whether two answers differ only in the transcription of long words."""
    if len(s.names) != len(t.names):
        return False
    pairs = [(p, q) for p, q in zip(s.names, t.names) if p != q]
    named = all((s.is_name(p) and t.is_name(q)) or min(len(p), len(q)) > 7 for p, q in pairs)
    return named and all(min(len(p), len(q)) > 3 and sound_of(p) == sound_of(q) for p, q in pairs)


def _with_middle(short: Wording, long: Wording) -> bool:
    """Return whether a longer name only adds middle names: Bob Dylan, Robert Allen Dylan.

    Names of groups never match: the Liberal Party is not the Liberal Democratic Party.
    """
    if len(short.names) != 2 or not 2 < len(long.names) < 5 or short.names[1] != long.names[-1]:
        return False
    person = long.names[-1] not in _NO_PERSON and "quincy" not in long.names
    first = short.names[0] == long.names[0] or _is_short(short.names[0], long.names[0])
    middle = all(long.is_name(name) or len(name) == 1 for name in long.names[1:])
    return first and person and middle and long.is_name(long.names[0]) and short.is_name(short.names[1])


_RULES: tuple[Callable[[str, Wording, Wording], bool | None], ...] = (
    *(_by_code, _by_value, _by_sign, _by_option, _by_refusal, _by_polarity, _by_amount, _by_list, _by_roles),
    *(_by_count, _by_negation, _by_choice, _by_opposite, _by_class, _by_name, _by_aside, _by_script),
    _by_alias,
)


def compare(question: str, first: str, second: str) -> bool | None:
    """Return whether two raw answers to a question mean the same, None if the rules do not decide.

    The comparison is symmetric. The first rule with a verdict decides.

    >>> compare("Is Pluto a planet?", "Yes", "No"), compare("How long is it?", "5 km", "5000 m")
    (False, True)
    >>> compare("Who won?", "Rome beat Carthage.", "Carthage beat Rome."), compare("Who?", "Ada", "Bo")
    (False, None)
    """
    if first == second:
        return True
    first, second = with_counts(question, first), with_counts(question, second)
    return _verdict(question, wording_of(min(first, second)), wording_of(max(first, second)))


def _verdict(question: str, s: Wording, t: Wording) -> bool | None:
    if not (s.words and t.words):
        return _by_sign(question, s, t)
    if not (s.whole and t.whole):
        return _by_polarity(question, s, t)
    for rule in _RULES:
        verdict = rule(question, s, t)
        if verdict is not None:
            return verdict
    return None


_DENIAL = re.compile(
    r"\b(?:not|never|nor|neither|nicht|kein|keine|no|rather than|instead of|as opposed to|unlike)\b"
)
_ARTICLE = re.compile("^(?:the|an?) ", re.I)
_FIRST_NAMES = r"\b(?:(?!No\b|Not\b|Never\b|Neither\b|Nor\b)[A-Z][\w.]{1,30} (?:da |de |van |von )?){1,2}"
_DENIED = re.compile(
    rf"{_DENIAL.pattern}(?: (?:{'|'.join(FUNCTION | TITLES)}|think|believe|sure|certain))*[ \"'(]*$"
)


def contradicts(question: str, prediction: str, reference: str) -> bool:
    """Return whether a prediction denies a reference, or is another answer in nearly the same words.

    A list that includes the reference does not contradict it.

    >>> contradicts("Where?", "It is not in Turin", "Turin"), contradicts("Where?", "Turin, Italy", "Turin")
    (True, False)
    >>> contradicts("Who?", "Not Bo but Ada", "Bo"), contradicts("Who?", "Not Bo but Ada", "Ada")
    (True, False)
    """
    s, t = wording_of(with_counts(question, prediction)), wording_of(with_counts(question, reference))
    verdict = _verdict(question, s, t)
    if verdict is not None and not (s.members or t.members):
        return not verdict
    if s.refuses and not t.refuses:
        return True
    if len(prediction) <= LONGEST and is_aside(question, s.stated, t.figures):
        return True
    text, core = NOT.sub(" not", prediction.casefold()), re.escape(reference.casefold())
    if re.search(rf"(?:不是|并非|而非){core}|{core}(?:ではな|ではあ|じゃな)", text):
        return True
    return _denies(prediction, reference)


def _denies(text: str, name: str) -> bool:
    """Return whether a text denies a name wherever it holds the name."""
    name = _ARTICLE.sub("", name)
    if name.casefold() not in text.casefold() or not _DENIAL.search(NOT.sub(" not", text.casefold())):
        return False
    text = re.sub(rf"{_FIRST_NAMES}(?={re.escape(name)}\b)", "", text)
    text = NOT.sub(" not", text.casefold())
    found = re.finditer(rf"(?<!\w){re.escape(name.casefold())}(?!\w)", text)
    before = [text[max(0, match.start() - 60) : match.start()] for match in found]
    if name[:1].isdigit() and any(start.endswith("no ") for start in before):  # "No 5"
        return False
    return bool(before) and all(map(_DENIED.search, before))


def decide(question: str, first: str, second: str, *, cut: tuple[bool, bool] = (False, False)) -> bool | None:
    """Compare two raw answers without a model: by rules, equal normal forms and values.

    None means that a model must decide. The empty answer differs from any other answer. `cut` marks answers
    that end at the token limit: a number at their end is ignored.

    >>> decide("When?", "In 1988", "1989"), decide("When?", "the 4th of July, 1776", "July 4, 1776")
    (False, True)
    >>> decide("Which month?", "December 194", "December 1945", cut=(True, False)) is None
    True
    """
    forms = [normal_form(first), normal_form(second)]
    if not all(forms):
        return forms[0] == forms[1]
    values = values_read(forms, [not is_cut for is_cut in cut])
    verdict = compare(question, first, second) if forms == values else None
    if verdict is not None:
        return verdict
    return True if forms[0] == forms[1] else False if values_differ(*values) else None
