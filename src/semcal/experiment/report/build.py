"""The whole report of a run, from its folder: results.json, tables, results.md, figures and the page.

report.html shows the effects of methods, scores, figures and every test question. It is one file, needs no
network, and is made from page_files/page.html.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from itertools import groupby, product
from operator import itemgetter
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup
from matplotlib.figure import Figure

from semcal.experiment.analyses import analyse
from semcal.experiment.analyses.answer_analyses import audit_sheet
from semcal.experiment.analyses.grid_scores import Record
from semcal.experiment.analyses.score_analyses import MEASURE
from semcal.experiment.finished import (
    FinishedRun,
    read_environment,
    read_finished,
    read_results,
)
from semcal.experiment.grid_settings import FILE
from semcal.experiment.report.explorer import Explorer, explorer_blocks, script_json
from semcal.experiment.report.report_figures import REPORT_FIGURES, SUBJECTS, PlannedFigure, planned_figures
from semcal.experiment.report.report_tables import (
    ABOVE_CHANCE,
    PAIR,
    REPORT_TABLES,
    SECTIONS,
    Section,
    means,
    report_tables,
)
from semcal.experiment.report.tables import (
    Column,
    RunResults,
    Table,
    TableCell,
    answers_suffice,
    compared_methods,
    counted,
    csv_lines,
    csv_text,
    flagged,
    flagged_cell,
    heading_groups,
    in_order,
    is_higher,
    larger_is_better,
    listed,
    mark,
    markdown,
    markdown_text,
    marks_note,
    metric_title,
    number,
    select,
    table_latex,
    value_at,
    without_intervals,
)
from semcal.files import dumps, writing
from semcal.measures import MEASURES
from semcal.metrics import METRICS
from semcal.plotting import BAND, INK, OTHER, QUIET, RULE, shown_text, style
from semcal.recalibration.methods import RECALIBRATORS
from semcal.text import aligned
from semcal.workers import Executor, SerialExecutor


def remake(folder: Path, out: Path | None = None, executor: Executor[Any] | None = None) -> Path:
    """Analyze the stored samples of a run, and build the report; as `build`."""
    analyse(folder, out, executor)
    return build(folder, out, executor)


def build(folder: Path, out: Path | None = None, executor: Executor[Any] | None = None) -> Path:
    """Write the tables, results.md, the figures and the page of a run from its results.json.

    results.json is in `out`, where everything is written, by default the run folder. `executor` draws the
    figures and packs the questions, by default this process. Errors are those of `read_finished`, also if
    results.json is missing, damaged or of another schema.
    """
    executor, target = executor or SerialExecutor(None), Path(folder if out is None else out)
    run, results = read_finished(folder), read_results(target)
    in_files = run.settings.extras.figure_files
    drawing = executor.map(
        partial(_drawn, folder=target / "figures" if in_files else None),
        list(enumerate(planned_figures(run, results))),
        stage="report",
    )
    write_tables(run, results, target / "tables")
    explorer = explorer_blocks(run, executor)
    figures_of_page = [figure for figure in drawing if figure is not None]
    with writing(target / "results.md") as handle:
        handle.write(results_markdown(results))
    with writing(target / "report.html") as handle:
        handle.write(page(run, results, figures_of_page, explorer))
    return target / "report.html"


def _drawn(numbered: tuple[int, PlannedFigure], folder: Path | None) -> PageFigure | None:
    """Draw a figure once, for its files if there is a folder for them, and for the page."""
    number, plan = numbered
    figure = plan.drawn()
    if figure is None:
        return None
    if folder is not None:
        plan.write(figure, folder)
    return page_figure(plan, figure, f"f{number}")


# ---- Files of tables, and results.md ---------------------------------------------------------------------


def write_tables(run: FinishedRun, results: RunResults, folder: Path) -> None:
    """Write NAME.md, NAME.csv and NAME.tex of every table, and 12-audit.csv."""
    texts = {}
    for table in report_tables(results):
        texts[f"{table.name}.md"] = f"{_with_caption(table)}\n"
        texts[f"{table.name}.csv"] = csv_text(table)
        texts[f"{table.name}.tex"] = f"{table_latex(table)}\n"
    texts["12-audit.csv"] = _audit(run)
    for name, text in texts.items():
        with writing(folder / name) as handle:
            handle.write(text)


def _audit(run: FinishedRun) -> str:
    """Return the sheet of the first model on the first closed-book data set (else the first one)."""
    closed = [name for name in run.datasets if not run.open_book(name)]
    sheet = audit_sheet(run, run.models[0], (closed or run.datasets)[0])
    rows = [
        {**row, "clusters": " || ".join(" | ".join(cluster) for cluster in row["clusters"])} for row in sheet
    ]
    return csv_lines([list(sheet[0]), *(list(row.values()) for row in rows)])


def results_markdown(results: RunResults) -> str:
    """Return the sentences, the contrasts behind the claims, and the main tables without their intervals."""
    contrasts = REPORT_TABLES["contrasts"].tables(results)
    listed = [
        table for entry in REPORT_TABLES.values() if entry.in_markdown for table in entry.tables(results)
    ]
    parts = [
        *(markdown_text(sentence, begins=True) for sentence in sentences(results)),
        *map(markdown_text, cautions(results)),
        _with_caption(headline_table(results)),
        *(f"## {SECTIONS['contrasts'].title}\n\n{_with_caption(table)}" for table in contrasts),
        "## Tables",
        *(_with_caption(without_intervals(table)) for table in listed),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _with_caption(table: Table) -> str:
    return f"{markdown_text(table.caption, begins=True)}\n\n{markdown(table)}"


# ---- The page ----------------------------------------------------------------------------------------------

FILES = Path(__file__).with_name("page_files")


def glossary() -> Mapping[str, Mapping[str, str]]:
    """Return heading → code → meaning."""
    meanings = {metric.label: metric for metric in METRICS.values() if metric.meaning}
    return {
        "Measures: the confidence in an answer, from several samples": {
            name: measure.meaning for name, measure in MEASURES.items() if measure.meaning
        },
        "Methods: changes of the model's token probabilities": {
            **{name: method.meaning for name, method in RECALIBRATORS.items() if method.meaning},
            "NLL": "Loss of a fit: the negative log-likelihood of the reference answers.",
            "SS": "Loss of a fit: selective smoothing, which penalizes confidence if the most likely token "
            "is wrong.",
            "T": "Temperature: values above 1 flatten a distribution, values below 1 sharpen it.",
        },
        "Calibration: are 80% of the answers with confidence 0.8 right?": {
            **{label: metric.meaning for label, metric in meanings.items() if not metric.ranks},
            "noise floor": "Expected error of calibrated confidences on as many questions, by simulation. p "
            "is the share of simulations with at least the observed error.",
            "CORP": "The isotonic curve of accuracy against confidence, which needs no bins.",
        },
        "Discrimination: are right answers more confident than wrong ones?": {
            **{label: metric.meaning for label, metric in meanings.items() if metric.ranks},
            "SE_conf": "Semantic entropy as a predictor of whether the selected answer is right.",
            "SE_vanilla": "Semantic entropy as a predictor of whether the greedy answer is right.",
        },
    }


def page(run: FinishedRun, results: RunResults, figures: Iterable[PageFigure], explorer: Explorer) -> str:
    """Return the page of a run as text; the same run gives the same text."""
    environment, terms = read_environment(run.folder), glossary()
    figures = list(figures)
    shown = [*compared_methods(run.methods), *(["Calibrated"] if run.calibrated else [])]
    script = "".join((FILES / name).read_text(encoding="utf-8") for name in ("explorer.js", "page.js"))
    text = _template().render(
        title=f"{listed(run.models)} on {listed(run.datasets)}",
        sentences=sentences(results),
        notes=cautions(results),
        version=(environment.get("versions") or {}).get("semcal", ""),
        plots=[figure for number in ("0a", "0") for figure in figures if figure.number == number],
        compared=list(dict.fromkeys(shown)),
        headline_table=headline_table(results),
        sections=sections_of(results, figures),
        runs=run.runs,
        explorer=explorer,
        settings=(run.folder / FILE).read_text(encoding="utf-8"),
        environment=environment,
        glossary=terms,
        codes={code: meaning for of_heading in terms.values() for code, meaning in of_heading.items()},
        style=Markup((FILES / "page.css").read_text(encoding="utf-8")),
        methods=RECALIBRATORS,
        script=Markup(script),
        script_hash=f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
        data=Markup(script_json(explorer.head)),
        blocks={name: Markup(packed) for name, packed in explorer.blocks.items()},
    )
    return text.lstrip()


# ---- Figures as SVG ----------------------------------------------------------------------------------------

#: Colors of the figures, and the variables of page.css that replace them; methods have their own variables.
VARIABLES = {
    INK: "var(--ink)",
    QUIET: "var(--quiet)",
    RULE: "var(--rule)",
    BAND: "var(--band)",
    OTHER: "var(--m-other)",
}

LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
COLOUR = re.compile(r"#[0-9a-f]{6}\b")
FONT = re.compile(r"font: ([\d.]+px) [^;\"]*|font-family: [^;\"]*;?\s*")
NOISE = re.compile(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", re.DOTALL)
TAG = re.compile(r"<[^>]*>")
STYLE = re.compile(r' style="([^"]*)"')
ID = re.compile(r'\s+id="([^"]*)"')
LINES = re.compile(r"\s*\n\s*")
#: A path without points, such as an error bar of unknown length, and an empty group.
EMPTY = re.compile(r"<path(?![^>]* d=)[^>]*/>|<g[^>]*/>")


def variable_of(method: str) -> str:
    """Return the variable of the page's style for the color of a method."""
    return f"--m-{method.lower()}"


def inline_svg(figure: Figure, name: str, label: str) -> str:
    """Return a figure as an svg element; `label` describes it for readers who cannot see it.

    `name` is unique on the page and makes the ids of the figure unique.
    """
    buffer = io.StringIO()
    with style():
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = buffer.getvalue()
    text = NOISE.sub("", text[text.index("<svg") :])
    linked = set(re.findall(r"#([\w-]+)[\")]", text))
    text = ID.sub(lambda match: f' id="{name}-{match[1]}"' if match[1] in linked else "", text)
    text = text.replace('xlink:href="#', f'href="#{name}-').replace("url(#", f"url(#{name}-")
    of_methods = {method.colour: f"var({variable_of(name)})" for name, method in RECALIBRATORS.items()}
    text = TAG.sub(lambda tag: _tag(tag[0], of_methods | VARIABLES), EMPTY.sub("", LINES.sub(" ", text)))
    counts = Counter(STYLE.findall(text))  # a repeated style becomes a class, for a smaller page
    classes = {style: f"{name}-{i}" for i, (style, n) in enumerate(counts.items()) if n > 1}
    rules = "".join(f".{css_class}{{{style}}}" for style, css_class in classes.items())
    text = STYLE.sub(lambda match: f' class="{classes[match[1]]}"' if match[1] in classes else match[0], text)
    box = re.search(r'viewBox="([^"]*)"', text)
    opening = f'<svg viewBox="{box[1] if box else ""}" role="img" aria-label="{escape(label)}">'
    opening += f"<style>{rules}</style>"
    return re.sub(r"<svg[^>]*>", lambda _: opening, text, count=1).strip()


def _tag(tag: str, variables: Mapping[str, str]) -> str:
    """Return a tag with short numbers, the font of the page and its variables for colors."""
    tag = LONG_NUMBER.sub(lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), tag)
    tag = FONT.sub(lambda font: f"font-size: {font[1]}" if font[1] else "", tag)
    return COLOUR.sub(lambda colour: variables.get(colour[0], colour[0]), tag)


#: Width on the screen, in rem, of an inch of print.
REM_PER_INCH = 7.2


@dataclass(frozen=True)
class PageFigure:
    """A figure on the page: as wide as in print, with its caption."""

    number: str
    subjects: tuple[str, ...]  # as in `PlannedFigure`
    caption: str
    svg: Markup
    width: float  # in rem


def page_figure(plan: PlannedFigure, figure: Figure, name: str) -> PageFigure:
    """Return a figure as an svg element; `name` makes its ids unique."""
    svg = Markup(inline_svg(figure, name, f"Figure {plan.number}: {plan.caption}"))
    return PageFigure(plan.number, plan.subjects, plan.caption, svg, figure.get_figwidth() * REM_PER_INCH)


# ---- The content of sections ------------------------------------------------------------------------------


@dataclass(frozen=True)
class PagePart:
    """A figure, a table or a text, and its value in a choice."""

    value: str
    figure: PageFigure | None = None
    table: Table | None = None
    text: str | None = None


@dataclass(frozen=True)
class PageChoice:
    """Parts of which the reader sees one at a time."""

    parts: Sequence[PagePart]
    place: str = ""  # unique place on the page
    label: str = ""  # label of the choice; places with the same label change together
    title: str = ""


def sections_of(results: RunResults, figures: Iterable[PageFigure]) -> dict[Section, list[PageChoice]]:
    """Return the sections with content, and their content."""
    by_number: dict[str, list[PageFigure]] = {}
    for figure in figures:
        by_number.setdefault(figure.number, []).append(figure)
    blocks: dict[str, list[PageChoice]] = {name: [] for name in SECTIONS}
    for name, entry in REPORT_FIGURES.items():
        if entry.section and name in by_number:
            kinds = [SUBJECTS[key] for key in entry.each]
            blocks[entry.section].append(_figures(entry.section, kinds, by_number[name]))
    for table in REPORT_TABLES.values():
        # a table, or a choice among those of all models
        names = results["models"] if table.by_model else [table.name.removeprefix(f"{table.section}-")]
        parts = [PagePart(name, table=content) for name, content in zip(names, table.tables(results))]
        if parts:
            blocks[table.section].append(PageChoice(parts, f"{table.section}-{table.name}", "Model"))
    parts = [
        PagePart(f"{entry['model']} · {entry['dataset']}", text=entry["prompt"])
        for entry in results["analyses"]["prompts"]
        if entry["prompt"] is not None
    ]
    if parts:
        title = "Figure 8. The exact prompt of the first test question."
        blocks["prompts"].append(PageChoice(parts, "prompts-8", "Model and data set", title))
    for name, choices in blocks.items():
        if SECTIONS[name].chosen and choices:
            parts = [part for choice in choices for part in choice.parts]
            blocks[name] = [PageChoice(parts, name, SECTIONS[name].chosen)]
    return {SECTIONS[name]: choices for name, choices in blocks.items() if choices or name == "scores"}


def _figures(section: str, kinds: Sequence[str], figures: Sequence[PageFigure]) -> PageChoice:
    columns = list(zip(*(figure.subjects for figure in figures)))
    apart = [i for i, column in enumerate(columns) if len(set(column)) > 1]
    label = " and ".join([kinds[i] for i in apart]).capitalize()
    parts = [PagePart(" · ".join(figure.subjects[i] for i in apart), figure=figure) for figure in figures]
    return PageChoice(parts, f"{section}-{figures[0].number}", label)


# ---- The template -----------------------------------------------------------------------------------------


def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(FILES, encoding="utf-8"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters |= {
        "grouped": heading_groups,
        "as_json": dumps,
        "number_classes": _number_classes,
        "row_groups": _row_groups,
        "variable": variable_of,
    }
    return environment.get_template("page.html")


def _shown(value: Any) -> Any:
    r"""Return a value as text for the page, with � for invalid and direction-changing characters.

    >>> _shown(" \u202ea\x00")
    ' �a�'
    """
    return value if isinstance(value, Markup) else shown_text(str(value))


def _number_classes(table: Table) -> list[Markup]:
    numbers = [any(cell.value is not None for cell in column) for column in zip(*table.rows)]
    return [
        Markup(' class="number"' if i >= table.heads and number else "")
        for i, number in enumerate(numbers or [False] * len(table.columns))
    ]


def _row_groups(table: Table, above: int) -> Iterator[tuple[str, Iterator[tuple[TableCell, ...]]]]:
    return groupby(table.rows, key=lambda row: " · ".join(cell.text for cell in row[:above]))


# ---- The summary: three sentences --------------------------------------------------------------------------
# The sentences state figures. A gain over Base is better or worse only if its interval excludes zero and both
# sides have ten correct and ten wrong answers.


def sentences(results: RunResults) -> list[str]:
    """State the settings of a run, confidence and accuracy of each method, and gain over Base."""
    return list(filter(None, [facts(results), _confidence(results), _gains(results)]))


def facts(results: RunResults) -> str:
    """State the test questions, methods, runs and preset of a run."""
    sizes = {row["dataset"]: row["test"] for row in results["analyses"]["splits"]}
    tests = ", ".join(f"{name} ({counted(size, 'test question')})" for name, size in sizes.items())
    runs = "one run" if results["runs"] == 1 else f"{results['runs']} runs"
    calibrated = ["Calibrated"] * ("calibrated" in results["analyses"])
    refused = f"; {counted(results['problems'], 'row')} of the data rejected" if results["problems"] else ""
    served = "".join(
        f"; without {listed(names).replace('_', ' ')} for {model}, which is behind a server"
        for model, names in (results.get("left_out") or {}).items()
    )
    return (
        f"{tests}; {', '.join([*results['methods'], *calibrated])}; {runs} of "
        f"{counted(results['m'], 'sampled answer')} per question; preset {results['preset']}, seed "
        f"{results['seed']}{refused}{served}."
    )


def _confidence(results: RunResults) -> str:
    by_method: dict[str, list[tuple[float, float]]] = {}
    for row in select(results["analyses"]["confidence"], {"measure": MEASURE}):
        confidence, accuracy = (value_at(row, (key, "mean")) for key in ("mean_confidence", "accuracy"))
        if confidence is not None and accuracy is not None:
            by_method.setdefault(row["method"], []).append((confidence, accuracy))
    parts = []
    for method, pairs in by_method.items():
        confidence, accuracy = (sum(values) / len(values) for values in zip(*pairs))
        parts.append(f"{method} {confidence:.0%} and {accuracy:.0%}")
    return f"Mean confidence ({MEASURE}) and accuracy: {', '.join(parts)}." if parts else ""


def _gains(results: RunResults) -> str:
    """Count the pairs of model and data set on which the gain of a method is clearly larger or smaller."""
    analyses = results["analyses"]
    verdicts: dict[str, list[bool | None]] = {}
    rows = select(analyses.get("against_base") or [], {"measure": MEASURE})
    for row in flagged(results, [{**row, "against": "Base"} for row in rows]):
        verdicts.setdefault(row["method"], []).append(None if row["too_few"] else is_higher(row["gain"]))
    of_calibrated = analyses.get("calibrated") or []
    for row in of_calibrated:
        if gain := value_at(row, ("against", "Base", "gain")):
            (base,) = select(of_calibrated, {**{key: row[key] for key in PAIR}, "method": "Base"})
            enough = answers_suffice(row, base)
            verdicts.setdefault(row["method"], []).append(is_higher(gain) if enough else None)
    parts = [
        f"{method} better on {found.count(True)} and worse on {found.count(False)} of "
        f"{counted(len(found), 'data set' if len(results['models']) == 1 else 'pair')}"
        for method, found in verdicts.items()
    ]
    pairs = " (a pair is a model and a data set)" if len(results["models"]) > 1 else ""
    return f"Gain over Base: {'; '.join(parts)}{pairs}." if parts else ""


def cautions(results: RunResults) -> list[str]:
    """Return the warnings of the calibrations of a run."""
    return [
        f"Calibrated, {row['model']} on {row['dataset']}: {warning}."
        for row in results["analyses"].get("calibrated") or []
        for warning in row.get("calibration", {}).get("warnings", ())
    ]


def in_words(results: RunResults) -> list[str]:
    """Return the sentences and the tables of methods of a run (results.json), for a terminal."""
    (table,) = REPORT_TABLES["calibrated"].tables(results) or [headline_table(results)]
    rows = [[column.heading for column in table.columns]]
    rows += [[cell.text for cell in row] for row in table.rows]
    lines = [*sentences(results), *cautions(results)]
    if table.heads < 3:
        return [*lines, "", *aligned(rows, left=table.heads)]
    for (model, dataset), of_set in groupby(rows[1:], key=itemgetter(0, 1)):
        name = dataset if len(results["models"]) == 1 else f"{model} on {dataset}"
        columns = [[name, *rows[0][3:]], *(row[2:] for row in of_set)]
        lines += ["", *aligned(list(zip(*columns, strict=True)))]
    return lines


# ---- The table of the summary ------------------------------------------------------------------------------


def headline_table(results: RunResults) -> Table:
    """Return ACE, AUROC and accuracy of each method, means over measures and runs, by model and data set."""
    methods, metrics = in_order(results["methods"]), ("ace", "auroc", "accuracy", "gain")
    paths = {key: (key, "mean") for key in metrics} | {"ace_floor": ("ace_floor",)}
    confidence = means(results["analyses"]["confidence"], ("model", "dataset", "method"), paths)
    body, shown = [], list[Record]()
    for model, dataset in product(results["models"], results["datasets"]):
        heads = [{"model": model, "dataset": dataset, "method": method} for method in methods]
        rows = flagged(results, [{**head, **next(iter(select(confidence, head)), {})} for head in heads])
        cells: list[TableCell] = []
        for metric in metrics:
            of_metric = [
                flagged_cell(number(row.get(metric)), row, row.get(f"{metric}_floor")) for row in rows
            ]
            cells += mark(of_metric, larger=larger_is_better(metric))
        shown += rows
        body.append((TableCell(model), TableCell(dataset), *cells))
    columns = [Column(method, metric_title(metric)) for metric in metrics for method in methods]
    return Table(
        "headline",
        "ACE (lower is better), and AUROC, accuracy and gain of the selected answers (higher is better), of "
        "each method, mean over measures and runs; the best is bold; ⁼ marks ties after rounding"
        f"{ABOVE_CHANCE}{marks_note(shown)}",
        (Column("Model"), Column("Data set"), *columns),
        tuple(body),
        heads=2,
    )
