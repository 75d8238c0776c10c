"""`semcal metrics`: calibration and discrimination of graded rows."""

from __future__ import annotations

import re
import sys
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semcal.cli import options as opt
from semcal.cli.console import as_shown, info, show
from semcal.cli.row_commands import BadRows, good_rows, open_rows
from semcal.errors import InputError
from semcal.files import dumps, writing

if TYPE_CHECKING:
    from rich.table import Table

#: The columns that are read.
FIELDS = ("id", "confidence", "correct", "semantic_entropy", "probability", "answer_correct")

MeasuresOption = Annotated[list[str] | None, typer.Option(help="Only this measure; may be repeated.")]
BinsOption = Annotated[int, typer.Option(min=1, callback=opt.countable, help="Bins of ECE and ACE.")]
IntervalsOption = Annotated[
    bool, typer.Option("--ci", help="Add standard errors and 95 % intervals over questions.")
]


def command(
    file: opt.RowsArgument,
    measure: MeasuresOption = None,
    bins: BinsOption = 15,
    ci: IntervalsOption = False,
    risk: opt.RiskOption = None,
    delta: opt.DeltaOption = 0.05,
    seed: opt.SeedOption = 0,
    columns: opt.ColumnsOption = None,
    limit: opt.LimitOption = None,
    out: opt.OutOption = None,
    overwrite: opt.OverwriteOption = False,
    json: opt.JsonOption = False,
) -> int:
    """Measure calibration, discrimination and selective accuracy.

    Reads rows {confidence, correct}, or both by measure as semcal grade writes them; a calibrated
    probability of the answer (probability, answer_correct) is the measure Calibrated. What is undefined
    is null. Rows that are null under a measure do not count for it; their number is printed.
    """
    from semcal.data.question import several
    from semcal.measuring import assess, check_assessable, scores_by_measure

    rows = islice(open_rows(file, columns, check_assessable, fields=FIELDS, label="metrics"), limit)
    with BadRows() as bad:
        by_measure = scores_by_measure(good_rows(rows, bad), measure)
    if not by_measure:
        raise InputError(
            f"no row of {file} holds confidence and correct; run `semcal measure` and `semcal grade`"
        )
    for name, scores in by_measure.items():
        if scores.undefined:
            info(
                f"metrics: rows without {name or 'confidence'}, which do not count for it: {scores.undefined}"
            )
    assessed = assess(by_measure, bins=bins, ci=ci, seed=seed, risk=risk, delta=delta)
    results = [({} if name is None else {"measure": name}) | values for name, values in assessed.items()]
    if risk is not None:
        info("metrics: the threshold holds only if nothing (T, map, measure) was fitted on these questions")
        if any(several(scores.ties) is not None for scores in by_measure.values()):
            info("metrics: of questions that share a passage or group, which are not independent, one counts")
    if json or out is not None or not sys.stdout.isatty():
        with writing(out) as handle:
            handle.writelines(dumps(result) + "\n" for result in results)
    else:
        show_metrics(results)
    return bad.exit_code()


def show_metrics(results: list[dict[str, Any]]) -> None:
    """Print metrics for people; a result's `measure` is the head of its column."""
    from rich.console import Console

    console = Console()
    for number, table in enumerate(metrics_tables(results, console.width)):
        console.print(*([""] if number else []), table, sep="\n", markup=False, highlight=False)
    for result in results:
        if "risk" in result:
            sentence = ": ".join([result["measure"]] * ("measure" in result) + [result["risk"]["sentence"]])
            show(sentence)


def _shown(value: Any) -> str:
    if value is None or value != value:
        return "–"
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, list):
        return "[" + ", ".join("–" if item is None else f"{item:.3f}" for item in value) + "]"
    return str(value)


def metrics_tables(results: list[dict[str, Any]], width: int) -> list[Table]:
    """Metrics down, measures across: as many tables as it takes for each to fit a width of characters."""
    rows = _rows(max(results, key=len))
    shown = [[_metric(result, *row) for row in rows] for result in results]
    names = [key if inner is None else f"{key} {inner}" for key, inner in rows]
    heads = [str(result.get("measure", "value")) for result in results]
    first = max(map(len, ["metric", *names]))
    widths = [max(map(len, [head, *column])) + 1 for head, column in zip(heads, shown)]
    tables, part = [], [0]
    for number in range(1, len(results) + 1):
        if number < len(results) and first + sum(widths[i] for i in [*part, number]) <= width:
            part.append(number)
        else:
            tables.append(_table(names, [heads[i] for i in part], [shown[i] for i in part]))
            part = [number]
    return tables


def _rows(result: dict[str, Any]) -> list[tuple[str, str | None]]:
    """The metrics, and of those that are mappings each key."""
    return [
        (key, inner)
        for key, value in result.items()
        if key not in ("measure", "se", "interval", "risk")
        for inner in (value if isinstance(value, dict) else (None,))
    ]


def _metric(result: dict[str, Any], key: str, inner: str | None) -> str:
    """A value, with its standard error and interval where there are some: 0.0940 ±.0150 [.064, .124]."""
    value = result.get(key) if inner is None else (result.get(key) or {}).get(inner)
    error, interval = (result.get(kind, {}).get(key) for kind in ("se", "interval"))
    if inner is not None or interval is None:
        return _shown(value)
    return f"{_shown(value)} ± {_short(error)} [{_short(interval[0])}, {_short(interval[1])}]"


def _short(value: float | None) -> str:
    return "–" if value is None or value != value else re.sub(r"^(-?)0\.", r"\1.", f"{value:.3f}")


def _table(names: list[str], heads: list[str], columns: list[list[str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for number, head in enumerate(["metric", *heads]):
        table.add_column(Text(as_shown(head)), justify="right" if number else "left", overflow="fold")
    for row in zip(names, *columns):
        table.add_row(*(Text(as_shown(cell)) for cell in row))
    return table
