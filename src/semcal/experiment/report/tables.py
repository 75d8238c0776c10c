"""Tables as plain data: their cells, their construction from results, and their text in files.

The page shows a table as HTML, the command line with rich. This module writes it as Markdown, as LaTeX
(booktabs) in the paper's layout, and as CSV for spreadsheets.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from semcal.experiment.analyses.grid_scores import FEWEST_OF_A_KIND, Record, above_floor, has_enough
from semcal.metrics import METRICS
from semcal.recalibration.methods import RECALIBRATORS

MISSING = "–"

RunResults = Mapping[str, Any]  # the content of results.json


@dataclass(frozen=True)
class TableCell:
    """One entry of a table."""

    text: str  # displayed text; "–" if undefined
    value: float | None = None  # the unrounded number; None for words or if undefined
    error: float | None = None  # standard error, over questions or runs according to the caption
    best: bool = False  # best of its group
    interval: tuple[float, float] | None = None  # 95% interval over questions
    overall: bool = False  # best of all groups of its data set, underlined
    tied: bool = False  # another cell of its group has the same digits and is marked as well
    less_accurate: bool = False  # method significantly less accurate than Base: never the best
    too_few: bool = False  # fewer than ten correct or ten wrong answers: never the best
    above_floor: float | None = None  # part of a calibration error above the noise floor, for comparisons

    @property
    def sign(self) -> str:
        """The marks after the number."""
        return "†" * self.less_accurate + "‡" * self.too_few or "⁼" * self.tied

    @property
    def compared(self) -> TableCell:
        """The number for comparisons within a group."""
        return self if self.above_floor is None else number(self.above_floor)

    @property
    def error_text(self) -> str:
        """The displayed standard error, "" if there is none."""
        return "" if self.error is None else f"±{self.error:.3f}"

    @property
    def interval_text(self) -> str:
        """The displayed interval, with the digits of the number, "" if there is none."""
        if self.interval is None:
            return ""
        digits = len(self.text.rstrip("*)").partition(".")[2])
        return f"[{', '.join(number(end, digits).text for end in self.interval)}]"


@dataclass(frozen=True)
class Column:
    """The heading of a column, and the group heading above it."""

    title: str
    group: str = ""

    @property
    def heading(self) -> str:
        """Both headings in one line."""
        return f"{self.group} {self.title}".strip()


@dataclass(frozen=True)
class Table:
    """A table as plain data."""

    name: str  # for files and anchors
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    heads: int = 1  # number of leading columns that name the row


def heading_groups(columns: Iterable[Column]) -> list[tuple[str, int]]:
    """Return the group headings above some columns, each with its number of columns."""
    return [(name, len(list(group))) for name, group in groupby(columns, key=lambda column: column.group)]


@dataclass(frozen=True)
class Field:
    """A column of a table of results, and its values."""

    title: str
    value: str | tuple[str, ...] | Callable[[Record], Any]  # key, path of keys or function
    group: str = ""
    digits: int = 3
    where: Record = field(default_factory=dict)  # in a pivot: values that identify its row
    larger: bool | None = None  # in a pivot: whether larger is better; None: no best value

    def cell(self, row: Record | None) -> TableCell:
        """Return the cell of a row, a dash if there is no row."""
        if row is None:
            return number(None)
        key = (self.value,) if isinstance(self.value, str) else self.value
        cell = cell_of(value_at(row, key) if isinstance(key, tuple) else key(row), self.digits)
        return flagged_cell(cell, row, row.get(f"{self.value}_floor"))


def value_at(row: Record | None, path: Sequence[str]) -> Any:
    """Return the value at the end of a path of keys, None if the path ends early."""
    for key in path:
        row = None if row is None else row.get(key)
    return row


def select(rows: Iterable[Record], where: Record) -> list[Record]:
    """Return the rows with these values.

    >>> select([{"a": 1, "b": 2}, {"a": 2, "b": 2}], {"a": 2})
    [{'a': 2, 'b': 2}]
    """
    return [row for row in rows if where.items() <= row.items()]


def number(value: float | int | None, digits: int = 3, *, sign: str = "-") -> TableCell:
    """Return a cell with a number, or with a dash for None; `sign` is "+" for a difference.

    >>> number(0.06449).text, number(2000).text, number(None).text, number(-0.5, 1).text
    ('0.064', '2000', '–', '−0.5')
    >>> number(0.03, sign="+").text
    '+0.030'
    """
    if value is None:
        return TableCell(MISSING)
    text = str(value) if isinstance(value, int) else f"{value:{sign}.{digits}f}"
    return TableCell(text.replace("-", "−"), float(value))


def cell_of(value: Any, digits: int = 3) -> TableCell:
    """Return a cell of words, a number or an entry over runs (mean, standard error, interval), or a dash."""
    if isinstance(value, TableCell):
        return value
    if isinstance(value, str):
        return TableCell(value)
    if not isinstance(value, Mapping):
        return number(value, digits)
    cell = number(value["mean"], digits)
    if cell.value is None:
        return cell
    interval = value.get("interval")
    return replace(cell, error=value.get("se"), interval=tuple(interval) if interval else None)


def flagged_cell(cell: TableCell, row: Record, floor: float | None = None) -> TableCell:
    """Return the cell with the marks of its row, and with its part above the noise floor, if any."""
    if cell.value is None:
        return cell
    return replace(
        cell,
        less_accurate=bool(row.get("less_accurate")),
        too_few=bool(row.get("too_few")),
        above_floor=None if floor is None else above_floor(cell.value, floor),
    )


def counted(n: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "row"), counted(2, "row")
    ('1 row', '2 rows')
    """
    return f"{n} {noun}{'' if n == 1 else 's'}"


def in_order(names: Iterable[str], known: Mapping[str, Any] = RECALIBRATORS) -> list[str]:
    """Return methods, or measures of `MEASURES`, in the order of the paper's tables, then others.

    >>> in_order(["ATS", "TS-grid", "TS", "Base"])
    ['Base', 'TS', 'ATS', 'TS-grid']
    """
    return sorted(names, key=lambda name: known[name].place if name in known else math.inf)


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of the defined values, None without any."""
    defined = [value for value in values if value is not None]
    return sum(defined) / len(defined) if defined else None


def metric_title(metric: str) -> str:
    """Return the title of a metric of results.json.

    >>> metric_title("brier"), metric_title("SE_conf")
    ('Brier score', 'SE_conf')
    """
    return METRICS[metric].title if metric in METRICS else metric


def larger_is_better(metric: str) -> bool:
    """Return whether larger values of a metric are known to be better."""
    return metric in METRICS and bool(METRICS[metric].larger_is_better)


def mark(cells: Sequence[TableCell], *, larger: bool) -> list[TableCell]:
    """Mark the best displayed values of a group; equal digits are all marked, as tied.

    Errors of calibration are compared above their noise floors. Values of a method that is less accurate than
    Base, or of too few answers, are never marked.
    """
    several = [cell for cell in cells if cell.value is not None and not cell.too_few]
    candidates = [cell for cell in several if not cell.less_accurate]
    if not candidates or len(several) < 2:
        return list(cells)
    best = (max if larger else min)((cell.compared for cell in candidates), key=lambda one: one.value or 0.0)
    tied = sum(cell.compared.text == best.text for cell in candidates) > 1
    return [
        replace(cell, best=True, tied=tied)
        if cell in candidates and cell.compared.text == best.text
        else cell
        for cell in cells
    ]


def pivot(
    name: str,
    caption: str,
    rows: Iterable[Record],
    index: Mapping[str, str],
    fields: Sequence[Field],
    *,
    heads: Iterable[tuple[str, ...]] | None = None,
    underline: bool = False,
) -> Table:
    """Place rows of results in a table: a row for each value of `index`, a column for each field.

    `index` maps the keys of the leading columns to their headings; `heads` are the values of each table row,
    by default all. A field shows the first result with these values and those of its `where`. For a field
    with a direction, the best value is marked among the rows that share all values of `index` but the last.
    With `underline`, the best value of these rows over all fields of a group is marked too.

    >>> rows = [{"method": m, "measure": "E-SC", "ace": ace} for m, ace in (("SE", 0.1234), ("TS", 0.05))]
    >>> fields = [Field("E-SC", "ace", "ACE", where={"measure": "E-SC"}, larger=False)]
    >>> [[cell.text for cell in row] for row in pivot("t", "", rows, {"method": "Method"}, fields).rows]
    [['SE', '0.123'], ['TS', '0.050']]
    """
    by_head: dict[tuple[str, ...], list[Record]] = {}
    for row in rows:
        by_head.setdefault(tuple(row[key] for key in index), []).append(row)
    body: list[tuple[TableCell, ...]] = []
    for _, group in groupby(by_head if heads is None else heads, key=lambda head: head[:-1]):
        names = list(group)
        columns = []
        for entry in fields:
            # the first result for each row and field
            shown = [next(iter(select(by_head.get(head, []), entry.where)), None) for head in names]
            cells = [entry.cell(row) for row in shown]
            columns.append(cells if entry.larger is None else mark(cells, larger=entry.larger))
        if underline:
            _underline(fields, columns)
        body += [(*map(TableCell, head), *cells) for head, *cells in zip(names, *columns)]
    headings = (*map(Column, index.values()), *(Column(field.title, field.group) for field in fields))
    return Table(name, caption, headings, tuple(body), heads=len(index))


def _underline(fields: Sequence[Field], columns: list[list[TableCell]]) -> None:
    """Mark the best value over each group of columns."""
    for group in dict.fromkeys(entry.group for entry in fields if entry.larger is not None):
        places = [i for i, entry in enumerate(fields) if entry.group == group]
        values = [cell.value for i in places for cell in columns[i] if cell.best and cell.value is not None]
        if values:
            overall = number((max if fields[places[0]].larger else min)(values)).text
            for i in places:
                columns[i] = [replace(c, overall=c.best and c.text == overall) for c in columns[i]]


# ---- Numbers that are never the best -----------------------------------------------------------------------
# Another temperature gives other answers, so a method can look calibrated because more of its answers are
# wrong with low confidence. A method that is less accurate than Base, or that has too few correct or wrong
# answers, is never bold.

#: Two-sided p value below which a difference is significant.
LEVEL = 0.05
NAMED_BY = ("model", "dataset", "method", "measure")


def is_higher(difference: Record) -> bool | None:
    """Return whether a difference is above 0, None if p or the interval leaves it open."""
    low, high = difference["interval"]
    return None if difference["p"] >= LEVEL or low <= 0 <= high else bool(low > 0)


def less_accurate_rows(results: RunResults) -> list[Record]:
    """Return the rows of methods that are significantly less accurate than Base."""
    rows = results["analyses"].get("against_base") or []
    return [row for row in rows if is_higher(row["accuracy"]) is False]


def flagged(results: RunResults, rows: Iterable[Record]) -> list[Record]:
    """Return rows of results with `less_accurate` and `too_few`, the reasons against a best value.

    A row without a measure is the mean over measures. For a row with `against`, too few answers of either
    count.
    """
    less_accurate = {tuple(row[key] for key in NAMED_BY) for row in less_accurate_rows(results)}
    few: set[tuple[Any, ...]] = set()
    for row in results["analyses"].get("confidence") or []:
        if not answers_suffice(row):
            few |= {_name(row), _name({**row, "measure": None})}
    return [
        {
            **row,
            "less_accurate": _name(row) in less_accurate,
            "too_few": bool(few & {_name(row), _name({**row, "method": row.get("against")})}),
        }
        for row in rows
    ]


def _name(row: Record) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in NAMED_BY)


def marks_note(rows: Sequence[Record]) -> str:
    """Return the note on marks for the caption of a table of flagged rows."""
    notes = {
        "less_accurate": "; † significantly less accurate than Base, never in bold",
        "too_few": f"; ‡ fewer than {FEWEST_OF_A_KIND} correct or {FEWEST_OF_A_KIND} wrong answers: too few "
        "to say, never in bold",
    }
    return "".join(note for key, note in notes.items() if any(row[key] for row in rows))


def answers_suffice(*rows: Record) -> bool:
    """Return whether each row of `confidence` or `calibrated` has ten correct and ten wrong answers."""
    return all(has_enough(row.get("n", 0), value_at(row, ("accuracy", "mean"))) for row in rows)


# ---- Words -------------------------------------------------------------------------------------------------


def compared_methods(methods: Sequence[str]) -> tuple[str, str]:
    """Return the methods before and after recalibration: Base or the first one, TS or the last."""
    return "Base" if "Base" in methods else methods[0], "TS" if "TS" in methods else methods[-1]


def listed(names: Sequence[str]) -> str:
    """Return names as text.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


# ---- Text ------------------------------------------------------------------------------------------------

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def one_line(text: str) -> str:
    r"""Return text without line breaks and control characters.

    >>> one_line("a\n\nb\x00")
    'a b�'
    """
    return _CONTROLS.sub("�", " ".join(filter(None, text.splitlines())).replace("\t", " "))


def without_intervals(table: Table) -> Table:
    """Return the table without its intervals, with a note in its caption; unchanged if it has none."""
    if not any(cell.interval for row in table.rows for cell in row):
        return table
    rows = tuple(tuple(replace(cell, interval=None) for cell in row) for row in table.rows)
    caption = f"{table.caption.removesuffix('.')}. Intervals are left out here."
    return replace(table, caption=caption, rows=rows)


def _written(table: Table, text: Callable[[str], str], number: Callable[[TableCell], str]) -> list[list[str]]:
    heads = table.heads
    return [
        [text(cell.text) if i < heads or cell.value is None else number(cell) for i, cell in enumerate(row)]
        for row in table.rows
    ]


# ---- Markdown ---------------------------------------------------------------------------------------------

#: Text that Markdown reads as markup: its own marks, HTML, entities, the middle of a link, an address.
_MARKUP = re.compile(
    r"[\\`*|$~<]|(?<![^\W_])_|_(?![^\W_])|\](?=[(\[:])|:(?=//)|(?<=\bwww)\.|&(?=#?\w+;)", re.IGNORECASE
)
_ENTITIES = {"<": "&lt;", "&": "&amp;"}
#: Text that begins a heading, a quotation or an item of a list at the start of a paragraph.
_MARKER = re.compile(r"^(\d*)([#>+=.)-])")


def markdown(table: Table) -> str:
    """Return the table as Markdown with the best numbers in bold.

    >>> print(markdown(Table("t", "", (Column("Method"), Column("E-SC", "ACE")),
    ...     ((TableCell("TS"), TableCell("0.064", 0.064, 0.012, best=True)),))))
    | Method | ACE E-SC |
    | :--- | ---: |
    | TS | **0.064** ±0.012 |
    """
    titles = [markdown_text(column.heading) for column in table.columns]
    rules = [":---" if i < table.heads else "---:" for i in range(len(titles))]
    rows = [titles, rules, *_written(table, markdown_text, _markdown_number)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def markdown_text(text: str, *, begins: bool = False) -> str:
    r"""Return text that Markdown shows unchanged, in one line; `begins` at the start of a paragraph.

    >>> print(markdown_text("<b>a|b</b> [x](javascript:y) https://z SE_conf"))
    &lt;b>a\|b&lt;/b> [x\](javascript:y) https\://z SE_conf
    >>> print(markdown_text("# one", begins=True))
    \# one
    """
    text = _MARKUP.sub(lambda match: _ENTITIES.get(match[0], f"\\{match[0]}"), one_line(text))
    return _MARKER.sub(r"\1\\\2", text) if begins else text


def _markdown_number(cell: TableCell) -> str:
    text = markdown_text(cell.text)
    text = f"<u>{text}</u>" if cell.overall else text
    text = f"**{text}**" if cell.best else text
    return " ".join(filter(None, (f"{text}{cell.sign}", cell.error_text, cell.interval_text)))


# ---- CSV --------------------------------------------------------------------------------------------------

#: Beginnings of formulas in spreadsheets, which skip white space and also accept full-width characters.
_FORMULA = re.compile(r"[\s\ufeff\u200b]*[=+\-@＝＋－＠]")


def csv_text(table: Table) -> str:
    r"""Return the table with unrounded numbers, and errors and intervals in separate columns.

    Text is put on one line. Spreadsheets read text that begins with =, +, - or @ (also after white space) as
    a formula, so an apostrophe is put before it.
    """
    columns: list[list[Any]] = []
    for i, column in enumerate(table.columns):
        cells, title = [row[i] for row in table.rows], column.heading
        columns.append([title, *(cell.text if cell.value is None else cell.value for cell in cells)])
        if any(cell.error is not None for cell in cells):
            columns.append([f"{title} se", *(cell.error for cell in cells)])
        if any(cell.interval is not None for cell in cells):
            for place, end in enumerate(("low", "high")):
                columns.append(
                    [f"{title} {end}", *(cell.interval and cell.interval[place] for cell in cells)]
                )
    return csv_lines(zip(*columns))


def csv_lines(rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as CSV, with words as in `csv_text`."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([*map(_no_formula, row)] for row in rows)
    return text.getvalue()


def _no_formula(entry: Any) -> Any:
    if not isinstance(entry, str):
        return entry
    text = one_line(entry)
    return f"'{text}" if _FORMULA.match(text) else text


# ---- LaTeX ------------------------------------------------------------------------------------------------

#: Minimum length of an entry in a column of words, whose lines are broken.
WORDS = 40
#: Limits of a table: the width of the text and the height of a page.
FITTED = r"max width=\textwidth, max totalheight=0.9\textheight"
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
    "‡": r"$^{\ddagger}$",
    "–": "--",
    "…": r"\ldots{}",
    "²": "$^{2}$",
    "[": "{[}",  # after \\ and \midrule it would begin an option
    "*": "{*}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "�": "?",
}


def latex_text(text: str) -> str:
    r"""Return text that LaTeX prints unchanged, in one paragraph.

    >>> print(latex_text("SE_conf & 95 % of {x}"))
    SE\_conf \& 95 \% of \{x\}
    """
    return "".join(_SPECIAL.get(character, character) for character in one_line(text))


def table_latex(table: Table) -> str:
    """Return the table as LaTeX, followed by the table with intervals, if it has any."""
    plain = without_intervals(table)
    if plain is table:
        return latex(table)
    caption = f"{table.caption.removesuffix('.')}. With intervals over questions instead of errors over runs."
    rows = tuple(tuple(replace(cell, error=None) for cell in row) for row in table.rows)
    beside = replace(table, name=f"{table.name}-intervals", caption=caption, rows=rows)
    return f"{latex(plain)}\n\n{latex(beside)}"


def latex(table: Table) -> str:
    """Return the table as a `table*` environment; it needs the packages booktabs and adjustbox."""
    columns = ""
    for i in range(len(table.columns)):
        of_words = any(len(row[i].text) > WORDS for row in table.rows)
        columns += r"p{0.25\textwidth}" if of_words else "l" if i < table.heads else "c"
    groups = heading_groups(table.columns)
    wide = [rf"\multicolumn{{{width}}}{{c}}{{{latex_text(name)}}}" for name, width in groups]
    titles = [latex_text(column.title) for column in table.columns]
    header = [wide, titles] if any(name for name, _ in groups) else [titles]
    body = _written(table, latex_text, _latex_number)
    lines = [
        r"\begin{table*}[t]",
        r"\centering",
        rf"\caption{{{latex_text(table.caption)}}}",
        rf"\label{{tab:{re.sub(r'[^A-Za-z0-9.-]', '-', table.name)}}}",
        rf"\begin{{adjustbox}}{{{FITTED}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        *(rf"{' & '.join(texts)} \\" for texts in header),
        r"\midrule",
        *(rf"{' & '.join(texts)} \\" for texts in body),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{adjustbox}",
        r"\end{table*}",
    ]
    return "\n".join(lines)


def _latex_number(cell: TableCell) -> str:
    """Return a number as in the paper, with marks and error around the digits."""
    text = latex_text(cell.text).replace("$", "").replace(r"\_", "")
    text = rf"\underline{{{text}}}" if cell.overall else text
    text = rf"\mathbf{{{text}}}" if cell.best else text
    marks = "".join({"⁼": "=", "†": r"\dagger", "‡": r"\ddagger"}[mark] for mark in cell.sign)
    sign = f"^{{{marks}}}" if marks else ""
    error = "" if cell.error is None else rf"_{{\pm {cell.error:.3f}}}"
    interval = f"~{cell.interval_text}".replace("−", "-") if cell.interval else ""
    return f"${text}{error}{sign}{interval}$"
