"""report.html: what recalibration changed, scores, figures, every test question; one file, no network.

The page is page_files/page.html filled in. It opens on what a reader wants first; details are folded.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from semcal.experiment.analyses.calibrated import GAINS
from semcal.experiment.finished import FinishedRun, read_environment
from semcal.experiment.reading import yaml_text
from semcal.metrics import METRICS
from semcal.records import writing
from semcal.report import summary
from semcal.report.against_base import less_accurate_in_words
from semcal.report.explorer import Explorer, script_json
from semcal.report.grid_tables import cost_tables, grid_tables
from semcal.report.opening import calibrated_findings, calibrated_headline
from semcal.report.sections import PageFigure, sections_of
from semcal.report.tables import MISSING, Cell, Column, Table
from semcal.semantics import MEASURES

Results = Mapping[str, Any]

FILES = Path(__file__).with_name("page_files")
#: Refused rows that the page names; all of them stand in problems.jsonl.
NAMED = 200
#: Control characters but white space, and marks that turn the text behind them round.
UNSHOWN = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

#: Code → meaning.
METHODS = {
    "Base": "Nothing (temperature 1).",
    "SE": "Temperature 0.5, as in the work on semantic entropy.",
    "TS": "Temperature scaling: one temperature, fitted on labelled questions.",
    "Calibrated": "Base's answers, each with the probability that it is right, learnt from labels.",
    "TS-grid": "For each measure, one temperature out of a grid from 0.25 to 4.",
    "ATS": "Attentive temperature scaling: a small network gives each token its temperature.",
    "Platt": "A factor and an offset for each token of the vocabulary.",
    "NLL": "Loss of a fit: the negative log-likelihood of the reference answers.",
    "SS": "Loss of a fit: selective smoothing, which asks for doubt where the likeliest token is wrong.",
    "T": "Temperature: above 1 it makes a distribution flatter, below 1 sharper.",
}


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
        "Methods: what is done to the model's token probabilities": METHODS,
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
        {figure.of: figure.svg for figure in figures if figure.number == number} for number in ("0", "0a")
    )
    found, calibrated = summary.findings(results), calibrated_findings(results)
    sections = sections_of(results, figures, [*grid_tables(results), *cost_tables(results, environment)])
    script = _files("explorer.js", "page.js")
    problems = _problem_table(run)
    text: str = _template().render(
        title=f"{summary.listed(run.models)} on {summary.listed(run.datasets)}",
        facts=summary.facts(run, results),
        version=(environment.get("versions") or {}).get("semcal", ""),
        results=results,
        findings=[{"finding": one, "plot": plots.get(pair, Markup())} for one, pair in zip(found, run.pairs)],
        calibrated=[{"finding": one, "plot": thresholds[pair]} for one, pair in zip(calibrated, run.pairs)],
        calibrated_headline=calibrated_headline(calibrated) if calibrated else "",
        gains_key=GAINS.key,
        compared=list(dict.fromkeys((found[0].against, found[0].method))),
        headlines=summary.headlines(found),
        less_accurate=less_accurate_in_words(results),
        headline_table=summary.headline_table(results),
        sections=sections,
        links=_links({one.section.name for one in sections} | ({"gains"} if calibrated else set())),
        explorer_note=_explorer_note(run, explorer),
        claims_in_words=summary.claims_in_words(results),
        rules_note=summary.rules_note(results),
        closing_tables=[] if problems is None else [problems],
        settings=(run.folder / "settings.yaml").read_text(encoding="utf-8"),
        environment=environment,
        glossary=terms,
        codes={code: meaning for of_heading in terms.values() for code, meaning in of_heading.items()},
        style=_files("page.css"),
        script=script,
        script_hash=f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
        data=Markup(script_json(explorer.head)),
        blocks={name: Markup(packed) for name, packed in explorer.blocks.items()},
    )
    return text.lstrip()


def _links(sections: set[str]) -> dict[str, str]:
    """What stands in the bar at the top."""
    first = {"findings": "What changed", "scores": "Scores"}
    if "gains" in sections:
        first = {"gains": "Before and after", **first}
    some = {"measures": "By measure", "reliability": "Reliability", "selective": "Selective answering"}
    last = {"explorer": "Questions", "claims": "Claims", "settings": "Settings"}
    return {**first, **{name: said for name, said in some.items() if name in sections}, **last}


def _explorer_note(run: FinishedRun, explorer: Explorer) -> str:
    """What of the run the table of questions holds."""
    held = "Every run is here" if run.runs > 1 else "It is the one run"
    if len(explorer.runs) < run.runs:
        held = f"Of the {run.runs} runs the page holds run 0 alone, as all would make it too large"
    size = sum(map(len, explorer.blocks.values())) / 1e6
    return (
        "Every test question with its sampled answers, their meanings and what each measure made of them. "
        "Measures disagree where one selects a right answer and another a wrong one, or their confidences "
        f"are 0.5 or more apart. {held}; the questions take {size:.1f} MB of the page."
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
    return [(name, len(list(own))) for name, own in groupby(columns, key=lambda column: column.group)]


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
