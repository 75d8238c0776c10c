"""Thresholds of a calibration: held-out questions, one threshold for each risk, and what can be certified."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from semcal import metrics
from semcal.arrays import Floats
from semcal.calibration.calibration import APART, Calibration, CalibrationConfig, Threshold, Uncertified
from semcal.errors import FitError
from semcal.metrics.frequencies import Groups
from semcal.metrics.probability_maps import MOST

#: If no threshold is shown: the risks that are tried, and multiples of the number of labels with resamples,
#: of which so many must have a threshold.
RISKS, TIMES, RESAMPLES, LIKELY = tuple(cents / 100 for cents in range(1, 50)), (1.5, 2, 3, 5, 8, 12), 20, 0.8


def kept_apart(n: int, groups: Groups | None, seed: int) -> NDArray[np.bool_]:
    """Return the mask of held-out questions: two in five of n, in whole groups; FitError if impossible."""
    label = np.arange(n) if groups is None else groups
    sizes = np.bincount(label)
    if sizes.max() > max(1, APART * n):
        raise FitError(
            f"risk: {sizes.max()} of {n} labeled questions share a passage or group, and a threshold needs "
            "two in five questions of other groups. Label questions of more groups, or leave the risk out"
        )
    room, held_out = APART * n, []
    for group in np.random.default_rng([seed, 2]).permutation(len(sizes)):
        if sizes[group] <= room:
            held_out.append(group)
            room -= sizes[group]
    return np.isin(label, held_out)


def set_threshold(
    scores: Floats, correct: Floats, risk: float, delta: float, *, groups: Groups | None = None, seed: int = 0
) -> Threshold:
    """Return the smallest threshold for which N labeled questions, which chose no score, show the risk."""
    test = metrics.label_free_threshold(
        scores, correct, risk_limit=risk, delta=delta, groups=groups, seed=seed
    )
    bound = None if np.isnan(test.upper_bound) else test.upper_bound
    counts = test.questions, test.answered, test.errors
    needed = test.questions_needed, test.least_risk
    return Threshold(test.threshold, risk, delta, *counts, bound, *needed, groups=test.groups, test=test.test)


def with_outlook(
    threshold: Threshold,
    scores: Floats,
    correct: Floats,
    level: float,
    *,
    groups: Groups | None = None,
    seed: int = 0,
) -> Threshold:
    """Add what can be certified to a risk without a threshold, from N labeled questions tested at `level`.

    With an error rate μ, the correct answers and as many wrong ones as the risk r allows are at most
    (1 − μ) / (1 − r) of the questions. The number of questions that is needed is found by resampling.
    """
    if threshold.threshold is not None:
        return threshold
    risk, every, n = threshold.risk_limit, np.arange(len(correct)), len(correct)
    of_group = every if groups is None else np.unique(groups, return_inverse=True)[1]
    members = np.split(np.argsort(of_group, kind="stable"), np.cumsum(np.bincount(of_group))[:-1])
    rng = np.random.default_rng([seed, 7])

    def shows(risk: float, drawn: Sequence[NDArray[np.intp]]) -> bool:
        at = np.concatenate(drawn)
        names = None if groups is None else np.repeat(np.arange(len(drawn)), list(map(len, drawn)))
        test = metrics.label_free_threshold(
            scores[at], correct[at], risk_limit=risk, delta=level, groups=names, seed=seed
        )
        return test.threshold is not None

    def is_likely(times: float) -> bool:
        size = round(times * len(members))
        draws = (rng.integers(len(members), size=size) for _ in range(RESAMPLES))
        return sum(shows(risk, [members[i] for i in drawn]) for drawn in draws) >= LIKELY * RESAMPLES

    times = next((times for times in TIMES if is_likely(times)), None)
    order = np.argsort(-scores, kind="stable")
    wrong = np.cumsum(1 - correct[order])
    is_last = np.append(np.diff(scores[order]) != 0, True) & np.isfinite(scores[order])
    kept = np.flatnonzero(is_last & (wrong <= risk * np.arange(1, n + 1)))[-1:].tolist()
    return replace(
        threshold,
        questions_needed=None if times is None else math.ceil(times * len(members)),
        least_risk=next((r for r in RISKS if r > risk and shows(r, members)), None),
        refused=max(0.0, float((1 - correct.mean() - risk) / (1 - risk))),
        kept=Uncertified(float(scores[order[kept[0]]]), kept[0] + 1, int(wrong[kept[0]])) if kept else None,
    )


@dataclass(frozen=True)
class ThresholdLabels:
    """The labels of N answers that test thresholds."""

    order: Floats  # (N,), the scores that order the answers
    correct: Floats  # (N,), their grades, 0 or 1
    groups: Groups | None = None  # (N,), of answers that depend on each other
    n_orderings: int = 1  # from which labels chose this one; divides the level of each test
    shown: Floats | None = None  # (N,), the values in which thresholds are stated, if not those of `order`
    ordering: str | None = None  # the feature that orders the answers, if no label chose it
    n_tested: int | None = None  # questions, or groups, with those without an answer; by default N


def set_thresholds(
    labels: ThresholdLabels, risks: Sequence[float], delta: float, *, seed: int = 0, explain: bool = True
) -> tuple[Threshold, ...]:
    """Return the threshold of each risk, strictest first; all hold together with probability 1 − `delta`.

    Each of k risks is tested at `delta` / k, divided by the number of orderings from which labels chose. If a
    smaller risk holds from a lower threshold, the larger risk takes this threshold as well, so that no
    threshold exceeds a stricter one. If other values are `shown`, the tested thresholds are
    `threshold_score`, and `threshold` is the smallest shown value of a given answer. `explain` adds what can
    be certified to a risk without a threshold.
    """
    order, correct, shown = labels.order, labels.correct, labels.shown
    level = delta / len(risks)
    of_test = level / labels.n_orderings
    thresholds: list[Threshold] = []
    for risk in risks:
        found = set_threshold(order, correct, risk, of_test, groups=labels.groups, seed=seed)
        stricter = thresholds[-1] if thresholds else found
        held = [one.threshold for one in (found, stricter) if one.threshold is not None]
        if held and found.threshold != min(held):
            found = replace(stricter, risk_limit=risk)
        if explain:
            found = with_outlook(found, order, correct, of_test, groups=labels.groups, seed=seed)
        thresholds.append(replace(found, delta=level))
    return tuple(
        one
        if shown is None or one.threshold is None
        else replace(one, threshold_score=one.threshold, threshold=float(shown[order >= one.threshold].min()))
        for one in thresholds
    )


def with_thresholds(
    calibration: Calibration, labels: ThresholdLabels, config: CalibrationConfig, *, seed: int
) -> Calibration:
    """Return the calibration with the thresholds of the risks of `config`, tested on the labels."""
    is_fast = len(labels.correct) <= MOST  # resamples of more labels take minutes, and add nothing
    found = set_thresholds(labels, config.risks, config.delta, seed=seed, explain=is_fast)
    n_tested = len(labels.correct) if labels.n_tested is None else labels.n_tested
    thresholds = tuple(
        threshold
        if threshold.test == "betting"
        else replace(
            threshold,
            n=n_tested,
            questions_needed=threshold.questions_needed
            and -(-threshold.questions_needed * n_tested // threshold.n),
        )
        for threshold in found
    )
    several_risks = thresholds if len(thresholds) > 1 else ()
    return replace(calibration, threshold=thresholds[-1], thresholds=several_risks, ordering=labels.ordering)
