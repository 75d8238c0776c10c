"""Normal forms of answers, and the numbers, values and names in them; aligned text, and a cache of texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, update_wrapper
from pathlib import Path
from typing import Any, TypeVar, cast
from unicodedata import combining, east_asian_width


def read_lists(path: Path) -> dict[str, str]:
    """Return the texts of the word lists in a file by their names; a list begins with "# name"."""
    _, *lists = re.split(r"^# ([\w ]+).*\n", path.read_text("utf-8"), flags=re.M)
    return dict(zip(lists[::2], lists[1::2]))


def width_of(text: str) -> int:
    """Return the number of columns that a text takes on a terminal."""
    return sum(0 if combining(letter) else 1 + (east_asian_width(letter) in "WF") for letter in text)


def aligned(rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """Return the lines of a table: the first `left` columns flush left, the others flush right.

    Examples
    --------
    >>> print(*aligned([["", "before", "after"], ["accuracy", "0.5", "0.55"]]), sep="\\n")
              before  after
    accuracy     0.5   0.55
    """
    widths = [max(map(width_of, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for place, (cell, width) in enumerate(zip(row, widths)):
            space = " " * (width - width_of(cell))
            cells.append(cell + space if place < left else space + cell)
        lines.append("  ".join(cells).rstrip())
    return lines


#: Maximum number of characters of a text in the large cache, and in the small cache of long texts.
SHORT, LONG = 200, 10_000
_LAST = 16

_Function = TypeVar("_Function", bound=Callable[..., Any])


def cache_texts(maxsize: int, size: Callable[[Any], int] = len) -> Callable[[_Function], _Function]:
    """Cache a function of a text like `lru_cache`, with only a few long texts and no huge text.

    `size` returns the number of characters of the first argument.

    >>> calls = []
    >>> count = cache_texts(100)(lambda text: calls.append(len(text)) or len(text))
    >>> [count(text) for text in ("ab", "ab", "c" * 20_000, "c" * 20_000)], calls
    ([2, 2, 20000, 20000], [2, 20000, 20000])
    """

    def decorate(function: _Function) -> _Function:
        short, long = lru_cache(maxsize)(function), lru_cache(_LAST)(function)

        def cached(text: Any, *further: Any) -> Any:
            n = size(text)
            return (short if n <= SHORT else long if n <= LONG else function)(text, *further)

        def cache_clear() -> None:
            short.cache_clear()
            long.cache_clear()

        vars(update_wrapper(cached, function))["cache_clear"] = cache_clear
        return cast("_Function", cached)

    return decorate
