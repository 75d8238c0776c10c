"""report.html of a grid run: claims, tables, figures, every test question; one file, no network, no model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from semcal.experiment.finished import FinishedRun
from semcal.records import writing
from semcal.report.cost_tables import cost_tables
from semcal.report.explorer import script_json
from semcal.report.grid_explorer import Explorer
from semcal.report.grid_headline import facts, headline, headline_table, rules_note
from semcal.report.grid_results import read_environment
from semcal.report.grid_sections import Section, claims_html, sections_of
from semcal.report.grid_tables import grid_tables
from semcal.report.html import asset, fill, framed, html_list, html_table, html_text
from semcal.report.page_figures import PageFigure
from semcal.report.tables import Cell, Column, Table, deviation_table

__all__ = ["grid_page", "write_page"]

Results = Mapping[str, Any]

#: Refused rows that the page names; all of them stand in problems.jsonl.
NAMED = 200


def write_page(
    run: FinishedRun, results: Results, figures: Iterable[PageFigure], explorer: Explorer, folder: Path
) -> Path:
    """Write the page with some figures into a folder."""
    target = folder / "report.html"
    with writing(target) as handle:
        handle.write(grid_page(run, results, figures, explorer))
    return target


def grid_page(run: FinishedRun, results: Results, figures: Iterable[PageFigure], explorer: Explorer) -> str:
    """Return the page of a run as text; the same run gives the same text."""
    environment = read_environment(run.folder)
    tables = [*grid_tables(results), *cost_tables(results, environment)]
    sections = sections_of(results, figures, tables)
    parts = {
        "headline": html_text(headline(results)),
        "summary": html_table(headline_table(results)),
        "rules": html_text(rules_note(results)),
        "claims": claims_html(results["claims"]),
        "sections": "\n\n".join(_section(section, markup) for section, markup in sections),
        "explorer_note": html_text(_explorer_note(run, explorer)),
        "explorer": asset("explorer.html").rstrip(),
        "settings": _settings(run, results, environment),
    }
    return framed(
        fill(asset("grid_page.html").rstrip(), parts),
        title=f"{run.folder.resolve().name} – semcal report",
        heading=f"Semantic uncertainty of {_listed(run.models)}",
        facts=facts(run, results),
        version=str((environment.get("versions") or {}).get("semcal", "")),
        links=_links(section for section, _ in sections),
        styles=["page.css", "grid_page.css"],
        scripts=["explorer.js", "grid_page.js"],
        data=script_json(explorer.head),
        blocks=explorer.blocks,
    )


def _listed(names: Sequence[str]) -> str:
    """The names as words: "a, b and c"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _section(section: Section, markup: str) -> str:
    note = f'<p class="note">{html_text(section.note)}</p>\n' if section.note else ""
    return (
        f'<section id="{section.name}" aria-labelledby="{section.name}-title">\n'
        f'<h2 id="{section.name}-title">{html_text(section.title)}</h2>\n{note}{markup}\n</section>'
    )


def _links(sections: Iterable[Section]) -> dict[str, str]:
    named = {section.name: section.title for section in sections}
    return {
        "overview": "Overview",
        "claims": "Claims",
        **named,
        "explorer": "Questions",
        "settings": "Settings",
    }


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


# ---- Settings ---------------------------------------------------------------------------------------------


def _settings(run: FinishedRun, results: Results, environment: Mapping[str, Any]) -> str:
    settings = (run.folder / "settings.yaml").read_text(encoding="utf-8")
    tables = [deviation_table(results), _problem_table(run)]
    parts = [
        *(html_table(table) for table in tables if table is not None),
        f"<h3>Settings</h3>\n<pre>{html_text(settings)}</pre>",
        html_list("Environment", environment) if environment else "",
    ]
    return "\n".join(filter(None, parts))


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
