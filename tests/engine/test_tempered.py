"""Draws at many temperatures in one pass: those of the plain inverse CDF, and as often as they should be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from semcal.engine.drawing import inverse_cdf
from semcal.engine.tempered import draw_at
from semcal.errors import ModelError
from semcal.recalibration import Temperature, partitions

NEAR = 1e-6
"""A uniform this close to a step of the CDF may fall on either side (spec section 4)."""


def clear(log_probs: torch.Tensor, rows: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Which uniforms stand clear of every step."""
    steps = log_probs.double().exp().cumsum(1)
    steps = steps / steps[:, -1:]
    return ((steps[rows] - u[:, None]).abs() > NEAR).all(1)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 1200), st.integers(1, 6), st.sampled_from([0.5, 3, 20]), st.integers(0, 999))
def test_tokens_and_log_probabilities_are_those_of_each_temperature_alone(
    size: int, count: int, scale: float, seed: int
) -> None:
    g = torch.manual_seed(seed)
    logits = scale * torch.randn(count, size, generator=g)
    temperatures = [0.3, 1.0, 1.9]
    n = 40
    rows, columns = torch.randint(count, (n,), generator=g), torch.randint(3, (n,), generator=g)
    u = torch.rand(n, generator=g, dtype=torch.float64)
    beta = (1 / torch.tensor(temperatures)).expand(count, -1)
    noted = (0, size - 1)
    drawn = draw_at(logits, beta, rows, columns, u, noted=noted)
    for k, temperature in enumerate(temperatures):
        of = columns == k
        if not bool(of.any()):
            continue
        log_probs = Temperature(temperature).log_probs(logits)
        plain = inverse_cdf(log_probs, rows[of], u[of])
        sure = clear(log_probs, rows[of], u[of])
        assert torch.equal(drawn.tokens[of][sure], plain[sure])
        expected = log_probs[rows[of], drawn.tokens[of]]
        torch.testing.assert_close(drawn.log_probs[of], expected, rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(drawn.noted[of], log_probs[rows[of]][:, noted], rtol=1e-5, atol=1e-4)


def test_tokens_come_as_often_as_their_probabilities_say() -> None:
    g = torch.manual_seed(3)
    logits, n = 2 * torch.randn(2, 600, generator=g), 40_000
    beta = torch.tensor([[1.0, 0.5], [2.0, 1.0]])  # a column may differ from row to row, as under ATS
    for row in range(2):
        for column in range(2):
            u = torch.rand(n, generator=g, dtype=torch.float64)
            where = torch.full((n,), row), torch.full((n,), column)
            seen = np.bincount(draw_at(logits, beta, *where, u).tokens.numpy(), minlength=600)
            expected = (logits[row].double() * float(beta[row, column])).softmax(0).numpy() * n
            common = expected >= 5
            observed = [*seen[common], seen[~common].sum()]
            wanted = [*expected[common], expected[~common].sum()]
            assert stats.chisquare(observed, wanted).pvalue > 0.01


def test_tokens_of_probability_0_are_never_drawn() -> None:
    logits = torch.full((1, 700), -torch.inf)
    logits[0, [3, 255, 256, 512]] = torch.tensor([0.0, 1.0, -200.0, 0.0])
    u = torch.tensor([0.0, 0.2, 0.5, 0.9, 1 - 2**-53], dtype=torch.float64)
    zeros = torch.zeros(5, dtype=torch.long)
    drawn = draw_at(logits, torch.ones(1, 1), zeros, zeros, u)
    assert drawn.tokens.tolist() == [3, 3, 255, 512, 512]


@pytest.mark.parametrize("cached", [2**8, 2**11, 2**20])
def test_blocks_move_no_draw(cached: int, monkeypatch: pytest.MonkeyPatch) -> None:
    g = torch.manual_seed(0)
    logits = 3 * torch.randn(23, 900, generator=g)
    beta = torch.rand(23, 3, generator=g) + 0.3
    rows, columns = torch.randint(23, (60,), generator=g), torch.randint(3, (60,), generator=g)
    u = torch.rand(60, generator=g, dtype=torch.float64)
    expected = draw_at(logits, beta, rows, columns, u)
    monkeypatch.setattr(partitions, "CACHED", cached)
    found = draw_at(logits, beta, rows, columns, u)
    assert torch.equal(found.tokens, expected.tokens)
    assert torch.equal(found.log_probs, expected.log_probs)


def test_what_is_no_distribution_is_an_error() -> None:
    one = torch.zeros(1, dtype=torch.long)
    for bad in (torch.nan, torch.inf):
        with pytest.raises(ModelError, match="not finite"):
            draw_at(torch.tensor([[0.0, bad]]), torch.ones(1, 1), one, one, torch.zeros(1).double())
    with pytest.raises(ModelError, match="not finite"):
        draw_at(torch.full((1, 3), -torch.inf), torch.ones(1, 1), one, one, torch.zeros(1).double())
