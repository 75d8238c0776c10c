"""Tables beyond the paper's: the same answers clustered with and without the reading of numbers and dates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from semcal.report.layout import columns_of
from semcal.report.tables import Cell, Column, Table, number

__all__ = ["remedy_tables"]

Results = Mapping[str, Any]
Row = Mapping[str, Any]
ARMS = ("with", "without")
KINDS = ("same", "different")
METRICS = {"accuracy": "accuracy", "ace": "ACE", "auroc": "AUROC"}
NAMED = ("model", "dataset", "candidate")
WITHOUT = "with number and date forms and with texts as SQuAD normalises them, run 0"


def remedy_tables(results: Results) -> list[Table]:
    """The tables of remedies; none where answers were clustered once."""
    rows = results["analyses"].get("remedies")
    return [_clusters(rows), _scores(results), _by_measure(results)] if rows else []


def _clusters(rows: Sequence[Row]) -> Table:
    return Table(
        "remedies",
        f"Clusters {WITHOUT}: the share of questions whose clusters differ, meanings per question, and of "
        "the labelled pairs of distinct answers those of one meaning that are split and those of two that "
        "are merged; errors saved per labelled pair, with the 95 % interval over questions",
        (
            *map(Column, ("Model", "Data set", "Candidate", "Clusters differ")),
            *(Column(arm, "Meanings") for arm in ARMS),
            *(Column(kind, "Labelled pairs") for kind in KINDS),
            *(Column(arm, error) for error in ("Split", "Merged") for arm in ARMS),
            Column("Errors saved"),
        ),
        tuple(_clusters_row(row) for row in rows),
        heads=3,
    )


def _clusters_row(row: Row) -> tuple[Cell, ...]:
    pairs = row["pairs"]
    kinds = [Cell("no labels")] * 2 if pairs is None else [number(pairs[key]) for key in KINDS]
    return (
        *(Cell(row[key]) for key in NAMED),
        number(row["changed"]),
        *(number(row["meanings"][arm], 2) for arm in ARMS),
        *kinds,
        *(number(pairs and pairs[error][arm]) for error in ("split", "merged") for arm in ARMS),
        _benefit(row["fewer_errors"], 4),
    )


def _scores(results: Results) -> Table:
    return Table(
        "remedies-scores",
        f"The same answers clustered {WITHOUT}, mean over measures; how much better the former are, with the "
        "95 % interval over questions, in bold where it lies above 0",
        (*map(Column, ("Model", "Data set", "Candidate")), *_columns()),
        tuple(
            (*(Cell(row[key]) for key in NAMED), *_cells(results, row, None))
            for row in results["analyses"]["remedies"]
        ),
        heads=3,
    )


def _by_measure(results: Results) -> Table:
    return Table(
        "remedies-by-measure",
        f"The same answers clustered {WITHOUT}, by measure; how much better the former are, with the 95 % "
        "interval over questions, in bold where it lies above 0",
        (*map(Column, ("Model", "Data set", "Measure")), *_columns()),
        tuple(
            (Cell(row["model"]), Cell(row["dataset"]), Cell(measure), *_cells(results, row, measure))
            for row in results["analyses"]["remedies"]
            for measure in columns_of(results["measures"])
        ),
        heads=3,
    )


def _columns() -> list[Column]:
    return [Column(title, name) for name in METRICS.values() for title in (*ARMS, "better by")]


def _cells(results: Results, of: Row, measure: str | None) -> list[Cell]:
    found = {
        row["metric"]: row
        for row in results["analyses"]["remedy_scores"]
        if (row["model"], row["dataset"], row["measure"]) == (of["model"], of["dataset"], measure)
    }
    return [
        cell
        for metric in METRICS
        for row in [found.get(metric)]
        for cell in (*(number(row and row[arm]) for arm in ARMS), _benefit(row and row["benefit"], 3))
    ]


def _benefit(found: Row | None, digits: int) -> Cell:
    if found is None:
        return number(None)
    cell, (low, high) = number(found["value"], digits), found["interval"]
    text = f"+{cell.text}" if found["value"] > 0 else cell.text
    return replace(cell, text=text, interval=(low, high), best=low > 0)
