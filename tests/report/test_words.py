"""The words follow from the figures and promise nothing beyond them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from semcal.experiment.report.summary import findings, in_words

ONE = "made-up-trivia"


@pytest.fixture
def results(made_up_results: dict[str, Any]) -> dict[str, Any]:
    """Results of one model on two data sets, the second a copy of the first, for a test to change."""
    found = copy.deepcopy(made_up_results)
    found["datasets"].append("made-up-rare")
    for rows in found["analyses"].values():
        rows += [{**copy.deepcopy(row), "dataset": "made-up-rare"} for row in rows if "dataset" in row]
    for row in found["analyses"]["confidence"]:
        row |= {"n": 300, "accuracy": {"mean": 0.6}, "ace_floor": None}
    return found


def set_change(results: dict[str, Any], dataset: str, metric: str, values: list[Any], interval: Any) -> None:
    def of(row: dict[str, Any]) -> tuple[str, str]:
        return row["dataset"], row["measure"]

    for row in results["analyses"]["confidence"]:
        if of(row) == (dataset, "E-SC") and row["method"] in ("Base", "TS"):
            row[metric] = {"mean": values[row["method"] == "TS"]}
    for row in results["analyses"]["paired"]:
        if of(row) == (dataset, "E-SC") and (row["against"], row["quantity"]) == ("Base", metric):
            row["interval"] = interval


def set_floors(results: dict[str, Any], base: float, ts: float) -> None:
    for row in results["analyses"]["confidence"]:
        row["ace_floor"] = {"Base": base, "TS": ts}.get(row["method"])


def line_of(results: dict[str, Any], dataset: str = ONE) -> str:
    return next(line for line in in_words(results) if line.startswith(dataset))


def test_a_lower_ace_is_better_and_a_lower_auroc_is_worse(results: dict[str, Any]) -> None:
    set_change(results, ONE, "ace", [0.2, 0.1], [-0.15, -0.05])
    set_change(results, ONE, "auroc", [0.8, 0.7], [-0.15, -0.05])
    line = line_of(results)
    assert "ACE of E-SC 0.200 → 0.100: better (−0.100, 95 % interval −0.150 to −0.050)" in line
    assert "AUROC of E-SC 0.800 → 0.700: worse (−0.100, 95 % interval −0.150 to −0.050)" in line


def test_ace_stands_beside_what_chance_alone_would_show(results: dict[str, Any]) -> None:
    set_change(results, ONE, "ace", [0.2, 0.1], [-0.15, -0.05])
    set_floors(results, 0.05, 0.0432)
    line = line_of(results)
    assert "better (−0.093 above chance, 95 % interval −0.143 to −0.043); chance alone would show" in line
    assert "would show 0.050 → 0.043" in line
    assert line.count("chance alone") == 1  # gain and AUROC have no such floor


@pytest.mark.parametrize(
    ("ace", "floors", "interval", "expected"),
    [
        ([0.178, 0.335], (0.152, 0.250), [0.060, 0.250], "no clear difference (+0.059 above chance, 95 %"),
        ([0.178, 0.335], (0.0, 0.0), [0.060, 0.250], "worse (+0.157 above chance, 95 %"),
        ([0.169, 0.165], (0.088, 0.180), [-0.060, 0.050], "better (−0.081 above chance, 95 %"),
    ],
)
def test_ace_is_compared_above_its_noise_floor(results, ace, floors, interval, expected: str) -> None:
    set_change(results, ONE, "ace", ace, interval)
    set_floors(results, *floors)
    assert f"ACE of E-SC {ace[0]:.3f} → {ace[1]:.3f}: {expected}" in line_of(results)


@pytest.mark.parametrize("method", ["Base", "TS"])
@pytest.mark.parametrize(("right", "enough"), [(9, False), (10, True), (290, True), (291, False)])
def test_a_verdict_needs_ten_correct_and_ten_wrong_answers_of_both_methods(
    results: dict[str, Any], method: str, right: int, enough: bool
) -> None:
    for metric in ("ace", "auroc"):
        set_change(results, ONE, metric, [0.2, 0.1], [-0.15, -0.05])
    for row in results["analyses"]["confidence"]:
        if (row["dataset"], row["method"]) == (ONE, method):
            row["accuracy"] = {"mean": right / 300}
    line = line_of(results)
    said = "too few to say (each method needs 10 correct and 10 wrong answers)"
    assert line.count(said) == (0 if enough else 3)
    assert ("better" in line, "worse" in line) == (enough, enough)


def test_gain_leads(results: dict[str, Any]) -> None:
    for row in results["analyses"]["against_base"]:
        if (row["dataset"], row["method"], row["measure"]) == (ONE, "TS", "E-SC"):
            row["gain"]["interval"] = [0.01, 0.03]
    set_change(results, ONE, "gain", [0.40, 0.42], None)
    line = line_of(results)
    assert "gain of E-SC 0.400 → 0.420: better (+0.020, 95 % interval +0.010 to +0.030); ACE" in line
    assert in_words(results)[0].startswith(
        "Accuracy and calibration of E-SC (gain), TS against Base: better on 1 of 2 sets"
    )


def test_an_interval_that_holds_zero_is_no_clear_difference(results: dict[str, Any]) -> None:
    set_change(results, ONE, "ace", [0.2, 0.1], [-0.25, 0.0])
    assert "0.200 → 0.100: no clear difference" in line_of(results)


def test_without_an_interval_only_the_direction_is_told(results: dict[str, Any]) -> None:
    set_change(results, ONE, "ace", [0.2, 0.1], None)
    line = line_of(results)
    assert "0.200 → 0.100: lower, with no interval to tell it from chance" in line
    assert "better" not in line.split(";")[2]


def test_what_is_undefined_is_said_to_be_undefined(results: dict[str, Any]) -> None:
    set_change(results, "made-up-rare", "auroc", [None, None], None)
    lines = in_words(results)
    assert "AUROC of E-SC – → –: undefined" in lines[-1]
    assert lines[2].endswith("undefined on 1.")


def test_the_first_lines_count_the_sets_by_verdict(results: dict[str, Any]) -> None:
    changes = ((ONE, [0.2, 0.1], [-0.15, -0.05]), ("made-up-rare", [0.1, 0.2], [0.05, 0.15]))
    for dataset, values, interval in changes:
        set_change(results, dataset, "ace", values, interval)
        set_change(results, dataset, "auroc", values, [-0.2, 0.2])
    _, calibration, discrimination, *sets = in_words(results)
    assert calibration == "Calibration of E-SC (ACE), TS against Base: better on 1 of 2 sets, worse on 1."
    assert discrimination == (
        "Discrimination of E-SC (AUROC), TS against Base: no clear difference on 2 of 2 sets."
    )
    assert [line.partition(" (")[0] for line in sets] == results["datasets"]


def test_one_set_needs_no_count(made_up_results: dict[str, Any]) -> None:
    (line,) = in_words(made_up_results)
    assert line.startswith("made-up-trivia (closed book, 30 questions): fitted temperature ")


def test_a_temperature_at_its_bound_is_told_as_such(results: dict[str, Any]) -> None:
    for row in results["analyses"]["temperatures"]:
        row |= {"temperature": 20.0, "at_bound": True}
    assert "fitted temperature 20.00, at the bound of its range" in line_of(results)


def test_a_sentence_sets_what_was_claimed_beside_what_was_right(results: dict[str, Any]) -> None:
    set_change(results, ONE, "mean_confidence", [0.73, 0.56], None)
    set_change(results, ONE, "accuracy", [0.66, 0.64], None)
    assert findings(results)[0].sentence == (
        "Base claims 73% on average and is right 66% of the time (7 points too sure); TS claims 56% and is "
        "right 64% (8 points too modest)."
    )


def test_without_base_and_ts_the_first_and_the_last_method_are_compared(results: dict[str, Any]) -> None:
    results["methods"] = ["SE", "Platt"]
    found = findings(results)[0]
    assert (found.against, found.method, found.temperature) == ("SE", "Platt", "")
