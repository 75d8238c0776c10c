"""Methods that are significantly less accurate than Base: never set in bold, and named; and the two tables.

What is drawn at another temperature are other answers: such a method can look calibrated by being wrong and
knowing it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from semcal.report.tables import Cell, Field, Row, Table, measures_in_order, number, pivot

Results = Mapping[str, Any]
METRICS = ("accuracy", "gain")
#: Two-sided p below which a difference is one.
LEVEL = 0.05
NAMED_BY = ("model", "dataset", "method", "measure")


def _less_accurate(results: Results) -> list[Row]:
    """The rows of methods that are shown to be less accurate than Base."""
    rows = results["analyses"].get("against_base") or []
    return [row for row in rows if _is_better(row["accuracy"]) is False]


def flagged(results: Results, rows: Iterable[Row]) -> list[Row]:
    """Rows of results with `less_accurate`: whether their method is, under their measure.

    A row without a measure stands for the mean over measures.
    """
    found = {tuple(row[key] for key in NAMED_BY) for row in _less_accurate(results)}
    return [{**row, "less_accurate": tuple(row.get(key) for key in NAMED_BY) in found} for row in rows]


def less_accurate_note(rows: Iterable[Row]) -> str:
    """What the caption of a table of flagged rows adds."""
    return (
        "; † significantly less accurate than Base, never in bold"
        if any(row["less_accurate"] for row in rows)
        else ""
    )


def less_accurate_in_words(results: Results) -> list[str]:
    """A sentence for each model, data set and method that is less accurate than Base under some measure."""
    rows = [row for row in _less_accurate(results) if row["measure"] is not None]
    return [
        _sentence(results, model, dataset, method, list(own))
        for (model, dataset, method), own in groupby(rows, key=lambda row: [row[k] for k in NAMED_BY[:3]])
    ]


def _sentence(results: Results, model: str, dataset: str, method: str, rows: Sequence[Row]) -> str:
    measures = measures_in_order([row["measure"] for row in rows])
    worst = min(rows, key=lambda row: row["accuracy"]["value"])
    low, high = (f"{end:+.3f}".replace("-", "−") for end in worst["accuracy"]["interval"])
    few = len(rows) <= 3
    where = ", ".join(measures) if few else f"{len(rows)} of {len(results['measures'])} measures"
    of = f" with {worst['measure']}" if len(rows) > 1 else ""
    place = dataset if len(results["models"]) == 1 else f"{dataset} with {model}"
    return (
        f"Less accurate than Base: {method} under {where} on {place} (accuracy "
        f"{number(worst['accuracy']['value']).text}{of}, 95 % interval {low} to {high}); not set in bold."
    )


def against_base_table(results: Results, metric: str) -> Table | None:
    """A metric of each method less Base's; None without Base or another method."""
    given = results["analyses"].get("against_base") or []
    rows = [
        {**row, "difference": found["value"], "interval": found["interval"], "better": _is_better(found)}
        for row in flagged(results, given)
        for found in [row[metric]]
    ]
    if not rows:
        return None
    return pivot(
        f"against-base-{metric}",
        f"{metric.capitalize()} of each method less that of Base on the same questions, with its 95 % "
        "interval over questions; in bold where shown to be higher, in brackets where lower"
        f"{less_accurate_note(rows)}",
        rows,
        {"model": "Model", "dataset": "Data set", "method": "Method"},
        [
            Field(name or "mean", difference_cell, where={"measure": name})
            for name in (*measures_in_order(results["measures"]), None)
        ],
    )


def _is_better(found: Mapping[str, Any]) -> bool | None:
    """Whether a difference is above 0; None where p or the interval leaves that open, as few questions do."""
    low, high = found["interval"]
    if found["p"] >= LEVEL or low <= 0 <= high:
        return None
    return bool(low > 0)


def difference_cell(row: Row) -> Cell:
    """A difference with its sign: in bold where it is `better`, in brackets where it is worse."""
    if row["difference"] is None:
        return number(None)
    cell = number(row["difference"])
    text = cell.text if row["difference"] < 0 else f"+{cell.text}"
    return replace(
        cell,
        text=f"({text})" if row["better"] is False else text,
        best=row["better"] is True and not row["less_accurate"],
        interval=tuple(row["interval"]),
    )
