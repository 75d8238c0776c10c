"""Temperatures from a few numbers of each answer token, where logits cannot be had (TS with NLL).

With raw log-probabilities s, β = 1/T and A(β) = log Σ exp(β s), the NLL of a token y is A(β) − β s_y: convex,
with A(1) = 0. One token i whose log-probability is known raw and at β gives A(β) = β s_i − log p_β(i); the
slope A'(β) = E_β[s] is also the mean of s over tokens drawn at β.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from numpy.polynomial import Polynomial, polynomial
from numpy.typing import ArrayLike, NDArray

from semcal.errors import FitError
from semcal.recalibration.exact_fit import LossCurve, TemperatureFit, clustered_error, clusters_of
from semcal.recalibration.losses import T_MAX, T_MIN, LossSums, certify
from semcal.recalibration.provenance import check_enough

__all__ = ["GoldTokens", "ServerFit", "fit_by_draws", "fit_by_losses", "log_partition"]

Array = NDArray[np.float64]
#: log T is searched for until two orders of interpolation agree so far; with so many temperatures at most.
TOLERANCE, MOST_TEMPERATURES = 5e-5, 14
#: First step from the best temperature in log T, and the least distance between two that are asked for.
FIRST_STEP, GAP = 0.2, 0.04
#: Points of an interpolation.
POINTS = 6
#: Most rounds of draws; they end at a step of fewer standard errors of the draws.
MOST_ROUNDS, SETTLED = 6, 2.0
LOW, HIGH = -math.log(T_MAX), -math.log(T_MIN)


def log_partition(beta: float, raw: ArrayLike, scaled: ArrayLike) -> Array:
    """Return A(β) from one token's log-probability raw and at β, in nats.

    >>> p = np.array([0.7, 0.2, 0.1])
    >>> at_half = p**0.5 / (p**0.5).sum()
    >>> bool(np.isclose(log_partition(0.5, np.log(0.7), np.log(at_half[0])), np.log((p**0.5).sum())))
    True
    """
    return beta * np.asarray(raw, dtype=np.float64) - np.asarray(scaled, dtype=np.float64)


@dataclass(frozen=True)
class GoldTokens:
    """The N tokens of the reference answers to Q questions, and the R positions that predict them."""

    question: NDArray[np.intp]  # (N,)
    position: NDArray[np.intp]  # (N,)
    weight: Array  # (N,), references of a question count equally and add up to one
    log_probs: Array  # (N,), raw log-probabilities s_y; NaN where a question is left out
    groups: NDArray[np.intp] | None = None  # (Q,), as in `fit_temperatures`

    @property
    def n_questions(self) -> int:
        """Q."""
        return int(self.question.max()) + 1

    def by_question(self, values: Array) -> Array:
        """Sum weighted values (N,) of the tokens of each question (Q,)."""
        return np.bincount(self.question, self.weight * values, self.n_questions)


@dataclass(frozen=True)
class ServerFit:
    """A temperature with what the route to it adds to its error."""

    fit: TemperatureFit  # its standard error is the total one
    route_error: float  # of T: numerical, or of the draws
    kept: NDArray[np.bool_] = field(repr=False)  # (Q,), the questions that it was fitted to


class _Curve:
    """The loss of each question at some values of u = log β."""

    def __init__(self, at_one: Array) -> None:
        self.losses: dict[float, Array] = {0.0: at_one}

    @property
    def kept(self) -> NDArray[np.bool_]:
        """The questions that are known everywhere."""
        return np.asarray(np.isfinite(np.stack(list(self.losses.values()))).all(0))

    def total(self, u: float) -> float:
        return float(self.losses[u][self.kept].sum())

    @property
    def best(self) -> float:
        """Of equal ones that nearest to T = 1."""
        return min(sorted(self.losses, key=abs), key=self.total)

    def beside(self) -> tuple[float | None, float | None]:
        """The points next to the best one."""
        at = sorted(self.losses)
        i = at.index(self.best)
        return (at[i - 1] if i else None), (at[i + 1] if i + 1 < len(at) else None)

    def nearest(self) -> list[float]:
        best = self.best
        return sorted(self.losses, key=lambda u: abs(u - best))[:POINTS]

    def vertex(self, points: list[float]) -> float:
        """Where the polynomial through these points is least between the neighbours of the best one."""
        low, high = self.beside()
        assert low is not None
        assert high is not None
        values = np.array([self.total(u) for u in points])
        curve = Polynomial.fit(points, values - values.min(), len(points) - 1)
        roots = [float(root.real) for root in curve.deriv().roots() if abs(root.imag) < 1e-9]
        inside = [self.best, *(root for root in roots if low < root < high)]
        return min(inside, key=lambda u: float(curve(u)))

    def derivatives(self, u: float) -> Array:
        """Loss, slope and curvature in log β of each kept question at u, (3, Q)."""
        points = self.nearest()
        values = np.stack([self.losses[point][self.kept] for point in points])
        width = max(abs(point - u) for point in points)
        found = polynomial.polyfit([(point - u) / width for point in points], values, len(points) - 1)[:3]
        return np.asarray(found * np.array([1, 1 / width, 2 / width**2])[:, None])


def fit_by_losses(
    evaluate: Callable[[float], Array], gold: GoldTokens, *, start: float | None = None
) -> ServerFit:
    """Fit T by the NLL of each question, asked for at a few temperatures.

    Parameters
    ----------
    evaluate : callable
        β → weighted sums over the tokens of each question (Q,) of their NLL at β, in nats. NaN leaves the
        question out of the fit, at all β.
    gold : GoldTokens
        The answers; at β = 1 they give the NLL without being asked.
    start : float, optional
        A guess of T, which saves some of the temperatures.

    Returns
    -------
    ServerFit
        T between temperatures of larger loss, by polynomials through the nearest ones; its `route_error` is
        the change of T by the last order.

    Raises
    ------
    FitError
        If fewer than 5 questions are left, or T is not found with 14 temperatures.
    """
    curve = _Curve(gold.by_question(-gold.log_probs))
    step, asked = FIRST_STEP, 1 if start is None else 1 / min(max(start, T_MIN), T_MAX)
    wanted: float | None = math.log(asked) if abs(math.log(asked)) > GAP else None
    for _ in range(MOST_TEMPERATURES):
        if wanted is None:
            low, high = curve.beside()
            if (low is None and curve.best > LOW) or (high is None and curve.best < HIGH):
                wanted = max(LOW, curve.best - step) if low is None and curve.best > LOW else None
                wanted = min(HIGH, curve.best + step) if wanted is None else wanted
                step *= 1.6 if len(curve.losses) > 3 else 1
            elif low is None or high is None:
                return _fitted(curve, curve.best, 0.0, gold, at_bound=True)
            else:
                points = curve.nearest()
                u, before = curve.vertex(points), curve.vertex(points[:-1])
                error = abs(u - before)
                if len(points) > 3 and error < TOLERANCE:
                    return _fitted(curve, u, error, gold, at_bound=False)
                gap = min(abs(u - point) for point in curve.losses)
                wider = low if curve.best - low > high - curve.best else high
                wanted = u if gap >= GAP else (curve.best + wider) / 2
        curve.losses[wanted] = evaluate(math.exp(wanted))
        check_enough(int(curve.kept.sum()), of="that the server answered for")
        wanted = None
    raise FitError(
        f"{MOST_TEMPERATURES} temperatures did not settle T (near {math.exp(-curve.best):.3f}); the server's "
        "log-probabilities do not belong to one distribution: check what `semcal probe` says of them"
    )


def _fitted(curve: _Curve, u: float, error: float, gold: GoldTokens, *, at_bound: bool) -> ServerFit:
    beta, kept = math.exp(u), curve.kept
    loss, slope, curvature = curve.derivatives(u)
    here = np.stack([loss, slope / beta, (curvature - slope) / beta**2])
    return _server_fit(
        beta, here, gold, kept, route_error=error / beta, steps=len(curve.losses) - 1, at_bound=at_bound
    )


def fit_by_draws(
    draw: Callable[[float], Array], gold: GoldTokens, *, start: float | None = None
) -> ServerFit:
    """Fit T by tokens drawn at each position: Newton steps on the slope and curvature of the NLL.

    Parameters
    ----------
    draw : callable
        β → raw log-probabilities (R, n) of n tokens drawn at T = 1/β at each position, n ≥ 2. NaN leaves the
        question out of the fit.
    gold : GoldTokens
        The answers.
    start : float, optional
        A guess of T, which saves rounds.

    Returns
    -------
    ServerFit
        From the last round. The draws add 1/n to the labels' variance where the model is calibrated at T, so
        the error is √(1 + 1/n) times that of the labels; `route_error` is the draws' part.

    Raises
    ------
    FitError
        If fewer than 5 questions are left, or T still moves after six rounds.
    """
    beta, visited = 1.0, list[tuple[float, Array, Array]]()
    kept = np.isfinite(gold.by_question(gold.log_probs))
    for _ in range(MOST_ROUNDS):
        drawn = draw(beta)
        mean, variance = drawn.mean(1), drawn.var(1, ddof=1)
        visited.append((beta, *(gold.by_question(values[gold.position]) for values in (mean, variance))))
        kept &= np.isfinite(visited[-1][1])
        check_enough(int(kept.sum()), of="that the server answered for")
        slope = float((visited[-1][1] - gold.by_question(gold.log_probs))[kept].sum())
        curvature = float(visited[-1][2][kept].sum())
        if curvature == 0:
            raise FitError(f"all tokens drawn at T = {1 / beta:.3g} were the likeliest; give more questions")
        weight = np.bincount(gold.position, gold.weight * kept[gold.question], len(drawn))
        noise = math.sqrt(np.nansum(weight**2 * variance) / drawn.shape[1]) / curvature
        found = min(max(beta - slope / curvature, beta / 2, 1 / T_MAX), beta * 2, 1 / T_MIN)
        at_bound = found == beta and slope != 0
        if abs(slope / curvature) <= SETTLED * noise or at_bound:
            here = _integrated(visited, found, gold)[:, kept]
            return _server_fit(
                found, here, gold, kept, route_error=noise / found**2, steps=len(visited), at_bound=at_bound
            )
        beta = 1 / start if start is not None and len(visited) == 1 else found
    raise FitError(
        f"T still moves after {MOST_ROUNDS} rounds of draws (now {1 / beta:.3f}); the server does not draw from the distribution whose log-probabilities it gives: see `semcal probe`"
    )


def _integrated(visited: list[tuple[float, Array, Array]], beta: float, gold: GoldTokens) -> Array:
    """Loss, slope and curvature (3, Q) at β, from A' and A'' in the rounds from β = 1 on, where A is 0."""
    last, mean, curvature = visited[-1]
    log_partition = np.zeros_like(mean)
    between = [one for one in visited if min(1, last) <= one[0] <= max(1, last)]
    for (a, mean_a, curvature_a), (b, mean_b, curvature_b) in pairwise(
        sorted(between, key=lambda one: abs(one[0] - 1))
    ):
        log_partition += (b - a) / 2 * (mean_a + mean_b) + (b - a) ** 2 / 12 * (curvature_a - curvature_b)
    log_partition += (beta - last) * mean + (beta - last) ** 2 / 2 * curvature
    target = gold.by_question(gold.log_probs)
    slope = mean + (beta - last) * curvature - target
    return np.stack([log_partition - beta * target, slope, curvature])


def _server_fit(
    beta: float,
    here: Array,
    gold: GoldTokens,
    kept: NDArray[np.bool_],
    *,
    route_error: float,
    steps: int,
    at_bound: bool = False,
) -> ServerFit:
    """From the loss, slope and curvature in β of each kept question (3, Q')."""
    n = float(gold.by_question(np.ones_like(gold.weight))[kept].sum())
    sums = LossSums(n, *(float(value) for value in here.sum(1)))
    at_one = LossSums(n, -float(gold.by_question(gold.log_probs)[kept].sum()), 0.0, 0.0)
    groups = None if gold.groups is None else gold.groups[kept]
    cluster = clusters_of(groups, here.shape[1], torch.arange(here.shape[1]))
    found = TemperatureFit(
        "NLL",
        None,
        certificate=certify(beta, sums, at_one, at_bound=at_bound, steps=steps),
        log_temperature_step=route_error * beta,
        standard_error=math.nan if at_bound else clustered_error(beta, torch.from_numpy(here[1:]), cluster),
        resampled=(),
        curve=LossCurve((), ()),
        n_tokens=int(kept[gold.question].sum()),
        n_questions=here.shape[1],
        n_clusters=int(cluster.max()) + 1,
    )
    return ServerFit(found, route_error, kept)
