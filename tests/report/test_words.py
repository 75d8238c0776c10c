"""The words follow from the figures and promise nothing beyond them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from semcal.report import in_words


@pytest.fixture
def results(small_run: Path) -> dict[str, Any]:
    return json.loads((small_run / "results.json").read_text(encoding="utf-8"))


def set_change(results: dict[str, Any], index: int, metric: str, values: list[Any], interval: Any) -> None:
    entry = results["sets"][index]
    for method, value in zip(("Base", "TS"), values):
        entry["methods"][method]["measures"]["E-SC"][metric] = value
    for item in results["comparisons"]:
        if (item["set"], item["metric"]) == (entry["name"], metric):
            item["interval"] = interval


def test_a_lower_ace_is_better_and_a_lower_auroc_is_worse(results: dict[str, Any]) -> None:
    set_change(results, 0, "ace", [0.2, 0.1], [-0.15, -0.05])
    set_change(results, 0, "auroc", [0.8, 0.7], [-0.15, -0.05])
    line = next(line for line in in_words(results) if line.startswith("made-up-trivia"))
    assert "ACE of E-SC 0.200 → 0.100: better (−0.100, 95 % interval −0.150 to −0.050)" in line
    assert "AUROC of E-SC 0.800 → 0.700: worse (−0.100, 95 % interval −0.150 to −0.050)" in line


def test_an_interval_that_holds_zero_is_no_clear_difference(results: dict[str, Any]) -> None:
    set_change(results, 0, "ace", [0.2, 0.1], [-0.25, 0.0])
    line = next(line for line in in_words(results) if line.startswith("made-up-trivia"))
    assert "0.200 → 0.100: no clear difference" in line


@pytest.mark.parametrize("interval", [None, [None, None]])
def test_without_an_interval_only_the_direction_is_told(results: dict[str, Any], interval: Any) -> None:
    set_change(results, 0, "ace", [0.2, 0.1], interval)
    line = next(line for line in in_words(results) if line.startswith("made-up-trivia"))
    assert "0.200 → 0.100: lower, with no interval to tell it from chance" in line
    assert "better" not in line.split(";")[1]


def test_what_is_undefined_is_said_to_be_undefined(results: dict[str, Any]) -> None:
    set_change(results, 1, "auroc", [None, None], None)
    lines = in_words(results)
    assert "AUROC of E-SC – → –: undefined" in lines[-1]
    assert lines[1].endswith("undefined on 1.")


def test_a_figure_that_is_nan_in_the_process_that_made_it_is_undefined(results: dict[str, Any]) -> None:
    nan = float("nan")
    set_change(results, 0, "auroc", [nan, nan], [nan, nan])
    line = next(line for line in in_words(results) if line.startswith("made-up-trivia"))
    assert "AUROC of E-SC – → –: undefined" in line
    assert "nan" not in line


def test_the_first_lines_count_the_sets_by_verdict(results: dict[str, Any]) -> None:
    for index, values, interval in ((0, [0.2, 0.1], [-0.15, -0.05]), (1, [0.1, 0.2], [0.05, 0.15])):
        set_change(results, index, "ace", values, interval)
        set_change(results, index, "auroc", values, [-0.2, 0.2])
    calibration, discrimination, *sets = in_words(results)
    assert calibration == "Calibration of E-SC (ACE), TS against Base: better on 1 of 2 sets, worse on 1."
    assert discrimination.endswith("TS against Base: no clear difference on 2 of 2 sets.")
    assert len(sets) == 2


def test_one_set_alone_is_not_counted(results: dict[str, Any]) -> None:
    results["sets"] = results["sets"][:1]
    (line,) = in_words(results)
    assert line.startswith("made-up-trivia (closed book, 40 questions): fitted temperature 1.60; ")


def test_a_temperature_at_its_bound_is_called_so(results: dict[str, Any]) -> None:
    results["sets"][0]["fit"] |= {"temperature": 20.0, "at_bound": True}
    assert "fitted temperature 20.00, at the bound of its range" in in_words(results)[2]
