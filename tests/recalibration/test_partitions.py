"""Partition functions at many temperatures, against float64."""

from __future__ import annotations

import pytest
import torch
from calibration_sets import made
from hypothesis import given, settings
from hypothesis import strategies as st

from semcal.recalibration import exact_solver
from semcal.recalibration.exact_solver import log_partitions


def exact(logits: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """log Σ exp(β (z − max z)), literally, in float64."""
    z = logits.double() - logits.double().amax(1, keepdim=True)
    return torch.logsumexp(z[:, :, None] * beta.double().expand(len(z), -1)[:, None], 1)


def logits(rows: int, size: int, scale: float = 6.0, seed: int = 0) -> torch.Tensor:
    return scale * torch.randn(rows, size, generator=torch.manual_seed(seed))


#: Largest errors, and those where hundreds of logits are exactly alike and round the same way.
NEAR, ALIKE = 1e-6, 2e-5
TEMPERATURES = st.lists(st.floats(0.05, 20), min_size=1, max_size=25)


@settings(deadline=None, max_examples=80)
@given(
    TEMPERATURES,
    st.integers(1, 900),
    st.sampled_from([0, 0.1, 1, 6, 30, 1000]),
    st.floats(0, 9),
    st.integers(0, 99),
)
def test_any_temperatures_of_any_logits(
    temperatures: list[float], size: int, scale: float, gap: float, seed: int
) -> None:
    z, beta = logits(3, size, scale, seed), 1 / torch.tensor(temperatures, dtype=torch.float64)
    z[1, 1::2] = -torch.inf
    z[2, 1:] = z[2, 0] - gap / float(beta.min())  # all tokens but one at one distance
    errors = (log_partitions(z, beta) - exact(z, beta)).abs().amax(1)
    assert errors[:2].max() <= NEAR
    assert errors[2] <= ALIKE


@settings(deadline=None, max_examples=40)
@given(
    TEMPERATURES, st.integers(1, 12_000), st.sampled_from([0, 1e-4, 0.1, 1, 6, 40, 1000]), st.integers(0, 99)
)
def test_binned_logits_are_within_a_fifty_thousandth(
    temperatures: list[float], size: int, scale: float, seed: int
) -> None:
    z, beta = logits(4, size, scale, seed), 1 / torch.tensor(temperatures, dtype=torch.float64)
    z[1, 1::2] = -torch.inf
    z[2, 1:] = z[2, 0] - scale * 3
    z[3] = -(z[3].abs() ** 1.5)  # a heavy tail
    errors = (exact_solver.binned_log_partitions(z, beta) - exact(z, beta)).abs()
    assert errors.max() <= 2e-5


def test_a_table_of_a_large_vocabulary_is_made_of_binned_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    one = made(3, questions=8, vocabulary=exact_solver.BINNED_FROM)
    binned = exact_solver.tabulate(one.features, one.head)
    monkeypatch.setattr(exact_solver, "BINNED_FROM", 10**9)
    one_by_one = exact_solver.tabulate(one.features, one.head)
    assert not torch.equal(binned.coefficients, one_by_one.coefficients)
    assert (binned.coefficients - one_by_one.coefficients).abs().max() <= 2e-5


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    z, beta = logits(9, 20_001), torch.linspace(0.4, 2, 20, dtype=torch.float64)
    monkeypatch.setattr(exact_solver, "IN_CACHE", 2**16)  # three rows
    assert (log_partitions(z, beta) - exact(z, beta)).abs().max() <= NEAR
