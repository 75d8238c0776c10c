"""The parts of the page of a grid run: which tables and figures stand together, and how they are shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from semcal.experiment.paths import slug
from semcal.report.html import choices, html_table, html_text
from semcal.report.page_figures import PageFigure
from semcal.report.tables import Table

__all__ = ["SECTIONS", "Section", "claims_html", "sections_of"]

#: How verdicts are coloured; others are open.
VERDICTS = {"holds": "holds", "does not hold": "fails"}


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes
    ----------
    name : str
        Its anchor.
    title : str
    figures : tuple of str
        Numbers of its figures, which come first.
    tables : tuple of str
        Names of its tables; one that there is of every model is named without the model.
    chosen : str
        What its tables are chosen by, where one is shown at a time.
    note : str
    """

    name: str
    title: str
    figures: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    chosen: str = ""
    note: str = ""


PAIRED = ("ace", "auroc", "brier", "accuracy", "se-conf", "se-vanilla", "gain")

SECTIONS = (
    Section(
        "scores",
        "Calibration and discrimination",
        ("3",),
        (
            *("03-main", "08-brier", "08b-brier-parts", "09-ace-mcb", "10-ace-ece"),
            *("11-volatility-mcb", "11-volatility-ece"),
        ),
        note="ACE is how far confidence and accuracy lie apart (0 is best); AUROC is how well confidence "
        "tells right answers from wrong ones (1 is best, 0.5 is chance). ± is the standard error over runs, "
        "which holds the questions fixed; in brackets stands the 95 % interval over questions.",
    ),
    Section("paired", "Paired tests of TS", tables=tuple(f"paired-{name}" for name in PAIRED), chosen="Of"),
    Section("worked", "One question worked through", ("1", "2")),
    Section(
        "entropy", "Semantic entropy", tables=("04-entropy-short", "05-entropy-conf", "06-entropy-vanilla")
    ),
    Section("selective", "Selective answering", ("4", "5"), ("selective",)),
    Section("draws", "Number of sampled answers", ("6",)),
    Section(
        "fits",
        "Losses and temperatures",
        ("7a", "7b"),
        ("07-temperatures", "refits", "fits", "losses", "token-classes", "transfer-ace", "transfer-brier"),
    ),
    Section("spread", "How the measures differ", ("9", "10")),
    Section(
        "answers",
        "Answers and grading",
        tables=(
            *("02-accuracies", "02b-selected-accuracies", "answers", "13-agreement", "deciding-rules"),
            "rules-alone",
        ),
        note="The sheet for judging the clusters by hand (table 12) stands in tables/12-audit.csv.",
    ),
    Section(
        "remedies",
        "Reading numbers and dates",
        tables=("remedies", "remedies-scores", "remedies-by-measure"),
        note="The answers of one candidate in run 0, clustered again without the reading of numbers and "
        "dates. Linkage, NLI model and grading are the same. A labelled pair is two distinct answers to a "
        "question of which the data set knows whether they mean the same.",
    ),
    Section(
        "costs",
        "Cost",
        tables=("cost-fits", "cost-stages", "growth"),
        note="CPU time of all processes of all sessions so far, as environment.json has it; another machine "
        "takes another time.",
    ),
    Section("prompts", "Data and prompts", tables=("01-splits",)),
)
#: Shown apart from the sections.
APART = ("claims", "deviations")


def sections_of(
    results: Mapping[str, Any], figures: Iterable[PageFigure], tables: Sequence[Table]
) -> list[tuple[Section, str]]:
    """Return the sections that have something to show, each with its markup.

    Tables that no section asks for (published numbers beside ours) stand in one of their own at the end.
    """
    drawn: dict[str, dict[tuple[str, ...], str]] = {}
    for figure in figures:
        drawn.setdefault(figure.number, {})[figure.of] = figure.markup
    named = {table.name: table for table in tables}
    models, shown = results["models"], set(APART)
    found = []
    for section in SECTIONS:
        parts = [_figures(section, number, drawn[number]) for number in section.figures if number in drawn]
        kept = {name: _tables_of(name, models, named) for name in section.tables}
        shown |= {table.name for of_name in kept.values() for table in of_name.values()}
        parts += _tables(section, {name: of_name for name, of_name in kept.items() if of_name})
        if section.name == "remedies" and parts:
            parts = [claims_html(results["findings"]), *parts]
        if section.name == "prompts":
            parts += _prompts(results["analyses"]["prompts"])
        if parts:
            found.append((section, "\n".join(parts)))
    rest = [html_table(table) for table in tables if table.name not in shown]
    if rest:
        found.append((Section("further", "Beside the published numbers"), "\n".join(rest)))
    return found


# ---- Figures ----------------------------------------------------------------------------------------------


def _figures(section: Section, number: str, drawn: Mapping[tuple[str, ...], str]) -> str:
    """The figures of one number: one, or a choice of model, or of model and data set."""
    if list(drawn) == [()]:
        return drawn[()]
    label = "Model" if all(len(of) == 1 for of in drawn) else "Model and data set"
    return choices(
        f"{section.name}-{number}",
        label.lower().replace(" ", "-"),
        label,
        {" · ".join(of): markup for of, markup in drawn.items()},
    )


# ---- Tables and prompts -----------------------------------------------------------------------------------


def _tables_of(name: str, models: Sequence[str], named: Mapping[str, Table]) -> dict[str, Table]:
    """The table of a name, or the tables that there are of every model, by model."""
    if name in named:
        return {"": named[name]}
    each = {model: named.get(f"{name}-{slug(model)}") for model in models}
    return {model: table for model, table in each.items() if table is not None}


def _tables(section: Section, kept: Mapping[str, Mapping[str, Table]]) -> list[str]:
    """The tables of a section: one after another, those by model behind a choice."""
    if section.chosen:
        parts = {name.partition("-")[2]: html_table(of_name[""]) for name, of_name in kept.items()}
        return [choices(section.name, section.name, section.chosen, parts)] if parts else []
    return [_table(section, name, of_name) for name, of_name in kept.items()]


def _table(section: Section, name: str, tables: Mapping[str, Table]) -> str:
    if len(tables) == 1:
        return "".join(map(html_table, tables.values()))
    parts = {model: html_table(table) for model, table in tables.items()}
    return choices(f"{section.name}-{name}", "model", "Model", parts)


def _prompts(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Figure 8: the exact prompts, as text."""
    parts = {
        f"{entry['model']} · {entry['dataset']}": f"<pre>{html_text(entry['prompt'])}</pre>"
        for entry in entries
        if entry["prompt"] is not None
    }
    if not parts:
        return []
    caption = "<p><b>Figure 8.</b> The exact prompt of the first test question.</p>"
    return [caption + choices("prompts-8", "model-and-data-set", "Model and data set", parts)]


# ---- Claims -----------------------------------------------------------------------------------------------


def claims_html(claims: Sequence[Mapping[str, Any]]) -> str:
    """Each claim of the paper with its verdict, what decided, and the numbers behind it."""
    items = "\n".join(map(_claim, claims))
    return f'<dl class="claims">\n{items}\n</dl>'


def _claim(claim: Mapping[str, Any]) -> str:
    verdict = str(claim["verdict"])
    told = f"{claim['claim']} ({claim['source']})"
    evidence = yaml.safe_dump(_rounded(claim["evidence"]), sort_keys=False, allow_unicode=True, width=100)
    return (
        f'<div><dt class="verdict-{VERDICTS.get(verdict, "open")}">{html_text(verdict)}</dt>'
        f"<dd><p>{html_text(told)}</p><p>{html_text(claim['because'])}</p>"
        f'<details class="more"><summary>Rule and evidence</summary><p>{html_text(claim["rule"])}</p>'
        f"<pre>{html_text(evidence)}</pre></details></dd></div>"
    )


def _rounded(value: Any) -> Any:
    """Numbers to four digits, however deep.

    Examples
    --------
    >>> _rounded({"a": [0.123456, "b", 3]})
    {'a': [0.1235, 'b', 3]}
    """
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
