"""The watch on the promise: bets against it, on labels in the order in which they come.

The probabilities of a calibration are not exact: they come of some hundred labels. So they are tested against
these labels.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal

import numpy as np

from semcal.arrays import Floats, as_option
from semcal.calibration.calibration import Calibration
from semcal.calibration.map_report import DECIMALS
from semcal.metrics.sequential import ABOVE, BOTH, OF_P_VALUES, EProcess, LabelComparison, SequentialTest
from semcal.models.distribution import uniforms
from semcal.reply_log import LabelledReply, ReplyLog

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
#: Answers of a file whose probabilities are compared with the calibration's.
MOST_OBSERVED = 5000
#: Labeled answers that are counted together in the watch on questions: at least so many, in at most 20 bins.
LIKE, MOST_LIKE = 10, 20
WatchName = Literal["risk", "calibration", "questions"]


def is_within(p: Any, low: float, high: float) -> Any:
    """Whether probabilities lie from `low` to below `high`; 1 belongs to the last."""
    return (p >= low) & ((p < high) | (high == 1.0))


def _comparisons(p: Floats, correct: Floats) -> dict[str, LabelComparison]:
    """The comparisons with the map's probabilities (N,) of labeled answers, and which are correct (N,).

    A band without labels has none.
    """
    within = {name: is_within(p, low, high) for name, (*_, low, high) in COMPARED.items()}
    return {
        name: LabelComparison.with_labels(side, share, p[within[name]], correct[within[name]])
        for name, (side, share, *_) in COMPARED.items()
        if within[name].any()
    }


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
    begun: dict[WatchName, SequentialTest] = field(default_factory=dict)  # the tests before any outcome

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
        p = correct = np.empty(0)  # the map's probabilities of labeled answers, and which are correct
        if calibration is not None:
            if calibration.ancestors:
                alpha *= 6 / (math.pi * (len(calibration.ancestors) + 1)) ** 2
            # Of several risks with one threshold the strictest counts, which comes last.
            thresholds = reversed(calibration.all_thresholds)
            risks = {at.threshold: at.risk_limit for at in thresholds if at.threshold is not None}
            labeled = calibration.labeled
            p, correct = np.array(labeled.probability, float), np.array(labeled.correct, float)
        groups: dict[WatchName, Any] = {}
        if risk is not None or risks:
            groups["risk"] = {"answered": EProcess(ABOVE)}
        groups["calibration"] = _comparisons(p, correct) or {name: EProcess(BOTH) for name in ("all", *BANDS)}
        scores = np.sort(np.round(p, DECIMALS))  # rounding must not part equal probabilities
        edges = np.unique(scores[:: max(LIKE, -(-len(scores) // MOST_LIKE))])[1:]
        if len(edges):
            groups["questions"] = {group: EProcess(OF_P_VALUES) for group in ("level", "spread")}
        tests = {name: SequentialTest(parts, alpha) for name, parts in groups.items()}
        counts = np.bincount(np.searchsorted(edges, scores, "right"), minlength=len(edges) + 1)
        bins = edges.tolist(), counts.tolist()
        return cls(tests, risk, tuple(risks.items()), *bins, begun=deepcopy(tests))

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
        rounded = float(np.round(probability, DECIMALS))
        test, place = self.tests["questions"], bisect_right(self.edges, rounded)
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
        self.n_strikes = log.n_strikes
        self.read_labels(log, calibrations, audited=audited)

    def read_labels(self, log: ReplyLog, calibrations: Sequence[str], *, audited: bool = False) -> None:
        """Take the labels since the last one; all of them again if some were struck since.

        In that case the tests change when all labels are read, since replies are given meanwhile.
        """
        n_strikes, watch = log.n_strikes, self
        if n_strikes != self.n_strikes:
            labeled: list[WatchName] = [name for name in self.tests if name != "questions"]
            watch = replace(self, tests={name: deepcopy(self.begun[name]) for name in labeled}, last_label=0)
        for reply in log.labelled(calibrations, audited=audited, after=watch.last_label):
            watch.update(reply)
            watch.last_label = reply.number
        if watch is not self:
            self.last_label, self.n_strikes = watch.last_label, n_strikes
            for name, test in watch.tests.items():
                vars(self.tests[name]).update(vars(test))

    @property
    def shift(self) -> str | None:
        """The advice if the probabilities are distributed otherwise than the calibration's; None if not."""
        test = self.tests.get("questions")
        if test is None or test.alarm_at is None:
            return None
        return (
            f"from answer {test.alarm_at:,} on, the probabilities are distributed otherwise than for the "
            "labeled questions of the calibration, and may not hold here. Label 30 to 200 of these rows, and "
            "move the calibration to them (semcal calibrate LABELED --from DIR --out NEW)"
        )

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


def find_shift(calibration: Calibration, probabilities: Iterable[float | None]) -> str | None:
    """Return the advice of `PromiseWatch.shift` for the first probabilities of a file, or None."""
    watch = PromiseWatch.of(calibration)
    for probability in islice((p for p in probabilities if p is not None), MOST_OBSERVED):
        watch.observe(probability)
    return watch.shift
