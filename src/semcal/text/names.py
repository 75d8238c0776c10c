"""Letters, signs and Roman numerals that distinguish names: "Vitamin A", "C#", "O+", "Henry VIII".

A normal form has neither case nor most punctuation, and its normal form must be the same text. Therefore the
words around an "a" decide between article and letter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from semcal.text.numbers import MONTHS

_CLOSED_CLASSES = """
a an the this that these those
i you he she it we they me him her us them my your his its our their mine yours hers ours theirs
myself yourself himself herself itself ourselves themselves who whom whose which what
and or nor but if than then so as because while although though unless until
of in on at by for with from to into onto upon about against between through during before after
above below under over within without along across behind beyond among around near per via
not no there here when where why how both each either neither some any all such only also too very
just again ever never
"""

_AUXILIARIES = """
am is are was were be been being do does did done has have had having
can could may might must shall should will would
"""
AUXILIARY_VERBS = frozenset(_AUXILIARIES.split())
STOP_WORDS = frozenset(_CLOSED_CLASSES.split()) | AUXILIARY_VERBS
"""Function words: the closed classes of grammar."""

# Letters

_WITH_LETTER = """
hepatitis influenza flu vitamin provitamin type subtype group grade class category schedule section
appendix annex plan serie league coenzyme protein toxin haemophilia hemophilia strep streptococcus
"""
_LETTERED = frozenset(_WITH_LETTER.split())
"""Words before a letter that is a name."""
_CONNECTIVES = """
of in to for from by with at on and or nor is was are were has had does as than that which who when if
versus vs + - * / ^ && || < > =
"""
_NEVER_AFTER_ARTICLE = frozenset(_CONNECTIVES.split())
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
    r"""[\\^] | \w@\w | \w_\w | [<>=] | && | \|\| | \(\) | ^!\w | ^(?:/[\w.-]+){2,}/?$ | ^\[.*\]$
    | ^[a-z]\w*\(\w[\w,\ ]*\)$ | ^[a-z]{1,12}\ --?[a-zA-Z]\w*$
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
_NO_NAMES = frozenset(
    [
        *(*MONTHS, *STOP_WORDS, "no", "day", "days"),
        *("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"),
        *("won", "win", "wins", "took", "take", "takes", "made", "make", "became", "become", "becomes"),
        *("got", "get", "gets", "came", "come", "comes", "said", "saw", "wrote", "read", "left", "lost"),
        *("gave", "began", "plead", "pleads", "include", "includes", "finish", "like", "called", "named"),
        *("one", "late", "once", "even", "still", "until", "till", "since", "unlike", "behind", "minus"),
    ]
)
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
