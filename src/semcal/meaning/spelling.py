"""Stems, transcriptions and scripts of words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from rapidfuzz.fuzz import ratio

_ENDING = re.compile(r"(?<=\w{3})(?:ing|ed|es|s|e)$")


@lru_cache(maxsize=1 << 14)
def stem_of(word: str) -> str:
    """Return a word without its English ending: a crude stem that all forms of the word share."""
    if len(word) < 4:
        return word
    word = _ENDING.sub("", f"{word[:-3]}f" if len(word) > 4 and word.endswith("ves") else word)
    word = f"{word[:-1]}i" if word[-1] == "y" else word
    return word[:-1] if word[-1] == word[-2] else word


_SPELLINGS = [
    (re.compile(pattern), letters)
    for pattern, letters in (
        *(("tsch|tch|ch", "C"), ("sch|sh", "S"), ("kh", "h"), ("ph", "f"), ("w", "v"), ("[yj]", "i")),
        *(
            ("ck|c(?=[aouklrt]|$)|q", "k"),
            ("ou", "u"),
            ("i(?=e)", ""),
            ("e[vf]$|of$", "ov"),
            (r"(.)\1", r"\1"),
        ),
    )
]


@lru_cache(maxsize=1 << 14)
def sound_of(word: str) -> str:
    """Return one spelling for all transcriptions of a word: Tchaikovsky, Tschaikowsky."""
    for pattern, letters in _SPELLINGS:
        word = pattern.sub(letters, word)
    return word


_POLITE = re.compile("(?:です|でした|だ|である|입니다|이다|的)?[。．.!！]?$")
_SCRIPTS = frozenset(
    ["CJK", "HANGUL", "DEVANAGARI", "GREEK", "ARABIC", "HEBREW", "THAI", "CYRILLIC", "BENGALI", "TAMIL"]
)


def _script(text: str) -> str:
    """Return the script of a text if the model does not read it well, else ""."""
    names = {unicodedata.name(letter, "").partition(" ")[0] for letter in text if letter.isalpha()}
    names = {"CJK" if name in ("HIRAGANA", "KATAKANA") else name for name in names}
    return min(names) if len(names) == 1 and names <= _SCRIPTS else ""


def compare_spellings(first: str, second: str) -> bool | None:
    """Compare short texts in one script that the model hardly knows; None for other texts and similar ones.

    >>> compare_spellings("東京です", "東京"), compare_spellings("東京", "京都")
    (True, False)
    """
    short, long = sorted((_POLITE.sub("", first), _POLITE.sub("", second)), key=len)
    script = _script(short)
    if not script or script != _script(long) or len(long) > (10 if script in ("CJK", "HANGUL") else 40):
        return None
    if short == long:
        return True
    letters = iter(long)
    shortened = all(letter in letters for letter in short)
    similar = shortened or any(ratio(a, b) > 60 for a in short.split() for b in long.split())
    return None if similar else False


_OFFICIAL = ("us", "united", "states", "national", "federal", "british")


def is_acronym(letters: str, words: Sequence[str]) -> bool:
    """Return whether an acronym has all initials and other letters of the words, in this order: AIDS, FDA."""
    while len(words) > len(letters) and words[0] in _OFFICIAL:
        words = words[1:]
    heads, rest, all_letters = "".join([word[0] for word in words]), iter(letters), iter("".join(words))
    spelled = all(head in rest for head in heads) and all(letter in all_letters for letter in letters)
    return spelled and 1 < len(heads) >= len(letters) - 1 and heads[0] == letters[0]


_GREEK = re.compile("[α-ωΑ-Ω]")
_POWER = re.compile(r"[⁰¹²³⁴-⁹]+(?![⁰¹²³⁴-⁹⁺⁻])")


def symbols_of(code: str) -> str:
    """Return a formula in one notation: powers with "^", no blanks, indices and braces."""
    text = _POWER.sub(lambda match: f"^{unicodedata.normalize('NFKC', match[0])}", code)
    text = unicodedata.normalize("NFKC", text).replace("−", "-").replace("√", "sqrt")
    text = _GREEK.sub(lambda match: unicodedata.name(match[0]).split()[-1].lower(), text)
    text = re.sub(r"(?<=[A-Za-z)])_(?=\{?\d)", "", re.sub(r"\^(?=\{?\d?[+-]\}?$)", "", text))  # H_2O, Ca^2+
    text = text.replace("\\cdot", "*").replace("\\times", "*").replace("**", "^")
    text = re.sub(r"\\(?=[A-Za-z]{2})|^\.(?=[a-z]\w*\(\)$)", "", text)  # \sqrt, .add()
    products = r"(?<=\w)\(\)$|(?<=\d)\*(?=[a-z(])|(?<![A-Za-z].)(?<=[A-Za-z])\*(?=[A-Za-z](?![a-z]))"
    text = re.sub(products, "", re.sub(r"[\s{}]", "", text))
    return re.sub(r"(?<=[a-z]{2})\((\w)\)", r"\1", text)  # sin(x)
