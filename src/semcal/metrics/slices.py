"""Tests of calibration, and of the promise of a threshold, in each slice of the questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from semcal.arrays import Floats, as_option
from semcal.errors import InputError
from semcal.metrics.frequencies import (
    GroupLabels,
    as_correct,
    as_groups,
    as_pairs,
    both_names,
    check_same_length,
)
from semcal.metrics.intervals import wilson_interval
from semcal.metrics.overview import noise_floor

#: Minimum number of independent units in a tested slice.
FEWEST = 20
#: Maximum number of simulated outcomes for the test of one slice.
MOST_DRAWS = 20_000


@dataclass(frozen=True)
class Slice:
    """Figures and tests of the questions in one slice.

    `excess` is the mean confidence - accuracy, with its interval. `ace` is the calibration error, with its
    noise floor (`ace_floor`) and the p-value of calibration. `calibrated` is false if p, times the number of
    slices, is below 1 - level. `answered` is the number of answers at or above the threshold, `errors` the
    number of wrong ones, and `risk` their share with its interval. `kept` is false if the interval lies above
    the promised risk. Slices with fewer than 20 questions or groups are not tested; their tests are None.
    """

    value: str
    n: int
    accuracy: float
    mean_confidence: float
    excess: float
    excess_interval: tuple[float, float] | None
    ace: float
    ace_floor: float
    ace_p: float
    calibrated: bool | None
    answered: int | None = None
    errors: int | None = None
    risk: float | None = None
    risk_interval: tuple[float, float] | None = None
    kept: bool | None = None


@both_names
def slices(
    confidence: ArrayLike,
    correct: ArrayLike,
    values: Sequence[str],
    *,
    answered: ArrayLike | None = None,
    risk_limit: float | None = None,
    groups: GroupLabels | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> list[Slice]:
    """Test calibration and the promise of a threshold in each slice, corrected for the number of slices.

    Parameters
    ----------
    confidence, correct : array_like, shape (N,)
        As in :func:`semcal.metrics.ece`, with the same errors.
    values : sequence of N str
        The slice of each question.
    answered : array_like of bool, shape (N,), optional
        True for each confidence at or above the threshold.
    risk_limit : float, optional
        Promised maximum share of wrong answers.
    groups : sequence of N labels, optional
        Group of each question. If given, the independent units are groups.
    level : float
        Simultaneous level of all intervals of a kind (Bonferroni over the tested slices). The interval of the
        excess is Wilson's, that of the risk Clopper and Pearson's.
    seed : int
        Seed of the test of calibration.

    Returns
    -------
    list of Slice
        The largest first.

    Examples
    --------
    >>> right = [True] * 36 + [False] * 4 + [True] * 20 + [False] * 20
    >>> found = slices([0.9] * 80, right, ["a"] * 40 + ["b"] * 40)
    >>> [(one.value, round(one.excess, 2), one.calibrated) for one in found]
    [('a', 0.0, True), ('b', 0.4, False)]
    """
    p, c = as_pairs(confidence, correct)
    as_option(level, "level", "a probability between 0 and 1, such as 0.95", low=0, high=1)
    names = np.asarray(values, dtype=str)
    if names.shape != p.shape:
        raise InputError(f"values has shape {names.shape} and confidence {p.shape}. Give one value each.")
    units = np.arange(len(p)) if (labels := as_groups(groups, len(p))) is None else labels
    through = None if answered is None else as_correct(answered)
    if through is not None:
        check_same_length(p, through)
    parts = {name: np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())}
    tested = {name for name, part in parts.items() if len(np.unique(units[part])) >= FEWEST}
    alpha = (1 - level) / max(1, len(tested))
    found = []
    for name, part in sorted(parts.items(), key=lambda item: (-len(item[1]), item[0])):
        floor = noise_floor(
            p[part],
            c[part],
            groups=None if labels is None else units[part],
            draws=int(min(max(1000, 20 / alpha), MOST_DRAWS)),
            seed=seed,
        )
        excess, is_tested = p[part] - c[part], name in tested
        mean, excess_interval = float(excess.mean()), None
        if is_tested:  # Wilson's of a mean of values from -1 to 1, whose units are independent
            sums = np.bincount(np.unique(units[part], return_inverse=True)[1], excess - mean)
            n_units = len(sums)
            error = float(np.sqrt(np.sum(sums**2) * n_units / max(1, n_units - 1)) / len(excess))
            excess_interval = wilson_interval(mean, error, n_units, 1 - alpha, least=-1.0)
        found.append(
            Slice(
                value=name,
                n=len(part),
                accuracy=float(c[part].mean()),
                mean_confidence=float(p[part].mean()),
                excess=mean,
                excess_interval=excess_interval,
                ace=floor.observed,
                ace_floor=floor.mean,
                ace_p=floor.p_value,
                calibrated=floor.p_value >= alpha if is_tested else None,
                **_promise(c[part][through[part] > 0], risk_limit, alpha, is_tested)
                if through is not None
                else {},
            )
        )
    return found


def _promise(correct: Floats, limit: float | None, alpha: float, is_tested: bool) -> dict[str, Any]:
    """Count the errors of the answers, and test their share against the limit."""
    n, errors = len(correct), int((1 - correct).sum())
    counts = {"answered": n, "errors": errors, "risk": errors / n if n else None}
    if not n or not is_tested:
        return counts
    low = float(scipy.special.betaincinv(errors, n - errors + 1, alpha / 2)) if errors else 0.0
    high = float(scipy.special.betaincinv(errors + 1, n - errors, 1 - alpha / 2)) if errors < n else 1.0
    return counts | {"risk_interval": (low, high), "kept": None if limit is None else low <= limit}
