"""What is computed for all resamples at once equals the plain metrics of each resample written out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semcal.metrics import auroc, prr, summaries
from semcal.metrics.frequencies import draw_counts, shared_table
from semcal.metrics.overview import METRICS, measure_rows

ANSWERS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.5, 0.6, 0.9, 1.0]), st.booleans()), min_size=1, max_size=40
)


def drawn(n: int, resamples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of the questions of each resample, and their counts."""
    places = np.random.default_rng(seed).integers(n, size=(resamples, n))
    return places, draw_counts(n, resamples, np.random.default_rng(seed))


def checked(confidence: np.ndarray, correct: np.ndarray, resamples: int = 30) -> None:
    n = len(confidence)
    places, counts = drawn(n, resamples, 1)
    found = measure_rows(shared_table(confidence, correct, counts), METRICS, 15)
    for name, values in summaries(confidence[places], correct[places]).items():
        assert found[name] == pytest.approx(values, abs=1e-12, nan_ok=True), name
    outcomes = np.random.default_rng(2).random((resamples, n)) < confidence
    found = measure_rows(shared_table(confidence, outcomes), METRICS, 15)
    for name, values in summaries(np.tile(confidence, (resamples, 1)), outcomes).items():
        assert found[name] == pytest.approx(values, abs=1e-12, nan_ok=True), name


@settings(max_examples=60, deadline=None)
@given(ANSWERS)
def test_every_metric_equals_that_of_the_rows_written_out(answers: list[tuple[float, bool]]) -> None:
    checked(*(np.array(column, dtype=np.float64) for column in zip(*answers)))


@pytest.mark.parametrize("digits", [1, 2, 12])
def test_it_does_with_many_questions_with_ties_and_without(digits: int) -> None:
    rng = np.random.default_rng(digits)
    confidence = rng.beta(0.8, 0.6, 300)
    checked(np.round(confidence, digits), rng.random(300) < confidence)


def test_whole_numbers_lose_nothing() -> None:
    rng = np.random.default_rng(0)
    score, correct = rng.random(4100), rng.random(4100) < 0.5
    places, counts = drawn(4100, 3, 2)
    expected = summaries(score[places], correct[places])["auroc"]
    found = measure_rows(shared_table(score, correct, counts), ["auroc"], 15)["auroc"]
    assert found.tolist() == expected.tolist()


def test_more_resamples_than_are_drawn_at_a_time_follow_one_another() -> None:
    places, counts = drawn(7, 137, 3)
    assert counts.tolist() == [np.bincount(one, minlength=7).tolist() for one in places]


@given(ANSWERS)
def test_prr_is_twice_auroc_less_one(answers: list[tuple[float, bool]]) -> None:
    score, correct = zip(*answers)
    if 0 < sum(correct) < len(correct):
        assert prr(score, correct) == pytest.approx(2 * auroc(score, correct) - 1, abs=1e-12)
