"""`semcal metrics`: confidences and correctness to numbers."""

from __future__ import annotations

import sys
from itertools import islice
from typing import Annotated, Any

import typer

from semcal.cli.complaints import BadRows
from semcal.cli.console import say
from semcal.cli.options import (
    ColumnsOption,
    JsonOption,
    LimitOption,
    OutOption,
    OverwriteOption,
    QuietOption,
    RowsArgument,
    SeedOption,
    VerboseOption,
    countable,
)
from semcal.cli.reading import open_rows
from semcal.cli.streams import good_items
from semcal.errors import InputError
from semcal.records import dumps, writing

__all__ = ["command"]

#: The columns that are read.
FIELDS = ("id", "confidence", "correct", "semantic_entropy")


def command(
    file: RowsArgument,
    measure: Annotated[list[str] | None, typer.Option(help="Only this measure; may be repeated.")] = None,
    bins: Annotated[int, typer.Option(min=1, callback=countable, help="Bins of ECE and ACE.")] = 15,
    ci: Annotated[
        bool, typer.Option("--ci", help="Add standard errors and 95 % intervals over questions.")
    ] = False,
    seed: SeedOption = 0,
    columns: ColumnsOption = None,
    limit: LimitOption = None,
    out: OutOption = None,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Measure calibration, discrimination and selective accuracy.

    Reads rows {confidence, correct}, or both by measure as semcal grade writes them. What is undefined
    is null. A row whose measure is null does not count for that measure, and it is said how many.
    """
    from semcal.pipeline.assess import assess, check_assessable, scores_by_measure

    rows = islice(open_rows(file, columns, check_assessable, fields=FIELDS, label="metrics"), limit)
    with BadRows() as bad:
        found = scores_by_measure((row.data for row in good_items(rows, bad)), measure)
    if not found:
        raise InputError(
            f"no row of {file} holds confidence and correct; run `semcal measure` and `semcal grade`"
        )
    for name, scores in found.items():
        if scores.undefined:
            say(
                f"metrics: rows without {name or 'confidence'}, which do not count for it: {scores.undefined}"
            )
    results = [
        ({} if name is None else {"measure": name}) | numbers
        for name, numbers in assess(found, bins=bins, ci=ci, seed=seed).items()
    ]
    if json or out is not None or not sys.stdout.isatty():
        with writing(out) as handle:
            handle.writelines(dumps(result) + "\n" for result in results)
    else:
        _show(results)
    return bad.exit_code()


def _show(results: list[dict[str, Any]]) -> None:
    from rich.console import Console

    from semcal.cli.tables import metrics_tables

    console = Console()
    for number, table in enumerate(metrics_tables(results, console.width)):
        console.print(*([""] if number else []), table, sep="\n", markup=False, highlight=False)
