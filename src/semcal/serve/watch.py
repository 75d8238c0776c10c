"""The watch on the promise: bets against it, on labels in the order in which they come.

A bet that is fair while the promise holds multiplies its stake by a factor of mean 1, so that whoever bets
against a promise that holds gets 1/α times rich with probability α at most, however long it goes on (Ville
1939). Bets on means of bounded outcomes: Waudby-Smith and Ramdas 2024, doi:10.1093/jrsssb/qkad009; on
p-values of exchangeable data: Vovk, Gammerman and Shafer 2022, doi:10.1007/978-3-031-06649-8, chapter 8.

The probabilities of a calibration are not exact: they come of some hundred labels. They are tested against
these labels, by the B-value of Lan and Wittes (1988, doi:10.2307/2531870) for the difference of two means.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from semcal.arrays import Floats, as_option
from semcal.calibration.calibration import Calibration
from semcal.models.distribution import uniforms
from semcal.serve.log import LabelledReply, ReplyLog

#: By how much bets have the odds above what was said; two-sided ones also have them below.
ABOVE = (1.5, 2.5)
BOTH = (*ABOVE, *(1 / odds for odds in ABOVE))
#: The same for p-values, which lie between 0 and 1.
OF_P_VALUES = (3.0, 9.0, 1 / 3, 1 / 9)
#: Outcomes from one start of the bets to the next.
EVERY = 100
#: How likely a watch may be to raise an alarm though the promise holds.
ALPHA = 0.05
#: Probabilities, from one to below the other, that bets watch besides all of them.
BANDS = {f"{low / 5:g} to {(low + 1) / 5:g}": (low / 5, (low + 1) / 5) for low in range(5)}
#: Comparisons with a calibration's labels: the side on which probabilities are off (1: too high), the share
#: of the level, and the probabilities. Most of it goes to those too high, overall and near 1, which do harm.
COMPARED = {
    "too high": (1, 0.55, 0.0, 1.0),
    "too low": (-1, 0.1, 0.0, 1.0),
    "0.5 to 0.9": (1, 0.1, 0.5, 0.9),
    "0.9 to 1": (1, 0.25, 0.9, 1.0),
}
RANGES = {"all": (0.0, 1.0), **BANDS, **{name: (low, high) for name, (*_, low, high) in COMPARED.items()}}
#: Labeled answers that are counted together in the watch on questions: at least so many, in at most 20 bins.
LIKE, MOST_LIKE = 10, 20
#: Added to the variance of a calibration's labels, as if there were a few more, so that small bands of labels
#: that all were right do not seem certain.
ADDED_VARIANCE = 2.0
#: A notice is given at this many times the level of the alarm.
NOTICE = 4.0
#: E-values that are kept of a test; then every second, and so on.
KEPT = 400
#: Larger e-values are given as e to this power.
LARGEST = 700.0

WatchName = Literal["risk", "calibration", "questions"]


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

    def begun_anew(self) -> EProcess:
        """The same bets before any outcome."""
        return EProcess(self.odds)

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
        """The comparison with the map's probabilities (N,) of labeled answers, and which are right (N,)."""
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

    def begun_anew(self) -> LabelComparison:
        """The same comparison before any outcome."""
        return LabelComparison(self.side, self.share, self.excess, self.variance)


def _log_sum(logarithms: Sequence[float]) -> float:
    """The logarithm of a sum of which one part at least is above 0."""
    largest = max(logarithms)
    return largest + math.log(math.fsum(math.exp(part - largest) for part in logarithms))


def _comparisons(calibration: Calibration | None) -> dict[str, LabelComparison]:
    """The comparisons with the labels that a calibration was learned from; a band without labels has none."""
    if calibration is None:
        return {}
    p, correct = _labeled(calibration)
    comparisons = {}
    for name, (side, share, low, high) in COMPARED.items():
        if (chosen := is_within(p, low, high)).any():
            comparisons[name] = LabelComparison.with_labels(side, share, p[chosen], correct[chosen])
    return comparisons


def _labeled(calibration: Calibration) -> tuple[Floats, Floats]:
    """The map's probabilities (N,) of the answers that it was fitted to, and which are right (N,)."""
    return np.array(calibration.labeled.probability, float), np.array(calibration.labeled.correct, float)


def is_within(p: Any, low: float, high: float) -> Any:
    """Whether probabilities lie from `low` to below `high`; 1 belongs to the last."""
    return (p >= low) & ((p < high) | (high == 1.0))


@dataclass
class SequentialTest:
    """One promise, tested after each outcome in several groups of outcomes.

    Of bets the e-value is the mean of those of the groups: the first has half the weight, the others share
    the rest. Of comparisons with labels it is the largest. The alarm is raised where it reaches 1/α, a notice
    is given at 1 / (`NOTICE` α), and both stay. `course` holds `log_e` after each `every` outcomes, of which
    there are fewer than `kept`.
    """

    name: WatchName
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

    def begun_anew(self) -> SequentialTest:
        """The same test before any outcome."""
        groups: Any = {name: process.begun_anew() for name, process in self.groups.items()}
        return SequentialTest(self.name, groups, self.alpha, kept=self.kept)

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


@dataclass
class PromiseWatch:
    """What is watched of a calibration in use, each at a level of its own.

    "risk": wrong among answered, against the promised risk. "calibration": whether of answers with
    probability p the share p is right, overall and in bands of p, as far as the calibration's labels tell.
    "questions", which reads no labels: whether probabilities are distributed as those of the calibration's
    questions were; it never raises the alarm. What is not promised, or cannot be compared, has no test. The
    levels hold if whether and when a label comes does not depend on its value. The state is plain values
    (`dataclasses.asdict`); the same labels in the same order give it again.

    Attributes
    ----------
    tests : dict of str to SequentialTest
    risk : float or None
        What is promised of all answered replies that have a probability or a threshold.
    risks : tuple of (float, float)
        In place of it, thresholds with the risk that each promises; others promise nothing.
    edges, counts : list
        Where the bins of the calibration's probabilities begin, from the second on, and what they hold;
        replies are counted as well.

    Examples
    --------
    >>> watch = PromiseWatch.of(risk=0.1)
    >>> for number in range(60):
    ...     watch.update(LabelledReply(str(number), 0.9, 0.8, False, number % 3 > 0, False))
    >>> watch.alarm, watch.tests["risk"].alarm_at, watch.tests["calibration"].alarm_at
    (True, 22, 31)
    """

    tests: dict[WatchName, SequentialTest]
    risk: float | None = None
    risks: tuple[tuple[float, float], ...] = ()
    edges: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    last_label: int = 0  # the place in the log of the last label that was read
    n_strikes: int = 0  # the times that labels of the log had been struck before

    @classmethod
    def of(
        cls,
        calibration: Calibration | None = None,
        *,
        risk: float | None = None,
        alpha: float = ALPHA,
    ) -> PromiseWatch:
        """The watch on a calibration, or on probabilities and a risk that something else promises.

        A risk that is given is that of all answered replies, and takes the place of the calibration's.
        Probabilities are compared with the calibration's labels; without one they are taken as exact. The
        k-th calibration of a chain, each learnt again from the one before, is watched at the level
        α 6/(π² k²) from k = 2 on, so that all after the first raise a false alarm with .4 α at most.
        """
        for name, share in (("alpha", alpha), ("risk", 0.5 if risk is None else risk)):
            as_option(share, name, "a number between 0 and 1, such as 0.05", low=0, high=1)
        risks: dict[float, float] = {}
        scores: Floats = np.empty(0)  # of the labeled answers, by the map
        if calibration is not None:
            if calibration.ancestors:
                alpha *= 6 / (math.pi * (len(calibration.ancestors) + 1)) ** 2
            # Of several risks with one threshold the strictest counts, which comes last.
            thresholds = reversed(calibration.all_thresholds)
            risks = {at.threshold: at.risk_limit for at in thresholds if at.threshold is not None}
            scores = np.sort(_labeled(calibration)[0])
        groups: dict[WatchName, Any] = {}
        if risk is not None or risks:
            groups["risk"] = {"answered": EProcess(ABOVE)}
        groups["calibration"] = _comparisons(calibration) or {
            group: EProcess(BOTH) for group in ("all", *BANDS)
        }
        edges = np.unique(scores[:: max(LIKE, -(-len(scores) // MOST_LIKE))])[1:]
        if len(edges):
            groups["questions"] = {group: EProcess(OF_P_VALUES) for group in ("level", "spread")}
        tests = {name: SequentialTest(name, parts, alpha) for name, parts in groups.items()}
        counts = np.bincount(np.searchsorted(edges, scores, "right"), minlength=len(edges) + 1)
        return cls(tests, risk, tuple(risks.items()), edges.tolist(), counts.tolist())

    def update(self, reply: LabelledReply) -> None:
        """Take the label of a reply, in the order of their arrival."""
        p, correct = reply.probability, float(reply.correct)
        if not reply.abstained and (risk := self._risk_of(reply)) is not None:
            self.tests["risk"].update({"answered": 1 - correct}, risk)
        if p is not None:
            test = self.tests["calibration"]
            test.update({name: correct for name in test.groups if is_within(p, *RANGES[name])}, p)

    def _risk_of(self, reply: LabelledReply) -> float | None:
        """The risk that was promised of a reply, if it was answered; None where nothing was."""
        if self.risk is not None:
            covered = reply.probability is not None or reply.threshold is not None
            return self.risk if covered else None
        return next((risk for threshold, risk in self.risks if threshold == reply.threshold), None)

    def observe(self, probability: float) -> None:
        """Take the probability of a reply, labelled or not.

        Its p-value among the calibration's probabilities and those before it is uniform and independent of
        others while all are exchangeable; ties are broken by random numbers.
        """
        if "questions" not in self.tests:
            return
        test, place = self.tests["questions"], bisect_right(self.edges, probability)
        self.counts[place] += 1
        u = float(uniforms(0, "questions", m=1, steps=1, first=test.n)[0, 0])
        p_value = (sum(self.counts[:place]) + u * self.counts[place]) / sum(self.counts)
        test.update({"level": p_value, "spread": abs(2 * p_value - 1)}, 0.5)

    def leave_out_questions(self) -> None:
        """Do not watch questions: with a fallback, probabilities lack what the first model abstained from."""
        self.tests.pop("questions", None)

    def read(self, log: ReplyLog, calibrations: Sequence[str], *, audited: bool = False) -> None:
        """Take what a log holds of replies by these calibrations, and their labels or the audited ones."""
        if log.n_routes > 1:
            self.leave_out_questions()
        for probability in log.probabilities(calibrations):
            self.observe(probability)
        self.read_labels(log, calibrations, audited=audited)

    def read_labels(self, log: ReplyLog, calibrations: Sequence[str], *, audited: bool = False) -> None:
        """Take the labels since the last one; all of them again if some were struck since.

        The tests then change when all are read: until that replies are answered by the ones from before.
        """
        n_strikes, watch = log.n_strikes, self
        if n_strikes != self.n_strikes:
            tests = {name: test.begun_anew() for name, test in self.tests.items()}
            tests.pop("questions", None)  # which reads no labels
            watch = replace(self, tests=tests, last_label=0)
        for reply in log.labelled(calibrations, audited=audited, after=watch.last_label):
            watch.update(reply)
            watch.last_label = reply.number
        if watch is not self:
            self.last_label, self.n_strikes = watch.last_label, n_strikes
            for name, test in watch.tests.items():
                vars(self.tests[name]).update(vars(test))

    @property
    def alarm(self) -> bool:
        """Whether a promise was shown not to hold."""
        return any(test.alarm for name, test in self.tests.items() if name != "questions")

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Each test as JSON shows it; that of questions reads replies, and raises no alarm."""
        lines = []
        for name, test in self.tests.items():
            if name == "questions":
                values = {"warning": test.alarm, "replies": test.n, "warning_at": test.alarm_at}
            else:
                values = {"alarm": test.alarm, "labels": test.n, "alarm_at": test.alarm_at}
                values |= {"notice_at": test.notice_at}
            lines.append({"watch": name, **values, "e_value": test.e_value})
        return lines

    @property
    def courses(self) -> list[dict[str, Any]]:
        """The same, with where an alarm is raised and the logarithms of e-values from the first on."""
        return [
            {**line, "limit": 1 / test.alpha, "every": test.every, "log_e": [0.0, *test.course]}
            for line, test in zip(self.lines, self.tests.values())
        ]
