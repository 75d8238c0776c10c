"""Figures of a grid run as its page shows them."""

from __future__ import annotations

from dataclasses import dataclass

from semcal.report.grid_figures import GridFigure
from semcal.report.html import html_text
from semcal.report.svg import inline_svg

__all__ = ["PageFigure", "page_figure"]

#: Width on the screen of an inch of print.
REM_PER_INCH = 7.2


@dataclass(frozen=True)
class PageFigure:
    """A figure and its caption as markup.

    Attributes
    ----------
    number : str
    of : tuple of str
        As those of `GridFigure`.
    markup : str
    """

    number: str
    of: tuple[str, ...]
    markup: str


def page_figure(figure: GridFigure, name: str) -> PageFigure:
    """A figure as wide as in print, with its caption; `name` makes its ids its own."""
    caption = html_text(figure.caption)
    label = f"Figure {figure.number}: {figure.caption}"
    width = figure.figure.get_figwidth() * REM_PER_INCH
    svg = inline_svg(figure.figure, name, label)
    return PageFigure(
        figure.number,
        figure.of,
        f'<figure class="numbered"><figcaption><b>Figure {figure.number}.</b> {caption}</figcaption>\n'
        f'<div class="scroll" tabindex="0" role="region" aria-label="Figure {figure.number}">'
        f'<div class="drawn" style="width: {width:.1f}rem">{svg}</div></div>'
        "</figure>",
    )
