"""Thresholds with a guarantee: the error rate of the answers is at most r with probability 1 - δ."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from semcal.arrays import Floats, as_numbers, as_option
from semcal.errors import UsageError
from semcal.metrics.frequencies import (
    GroupLabels,
    Groups,
    as_correct,
    as_groups,
    as_probabilities,
    as_scores,
    check_same_length,
    shared_table,
)

TestName = Literal["exact", "betting"]
#: Default thresholds, fixed before any label is seen.
GRID = np.arange(101) / 100
#: Without a given start, one in so many questions is set aside to choose the start.
ASIDE = 5
#: With all labels, testing starts at the strictest score that this share of the questions reaches; in a
#: betting test, this share of the members of the groups that are set aside.
FIRST, FIRST_OF_MEMBERS = 0.2, 0.3
#: A second test with all labels starts at the strictest score that this share of the questions reaches, with
#: this share of δ, if so many answers may include one error.
STRICT, STRICT_DELTA = 0.05, 0.2
#: Bets are placed on whole groups from so many times as many groups as answers without errors are needed. One
#: group in so many is set aside for the tested scores, the number of members and the first stakes.
BETTING, GROUPS_ASIDE = 8, 10
#: Largest number of scores that are tested by betting, and stakes as multiples of the likeliest best one.
MOST_TESTED, STAKES = 40, np.array([0.35, 0.6, 1.0, 1.5])
#: Largest number of scores that are tested without groups, at evenly spaced ranks.
MOST_SCORES = 1000
#: Halvings of the interval that contains the bound of a betting test.
BISECTIONS = 12
#: The two promises for groups: for the exact test on one question of each, and for bets on all of them.
OF_GROUPS = (
    " for a random question of a new group, which is not promised for all questions of new groups",
    " for all questions of new groups, which is not promised for a random question of a new group",
)
#: Multiple of the minimum number of questions from which a failure means that no threshold passes.
PLENTY = 3
#: Risk limits from here on are of no use.
USELESS = 0.5
#: Maximum number of errors for which the needed number of questions is computed.
LARGEST_ERRORS = 1000


@dataclass(frozen=True, eq=False)
class RiskControlledThreshold:
    """The loosest threshold with a proven error rate of at most `risk_limit`.

    If the confidence is at least `threshold`, the error rate of the answers is at most `risk_limit` with
    probability at least 1 - `delta`. `threshold` is None if no threshold is proven. `answered` is the number
    of questions at or above the threshold, `coverage` their share, and `errors` their wrong answers.
    `upper_bound` is the upper confidence bound at level 1 - delta on their error rate (NaN without a
    threshold). `tested_...`, shape (T,), hold the tested thresholds, strictest first, up to the first that
    failed. `questions` were tested, and `aside` were used to choose the start. Without a threshold,
    `least_risk` is the smallest bound at any threshold.
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
    questions: int
    questions_needed: int | None
    aside: int = 0
    least_risk: float | None = None
    groups: int | None = None  # the number of tested groups; None if no two questions share one
    test: TestName = "exact"  # "betting" on all members of groups, or "exact" on one of each

    @property
    def sentence(self) -> str:
        """The promise of the threshold, or the reason why there is none."""
        return threshold_sentence(self, self.questions, self.aside)


@dataclass(frozen=True)
class _Promise:
    """An error rate of at most `risk` with probability 1 - `delta`."""

    risk: float
    delta: float

    def __post_init__(self) -> None:
        for name, share in {"risk_limit": self.risk, "delta": self.delta}.items():
            as_option(share, name, "a number between 0 and 1, such as 0.05", low=0, high=1)

    @property
    def fewest(self) -> float:
        """Number of answers without errors that prove a threshold."""
        return float(np.log(self.delta) / np.log1p(-self.risk))

    def upper_bound(self, errors: Floats, answered: Floats) -> Floats:
        """Return the exact (Clopper-Pearson) upper bound on an error rate; 1 if all answers are errors."""
        right = answered - errors
        bound = scipy.special.betaincinv(errors + 1, np.where(right > 0, right, 1.0), 1 - self.delta)
        return np.where(right > 0, bound, 1.0)

    def questions_needed(
        self, answered: Floats, errors: Floats, strict: NDArray[np.bool_], n: int
    ) -> int | None:
        """Return the needed number of questions instead of n, at the `strict` thresholds."""
        count, wrong, enough = answered[strict], errors[strict], answered >= self.fewest
        needed = self._least_number(count, wrong, wrong, n)
        if needed is not None:
            return needed
        if enough.any():  # do the thresholds that could pass prove the surest answers wrong too often?
            surest = int(enough.argmax())
            count_there = answered[surest].astype(np.int64)
            too_many = scipy.special.bdtrc(errors[surest] - 1, count_there, self.risk) <= self.delta
            if too_many or answered[-1] >= PLENTY * self.fewest:
                return None
        return self._least_number(count, 0 * wrong, wrong if enough.any() else 0 * wrong, n)

    def _least_number(self, answered: Floats, errors: Floats, spent: Floats, n: int) -> int | None:
        """Smallest number at which a threshold passes at its coverage and error rate, with `spent` errors."""
        allowed, least = np.arange(LARGEST_ERRORS), _least_answered(self.risk, self.delta)
        some = slice(None, None, 1 + len(answered) // MOST_SCORES)
        count, wrong, at_least = answered[some, None], errors[some, None], spent[some, None]
        passes = (least * wrong <= allowed * count) & (allowed >= at_least)  # (T, errors)
        needed = (least[passes.argmax(1)] * n / count[:, 0])[passes.any(1)]
        return max(math.ceil(needed.min() - 1e-9), n + 1) if len(needed) else None


@lru_cache
def _least_answered(risk: float, delta: float) -> Floats:
    """Return the least number of answers that prove a risk with 0, 1, … errors."""
    errors = np.arange(LARGEST_ERRORS)
    right = np.ceil(scipy.special.nbdtrik(1 - delta, errors + 1, risk) - 1e-9)
    return np.asarray(errors + 1 + right)


def tested_units(tested: Any, questions: int) -> tuple[int, str]:
    """Return the number of independent units that tested a threshold, and their name."""
    if tested.groups is None:
        return questions, "questions"
    return tested.groups if tested.test == "betting" else questions, "groups of questions"


def threshold_sentence(tested: Any, questions: int, aside: int = 0) -> str:
    """Describe the promise of a threshold, or the reason why there is none.

    `tested` is a `RiskControlledThreshold`, or the threshold of a calibration with the same attributes.
    """
    limit = f"{100 * tested.risk_limit:.3g}%"
    if tested.threshold is not None:
        about = "" if tested.groups is None else OF_GROUPS[tested.test == "betting"]
        sure = f"{100 * (1 - tested.delta):.3g}% confidence"
        return (
            f"threshold {tested.threshold:.4g}: answers {100 * tested.answered / questions:.0f}% of questions"
            f"; at most {limit} of those answers are wrong{about} ({sure})"
        )
    n, units = tested_units(tested, questions + aside)
    none = f"no threshold: these {n:,} {units} do not prove at most {limit} wrong answers"
    if tested.questions_needed is not None:
        about = "at least" if questions < _Promise(tested.risk_limit, tested.delta).fewest else "about"
        return f"{none}; {about} {tested.questions_needed:,} {units} are needed"
    if tested.test == "betting" and getattr(tested, "refused", None) is None:
        return none  # the effect of more questions is unknown
    why = f"{none}, and more questions would hardly help: too many of the surest answers are wrong"
    if tested.least_risk is None or tested.least_risk >= USELESS:
        return f"{why}, at any useful risk. Ask easier questions, or use a larger model."
    return f"{why}. Allow a larger risk (about {100 * tested.least_risk:.0f}% or more)."


def risk_controlled_threshold(
    confidence: ArrayLike,
    correct: ArrayLike,
    *,
    risk_limit: float,
    delta: float = 0.05,
    thresholds: ArrayLike | None = None,
    start: float | None = None,
    groups: GroupLabels | None = None,
    seed: int = 0,
) -> RiskControlledThreshold:
    r"""Find the loosest threshold with an error rate of at most r, with probability 1 - δ.

    Thresholds t are tested from strict to loose, each by the exact binomial upper bound on its error rate.
    With e(t) errors among the n(t) answered questions, t passes if

    .. math:: \mathrm{Beta}^{-1}(1 - \delta;\; e + 1,\, n - e) \le r.

    The first threshold was fixed before these questions were seen. Testing stops at the first failure, and
    the last threshold that passed is the result. The number of thresholds needs no correction, because each
    is tested only after all stricter thresholds passed (fixed-sequence testing). A start chosen from the
    tested questions, even from their confidences alone, would break the guarantee.

    Source: Bauer (1991), Multiple testing in clinical trials, Statistics in Medicine 10. Angelopoulos, Bates,
    Candès, Jordan and Lei (2025), Learn then Test: Calibrating predictive algorithms to achieve risk control,
    Annals of Applied Statistics 19. Clopper and Pearson (1934), Biometrika 26.

    Parameters
    ----------
    confidence : array_like of float, shape (N,)
        Probabilities. If `thresholds` are given, any score is allowed (larger means surer).
    correct : array_like of bool, shape (N,)
        Correctness for questions with the distribution of future questions, on which nothing was fitted.
    risk_limit : float
        Maximum error rate r of the answers, in (0, 1).
    delta : float
        Allowed probability that the error rate exceeds r, in (0, 1).
    thresholds : array_like of float, optional
        A grid chosen without `correct`; 0, 0.01, ..., 1 by default.
    start : float, optional
        Testing begins at the strictest threshold up to this value, which must not come from these questions
        (see `likeliest_start`). By default, a fifth of them, chosen by `seed`, is set aside to choose it.
    groups : sequence of N labels, optional
        Labels of questions that are not independent. One question of each group, chosen by `seed`, counts, so
        that the bound is exact for a random question of a new group.

    Returns
    -------
    RiskControlledThreshold
        `threshold` is None if no threshold passes. `questions_needed` is then the smallest number of
        questions with which some threshold would pass at its present coverage and error rate, or, if all
        error rates are r or more, could pass at all. It is None if the questions show that even the surest
        answers are wrong too often: 3 times as many answers, or an exact binomial test at level δ.

    Raises
    ------
    InputError
        Empty input, lengths that differ (that of `groups` too), a confidence that is NaN (or outside [0, 1]
        with the default grid).
    UsageError
        `risk_limit` or `delta` outside (0, 1); no thresholds, or NaN among them; a start below all of them.

    Examples
    --------
    >>> confidence = [0.95] * 100 + [0.6] * 100
    >>> correct = [True] * 99 + [False] + [True] * 60 + [False] * 40
    >>> result = risk_controlled_threshold(confidence, correct, risk_limit=0.05, start=0.9)
    >>> result.threshold, result.answered, result.errors, round(result.upper_bound, 4)
    (0.61, 100, 1, 0.0466)
    >>> result.sentence
    'threshold 0.61: answers 50% of questions; at most 5% of those answers are wrong (95% confidence)'
    >>> risk_controlled_threshold(confidence, correct, risk_limit=0.02, start=0.9).sentence
    'no threshold: these 200 questions ... at most 2% wrong answers; about 1,180 questions are needed'
    """
    promise = _Promise(risk_limit, delta)
    values = as_probabilities(confidence) if thresholds is None else as_scores(confidence, "confidence")
    outcomes = as_correct(correct)
    check_same_length(values, outcomes)
    if (labels := as_groups(groups, len(values))) is not None:
        chosen = _members(labels, 1, seed)
        values, outcomes = values[chosen], outcomes[chosen]
    grid = _strictest_first(GRID if thresholds is None else thresholds)
    aside = np.zeros(len(values), dtype=bool)
    if start is None:
        aside[np.random.default_rng([seed, 5]).permutation(len(values))[: len(values) // ASIDE]] = True
        start = float(grid[-1])
        if aside.any():
            of_aside = values[aside], 1 - outcomes[aside], len(values) - int(aside.sum())
            start = likeliest_start(*of_aside, risk_limit=risk_limit, delta=delta, thresholds=grid)
    below = np.flatnonzero(grid <= as_option(start, "start", "a number, such as 0.9"))
    if not len(below):
        raise UsageError(f"start is {start}, below all thresholds. Raise it to at least {grid[-1]:g}.")
    first = int(below[0])
    tested = int((~aside).sum())
    answered, right = shared_table(values[~aside], outcomes[~aside]).at_least(grid)
    errors, nonempty = answered - right, answered > 0
    bounds = promise.upper_bound(errors[first:], answered[first:])
    failed = np.flatnonzero(bounds > risk_limit)
    passed = int(failed[0]) if len(failed) else len(bounds)
    at = first + passed - 1
    passes = passed > 0
    # the first that was tested failed; with more questions, testing may begin at a stricter one
    strict = (np.arange(len(grid)) <= max(first, int(nonempty.argmax()))) & nonempty
    needed = None if passes else promise.questions_needed(answered, errors, strict, len(aside))
    least_risk = float(promise.upper_bound(errors[nonempty], answered[nonempty]).min(initial=1))
    return RiskControlledThreshold(
        threshold=float(grid[at]) if passes else None,
        risk_limit=risk_limit,
        delta=delta,
        answered=int(answered[at]) if passes else 0,
        errors=int(errors[at]) if passes else 0,
        coverage=float(answered[at] / tested) if passes else 0.0,
        upper_bound=float(bounds[passed - 1]) if passes else float("nan"),
        tested_thresholds=grid[first : first + passed + 1],
        tested_bounds=bounds[: passed + 1],
        questions=tested,
        questions_needed=needed,
        aside=int(aside.sum()),
        least_risk=None if passes else least_risk,
        groups=None if labels is None else tested,
    )


def label_free_threshold(
    score: ArrayLike,
    correct: ArrayLike,
    *,
    risk_limit: float,
    delta: float = 0.05,
    groups: GroupLabels | None = None,
    members: int | None = None,
    seed: int = 0,
) -> RiskControlledThreshold:
    r"""Find the loosest score with an error rate of at most r, testing all labels.

    The score must have been chosen without these labels. Its distinct values are then tested from strict to
    loose as in `risk_controlled_threshold`. The first is the strictest that a fifth of the questions, and at
    least :math:`\ln \delta / \ln(1 - r)` of them, reach. This start depends on the scores alone, by their
    ranks: the guarantee holds for scores without ties, and for scores with ties of which a larger one is
    never less reliable.

    If 5% of the questions may include an error, a test at level δ / 5 starts at the strictest score that so
    many reach, and the test above has level 4δ / 5. Once the strict test has passed all scores before the
    other's start, its level is added there (fallback procedure), and both are one test at level δ.

    With many groups, all members are tested instead of one. With :math:`X_g` the wrong minus r times all
    answers of group g, at most K members of it, the test of :math:`E[X] \ge 0` rejects if the mean of
    :math:`\prod_g (1 - \lambda_g X_g)` over several stakes reaches 1/δ. The stakes
    :math:`0 \le \lambda_g < 1 / ((1 - r) K)` are chosen from earlier groups in a random order. The promise
    is then about the answers to all questions of new groups, and otherwise about a random question of a new
    group.

    Source: as of `risk_controlled_threshold`; Wiens (2003), A fixed sequence Bonferroni procedure for testing
    multiple endpoints, Pharmaceutical Statistics 2; Waudby-Smith and Ramdas (2024), Estimating means of
    bounded random variables by betting, Journal of the Royal Statistical Society B 86.

    Parameters
    ----------
    score : array_like of float, shape (N,)
        Larger means surer; -inf is never answered.
    correct : array_like of bool, shape (N,)
    risk_limit, delta, groups, seed
        As of `risk_controlled_threshold`, with the same errors.
    members : int, optional
        The number K of members of a group that count, a random choice of a larger group. By default, K is
        the size of the largest of the groups that are set aside to choose the tested scores.

    Returns
    -------
    RiskControlledThreshold

    Examples
    --------
    >>> share, correct = [1.0] * 100 + [0.6] * 100, [True] * 99 + [False] + [True] * 60 + [False] * 40
    >>> label_free_threshold(share, correct, risk_limit=0.05).sentence
    'threshold 1: answers 50% of questions; at most 5% of those answers are wrong (95% confidence)'
    """
    promise = _Promise(risk_limit, delta)
    values, outcomes = as_scores(score, "score"), as_correct(correct)
    check_same_length(values, outcomes)
    if (labels := as_groups(groups, len(values))) is not None:
        if labels.max() + 1 >= BETTING * promise.fewest:
            return _bet_on_groups(values, outcomes, labels, promise, members, seed)
        chosen = _members(labels, 1, seed)
        values, outcomes = values[chosen], outcomes[chosen]
    n, finite = len(values), values[np.isfinite(values)]
    finite = finite if len(finite) else np.zeros(1)
    ranks = np.linspace(0, 1, min(len(finite), MOST_SCORES))
    scores = np.unique(np.quantile(finite, ranks, method="nearest"))

    ranked = np.sort(values)

    def start(share: float) -> float:
        rank = min(math.ceil(max(promise.fewest, share * n)), n)
        return max(float(ranked[-rank]), float(scores[0]))

    def test(level: float, scores: Floats, start: float) -> RiskControlledThreshold:
        return risk_controlled_threshold(
            values, outcomes, risk_limit=risk_limit, delta=level, thresholds=scores, start=start
        )

    first, earlier, level = start(FIRST), start(STRICT), delta
    strict, stricter = None, scores[scores > first]
    if STRICT * n >= _least_answered(risk_limit, STRICT_DELTA * delta)[1] and earlier > first:
        strict = test(STRICT_DELTA * delta, stricter, max(earlier, float(stricter[0])))
        level = delta if strict.threshold == stricter[0] else (1 - STRICT_DELTA) * delta
    found = test(level, scores, first)
    if found.threshold is None and strict is not None and strict.threshold is not None:
        found = strict
    return replace(found, delta=delta, groups=None if labels is None else n)


def _members(labels: Groups, most: int, seed: int) -> NDArray[np.intp]:
    """Return the indices of at most so many random questions of each group."""
    mixed = np.random.default_rng([seed, 4]).permutation(len(labels))
    order = mixed[np.argsort(labels[mixed], kind="stable")]
    first = np.searchsorted(labels[order], labels[order])
    return np.sort(order[np.arange(len(order)) - first < most])


def _bet_on_groups(
    values: Floats, outcomes: Floats, labels: Groups, promise: _Promise, members: int | None, seed: int
) -> RiskControlledThreshold:
    """Test scores by bets on whole groups; the groups are set aside and ordered at random."""
    n_groups = int(labels.max()) + 1
    place = np.random.default_rng([seed, 6]).permutation(n_groups)[labels]  # in the order of the bets
    first = max(n_groups // GROUPS_ASIDE, 2)
    most = members or int(np.bincount(place)[:first].max())
    kept = _members(place, most, seed)
    values, outcomes, place = values[kept], outcomes[kept], place[kept]
    aside = place < first
    reached = np.sort(values[aside & np.isfinite(values)])[::-1]
    reached = reached if len(reached) else np.zeros(1)
    start = reached[min(math.ceil(FIRST_OF_MEMBERS * aside.sum()), len(reached)) - 1]
    levels = np.quantile(reached, np.linspace(0, 1, MOST_TESTED), method="nearest")
    grid = np.unique(levels[levels <= start])[::-1]
    answered = values >= grid[:, None]  # (T, N)
    counts, errors = (
        np.stack([np.bincount(place, row, n_groups) for row in rows])  # (T, G)
        for rows in (answered, answered * (1 - outcomes))
    )

    def rejects(risks: Floats) -> NDArray[np.bool_]:
        """Return whether bets on the groups not set aside reject risks (R,) at the first R thresholds."""
        risk = risks[:, None]
        losses, largest = errors[: len(risks)] - risk * counts[: len(risks)], (1 - risk) * most
        seen = np.arange(1, n_groups)
        mean, square = (np.cumsum(x, 1)[:, :-1] / seen for x in (losses, losses**2))
        best = np.clip(-mean / (square + 1e-12), 0.02 / largest, 0.95 / largest)[:, first - 1 :]
        stakes = np.minimum(STAKES[:, None, None] * best, 0.97 / largest)
        capital = np.log1p(-stakes * losses[:, first:]).sum(2)
        mean_capital = np.logaddexp.reduce(capital, axis=0) - math.log(len(STAKES))
        return np.asarray(mean_capital >= -math.log(promise.delta))

    passes = rejects(np.full(len(grid), promise.risk))
    passed = len(grid) if passes.all() else int(passes.argmin())
    of_tested = passes[: passed + 1]
    low, high = np.where(of_tested, 0.0, promise.risk), np.where(of_tested, promise.risk, 1.0)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        is_rejected = rejects(middle)
        low, high = np.where(is_rejected, low, middle), np.where(is_rejected, middle, high)
    questions = int((~aside).sum())
    n_answered, n_errors = (int(of[passed - 1, first:].sum()) if passed else 0 for of in (counts, errors))
    return RiskControlledThreshold(
        threshold=float(grid[passed - 1]) if passed else None,
        risk_limit=promise.risk,
        delta=promise.delta,
        answered=n_answered,
        errors=n_errors,
        coverage=n_answered / questions,
        upper_bound=float(high[passed - 1]) if passed else float("nan"),
        tested_thresholds=grid[: passed + 1],
        tested_bounds=high,
        questions=questions,
        questions_needed=None,
        aside=int(aside.sum()),
        groups=n_groups - first,
        test="betting",
    )


def likeliest_start(
    confidence: ArrayLike,
    wrong: ArrayLike,
    questions: int,
    *,
    risk_limit: float,
    delta: float = 0.05,
    thresholds: ArrayLike = GRID,
) -> float:
    """Return the threshold at which a test with so many `questions` most likely passes, ties to the looser.

    It is the loosest threshold if too few answers are expected everywhere. `confidence` (N,) and the
    probabilities `wrong` (N,) of errors are of questions that are not tested.

    >>> likeliest_start([0.9] * 50 + [0.6] * 50, [0.02] * 50 + [0.4] * 50, 100, risk_limit=0.1)
    0.61
    """
    values, grid = as_scores(confidence, "confidence"), _strictest_first(thresholds)
    above = values >= grid[:, None]
    count = above.sum(1)
    rates = above @ np.asarray(wrong, dtype=np.float64) / np.maximum(count, 1)
    answered = np.maximum(count * questions // len(values), 1)
    allowed = np.floor(scipy.special.bdtrik(delta, answered, risk_limit) + 1e-9)
    chance = scipy.special.bdtr(allowed, answered.astype(np.int64), rates)
    chance = np.where(answered >= _Promise(risk_limit, delta).fewest, chance, 0.0)
    return float(grid[np.flatnonzero(chance >= chance.max() - 1e-12)[-1]])


def _strictest_first(thresholds: ArrayLike) -> Floats:
    grid = np.unique(as_numbers(thresholds, "thresholds"))[::-1]
    if not len(grid) or np.isnan(grid).any():
        raise UsageError(f"thresholds are {grid}. Give at least one number, and no NaN.")
    return grid
