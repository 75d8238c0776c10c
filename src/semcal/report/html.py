"""Pieces of a self-contained HTML page: text, tables, lists, figures, and what the script may run."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import groupby
from typing import Any

from semcal.report.tables import MISSING, Cell, Table

__all__ = [
    "asset",
    "choices",
    "figure_html",
    "fill",
    "framed",
    "html_list",
    "html_table",
    "html_text",
    "in_short",
]

#: Control characters but white space, and marks that turn the text behind them round.
UNSHOWN = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
PLACE = re.compile(r"\{\{(\w+)\}\}")


def fill(template: str, parts: Mapping[str, str]) -> str:
    """Put parts into the {{places}} of a template; what they hold is not looked at again.

    Examples
    --------
    >>> fill("<p>{{a}}</p>", {"a": "{{b}}"})
    '<p>{{b}}</p>'
    """
    return PLACE.sub(lambda place: parts[place[1]], template)


def asset(*names: str) -> str:
    """The text of files that lie beside this one, one after another."""
    folder = files("semcal.report")
    return "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


def framed(
    main: str,
    *,
    title: str,
    heading: str,
    facts: str,
    version: str,
    links: Mapping[str, str],
    styles: Sequence[str],
    scripts: Sequence[str],
    data: str,
    blocks: Mapping[str, str] | None = None,
) -> str:
    """A whole page.

    Parameters
    ----------
    main : str
        Markup: its sections.
    title, heading, facts, version : str
        Text.
    links : mapping of str to str
        Name of a section → what the link to it says.
    styles, scripts : sequence of str
        Files that lie beside this one; no other script may run.
    data : str
        JSON that the script reads, fit to stand in a page.
    blocks : mapping of str to str, optional
        Name → text that the script reads when it is asked for.
    """
    script = asset(*scripts)
    parts = {
        "title": html_text(title),
        "heading": html_text(heading),
        "facts": html_text(facts),
        "version": html_text(version),
        "style": asset(*styles),
        "main": main,
        "script": script,
        "script_hash": _script_hash(script),
        "data": data,
        "links": "\n".join(f'<a href="#{name}">{html_text(said)}</a>' for name, said in links.items()),
        "blocks": "\n".join(
            f'<script type="text/plain" id="{name}">{block}</script>'
            for name, block in (blocks or {}).items()
        ),
    }
    return fill(asset("frame.html"), parts)


def _script_hash(script: str) -> str:
    """What the content security policy lets run: this script and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def html_text(value: Any) -> str:
    r"""Text for HTML; what UTF-8 cannot hold, a page cannot show or would turn round becomes �.

    Examples
    --------
    >>> html_text("<b> \u202ea\x00")
    '&lt;b&gt; �a�'
    """
    return escape(UNSHOWN.sub("�", str(value).encode("utf-16", "surrogatepass").decode("utf-16", "replace")))


def html_table(table: Table) -> str:
    """The table as HTML that scrolls sideways when it must.

    Of several naming columns all but the last become a heading above their rows, which saves their width.
    """
    caption = html_text(table.caption)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}">\n'
        f'<table id="table-{table.name}"><caption><span>{caption}</span></caption>\n'
        f"<thead>{_head(table)}</thead>\n{_bodies(table)}\n</table></div>"
    )


def _bodies(table: Table) -> str:
    if table.heads < 2:
        return f"<tbody>{''.join(_row(row, table) for row in table.rows)}</tbody>"
    above = table.heads - 1
    width = len(table.columns) - above
    return "\n".join(
        f'<tbody><tr><th scope="rowgroup" colspan="{width}"><span>{html_text(name)}</span></th></tr>'
        f"{''.join(_row(row, table) for row in rows)}</tbody>"
        for name, rows in groupby(table.rows, key=lambda row: " · ".join(cell.text for cell in row[:above]))
    )


def _head(table: Table) -> str:
    shown = list(enumerate(table.columns))[table.heads - 1 :]
    titles = "".join(
        f'<th scope="col"{_number_class(i, table)}>{html_text(column.title)}</th>' for i, column in shown
    )
    if not any(column.group for column in table.columns):
        return f"<tr>{titles}</tr>"
    groups = groupby((column for _, column in shown), key=lambda column: column.group)
    return (
        f"<tr>{''.join(_group(name, len(list(columns))) for name, columns in groups)}</tr><tr>{titles}</tr>"
    )


def _group(name: str, width: int) -> str:
    return (
        f'<th colspan="{width}" scope="colgroup">{html_text(name)}</th>'
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
    text = html_text(cell.text)
    return f'<span class="method m-{text}">{text}</span>' if title == "Method" else text


def _value(cell: Cell) -> str:
    """The number, marked where it is the best, with its standard error and, below, its interval."""
    kinds = " ".join(name for name, marked in (("best", cell.best), ("overall", cell.overall)) if marked)
    text = f'<span class="{kinds}">{html_text(cell.text)}</span>' if kinds else html_text(cell.text)
    tie = "⁼" if cell.tied else ""
    error = f"<small>{cell.error_text}</small>" if cell.error_text else ""
    interval = f'<small class="interval">{cell.interval_text}</small>' if cell.interval_text else ""
    return f"{text}{tie}{error}{interval}"


def figure_html(svg: str, caption: str, note: str = "") -> str:
    """A figure under its caption (markup) and a note (text)."""
    more = f"<small>{html_text(note)}</small>" if note else ""
    return f"<figure><figcaption>{caption}{more}</figcaption>{svg}</figure>"


def choices(place: str, choice: str, label: str, parts: Mapping[str, str]) -> str:
    """Parts of which a choice shows one; without a script all are shown, each under its heading.

    Parameters
    ----------
    place : str
        Where on the page; unlike that of any other.
    choice : str
        What is chosen: "measure", "model". Places of one choice change together.
    label : str
        The same for the reader.
    parts : mapping of str to str
        Value → markup.
    """
    options = "".join(
        f'<label><input type="radio" name="{place}-{choice}" value="{html_text(value)}">'
        f"{html_text(value)}</label>"
        for value in parts
    )
    shown = "\n".join(
        f'<div data-choice="{choice}" data-value="{html_text(value)}">'
        f'<h3 class="of-choice">{html_text(value)}</h3>\n{markup}\n</div>'
        for value, markup in parts.items()
    )
    return (
        f'<fieldset class="choices" data-choice="{choice}" hidden>'
        f"<legend>{html_text(label)}</legend>{options}</fieldset>\n{shown}"
    )


def html_list(title: str, record: Mapping[str, Any]) -> str:
    """A record as a list of names and values under a heading."""
    items = "".join(
        f"<dt>{html_text(key.replace('_', ' '))}</dt><dd>{html_text(in_short(value))}</dd>"
        for key, value in record.items()
    )
    return f'<h3>{title}</h3><dl class="facts-list">{items}</dl>'


def in_short(value: Any) -> str:
    """A recorded value in words; a mapping as "name value, …", numbers to four digits.

    Examples
    --------
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
