"""How far one text lies from another: equal, numbers that moved by so much, or words that changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

#: Hashes of drawings, weights, rows and calibrations.
_HASH = re.compile(r"(?<![.\w])(?=[0-9a-f]*[a-f])[0-9a-f]{12,64}\b(?![-+]\d)|drawn \w{16}")
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
    above 1. Processors round differently. With a tolerance, numbers within it are therefore equal, and so are
    numbers that differ by one in their last digit if they are decimals, or whole numbers from 100 on in the
    questions of a page, which hold decimals as whole numbers; hashes are not compared.
    """
    if tolerance:
        before, after = ({name: _HASH.sub("", text) for name, text in one.items()} for one in (before, after))
    found = [Difference(name, 0.0, "is missing") for name in before.keys() - after.keys()]
    found += [Difference(name, 0.0, "is new") for name in after.keys() - before.keys()]
    for name in before.keys() & after.keys():
        if before[name] != after[name]:
            one = _difference(name, before[name], after[name], rounded=tolerance > 0)
            if one.words or not tolerance or one.distance > tolerance:
                found.append(one)
    return sorted(found, key=lambda one: one.name)


def _difference(name: str, before: str, after: str, *, rounded: bool) -> Difference:
    old_words, new_words = _NUMBER.split(before), _NUMBER.split(after)
    if old_words != new_words:
        at = next((i for i, pair in enumerate(zip(old_words, new_words)) if pair[0] != pair[1]), -1)
        return Difference(name, 0.0, f"{old_words[at][:80]!r} became {new_words[at][:80]!r}")
    pairs = zip(_NUMBER.findall(before), _NUMBER.findall(after), strict=True)
    whole = 100.0 if name.endswith(".html") else float("inf")
    return Difference(
        name, max(0.0 if rounded and _is_rounding(*pair, whole) else _distance(*pair) for pair in pairs)
    )


def _distance(old: str, new: str) -> float:
    return abs(float(old) - float(new)) / max(1.0, abs(float(old)))


def _is_rounding(old: str, new: str, whole: float) -> bool:
    """Whether decimals, or integers from `whole` on, differ by one in the last digit at most."""
    if not (("." in old and "." in new) or abs(float(old)) >= whole):
        return False
    digits = min(len(number.partition(".")[2].partition("e")[0]) for number in (old, new))
    exponent = max(int(number.partition("e")[2] or 0) for number in (old, new))
    return abs(float(old) - float(new)) <= 1.01 * 10.0 ** (exponent - digits)
