"""Approximates Σ exp(βz) at many inverse temperatures β from a few shared exponentials.

With z = −d, d ≥ 0, every e^(−βd) is a weighted sum of e^(−β_k d) at nodes β_k = a_i + j δ, and so is a sum of
them over a vocabulary. The p exponentials of a_i z and the q powers of exp(δ z) give the sums at all p · q
nodes by a product of thin matrices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["NodeWeights", "Nodes", "shared_nodes"]

#: Largest relative error of a sum over the vocabulary, in exact arithmetic, and the largest factor by which
#: relative errors of the sums at nodes may grow.
MOST_ERROR, MOST_GROWTH = 3e-7, 12.0
#: (p, q, γ, width, margin): bases spread by the power γ, from `margin` of the lowest β on, and steps `width`
#: times p · q equal ones. Found by search; each suits a wider range of temperatures than the one before it.
SHAPES = (
    (3, 4, 1.03, 0.99, 0.92),
    (4, 5, 1.17, 1.07, 0.7),
    (5, 6, 1.22, 0.77, 0.78),
    (6, 7, 1.26, 0.65, 0.78),
)
#: Most steps from a base, and how far they lead in relation to the lowest β, so that powers stay normal.
MOST_STEPS, FURTHEST = 8, 1.4
#: Distances from the largest logit at which weights are fitted, and at which they are checked.
FITTED, CHECKED = 200, 701
#: Rounding of a sum in float32, which keeps the weights small.
ROUNDING = 1e-7


@dataclass(frozen=True)
class Nodes:
    """Inverse temperatures a_i + j δ, j < q."""

    bases: NDArray[np.float32]  # (p,), ascending: a_i
    step: float  # δ, positive; (q − 1) δ is at most 1.4 times the lowest requested β
    steps: int  # q, at least 2

    @property
    def values(self) -> NDArray[np.float64]:
        """(p · q,), all of one base after another."""
        values = np.add.outer(self.bases.astype(np.float64), self.step * np.arange(self.steps))
        return np.asarray(values.ravel())

    @property
    def cost(self) -> float:
        """Work per token, in exponentials with their sums; fitted to measurements."""
        p, q = len(self.bases), self.steps
        return 4 + 0.8 * p + 0.3 * q + 0.1 * p * q


@dataclass(frozen=True)
class NodeWeights:
    """Σ exp(β z) at K inverse temperatures is `weights` (K, p · q) times the sums at the nodes."""

    nodes: Nodes
    weights: NDArray[np.float64]


@lru_cache(maxsize=64)
def shared_nodes(beta: tuple[float, ...], size: int) -> NodeWeights | None:
    """Return the cheapest nodes for Σ exp(β z) over a vocabulary, z ≤ 0 with a maximum of 0, at many β.

    Parameters
    ----------
    beta : tuple of float
        Inverse temperatures, ascending, distinct.
    size : int
        V, tokens of the vocabulary, at most.

    Returns
    -------
    NodeWeights or None
        Nodes and weights w for each β so that, at all of many distances d ≥ 0,

            |Σ_k w_k e^(−β_k d) − e^(−βd)| ≤ E (e^(−βd) + 1/V),  2 E ≤ 3e-7.

        Summed over the tokens that is E (Z + 1) ≤ 2 E Z, as Z ≥ 1. Relative errors ε of the sums at nodes
        change Z by at most 12 ε Z. None where no such nodes are known, or one exponential for each β is
        cheaper.

    Examples
    --------
    Twenty temperatures from five exponentials and the powers of a sixth:

    >>> shared = shared_nodes(tuple(1 / np.linspace(2.5, 0.5, 20)), 32_000)
    >>> len(shared.nodes.bases), shared.nodes.steps, shared.weights.shape
    (5, 6, (20, 30))
    """
    betas = np.array(beta)
    if len(betas) < 3 or not 0 < betas[0] <= betas[-1] < math.inf:
        return None
    for nodes in sorted([*_even(betas), *_sumsets(betas)], key=lambda nodes: nodes.cost):
        if nodes.cost >= len(betas):
            break
        weights = _weights(nodes.values, betas, size)
        if weights is not None:
            return NodeWeights(nodes, weights)
    return None


def _even(beta: NDArray[np.float64]) -> Iterator[Nodes]:
    """Equally spaced inverse temperatures are nodes themselves."""
    gap = float(beta[-1] - beta[0]) / (len(beta) - 1)
    steps = min(math.isqrt(len(beta) - 1) + 1, MOST_STEPS, 1 + int(FURTHEST * beta[0] / gap))
    if steps > 1 and (np.abs(np.diff(beta) - gap) <= 1e-9 * beta[-1]).all():
        yield Nodes(beta[::steps].astype(np.float32), gap, steps)


def _sumsets(beta: NDArray[np.float64]) -> Iterator[Nodes]:
    """Nodes from below the lowest β to the highest one, more and more of them."""
    low, high = float(beta[0]), float(beta[-1])
    for p, q, power, width, margin in SHAPES:
        step = width * (high - low) / (p * q)
        first, last = margin * low, high - (q - 1) * step
        bases = first + (last - first) * (np.arange(p) / (p - 1)) ** power
        if (q - 1) * step <= FURTHEST * low:
            yield Nodes(bases.astype(np.float32), float(np.float32(step)), q)


def _weights(nodes: NDArray[np.float64], beta: NDArray[np.float64], size: int) -> NDArray[np.float64] | None:
    """Weights (K, M) of nodes for each β; None if one of them exceeds the error bounds."""
    if len(nodes) >= len(beta) and np.allclose(nodes[: len(beta)], beta, rtol=2e-7, atol=0):
        return np.eye(len(beta), len(nodes))
    far, floor = math.log(1e9 * size) / nodes[0], 1 / size
    fitted, checked = _distances(far, beta[-1], FITTED), _distances(far, beta[-1], CHECKED)
    at_fitted, at_checked = np.exp(-np.outer(fitted, nodes)), np.exp(-np.outer(checked, nodes))
    found = np.empty((len(beta), len(nodes)))
    for k, b in enumerate(beta):
        found[k] = _least_squares(at_fitted, np.exp(-b * fitted), floor)
        if not _holds(found[k], at_checked, np.exp(-b * checked), floor):
            return None
    return found


def _distances(far: float, steepest: float, count: int) -> NDArray[np.float64]:
    """Distances from 0 to `far`, dense where e^(−βd) changes fast; all that is beyond `far` is nearly 0."""
    bend = 4 * steepest
    return np.asarray(np.expm1(np.linspace(0, math.log1p(far * bend), count)) / bend)


def _least_squares(
    nodes: NDArray[np.float64], wanted: NDArray[np.float64], floor: float
) -> NDArray[np.float64]:
    """Weights (M,) of least squares: relative errors, and growth of rounding errors."""
    scaled = nodes / (wanted + floor)[:, None]
    rounding = ROUNDING * len(wanted) ** 0.25 * np.diag(np.maximum(scaled.max(0), 1.0))
    q, r = np.linalg.qr(np.vstack([scaled, rounding]))
    return np.asarray(np.linalg.solve(r, q[: len(wanted)].T @ (wanted / (wanted + floor))))


def _holds(
    weights: NDArray[np.float64], nodes: NDArray[np.float64], wanted: NDArray[np.float64], floor: float
) -> bool:
    """Whether error and growth of rounding errors are within the bounds at all distances."""
    error = np.abs(nodes @ weights - wanted) / (wanted + floor)
    ratio = ((nodes + floor) / (wanted + floor)[:, None]).max(0)
    return bool(2 * error.max() <= MOST_ERROR and np.abs(weights) @ (2 * ratio - 1) <= MOST_GROWTH)
