"""Tables as plain data: their cells, how rows of results become them, and their text in files.

The page shows a table as HTML, the command line with rich; here it becomes Markdown, LaTeX (booktabs) in the
paper's layout, and CSV for spreadsheets.
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

from semcal.experiment.analyses.grid_scores import (
    FEWEST_OF_A_KIND,
    Record,
    above_floor,
    has_enough,
)
from semcal.metrics import METRICS
from semcal.recalibration.methods import RECALIBRATORS

MISSING = "–"

RunResults = Mapping[str, Any]  # the content of results.json


@dataclass(frozen=True)
class TableCell:
    """One entry of a table."""

    text: str  # as it is shown; "–" for what is undefined
    value: float | None = None  # the unrounded number; None for words and for what is undefined
    error: float | None = None  # its standard error, over questions or over runs as the caption says
    best: bool = False  # the best of its group
    interval: tuple[float, float] | None = None  # its 95 % interval over questions
    overall: bool = False  # the best of all groups of its data set, which are shown underlined
    tied: bool = False  # another of its group shows the same digits and is marked as well
    less_accurate: bool = False  # of a method that is significantly less accurate than Base: never the best
    too_few: bool = False  # of fewer than ten correct or ten wrong answers: never the best
    above_floor: float | None = None  # of an error of calibration, what it is compared by

    @property
    def sign(self) -> str:
        """What stands behind the number."""
        return "†" * self.less_accurate + "‡" * self.too_few or "⁼" * self.tied

    @property
    def compared(self) -> TableCell:
        """The number that the best of a group is found by."""
        return self if self.above_floor is None else number(self.above_floor)

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
    """A table as plain data."""

    name: str  # fit for a file or an anchor
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    heads: int = 1  # how many leading columns name the row


def heading_groups(columns: Iterable[Column]) -> list[tuple[str, int]]:
    """The wider headings above some columns, each with its number of columns."""
    return [(name, len(list(group))) for name, group in groupby(columns, key=lambda column: column.group)]


@dataclass(frozen=True)
class Field:
    """A column of a table of results, and what it shows of a row."""

    title: str
    value: (
        str | tuple[str, ...] | Callable[[Record], Any]
    )  # a key, a path of keys, or a function; see `cell_of`
    group: str = ""
    digits: int = 3
    where: Record = field(default_factory=dict)  # in a pivot: values by which it finds its row
    larger: bool | None = None  # in a pivot: whether larger is better; None marks no best one

    def cell(self, row: Record | None) -> TableCell:
        """What the column shows of a row, a dash of None."""
        if row is None:
            return number(None)
        key = (self.value,) if isinstance(self.value, str) else self.value
        cell = cell_of(value_at(row, key) if isinstance(key, tuple) else key(row), self.digits)
        return flagged_cell(cell, row, row.get(f"{self.value}_floor"))


def value_at(row: Record | None, path: Sequence[str]) -> Any:
    """The value at the end of a path of keys; None where the path ends early."""
    for key in path:
        row = None if row is None else row.get(key)
    return row


def select(rows: Iterable[Record], where: Record) -> list[Record]:
    """The rows that have some values.

    >>> select([{"a": 1, "b": 2}, {"a": 2, "b": 2}], {"a": 2})
    [{'a': 2, 'b': 2}]
    """
    return [row for row in rows if where.items() <= row.items()]


def number(value: float | int | None, digits: int = 3) -> TableCell:
    """A cell with a number, or with a dash for None.

    >>> number(0.06449).text, number(2000).text, number(None).text, number(-0.5, 1).text
    ('0.064', '2000', '–', '−0.5')
    """
    if value is None:
        return TableCell(MISSING)
    text = str(value) if isinstance(value, int) else f"{value:.{digits}f}"
    return TableCell(text.replace("-", "−"), float(value))


def signed(value: float) -> str:
    """A difference as words have it.

    >>> signed(0.03), signed(-0.1549)
    ('+0.030', '−0.155')
    """
    return f"{value:+.3f}".replace("-", "−")


def cell_of(value: Any, digits: int = 3) -> TableCell:
    """A cell of words, of a number, of an entry over runs (mean, standard error, interval), or of nothing."""
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
    """The cell with what keeps it from being the best, and what lies above its noise floor if it has one."""
    if cell.value is None:
        return cell
    return replace(
        cell,
        less_accurate=bool(row.get("less_accurate")),
        too_few=bool(row.get("too_few")),
        above_floor=None if floor is None else above_floor(cell.value, floor),
    )


def counted(n: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "row"), counted(2, "row")
    ('1 row', '2 rows')
    """
    return f"{n} {noun}{'' if n == 1 else 's'}"


def in_order(names: Iterable[str], known: Mapping[str, Any] = RECALIBRATORS) -> list[str]:
    """Methods, or the measures of `MEASURES`, in the order of the paper's tables, others after them.

    >>> in_order(["ATS", "TS-grid", "TS", "Base"])
    ['Base', 'TS', 'ATS', 'TS-grid']
    """
    return sorted(names, key=lambda name: known[name].place if name in known else math.inf)


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are defined; None without any."""
    defined = [value for value in values if value is not None]
    return sum(defined) / len(defined) if defined else None


def metric_title(metric: str) -> str:
    """How a metric of results.json is written for readers.

    >>> metric_title("brier"), metric_title("SE_conf")
    ('Brier score', 'SE_conf')
    """
    return METRICS[metric].title if metric in METRICS else metric


def larger_is_better(metric: str) -> bool:
    """Whether the larger value of a metric is known to be the better one."""
    return metric in METRICS and bool(METRICS[metric].larger_is_better)


def mark(cells: Sequence[TableCell], *, larger: bool) -> list[TableCell]:
    """Mark the best of a group as it is shown; if several show the same digits, all of them, as tied.

    Errors of calibration are compared above their noise floors. A number of a method less accurate than Base,
    or of too few answers, is never the best.
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
    """Lay rows of results out: a table row for each value of `index`, a column for each field.

    `index` maps the keys whose values name a table row to their headings; `heads` are the values of each
    table row, by default those that there are. A field shows, of the results with these values, the first
    with those of its `where`. The best of a field that says which way it counts is marked among the rows that
    share all values of `index` but the last; with `underline` so is the best of these rows over all fields of
    a group.

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
            # of the results of each row, the first that the field is about
            shown = [next(iter(select(by_head.get(head, []), entry.where)), None) for head in names]
            cells = [entry.cell(row) for row in shown]
            columns.append(cells if entry.larger is None else mark(cells, larger=entry.larger))
        if underline:
            _underline(fields, columns)
        body += [(*map(TableCell, head), *cells) for head, *cells in zip(names, *columns)]
    headings = (*map(Column, index.values()), *(Column(field.title, field.group) for field in fields))
    return Table(name, caption, headings, tuple(body), heads=len(index))


def _underline(fields: Sequence[Field], columns: list[list[TableCell]]) -> None:
    """Mark the best of each group of columns as that overall."""
    for group in dict.fromkeys(entry.group for entry in fields if entry.larger is not None):
        places = [i for i, entry in enumerate(fields) if entry.group == group]
        values = [cell.value for i in places for cell in columns[i] if cell.best and cell.value is not None]
        if values:
            overall = number((max if fields[places[0]].larger else min)(values)).text
            for i in places:
                columns[i] = [replace(c, overall=c.best and c.text == overall) for c in columns[i]]


# ---- What keeps a number from being the best ---------------------------------------------------------------
# What is drawn at another temperature are other answers: such a method can look calibrated by being wrong and
# knowing it. One that is less accurate than Base is never set in bold, and named; nor is one whose correct or
# wrong answers are too few.

#: Two-sided p below which a difference is one.
LEVEL = 0.05
NAMED_BY = ("model", "dataset", "method", "measure")


def is_higher(difference: Record) -> bool | None:
    """Whether a difference is above 0; None where p or the interval leaves that open, as few questions do."""
    low, high = difference["interval"]
    return None if difference["p"] >= LEVEL or low <= 0 <= high else bool(low > 0)


def less_accurate_rows(results: RunResults) -> list[Record]:
    """The rows of methods that are shown to be less accurate than Base."""
    rows = results["analyses"].get("against_base") or []
    return [row for row in rows if is_higher(row["accuracy"]) is False]


def flagged(results: RunResults, rows: Iterable[Record]) -> list[Record]:
    """Rows of results with `less_accurate` and `too_few`: what keeps their method from being the best.

    A row without a measure stands for the mean over measures. Of a row with `against` either may be too few.
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
    """What the caption of a table of flagged rows adds."""
    notes = {
        "less_accurate": "; † significantly less accurate than Base, never in bold",
        "too_few": f"; ‡ fewer than {FEWEST_OF_A_KIND} correct or {FEWEST_OF_A_KIND} wrong answers: too few "
        "to say, never in bold",
    }
    return "".join(note for key, note in notes.items() if any(row[key] for row in rows))


def answers_suffice(*rows: Record) -> bool:
    """Whether each method, a row of `confidence` or `calibrated`, has ten correct and ten wrong answers."""
    return all(has_enough(row.get("n", 0), value_at(row, ("accuracy", "mean"))) for row in rows)


# ---- Text ------------------------------------------------------------------------------------------------

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def one_line(text: str) -> str:
    r"""Text without line breaks and without characters that no file of text should hold.

    >>> one_line("a\n\nb\x00")
    'a b�'
    """
    return _CONTROLS.sub("�", " ".join(filter(None, text.splitlines())).replace("\t", " "))


def without_intervals(table: Table) -> Table:
    """The table without its intervals, as its caption then says; itself if it has none."""
    if not any(cell.interval for row in table.rows for cell in row):
        return table
    rows = tuple(tuple(replace(cell, interval=None) for cell in row) for row in table.rows)
    caption = f"{table.caption.removesuffix('.')}. Here without the intervals."
    return replace(table, caption=caption, rows=rows)


def _written(table: Table, text: Callable[[str], str], number: Callable[[TableCell], str]) -> list[list[str]]:
    """The rows of a table, its words written by `text` and its numbers by `number`."""
    heads = table.heads
    return [
        [text(cell.text) if i < heads or cell.value is None else number(cell) for i, cell in enumerate(row)]
        for row in table.rows
    ]


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

    >>> print(markdown(Table("t", "", (Column("Method"), Column("E-SC", "ACE")),
    ...     ((TableCell("TS"), TableCell("0.064", 0.064, 0.012, best=True)),))))
    | Method | ACE E-SC |
    | :--- | ---: |
    | TS | **0.064** ±0.012 |
    """
    titles = [markdown_text(f"{column.group} {column.title}".strip()) for column in table.columns]
    rules = [":---" if i < table.heads else "---:" for i in range(len(titles))]
    rows = [titles, rules, *_written(table, markdown_text, _markdown_number)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def markdown_text(text: str, *, begins: bool = False) -> str:
    r"""Text that Markdown shows as it is, in one line; `begins` where a paragraph begins with it.

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
    body = []
    for row in table.rows:
        line: list[Any] = []
        for cell, error, interval in zip(row, errors, intervals):
            line.append(cell.text if cell.value is None else cell.value)
            line += [*([cell.error] * error), *((cell.interval or (None, None)) if interval else ())]
        body.append(line)
    return csv_lines([header, *body])


def csv_lines(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV; words as `csv_text` writes them."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([*map(_no_formula, row)] for row in rows)
    return text.getvalue()


def _no_formula(entry: Any) -> Any:
    if not isinstance(entry, str):
        return entry
    text = one_line(entry)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBERS.fullmatch(text) else text


# ---- LaTeX ------------------------------------------------------------------------------------------------

#: A column with an entry longer than this is one of words, whose lines are broken.
WORDS = 40
#: No wider than the text and no higher than a page.
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
    plain = without_intervals(table)
    if plain is table:
        return latex(table)
    beside = replace(
        table,
        name=f"{table.name}-intervals",
        caption=f"{table.caption.removesuffix('.')}. Here with the intervals over questions, without the "
        "errors over runs.",
        rows=tuple(tuple(replace(cell, error=None) for cell in row) for row in table.rows),
    )
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
    """A number as the paper prints it: its marks and error are set around the digits."""
    text = latex_text(cell.text).replace("$", "").replace(r"\_", "")
    text = rf"\underline{{{text}}}" if cell.overall else text
    text = rf"\mathbf{{{text}}}" if cell.best else text
    marks = "".join({"⁼": "=", "†": r"\dagger", "‡": r"\ddagger"}[mark] for mark in cell.sign)
    sign = f"^{{{marks}}}" if marks else ""
    error = "" if cell.error is None else rf"_{{\pm {cell.error:.3f}}}"
    interval = f"~{cell.interval_text}".replace("−", "-") if cell.interval else ""
    return f"${text}{error}{sign}{interval}$"
