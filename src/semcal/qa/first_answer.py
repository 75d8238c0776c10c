"""The first answer of a generation (spec 5.1): its first line, to the end of the first sentence."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["FirstAnswer", "first_answer"]

_TITLE_WORDS = (
    "mr mrs ms dr prof st ste mt ft gen col lt sgt cpl maj capt cmdr adm pvt rev hon gov sen rep pres supt"
    " messrs mme mlle fr vs cf"
)
_NUMBERED_WORDS = (
    "no nos vol op art fig ch pt pp sec ca approx jan feb mar apr jun jul aug sep sept oct nov dec"
)
_ENDING_WORDS = "jr sr inc ltd co corp bros etc esq al dept univ assn intl"
_OPENING_WORDS = (
    "the a an he she it they this that these those there his her its their we you in on at as when while"
    " after before although because if for but however also question answer context"
)
_TITLES = frozenset(_TITLE_WORDS.split())  # do not end a sentence, unless it is a name ("Amartya Sen.")
_BEFORE_NUMBERS = frozenset(_NUMBERED_WORDS.split())  # "No. 5"; but "No." is an answer
_ENDINGS = frozenset(_ENDING_WORDS.split())  # may end a sentence, and then keep their full stop
_OPENERS = frozenset(_OPENING_WORDS.split())  # capitalised after an abbreviation, they open a sentence

_CLOSERS = "\"'”’)]"
_STOP = re.compile(rf"[.!?]+[{re.escape(_CLOSERS)}]*(?=\s|$)")
_LAST_WORD = re.compile(r"[^\s(\[\"'“‘]+$")
_DOTTED = re.compile(r"(?:[^\W\d_]{1,3}\.)+[^\W\d_]{1,3}")
_INITIAL_BEFORE = re.compile(r"(?:^|[\s(])[^\W\d_]\.\s*$")
_NEXT_WORD = re.compile(r"\s*[\"'“‘(\[]*(?P<word>[^\W_]+)(?P<dot>\.?)")


@dataclass(frozen=True)
class FirstAnswer:
    """The first answer of a generation.

    Parameters
    ----------
    text : str
        The answer, stripped, without the full stop that closes its sentence.
    end : int
        Where it ends in the raw text, closing full stop included: `raw[:end]` is what is scored.
    """

    text: str
    end: int


def first_answer(text: str) -> FirstAnswer:
    """Cut the first answer out of a generation.

    Blanks and newlines before the answer are skipped; then it ends at the first newline, or at the end of
    its first sentence. A full stop inside initials, abbreviations or decimals ends no sentence. After an
    abbreviation that may stand last ("U.S.", "Jr.") or an initial, a sentence ends if the next word is
    capitalised and one that opens sentences ("The", "It"). The full stop of an abbreviation is kept.

    Parameters
    ----------
    text : str
        What the model generated.

    Returns
    -------
    FirstAnswer
        Empty, with `end` 0, if there is nothing but blanks.

    Examples
    --------
    >>> first_answer("J. R. R. Tolkien. He also wrote poems.")
    FirstAnswer(text='J. R. R. Tolkien', end=17)
    >>> first_answer("Washington D.C. is the capital").text, first_answer("Paris\\nQuestion: ...").text
    ('Washington D.C. is the capital', 'Paris')
    """
    start = len(text) - len(text.lstrip())
    if start == len(text):
        return FirstAnswer("", 0)
    line = text[: start + len(text[start:].splitlines()[0])]
    for stop in _STOP.finditer(line, start):
        if not line[stop.end() :].strip() or _ends_sentence(line, start, stop):
            return FirstAnswer(_without_full_stop(line[start : stop.end()]), stop.end())
    return FirstAnswer(line.strip(), len(line.rstrip()))


def _ends_sentence(line: str, start: int, stop: re.Match[str]) -> bool:
    """Whether this stop, with more text after it, closes a sentence."""
    signs = stop[0].rstrip(_CLOSERS)
    following = _NEXT_WORD.match(line, stop.end())
    word = following["word"] if following else ""
    if signs.endswith("..."):
        return False
    if signs.strip("."):
        return not word[:1].islower()  # "Yahoo! is"
    before = _last_word(line[max(start, stop.start() - 40) : stop.start()])
    if before in _BEFORE_NUMBERS:
        return not word[:1].isdigit()
    if not (before in _TITLES or _is_abbreviation(before)):
        return True
    opens = word[:1].isupper() and word.casefold() in _OPENERS
    return opens and following is not None and not following["dot"]  # "A. I. Velis"


def _last_word(text: str) -> str:
    found = _LAST_WORD.search(text[-40:])
    return found[0].casefold() if found else ""


def _is_abbreviation(word: str) -> bool:
    """Whether a word before a full stop is an initial, dotted ("u.s"), or short for something."""
    return word in _ENDINGS or (len(word) == 1 and word.isalpha()) or _DOTTED.fullmatch(word) is not None


def _without_full_stop(answer: str) -> str:
    """Drop the closing full stop unless an abbreviation or a row of initials needs it."""
    if not answer.endswith(".") or answer.endswith("..."):
        return answer
    body = answer[:-1]
    word = _last_word(body)
    in_row = len(word) == 1 and _INITIAL_BEFORE.search(body[-20:-1]) is not None
    if word in _ENDINGS or _DOTTED.fullmatch(word) or in_row:
        return answer
    return body.rstrip()
