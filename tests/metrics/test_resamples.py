"""What is computed for all resamples at once equals the plain metrics of each resample written out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semcal.metrics import auroc, prr, summaries
from semcal.metrics.overview import METRICS
from semcal.metrics.resamples import CALIBRATED, RESAMPLED, ResampledRun, Resamples, draw_counts

ANSWERS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.5, 0.6, 0.9, 1.0]), st.booleans()), min_size=1, max_size=40
)


def rounding(name: str) -> float:
    """SmoothECE's width is one of 2^14, and rounding may decide which of two it is."""
    return 2**-14 if name == "smooth_ece" else 1e-11


def drawn(n: int, resamples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of the questions of each resample, and their counts."""
    places = np.random.default_rng(seed).integers(n, size=(resamples, n))
    return places, draw_counts(n, resamples, np.random.default_rng(seed))


def checked(confidence: np.ndarray, correct: np.ndarray, resamples: int = 30) -> None:
    n = len(confidence)
    places, counts = drawn(n, resamples, 1)
    run = ResampledRun.of(confidence, correct.astype(np.float64), Resamples(counts), 15)
    expected = summaries(confidence[places], correct[places])
    for name, values in expected.items():
        assert RESAMPLED[name](run) == pytest.approx(values, abs=rounding(name), nan_ok=True), name
    uniforms = np.random.default_rng(2).random((resamples, n))
    expected = summaries(np.tile(confidence, (resamples, 1)), uniforms < confidence)
    gaps = run.calibrated_gaps(uniforms.T)
    for name, of in CALIBRATED.items():
        assert of(run, gaps) == pytest.approx(expected[name], abs=rounding(name)), name


@settings(max_examples=60, deadline=None)
@given(ANSWERS)
def test_every_metric_equals_that_of_the_rows_written_out(answers: list[tuple[float, bool]]) -> None:
    checked(*(np.array(column, dtype=np.float64) for column in zip(*answers)))


@pytest.mark.parametrize("digits", [1, 2, 12])
def test_it_does_with_many_questions_with_ties_and_without(digits: int) -> None:
    rng = np.random.default_rng(digits)
    confidence = rng.beta(0.8, 0.6, 300)
    checked(np.round(confidence, digits), rng.random(300) < confidence)


def test_whole_numbers_lose_nothing_in_single_precision_or_double() -> None:
    rng = np.random.default_rng(0)
    score, correct = rng.random(4100), rng.random(4100) < 0.5
    places, counts = drawn(4100, 3, 2)
    resamples = Resamples(counts)
    assert resamples.exact.dtype == np.float64
    expected = summaries(score[places], correct[places])["auroc"]
    run = ResampledRun.of(score, correct.astype(np.float64), resamples, 15)
    assert run.auroc.tolist() == expected.tolist()


def test_more_resamples_than_are_drawn_at_a_time_follow_one_another() -> None:
    places, counts = drawn(7, 137, 3)
    assert counts.T.tolist() == [np.bincount(one, minlength=7).tolist() for one in places]


def test_all_metrics_are_resampled_and_all_errors_of_calibration_of_drawn_outcomes() -> None:
    assert set(RESAMPLED) == set(METRICS)
    assert set(CALIBRATED) == {name for name, metric in METRICS.items() if metric.zero_if_calibrated}


@given(ANSWERS)
def test_prr_is_twice_auroc_less_one(answers: list[tuple[float, bool]]) -> None:
    score, correct = zip(*answers)
    if 0 < sum(correct) < len(correct):
        assert prr(score, correct) == pytest.approx(2 * auroc(score, correct) - 1, abs=1e-12)
