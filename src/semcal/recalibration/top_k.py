"""What the k largest log-probabilities of each position say about a temperature: bounds, and an estimate.

Of a position, some tokens are known, S(β) = Σ p^β over them; n others, none likelier than c, share the mass
r. Their R(β) = Σ p^β is extremal where the mass is spread evenly, u = n^(1−β) r^β, and where as many as can
be have c, v = m c^β + (r − m c)^β with m = ⌊r/c⌋, because x^β is concave for β < 1 and convex for β > 1:

    v ≤ R ≤ u for β < 1,    u ≤ R ≤ v for β > 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from semcal.recalibration.losses import T_MAX, T_MIN

Array = NDArray[np.float64]
#: Steps of golden section and of bisection; temperatures at which a certificate is looked for.
SECTIONS, BISECTIONS, SCANNED = 44, 60, 80
#: Parts into which a power-law tail is cut for its sums.
PARTS = 160


@dataclass(frozen=True)
class TopK:
    """The known part of the distributions at N positions, at T = 1.

    >>> TopK.of([[-1.0, -2.0], [-1.0]], [-5.0, -2.0], vocabulary=10).others
    array([7., 8.])
    """

    log_probs: Array  # (N, k + 1), of the known tokens, the target among them; −inf where there is none
    largest: Array  # (N,), log c: no other token is likelier
    others: Array  # (N,), n, how many tokens are not known
    rest: Array  # (2, N), r, the least and the largest that it may be by rounding

    @classmethod
    def of(
        cls, top: Sequence[Sequence[float]], target: ArrayLike, *, vocabulary: int, rounding: float = 1e-6
    ) -> TopK:
        """From log-probabilities of the targets (N,), and of the likeliest tokens but them (N, ≤ k).

        Where none but the target is listed, it is the likeliest. `rounding` is that of the sum of a list.
        """
        given = np.asarray(target, dtype=np.float64)
        known = np.full((len(top), max(map(len, top), default=0) + 1), -np.inf)
        for row, values in enumerate(top):
            known[row, : len(values) + 1] = [given[row], *values]
        largest = np.array([min(values, default=own) for values, own in zip(top, given)])
        n = np.maximum(vocabulary - np.isfinite(known).sum(1), 0.0)
        r = 1 - np.exp(known).sum(1)
        most = np.where(n > 0, np.clip(r + rounding, 0, n * np.exp(largest)), 0.0)
        return cls(known, largest, n, np.stack([np.clip(r - rounding, 0, most), most]))

    def known_sums(self, beta: float) -> tuple[Array, Array]:
        """Return S = Σ p^β (N,) over the known tokens and its derivative in β."""
        weight = np.exp(beta * self.log_probs)
        return weight.sum(1), (weight * np.where(weight > 0, self.log_probs, 0.0)).sum(1)


def tail_bounds(beta: float, known: TopK) -> tuple[Array, Array]:
    """Return the least and the largest R(β) = Σ p^β (N,) over the tokens that are not known."""
    c, n = np.exp(known.largest), np.maximum(known.others, 1)

    def even(r: Array) -> Array:
        return np.asarray(n ** (1 - beta) * r**beta)

    def vertex(r: Array) -> Array:
        m = np.floor(r / c)
        return np.asarray(m * c**beta + np.maximum(r - m * c, 0) ** beta)

    low, high = (vertex, even) if beta < 1 else (even, vertex)
    return low(known.rest[0]), high(known.rest[1])


def mean_bounds(beta: float, known: TopK) -> tuple[Array, Array]:
    """Return bounds (N,) of E_β[log p] = A'(β), the mean log-probability at 1/T = β.

    E = (S' + R e)/(S + R), e the mean of log p over the tail at β. e is at most log c. log R is convex in β
    with R(0) = n and R(1) = r, so its slope e is at least (log R − log n)/β, and for β > 1 at least
    (log R − log r)/(β − 1). Put in, E is quasiconvex in R: golden section finds the least.
    """
    s, slope = known.known_sums(beta)
    low, high = tail_bounds(beta, known)
    log_n, log_r = np.log(np.maximum(known.others, 1)), np.log(np.maximum(known.rest[1], 1e-300))

    def mean(r: Array) -> Array:
        log_sum = np.log(np.maximum(r, 1e-300))
        e = (log_sum - log_n) / beta
        if beta > 1:
            e = np.maximum(e, (log_sum - log_r) / (beta - 1))
        return np.asarray((slope + r * e) / (s + r))

    ends = [(slope + r * known.largest) / (s + r) for r in (low, high)]
    return _least(mean, low, high), np.maximum(*ends)


def _least(function: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """The minimum (N,) of quasiconvex functions on [low, high], one for each entry."""
    golden = (5**0.5 - 1) / 2
    found = np.minimum(function(low), function(high))
    for _ in range(SECTIONS):
        a, b = high - golden * (high - low), low + golden * (high - low)
        at_a, at_b = function(a), function(b)
        found = np.minimum(found, np.minimum(at_a, at_b))
        left = at_a < at_b
        low, high = np.where(left, low, a), np.where(left, b, high)
    return found


def certified_interval(known: TopK, target: Array, weight: Array) -> tuple[float, float]:
    """Return temperatures between which the optimum of the NLL lies, whatever the tails are.

    `target` (N,) are the targets' log-probabilities and `weight` (N,) the tokens' weights. The slope of the
    NLL is Σ w (E_β[log p] − log p_y); where its lower bound is positive, the optimum lies at a larger T.
    """
    wanted = float(weight @ target)

    def below(u: float) -> bool:  # u = log β: the optimal β is less
        return float(weight @ mean_bounds(float(np.exp(u)), known)[0]) > wanted

    def above(u: float) -> bool:
        return float(weight @ mean_bounds(float(np.exp(u)), known)[1]) < wanted

    grid = np.linspace(-np.log(T_MAX), -np.log(T_MIN), SCANNED)
    upper = _sharpened(below, grid)
    lower = _sharpened(above, grid[::-1])
    return float(np.exp(-upper)), float(np.exp(-lower))


def _sharpened(holds: Callable[[float], bool], grid: Array) -> float:
    """The first of a grid where something holds, moved towards the one before; the last if it never does."""
    first = next((i for i, u in enumerate(grid) if holds(u)), None)
    if first is None or first == 0:
        return float(grid[-1 if first is None else 0])
    outside, inside = float(grid[first - 1]), float(grid[first])
    for _ in range(12):
        middle = (outside + inside) / 2
        outside, inside = (outside, middle) if holds(middle) else (middle, inside)
    return inside


class PowerLaw:
    """Tails p_j = c (j/k)^(−a) behind the known tokens, a solved from the mass of each."""

    def __init__(self, known: TopK) -> None:
        k = np.isfinite(known.log_probs).sum(1)[:, None]
        edges = k * (1 + known.others[:, None] / k) ** np.linspace(0, 1, PARTS + 1)
        count = np.diff(edges, axis=1)  # (N, PARTS) tokens, at these log (j/k):
        place = np.log((edges[:, 1:] + edges[:, :-1] + 1) / 2 / k)
        mass = known.rest.mean(0) / np.exp(known.largest)
        low, high = np.zeros(len(k)), np.full(len(k), 200.0)
        for _ in range(BISECTIONS):
            a = (low + high) / 2
            more = (count * np.exp(-a[:, None] * place)).sum(1) > mass
            low, high = np.where(more, a, low), np.where(more, high, a)
        self._known = known
        self._log_p = known.largest[:, None] - a[:, None] * place
        self._count = np.where(mass[:, None] > 0, count, 0.0)

    def moments(self, beta: float) -> tuple[Array, Array, Array]:
        """Return A(β), A'(β) and A''(β) (N,)."""
        log_probs = self._known.log_probs
        weight, tail = np.exp(beta * log_probs), self._count * np.exp(beta * self._log_p)
        values = np.concatenate([np.where(weight > 0, log_probs, 0.0), self._log_p], 1)
        every = np.concatenate([weight, tail], 1)
        total = every.sum(1)
        mean = (every * values).sum(1) / total
        return np.log(total), mean, (every * values**2).sum(1) / total - mean**2

    def temperature(self, target: Array, weight: Array) -> float:
        """Return the optimal temperature of the NLL; a bound where the optimum lies beyond it."""

        def slope(u: float) -> float:
            return float(weight @ (self.moments(float(np.exp(u)))[1] - target))

        low, high = -np.log(T_MAX), -np.log(T_MIN)
        if slope(low) >= 0 or slope(high) <= 0:
            return T_MAX if slope(low) >= 0 else T_MIN
        return float(np.exp(-scipy.optimize.brentq(slope, low, high, xtol=1e-7)))
