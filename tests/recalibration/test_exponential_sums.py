"""Weights over a few nodes for many inverse temperatures: their bounds, on distances of the test's own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from semcal.recalibration import partitions
from semcal.recalibration.partitions import NodeWeights, shared_nodes


def error(found: NodeWeights, beta: tuple[float, ...], size: int, d: NDArray[np.float64]) -> float:
    """Largest 2 |Σ w exp(−β_k d) − exp(−βd)| / (exp(−βd) + 1/V), literally."""
    nodes = found.nodes
    values = [a + j * nodes.step for a in nodes.bases.astype(float) for j in range(nodes.steps)]
    wanted = np.exp(-np.outer(d, beta))
    return float(
        (2 * np.abs(np.exp(-np.outer(d, values)) @ found.weights.T - wanted) / (wanted + 1 / size)).max()
    )


@settings(deadline=None, max_examples=25)
@given(
    st.floats(0.01, 50),
    st.lists(st.floats(1, 10), min_size=10, max_size=30, unique=True),
    st.sampled_from([1, 50, 32_768, 262_144]),
    st.integers(0, 99),
)
def test_the_bound_holds_at_any_distance(lowest: float, ratios: list[float], size: int, seed: int) -> None:
    beta = tuple(sorted({lowest * ratio for ratio in ratios}))
    found = shared_nodes(beta, size)
    if found is not None and len(found.weights) == len(beta):
        random = np.random.default_rng(seed)
        d = np.concatenate([random.exponential(scale / lowest, 300) for scale in (0.03, 0.3, 3, 30, 300)])
        assert error(found, beta, size, d) <= 1.1 * partitions.MOST_ERROR


def test_a_weight_that_is_wrong_breaks_the_bound() -> None:
    beta = tuple(1 / np.linspace(2.5, 0.5, 20))
    found = shared_nodes(beta, 32_768)
    assert found is not None
    d = np.linspace(0, 60, 2000)
    assert error(found, beta, 32_768, d) <= partitions.MOST_ERROR
    worse = NodeWeights(found.nodes, found.weights + 1e-6 * np.eye(20, 30))
    assert error(worse, beta, 32_768, d) > partitions.MOST_ERROR
    nodes = np.exp(-np.outer(d, found.nodes.values))
    wanted = np.exp(-beta[3] * d)
    assert partitions._holds(found.weights[3], nodes, wanted, 1 / 32_768)
    assert not partitions._holds(worse.weights[3], nodes, wanted, 1 / 32_768)


@pytest.mark.parametrize(
    ("ratio", "bases", "steps"), [(1.01, 3, 4), (1.7, 3, 4), (2.8, 4, 5), (5, 5, 6), (7, 6, 7)]
)
def test_wider_ranges_take_more_nodes(ratio: float, bases: int, steps: int) -> None:
    for size in (1000, 32_768):
        found = shared_nodes(tuple(np.geomspace(0.3, 0.3 * ratio, 25)), size)
        assert found is not None
        assert (len(found.nodes.bases), found.nodes.steps) <= (bases, steps)


def test_few_temperatures_and_wide_ranges_are_worked_out_one_by_one() -> None:
    assert shared_nodes((), 1000) is None
    assert shared_nodes((1.0,), 1000) is None
    assert shared_nodes(tuple(np.linspace(0.9, 1.1, 7)), 1000) is None
    assert shared_nodes(tuple(np.geomspace(0.2, 10, 20)), 32_768) is None
    assert shared_nodes((0.0, *np.linspace(1, 2, 20) ** 2), 1000) is None
    assert shared_nodes((*np.linspace(1, 2, 20) ** 2, np.inf), 1000) is None


def test_equally_spaced_inverse_temperatures_are_nodes_themselves() -> None:
    beta = np.linspace(0.4, 2, 20)
    found = shared_nodes(tuple(beta), 32_768)
    assert found is not None
    assert found.weights.tolist() == np.eye(20).tolist()
    np.testing.assert_allclose(found.nodes.values, beta, rtol=2e-7)
