"""Selective answering with a guarantee: error rate at most r among the answered, with probability 1 - δ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from semcal.arrays import as_numbers, as_option
from semcal.errors import UsageError
from semcal.metrics.tally import Floats, as_correct, as_probabilities, as_scores, tally

__all__ = ["RiskControlledThreshold", "risk_controlled_threshold"]

#: Thresholds tried when none are given: fixed before any label is seen.
GRID = np.arange(101) / 100


@dataclass(frozen=True, eq=False)
class RiskControlledThreshold:
    """The loosest threshold whose error rate is shown to be within the limit.

    Attributes
    ----------
    threshold : float or None
        Answer when the confidence is at least this; None when no threshold could be shown to be safe.
    risk_limit, delta : float
        The error rate among answered questions is at most `risk_limit` with probability at least 1 - `delta`.
    answered : int
        Questions at or above the threshold, 0 for none.
    errors : int
        Wrong ones among them.
    coverage : float
        Share of questions answered.
    upper_bound : float
        Upper confidence bound, at level 1 - delta, on the error rate there; NaN for none.
    tested_thresholds, tested_bounds : ndarray of float64, shape (T,)
        What was tested, strictest first, the first failure included.
    """

    threshold: float | None
    risk_limit: float
    delta: float
    answered: int
    errors: int
    coverage: float
    upper_bound: float
    tested_thresholds: Floats
    tested_bounds: Floats


def risk_controlled_threshold(
    confidence: ArrayLike,
    correct: ArrayLike,
    *,
    risk_limit: float,
    delta: float = 0.05,
    thresholds: ArrayLike | None = None,
) -> RiskControlledThreshold:
    r"""Find the loosest threshold above which the error rate is at most r, with probability 1 - δ.

    Thresholds t are tested from strict to loose, each by the exact binomial upper bound on its error rate:
    with e(t) errors among the n(t) answered questions, t passes when

    .. math:: \mathrm{Beta}^{-1}(1 - \delta;\; e + 1,\, n - e) \le r.

    Testing starts at the strictest threshold that could pass at all, with :math:`n(t) \ge \ln \delta / \ln(1
    - r)`, and stops at the first that fails; the last that passed is the answer. As each is tested only after
    all stricter ones passed, no correction for the number of thresholds is needed (fixed-sequence testing).

    Parameters
    ----------
    confidence : array_like of float, shape (N,)
        Probabilities; or any score, larger is surer, when `thresholds` are given.
    correct : array_like of bool, shape (N,)
        Of questions drawn as those to be answered will be, and on which nothing else was fitted.
    risk_limit : float
        The error rate r among answered questions, in (0, 1).
    delta : float
        Allowed probability that the error rate exceeds r after all, in (0, 1).
    thresholds : array_like of float, optional
        A grid chosen without looking at `correct`; 0, 0.01, ..., 1 by default.

    Returns
    -------
    RiskControlledThreshold
        Its threshold may be None: these questions do not show any threshold to be safe.

    Raises
    ------
    InputError
        Empty input, lengths that differ, a confidence that is NaN (or outside [0, 1] with the default grid).
    UsageError
        `risk_limit` or `delta` outside (0, 1); no thresholds, or NaN among them.

    References
    ----------
    Bauer (1991), Multiple testing in clinical trials, Statistics in Medicine 10. Angelopoulos, Bates, Candès,
    Jordan and Lei (2025), Learn then Test: Calibrating predictive algorithms to achieve risk control, Annals
    of Applied Statistics 19. Clopper and Pearson (1934), Biometrika 26.

    Examples
    --------
    >>> confidence = [0.95] * 100 + [0.6] * 100
    >>> correct = [True] * 99 + [False] + [True] * 60 + [False] * 40
    >>> result = risk_controlled_threshold(confidence, correct, risk_limit=0.05)
    >>> result.threshold, result.answered, result.errors, round(result.upper_bound, 4)
    (0.61, 100, 1, 0.0466)
    >>> print(risk_controlled_threshold(confidence, correct, risk_limit=0.001).threshold)
    None
    """
    _check_shares(risk_limit=risk_limit, delta=delta)
    values = as_probabilities(confidence) if thresholds is None else as_scores(confidence, "confidence")
    t = tally(values, as_correct(correct))
    grid = _strictest_first(GRID if thresholds is None else thresholds)
    answered, right = t.at_least(grid)
    errors = answered - right
    start = np.flatnonzero(answered >= np.log(delta) / np.log1p(-risk_limit))
    first = int(start[0]) if len(start) else len(grid)
    bounds = upper_bound(errors[first:], answered[first:], delta)
    failed = np.flatnonzero(bounds > risk_limit)
    passed = int(failed[0]) if len(failed) else len(bounds)
    at = first + passed - 1
    found = passed > 0
    return RiskControlledThreshold(
        threshold=float(grid[at]) if found else None,
        risk_limit=risk_limit,
        delta=delta,
        answered=int(answered[at]) if found else 0,
        errors=int(errors[at]) if found else 0,
        coverage=float(answered[at] / t.n) if found else 0.0,
        upper_bound=float(bounds[passed - 1]) if found else float("nan"),
        tested_thresholds=grid[first : first + passed + 1],
        tested_bounds=bounds[: passed + 1],
    )


def upper_bound(errors: Floats, answered: Floats, delta: float) -> Floats:
    """Exact (Clopper-Pearson) upper bound at level 1 - delta on an error rate; 1 where all are errors."""
    right = answered - errors
    bound = betaincinv(errors + 1, np.where(right > 0, right, 1.0), 1 - delta)
    return np.where(right > 0, bound, 1.0)


def _check_shares(**shares: float) -> None:
    """Refuse shares outside (0, 1)."""
    for name, share in shares.items():
        as_option(share, name, "a number between 0 and 1, such as 0.05", low=0, high=1)


def _strictest_first(thresholds: ArrayLike) -> Floats:
    """Distinct thresholds, descending."""
    grid = np.unique(as_numbers(thresholds, "thresholds"))[::-1]
    if not len(grid) or np.isnan(grid).any():
        raise UsageError(f"thresholds are {grid}; expected at least one number and no NaN")
    return grid
