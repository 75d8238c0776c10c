"""Tables of short texts and of pairs, written in lines with bars between the cells."""

from __future__ import annotations


def texts(table: str) -> list[str]:
    """The texts of a table, in their order."""
    return table.strip().replace("\n", " | ").split(" | ")


def pairs(table: str) -> list[tuple[str, str]]:
    """The pairs of a table, whose members are written with an arrow between them."""
    found = []
    for text in texts(table):
        first, second = text.split(" → ")
        found.append((first, second))
    return found
