"""Tables of plain text, for terminals."""

from __future__ import annotations

from collections.abc import Sequence
from unicodedata import combining, east_asian_width


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
