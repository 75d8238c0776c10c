"""Sequential tests of promises by betting (Ville's inequality).

While a promise holds, a fair bet multiplies its stake by a factor of mean 1. The capital of bets against the
promise then reaches 1/α with probability at most α, at any time (Ville 1939). Sources: for means of bounded
outcomes Waudby-Smith and Ramdas 2024, doi:10.1093/jrsssb/qkad009; for p-values of exchangeable data Vovk,
Gammerman and Shafer 2022, doi:10.1007/978-3-031-06649-8, chapter 8; for a difference of two means the B-value
of Lan and Wittes 1988, doi:10.2307/2531870.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from semcal.arrays import Floats

#: Odds ratios of bets that the mean is too low; two-sided bets also use their inverses.
ABOVE = (1.5, 2.5)
BOTH = (*ABOVE, *(1 / odds for odds in ABOVE))
#: Odds ratios of bets on p-values.
OF_P_VALUES = (3.0, 9.0, 1 / 3, 1 / 9)
#: Number of outcomes between two starts of the bets.
EVERY = 100
#: Added to the variance of a calibration's labels, so that a few correct labels do not seem certain.
ADDED_VARIANCE = 2.0
#: A notice is given at this multiple of the level of the alarm.
NOTICE = 4.0
#: Maximum number of stored e-values; a full list keeps every second value.
KEPT = 400
#: Maximum logarithm of an e-value in results.
LARGEST = 700.0


@dataclass
class EProcess:
    """The capital of bets that outcomes exceed their stated means, or fall below them with odds below 1.

    A bet multiplies its stake by 1 + λ (x − p). Here x in [0, 1] is the outcome, p its stated mean, and
    λ = (r − 1) / (1 + (r − 1) p) for the odds ratio r: the likelihood ratio of outcomes 0 and 1, positive and
    finite for any p. If p is the conditional mean, the mean capital stays 1. If no r is below 1, the mean
    capital is at most 1 for a larger p, too.

    Early losses would hide a late change. Bets therefore start again every `EVERY` outcomes: the k-th start
    uses 6 / (π² k²) of a capital of 1, and the rest stays in reserve.

    Examples
    --------
    >>> process = EProcess(ABOVE)
    >>> log_e = process.update(np.ones(10), np.full(10, 0.5))
    >>> round(process.log_e, 2)
    2.57
    """

    odds: tuple[float, ...]
    n: int = 0
    reserve: float = 1.0
    outcome_sum: float = 0.0
    mean_sum: float = 0.0
    log_stakes: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.log_stakes:
            self.log_stakes = [-math.inf] * len(self.odds)
            self._start()

    def update(self, outcomes: ArrayLike, means: ArrayLike) -> Floats:
        """Settle the bets on outcomes (N,) with their stated means; return `log_e` after each of them."""
        x, p = np.atleast_1d(outcomes, means)
        gains = np.array(self.odds)[:, None] - 1
        log_stakes, log_reserves = np.log1p(gains * x) - np.log1p(gains * p), np.empty(len(x))
        first = 0
        while first < len(x):
            if self.n and self.n % EVERY == 0:
                self._start()
            part = slice(first, first := min(first + EVERY - self.n % EVERY, len(x)))
            log_stakes[:, part.start] += self.log_stakes
            self.log_stakes = np.cumsum(log_stakes[:, part], axis=1, out=log_stakes[:, part])[:, -1].tolist()
            log_reserves[part] = math.log(self.reserve)
            self.n += part.stop - part.start
        self.outcome_sum = float(_running_sum(self.outcome_sum, x)[-1])
        self.mean_sum = float(_running_sum(self.mean_sum, p)[-1])
        log_e: Floats = np.logaddexp.reduce([log_reserves, *log_stakes])
        return log_e

    def _start(self) -> None:
        part = 6 / (math.pi * (self.n // EVERY + 1)) ** 2
        self.reserve -= part
        self.log_stakes = np.logaddexp(self.log_stakes, math.log(part / len(self.odds))).tolist()

    @property
    def log_e(self) -> float:
        """The logarithm of the e-value (the capital)."""
        return float(np.logaddexp.reduce([math.log(self.reserve), *self.log_stakes]))


@dataclass
class LabelComparison:
    """One-sided test of the error of probabilities against its value on a calibration's labels.

    Let d be the mean of p − y over the n answers of the fit, and D the mean over N later labels. Their
    variances are V = (Σ p (1 − p) + `ADDED_VARIANCE`) / n² and W = Σ p (1 − p) / N². The B-value
    (D − d) √V / (V + W) is the change of the error in standard errors √V. Without a change, the B-value is a
    Brownian motion from time 0 to V / (V + W) < 1, whose maximum exceeds b with probability at most
    2 (1 − Φ(b)) (reflection principle). `share` is the share of the level for this test.
    """

    side: int  # 1: probabilities are too high, -1: too low
    share: float
    excess: float  # d
    variance: float  # V
    n: int = 0
    outcome_sum: float = 0.0
    mean_sum: float = 0.0
    variance_sum: float = 0.0
    largest: float = 0.0  # B-value so far

    @classmethod
    def with_labels(cls, side: int, share: float, p: Floats, correct: Floats) -> LabelComparison:
        """Return the comparison with labeled answers, their probabilities (N,) and correctness (N,)."""
        variance = (float((p * (1 - p)).sum()) + ADDED_VARIANCE) / len(p) ** 2
        return cls(side, share, float((p - correct).mean()), variance)

    def update(self, outcomes: ArrayLike, means: ArrayLike) -> Floats:
        """Add outcomes (N,) and their probabilities; return `log_e` after each of them."""
        x, p = np.atleast_1d(outcomes, means)
        n = np.arange(self.n + 1, self.n + len(x) + 1)
        outcome_sums, mean_sums = _running_sum(self.outcome_sum, x), _running_sum(self.mean_sum, p)
        variance_sums = _running_sum(self.variance_sum, p * (1 - p))
        excess = self.side * ((mean_sums - outcome_sums)[1:] / n - self.excess)
        values = excess * math.sqrt(self.variance) / (self.variance + variance_sums[1:] / n**2)
        largest = np.maximum.accumulate(np.append(self.largest, values))
        self.n += len(x)
        self.outcome_sum, self.mean_sum = float(outcome_sums[-1]), float(mean_sums[-1])
        self.variance_sum, self.largest = float(variance_sums[-1]), float(largest[-1])
        return self._log_e(largest[1:])

    def _log_e(self, largest: ArrayLike) -> Floats:
        from scipy.special import erfc  # not needed by the commands of rows

        p_values = np.maximum(erfc(np.asarray(largest) / math.sqrt(2)), math.exp(-LARGEST)) / self.share
        return np.maximum(0.0, -np.log(p_values))

    @property
    def log_e(self) -> float:
        """The logarithm of 1 / p-value, which is valid at any time."""
        return float(self._log_e(self.largest))


def _running_sum(start: float, values: Floats) -> Floats:
    """Return the sums (N + 1,) before and after each value (N,), added one by one as in smaller batches."""
    return np.cumsum(np.append(start, values))


@dataclass
class SequentialTest:
    """Test of one promise after each outcome, in several groups of outcomes.

    The e-value of bets is the weighted mean over groups: the first has half the weight, and the others share
    the rest. The e-value of comparisons with labels is the largest. The alarm is raised at 1/α and a notice
    at 1 / (`NOTICE` α); both stay. `course` holds fewer than `kept` values of `log_e`, one after every
    `every` outcomes.
    """

    groups: dict[str, EProcess | LabelComparison]
    alpha: float
    n: int = 0
    alarm_at: int | None = None  # number of the outcome that raised the alarm
    notice_at: int | None = None
    course: list[float] = field(default_factory=list)
    every: int = 1
    kept: float = KEPT

    def update(self, outcomes: Mapping[str, ArrayLike], means: ArrayLike) -> None:
        """Add outcomes (N,) with their stated means to each of their groups; NaN if not in the group."""
        means = np.atleast_1d(means)
        log_e = []
        for name, group in self.groups.items():
            of_group, start = np.atleast_1d(outcomes.get(name, np.full(len(means), np.nan))), group.log_e
            inside = ~np.isnan(of_group)
            after = group.update(of_group[inside], means[inside])
            log_e.append(np.append(start, after)[np.cumsum(inside)])
        together = self._together(np.array(log_e))
        if self.alarm_at is None:
            self.alarm_at = self._first(together, self.alpha)
        if self.notice_at is None:
            self.notice_at = self._first(together, NOTICE * self.alpha)
        for value in together.tolist():
            self.n += 1
            if self.n % self.every == 0:
                self.course.append(value)
            if len(self.course) == self.kept:
                self.course, self.every = self.course[1::2], 2 * self.every

    def _first(self, log_e: Floats, level: float) -> int | None:
        """Return the number of the first new outcome with an e-value of 1 / `level`, None without one."""
        reached = np.flatnonzero(log_e >= -math.log(level))
        return self.n + 1 + int(reached[0]) if len(reached) else None

    def _together(self, log_e: Floats) -> Floats:
        """Return the logarithm of the e-value (N,) from those of all groups (G, N)."""
        together: Floats = log_e.max(axis=0)
        if len(log_e) > 1 and not isinstance(next(iter(self.groups.values())), LabelComparison):
            of_bands = np.logaddexp.reduce(log_e[1:]) - math.log(len(log_e) - 1)
            together = np.logaddexp(log_e[0], of_bands) - math.log(2)
        return together

    @property
    def alarm(self) -> bool:
        """True if the promise is refuted."""
        return self.alarm_at is not None

    @property
    def log_e(self) -> float:
        """The logarithm of the e-value."""
        return float(self._together(np.array([[group.log_e] for group in self.groups.values()]))[0])

    @property
    def e_value(self) -> float:
        """The e-value (the capital of the bets, or 1 / p-value), which is finite."""
        return math.exp(min(self.log_e, LARGEST))
