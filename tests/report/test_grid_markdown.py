"""results.md: every verdict with what decided, and the main tables."""

from __future__ import annotations

from typing import Any

import pytest

from semcal.experiment.report.build import results_markdown
from semcal.experiment.report.summary import headline_table
from semcal.experiment.report.tables import markdown_text


def test_every_contrast_stands_there_with_its_verdict_and_the_interval_that_decided(
    made_up_results: dict[str, Any],
) -> None:
    text = results_markdown(made_up_results)
    claims = text.partition("## Tables")[0]
    assert made_up_results["contrasts"]
    for row in made_up_results["contrasts"]:
        (line,) = (line for line in claims.splitlines() if f"| {markdown_text(row['contrast'])} |" in line)
        assert f"| {row['verdict']} |" in line
        assert ("[" in line) == (row["interval"] is not None)


def test_a_main_table_of_every_model_shows_errors_over_runs_and_no_intervals(
    made_up_results: dict[str, Any],
) -> None:
    text = results_markdown(made_up_results)
    tables = text.partition("## Tables")[2]
    for model in made_up_results["models"]:
        assert f"for {model}" in tables
    rows = [line for line in tables.splitlines() if line.startswith("|")]
    assert any("±" in row for row in rows)
    assert not any("[0." in row for row in rows)


def test_accuracy_stands_at_a_glance_beside_calibration_and_discrimination(
    made_up_results: dict[str, Any],
) -> None:
    table = headline_table(made_up_results)
    found = {(column.group, column.title): cell.value for column, cell in zip(table.columns, table.rows[0])}
    where = (made_up_results["models"][0], made_up_results["datasets"][0], "TS")
    rows = made_up_results["analyses"]["confidence"]
    values = [
        row["accuracy"]["mean"] for row in rows if (row["model"], row["dataset"], row["method"]) == where
    ]
    assert found["accuracy", "TS"] == pytest.approx(sum(values) / len(values))
