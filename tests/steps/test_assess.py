"""Metrics of graded rows: a calibrated probability beside the measures, thresholds for a risk."""

from __future__ import annotations

import numpy as np
import pytest

from semcal import metrics
from semcal.errors import InputError
from semcal.measuring import assess
from tests.json_rows import check_assessable, scores_by_measure


def rows(n: int, seed: int = 0) -> list[dict]:
    rng = np.random.default_rng(seed)
    p = rng.uniform(0.3, 1, n)
    right = rng.uniform(size=n) < p
    return [
        {"confidence": {"E-SC": q**0.5}, "correct": {"E-SC": c}, "probability": q, "answer_correct": c}
        | {"threshold": None, "abstained": None, "answer": "Ana"}
        for q, c in zip(p.tolist(), right.tolist())
    ]


def test_a_probability_and_its_correctness_are_the_measure_calibrated() -> None:
    some = rows(60)
    some[3]["probability"] = None
    some[4]["answer_correct"] = None
    for row in some:
        check_assessable(row)
    scores = scores_by_measure(some)
    assert list(scores) == ["E-SC", "Calibrated"]
    found = assess(scores)["Calibrated"]
    kept = [row for i, row in enumerate(some) if i not in (3, 4)]
    pairs = [row["probability"] for row in kept], [row["answer_correct"] for row in kept]
    assert (found["n"], scores["Calibrated"].undefined) == (58, 2)
    assert (found["ace"], found["gain"]) == (metrics.ace(*pairs), metrics.gain(*pairs))
    assert "entropy_auroc" not in found
    assert list(scores_by_measure(some, ["Calibrated"])) == ["Calibrated"]


def test_flat_rows_have_it_beside_their_confidence_and_one_field_alone_is_none() -> None:
    flat = {"confidence": 0.5, "correct": True, "probability": 0.25, "answer_correct": False}
    check_assessable(flat)
    assert {name: one.confidence for name, one in scores_by_measure([flat]).items()} == {
        None: [0.5],
        "Calibrated": [0.25],
    }
    for key in ("probability", "answer_correct"):
        part = {name: value for name, value in flat.items() if name != key}
        check_assessable(part)
        assert list(scores_by_measure([part])) == [None]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"probability": 1.2}, r"'probability' must be in \[0, 1\], got 1.2"),
        ({"answer_correct": "yes"}, "'answer_correct' must be true or false, got 'yes'"),
        ({"confidence": {"Calibrated": 0.5}, "correct": {"Calibrated": True}}, "holds 'Calibrated'"),
        ({"confidence": {"E-SC": 2.0}}, "'confidence' of E-SC must be in"),
    ],
)
def test_what_cannot_be_is_refused_by_the_name_of_the_field(fields: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_assessable(rows(1)[0] | fields)


def test_a_risk_limit_adds_its_threshold_and_what_it_would_take() -> None:
    some = rows(400)
    found = assess(scores_by_measure(some), risk=0.3, delta=0.1)["Calibrated"]["risk"]
    expected = metrics.risk_controlled_threshold(
        [row["probability"] for row in some],
        [row["answer_correct"] for row in some],
        risk_limit=0.3,
        delta=0.1,
    )
    assert (found["limit"], found["delta"], found["threshold"]) == (0.3, 0.1, expected.threshold)
    assert found["threshold"] is not None
    assert found["sentence"] == expected.sentence
    none = assess(scores_by_measure(rows(20)), risk=0.1)["E-SC"]["risk"]
    assert (none["threshold"], none["answered"]) == (None, 0)
    assert "risk" not in assess(scores_by_measure(some))["E-SC"]
