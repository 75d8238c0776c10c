"""Sequential tests of promises: bets against them, one outcome after the other (Ville's inequality).

A bet that is fair while the promise holds multiplies its stake by a factor of mean 1, so that whoever bets
against a promise that holds gets 1/α times rich with probability α at most, however long it goes on (Ville
1939). Bets on means of bounded outcomes: Waudby-Smith and Ramdas 2024, doi:10.1093/jrsssb/qkad009; on
p-values of exchangeable data: Vovk, Gammerman and Shafer 2022, doi:10.1007/978-3-031-06649-8, chapter 8.
A difference of two means is tested by the B-value of Lan and Wittes (1988, doi:10.2307/2531870).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from semcal.arrays import Floats

#: By how much bets have the odds above what was said; two-sided ones also have them below.
ABOVE = (1.5, 2.5)
BOTH = (*ABOVE, *(1 / odds for odds in ABOVE))
#: The same for p-values, which lie between 0 and 1.
OF_P_VALUES = (3.0, 9.0, 1 / 3, 1 / 9)
#: Outcomes from one start of the bets to the next.
EVERY = 100
#: Added to the variance of a calibration's labels, as if there were a few more, so that small bands of labels
#: that all were right do not seem certain.
ADDED_VARIANCE = 2.0
#: A notice is given at this many times the level of the alarm.
NOTICE = 4.0
#: E-values that are kept of a test; then every second, and so on.
KEPT = 400
#: Larger e-values are given as e to this power.
LARGEST = 700.0


@dataclass
class EProcess:
    """The capital of bets that outcomes exceed their means, or with odds below 1 fall short of them.

    A bet multiplies its stake by 1 + λ (x − p), where x in [0, 1] is the outcome, p what its mean is said to
    be, and λ = (r − 1) / (1 + (r − 1) p) for odds r times as large: the likelihood ratio of outcomes 0 and 1,
    positive and finite for any p. If p is the mean given all that came before, the capital stays 1 on
    average; if no r is below 1, also where p is above the mean.

    Early losses would hide a change that comes late. So bets start again every `EVERY` outcomes: the k-th
    start brings 6 / (π² k²) of a capital of 1, of which the rest waits.

    Examples
    --------
    >>> process = EProcess(ABOVE)
    >>> for _ in range(10):
    ...     process.update(1.0, 0.5)
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

    def update(self, outcome: float, mean: float) -> None:
        """Settle the bets on an outcome of which the mean was said."""
        if self.n and self.n % EVERY == 0:
            self._start()
        self.n += 1
        self.outcome_sum += outcome
        self.mean_sum += mean
        for place, odds in enumerate(self.odds):
            gain = odds - 1
            self.log_stakes[place] += math.log1p(gain * outcome) - math.log1p(gain * mean)

    def _start(self) -> None:
        part = 6 / (math.pi * (self.n // EVERY + 1)) ** 2
        self.reserve -= part
        share = math.log(part / len(self.odds))
        self.log_stakes = [_log_sum((stake, share)) for stake in self.log_stakes]

    @property
    def log_e(self) -> float:
        """The logarithm of the capital, which is the e-value."""
        return _log_sum((math.log(self.reserve), *self.log_stakes))


@dataclass
class LabelComparison:
    """Whether probabilities are further off, to one side, than the labels of a calibration leave open.

    With d the mean of p − y over the n answers that the map was fitted to and D that over the N labels since,
    of variances V = (Σ p (1 − p) + `ADDED_VARIANCE`) / n² and W = Σ p (1 − p) / N², the B-value is
    (D − d) √V / (V + W): the error of the probabilities as N labels estimate it, in standard errors √V.
    While nothing has changed it moves like a Brownian motion from time 0 to V / (V + W) < 1, whose maximum
    exceeds b with probability 2 (1 − Φ(b)) at most (reflection principle). `share` is that of the level.
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
        """Return the comparison with probabilities (N,) of labeled answers, and which are correct (N,)."""
        variance = (float((p * (1 - p)).sum()) + ADDED_VARIANCE) / len(p) ** 2
        return cls(side, share, float((p - correct).mean()), variance)

    def update(self, outcome: float, mean: float) -> None:
        """Take an outcome and its probability."""
        self.n += 1
        self.outcome_sum += outcome
        self.mean_sum += mean
        self.variance_sum += mean * (1 - mean)
        excess = self.side * ((self.mean_sum - self.outcome_sum) / self.n - self.excess)
        value = excess * math.sqrt(self.variance) / (self.variance + self.variance_sum / self.n**2)
        self.largest = max(self.largest, value)

    @property
    def log_e(self) -> float:
        """The logarithm of one over the p-value, which holds at any time."""
        p_value = max(math.erfc(self.largest / math.sqrt(2)), math.exp(-LARGEST)) / self.share
        return max(0.0, -math.log(p_value))


def _log_sum(logarithms: Sequence[float]) -> float:
    """The logarithm of a sum of which one part at least is above 0."""
    largest = max(logarithms)
    return largest + math.log(math.fsum(math.exp(part - largest) for part in logarithms))


@dataclass
class SequentialTest:
    """One promise, tested after each outcome in several groups of outcomes.

    Of bets the e-value is the mean of those of the groups: the first has half the weight, the others share
    the rest. Of comparisons with labels it is the largest. The alarm is raised where it reaches 1/α, a notice
    is given at 1 / (`NOTICE` α), and both stay. `course` holds `log_e` after each `every` outcomes, of which
    there are fewer than `kept`.
    """

    groups: dict[str, EProcess | LabelComparison]
    alpha: float
    n: int = 0
    alarm_at: int | None = None  # the number of the outcome that raised it
    notice_at: int | None = None
    course: list[float] = field(default_factory=list)
    every: int = 1
    kept: float = KEPT

    def update(self, outcomes: Mapping[str, float], mean: float) -> None:
        """Take the outcome in each group that it belongs to."""
        self.n += 1
        for group, outcome in outcomes.items():
            self.groups[group].update(outcome, mean)
        log_e = self.log_e
        if self.alarm_at is None and log_e >= -math.log(self.alpha):
            self.alarm_at = self.n
        if self.notice_at is None and log_e >= -math.log(NOTICE * self.alpha):
            self.notice_at = self.n
        if self.n % self.every == 0:
            self.course.append(log_e)
        if len(self.course) == self.kept:
            self.course, self.every = self.course[1::2], 2 * self.every

    @property
    def alarm(self) -> bool:
        """Whether the promise was shown not to hold."""
        return self.alarm_at is not None

    @property
    def notice(self) -> bool:
        """Whether there is some evidence that the promise does not hold."""
        return self.notice_at is not None

    @property
    def log_e(self) -> float:
        """The logarithm of the e-value."""
        first, *bands = (process.log_e for process in self.groups.values())
        if not bands:
            return first
        if isinstance(next(iter(self.groups.values())), LabelComparison):
            return max(first, *bands)
        return _log_sum([first, *(log_e - math.log(len(bands)) for log_e in bands)]) - math.log(2)

    @property
    def e_value(self) -> float:
        """How many times rich the bets have become, or one over the p-value; never infinite."""
        return math.exp(min(self.log_e, LARGEST))

    @property
    def strongest(self) -> str:
        """The group with the most evidence."""
        return max(self.groups, key=lambda group: self.groups[group].log_e)
