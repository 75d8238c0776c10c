"""The watch on the promise: bets against it, on labels in order of arrival.

The probabilities of a calibration are learned from some hundred labels, so they are not exact. Therefore the
watch compares new labels with these labels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal

import numpy as np

from semcal.calibration.calibration import DECIMALS, Calibration
from semcal.calibration.fields import FieldCalibration
from semcal.metrics.sequential import ABOVE, BOTH, OF_P_VALUES, EProcess, LabelComparison, SequentialTest
from semcal.models.distribution import uniforms
from semcal.reply_log import LabelledReply, ReplyLog

#: Maximum probability that a watch raises a false alarm.
ALPHA = 0.05
#: Bands of probabilities that bets watch besides all probabilities; ends are exclusive.
BANDS = {f"{low / 5:g} to {(low + 1) / 5:g}": (low / 5, (low + 1) / 5) for low in range(5)}
#: Comparisons with a calibration's labels: the side of the error (1: probabilities too high), the share of
#: the level, and the band. Harmful errors have most of the level: too high overall, and too high near 1.
COMPARED = {
    "too high": (1, 0.55, 0.0, 1.0),
    "too low": (-1, 0.1, 0.0, 1.0),
    "0.5 to 0.9": (1, 0.1, 0.5, 0.9),
    "0.9 to 1": (1, 0.25, 0.9, 1.0),
}
RANGES = {"all": (0.0, 1.0), **BANDS, **{name: (low, high) for name, (*_, low, high) in COMPARED.items()}}
#: Largest number of answers in a file whose probabilities are compared with the calibration's.
MOST_OBSERVED = 5000
#: Minimum number of labeled answers in a bin of the watch on questions; there are at most 20 bins.
LIKE, MOST_LIKE = 10, 20
#: Number of random numbers that are made together.
STEPS = 1000
#: Number of replies or labels of a log that are added together.
BATCH = 10_000
WatchName = Literal["risk", "calibration", "questions"]


def is_within(p: Any, low: float, high: float) -> Any:
    """Return whether probabilities are in [low, high), or in [low, 1]."""
    return (p >= low) & ((p < high) | (high == 1.0))


@dataclass
class PromiseWatch:
    """Sequential tests on a calibration in use, each with its own level.

    "risk" compares the share of wrong answers among answered questions with the promised risk. "calibration"
    tests whether the share p of answers with probability p is correct, overall and in bands of p, compared
    with the calibration's labels. "questions" needs no labels: it tests whether probabilities have the
    distribution of the calibration's questions, and never raises the alarm. There is no test without a
    promise or a comparison. The levels hold if the arrival of a label does not depend on its value.

    Examples
    --------
    >>> watch = PromiseWatch.of(risk=0.1)
    >>> for number in range(60):
    ...     watch.update(LabelledReply(str(number), 0.9, 0.8, False, number % 3 > 0, False))
    >>> watch.alarm, watch.tests["risk"].alarm_at, watch.tests["calibration"].alarm_at
    (True, 22, 31)
    """

    tests: dict[WatchName, SequentialTest]
    risk: float | None = None  # of all answered replies that have a probability or a threshold
    risks: tuple[tuple[float, float], ...] = ()  # instead: thresholds with their promised risks
    edges: list[float] = field(default_factory=list)  # of the second and further bins
    counts: list[int] = field(default_factory=list)  # of labeled answers and replies in each bin
    last_label: int = 0  # place of the last read label in the log
    n_strikes: int = 0  # number of earlier strikes in the log
    begun: dict[WatchName, SequentialTest] = field(default_factory=dict)  # tests before any outcome

    @classmethod
    def of(
        cls,
        calibration: Calibration | FieldCalibration | None = None,
        *,
        risk: float | None = None,
        alpha: float = ALPHA,
    ) -> PromiseWatch:
        """Return the watch on a calibration, or on probabilities and a promised risk.

        A calibration of fields is watched by whole documents.

        A given risk applies to all answered replies, and replaces the calibration's risk. Probabilities are
        compared with the calibration's labels; without a calibration, they count as exact. In a chain of
        calibrations, each learned from the one before, the k-th has the level α 6/(π² k²) from k = 2 on, so
        that all after the first raise a false alarm with probability 0.4 α at most.
        """
        risks: dict[float, float] = {}
        p = correct = np.empty(0)  # probabilities of labeled answers by the map, and their correctness
        if calibration is not None:
            if calibration.ancestors:
                alpha *= 6 / (math.pi * (len(calibration.ancestors) + 1)) ** 2
            # Of several risks with one threshold the strictest counts, which comes last; if a feature decides
            # and only probabilities are equal, that of the loosest score.
            all_thresholds = reversed(calibration.all_thresholds)
            thresholds = sorted(all_thresholds, key=lambda at: at.threshold_score or 0.0, reverse=True)
            risks = {at.threshold: at.risk_limit for at in thresholds if at.threshold is not None}
            labeled = calibration.labeled
            p, correct = np.array(labeled.probability, float), np.array(labeled.correct, float)
        groups: dict[WatchName, Any] = {}
        if risk is not None or risks:
            groups["risk"] = {"answered": EProcess(ABOVE)}
        groups["calibration"] = {
            name: LabelComparison.with_labels(side, share, p[within], correct[within])
            for name, (side, share, low, high) in COMPARED.items()
            if (within := is_within(p, low, high)).any()
        } or {name: EProcess(BOTH) for name in ("all", *BANDS)}
        scores = np.sort(np.round(p, DECIMALS))  # rounding must not part equal probabilities
        edges = np.unique(scores[:: max(LIKE, -(-len(scores) // MOST_LIKE))])[1:]
        if len(edges):
            groups["questions"] = {group: EProcess(OF_P_VALUES) for group in ("level", "spread")}
        tests = {name: SequentialTest(parts, alpha) for name, parts in groups.items()}
        counts = np.bincount(np.searchsorted(edges, scores, "right"), minlength=len(edges) + 1)
        bins = edges.tolist(), counts.tolist()
        return cls(tests, risk, tuple(risks.items()), *bins, begun=deepcopy(tests))

    def update(self, *replies: LabelledReply) -> None:
        """Add the labels of replies, in order of arrival."""
        correct = np.array([reply.correct for reply in replies], float)
        risks = np.array([self._risk_of(reply) for reply in replies], float)
        if (promised := ~np.isnan(risks)).any():
            self.tests["risk"].update({"answered": 1 - correct[promised]}, risks[promised])
        p = np.array([reply.probability for reply in replies], float)
        p, correct = p[known := ~np.isnan(p)], correct[known]
        test = self.tests["calibration"]
        test.update({name: np.where(is_within(p, *RANGES[name]), correct, np.nan) for name in test.groups}, p)

    def _risk_of(self, reply: LabelledReply) -> float | None:
        """Return the promised risk of a reply, None without a promise or if it abstained."""
        if reply.abstained:
            return None
        if self.risk is not None:
            covered = reply.probability is not None or reply.threshold is not None
            return self.risk if covered else None
        return next((risk for threshold, risk in self.risks if threshold == reply.threshold), None)

    def observe(self, *probabilities: float) -> None:
        """Add the probabilities of replies, labeled or not.

        The p value of a probability among earlier ones, including the calibration's, is uniform and
        independent if all are exchangeable; random numbers break ties.
        """
        if "questions" not in self.tests or not probabilities:
            return
        test, at = self.tests["questions"], np.arange(len(probabilities))
        places = np.searchsorted(self.edges, np.round(probabilities, DECIMALS), "right")
        counts = self.counts + np.cumsum(places[:, None] == np.arange(len(self.counts)), axis=0)  # (N, bins)
        self.counts = counts[-1].tolist()
        first, skipped = divmod(test.n, STEPS)
        m = 1 + (skipped + len(at)) // STEPS
        u = uniforms(0, "questions", m=m, steps=STEPS, first=first).ravel()[skipped : skipped + len(at)]
        up_to, same = np.cumsum(counts, axis=1), counts[at, places]
        p_values = (up_to[at, places] - (1 - u) * same) / up_to[:, -1]
        test.update({"level": p_values, "spread": abs(2 * p_values - 1)}, np.full(len(at), 0.5))

    def leave_out_questions(self) -> None:
        """Remove the test of questions: with a fallback, probabilities of abstained replies are missing."""
        self.tests.pop("questions", None)

    def read(self, log: ReplyLog, calibrations: Sequence[str], *, audited: bool = False) -> None:
        """Add the replies by these calibrations in a log, and their labels (or audited labels)."""
        if log.n_routes > 1:
            self.leave_out_questions()
        replies = log.probabilities(calibrations)
        while batch := list(islice(replies, BATCH)):
            self.observe(*(probability for _, probability in batch))
        self.n_strikes = log.n_strikes
        self.read_labels(log, calibrations, audited=audited)

    def read_labels(self, log: ReplyLog, calibrations: Sequence[str], *, audited: bool = False) -> None:
        """Add the labels since the last one, or all labels again if some were struck since.

        In the second case the tests change after all labels are read, because replies are sent meanwhile.
        """
        n_strikes, watch = log.n_strikes, self
        if n_strikes != self.n_strikes:
            labeled: list[WatchName] = [name for name in self.tests if name != "questions"]
            watch = replace(self, tests={name: deepcopy(self.begun[name]) for name in labeled}, last_label=0)
        labelled = log.labelled(calibrations, audited=audited, after=watch.last_label)
        while replies := list(islice(labelled, BATCH)):
            watch.update(*replies)
            watch.last_label = replies[-1].number
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
            f"after {test.alarm_at:,} answers, the probabilities differ from those of the labeled questions, "
            "and may not hold here. A sorted file, for example by topic, has the same effect: shuffle it to "
            "check. For other questions, label 30 to 200 rows, and move the calibration to them (semcal "
            "calibrate LABELED --from DIR --out NEW)"
        )

    @property
    def alarm(self) -> bool:
        """True if a promise was shown not to hold."""
        return any(test.alarm for name, test in self.tests.items() if name != "questions")

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Return each test for JSON; the test of questions has replies instead of labels, and no alarm."""
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
        """Return `lines` with the limit of alarms and the logarithms of all e-values."""
        return [
            {**line, "limit": 1 / test.alpha, "every": test.every, "log_e": [0.0, *test.course]}
            for line, test in zip(self.lines, self.tests.values())
        ]


def find_shift(calibration: Calibration, probabilities: Iterable[float | None]) -> str | None:
    """Return the advice of `PromiseWatch.shift` for the first probabilities of a file, or None."""
    watch = PromiseWatch.of(calibration)
    watch.observe(*islice((p for p in probabilities if p is not None), MOST_OBSERVED))
    return watch.shift
