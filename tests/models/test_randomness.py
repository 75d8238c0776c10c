"""The uniforms behind the draws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from semcal.models.uniforms import uniforms


@settings(deadline=None)
@given(
    seed=st.integers(-(2**70), 2**70),
    question=st.text(max_size=20),
    m=st.integers(1, 5),
    steps=st.integers(1, 7),
)
def test_asking_for_more_draws_or_steps_changes_no_number(
    seed: int, question: str, m: int, steps: int
) -> None:
    few = uniforms(seed, question, m=m, steps=steps)
    many = uniforms(seed, question, m=m + 3, steps=steps + 5)
    assert few.shape == (m, steps)
    assert few.dtype == np.float64
    np.testing.assert_array_equal(many[:m, :steps], few)
    np.testing.assert_array_equal(
        uniforms(seed, question, m=2, steps=steps, first=m), many[m : m + 2, :steps]
    )
    assert few.min() >= 0
    assert few.max() < 1


def test_the_numbers_are_the_same_everywhere() -> None:
    first = [0.841436681877091, 0.2898994400171683]
    expected = [first, [0.1417195428116933, 0.6017195332300354]]
    np.testing.assert_array_equal(uniforms(0, "q1", m=2, steps=2), expected)


@pytest.mark.parametrize(("seed", "question"), [(1, "q1"), (0, "q2"), (0, "q1 "), (-1, "q1")])
def test_another_seed_or_question_gives_other_numbers(seed: int, question: str) -> None:
    base = uniforms(0, "q1", m=4, steps=4)
    other = uniforms(seed, question, m=4, steps=4)
    assert not np.isin(base, other).any()


def test_seed_and_question_cannot_be_mistaken_for_each_other() -> None:
    assert uniforms(1, "2:a", m=1, steps=1) != uniforms(12, ":a", m=1, steps=1)
    assert uniforms(1, "1a", m=1, steps=1) != uniforms(11, "a", m=1, steps=1)


def test_the_numbers_are_uniform_and_uncorrelated_between_draws_steps_and_questions() -> None:
    cube = np.stack([uniforms(3, f"q{i}", m=20, steps=10) for i in range(200)])
    assert stats.kstest(cube.ravel(), "uniform").pvalue > 0.01
    for a, b in [(cube[:, :-1], cube[:, 1:]), (cube[..., :-1], cube[..., 1:]), (cube[:-1], cube[1:])]:
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.02
