"""The word lists of the rules, from `words.txt`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from semcal.meaning.spelling import stem_of
from semcal.text import read_lists

#: The text of each list by its name.
WORD_LISTS = read_lists(Path(__file__).with_name("words.txt"))


def word_groups(name: str) -> list[list[str]]:
    """Return the words of each group of a list."""
    return [entry.split() for entry in WORD_LISTS[name].strip().replace("\n", "|").split("|")]


def word_pairs(name: str) -> dict[str, str]:
    """Return the second words of the entries of a list by their first words: "first=second"."""
    return dict(" ".join(entry).split("=") for entry in word_groups(name))


def listed_words(name: str) -> frozenset[str]:
    """Return the words of a list."""
    return frozenset(WORD_LISTS[name].split())


def any_listed(name: str) -> str:
    """Return a pattern that matches any word of a list, the longest first."""
    words = sorted(WORD_LISTS[name].split(), key=len, reverse=True)
    return f"(?:{'|'.join(words).replace('_', ' ')})"


def related_words(groups: Iterable[Sequence[str]]) -> dict[str, frozenset[str]]:
    """Map each word, and each stem, to the other members of its groups."""
    related: dict[str, frozenset[str]] = {}
    for group in groups:
        for words in (group, [*map(stem_of, group)]):
            for word in words:
                related[word] = related.get(word, frozenset()) | (frozenset(words) - {word})
    return related


def word_pattern(name: str) -> re.Pattern[str]:
    """Return a pattern for any word of a list, in any case."""
    return re.compile(rf"\b{any_listed(name)}\b", re.I)
