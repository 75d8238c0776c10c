"""Thresholds with a guarantee: error rate at most r among the answered, with probability 1 - δ."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from semcal.arrays import Floats, as_numbers, as_option
from semcal.errors import UsageError
from semcal.metrics.frequencies import (
    GroupLabels,
    as_correct,
    as_groups,
    as_probabilities,
    as_scores,
    both_names,
    check_same_length,
    frequency_table,
)

#: Thresholds tried when none are given: fixed before any label is seen.
GRID = np.arange(101) / 100
#: One in so many questions says where testing starts, where nothing else does, and is not tested.
ASIDE = 5
#: With so many times the fewest questions that could show a threshold, none found means none there.
PLENTY = 3
#: No use is in a risk limit from which on as many answers are wrong as right.
USELESS = 0.5
#: Errors among the answered for which the number of questions that is needed is looked up.
LARGEST_ERRORS = 1000


@dataclass(frozen=True, eq=False)
class RiskControlledThreshold:
    """The loosest threshold whose error rate is shown to be within the limit.

    Answer when the confidence is at least `threshold`, None when none could be shown to be safe: the error
    rate among answered questions is then at most `risk_limit` with probability at least 1 - `delta`.
    `answered` is the number of questions at or above the threshold (0 for none), `coverage` their share,
    `errors` the wrong ones among them, `upper_bound` the upper confidence bound, at level 1 - delta, on the
    error rate there (NaN for none). `tested_...`, shape (T,): all that were tested, the strictest first and
    the first that failed last. `questions` were tested; `aside` only said where to start. `least_risk` is the
    least bound at any threshold, where none was found: a smaller risk limit could not be shown.
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

    @property
    def sentence(self) -> str:
        """What holds, or what it would take."""
        return threshold_sentence(self, self.questions, self.aside)


@dataclass(frozen=True)
class _Promise:
    """An error rate of at most `risk` among the answered, with probability 1 - `delta`."""

    risk: float
    delta: float

    @property
    def fewest(self) -> float:
        """How many answered questions could show a threshold, without errors among them."""
        return float(np.log(self.delta) / np.log1p(-self.risk))

    def upper_bound(self, errors: Floats, answered: Floats) -> Floats:
        """Exact (Clopper-Pearson) upper bound at level 1 - delta on an error rate; 1 where all are errors."""
        right = answered - errors
        bound = scipy.special.betaincinv(errors + 1, np.where(right > 0, right, 1.0), 1 - self.delta)
        return np.where(right > 0, bound, 1.0)

    def questions_needed(
        self, answered: Floats, errors: Floats, strict: NDArray[np.bool_], n: int
    ) -> int | None:
        """How many it would take instead of n, at thresholds (strictest first) of which `strict` count."""
        count, wrong, enough = answered[strict], errors[strict], answered >= self.fewest
        needed = self._least_number(count, wrong, wrong, n)
        if needed is not None:
            return needed
        if enough.any():  # the thresholds that could pass may show the surest to be wrong too often
            surest = int(enough.argmax())
            count_there = answered[surest].astype(np.int64)
            too_many = scipy.special.bdtrc(errors[surest] - 1, count_there, self.risk) <= self.delta
            if too_many or answered[-1] >= PLENTY * self.fewest:
                return None
        return self._least_number(count, 0 * wrong, wrong if enough.any() else 0 * wrong, n)

    def _least_number(self, answered: Floats, errors: Floats, spent: Floats, n: int) -> int | None:
        """The least number at which one of some thresholds passes with its present coverage and error rate.

        `spent` errors have been made in any case.
        """
        allowed = np.arange(LARGEST_ERRORS)
        right = np.ceil(scipy.special.nbdtrik(1 - self.delta, allowed + 1, self.risk) - 1e-9)
        least = allowed + 1 + right  # answered, for so many errors
        needed = [
            least[enough[0]] * n / count
            for count, wrong, least_errors in zip(answered, errors, spent)
            if len(enough := np.flatnonzero((least * wrong <= allowed * count) & (allowed >= least_errors)))
        ]
        return max(math.ceil(min(needed) - 1e-9), n + 1) if needed else None


class _Tested(Protocol):
    """What was found for a risk limit."""

    @property
    def threshold(self) -> float | None: ...
    @property
    def risk_limit(self) -> float: ...
    @property
    def delta(self) -> float: ...
    @property
    def answered(self) -> int: ...
    @property
    def questions_needed(self) -> int | None: ...
    @property
    def least_risk(self) -> float | None: ...


def threshold_sentence(tested: _Tested, questions: int, aside: int = 0) -> str:
    """Say what a threshold promises by the questions tested and those aside, or what it would take."""
    limit = f"{100 * tested.risk_limit:.3g} %"
    if tested.threshold is not None:
        return (
            f"answer from {_short(tested.threshold)}: {100 * tested.answered / questions:.0f} % answered, at "
            f"most {limit} of them wrong with {100 * (1 - tested.delta):.3g} % confidence"
        )
    none = (
        f"no threshold is shown to keep the share of wrong answers within {limit} by these "
        f"{questions + aside} questions"
    )
    if tested.questions_needed is not None:
        about = "at least" if questions < _Promise(tested.risk_limit, tested.delta).fewest else "about"
        return f"{none}; {about} {tested.questions_needed} would be needed"
    why = f"{none}, nor would it be by more: even the surest are wrong too often"
    if tested.least_risk is None or tested.least_risk >= USELESS:
        return f"{why}, at any risk of use; ask what the model knows, or take a larger one"
    return f"{why}; allow more risk (from about {100 * tested.least_risk:.0f} %), or calibrate"


@both_names
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
    r"""Find the loosest threshold above which the error rate is at most r, with probability 1 - δ.

    Thresholds t are tested from strict to loose, each by the exact binomial upper bound on its error rate:
    with e(t) errors among the n(t) answered questions, t passes when

    .. math:: \mathrm{Beta}^{-1}(1 - \delta;\; e + 1,\, n - e) \le r.

    Testing begins at a threshold that was fixed before these questions were seen, and stops at the first that
    fails; the last that passed is the answer. Each is tested only after all stricter ones passed, so the
    number of thresholds needs no correction (fixed-sequence testing). A start chosen from the tested
    questions, even from their confidences alone, would break the guarantee.

    Source: Bauer (1991), Multiple testing in clinical trials, Statistics in Medicine 10. Angelopoulos, Bates,
    Candès, Jordan and Lei (2025), Learn then Test: Calibrating predictive algorithms to achieve risk control,
    Annals of Applied Statistics 19. Clopper and Pearson (1934), Biometrika 26.

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
    start : float, optional
        Testing begins at the strictest threshold up to this, which must not come from these questions (see
        `likeliest_start`). By default a fifth of them, drawn by `seed`, is set aside to choose the start.
    groups : sequence of N labels, optional
        Labels of questions that are not independent. One question of each group, drawn by `seed`, counts, so
        that the bound is exact for a random question of a new group.

    Returns
    -------
    RiskControlledThreshold
        Its threshold is None if these questions show no threshold to be safe. `questions_needed` is then the
        least number of questions with which some threshold would pass, if the share answered and the error
        rate there stay as they are: without errors, :math:`\ln \delta / \ln(1 - r)` answered. If all these
        error rates are r or more, it is None where the questions show that even the surest answers are wrong
        too often (3 times that many answered, or an exact binomial test at level δ); otherwise it is the
        least number with which a threshold could pass at all.

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
    'answer from .61: 50 % answered, at most 5 % of them wrong with 95 % confidence'
    >>> risk_controlled_threshold(confidence, correct, risk_limit=0.02, start=0.9).sentence
    'no threshold is shown to keep ... within 2 % by these 200 questions; about 1180 would be needed'
    """
    for name, share in {"risk_limit": risk_limit, "delta": delta}.items():
        as_option(share, name, "a number between 0 and 1, such as 0.05", low=0, high=1)
    values = as_probabilities(confidence) if thresholds is None else as_scores(confidence, "confidence")
    outcomes = as_correct(correct)
    check_same_length(values, outcomes)
    if (labels := as_groups(groups, len(values))) is not None:
        mixed = np.random.default_rng([seed, 4]).permutation(len(labels))
        chosen = np.sort(mixed[np.unique(labels[mixed], return_index=True)[1]])  # a random one of each group
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
        raise UsageError(f"the start {start} is below all thresholds; the loosest is {grid[-1]:g}")
    first = int(below[0])
    tested = int((~aside).sum())
    answered, right = frequency_table(values[~aside], outcomes[~aside]).at_least(grid)
    errors, nonempty, promise = answered - right, answered > 0, _Promise(risk_limit, delta)
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
    """Return the threshold at which so many `questions` are likeliest to pass, ties to the looser.

    Where too few are expected at every threshold, that is the loosest. `confidence` (N,) is what thresholds
    are compared with, and `wrong` (N,) how likely each answer is wrong, of questions that are not tested.

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


def _short(threshold: float) -> str:
    """A threshold without its leading zero."""
    return re.sub(r"^(-?)0\.", r"\1.", f"{threshold:.4g}")


def _strictest_first(thresholds: ArrayLike) -> Floats:
    """Distinct thresholds, descending."""
    grid = np.unique(as_numbers(thresholds, "thresholds"))[::-1]
    if not len(grid) or np.isnan(grid).any():
        raise UsageError(f"thresholds are {grid}; expected at least one number and no NaN")
    return grid
