"""Temperatures from a few numbers of each answer token, where logits cannot be had (TS with NLL).

With raw log-probabilities s, β = 1/T and A(β) = log Σ exp(β s), the NLL of a token y is A(β) − β s_y, convex
in β. One token i whose log-probability is known raw and at β gives A(β) = β s_i − log p_β(i); the slope
A'(β) = E_β[s] is also the mean of s over tokens drawn at β.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.polynomial.chebyshev import chebder, chebfit, chebroots, chebval
from numpy.typing import NDArray

from semcal.errors import FitError
from semcal.recalibration.exact_fit import LossCurve, TemperatureFit, clustered_error, clusters_of
from semcal.recalibration.losses import T_MAX, T_MIN, LossSums, certify
from semcal.recalibration.provenance import check_enough

Array = NDArray[np.float64]
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

    Parameters
    ----------
    evaluate : callable
        β → the NLL (N,) of each token at β, in nats. NaN leaves its question out.
    gold : GoldTokens
        The answers.
    start : float
        A guess of T: the middle of the first window. The loss is convex, so a window that does not hold the
        optimum says on which side it lies.
    hottest : float
        The highest T that can be asked for.

    Returns
    -------
    ServerFit
        The minimum of the polynomial through five losses; `route_error` is what the last order changes.

    Raises
    ------
    FitError
        If fewer than 5 questions are left, or eight windows do not hold the optimum.
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

    Parameters
    ----------
    draw : callable
        β → raw log-probabilities (P, n) of n tokens drawn at T = 1/β at each position, n ≥ 2. NaN leaves
        its question out.
    gold : GoldTokens
        The answers.
    law : Moments
        Gives the loss at the optimum, which draws do not.
    start, hottest : float
        The T of the first round, and the highest that can be drawn at.

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
