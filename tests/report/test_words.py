"""The sentences follow from the figures and promise nothing beyond them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from semcal.experiment.report.summary import compared_methods, sentences

ONE = "made-up-trivia"


@pytest.fixture
def results(made_up_results: dict[str, Any]) -> dict[str, Any]:
    """Results of one model on two data sets, the second a copy of the first, for a test to change."""
    found = copy.deepcopy(made_up_results)
    found["datasets"].append("made-up-rare")
    for rows in found["analyses"].values():
        rows += [{**copy.deepcopy(row), "dataset": "made-up-rare"} for row in rows if "dataset" in row]
    for row in found["analyses"]["confidence"]:
        row |= {"n": 300, "accuracy": {"mean": 0.6}}
    for row in found["analyses"]["against_base"]:
        row["gain"] = {"value": 0.0, "interval": [-0.1, 0.1], "p": 0.9}
    return found


def set_gain(results: dict[str, Any], dataset: str, interval: list[float]) -> None:
    for row in results["analyses"]["against_base"]:
        if (row["dataset"], row["method"], row["measure"]) == (dataset, "TS", "E-SC"):
            row["gain"] = {"value": sum(interval) / 2, "interval": interval, "p": 0.001}


def test_the_second_sets_confidence_beside_accuracy_mean_over_data_sets(results: dict[str, Any]) -> None:
    for row in results["analyses"]["confidence"]:
        first = row["dataset"] == ONE
        row |= {"mean_confidence": {"mean": 0.9 if first else 0.7}, "accuracy": {"mean": 0.5 + 0.2 * first}}
        if row["method"] == "TS":
            row["mean_confidence"] = {"mean": None}
    assert sentences(results)[1] == "Mean confidence (E-SC) and accuracy: Base 80% and 60%, SE 80% and 60%."


def test_the_third_counts_where_the_gain_over_base_is_shown(results: dict[str, Any]) -> None:
    set_gain(results, ONE, [0.01, 0.03])
    set_gain(results, "made-up-rare", [-0.03, -0.01])
    assert sentences(results)[2] == (
        "Gain over Base: SE better on 0 and worse on 0 of 2 data sets; TS better on 1 and worse on 1 of 2 "
        "data sets."
    )


@pytest.mark.parametrize(("right", "enough"), [(9, 0), (10, 1), (290, 1), (291, 0)])
def test_a_gain_needs_ten_correct_and_ten_wrong_answers_of_both_methods(results, right, enough) -> None:
    set_gain(results, ONE, [0.01, 0.03])
    for method in ("Base", "TS"):
        changed = copy.deepcopy(results)
        for row in changed["analyses"]["confidence"]:
            if (row["dataset"], row["method"]) == (ONE, method):
                row["accuracy"] = {"mean": right / 300}
        assert f"TS better on {enough} and worse on 0" in sentences(changed)[2]


def test_without_base_there_is_no_gain_over_it(results: dict[str, Any]) -> None:
    results["analyses"]["against_base"] = []
    assert len(sentences(results)) == 2
    assert compared_methods(["SE", "Platt"]) == ("SE", "Platt")
