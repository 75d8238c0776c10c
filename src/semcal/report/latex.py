"""Tables as LaTeX (booktabs) in the paper's layout: metrics above measures, data sets beside methods."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from math import ceil

from semcal.report.tables import Cell, Table, one_line

__all__ = ["escaped", "latex"]

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


def escaped(text: str) -> str:
    r"""Text that LaTeX prints as it is, in one paragraph.

    Examples
    --------
    >>> print(escaped("SE_conf & 95 % of {x}"))
    SE\_conf \& 95 \% of \{x\}
    """
    return "".join(_SPECIAL.get(character, character) for character in one_line(text))


def _label(name: str) -> str:
    r"""A name that `\label` and `\ref` take."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", name)


def latex(table: Table, *, intervals: bool = False) -> str:
    r"""Return the table as `table*` environments, one a page; it needs booktabs, multirow and graphicx.

    Parameters
    ----------
    table : Table
    intervals : bool
        Show the intervals over questions in place of the errors; without any interval the table is empty of
        them and shows numbers alone.

    Examples
    --------
    >>> from semcal.report.tables import Cell, Column, Table
    >>> small = Table("t", "Two methods", (Column("Method"), Column("E-SC", "ACE")),
    ...     ((Cell("TS"), Cell("0.064", 0.064, 0.012, best=True)),))
    >>> print(latex(small))
    \begin{table*}[t]
    \centering
    \caption{Two methods}
    \label{tab:t}
    \resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%
    \begin{tabular}{lc}
    \toprule
     & \multicolumn{1}{c}{ACE} \\
    \cmidrule(lr){2-2}
    Method & E-SC \\
    \midrule
    TS & $\mathbf{0.064}_{\pm 0.012}$ \\
    \bottomrule
    \end{tabular}}
    \end{table*}
    """
    return "\n\n".join(_float(part, intervals) for part in _parts(table))


def _parts(table: Table) -> list[Table]:
    """The table cut into parts that a page holds: LaTeX lets what is longer run off its end."""
    pages: list[list[tuple[Cell, ...]]] = [[]]
    left = LINES
    for row, lines in zip(table.rows, _heights(table)):
        if lines > left and pages[-1]:
            pages.append([])
            left = LINES
        pages[-1].append(row)
        left -= lines
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
    if not _words(table):
        return [1] * len(table.rows)
    widths = [CHARACTERS * share for share in _shares(table)]
    return [max(ceil(len(cell.text) / width) for cell, width in zip(row, widths)) for row in table.rows]


def _words(table: Table) -> bool:
    return any(len(cell.text) > WORDS for row in table.rows for cell in row)


def _float(table: Table, intervals: bool) -> str:
    words = _words(table)
    lines = [
        r"\begin{table*}[t]",
        r"\centering",
        rf"\caption{{{escaped(table.caption)}}}",
        rf"\label{{tab:{_label(table.name)}}}",
        *([] if words else [FITTED]),
        rf"\begin{{tabular}}{{{_wrapped(table) if words else _centred(table)}}}",
        r"\toprule",
        *_header(table),
        r"\midrule",
        *_body(table, intervals),
        r"\bottomrule",
        r"\end{tabular}" if words else r"\end{tabular}}",
        r"\end{table*}",
    ]
    return "\n".join(lines)


def _centred(table: Table) -> str:
    return "l" * table.heads + "c" * (len(table.columns) - table.heads)


def _wrapped(table: Table) -> str:
    return "".join(rf"p{{{share:.2f}\textwidth}}" for share in _shares(table))


def _shares(table: Table) -> list[float]:
    """Columns as wide as their longest entries are long, within limits, 0.9 of the text together."""
    longest = [max(len(row[i].text) for row in table.rows) for i in range(len(table.columns))]
    lengths = [min(max(length, 8), 100) for length in longest]
    return [0.9 * length / sum(lengths) for length in lengths]


def _header(table: Table) -> list[str]:
    titles = " & ".join(escaped(column.title) for column in table.columns)
    if not any(column.group for column in table.columns):
        return [rf"{titles} \\"]
    cells, rules, place = [], [], 1
    for group, columns in groupby(table.columns, key=lambda column: column.group):
        width = len(list(columns))
        if group:
            cells.append(rf"\multicolumn{{{width}}}{{c}}{{{escaped(group)}}}")
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
        name = escaped(rows[0][0].text)
        first = rf"\multirow{{{len(rows)}}}{{*}}{{{name}}}" if len(rows) > 1 else name
        for i, row in enumerate(rows):
            lines.append(f"{first if i == 0 else ''} & {_row(row[1:], table.heads - 1, intervals)}")
    return lines


def _row(cells: Sequence[Cell], heads: int, intervals: bool) -> str:
    shown = [
        escaped(cell.text) if i < heads or cell.value is None else _number(cell, intervals)
        for i, cell in enumerate(cells)
    ]
    return rf"{' & '.join(shown)} \\"


def _number(cell: Cell, intervals: bool) -> str:
    """A number as the paper prints it; what stands around its digits goes outside."""
    text = escaped(cell.text).replace("$", "").replace(r"\_", "")
    text = rf"\underline{{{text}}}" if cell.overall else text
    text = rf"\mathbf{{{text}}}" if cell.best else text
    tied = "^{=}" if cell.tied else ""
    if intervals:
        ends = cell.interval_text.replace("−", "-")
        return f"${text}{tied}{rf'~{ends}' if ends else ''}$"
    error = "" if cell.error is None else rf"_{{\pm {cell.error:.3f}}}"
    return f"${text}{error}{tied}$"
