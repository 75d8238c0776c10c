"""The tables of a run as plain data, made from results.json alone (analyses.md, tables 2, 3 and 7).

A table is drawn by whoever shows it: the page as HTML, the command line with rich, `markdown` as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

__all__ = [
    "NAMES",
    "Cell",
    "Column",
    "Table",
    "counted",
    "deviation_table",
    "mark",
    "markdown",
    "markdown_text",
    "one_line",
]

#: How a metric of results.json is written for readers.
NAMES = {
    "accuracy": "accuracy",
    "ace": "ACE",
    "auroc": "AUROC",
    "aurac": "AURAC",
    "brier": "Brier score",
    "ece": "ECE",
    "mcb": "MCB",
    "prr": "PRR",
    "smooth_ece": "SmoothECE",
}

#: The metrics of which the larger value is the better one.
LARGER_IS_BETTER = frozenset({"accuracy", "auroc", "aurac", "prr"})

MISSING = "–"

#: What Markdown would take for markup: its own marks, HTML, entities, the middle of a link, an address.
_MARKUP = re.compile(
    r"[\\`*|$~<]|(?<![^\W_])_|_(?![^\W_])|\](?=[(\[:])|:(?=//)|(?<=\bwww)\.|&(?=#?\w+;)", re.IGNORECASE
)
_ENTITIES = {"<": "&lt;", "&": "&amp;"}
#: What begins a heading, a quotation or an item of a list, where a paragraph begins with it.
_MARKER = re.compile(r"^(\d*)([#>+=.)-])")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

Results = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """One entry of a table.

    Attributes
    ----------
    text : str
        The entry as it is shown; "–" for what is undefined.
    value : float, optional
        The number behind it, unrounded; None for words and for what is undefined.
    error : float, optional
        Its standard error, over questions or over runs as the caption says.
    best : bool
        Whether it is the best of its group.
    interval : (float, float), optional
        Its 95 % interval over questions.
    overall : bool
        Whether it is the best of all groups of its data set, which are shown underlined.
    tied : bool
        Whether another of its group shows the same digits and is marked as well.
    """

    text: str
    value: float | None = None
    error: float | None = None
    best: bool = False
    interval: tuple[float, float] | None = None
    overall: bool = False
    tied: bool = False

    @property
    def error_text(self) -> str:
        """The standard error as it is shown, "" where there is none."""
        return "" if self.error is None else f"±{self.error:.3f}"

    @property
    def interval_text(self) -> str:
        """The interval as it is shown, with as many digits as the number; "" where there is none."""
        if self.interval is None:
            return ""
        digits = len(self.text.rstrip("*)").partition(".")[2])
        return f"[{', '.join(number(end, digits).text for end in self.interval)}]"


@dataclass(frozen=True)
class Column:
    """The heading of a column, and the wider heading above it that it belongs to."""

    title: str
    group: str = ""


@dataclass(frozen=True)
class Table:
    """A table as plain data.

    Attributes
    ----------
    name : str
        A short name, fit for a file or an anchor.
    caption : str
        What the table shows, in a sentence.
    columns : tuple of Column
    rows : tuple of tuples of Cell
    heads : int
        How many leading columns name the row.
    """

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    heads: int = 1


def number(value: float | int | None, digits: int = 3) -> Cell:
    """A cell with a number, or with a dash for None.

    Examples
    --------
    >>> number(0.06449).text, number(2000).text, number(None).text, number(-0.5, 1).text
    ('0.064', '2000', '–', '−0.5')
    """
    if value is None:
        return Cell(MISSING)
    text = str(value) if isinstance(value, int) else f"{value:.{digits}f}"
    return Cell(text.replace("-", "−"), float(value))


def counted(n: int, noun: str) -> str:
    """A number of things.

    Examples
    --------
    >>> counted(1, "row"), counted(2, "row")
    ('1 row', '2 rows')
    """
    return f"{n} {noun}{'' if n == 1 else 's'}"


def mark(cells: Sequence[Cell], *, larger: bool) -> list[Cell]:
    """Mark the best of a group as it is shown; if several show the same digits, all of them, as tied.

    Examples
    --------
    >>> marked = mark([number(0.1234), number(0.1214), number(0.1229), number(None)], larger=True)
    >>> [(cell.best, cell.tied) for cell in marked]
    [(True, True), (False, False), (True, True), (False, False)]
    """
    known = [cell for cell in cells if cell.value is not None]
    if len(known) < 2:
        return list(cells)
    best = (max if larger else min)(known, key=lambda cell: cell.value or 0.0).text
    tied = sum(cell.text == best for cell in known) > 1
    return [replace(cell, best=True, tied=tied) if cell.text == best else cell for cell in cells]


def deviation_table(results: Results) -> Table | None:
    """Return how the run deviates from the paper's settings; None where results.json does not say."""
    deviations = results.get("deviations")
    if deviations is None:
        return None
    rows = [tuple(Cell(_shown(item[key])) for key in ("setting", "here", "paper")) for item in deviations]
    columns = (Column("Setting"), Column("Here"), Column("Paper"))
    return Table("deviations", "Where this run deviates from the paper", columns, tuple(rows))


def _shown(value: Any) -> str:
    if value is None:
        return MISSING
    return (", ".join(map(str, value)) if isinstance(value, list) else str(value)) or MISSING


def markdown(table: Table) -> str:
    """Return the table as Markdown, best numbers in bold.

    Examples
    --------
    >>> print(markdown(Table("t", "", (Column("Method"), Column("E-SC", "ACE")),
    ...     ((Cell("TS"), Cell("0.064", 0.064, 0.012, best=True)),))))
    | Method | ACE E-SC |
    | :--- | ---: |
    | TS | **0.064** ±0.012 |
    """
    titles = [markdown_text(f"{column.group} {column.title}".strip()) for column in table.columns]
    rules = [":---" if i < table.heads else "---:" for i in range(len(titles))]
    body = [[_markdown_cell(cell) for cell in row] for row in table.rows]
    return "\n".join(_line(row) for row in [titles, rules, *body])


def markdown_text(text: str, *, begins: bool = False) -> str:
    r"""Text that Markdown shows as it is, in one line.

    Parameters
    ----------
    text : str
    begins : bool
        Whether a paragraph begins with it.

    Examples
    --------
    >>> print(markdown_text("<b>a|b</b> [x](javascript:y) https://z SE_conf"))
    &lt;b>a\|b&lt;/b> [x\](javascript:y) https\://z SE_conf
    >>> print(markdown_text("# one", begins=True))
    \# one
    """
    text = _MARKUP.sub(lambda found: _ENTITIES.get(found[0], f"\\{found[0]}"), one_line(text))
    return _MARKER.sub(r"\1\\\2", text) if begins else text


def one_line(text: str) -> str:
    r"""Text without line breaks and without characters that no file of text should hold.

    Examples
    --------
    >>> one_line("a\n\nb\x00")
    'a b�'
    """
    return _CONTROLS.sub("�", " ".join(filter(None, text.splitlines())).replace("\t", " "))


def _markdown_cell(cell: Cell) -> str:
    text = markdown_text(cell.text)
    text = f"<u>{text}</u>" if cell.overall else text
    text = f"**{text}**" if cell.best else text
    parts = (f"{text}{'⁼' if cell.tied else ''}", cell.error_text, cell.interval_text)
    return " ".join(part for part in parts if part)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
