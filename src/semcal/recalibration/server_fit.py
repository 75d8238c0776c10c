"""Temperatures from a few numbers of each answer token, where logits cannot be had (TS with NLL).

With raw log-probabilities s, β = 1/T and A(β) = log Σ exp(β s), the NLL of a token y is A(β) − β s_y, convex
in β. One token i whose log-probability is known raw and at β gives A(β) = β s_i − log p_β(i); the slope
A'(β) = E_β[s] is also the mean of s over tokens drawn at β.

Where the k likeliest tokens alone are known, they bound T. S(β) = Σ p^β over them; n others, none likelier
than c, share the mass r. Their R(β) = Σ p^β is extremal where the mass is spread evenly, u = n^(1−β) r^β, and
where as many as can be have c, v = m c^β + (r − m c)^β with m = ⌊r/c⌋, because x^β is concave for β < 1 and
convex for β > 1: v ≤ R ≤ u for β < 1, u ≤ R ≤ v for β > 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
import torch
from numpy.polynomial.chebyshev import chebder, chebfit, chebroots, chebval
from numpy.typing import ArrayLike, NDArray

from semcal.errors import FitError
from semcal.recalibration.exact_fit import LossCurve, TemperatureFit, clustered_error, clusters_of
from semcal.recalibration.losses import T_MAX, T_MIN, LossSums, certify
from semcal.recalibration.provenance import check_enough

Array = NDArray[np.float64]
#: Steps of golden section and of bisection; temperatures at which a certificate is looked for.
SECTIONS, BISECTIONS, SCANNED = 44, 60, 80
#: Parts into which a power-law tail is cut for its sums.
PARTS = 160


@dataclass(frozen=True)
class TopK:
    """The known part of the distributions at N positions, at T = 1."""

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


Moments = Callable[[float], Array]
"""β → A(β), A'(β) and A''(β) of each token, (3, N)."""

#: Chebyshev nodes of a window of temperatures, its half width in log T, and how far inside the optimum lies.
NODES, HALF, INSIDE = np.cos(np.pi * (2 * np.arange(5) + 1) / 10), 0.2, 0.9
MOST_WINDOWS = 8
#: Most rounds of draws; they end at a step of fewer standard errors of the draws.
MOST_ROUNDS, SETTLED = 6, 2.0


@dataclass(frozen=True)
class GoldTokens:
    """The N tokens of the reference answers to Q questions, and the P positions that predict them."""

    question: NDArray[np.intp]  # (N,)
    position: NDArray[np.intp]  # (N,)
    weight: Array  # (N,), references of a question count equally and add up to one
    log_probs: Array  # (N,), raw log-probabilities s_y; NaN where a question is left out
    groups: NDArray[np.intp] | None = None  # (Q,), as in `fit_temperatures`

    def by_question(self, values: Array) -> Array:
        """Sum weighted values (..., N) of the tokens of each question (..., Q)."""
        sums = np.zeros((*values.shape[:-1], int(self.question.max()) + 1))
        np.add.at(sums.T, self.question, (self.weight * values).T)
        return sums


@dataclass(frozen=True)
class ServerFit:
    """A temperature with what the route to it adds to its error."""

    fit: TemperatureFit  # its standard error is the total one
    route_error: float  # of T: numerical, of the draws, or half of what the known tokens leave open


def fit_by_losses(
    evaluate: Callable[[float], Array], gold: GoldTokens, *, start: float = 1.0, hottest: float = T_MAX
) -> ServerFit:
    """Fit T by the NLL of each token, asked for at five temperatures near the optimum.

    `evaluate` is β → the NLL (N,) of each token at β, in nats; NaN leaves its question out. `start` is a
    guess of T, the middle of the first window (the loss is convex, so one that does not hold the optimum
    says on which side it lies), `hottest` the highest T that can be asked for. The result is the minimum of
    the polynomial through five losses; `route_error` is what the last order changes. FitError if fewer than
    5 questions are left, or eight windows do not hold the optimum.
    """
    low, high = -math.log(hottest), -math.log(T_MIN)
    centre, reach, side = -math.log(start), 2 * HALF, 0.0
    for number in range(1, MOST_WINDOWS + 1):
        centre = min(max(centre, low + HALF), high - HALF)
        nll = np.stack([gold.by_question(evaluate(math.exp(centre + HALF * x))) for x in NODES])
        kept = _kept(nll, gold)
        series = chebfit(NODES, nll[:, kept], len(NODES) - 1)
        x, before = _vertex(series.sum(1)), _vertex(series.sum(1)[:-1])
        at_bound = abs(x) == 1 and any(math.isclose(centre + HALF * x, end) for end in (low, high))
        if abs(x) < INSIDE or at_bound:
            beta, slope, curvature = math.exp(centre + HALF * x), chebder(series), chebder(series, 2)
            first, second = chebval(x, slope) / HALF, chebval(x, curvature) / HALF**2
            here = np.stack([chebval(x, series), first / beta, (second - first) / beta**2])
            error = abs(x - before) * HALF / beta
            return _server_fit(beta, here, gold, kept, error, steps=5 * number, at_bound=at_bound)
        reach, side = reach * (1.5 if x * side >= 0 else 0.5), x
        centre += math.copysign(reach, x)
    raise FitError(
        f"the loss has no minimum in {MOST_WINDOWS} windows of temperatures (the last one near "
        f"{math.exp(-centre):.3g}): the server's log-probabilities do not belong to one distribution; see "
        "`semcal probe`"
    )


def _vertex(series: Array) -> float:
    """Where a Chebyshev series is least on [−1, 1]."""
    roots = [float(root.real) for root in chebroots(chebder(series)) if abs(root.imag) < 1e-9]
    inside = [0.0, *(root for root in roots if abs(root) < 1), -1.0, 1.0]
    return min(inside, key=lambda x: float(chebval(x, series)))


def fit_by_draws(
    draw: Callable[[float], Array],
    gold: GoldTokens,
    law: Moments,
    *,
    start: float = 1.0,
    hottest: float = T_MAX,
) -> ServerFit:
    """Fit T by tokens drawn at each position: Newton steps on the slope and curvature of the NLL.

    `draw` is β → raw log-probabilities (P, n) of n ≥ 2 tokens drawn at T = 1/β at each position; NaN leaves
    its question out. `law` gives the loss at the optimum, which draws do not. `start` is the T of the first
    round, `hottest` the highest that can be drawn at. The draws add 1/n to the labels' variance where the
    model is calibrated at T, so the error is √(1 + 1/n) times that of the labels; `route_error` is the
    draws' part. FitError if fewer than 5 questions are left, or T still moves after six rounds.
    """
    beta = 1 / min(start, hottest)
    for number in range(1, MOST_ROUNDS + 1):
        drawn = draw(beta)
        mean, variance = drawn.mean(1), drawn.var(1, ddof=1)
        terms = np.stack([mean[gold.position] - gold.log_probs, variance[gold.position]])
        here = gold.by_question(terms)
        kept = _kept(here, gold)
        slope, curvature = (float(values[kept].sum()) for values in here)
        if curvature == 0:
            raise FitError(f"all tokens drawn at T = {1 / beta:.3g} were the likeliest; give more questions")
        weight = np.bincount(gold.position, gold.weight * kept[gold.question], len(drawn))
        noise = math.sqrt(np.nansum(weight**2 * variance) / drawn.shape[1]) / curvature
        found = min(max(beta - slope / curvature, beta / 2, 1 / hottest), beta * 2, 1 / T_MIN)
        at_bound = found == beta and slope != 0
        if abs(slope / curvature) <= SETTLED * noise or at_bound:
            nll = gold.by_question(law(found)[0] - found * gold.log_probs)
            here = np.stack([nll, here[0] + (found - beta) * here[1], here[1]])[:, kept]
            return _server_fit(found, here, gold, kept, noise / found**2, steps=number, at_bound=at_bound)
        beta = found
    raise FitError(
        f"T still moves after {MOST_ROUNDS} rounds of draws (now {1 / beta:.3f}): the server does not draw "
        "from the distribution whose log-probabilities it gives; see `semcal probe`"
    )


def fit_by_moments(law: Moments, gold: GoldTokens, temperature: float) -> ServerFit:
    """Return the errors of a temperature where A and its derivatives are known, or estimated."""
    beta, (value, mean, variance) = 1 / temperature, law(1 / temperature)
    here = gold.by_question(np.stack([value - beta * gold.log_probs, mean - gold.log_probs, variance]))
    kept = _kept(here, gold)
    return _server_fit(beta, here[:, kept], gold, kept, 0.0, steps=0, at_bound=False)


def _kept(by_question: Array, gold: GoldTokens) -> NDArray[np.bool_]:
    """The questions (Q,) of which all is known; FitError if they are too few."""
    kept = np.isfinite(by_question).all(0) & np.isfinite(gold.by_question(gold.log_probs))
    check_enough(int(kept.sum()), of="that the server answered for")
    return np.asarray(kept)


def _server_fit(
    beta: float,
    here: Array,
    gold: GoldTokens,
    kept: NDArray[np.bool_],
    route_error: float,
    *,
    steps: int,
    at_bound: bool,
) -> ServerFit:
    """From the loss, slope and curvature in β (3, Q') of each question that is kept."""
    n, at_one = gold.by_question(np.stack([np.ones_like(gold.weight), -gold.log_probs]))[:, kept].sum(1)
    sums = LossSums(float(n), *(float(value) for value in here.sum(1)))
    one = LossSums(float(n), float(at_one), 0.0, 0.0)
    groups = None if gold.groups is None else gold.groups[kept]
    cluster = clusters_of(groups, here.shape[1], torch.arange(here.shape[1]))
    found = TemperatureFit(
        "NLL",
        None,
        certificate=certify(beta, sums, one, at_bound=at_bound, steps=steps),
        log_temperature_step=route_error * beta,
        standard_error=math.nan if at_bound else clustered_error(beta, torch.from_numpy(here[1:]), cluster),
        resampled=(),
        curve=LossCurve((), ()),
        n_tokens=int(kept[gold.question].sum()),
        n_questions=here.shape[1],
        n_clusters=int(cluster.max()) + 1,
    )
    return ServerFit(found, route_error)
