"""How far one text lies from another: equal, numbers that moved by so much, or words that changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

#: The hash of a drawing (page_text.py).
_FIGURE = re.compile(r"drawn \w{16}")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


@dataclass(frozen=True)
class Difference:
    """What differs in one file: the largest distance of two numbers, or the first words that differ."""

    name: str
    distance: float
    words: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.words or f'numbers differ by up to {self.distance:.3g}'}"


def differences(
    before: Mapping[str, str], after: Mapping[str, str], *, tolerance: float = 0.0
) -> list[Difference]:
    """List the files that are missing, new or different, in the order of their names.

    The distance of two numbers is their difference, divided by the absolute value of the first if that is
    above 1. With a tolerance, numbers within it are equal, and hashes of figures are not compared, since
    processors round differently.
    """
    if tolerance:
        before, after = (
            {name: _FIGURE.sub("", text) for name, text in one.items()} for one in (before, after)
        )
    found = [Difference(name, 0.0, "is missing") for name in before.keys() - after.keys()]
    found += [Difference(name, 0.0, "is new") for name in after.keys() - before.keys()]
    shared = before.keys() & after.keys()
    moved = (_difference(name, before[name], after[name]) for name in shared if before[name] != after[name])
    found += [one for one in moved if one.words or not tolerance or one.distance > tolerance]
    return sorted(found, key=lambda one: one.name)


def _difference(name: str, before: str, after: str) -> Difference:
    old_words, new_words = _NUMBER.split(before), _NUMBER.split(after)
    if old_words != new_words:
        return Difference(name, 0.0, _first_words(before, after))
    pairs = zip(map(float, _NUMBER.findall(before)), map(float, _NUMBER.findall(after)), strict=True)
    return Difference(name, max(abs(old - new) / max(1.0, abs(old)) for old, new in pairs))


def _first_words(before: str, after: str, width: int = 60) -> str:
    at = next((i for i, (a, b) in enumerate(zip(before, after)) if a != b), min(len(before), len(after)))
    start = max(0, at - 20)
    return f"{before[start : at + width]!r} became {after[start : at + width]!r}"
