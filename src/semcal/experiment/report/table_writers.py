"""Tables as Markdown, as LaTeX (booktabs) in the paper's layout, and as CSV for spreadsheets."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from math import ceil
from typing import Any

from semcal.experiment.report.cells import Cell, Table

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def one_line(text: str) -> str:
    r"""Text without line breaks and without characters that no file of text should hold.

    >>> one_line("a\n\nb\x00")
    'a b�'
    """
    return _CONTROLS.sub("�", " ".join(filter(None, text.splitlines())).replace("\t", " "))


# ---- Markdown ---------------------------------------------------------------------------------------------

#: What Markdown would take for markup: its own marks, HTML, entities, the middle of a link, an address.
_MARKUP = re.compile(
    r"[\\`*|$~<]|(?<![^\W_])_|_(?![^\W_])|\](?=[(\[:])|:(?=//)|(?<=\bwww)\.|&(?=#?\w+;)", re.IGNORECASE
)
_ENTITIES = {"<": "&lt;", "&": "&amp;"}
#: What begins a heading, a quotation or an item of a list, where a paragraph begins with it.
_MARKER = re.compile(r"^(\d*)([#>+=.)-])")


def markdown(table: Table) -> str:
    """Return the table as Markdown, best numbers in bold.

    >>> from semcal.experiment.report.cells import Column
    >>> print(markdown(Table("t", "", (Column("Method"), Column("E-SC", "ACE")),
    ...     ((Cell("TS"), Cell("0.064", 0.064, 0.012, best=True)),))))
    | Method | ACE E-SC |
    | :--- | ---: |
    | TS | **0.064** ±0.012 |
    """
    titles = [markdown_text(f"{column.group} {column.title}".strip()) for column in table.columns]
    rules = [":---" if i < table.heads else "---:" for i in range(len(titles))]
    body = [[_markdown_cell(cell) for cell in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [titles, rules, *body])


def markdown_text(text: str, *, begins: bool = False) -> str:
    r"""Text that Markdown shows as it is, in one line; `begins` where a paragraph begins with it.

    >>> print(markdown_text("<b>a|b</b> [x](javascript:y) https://z SE_conf"))
    &lt;b>a\|b&lt;/b> [x\](javascript:y) https\://z SE_conf
    >>> print(markdown_text("# one", begins=True))
    \# one
    """
    text = _MARKUP.sub(lambda match: _ENTITIES.get(match[0], f"\\{match[0]}"), one_line(text))
    return _MARKER.sub(r"\1\\\2", text) if begins else text


def _markdown_cell(cell: Cell) -> str:
    text = markdown_text(cell.text)
    text = f"<u>{text}</u>" if cell.overall else text
    text = f"**{text}**" if cell.best else text
    parts = (f"{text}{cell.sign}", cell.error_text, cell.interval_text)
    return " ".join(part for part in parts if part)


# ---- CSV --------------------------------------------------------------------------------------------------

_NUMBER = r"[-+−]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+−]?\d+)?\s?%?"
#: A number, or numbers that make an interval or carry an error: "−0.061", "-.1 to .2", "+.030 ± .012".
_NUMBERS = re.compile(rf"{_NUMBER}(?:\s*(?:to|[–…±,;])\s*{_NUMBER})*", re.IGNORECASE)
#: What a spreadsheet takes for a formula; it skips white space and knows full-width characters too.
_FORMULA = re.compile(r"[\s\ufeff\u200b]*[=+\-@＝＋－＠]")


def csv_text(table: Table) -> str:
    r"""Return the table with every number unrounded, error and interval in columns of their own.

    Text is put on one line. Where it begins with =, +, - or @, behind white space too, a spreadsheet takes it
    for a formula: it gets an apostrophe before it, unless all of it is numbers: one, or an interval such as
    "-.1 to .2".
    """
    places = range(len(table.columns))
    errors = [any(row[i].error is not None for row in table.rows) for i in places]
    intervals = [any(row[i].interval is not None for row in table.rows) for i in places]
    header = []
    for column, error, interval in zip(table.columns, errors, intervals):
        title = f"{column.group} {column.title}".strip()
        header += [title, *([f"{title} se"] * error), *([f"{title} low", f"{title} high"] * interval)]
    body = [
        [entry for cell, *extra in zip(row, errors, intervals) for entry in _csv_entries(cell, *extra)]
        for row in table.rows
    ]
    return csv_lines([header, *body])


def csv_lines(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV; words as `csv_text` writes them."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([*map(_no_formula, row)] for row in rows)
    return text.getvalue()


def _csv_entries(cell: Cell, error: bool, interval: bool) -> list[Any]:
    value = cell.text if cell.value is None else cell.value
    return [value, *([cell.error] * error), *((cell.interval or (None, None)) if interval else ())]


def _no_formula(entry: Any) -> Any:
    if not isinstance(entry, str):
        return entry
    text = one_line(entry)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBERS.fullmatch(text) else text


# ---- LaTeX ------------------------------------------------------------------------------------------------

#: A table with an entry longer than this is one of words, whose lines are broken.
WORDS = 40
#: Lines of a table that a page holds, and characters of a line of text.
LINES = 36
CHARACTERS = 100
#: As wide as it is, or else as the text.
FITTED = r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%"
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "−": "$-$",
    "±": r"$\pm$",
    "α": r"$\alpha$",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "⁼": "$^{=}$",
    "†": r"$^{\dagger}$",
    "–": "--",
    "…": r"\ldots{}",
    "²": "$^{2}$",
    "µ": r"$\mu$",
    "[": "{[}",  # behind \\ and \midrule it would begin an option
    "*": "{*}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "�": "?",
}


def latex_text(text: str) -> str:
    r"""Text that LaTeX prints as it is, in one paragraph.

    >>> print(latex_text("SE_conf & 95 % of {x}"))
    SE\_conf \& 95 \% of \{x\}
    """
    return "".join(_SPECIAL.get(character, character) for character in one_line(text))


def table_latex(table: Table) -> str:
    """Return the table as LaTeX, and below it the same with intervals where there are any."""
    if not any(cell.interval for row in table.rows for cell in row):
        return latex(table)
    caption = table.caption.removesuffix(".")
    without = replace(table, caption=f"{caption}. Here without the intervals.")
    beside = replace(
        table,
        name=f"{table.name}-intervals",
        caption=f"{caption}. Here with the intervals over questions, without the errors over runs.",
    )
    return f"{latex(without)}\n\n{latex(beside, intervals=True)}"


def latex(table: Table, *, intervals: bool = False) -> str:
    r"""Return the table as `table*` environments, one a page; it needs booktabs, multirow and graphicx.

    With `intervals`, numbers have their intervals over questions in place of their errors.
    """
    return "\n\n".join(_float(page, intervals) for page in _pages(table))


def _pages(table: Table) -> list[Table]:
    """The table cut into parts that a page holds: LaTeX lets what is longer run off its end."""
    pages: list[list[tuple[Cell, ...]]] = [[]]
    room = LINES
    for row, lines in zip(table.rows, _heights(table)):
        if lines > room and pages[-1]:
            pages.append([])
            room = LINES
        pages[-1].append(row)
        room -= lines
    if len(pages) == 1:
        return [table]
    return [
        replace(
            table,
            name=table.name if i == 1 else f"{table.name}-{i}",
            caption=f"{table.caption.removesuffix('.')} (part {i} of {len(pages)})",
            rows=tuple(rows),
        )
        for i, rows in enumerate(pages, start=1)
    ]


def _heights(table: Table) -> list[int]:
    """How many lines each row takes."""
    if not _is_words(table):
        return [1] * len(table.rows)
    widths = [CHARACTERS * share for share in _shares(table)]
    return [max(ceil(len(cell.text) / width) for cell, width in zip(row, widths)) for row in table.rows]


def _is_words(table: Table) -> bool:
    return any(len(cell.text) > WORDS for row in table.rows for cell in row)


def _float(table: Table, intervals: bool) -> str:
    words = _is_words(table)
    if words:
        columns = "".join(rf"p{{{share:.2f}\textwidth}}" for share in _shares(table))
    else:
        columns = "l" * table.heads + "c" * (len(table.columns) - table.heads)
    lines = [
        r"\begin{table*}[t]",
        r"\centering",
        rf"\caption{{{latex_text(table.caption)}}}",
        rf"\label{{tab:{re.sub(r'[^A-Za-z0-9.-]', '-', table.name)}}}",
        *([] if words else [FITTED]),
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        *_header(table),
        r"\midrule",
        *_body(table, intervals),
        r"\bottomrule",
        r"\end{tabular}" if words else r"\end{tabular}}",
        r"\end{table*}",
    ]
    return "\n".join(lines)


def _shares(table: Table) -> list[float]:
    """Columns as wide as their longest entries are long, within limits, 0.9 of the text together."""
    longest = [max(len(row[i].text) for row in table.rows) for i in range(len(table.columns))]
    lengths = [min(max(length, 8), 100) for length in longest]
    return [0.9 * length / sum(lengths) for length in lengths]


def _header(table: Table) -> list[str]:
    titles = " & ".join(latex_text(column.title) for column in table.columns)
    if not any(column.group for column in table.columns):
        return [rf"{titles} \\"]
    cells, rules, place = [], [], 1
    for group, columns in groupby(table.columns, key=lambda column: column.group):
        width = len(list(columns))
        if group:
            cells.append(rf"\multicolumn{{{width}}}{{c}}{{{latex_text(group)}}}")
            rules.append(rf"\cmidrule(lr){{{place}-{place + width - 1}}}")
        else:
            cells += [""] * width
        place += width
    return [rf"{' & '.join(cells)} \\", " ".join(rules), rf"{titles} \\"]


def _body(table: Table, intervals: bool) -> list[str]:
    """The rows; where two or more columns name them, those of one first name together."""
    if table.heads < 2:
        return [_row(row, table.heads, intervals) for row in table.rows]
    lines: list[str] = []
    for _, group in groupby(table.rows, key=lambda row: row[0].text):
        rows = list(group)
        lines += [r"\midrule"] if lines else []
        name = latex_text(rows[0][0].text)
        first = rf"\multirow{{{len(rows)}}}{{*}}{{{name}}}" if len(rows) > 1 else name
        for i, row in enumerate(rows):
            lines.append(f"{first if i == 0 else ''} & {_row(row[1:], table.heads - 1, intervals)}")
    return lines


def _row(cells: Sequence[Cell], heads: int, intervals: bool) -> str:
    texts = [
        latex_text(cell.text) if i < heads or cell.value is None else _number(cell, intervals)
        for i, cell in enumerate(cells)
    ]
    return rf"{' & '.join(texts)} \\"


def _number(cell: Cell, intervals: bool) -> str:
    """A number as the paper prints it: its marks and error are set around the digits."""
    text = latex_text(cell.text).replace("$", "").replace(r"\_", "")
    text = rf"\underline{{{text}}}" if cell.overall else text
    text = rf"\mathbf{{{text}}}" if cell.best else text
    sign = {"⁼": "^{=}", "†": r"^{\dagger}"}.get(cell.sign, "")
    if intervals:
        ends = cell.interval_text.replace("−", "-")
        return f"${text}{sign}{rf'~{ends}' if ends else ''}$"
    error = "" if cell.error is None else rf"_{{\pm {cell.error:.3f}}}"
    return f"${text}{error}{sign}$"
