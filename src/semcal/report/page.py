"""One self-contained HTML page of a run: no network, no model, a few seconds."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from html import escape
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

from semcal.records import writing
from semcal.report import figures
from semcal.report.explorer import explorer_data, script_json
from semcal.report.run import Run, read_run
from semcal.report.svg import inline_svg, line_svg, marker_svg
from semcal.report.tables import (
    MISSING,
    Cell,
    Table,
    answer_table,
    deviation_table,
    number,
    set_table,
    summary_table,
)
from semcal.report.words import Finding, findings, headlines

__all__ = ["build", "page"]

PLACE = re.compile(r"\{\{(\w+)\}\}")


def build(run_dir: Path) -> Path:
    """Write report.html of a run.

    Parameters
    ----------
    run_dir : Path
        A folder with results.json and the rows that it names.

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
        handle.write(page(run))
    return target


def page(run: Run) -> str:
    """Return the page of a run as text; the same run gives the same text."""
    results = run.results
    found = findings(results)
    script = _asset("page.js")
    parts = {
        "version": escape(_version(run)),
        "title": _text(f"{results['model']['name']} – semcal report"),
        "heading": _text(f"Semantic confidence of {results['model']['name']}"),
        "facts": _text(_facts(results)),
        "headlines": "\n".join(f'<p class="headline">{_text(line)}</p>' for line in headlines(found)),
        "findings": "\n".join(map(_finding, found)),
        "summary": "\n".join(_table(summary_table(results, metrics=(key,))) for key in ("ace", "auroc")),
        "legend": _legend(run),
        "scatter": _scatter(run),
        "tables": "\n".join(_table(table) for table in (set_table(results), answer_table(results))),
        "reliability_note": _text(figures.RELIABILITY_NOTE),
        "reliability": _by_measure(run, "reliability", _reliability),
        "selective": _by_measure(run, "selective", _selective),
        "settings": _settings(run),
        "style": _asset("page.css"),
        "script": script,
        "script_hash": _hash(script),
        "data": script_json(explorer_data(run)),
    }
    return PLACE.sub(lambda place: parts[place[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return files("semcal.report").joinpath(name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """What the content security policy lets run: this script and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _text(value: Any) -> str:
    """Text for HTML; lone surrogates, which UTF-8 cannot hold, become replacement characters."""
    return escape(str(value).encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def _version(run: Run) -> str:
    return str((_record(run, "environment").get("versions") or {}).get("semcal", ""))


def _facts(results: Mapping[str, Any]) -> str:
    questions = sum(entry["n"] for entry in results["sets"])
    return (
        f"{questions} test questions, {results['m']} sampled answers each under "
        f"{', '.join(results['methods'])}; equivalence by {results['equivalence']['name']}; "
        f"preset {results['preset']}, seed {results['seed']}."
    )


def _finding(finding: Finding) -> str:
    """What happened on one set: a temperature, two changes and their verdicts."""
    rows = [f"<dt>Temperature</dt><dd>{_text(finding.temperature or MISSING)}</dd>"]
    for change in finding.changes:
        name, values, verdict = change.parts()
        rows.append(f"<dt>{_text(name)}</dt><dd>{_text(values)} <small>{_text(verdict)}</small></dd>")
    compared = f"{finding.setting}; {finding.against} → {finding.method}"
    return (
        f"<article><h3>{_text(finding.name)}</h3><p>{_text(compared)}</p><dl>{''.join(rows)}</dl></article>"
    )


# ---- Tables -----------------------------------------------------------------------------------------------


def _table(table: Table) -> str:
    """The table as HTML that scrolls sideways when it must.

    Of two naming columns the first becomes a heading above its rows, which saves the width of a column.
    """
    caption = _text(table.caption)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}">\n'
        f'<table id="table-{table.name}"><caption><span>{caption}</span></caption>\n'
        f"<thead>{_head(table)}</thead>\n{_bodies(table)}\n</table></div>"
    )


def _bodies(table: Table) -> str:
    if table.heads < 2:
        return f"<tbody>{''.join(_row(row, table) for row in table.rows)}</tbody>"
    width = len(table.columns) - 1
    return "\n".join(
        f'<tbody><tr><th scope="rowgroup" colspan="{width}"><span>{_text(name)}</span></th></tr>'
        f"{''.join(_row(row, table) for row in rows)}</tbody>"
        for name, rows in groupby(table.rows, key=lambda row: row[0].text)
    )


def _head(table: Table) -> str:
    shown = list(enumerate(table.columns))[table.heads - 1 :]
    titles = "".join(
        f'<th scope="col"{_number_class(i, table)}>{_text(column.title)}</th>' for i, column in shown
    )
    if not any(column.group for column in table.columns):
        return f"<tr>{titles}</tr>"
    groups = groupby((column for _, column in shown), key=lambda column: column.group)
    return (
        f"<tr>{''.join(_group(name, len(list(columns))) for name, columns in groups)}</tr><tr>{titles}</tr>"
    )


def _group(name: str, width: int) -> str:
    return (
        f'<th colspan="{width}" scope="colgroup">{_text(name)}</th>'
        if name
        else f'<td colspan="{width}"></td>'
    )


def _number_class(index: int, table: Table) -> str:
    numbers = any(row[index].value is not None for row in table.rows)
    return ' class="number"' if index >= table.heads and numbers else ""


def _row(row: tuple[Cell, ...], table: Table) -> str:
    first = table.heads - 1
    name = f'<th scope="row">{_name(row[first], table.columns[first].title)}</th>'
    cells = [f"<td{_number_class(i, table)}>{_value(cell)}</td>" for i, cell in enumerate(row)]
    return f"<tr>{name}{''.join(cells[table.heads :])}</tr>"


def _name(cell: Cell, title: str) -> str:
    text = _text(cell.text)
    return f'<span class="method m-{text}">{text}</span>' if title == "Method" else text


def _value(cell: Cell) -> str:
    text = f'<span class="best">{_text(cell.text)}</span>' if cell.best else _text(cell.text)
    return f"{text}<small>{cell.error_text}</small>" if cell.error_text else text


# ---- Figures ----------------------------------------------------------------------------------------------


def _figure(svg: str, caption: str, note: str = "") -> str:
    more = f"<small>{_text(note)}</small>" if note else ""
    return f"<figure><figcaption>{caption}{more}</figcaption>{svg}</figure>"


def _method(method: str) -> str:
    return f'<span class="method m-{_text(method)}">{_text(method)}</span>'


def _legend(run: Run) -> str:
    items = [_method(method) for method in run.methods]
    items += [f"{marker_svg(figures.measure_marker(name))}{_text(name)}" for name in run.measures]
    return f'<ul class="legend">{"".join(f"<li>{item}</li>" for item in items)}</ul>'


def _scatter(run: Run) -> str:
    """ACE against AUROC of each set, all on the same scales."""
    return "\n".join(
        _figure(
            inline_svg(
                figures.scatter_panel(run.results, name), f"scatter-{i}", f"ACE against AUROC, {name}"
            ),
            f"<span>{_text(name)}</span>",
        )
        for i, name in enumerate(run.sets)
    )


def _by_measure(run: Run, name: str, drawn: Callable[[Run, str], str]) -> str:
    """The panels of every measure, and a choice that shows those of one (all, where there is no script)."""
    choices = "".join(
        f'<label><input type="radio" name="{name}-measure" value="{_text(measure)}">{_text(measure)}</label>'
        for measure in run.measures
    )
    parts = "\n".join(
        f'<div data-measure="{_text(measure)}"><h3 class="of-measure">{_text(measure)}</h3>\n'
        f"{drawn(run, measure)}\n</div>"
        for measure in run.measures
    )
    return f'<fieldset class="measures" hidden><legend>Measure</legend>{choices}</fieldset>\n{parts}'


def _reliability(run: Run, measure: str) -> str:
    """A row of panels for each set, a panel for each method."""
    return "\n".join(
        f'<h3>{_text(name)}</h3><div class="panels">'
        + "\n".join(_reliability_panel(run, i, name, method, measure) for method in run.methods)
        + "</div>"
        for i, name in enumerate(run.sets)
    )


def _reliability_panel(run: Run, index: int, name: str, method: str, measure: str) -> str:
    figure = figures.reliability_panel(run, name, method, measure)
    if figure is None:
        return _figure("", _method(method), f"{measure} is undefined here")
    label = f"Reliability of {measure} under {method}, {name}"
    scores = run.results["sets"][index]["methods"][method]["measures"][measure]
    shown = {
        "ACE": number(scores.get("ace")),
        "confidence": number(scores.get("mean_confidence")),
        "accuracy": number(scores.get("accuracy")),
    }
    note = " · ".join(f"{key} {cell.text}" for key, cell in shown.items())
    return _figure(
        inline_svg(figure, f"reliability-{index}-{method}-{measure}", label), _method(method), note
    )


def _selective(run: Run, measure: str) -> str:
    """A panel for each set, a line for each method."""
    legend = "".join(
        f"<li>{line_svg(figures.METHOD_LINES.get(name, '-'), figures.method_colour(name))}{_text(name)}</li>"
        for name in run.methods
    )
    panels = "\n".join(
        _figure(
            inline_svg(
                figures.selective_panel(run, name, measure),
                f"selective-{i}-{measure}",
                f"Selective accuracy by {measure}, {name}",
            ),
            f"<span>{_text(name)}</span>",
        )
        for i, name in enumerate(run.sets)
    )
    return f'<ul class="legend">{legend}</ul>\n<div class="panels">{panels}</div>'


# ---- Settings ---------------------------------------------------------------------------------------------


def _record(run: Run, name: str) -> dict[str, Any]:
    """A record that may lie beside the results (settings, environment); empty where it does not."""
    path = run.folder / f"{name}.json"
    if not path.is_file():
        return {}
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value


def _settings(run: Run) -> str:
    identity = {part: _identity(run.results[part]) for part in ("model", "equivalence")}
    parts = [_list("Settings", {**identity, **_record(run, "settings")})]
    deviations = deviation_table(run.results)
    if deviations is not None:
        parts.append(_table(deviations))
    environment = _record(run, "environment")
    if environment:
        parts.append(_list("Environment", environment))
    return "\n".join(parts)


def _identity(part: Mapping[str, Any]) -> str:
    revision = part.get("revision")
    return f"{part['name']} (revision {revision})" if revision else str(part["name"])


def _list(title: str, record: Mapping[str, Any]) -> str:
    items = "".join(
        f"<dt>{_text(_spaced(key))}</dt><dd>{_text(_plain(value))}</dd>" for key, value in record.items()
    )
    return f'<h3>{title}</h3><dl class="facts-list">{items}</dl>'


def _spaced(key: str) -> str:
    return key.replace("_", " ")


def _plain(value: Any) -> str:
    """A recorded value in words; a mapping as "name value, …", numbers to four digits."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    if isinstance(value, float):
        return str(float(f"{value:.4g}")).removesuffix(".0")
    return MISSING if value is None else str(value)
