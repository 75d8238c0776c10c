"""How far one text lies from another: equal, numbers that moved by so much, or words that changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


@dataclass(frozen=True)
class Difference:
    """What differs in one file: the largest distance of two numbers, or the first words that differ."""

    name: str
    distance: float
    words: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.words or f'numbers differ by up to {self.distance:.3g}'}"


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[Difference]:
    """Files that are missing, new or different, in the order of their names."""
    found = [Difference(name, 0.0, "is missing") for name in before.keys() - after.keys()]
    found += [Difference(name, 0.0, "is new") for name in after.keys() - before.keys()]
    shared = before.keys() & after.keys()
    found += [_difference(name, before[name], after[name]) for name in shared if before[name] != after[name]]
    return sorted(found, key=lambda one: one.name)


def _difference(name: str, before: str, after: str) -> Difference:
    old_words, new_words = _NUMBER.split(before), _NUMBER.split(after)
    if old_words != new_words:
        return Difference(name, 0.0, _first_words(before, after))
    pairs = zip(_NUMBER.findall(before), _NUMBER.findall(after), strict=True)
    return Difference(name, max(abs(float(old) - float(new)) for old, new in pairs))


def _first_words(before: str, after: str, width: int = 60) -> str:
    at = next((i for i, (a, b) in enumerate(zip(before, after)) if a != b), min(len(before), len(after)))
    start = max(0, at - 20)
    return f"{before[start : at + width]!r} became {after[start : at + width]!r}"
