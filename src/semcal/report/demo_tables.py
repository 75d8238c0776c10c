"""The tables of a demo, made from its results.json alone (analyses.md, tables 2, 3 and 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from semcal.report.tables import LARGER_IS_BETTER, MISSING, NAMES, Cell, Column, Table, mark, number

__all__ = ["answer_table", "set_table", "summary_table"]

Results = Mapping[str, Any]


def summary_table(results: Results, *, metrics: Sequence[str] = ("ace", "auroc")) -> Table:
    """Return the main table: a row for each set and method, for each metric a column a measure.

    Parameters
    ----------
    results : mapping
        The content of results.json.
    metrics : sequence of str
        Keys of a measure's figures in results.json; "ace" and "auroc" as in the paper's table.

    Returns
    -------
    Table
        Two naming columns (set, method); numbers carry their standard error over questions, and the
        best method of each set, measure and metric is marked.
    """
    groups = [NAMES.get(key, key) if len(metrics) > 1 else "" for key in metrics]
    columns = [Column(measure, group) for group in groups for measure in results["measures"]]
    rows: list[tuple[Cell, ...]] = []
    for entry in results["sets"]:
        rows += _marked_rows(entry, results["measures"], metrics)
    names = " and ".join(map(_directed, metrics))
    caption = f"{names}, ± one standard error over questions; the best of each set and measure in bold"
    return Table(
        f"summary-{'-'.join(metrics)}", caption, (Column("Set"), Column("Method"), *columns), tuple(rows), 2
    )


def _directed(key: str) -> str:
    return f"{NAMES.get(key, key)} ({'higher' if key in LARGER_IS_BETTER else 'lower'} is better)"


def _marked_rows(
    entry: Mapping[str, Any], measures: Sequence[str], metrics: Sequence[str]
) -> list[tuple[Cell, ...]]:
    """The rows of one set, with the best method marked in each column."""
    methods = list(entry["methods"])
    columns = [
        mark(
            [_figure(entry["methods"][method], measure, key) for method in methods],
            larger=key in LARGER_IS_BETTER,
        )
        for key in metrics
        for measure in measures
    ]
    return [
        (Cell(entry["name"]), Cell(method), *(column[i] for column in columns))
        for i, method in enumerate(methods)
    ]


def _figure(method: Mapping[str, Any], measure: str, key: str) -> Cell:
    """One figure of a measure with its standard error, a dash where either is undefined."""
    figures = method["measures"].get(measure) or {}
    cell = number(figures.get(key))
    error = (figures.get("se") or {}).get(key)
    return cell if cell.value is None else replace(cell, error=error)


def set_table(results: Results) -> Table:
    """Return what was asked and what was fitted: a row for each set (analyses.md, tables 2 and 7)."""
    columns = (
        Column("Set"),
        Column("Questions"),
        Column("Passage"),
        Column("Greedy accuracy"),
        Column("Fit", "Temperature"),
        Column("T", "Temperature"),
        Column("Questions", "Fitted on"),
        Column("Tokens", "Fitted on"),
        Column("before", "NLL per token"),
        Column("after", "NLL per token"),
    )
    caption = "Question sets, and the temperature fitted on the calibration questions of each"
    return Table("sets", caption, columns, tuple(_set_row(entry) for entry in results["sets"]))


def _set_row(entry: Mapping[str, Any]) -> tuple[Cell, ...]:
    fit = entry.get("fit") or {}
    temperature = number(fit.get("temperature"), 2)
    if fit.get("at_bound"):
        temperature = replace(temperature, text=f"{temperature.text} (at its bound)")
    return (
        Cell(entry["name"]),
        number(entry.get("n")),
        Cell("given" if entry.get("open_book") else "none"),
        number(entry.get("greedy_accuracy")),
        Cell(f"{fit['method']}, {fit['loss']}" if "loss" in fit else MISSING),
        temperature,
        number(fit.get("n_questions")),
        number(fit.get("n_tokens")),
        number(fit.get("nll_before")),
        number(fit.get("nll_after")),
    )


def answer_table(results: Results) -> Table:
    """Return how varied and how right the answers are: a row for each set and method.

    Distinct strings and meanings are means per question; accuracy is that of the answer which each
    measure selects, a member of its most confident cluster.
    """
    columns = (
        Column("Set"),
        Column("Method"),
        Column("Temperature"),
        Column("strings", "Distinct per question"),
        Column("meanings", "Distinct per question"),
        *(Column(measure, "Accuracy of the selected answer") for measure in results["measures"]),
    )
    rows = [
        (
            Cell(entry["name"]),
            Cell(name),
            number(method.get("temperature"), 2),
            number(method.get("distinct_answers"), 2),
            number(method.get("meanings"), 2),
            *(replace(_figure(method, measure, "accuracy"), error=None) for measure in results["measures"]),
        )
        for entry in results["sets"]
        for name, method in entry["methods"].items()
    ]
    caption = f"What {results['m']} sampled answers a question hold, and how often the selected one is right"
    return Table("answers", caption, columns, tuple(rows), 2)
