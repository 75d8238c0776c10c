"""What is recounted for all resamples at once equals what the tally of each resample gives."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semcal.metrics import auroc, prr
from semcal.metrics.recount import NULLS, RECOUNTED, Counts, Recount
from semcal.metrics.resampling import Runs, if_calibrated, resampled
from semcal.metrics.table import METRICS

ANSWERS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.5, 0.6, 0.9, 1.0]), st.booleans()), min_size=1, max_size=40
)


def rounding(name: str) -> float:
    """SmoothECE's width is one of 2^14, and rounding may decide which of two it is."""
    return 2**-14 if name == "smooth_ece" else 1e-11


def checked(confidence: np.ndarray, correct: np.ndarray, resamples: int = 30) -> None:
    runs = Runs.of(confidence, correct)
    sample, rng = runs.scores[0], np.random.default_rng(1)
    expected = resampled(
        [runs], {name: METRICS[name] for name in RECOUNTED}, 15, resamples, copy.deepcopy(rng)
    )[0]
    run = Recount(sample, Counts.drawn(runs.n, resamples, rng), 15)
    for name, values in expected.items():
        assert run.metric(name) == pytest.approx(values, abs=rounding(name), nan_ok=True), name
    errors = {name: METRICS[name] for name in NULLS}
    expected = if_calibrated(runs, errors, 15, resamples, copy.deepcopy(rng))
    right = run.calibrated_outcomes(rng.random((resamples, runs.n)).T)
    for name, values in expected.items():
        assert run.if_calibrated(name, right) == pytest.approx(values, abs=rounding(name)), name


@settings(max_examples=60, deadline=None)
@given(ANSWERS)
def test_every_metric_equals_that_of_the_tallies(answers: list[tuple[float, bool]]) -> None:
    checked(*(np.array(column, dtype=np.float64) for column in zip(*answers)))


@pytest.mark.parametrize("digits", [1, 2, 12])
def test_it_does_with_many_questions_with_ties_and_without(digits: int) -> None:
    rng = np.random.default_rng(digits)
    confidence = rng.beta(0.8, 0.6, 300)
    checked(np.round(confidence, digits), rng.random(300) < confidence)


def test_whole_numbers_lose_nothing_in_single_precision_or_double() -> None:
    rng = np.random.default_rng(0)
    score, correct = rng.random(4100), rng.random(4100) < 0.5
    runs = Runs.of(score, correct)
    counts = Counts.drawn(4100, 3, np.random.default_rng(2))
    assert counts.exact.dtype == np.float64
    expected = resampled([runs], {"auroc": METRICS["auroc"]}, 15, 3, np.random.default_rng(2))[0]["auroc"]
    assert Recount(runs.scores[0], counts, 15).auroc.tolist() == expected.tolist()


def test_all_metrics_are_recounted_and_all_errors_of_calibration_of_drawn_outcomes() -> None:
    assert set(RECOUNTED) == set(METRICS)
    assert set(NULLS) == {name for name, metric in METRICS.items() if metric.zero_if_calibrated}


@given(ANSWERS)
def test_prr_is_twice_auroc_less_one(answers: list[tuple[float, bool]]) -> None:
    score, correct = zip(*answers)
    if 0 < sum(correct) < len(correct):
        assert prr(score, correct) == pytest.approx(2 * auroc(score, correct) - 1, abs=1e-12)
