"""Questions that ask the same in nearly the same words, found without comparing all with all.

Two questions without passages are near-duplicates if they have the same words, in whatever order, but for
function words ("What's X?", "What is the X?") and at most one word of another spelling: one that begins
with the same three letters, holds no digit, and has a rapidfuzz ratio of at least 85 with the other.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from rapidfuzz.fuzz import ratio

from semcal.qa.datasets import Question

__all__ = ["near_duplicates", "words"]

#: Words that say how, but not what, is asked.
FUNCTION_WORDS = frozenset(
    {
        *("a", "an", "the", "this", "that", "there", "of", "in", "on", "at", "to", "for", "by"),
        *("is", "are", "was", "were", "be", "been", "am", "do", "does", "did", "has", "have", "had"),
        *("will", "would", "s", "re", "ve", "ll", "d", "m"),
    }
)
#: Least ratio of two spellings of a word.
SPELLING = 85.0
_NOT = re.compile(r"\b(ca|wo|[a-z]+)n['’]t\b")
_IRREGULAR = {"ca": "can", "wo": "will"}


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation.

    Examples
    --------
    >>> words("Who  wrote “Moonfleet”?")
    ['who', 'wrote', 'moonfleet']
    """
    text = unicodedata.normalize("NFKC", text).casefold()
    return "".join(" " if unicodedata.category(c)[0] in "PSZC" else c for c in text).split()


def _content(question: str) -> list[str]:
    """The words of a question but for function words, contractions written out.

    What is left of other contractions ("what's") is a function word; a question of function words alone
    keeps them.
    """
    text = _NOT.sub(lambda found: f"{_IRREGULAR.get(found[1], found[1])} not", question.casefold())
    every = words(text)
    return [word for word in every if word not in FUNCTION_WORDS] or every


def near_duplicates(parts: Mapping[str, Sequence[Question]]) -> tuple[tuple[str, str], ...]:
    """Find near-duplicates in different parts.

    Parameters
    ----------
    parts : mapping of str to sequence of Question
        Questions with a passage are left out: another passage makes another question of the same words.

    Returns
    -------
    tuple of (str, str)
        Ids of each pair, that of the earlier part first.

    Examples
    --------
    >>> train = [Question("1", "What's the capital of Freedonia?"), Question("2", "Who found it in 1901?")]
    >>> test = [Question("3", "What is the capital of Fredonia?"), Question("4", "Who found it in 1902?")]
    >>> near_duplicates({"train": train, "test": test})
    (('1', '3'),)
    """
    seen: dict[tuple[int, str], list[tuple[int, str, str]]] = defaultdict(list)
    found: dict[tuple[str, str], None] = {}
    for number, questions in enumerate(parts.values()):
        for question in questions:
            if question.context is not None:
                continue
            for key, odd in dict.fromkeys(_keys(_content(question.question))):
                for before, id, other in seen[key]:
                    if before != number and (odd == other or ratio(odd, other) >= SPELLING):
                        found[id, question.id] = None
                seen[key].append((number, question.id, odd))
    return tuple(found)


def _keys(content: Sequence[str]) -> Iterator[tuple[tuple[int, str], str]]:
    """What near-duplicates have in common, with the word that may differ.

    Words in whatever order are the sum of their hashes: a passage in a question has thousands of them.
    """
    every = sum(map(hash, content))
    yield (every, ""), ""
    if len(content) < 3:
        return
    for word in content:
        if len(word) > 3 and not any(map(str.isdigit, word)):
            yield (every - hash(word), word[:3]), word
