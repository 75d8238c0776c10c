"""report.html: what recalibration changed, scores, figures, every test question; one file, no network.

The page is page_files/page.html filled in. It opens on what a reader wants first; details are folded.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from semcal.experiment.finished import FinishedRun, read_environment
from semcal.experiment.grid_settings import yaml_text
from semcal.experiment.report import summary
from semcal.experiment.report.cells import MISSING, Cell, Column, Results, Row, Table
from semcal.experiment.report.explorer import Explorer, script_json
from semcal.experiment.report.report_figures import REPORT_FIGURES, GridFigure
from semcal.experiment.report.report_tables import (
    PROMPTS,
    REPORT_TABLES,
    SCORES,
    SECTIONS,
    ReportTable,
    Section,
    less_accurate_in_words,
)
from semcal.files import writing
from semcal.measures import MEASURES
from semcal.metrics import METRICS
from semcal.plotting import BAND, INK, OTHER, QUIET, RULE, style
from semcal.recalibration.methods import RECALIBRATORS

FILES = Path(__file__).with_name("page_files")
#: Refused rows that the page names; all of them stand in problems.jsonl.
NAMED = 200
#: Control characters but white space, and marks that turn the text behind them round.
UNSHOWN = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def write_page(
    run: FinishedRun, results: Results, figures: Iterable[PageFigure], explorer: Explorer, folder: Path
) -> Path:
    """Write the page with some figures into a folder."""
    target = folder / "report.html"
    with writing(target) as handle:
        handle.write(page(run, results, figures, explorer))
    return target


def glossary() -> Mapping[str, Mapping[str, str]]:
    """Heading → code → meaning."""
    meanings = {metric.label: metric for metric in METRICS.values() if metric.meaning}
    return {
        "Measures: the confidence in an answer, from several sampled ones": {
            name: measure.meaning for name, measure in MEASURES.items() if measure.meaning
        },
        "Methods: what is done to the model's token probabilities": {
            **{name: method.meaning for name, method in RECALIBRATORS.items() if method.meaning},
            "NLL": "Loss of a fit: the negative log-likelihood of the reference answers.",
            "SS": "Loss of a fit: selective smoothing, which asks for doubt where the likeliest token is "
            "wrong.",
            "T": "Temperature: above 1 it makes a distribution flatter, below 1 sharper.",
        },
        "Calibration: does a confidence of 0.8 mean right four times in five?": {
            **{label: metric.meaning for label, metric in meanings.items() if not metric.ranks},
            "by chance": "What calibrated confidences would show on so few questions: the mean over outcomes "
            "drawn from them. p is the share of these that are at least as far off as what was observed.",
            "CORP": "The isotonic curve of accuracy against confidence, which needs no bins.",
        },
        "Discrimination: are right answers more confident than wrong ones?": {
            **{label: metric.meaning for label, metric in meanings.items() if metric.ranks},
            "SE_conf": "Semantic entropy as a predictor of whether the selected answer is right.",
            "SE_vanilla": "Semantic entropy as a predictor of whether the greedy answer is right.",
        },
    }


def page(run: FinishedRun, results: Results, figures: Iterable[PageFigure], explorer: Explorer) -> str:
    """Return the page of a run as text; the same run gives the same text."""
    environment, terms = read_environment(run.folder), glossary()
    figures = list(figures)
    plots, thresholds = (
        {figure.subjects: figure.svg for figure in figures if figure.number == number}
        for number in ("0", "0a")
    )
    recalibrated, calibrated = summary.findings(results), summary.calibrated_findings(results)
    sections = sections_of(results, figures)
    script = _files("explorer.js", "page.js")
    text: str = _template().render(
        title=f"{summary.listed(run.models)} on {summary.listed(run.datasets)}",
        facts=summary.facts(run, results),
        version=(environment.get("versions") or {}).get("semcal", ""),
        results=results,
        findings=[
            {"finding": finding, "plot": plots.get(pair, Markup())}
            for finding, pair in zip(recalibrated, run.pairs)
        ],
        calibrated=[
            {"finding": finding, "plot": thresholds[pair]} for finding, pair in zip(calibrated, run.pairs)
        ],
        calibrated_headline=summary.calibrated_headline(calibrated) if calibrated else "",
        compared=list(dict.fromkeys((recalibrated[0].against, recalibrated[0].method))),
        headlines=summary.headlines(recalibrated),
        less_accurate=less_accurate_in_words(results),
        headline_table=summary.headline_table(results),
        sections=sections,
        links=_links([filling.section for filling in sections], calibrated=bool(calibrated)),
        explorer_note=_explorer_note(run, explorer),
        problems=_problem_table(run),
        settings=(run.folder / "settings.yaml").read_text(encoding="utf-8"),
        environment=environment,
        glossary=terms,
        codes={code: meaning for of_heading in terms.values() for code, meaning in of_heading.items()},
        style=_files("page.css") + Markup(method_style()),
        script=script,
        script_hash=f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
        data=Markup(script_json(explorer.head)),
        blocks={name: Markup(packed) for name, packed in explorer.blocks.items()},
    )
    return text.lstrip()


def _links(sections: Sequence[Section], *, calibrated: bool) -> dict[str, str]:
    """What stands in the bar at the top."""
    links = {"gains": "Before and after"} if calibrated else {}
    links |= {"findings": "What changed", "scores": "Scores"}
    links |= {section.name: section.link for section in sections if section.link and not section.behind}
    links["explorer"] = "Questions"
    links |= {section.name: section.link for section in sections if section.link and section.behind}
    return links | {"settings": "Settings"}


def _explorer_note(run: FinishedRun, explorer: Explorer) -> str:
    """What of the run the table of questions holds."""
    runs = "Every run is here" if run.runs > 1 else "It is the one run"
    if len(explorer.runs) < run.runs:
        runs = f"Of the {run.runs} runs the page holds run 0 alone, as all would make it too large"
    size = sum(map(len, explorer.blocks.values())) / 1e6
    return (
        "Every test question with its sampled answers, their meanings and what each measure made of them. "
        "Measures disagree where one selects a right answer and another a wrong one, or their confidences "
        f"are 0.5 or more apart. {runs}; the questions take {size:.1f} MB of the page."
    )


def _problem_table(run: FinishedRun) -> Table | None:
    """The rows of the data that were refused, the first of them by name; None where all were taken."""
    rows = run.refused()
    if not rows:
        return None
    more = f" (the first {NAMED} of {len(rows)}; all stand in problems.jsonl)" if len(rows) > NAMED else ""
    keys = ("dataset", "line", "reason")
    return Table(
        "problems",
        f"Rows of the data that were refused, and why{more}",
        (Column("Data set"), Column("Line"), Column("Reason")),
        tuple(tuple(Cell(str(row.get(key, ""))) for key in keys) for row in rows[:NAMED]),
    )


# ---- Figures as SVG ----------------------------------------------------------------------------------------

#: Colours of the figures and the variables of page.css that take their place; methods have theirs beside.
VARIABLES = {
    INK: "var(--ink)",
    QUIET: "var(--quiet)",
    RULE: "var(--rule)",
    BAND: "var(--band)",
    OTHER: "var(--m-other)",
}

TAG = re.compile(r"<[^>]*>")
LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
COLOUR = re.compile(r"#[0-9a-f]{6}\b")
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


def variable_of(method: str) -> str:
    """The variable of the page's style that holds the colour of a method."""
    return f"--m-{method.lower()}"


def method_style() -> str:
    """The colours of methods on a light and a dark ground, as rules of style."""
    light = " ".join(f"{variable_of(name)}: {method.colour};" for name, method in RECALIBRATORS.items())
    dark = " ".join(
        f"{variable_of(name)}: {method.dark or method.colour};" for name, method in RECALIBRATORS.items()
    )
    marks = " ".join(
        f".m-{name}::before {{ background: var({variable_of(name)}); }}" for name in RECALIBRATORS
    )
    return (
        f":root {{ {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n{marks}\n"
    )


def inline_svg(figure: Figure, name: str, label: str) -> str:
    """Return a figure as an svg element; `label` says what it shows to those who do not see it.

    `name` is unique on the page and makes the ids of the figure unique.
    """
    buffer = io.StringIO()
    with style():
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = buffer.getvalue()
    text = NOISE.sub("", text[text.index("<svg") :])
    linked = set(re.findall(r"#([\w-]+)[\")]", text))
    text = ID.sub(lambda match: f' id="{name}-{match[1]}"' if match[1] in linked else "", text)
    text = re.sub(r'xlink:href="#', f'href="#{name}-', text).replace("url(#", f"url(#{name}-")
    of_methods = {method.colour: f"var({variable_of(name)})" for name, method in RECALIBRATORS.items()}
    variables = of_methods | VARIABLES
    text = TAG.sub(lambda tag: _tag(tag[0], variables), EMPTY.sub("", text))
    text = _classed(_ungrouped(text), name)
    box = re.search(r'viewBox="([^"]*)"', text)
    opening = f'<svg viewBox="{box[1] if box else ""}" role="img" aria-label="{escape(label)}">'
    return re.sub(r"<svg[^>]*>", lambda _: opening, text, count=1).strip()


def _tag(tag: str, variables: Mapping[str, str]) -> str:
    """A tag with rounded coordinates, the page's colours and the page's font."""
    tag = LONG_NUMBER.sub(lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), tag)
    tag = PATH.sub(lambda path: f' d="{SPACE.sub(_letter, path[1]).strip()}"', tag)
    tag = FONT.sub(lambda font: f"font-size: {font[1]}" if font[1] else "", tag)
    return COLOUR.sub(lambda colour: variables.get(colour[0], colour[0]), tag)


def _letter(match: re.Match[str]) -> str:
    return match[1]


def _ungrouped(text: str) -> str:
    """The text without groups that say nothing of what they hold."""
    written: list[bool] = []

    def group(match: re.Match[str]) -> str:
        if match["of"] is None:
            return match[0] if written.pop() else ""
        written.append(bool(match["of"].strip()))
        return match[0] if written[-1] else ""

    return GROUP.sub(group, text)


def _classed(text: str, name: str) -> str:
    """The text with a class for every style that occurs twice or more."""
    counts = Counter(STYLE.findall(text))
    classes = {style: f"{name}-{i}" for i, (style, n) in enumerate(counts.items()) if n > 1}
    rules = "".join(f".{css_class}{{{style}}}" for style, css_class in classes.items())
    text = STYLE.sub(lambda match: f' class="{classes[match[1]]}"' if match[1] in classes else match[0], text)
    return re.sub(r"<svg[^>]*>", lambda opening: f"{opening[0]}<style>{rules}</style>", text, count=1)


#: Width on the screen of an inch of print.
REM_PER_INCH = 7.2


@dataclass(frozen=True)
class PageFigure:
    """A figure as the page shows it: as wide as in print, with its caption."""

    number: str
    subjects: tuple[str, ...]  # what it shows, as in `GridFigure`
    caption: str
    svg: Markup
    width: float  # rem


def page_figure(figure: GridFigure, name: str) -> PageFigure:
    """A figure as an svg element; `name` makes its ids its own."""
    svg = Markup(inline_svg(figure.figure, name, f"Figure {figure.number}: {figure.caption}"))
    width = figure.figure.get_figwidth() * REM_PER_INCH
    return PageFigure(figure.number, figure.subjects, figure.caption, svg, width)


# ---- What stands in a section -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A figure, a table or a text, and what it is chosen by."""

    value: str
    figure: PageFigure | None = None
    table: Table | None = None
    text: str | None = None


@dataclass(frozen=True)
class Choice:
    """Parts of which the reader sees one at a time."""

    parts: Sequence[Part]
    place: str = ""  # where on the page, unlike that of any other
    label: str = ""  # what is chosen; places of one choice change together
    title: str = ""

    @property
    def choice(self) -> str:
        """What the places of one choice have in common."""
        return self.label.lower().replace(" ", "-")


@dataclass(frozen=True)
class Filled:
    """A section with what it shows."""

    section: Section
    blocks: Sequence[Choice]

    @property
    def parts(self) -> list[Part]:
        """All that it shows."""
        return [part for block in self.blocks for part in block.parts]


def sections_of(results: Results, figures: Iterable[PageFigure]) -> list[Filled]:
    """Return the sections that have something to show, those that no list here knows at the end."""
    by_number: dict[str, list[PageFigure]] = {}
    for figure in figures:
        by_number.setdefault(figure.number, []).append(figure)
    blocks: dict[Section, list[Choice]] = {section: [] for section in SECTIONS}
    for number, entry in REPORT_FIGURES.items():
        if entry.section is not None and number in by_number:
            place = blocks.setdefault(entry.section, [])
            place.append(_figures(entry.section, entry.told_apart, by_number[number]))
    for table in REPORT_TABLES.values():
        blocks.setdefault(table.section, []).extend(_tables(table, results))
    blocks[PROMPTS] += _prompts(results["analyses"]["prompts"])
    return [
        Filled(section, _one_choice(section, choices) if section.chosen and choices else choices)
        for section, choices in blocks.items()
        if choices or section is SCORES
    ]


def _figures(section: Section, kinds: Sequence[str], figures: Sequence[PageFigure]) -> Choice:
    """The figures of one number: one, or a choice of what tells them apart."""
    columns = list(zip(*(figure.subjects for figure in figures)))
    apart = [i for i, column in enumerate(columns) if len(set(column)) > 1]
    label = " and ".join([kinds[i] for i in apart]).capitalize()
    parts = [Part(" · ".join(figure.subjects[i] for i in apart), figure=figure) for figure in figures]
    return Choice(parts, f"{section.name}-{figures[0].number}", label)


def _tables(table: ReportTable, results: Results) -> list[Choice]:
    """A table, or those of all models behind a choice; none where there is nothing to show."""
    names = results["models"] if table.by_model else [table.name.removeprefix(f"{table.section.name}-")]
    parts = [Part(name, table=content) for name, content in zip(names, table.tables(results))]
    return [Choice(parts, f"{table.section.name}-{table.name}", "Model")] if parts else []


def _one_choice(section: Section, choices: Sequence[Choice]) -> list[Choice]:
    return [Choice([part for choice in choices for part in choice.parts], section.name, section.chosen)]


def _prompts(entries: Sequence[Row]) -> list[Choice]:
    """Figure 8: the exact prompts, as text."""
    parts = [
        Part(f"{entry['model']} · {entry['dataset']}", text=entry["prompt"])
        for entry in entries
        if entry["prompt"] is not None
    ]
    title = "Figure 8. The exact prompt of the first test question."
    return [Choice(parts, "prompts-8", "Model and data set", title)] if parts else []


# ---- The template -----------------------------------------------------------------------------------------


def _template() -> Any:
    environment = Environment(
        loader=FileSystemLoader(FILES, encoding="utf-8"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters |= {
        "grouped": _grouped,
        "in_short": in_short,
        "number_classes": _number_classes,
        "row_groups": _row_groups,
        "yaml": _as_yaml,
    }
    return environment.get_template("page.html")


def _files(*names: str) -> Markup:
    """The text of files of the page, one after another."""
    return Markup("".join((FILES / name).read_text(encoding="utf-8") for name in names))


def _shown(value: Any) -> Any:
    r"""What a page shows of a value: what UTF-8 cannot hold, or would turn round, becomes �.

    >>> _shown(" \u202ea\x00")
    ' �a�'
    """
    if isinstance(value, Markup):
        return value
    return UNSHOWN.sub("�", str(value).encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def _grouped(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """The wider headings above some columns, each with its number of columns."""
    return [(name, len(list(group))) for name, group in groupby(columns, key=lambda column: column.group)]


def _number_classes(table: Table) -> list[Markup]:
    """For each column the class of its cells: those of numbers are set to the right."""
    numbers = [any(cell.value is not None for cell in column) for column in zip(*table.rows)]
    return [
        Markup(' class="number"' if i >= table.heads and number else "")
        for i, number in enumerate(numbers or [False] * len(table.columns))
    ]


def _row_groups(table: Table, above: int) -> Iterator[tuple[str | None, list[tuple[Cell, ...]]]]:
    """The rows under what their first cells name; all under None where no cell stands above."""
    if not above:
        yield None, list(table.rows)
        return
    for name, rows in groupby(table.rows, key=lambda row: " · ".join(cell.text for cell in row[:above])):
        yield name, list(rows)


def in_short(value: Any) -> str:
    """A recorded value in words; a mapping as "name value, …", numbers to four digits.

    >>> in_short({"sample": 61.251, "runs": [0, 1], "top_k": None})
    'sample 61.25, runs 0, 1, top_k –'
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {in_short(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(in_short, value))
    if isinstance(value, float):
        return str(float(f"{value:.4g}")).removesuffix(".0")
    return MISSING if value is None else str(value)


def _as_yaml(value: Any) -> str:
    return yaml_text(_rounded(value))


def _rounded(value: Any) -> Any:
    """Numbers to four digits, however deep.

    >>> _rounded({"a": [0.123456, "b", 3]})
    {'a': [0.1235, 'b', 3]}
    """
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
