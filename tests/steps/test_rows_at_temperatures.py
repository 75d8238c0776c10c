"""Rows whose samples were drawn at several temperatures, and stored rows with a calibration."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_up_calibration import OF_ANOTHER_TEMPERATURE, calibration, threshold

from semcal.calibration.calibration import Calibration
from semcal.calibration.features import ColumnFeature
from semcal.errors import InputError, UsageError
from semcal.grading.rules import RuleGrader
from semcal.models.equivalence import ExactMatch
from semcal.models.fakes import FakeEquivalence
from semcal.recalibration import SE, TemperatureScaling
from tests.json_rows import (
    calibrated_rows,
    check_calibratable,
    check_clusterable,
    check_gradable,
    check_measurable,
    cluster_rows,
    grade_row,
    measure_rows,
)

ROW: dict[str, Any] = {
    "id": "1",
    "question": "Who?",
    "samples": ["Ana", "Bo", "Ana", "Ana", "Bo", "Cy"],
    "temperatures": [1.0, 2.0, 1, 1.0, 1.0, 2],
    "log_likelihoods": [-0.5, -3.0, -0.5, -0.5, -1.0, -4.0],
    "answers": ["Ana"],
}
ALONE = {
    **{key: ROW[key] for key in ("id", "question", "answers")},
    "samples": ["Ana", "Ana", "Ana", "Bo"],
    "log_likelihoods": [-0.5, -0.5, -0.5, -1.0],
}
FOUR = calibration(m=4)


def clustered(row: dict[str, Any]) -> dict[str, Any]:
    return cluster_rows([row], equivalence=ExactMatch())[0][0]


def test_samples_of_different_temperatures_are_never_in_one_cluster() -> None:
    assert clustered(ROW)["clusters"] == [[0, 2, 3], [1], [4], [5]]
    assert clustered(ROW)["normal_forms"] == ["ana", "bo", "ana", "ana", "bo", "cy"]


def test_no_sample_of_one_temperature_joins_two_of_another() -> None:
    chain = {"samples": ["a", "c", "b"], "temperatures": [1.0, 1.0, 2.0], "question": "Who?", "id": "1"}
    same = FakeEquivalence([{"ann", "bob"}, {"bob", "cyd"}])
    chain["samples"] = ["ann", "cyd", "bob"]
    (apart,), _ = cluster_rows([chain], equivalence=same)
    (together,), _ = cluster_rows([{**chain, "temperatures": [1.0] * 3}], equivalence=same)
    assert (apart["clusters"], together["clusters"]) == ([[0], [1], [2]], [[0, 1, 2]])


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ([1.0] * 5, "must hold 6 numbers, one a sample"),
        ([1.0] * 5 + [0], "must be positive numbers, got 0"),
        ([1.0] * 5 + [None], "must be positive numbers, got None"),
    ],
)
def test_temperatures_are_positive_numbers_one_a_sample(wrong: Any, reason: str) -> None:
    for check, row in ((check_clusterable, ROW), (check_measurable, clustered(ROW))):
        with pytest.raises(InputError, match=reason):
            check({**row, "temperatures": wrong})


def test_a_cluster_of_several_temperatures_is_a_bad_row() -> None:
    with pytest.raises(InputError, match=r"the cluster \[0, 1\] mixes samples of several temperatures"):
        check_measurable({**ROW, "clusters": [[0, 1], [2, 3], [4], [5]]})


def test_the_draws_at_one_are_measured_and_others_are_null() -> None:
    (row,) = measure_rows([clustered(ROW)])
    (alone,) = measure_rows([clustered(ALONE)])
    for name, (first, second) in alone["confidences"].items():
        assert row["confidences"][name] == [first, None, second, None]
        assert row["top_cluster"][name] == (0 if alone["top_cluster"][name] == 0 else 2)
    assert (row["confidence"], row["semantic_entropy"]) == (alone["confidence"], alone["semantic_entropy"])


def test_where_no_draw_is_at_one_the_first_temperature_is_measured() -> None:
    row = clustered({**ROW, "temperatures": [0.5, 2.0, 0.5, 0.5, 0.5, 2.0]})
    assert measure_rows([row])[0]["confidences"]["E-SC"] == [0.75, None, 0.25, None]
    assert measure_rows([row], temperature=2.0)[0]["confidences"]["E-SC"] == [None, 0.5, None, 0.5]


def test_a_calibration_adds_the_answer_and_its_probability() -> None:
    (row,) = calibrated_rows([clustered(ALONE)], FOUR)
    assert (row["answer"], row["threshold"], row["abstained"]) == ("Ana", None, None)
    assert row["probability"] == pytest.approx(0.1 + 0.6 * 0.75)
    assert row["confidences"] == measure_rows([clustered(ALONE)])[0]["confidences"]
    limited = replace(FOUR, threshold=threshold(0.6))
    (row,) = calibrated_rows([clustered(ALONE)], limited)
    assert (row["threshold"], row["abstained"]) == (0.6, True)
    (row,) = calibrated_rows([clustered(ALONE)], replace(FOUR, threshold=threshold(None)))
    assert (row["threshold"], row["abstained"]) == (None, True)


def test_a_calibration_reads_the_draws_of_each_temperature() -> None:
    two = {**ROW, "samples": [*ROW["samples"], "Cy", "Cy"], "temperatures": [*ROW["temperatures"], 2.0, 2.0]}
    two["log_likelihoods"] = None
    both = replace(FOUR, map=OF_ANOTHER_TEMPERATURE, temperatures=(2.0,))
    (row,) = calibrated_rows([clustered(two)], both)
    assert row["answer"] == "Ana"
    assert row["probability"] == pytest.approx(1 / (1 + math.exp(-0.75)))
    assert row["confidences"]["E-SC"] == [0.75, None, 0.25, None]
    assert calibrated_rows([clustered(ALONE), clustered(two)], FOUR)[1]["probability"] == pytest.approx(0.55)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"m": 5}, "question '1' has 4 samples, expected 5"),
        ({"temperatures": (2.0,)}, "question '1' has no samples at T = 2"),
    ],
)
def test_rows_that_a_calibration_is_not_for_are_wrong_usage(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        calibrated_rows([clustered(ALONE)], replace(FOUR, **changed))


def test_draws_at_another_temperature_than_the_answers_are_wrong_usage() -> None:
    row = clustered({**ALONE, "temperatures": [0.5] * 4})
    with pytest.raises(UsageError, match="no samples at T = 1"):
        calibrated_rows([row], FOUR)
    unknown = replace(FOUR, temperature=None)  # of samples whose temperature nobody knows
    assert calibrated_rows([row], unknown)[0]["probability"] == pytest.approx(0.55)


def test_a_row_to_calibrate_needs_its_samples() -> None:
    row = clustered(ALONE)
    check_calibratable(row, FOUR)
    with pytest.raises(InputError, match="no 'samples'"):
        check_calibratable({key: value for key, value in row.items() if key != "samples"}, FOUR)
    with pytest.raises(InputError, match="'clusters'"):
        check_calibratable({**row, "samples": [*row["samples"], "Di"], "log_likelihoods": None}, FOUR)
    with pytest.raises(InputError, match="'answer'"):
        check_calibratable({**row, "answer": "Ana"}, FOUR)  # grade would take the calibrated answer for it
    check_calibratable(calibrated_rows([row], FOUR)[0], FOUR)  # measured before


def test_a_probability_of_another_calibration_is_not_replaced() -> None:
    (row,) = calibrated_rows([clustered(ALONE)], FOUR)
    assert row["calibration"] == FOUR.id
    other = replace(FOUR, further=0.25)
    with pytest.raises(InputError, match=f"'probability'.*'{FOUR.id}', and this is {other.id}"):
        check_calibratable(row, other)
    with pytest.raises(InputError, match="by the calibration None"):
        check_calibratable({key: value for key, value in row.items() if key != "calibration"}, other)
    check_calibratable(row, replace(other, answer_kind="given"))  # the answer stays


def test_the_id_of_a_calibration_follows_what_decides_probabilities_and_nothing_else(tmp_path: Path) -> None:
    assert re.fullmatch("[0-9a-f]{12}", FOUR.id)
    FOUR.save_pretrained(tmp_path)
    assert Calibration.from_pretrained(tmp_path).id == FOUR.id
    others = {"further": 0.25, "m": 5, "temperature": 0.7, "equivalence": "default", "linkage": "greedy"}
    others |= {"threshold": threshold(0.6), "answer_kind": "greedy", "columns": (ColumnFeature("score"),)}
    others |= {"signals": ("verbalised",), "max_new_tokens": 7, "recalibrator": SE()}
    ids = [FOUR.id, *(replace(FOUR, **{name: value}).id for name, value in others.items())]
    assert len(set(ids)) == len(ids)
    told = replace(FOUR, report=replace(FOUR.report, warnings=("few",)), grader="rules", samples="{}\n")
    assert told.id == FOUR.id


def test_the_answer_beside_a_probability_is_graded_on_its_one_wording() -> None:
    (row,) = calibrated_rows([clustered(ALONE)], FOUR)
    graded = grade_row(row, grader=RuleGrader())
    assert (graded["answer_correct"], graded["correct"]["E-SC"]) == (True, True)
    assert grade_row({**row, "answer": "Bo"}, grader=RuleGrader())["answer_correct"] is False
    assert "answer_correct" not in grade_row(
        clustered(ALONE) | measure_rows([clustered(ALONE)])[0], grader=RuleGrader()
    )
    flat = {"id": "1", "answers": ["Ana"], "prediction": "Bo", "answer": "Ana", "probability": 0.5}
    graded = grade_row(flat, grader=RuleGrader())
    assert (graded["correct"], graded["answer_correct"]) == (False, True)
    with pytest.raises(InputError, match="'answer'"):
        check_gradable({**row, "answer": 7})


def test_draws_at_a_temperature_are_not_those_under_a_recalibrator() -> None:
    fitted = TemperatureScaling().fit([[1.0, 0.0]] * 4, [0, 0, 1, 0])
    under = replace(FOUR, temperature=None, recalibrator=fitted)
    assert calibrated_rows([clustered(ALONE)], under)[0]["probability"] == pytest.approx(0.55)
    with pytest.raises(UsageError, match="'temperatures' is set"):
        calibrated_rows([clustered({**ALONE, "temperatures": [1.0] * 4})], under)
