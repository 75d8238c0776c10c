"""Temperatures from a few numbers of each answer token, where logits cannot be had (TS with NLL).

With raw log-probabilities s, β = 1/T and A(β) = log Σ exp(β s), the NLL of a token y is A(β) − β s_y, convex
in β. One token i whose log-probability is known raw and at β gives A(β) = β s_i − log p_β(i).
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
#: Chebyshev nodes of a window of temperatures, its half width in log T, and how far inside the optimum lies.
NODES, HALF, INSIDE = np.cos(np.pi * (2 * np.arange(5) + 1) / 10), 0.2, 0.9
MOST_WINDOWS = 8


@dataclass(frozen=True)
class GoldTokens:
    """The N tokens of the reference answers to Q questions."""

    question: NDArray[np.intp]  # (N,)
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
    """A temperature with its numerical error."""

    fit: TemperatureFit
    route_error: float  # of T


def fit_by_losses(
    evaluate: Callable[[float], Array], gold: GoldTokens, *, hottest: float = T_MAX
) -> ServerFit:
    """Fit T by the NLL of each token, asked for at five temperatures near the optimum.

    `evaluate` is β → the NLL (N,) of each token at β, in nats; NaN leaves its question out. `hottest` is the
    highest T that can be asked for. The first window of temperatures lies around 1; while one does not hold
    the optimum, a Newton step leads to the next. The result is the minimum of the polynomial through five
    losses; `route_error` is what the last order changes. FitError if fewer than 5 questions are left, or
    eight windows do not hold the optimum.
    """
    low, high, centre = -math.log(hottest), -math.log(T_MIN), 0.0
    for number in range(1, MOST_WINDOWS + 1):
        centre = min(max(centre, low + HALF), high - HALF)
        nll = np.stack([gold.by_question(evaluate(math.exp(centre + HALF * x))) for x in NODES])
        complete = _kept(nll, gold)
        series = chebfit(NODES, nll[:, complete], len(NODES) - 1)
        x, before = _vertex(series.sum(1)), _vertex(series.sum(1)[:-1])
        beta, slope, curvature = math.exp(centre + HALF * x), chebder(series), chebder(series, 2)
        first, second = chebval(x, slope) / HALF, chebval(x, curvature) / HALF**2
        at_bound = abs(x) == 1 and any(math.isclose(centre + HALF * x, end) for end in (low, high))
        if abs(x) < INSIDE or at_bound:
            terms = np.stack([chebval(x, series), first / beta, (second - first) / beta**2])
            error = abs(x - before) * HALF / beta
            return _server_fit(beta, terms, gold, complete, error, steps=5 * number, at_bound=at_bound)
        centre += HALF * x + _newton_step(float(first.sum()), float(second.sum()))
    raise FitError(
        f"the loss has no minimum in {MOST_WINDOWS} windows of temperatures (the last one near "
        f"{math.exp(-centre):.3g}): the server's log-probabilities do not belong to one distribution; see "
        "`semcal probe`"
    )


def _newton_step(first: float, second: float) -> float:
    """The step in log β, 1 at most, of Newton's method in β, where the loss is convex."""
    ratio = 1 - first / (second - first) if second > first else -1.0
    return min(max(math.log(ratio), -1.0), 1.0) if ratio > 0 else -math.copysign(1.0, first)


def _vertex(series: Array) -> float:
    """Where a Chebyshev series is least on [−1, 1]."""
    roots = [float(root.real) for root in chebroots(chebder(series)) if abs(root.imag) < 1e-9]
    inside = [0.0, *(root for root in roots if abs(root) < 1), -1.0, 1.0]
    return min(inside, key=lambda x: float(chebval(x, series)))


def _kept(by_question: Array, gold: GoldTokens) -> NDArray[np.bool_]:
    """The questions (Q,) of which all is known; FitError if they are too few."""
    complete = np.isfinite(by_question).all(0) & np.isfinite(gold.by_question(gold.log_probs))
    check_enough(int(complete.sum()), of="that the server answered for")
    return np.asarray(complete)


def _server_fit(
    beta: float,
    terms: Array,
    gold: GoldTokens,
    complete: NDArray[np.bool_],
    route_error: float,
    *,
    steps: int,
    at_bound: bool,
) -> ServerFit:
    """From the loss, slope and curvature in β (3, Q') of each question that is kept."""
    n, at_one = gold.by_question(np.stack([np.ones_like(gold.weight), -gold.log_probs]))[:, complete].sum(1)
    sums = LossSums(float(n), *(float(value) for value in terms.sum(1)))
    sums_at_one = LossSums(float(n), float(at_one), 0.0, 0.0)
    groups = None if gold.groups is None else gold.groups[complete]
    cluster = clusters_of(groups, terms.shape[1], torch.arange(terms.shape[1]))
    fit = TemperatureFit(
        "NLL",
        None,
        certificate=certify(beta, sums, sums_at_one, at_bound=at_bound, steps=steps),
        log_temperature_step=route_error * beta,
        standard_error=math.nan if at_bound else clustered_error(beta, torch.from_numpy(terms[1:]), cluster),
        resampled=(),
        curve=LossCurve((), ()),
        n_tokens=int(complete[gold.question].sum()),
        n_questions=terms.shape[1],
        n_clusters=int(cluster.max()) + 1,
    )
    return ServerFit(fit, route_error)
