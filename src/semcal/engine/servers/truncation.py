"""Whether a server cuts the distribution that it draws from, although every request asks for all of it.

One draw that a cut would not have left rules it out for certain. If none comes, the server's own
log-probabilities say how likely that was without a cut: below `FALSE_ALARM`, the server cuts. Top-k has no
such bound where the whole vocabulary is not known: then 50 or fewer different tokens among 1024 draws at the
largest temperature count as a cut. What would be seen: top-k up to 50, top-p up to 0.95, min-p from 0.05 on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import scipy
from numpy.typing import NDArray

#: How likely it is, for each kind of cut, that a server that does not cut is said to.
FALSE_ALARM = 1e-6
#: What is looked for, a little wider than what servers have as defaults: near ties may go either way.
TOP_K, TOP_P, MIN_P = 50, 0.96, 0.04
#: How far from 1 servers' probabilities may add up.
ROUNDING = 1e-4
#: Draws asked for at a time, and at most for one kind of cut.
ROUND, MOST = 64, 1024

Key = int | str
"""A token: its id, or its text where ids are not told."""
Draw = Callable[[int, float, int], Sequence[Key]]
"""Draws one token to a prompt (its index) at a temperature, with a seed, `ROUND` times or fewer."""


@dataclass(frozen=True)
class Known:
    """The likeliest tokens after a prompt, likeliest first, with natural log-probabilities at T = 1."""

    keys: tuple[Key, ...]
    log_probs: NDArray[np.float64]
    whole: bool  # they are the whole vocabulary

    @classmethod
    def of(cls, top: Mapping[Key, float], *, whole: bool) -> Known:
        """From the alternatives of a token."""
        keys = sorted(top, key=lambda key: -top[key])
        return cls(tuple(keys), np.array([top[key] for key in keys]), whole)

    def shares(self, temperature: float) -> NDArray[np.float64]:
        """Upper bounds of their probabilities at a temperature from 1 on; exact at 1 or if `whole`.

        What is missing from 1 adds least to Σ p^(1/T) where as many tokens as can be are as likely as the
        last known one (x^(1/T) is concave). Two tokens of one text hide how likely that is.
        """
        weights = np.exp(self.log_probs / temperature)
        rest = 0.0 if self.whole else max(0.0, 1.0 - ROUNDING - float(np.exp(self.log_probs).sum()))
        hidden = any("\N{REPLACEMENT CHARACTER}" in key for key in self.keys if isinstance(key, str))
        largest = 1.0 if hidden else float(np.exp(self.log_probs[-1]))
        m = math.floor(rest / largest) if largest else 0
        tail = m * largest ** (1 / temperature) + max(0.0, rest - m * largest) ** (1 / temperature)
        found: NDArray[np.float64] = weights / (weights.sum() + tail)
        return found

    def kept(self, cut: str, temperature: float) -> int | None:
        """How many of the likeliest tokens top-p or min-p would leave; None if that cannot be known.

        Servers cut before the temperature is applied or after it; from T = 1 on, the latter leaves more.
        """
        if cut == "min-p":
            left = int((self.log_probs >= self.log_probs[0] + temperature * math.log(MIN_P)).sum())
            return left if left < len(self.keys) or self.whole else None
        if temperature != 1 and not self.whole:
            return None
        left = int(np.searchsorted(self.shares(temperature).cumsum(), TOP_P)) + 1
        return left if left < len(self.keys) else None


def find_truncation(
    draw: Draw, known: Sequence[Known | None], temperatures: Sequence[float]
) -> tuple[str | None, tuple[str, ...]]:
    """Return how draws are cut, or None; and the kinds of cut that would have been seen.

    `draw` draws one token to a prompt (by its number) at a temperature with a seed, an empty list if the
    server refused; `known` is what is known of the distribution after each prompt; `temperatures` are those
    that the server accepts, in ascending order, from 1 on.
    """
    masked = [one for one in known if one is not None and np.isneginf(one.log_probs).any()]
    if masked:
        left = int(np.isfinite(masked[0].log_probs).sum())
        return f"{left} tokens (all others have probability 0)", ("top-k", "top-p", "min-p")
    found, tested = [], []
    for cut, look in (("top-k", _look_for_top_k), ("top-p", _look_for_mass), ("min-p", _look_for_mass)):
        seen = look(cut, draw, known, temperatures)
        if seen is not None:
            tested.append(cut)
            found += [seen] if seen else []
    return " and ".join(found) or None, tuple(tested)


def _look_for_mass(
    cut: str, draw: Draw, known: Sequence[Known | None], temperatures: Sequence[float]
) -> str | None:
    """How draws are cut, "" if they are not, None if that cannot be told."""
    best, where = 0.0, None
    for index, one in enumerate(known):
        for temperature in temperatures if one is not None else ():
            left = one.kept(cut, temperature) if one is not None else None
            if one is not None and left is not None:
                missing = 1 - float(one.shares(temperature)[:left].sum())
                if missing > best:
                    best, where = missing, (index, temperature, frozenset(one.keys[:left]))
    if where is None or (1 - best) ** MOST > FALSE_ALARM:
        return None
    index, temperature, left_over = where
    number = 0
    for drawn in _rounds(draw, index, temperature):
        number += len(drawn)
        if not left_over.issuperset(drawn):
            return ""
        if (1 - best) ** number <= FALSE_ALARM:
            return (
                f"{cut}: none of {number} draws at T = {temperature:g} was among the tokens that it cuts, "
                f"where {best * number:.0f} were expected"
            )
    return None


def _look_for_top_k(
    cut: str, draw: Draw, known: Sequence[Known | None], temperatures: Sequence[float]
) -> str | None:
    """As `_look_for_mass`. Few different tokens count as a cut unless the whole vocabulary explains them."""
    temperature = temperatures[-1]
    flattest = min(range(len(known)), key=lambda i: one.log_probs[0] if (one := known[i]) is not None else 0)
    different: set[Key] = set()
    number = 0
    for drawn in _rounds(draw, flattest, temperature):
        number += len(drawn)
        different.update(drawn)
        if len(different) > TOP_K:
            return ""
        if number >= ROUND and len(different) == 1:  # a token that always comes first, such as <think>
            return None
    first = known[flattest]
    if first is not None and first.whole:
        others = 1 - float(first.shares(temperature)[:TOP_K].sum())
        if scipy.special.bdtr(TOP_K, number, max(0.0, others)) > FALSE_ALARM:
            return None
    if number < ROUND:
        return None
    return f"{cut}: {number} draws at T = {temperature:g} gave only {len(different)} different tokens"


def _rounds(draw: Draw, index: int, temperature: float) -> Iterator[Sequence[Key]]:
    """Draws, a round at a time, until `MOST` of them are there or the server gives no more."""
    number = 0
    for seed in count(1):
        drawn = draw(index, temperature, seed) if number < MOST else ()
        number += len(drawn)
        if not drawn:
            return
        yield drawn
