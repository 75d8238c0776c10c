"""Tables of a run hold the numbers of results.json and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from semcal.report import answer_table, deviation_table, markdown, set_table, summary_table


@pytest.fixture
def results(small_run: Path) -> dict[str, Any]:
    return json.loads((small_run / "results.json").read_text(encoding="utf-8"))


def test_the_summary_holds_every_ace_and_auroc_with_its_standard_error(results: dict[str, Any]) -> None:
    rows = iter(summary_table(results).rows)
    for entry in results["sets"]:
        for name, method in entry["methods"].items():
            set_cell, method_cell, *cells = next(rows)
            assert (set_cell.text, method_cell.text) == (entry["name"], name)
            wanted = [
                (method["measures"][measure][key], method["measures"][measure]["se"][key])
                for key in ("ace", "auroc")
                for measure in results["measures"]
            ]
            assert [(cell.value, cell.error) for cell in cells] == wanted
            assert [cell.text for cell in cells] == [f"{value:.3f}" for value, _ in wanted]


def test_the_lowest_ace_and_the_highest_auroc_of_a_set_are_marked(results: dict[str, Any]) -> None:
    table = summary_table(results)
    of_set = [row for row in table.rows if row[0].text == "made-up-trivia"]
    ace, auroc = [row[2] for row in of_set], [row[4] for row in of_set]
    assert [cell.best for cell in ace] == [cell.value == min(c.value for c in ace) for cell in ace]
    assert [cell.best for cell in auroc] == [cell.value == max(c.value for c in auroc) for cell in auroc]


def test_equal_values_are_all_marked_best(results: dict[str, Any]) -> None:
    for method in results["sets"][0]["methods"].values():
        method["measures"]["E-SC"]["ace"] = 0.1
    assert all(row[2].best for row in summary_table(results).rows[:3])


def test_an_undefined_number_is_a_dash_without_an_error_and_never_the_best(results: dict[str, Any]) -> None:
    results["sets"][0]["methods"]["Base"]["measures"]["E-SC"]["auroc"] = None
    cell = summary_table(results, metrics=("auroc",)).rows[0][2]
    assert (cell.text, cell.value, cell.error_text, cell.best) == ("–", None, "", False)


def test_a_table_of_one_metric_needs_no_second_heading(results: dict[str, Any]) -> None:
    columns = summary_table(results, metrics=("ace",)).columns
    assert [column.title for column in columns] == ["Set", "Method", "E-SC", "L-SC"]
    assert {column.group for column in columns} == {""}


def test_the_sets_are_told_with_what_was_fitted_on_them(results: dict[str, Any]) -> None:
    results["sets"][0]["fit"]["at_bound"] = True
    first, second = set_table(results).rows
    assert [cell.text for cell in first[:3]] == ["made-up-trivia", "40", "none"]
    assert first[5].text == "1.60 (at its bound)"
    assert second[2].text == "given"
    assert second[5].text == "1.60"
    assert second[3].value == results["sets"][1]["greedy_accuracy"]


def test_a_set_without_a_fit_has_dashes(results: dict[str, Any]) -> None:
    del results["sets"][0]["fit"]
    assert [cell.text for cell in set_table(results).rows[0][4:]] == ["–"] * 6


def test_the_accuracy_of_the_selected_answer_stands_beside_the_number_of_meanings(
    results: dict[str, Any],
) -> None:
    row = answer_table(results).rows[1]
    method = results["sets"][0]["methods"]["SE"]
    assert row[1].text == "SE"
    assert [cell.value for cell in row[2:5]] == [0.5, method["distinct_answers"], method["meanings"]]
    assert [cell.value for cell in row[5:]] == [
        method["measures"][measure]["accuracy"] for measure in ("E-SC", "L-SC")
    ]


def test_deviations_are_a_table_where_the_run_tells_them(results: dict[str, Any]) -> None:
    table = deviation_table(results)
    assert table is not None
    assert [[cell.text for cell in row] for row in table.rows] == [["linkage", "components", "greedy"]]
    del results["deviations"]
    assert deviation_table(results) is None


def test_markdown_has_one_line_a_row_and_survives_pipes_in_names(results: dict[str, Any]) -> None:
    results["sets"][0]["name"] = "a|b"
    lines = markdown(summary_table(results)).splitlines()
    assert len(lines) == 2 + 6
    assert lines[2].startswith("| a\\|b | Base | ")
    assert sum(line.count("**") for line in lines) == 2 * 2 * 2 * 2  # sets, measures, metrics; two marks each
