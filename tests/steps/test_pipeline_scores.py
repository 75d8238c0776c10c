"""Isotonic, beta and Platt on rows: each measure by itself, nulls kept, nothing else touched."""

from __future__ import annotations

import numpy as np
import pytest

from semcal.errors import FitError, UsageError
from semcal.metrics import BetaCalibration, ace
from tests.json_rows import fit_scores, recalibrate_rows


def rows(n: int, seed: int) -> list[dict]:
    rng = np.random.default_rng(seed)
    p = rng.uniform(0.3, 1, n)
    right = rng.uniform(size=n) < 0.7 * p
    return [
        {
            "id": str(i),
            "samples": ["Ana"],
            "confidences": {"E-SC": [q, 1 - q]},
            "confidence": {"E-SC": q, "L-SC": q**2, "B-SC": None},
            "correct": {"E-SC": c, "L-SC": c, "B-SC": None},
            "semantic_entropy": {"E-SC": 0.3},
        }
        for i, (q, c) in enumerate(zip(p.tolist(), right.tolist()))
    ]


@pytest.mark.parametrize("kind", ["isotonic", "beta", "platt"])
def test_what_is_learnt_on_some_questions_calibrates_others(kind) -> None:
    test = rows(2000, 2)
    mapped = recalibrate_rows(test, fit_scores(rows(2000, 1), kind))
    for measure in ("E-SC", "L-SC"):
        right = [row["correct"][measure] for row in test]
        before, after = ([row["confidence"][measure] for row in some] for some in (test, mapped))
        assert ace(after, right) < 0.04
        assert ace(before, right) > 0.1 if measure == "E-SC" else True


def test_each_measure_has_its_own_map_and_nulls_stay_null() -> None:
    learnt = rows(200, 1)
    fitted = fit_scores(learnt, "beta")
    assert list(fitted) == ["E-SC", "L-SC"]
    mapped = recalibrate_rows(learnt, fitted)[3]
    own = BetaCalibration().fit(
        [r["confidence"]["L-SC"] for r in learnt], [r["correct"]["L-SC"] for r in learnt]
    )
    assert mapped["confidence"]["L-SC"] == own.predict([learnt[3]["confidence"]["L-SC"]])[0]
    assert mapped["confidence"]["B-SC"] is None


def test_answers_grades_and_entropies_stay_and_the_shares_of_clusters_go() -> None:
    before = rows(20, 1)
    after = recalibrate_rows(before, fit_scores(before, "platt"))
    changed = {"confidence", "confidences"}
    assert [{k: v for k, v in row.items() if k not in changed} for row in before] == [
        {k: v for k, v in row.items() if k != "confidence"} for row in after
    ]


def test_flat_rows_have_one_map_and_a_measure_without_one_becomes_null() -> None:
    flat = [
        {"confidence": p, "correct": c} for p, c in [(0.9, True), (0.9, False), (0.4, False), (None, None)]
    ]
    fitted = fit_scores(flat, "isotonic")
    assert [row["confidence"] for row in recalibrate_rows(flat, fitted)] == [0.5, 0.5, 0.0, None]
    assert recalibrate_rows([{"confidence": {"E-SC": 0.9}}], fitted) == [{"confidence": {"E-SC": None}}]


def test_nothing_to_learn_from_and_unknown_kinds_are_refused() -> None:
    with pytest.raises(FitError, match="nothing to recalibrate on"):
        fit_scores([{"confidence": None, "correct": None}], "beta")
    with pytest.raises(UsageError, match="did you mean 'isotonic'"):
        fit_scores(rows(3, 1), "isotone")
