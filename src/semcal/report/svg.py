"""Matplotlib figures as SVG that lives inside an HTML page: its fonts, its colours in light and dark."""

from __future__ import annotations

import io
import re
from collections import Counter
from html import escape

from matplotlib.figure import Figure

from semcal.report.figures import BAND, INK, METHOD_COLOURS, OTHER, QUIET, RULE, style

__all__ = ["inline_svg"]

#: Colours of the figures and the variables of page.css that take their place.
VARIABLES = {
    INK: "var(--ink)",
    QUIET: "var(--quiet)",
    RULE: "var(--rule)",
    BAND: "var(--band)",
    OTHER: "var(--m-other)",
    **{colour: f"var(--m-{method.lower()})" for method, colour in METHOD_COLOURS.items()},
}

TAG = re.compile(r"<[^>]*>")
LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
COLOUR = re.compile("|".join(VARIABLES))
FONT = re.compile(r"font: ([\d.]+px) [^;\"]*|font-family: [^;\"]*;?\s*")
NOISE = re.compile(
    r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->|<defs>\s*</defs>|\n\s*(?=[<])", re.DOTALL
)
#: A path without points, such as an error bar of unknown length, and a group without anything.
EMPTY = re.compile(r"<path(?![^>]* d=)[^>]*/>|<g[^>]*/>")
PATH = re.compile(r'\sd="([^"]*)"')
#: The space that a path does without: around its letters.
SPACE = re.compile(r"\s*([MLCQz])\s*")
GROUP = re.compile(r"<g(?P<of>[^>]*)>|</g>")
STYLE = re.compile(r' style="([^"]*)"')
ID = re.compile(r'\s+id="([^"]*)"')


def inline_svg(figure: Figure, name: str, label: str) -> str:
    """Return a figure as an svg element; `label` says what it shows to those who do not see it.

    `name` is unique on the page and makes the ids of the figure unique.
    """
    buffer = io.StringIO()
    with style():
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = buffer.getvalue()
    text = NOISE.sub("", text[text.index("<svg") :])
    used = set(re.findall(r"#([\w-]+)[\")]", text))
    text = ID.sub(lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", text)
    text = re.sub(r'xlink:href="#', f'href="#{name}-', text).replace("url(#", f"url(#{name}-")
    text = TAG.sub(lambda tag: _tag(tag[0]), EMPTY.sub("", text))
    text = _classed(_ungrouped(text), name)
    box = re.search(r'viewBox="([^"]*)"', text)
    opening = f'<svg viewBox="{box[1] if box else ""}" role="img" aria-label="{escape(label)}">'
    return re.sub(r"<svg[^>]*>", lambda _: opening, text, count=1).strip()


def _tag(tag: str) -> str:
    """A tag with rounded coordinates, the page's colours and the page's font."""
    tag = LONG_NUMBER.sub(lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), tag)
    tag = PATH.sub(lambda found: f' d="{SPACE.sub(_letter, found[1]).strip()}"', tag)
    tag = FONT.sub(lambda found: f"font-size: {found[1]}" if found[1] else "", tag)
    return COLOUR.sub(lambda colour: VARIABLES[colour[0]], tag)


def _letter(found: re.Match[str]) -> str:
    return found[1]


def _ungrouped(text: str) -> str:
    """The text without groups that say nothing of what they hold."""
    kept: list[bool] = []

    def group(found: re.Match[str]) -> str:
        if found["of"] is None:
            return found[0] if kept.pop() else ""
        kept.append(bool(found["of"].strip()))
        return found[0] if kept[-1] else ""

    return GROUP.sub(group, text)


def _classed(text: str, name: str) -> str:
    """The text with a class for every style that occurs twice or more."""
    counts = Counter(STYLE.findall(text))
    classes = {style: f"{name}-{i}" for i, (style, n) in enumerate(counts.items()) if n > 1}
    rules = "".join(f".{own}{{{style}}}" for style, own in classes.items())
    text = STYLE.sub(lambda found: f' class="{classes[found[1]]}"' if found[1] in classes else found[0], text)
    return re.sub(r"<svg[^>]*>", lambda opening: f"{opening[0]}<style>{rules}</style>", text, count=1)
