"""One self-contained HTML page of a run: no network, no model, a few seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from semcal.records import read_object, writing
from semcal.report import figures
from semcal.report.demo_tables import answer_table, set_table, summary_table
from semcal.report.explorer import explorer_data, script_json
from semcal.report.html import (
    asset,
    choices,
    figure_html,
    fill,
    framed,
    html_list,
    html_table,
    html_text,
)
from semcal.report.run import Run, read_run
from semcal.report.svg import inline_svg, line_svg, marker_svg
from semcal.report.tables import MISSING, counted, deviation_table, number
from semcal.report.words import Finding, findings, headlines

__all__ = ["build", "page"]

LINKS = {
    "findings": "What happened",
    "scores": "Scores",
    "answers": "Answers",
    "reliability": "Reliability",
    "selective": "Selective accuracy",
    "explorer": "Questions",
    "settings": "Settings",
}
Share = Callable[[Callable[[str], str], Sequence[str]], Sequence[str]]
"""Maps a function over texts, itself or by others; what it is given can be pickled."""


def _alone(function: Callable[[str], str], items: Sequence[str]) -> list[str]:
    return list(map(function, items))


def build(run_dir: Path, *, share: Share = _alone) -> Path:
    """Write report.html of a run.

    Parameters
    ----------
    run_dir : Path
        A folder with results.json and the rows that it names.
    share : callable, optional
        Who draws the figures of each measure: (function, measures) → texts; this process by default.

    Returns
    -------
    Path
        The page, `run_dir/report.html`.

    Raises
    ------
    InputError
        If there is no results.json.
    StoreError
        If a file of the run is damaged, missing or of another schema.
    """
    run = read_run(Path(run_dir))
    target = run.folder / "report.html"
    with writing(target) as handle:
        handle.write(page(run, share=share))
    return target


def page(run: Run, *, share: Share = _alone) -> str:
    """Return the page of a run as text; the same run gives the same text, whoever draws."""
    results = run.results
    found = findings(results)
    name = results["model"]["name"]
    parts = {
        "headlines": "\n".join(f'<p class="headline">{html_text(line)}</p>' for line in headlines(found)),
        "findings": "\n".join(map(_finding, found)),
        "summary": "\n".join(html_table(summary_table(results, metrics=(key,))) for key in ("ace", "auroc")),
        "legend": _legend(run),
        "scatter": _scatter(run),
        "tables": "\n".join(html_table(table) for table in (set_table(results), answer_table(results))),
        "reliability_note": html_text(figures.RELIABILITY_NOTE),
        "reliability": _by_measure(run, "reliability", _reliability, share),
        "selective": _by_measure(run, "selective", _selective, share),
        "settings": _settings(run),
        "explorer": asset("explorer.html").rstrip(),
    }
    return framed(
        fill(asset("page.html").rstrip(), parts),
        title=f"{name} – semcal report",
        heading=f"Semantic confidence of {name}",
        facts=_facts(results),
        version=_version(run),
        links=LINKS,
        styles=["page.css"],
        scripts=["explorer.js", "page.js"],
        data=script_json(explorer_data(run)),
    )


def _version(run: Run) -> str:
    return str((_record(run, "environment").get("versions") or {}).get("semcal", ""))


def _facts(results: Mapping[str, Any]) -> str:
    questions = sum(entry["n"] for entry in results["sets"])
    return (
        f"{counted(questions, 'test question')}, {counted(results['m'], 'sampled answer')} each under "
        f"{', '.join(results['methods'])}; equivalence by {results['equivalence']['name']}; "
        f"preset {results['preset']}, seed {results['seed']}."
    )


def _finding(finding: Finding) -> str:
    """What happened on one set: a temperature, two changes and their verdicts."""
    rows = [f"<dt>Temperature</dt><dd>{html_text(finding.temperature or MISSING)}</dd>"]
    for change in finding.changes:
        name, values, verdict = change.parts()
        told = f"{html_text(values)} <small>{html_text(verdict)}</small>"
        rows.append(f"<dt>{html_text(name)}</dt><dd>{told}</dd>")
    compared = f"{finding.setting}; {finding.against} → {finding.method}"
    heading = f"<h3>{html_text(finding.name)}</h3><p>{html_text(compared)}</p>"
    return f"<article>{heading}<dl>{''.join(rows)}</dl></article>"


# ---- Figures ----------------------------------------------------------------------------------------------


def _method(method: str) -> str:
    return f'<span class="method m-{html_text(method)}">{html_text(method)}</span>'


def _legend(run: Run) -> str:
    items = [_method(method) for method in run.methods]
    items += [f"{marker_svg(figures.measure_marker(name))}{html_text(name)}" for name in run.measures]
    return f'<ul class="legend">{"".join(f"<li>{item}</li>" for item in items)}</ul>'


def _scatter(run: Run) -> str:
    """ACE against AUROC of each set, all on the same scales."""
    return "\n".join(
        figure_html(
            inline_svg(
                figures.scatter_panel(run.results, name), f"scatter-{i}", f"ACE against AUROC, {name}"
            ),
            f"<span>{html_text(name)}</span>",
        )
        for i, name in enumerate(run.sets)
    )


def _by_measure(run: Run, name: str, drawn: Callable[[Run, str], str], share: Share) -> str:
    """The panels of every measure, and a choice that shows those of one."""
    panels = share(partial(drawn, replace(run, rows={})), run.measures)
    return choices(name, "measure", "Measure", dict(zip(run.measures, panels)))


def _reliability(run: Run, measure: str) -> str:
    """A row of panels for each set, a panel for each method."""
    return "\n".join(
        f'<h3>{html_text(name)}</h3><div class="panels">'
        + "\n".join(_reliability_panel(run, i, name, method, measure) for method in run.methods)
        + "</div>"
        for i, name in enumerate(run.sets)
    )


def _reliability_panel(run: Run, index: int, name: str, method: str, measure: str) -> str:
    figure = figures.reliability_panel(run, name, method, measure)
    if figure is None:
        return figure_html("", _method(method), f"{measure} is undefined here")
    label = f"Reliability of {measure} under {method}, {name}"
    scores = run.results["sets"][index]["methods"][method]["measures"][measure]
    shown = {
        "ACE": number(scores.get("ace")),
        "confidence": number(scores.get("mean_confidence")),
        "accuracy": number(scores.get("accuracy")),
    }
    note = " · ".join(f"{key} {cell.text}" for key, cell in shown.items())
    return figure_html(
        inline_svg(figure, f"reliability-{index}-{method}-{measure}", label), _method(method), note
    )


def _selective(run: Run, measure: str) -> str:
    """A panel for each set, a line for each method."""
    lines = {
        name: line_svg(figures.METHOD_LINES.get(name, "-"), figures.method_colour(name))
        for name in run.methods
    }
    legend = "".join(f"<li>{line}{html_text(name)}</li>" for name, line in lines.items())
    panels = "\n".join(
        figure_html(
            inline_svg(
                figures.selective_panel(run, name, measure),
                f"selective-{i}-{measure}",
                f"Selective accuracy by {measure}, {name}",
            ),
            f"<span>{html_text(name)}</span>",
        )
        for i, name in enumerate(run.sets)
    )
    return f'<ul class="legend">{legend}</ul>\n<div class="panels">{panels}</div>'


# ---- Settings ---------------------------------------------------------------------------------------------


def _record(run: Run, name: str) -> dict[str, Any]:
    """A record that may lie beside the results (settings, environment); empty where it does not."""
    path = run.folder / f"{name}.json"
    return read_object(path, remedy="delete it; it holds no results") if path.is_file() else {}


def _settings(run: Run) -> str:
    identity = {part: _identity(run.results[part]) for part in ("model", "equivalence")}
    parts = [html_list("Settings", {**identity, **_record(run, "settings")})]
    deviations = deviation_table(run.results)
    if deviations is not None:
        parts.append(html_table(deviations))
    environment = _record(run, "environment")
    if environment:
        parts.append(html_list("Environment", environment))
    return "\n".join(parts)


def _identity(part: Mapping[str, Any]) -> str:
    revision = part.get("revision")
    return f"{part['name']} (revision {revision})" if revision else str(part["name"])
