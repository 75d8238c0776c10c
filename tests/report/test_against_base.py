"""A method that is significantly less accurate than Base: marked, and nowhere in bold."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from semcal.experiment.report.build import headline_table
from semcal.experiment.report.report_tables import report_tables
from semcal.experiment.report.tables import Table, latex, markdown

ALWAYS_BEST = {"mean": 0.5, "se": 0.0, "runs": [0.5], "interval": [0.4, 0.6]}


def less(low: float, high: float) -> dict[str, Any]:
    return {"value": (low + high) / 2, "interval": [low, high], "p": 0.001}


@pytest.fixture
def results(grid_results: dict[str, Any]) -> dict[str, Any]:
    """TS is the best in everything but accuracy, in which it loses on one model and data set."""
    found = deepcopy(grid_results)
    for row in found["analyses"]["confidence"]:
        row |= {"n": 300, "accuracy": ALWAYS_BEST}
    for name, keys in (
        ("confidence", ("ace", "ece", "mcb", "brier")),
        ("entropy", ("SE_conf", "SE_vanilla")),
    ):
        for row in found["analyses"][name]:
            if row["method"] == "TS":
                best = 0.9999 if name == "entropy" else 0.0
                row |= {key: {**ALWAYS_BEST, "mean": best} for key in keys}
            if row["method"] == "TS" and name == "confidence":
                row |= {key: {**ALWAYS_BEST, "mean": 0.9999} for key in ("auroc", "gain")}
    for row in found["analyses"]["selective"]:
        if row["method"] == "TS":
            row |= {key: {**ALWAYS_BEST, "mean": 0.9999} for key in ("slope", "gain")}
    for row in found["analyses"]["paired"]:
        row |= {"difference": 0.1, "interval": [0.05, 0.15], "better": True}
    for row in found["analyses"]["against_base"]:
        loses = (row["model"], row["dataset"], row["method"]) == ("beta/2b", "made-up-reading", "TS")
        row["accuracy"] = less(-0.16, -0.08) if loses else less(-0.05, 0.01)
        row["gain"] = less(0.01, 0.02)
    return found


def cells_of(table: Table, method: str, dataset: str) -> list[Any]:
    """The cells of the rows of a method on a data set."""
    found = []
    for row in table.rows:
        names = [cell.text for cell in row[: table.heads]]
        if method in names and dataset in names:
            found += row[table.heads :]
    return found


def test_what_would_be_the_best_everywhere_is_in_bold_where_it_is_as_accurate_and_nowhere_else(
    results,
) -> None:
    tables = {table.name: table for table in report_tables(results)}
    kinds = (
        "03-main",
        "04-entropy-short",
        "06-entropy-vanilla",
        "08-brier",
        "08c-gain",
        "09-ace-mcb",
        "selective",
    )
    for kind in kinds:
        table = tables[f"{kind}-beta_2b"]
        assert not any(cell.best or cell.overall for cell in cells_of(table, "TS", "made-up-reading"))
        assert any(cell.best for cell in cells_of(table, "Base", "made-up-reading"))
        as_accurate = cells_of(table, "TS", "made-up-trivia")
        assert sum(cell.best for cell in as_accurate) >= 4
        assert "† significantly less accurate than Base, never in bold" in table.caption
        assert "†" not in tables[f"{kind}-alpha-1b"].caption + markdown(tables[f"{kind}-alpha-1b"])
        lines = [line for line in markdown(table).splitlines() if line.startswith("| made-up-reading | TS |")]
        assert [("**" in line, "†" in line) for line in lines] == [(False, True)]
        (row,) = [line for line in latex(table).splitlines() if line.startswith("made-up-reading & TS &")]
        assert "mathbf" not in row
        assert r"^{\dagger}" in row


def test_the_paired_tables_leave_it_out_of_bold_too(results) -> None:
    tables = {table.name: table for table in report_tables(results)}
    for row in tables["paired-ace"].rows:
        loses = (row[0].text, row[1].text) == ("beta/2b", "made-up-reading")
        assert {cell.best for cell in row[3:]} == {not loses}


def test_the_headline_table_goes_by_the_mean_over_measures(results) -> None:
    def best(given: dict[str, Any]) -> set[bool]:
        table = headline_table(given)
        (row,) = [row for row in table.rows if [c.text for c in row[:2]] == ["beta/2b", "made-up-reading"]]
        return {
            cell.best
            for column, cell in zip(table.columns, row)
            if (column.title, column.group) in [("TS", "ACE"), ("TS", "AUROC"), ("TS", "gain")]
        }

    assert best(results) == {False}
    for row in results["analyses"]["against_base"]:
        if row["measure"] is None:
            row["accuracy"] = less(-0.05, 0.01)
    assert best(results) == {True}


def test_both_the_interval_and_p_have_to_show_a_loss(results) -> None:
    for row in results["analyses"]["against_base"]:
        row["accuracy"]["p"] = 0.11  # one question of twelve: resamples without it have no loss at all
    assert not any(
        cell.less_accurate for table in report_tables(results) for row in table.rows for cell in row
    )
