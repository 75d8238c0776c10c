"""The parts of the page: which figures and tables stand together, and what the reader chooses them by.

Figures are SVG inside the page, in its fonts and its colours, light and dark.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from semcal.experiment.grid_settings import slug
from semcal.report.figures import BAND, INK, METHOD_COLOURS, OTHER, QUIET, RELIABILITY_NOTE, RULE, style
from semcal.report.grid_figures import GridFigure
from semcal.report.tables import Table

# ---- Figures as SVG ----------------------------------------------------------------------------------------

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


#: Width on the screen of an inch of print.
REM_PER_INCH = 7.2


@dataclass(frozen=True)
class PageFigure:
    """A figure as the page shows it: as wide as in print, with its caption."""

    number: str
    of: tuple[str, ...]  # what it shows, as in `GridFigure`
    caption: str
    svg: Markup
    width: float  # rem


def page_figure(figure: GridFigure, name: str) -> PageFigure:
    """A figure as an svg element; `name` makes its ids its own."""
    svg = Markup(inline_svg(figure.figure, name, f"Figure {figure.number}: {figure.caption}"))
    width = figure.figure.get_figwidth() * REM_PER_INCH
    return PageFigure(figure.number, figure.of, figure.caption, svg, width)


@dataclass(frozen=True)
class Section:
    """A part of the page: which figures and tables stand together."""

    name: str  # its anchor
    title: str
    figures: tuple[str, ...] = ()  # by number
    tables: tuple[str, ...] = ()  # by name; one that there is of every model is named without the model
    chosen: str = ""  # what its tables are chosen by, where one is shown at a time
    note: str = ""
    folded: bool = True
    behind: bool = False  # whether it stands behind the questions


SCORED = (
    *("03-main", "03b-ace-by-chance", "02b-selected-accuracies", "08c-gain", "08-brier", "08b-brier-parts"),
    *("09-ace-mcb", "10-ace-ece", "10b-ece-by-chance"),
    *("11-volatility-mcb", "11-volatility-ece", "score-maps"),
)
PAIRED = ("ace", "auroc", "brier", "accuracy", "se-conf", "se-vanilla", "gain")
FITS = ("07-temperatures", "refits", "fits", "losses", "token-classes", "transfer-ace", "transfer-brier")
SECTIONS = (
    Section(
        "scores",
        "Scores",
        ("3",),
        note="ACE is how far confidence and accuracy lie apart (0 is best); AUROC is how well confidence "
        "tells right answers from wrong ones (1 is best, 0.5 is chance).",
        folded=False,
    ),
    Section(
        "measures",
        "Scores by measure",
        tables=SCORED,
        note="± is the standard error over runs on the same questions; in brackets stands the "
        "95 % interval over questions.",
    ),
    Section(
        "calibrated",
        "Calibrated beside the other methods",
        tables=("calibrated", "calibrated-against"),
        note="Calibrated gives Base's answers: its accuracy is Base's, and only the probability beside each "
        "is another. The other methods draw answers of their own.",
        folded=False,
    ),
    Section(
        "against-base",
        "Each method against Base",
        tables=("against-base-accuracy", "against-base-gain"),
        note="Methods that draw other answers than Base can be better calibrated because they are wrong and "
        "know it: accuracy and gain show that, ACE and AUROC do not.",
    ),
    Section("paired", "Paired tests of TS", tables=tuple(f"paired-{name}" for name in PAIRED), chosen="Of"),
    Section("reliability", "Reliability by measure", ("11",), note=RELIABILITY_NOTE),
    Section("selective", "Selective answering", ("4", "5"), ("selective",)),
    Section("worked", "One question worked through", ("1", "2")),
    Section(
        "entropy", "Semantic entropy", tables=("04-entropy-short", "05-entropy-conf", "06-entropy-vanilla")
    ),
    Section("draws", "Number of sampled answers", ("6",)),
    Section("fits", "Losses and temperatures", ("7a", "7b"), FITS),
    Section("spread", "How the measures differ", ("9", "10")),
    Section(
        "answers",
        "Answers and grading",
        tables=("02-accuracies", "answers", "13-agreement", "deciding-rules", "rules-alone"),
        note="The sheet for judging the clusters by hand (table 12) stands in tables/12-audit.csv.",
        behind=True,
    ),
    Section(
        "remedies",
        "Reading numbers and dates",
        tables=("remedies", "remedies-scores", "remedies-by-measure"),
        note="The answers of one candidate in run 0, clustered again without the reading of numbers and "
        "dates. Linkage, NLI model and grading are the same. A labelled pair is two distinct answers to a "
        "question of which the data set knows whether they mean the same.",
        behind=True,
    ),
    Section(
        "costs",
        "Cost",
        tables=("cost-fits", "cost-stages", "growth"),
        note="CPU time of all processes of all sessions so far, as environment.json has it; another machine "
        "takes another time.",
        behind=True,
    ),
    Section("prompts", "Data and prompts", tables=("01-splits",), behind=True),
)
#: Shown apart from the sections.
APART = ("claims",)
#: What the figures of a number are told apart by.
TOLD_APART = {"11": ("Model", "Measure"), "4": ("Model",), "5": ("Model",)}


@dataclass(frozen=True)
class Part:
    """A figure, a table or a text, and what it is chosen by."""

    value: str
    figure: PageFigure | None = None
    table: Table | None = None
    text: str | None = None


@dataclass(frozen=True)
class Block:
    """Parts of which the reader sees one at a time."""

    parts: Sequence[Part]
    place: str = ""  # where on the page, unlike that of any other
    label: str = ""  # what is chosen; places of one choice change together
    title: str = ""

    @property
    def choice(self) -> str:
        return self.label.lower().replace(" ", "-")


@dataclass(frozen=True)
class Filled:
    """A section with what it shows."""

    section: Section
    blocks: Sequence[Block]


def sections_of(
    results: Mapping[str, Any], figures: Iterable[PageFigure], tables: Sequence[Table]
) -> list[Filled]:
    """Return the sections that have something to show.

    Tables that no section asks for (published numbers beside ours) stand in one of their own at the end.
    """
    drawn: dict[str, list[PageFigure]] = {}
    for figure in figures:
        drawn.setdefault(figure.number, []).append(figure)
    named = {table.name: table for table in tables}
    shown = set(APART)
    found = []
    for section in SECTIONS:
        blocks = [_figures(section, number, drawn[number]) for number in section.figures if number in drawn]
        kept = {name: _tables_of(name, results["models"], named) for name in section.tables}
        shown |= {table.name for of_name in kept.values() for table in of_name.values()}
        blocks += _tables(section, {name: of_name for name, of_name in kept.items() if of_name})
        if section.name == "prompts":
            blocks += _prompts(results["analyses"]["prompts"])
        if blocks or section.name == "scores":
            found.append(Filled(section, blocks))
    rest = [Block([Part("", table=table)]) for table in tables if table.name not in shown]
    if rest:
        found.append(Filled(Section("further", "Beside the published numbers", behind=True), rest))
    return found


def _figures(section: Section, number: str, drawn: Sequence[PageFigure]) -> Block:
    """The figures of one number: one, or a choice of what tells them apart."""
    kinds = TOLD_APART.get(number, ("Model", "Data set"))
    columns = list(zip(*(figure.of for figure in drawn)))
    apart = [i for i, column in enumerate(columns) if len(set(column)) > 1]
    label = " and ".join([kinds[i] for i in apart]).capitalize()
    parts = [Part(" · ".join(figure.of[i] for i in apart), figure=figure) for figure in drawn]
    return Block(parts, f"{section.name}-{number}", label)


def _tables_of(name: str, models: Sequence[str], named: Mapping[str, Table]) -> dict[str, Table]:
    """The table of a name, or the tables that there are of every model, by model."""
    if name in named:
        return {"": named[name]}
    each = {model: named.get(f"{name}-{slug(model)}") for model in models}
    return {model: table for model, table in each.items() if table is not None}


def _tables(section: Section, kept: Mapping[str, Mapping[str, Table]]) -> list[Block]:
    """The tables of a section: one after another, those by model behind a choice."""
    if section.chosen and kept:
        parts = [Part(name.partition("-")[2], table=of_name[""]) for name, of_name in kept.items()]
        return [Block(parts, section.name, section.chosen)]
    return [
        Block([Part(model, table=table) for model, table in of.items()], f"{section.name}-{name}", "Model")
        for name, of in kept.items()
    ]


def _prompts(entries: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Figure 8: the exact prompts, as text."""
    parts = [
        Part(f"{entry['model']} · {entry['dataset']}", text=entry["prompt"])
        for entry in entries
        if entry["prompt"] is not None
    ]
    title = "Figure 8. The exact prompt of the first test question."
    return [Block(parts, "prompts-8", "Model and data set", title)] if parts else []
