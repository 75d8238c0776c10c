"""Text from a run as it can be set in a figure: only letters that the font has, lines that fit."""

from __future__ import annotations

import textwrap
from functools import lru_cache

from matplotlib import font_manager
from matplotlib.ft2font import FT2Font

__all__ = ["drawable", "shortened", "wrapped"]

#: What stands for a letter that the font lacks.
BLANK = "□"


@lru_cache
def _font(family: str) -> FT2Font:
    return font_manager.get_font(font_manager.findfont(family))


def drawable(text: str, family: str = "DejaVu Sans") -> str:
    """A text with a box for every letter that a font lacks; line ends stay.

    Examples
    --------
    >>> drawable("Bełchatów 中 ✓")
    'Bełchatów □ ✓'
    """
    font = _font(family)
    return "".join(c if c == "\n" or font.get_char_index(ord(c)) else BLANK for c in text)


def shortened(text: str, width: int) -> str:
    """One line of at most `width` letters.

    Examples
    --------
    >>> shortened("the town of Gri", 12), shortened("", 12)
    ('the town of…', '(empty)')
    """
    line = " ".join(drawable(text).split()) or "(empty)"
    return line if len(line) <= width else f"{line[: width - 1].rstrip()}…"


def wrapped(text: str, width: int, family: str = "DejaVu Sans") -> list[str]:
    """Lines of at most `width` letters; the text's own line ends stay.

    Examples
    --------
    >>> wrapped("one two three\\n\\nfour", 8)
    ['one two', 'three', '', 'four']
    """
    return [
        part
        for line in drawable(text, family).split("\n")
        for part in textwrap.wrap(line, width, drop_whitespace=True, replace_whitespace=False) or [""]
    ]
