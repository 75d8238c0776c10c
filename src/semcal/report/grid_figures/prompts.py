"""Figure 8: the exact prompts of a closed-book and of an open-book question, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from semcal.report.figures import INK, style
from semcal.report.grid_figures.lettering import wrapped

__all__ = ["prompt_figure", "prompts_of"]

FONT = "DejaVu Sans Mono"
#: Letters a line, their size in points, and the distance of lines in inches.
WIDTH, SIZE, LINE = 122, 6.3, 0.118


def prompts_of(entries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What was sent to the first model: "closed book, NAME" and "open book, NAME" → a prompt, once each.

    Parameters
    ----------
    entries : sequence of mappings
        {model, dataset, open_book, prompt}.
    """
    found: dict[bool, Mapping[str, Any]] = {}
    for entry in entries:
        if entry["prompt"] is not None:
            found.setdefault(entry["open_book"], entry)
    return {
        f"{'open' if book else 'closed'} book, {found[book]['dataset']}": found[book]["prompt"]
        for book in (False, True)
        if book in found
    }


@style()
def prompt_figure(prompts: Mapping[str, str]) -> Figure:
    """The prompts as a page of text, one under another.

    Parameters
    ----------
    prompts : mapping of str to str
        As `prompts_of` gives them.
    """
    parts = {title: wrapped(text, WIDTH, FONT) for title, text in prompts.items()}
    height = sum(0.5 + LINE * len(lines) for lines in parts.values())
    figure = Figure(figsize=(6.75, height))
    y = height
    for letter, (title, lines) in zip("ab", parts.items()):
        figure.text(0.012, (y - 0.2) / height, f"({letter}) {title}", size=8.5, color=INK, parse_math=False)
        for number, line in enumerate(lines):
            place = (y - 0.4 - LINE * number) / height
            figure.text(0.02, place, line, size=SIZE, family=FONT, color=INK, parse_math=False)
        y -= 0.5 + LINE * len(lines)
    return figure
