"""How sure one can be of a number: errors over runs, and intervals and tests from bootstrap resamples.

The error over runs is of the same questions and says how much sampling answers anew would move the number.
The interval over questions says how much other questions would. Neither stands for the other. With intervals,
too: how far a grader's verdicts agree with people's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any, Generic, TypeVar

import numpy as np
import scipy
from numpy.typing import ArrayLike

from semcal.arrays import Floats, as_generator, as_numbers, as_option
from semcal.errors import InputError
from semcal.metrics.frequencies import (
    FrequencyTable,
    GroupLabels,
    Groups,
    ScoredRuns,
    as_correct,
    as_groups,
    both_names,
    check_bins,
    draw_counts,
    draw_uniforms,
    frequency_table,
    shared_table,
    warn_undefined,
)
from semcal.metrics.overview import METRICS, measure_rows
from semcal.registry import check_name

#: With fewer units an error of calibration, and with fewer of one class an AUROC, has a wider interval.
FEW_QUESTIONS, FEW_OF_A_CLASS = 200, 30

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True)
class MeanOverRuns:
    """Mean and standard error over runs, the paper's ±; the error of a single run is NaN."""

    mean: float
    standard_error: float
    runs: int


@dataclass(frozen=True)
class Interval:
    """A metric of the data (its mean over runs, where there are several) with its uncertainty over questions.

    `low` and `high` are its ends (:func:`bootstrap`), `standard_error` is the standard deviation of the
    metric over resamples, `bias` its mean over them minus the estimate, `resamples` the number of those in
    which the metric is defined.
    """

    estimate: float
    low: float
    high: float
    standard_error: float
    bias: float
    level: float
    resamples: int

    def holding(self, low: float, high: float) -> Interval:
        """Widen it to hold these ends; one that is NaN stays so."""
        return replace(self, low=min(self.low, low), high=max(self.high, high))


@dataclass(frozen=True)
class PairedTest:
    """The metric of two methods on the same questions, and the difference first - second.

    `low`, `high`, `standard_error` and `resamples` are those of an :class:`Interval` of the difference,
    `p_value` is two-sided, of the hypothesis that the true difference is 0.
    """

    first: float
    second: float
    difference: float
    low: float
    high: float
    standard_error: float
    p_value: float
    level: float
    resamples: int


@dataclass(frozen=True, eq=False)
class Contrast:
    """A sum of metrics with signs, and its value in each resample.

    Contrasts of the same or of independent resamples can be added and scaled.
    """

    value: float  # of the data
    resampled: Floats  # (resamples,), NaN where it is undefined

    def __add__(self, term: Contrast) -> Contrast:
        return Contrast(self.value + term.value, self.resampled + term.resampled)

    def __sub__(self, term: Contrast) -> Contrast:
        return self + term * -1.0

    def __mul__(self, factor: float) -> Contrast:
        return Contrast(factor * self.value, factor * self.resampled)

    @classmethod
    def mean(cls, parts: Iterable[Contrast]) -> Contrast:
        """The mean of some contrasts."""
        several = list(parts)
        value = float(np.mean([contrast.value for contrast in several]))
        return cls(value, np.mean([contrast.resampled for contrast in several], axis=0))

    def interval(self, *, level: float = 0.95) -> Interval:
        """Bias-corrected interval over questions."""
        return interval_of("a contrast", self.value, self.resampled, level)

    def p_value(self) -> float:
        """Two-sided p-value of the hypothesis that the true value is 0."""
        values = self.resampled[~np.isnan(self.resampled)]
        if np.isnan(self.value) or not len(values):
            return float("nan")
        # 1e-12: equal methods have p = 1 despite rounding
        strays = np.abs(values - values.mean()) >= abs(self.value) - 1e-12
        return float((1 + strays.sum()) / (1 + len(values)))


@dataclass(frozen=True, eq=False)
class JointBootstrap(Generic[_Key]):
    """The metrics of several methods in the data and in the same resamples of the questions.

    In another process (pickled) it gives contrasts and tests, no intervals of single metrics.
    """

    estimates: Mapping[_Key, Mapping[str, float]]  # method → metric → its mean over runs
    resampled: Mapping[_Key, Mapping[str, Floats]]  # … → its value in each resample, NaN where undefined
    right: Mapping[_Key, float]  # right answers of a method, mean over runs
    n: int  # questions
    units: int  # of them that are drawn: questions, or their groups
    level: float
    if_calibrated: Callable[[_Key, str], Floats] = field(repr=False)
    """(method, error of calibration) → its value in each resample if the confidences were calibrated."""

    def interval(self, key: _Key, metric: str) -> Interval:
        """The bias-corrected interval of one metric over questions (:func:`bootstrap`)."""
        kind, estimate, values = METRICS[metric], self.estimates[key][metric], self.resampled[key][metric]
        interval = interval_of(
            metric, estimate, values, self.level, raised=kind.raised, least=kind.least, most=1.0
        )
        if kind.of_outcomes:
            return at_least_wilsons(interval, self.units, kind.least)
        if kind.of_area is not None:
            right = self.right[key] * self.units / self.n
            wrong = self.units - right
            if np.isnan(interval.low) or min(right, wrong) >= FEW_OF_A_CLASS:
                return interval
            scale, shift = kind.of_area  # of AUROC, or of PRR = 2 AUROC - 1
            ends = area_interval((interval.estimate + shift) / scale, right, wrong, self.level)
            return interval.holding(*(scale * end - shift for end in ends))
        if not kind.zero_if_calibrated or not interval.low > 0:
            return interval
        null = self.if_calibrated(key, metric)
        # 1e-12: signs that turn nothing give the estimate itself
        if not estimate > np.quantile(null, (1 + self.level) / 2) + 1e-12:
            return replace(interval, low=0.0)
        if self.units >= FEW_QUESTIONS:
            return interval
        least = 2 * estimate - interval.high - float(null.mean())
        return replace(interval, low=min(interval.low, max(least, 0.0)))

    def contrast(self, key: _Key, metric: str) -> Contrast:
        """One metric of one method, to be compared with others."""
        return Contrast(self.estimates[key][metric], self.resampled[key][metric])

    def paired(self, first: _Key, second: _Key, metric: str) -> PairedTest:
        """The test of two methods by one metric (:func:`paired_test`)."""
        difference = self.contrast(first, metric) - self.contrast(second, metric)
        span = 1.0 - METRICS[metric].least
        resampled = difference.resampled
        interval = interval_of(
            f"{metric} difference", difference.value, resampled, self.level, least=-span, most=span
        )
        return PairedTest(
            first=self.estimates[first][metric],
            second=self.estimates[second][metric],
            difference=difference.value,
            low=interval.low,
            high=interval.high,
            standard_error=interval.standard_error,
            p_value=difference.p_value(),
            level=self.level,
            resamples=interval.resamples,
        )

    def __getstate__(self) -> dict[str, object]:
        return vars(self) | {"if_calibrated": _elsewhere}


def mean_and_standard_error(values: ArrayLike) -> MeanOverRuns:
    r"""Mean and standard error of a metric over R runs.

    .. math:: \bar x = \frac1R \sum_r x_r, \qquad
              \mathrm{SE} = \frac{1}{\sqrt R} \sqrt{\frac{1}{R-1} \sum_r (x_r - \bar x)^2}

    The questions are held fixed, so this is not the uncertainty over questions (:func:`bootstrap`),
    which is usually several times larger. `values` (R,) is the metric of each run, else InputError. One run
    has no standard error (NaN), and a run whose metric is NaN makes both NaN, with an UndefinedWarning.

    >>> mean_and_standard_error([0.80, 0.82, 0.81, 0.83])
    MeanOverRuns(mean=0.815, standard_error=0.0064549..., runs=4)
    """
    array = as_numbers(values, "values")
    if array.ndim != 1 or not len(array):
        raise InputError(f"values has shape {array.shape}; expected one number a run, shape (R,) with R >= 1")
    nan = np.flatnonzero(np.isnan(array))
    if len(nan):
        warn_undefined(f"the metric of run {nan[0]} is NaN, and so are mean and standard error over runs")
    elif len(array) == 1:
        warn_undefined("a single run has no standard error over runs (NaN); it takes at least two")
    error = array.std(ddof=1) / np.sqrt(len(array)) if len(array) > 1 else np.nan
    return MeanOverRuns(float(array.mean()), float(error), len(array))


def joint_bootstrap(
    methods: Mapping[_Key, tuple[ArrayLike, ArrayLike]],
    *,
    metrics: Sequence[str] | None = None,
    groups: GroupLabels | None = None,
    bins: int = 15,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int | Sequence[int] | np.random.Generator = 0,
) -> JointBootstrap[_Key]:
    """Measure several methods on the same resamples of the questions.

    The intervals are those of :func:`bootstrap` with the same seed, the tests those of :func:`paired_test`.
    `methods` maps a key to (confidence, correct), arrays of shape (N,) or (R, N): one run, or R runs of which
    the mean is taken; the same N questions in the same order for all, else InputError. Other options and
    errors are those of :func:`bootstrap`; if all metrics chosen rank, any score will do.

    >>> rng = np.random.default_rng(1)
    >>> chance = rng.uniform(size=500)
    >>> correct = rng.uniform(size=500) < chance
    >>> methods = {"sharp": (chance**0.3, correct), "fair": (chance, correct)}
    >>> both = joint_bootstrap(methods, metrics=["brier"])
    >>> test = both.paired("sharp", "fair", "brier")
    >>> test.difference > 0, test.p_value < 0.01
    (True, True)
    """
    names = _known(metrics)
    options = _checked_options(level, resamples, bins)
    ranks = all(METRICS[name].ranks for name in names)
    runs = {key: ScoredRuns.of(*arrays, any_score=ranks) for key, arrays in methods.items()}
    if len({method.n for method in runs.values()}) > 1:
        numbers = ", ".join(f"{key}: {method.n}" for key, method in runs.items())
        raise InputError(f"methods are compared on the same questions, got different numbers ({numbers})")
    return _bootstrapped(runs, names, groups, *options, seed)


@both_names
def bootstrap(
    confidence: ArrayLike,
    correct: ArrayLike,
    *,
    metrics: Sequence[str] | None = None,
    score: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    groups: GroupLabels | None = None,
    bins: int = 15,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int | np.random.Generator = 0,
) -> dict[str, Interval]:
    r"""Bias-corrected bootstrap intervals and standard errors over questions.

    Questions are drawn with replacement; where they come in groups (on one passage, say), whole groups are,
    so that a resample holds as many groups as the data. With :math:`\hat\theta` the metric of the data,
    :math:`\theta^*` that of a resample, q its quantiles at the ends of the level and :math:`b =
    \overline{\theta^*} - \hat\theta` the bias of resampling, the interval is

    .. math:: [\,q_\text{low} - b,\; q_\text{high} - b\,].

    Chance scatter of the outcomes raises ECE, ACE, SmoothECE, MCB, DSC, reliability and resolution, and
    resampling raises them again. For these the scatter in the estimate is taken off the lower end as well,

    .. math:: [\,2\hat\theta - q_\text{high},\; q_\text{high} - b\,],

    and for the errors of calibration (all but DSC and resolution) the lower end is 0 if the estimate is not
    above the upper quantile of the metric when outcomes are drawn from the confidences themselves (with
    groups: from one uniform number a group): a bootstrap is not consistent at the value 0. With fewer than
    200 questions (or groups) their lower end is at most :math:`2\hat\theta - (q_\text{high} - b)` less the
    mean of the noise floor (:func:`noise_floor`).

    Intervals of accuracy, Brier score and gain hold Wilson's as well, for the latter two with the range and
    the standard error of their values. With fewer than 30 right or 30 wrong answers (a group counts as one)
    the interval of AUROC (and of PRR, 2 AUROC - 1) holds Newcombe's as well. Simulations of 10 to 500
    questions are in docs/decisions/few-questions.md. Ends are kept within the range of the metric, and the
    estimate within the interval.

    Source: Efron and Tibshirani (1993), An Introduction to the Bootstrap, chapters 10 and 13. Bröcker and
    Smith (2007), Increasing the Reliability of Reliability Diagrams, Weather and Forecasting 22 (outcomes
    drawn from forecasts). Newcombe (2006), Confidence intervals for an effect size measure based on the
    Mann-Whitney statistic, part 2, Statistics in Medicine 25 (method 5). Wilson (1927), Probable inference,
    the law of succession, and statistical inference, JASA 22.

    Parameters
    ----------
    confidence : array_like of float, shape (N,) or (R, N)
        Probabilities, of one run or of R runs on the same N questions; the metric is then the mean over runs,
        and the runs of a question are drawn together.
    correct : array_like of bool, same shape
    metrics : sequence of str, optional
        Keys of :func:`semcal.metrics.summary` other than n; all of them by default.
    score : array_like of float, same shape, optional
        What AUROC, AURAC and PRR rank by; the confidence by default.
    weights : array_like of float, shape (R,), optional
        Share of each run in the mean; equal by default.
    groups : sequence of N labels, optional
        The group of each question, a text or a number; by default each is its own. Some 30 groups are needed:
        with fewer the interval is too narrow, with one there is none.
    bins : int
        Bins of ECE and ACE.
    level : float
        In (0, 1).
    resamples : int
        At least 2.

    Returns
    -------
    dict of str to Interval
        In the order of `metrics`. Resamples in which a metric is undefined are left out and not counted. If
        it is undefined for the data, so is its interval (NaN), with an UndefinedWarning.

    Raises
    ------
    InputError
        As :func:`semcal.metrics.summary`.
    UsageError
        An unknown metric, a level outside (0, 1), fewer than 2 resamples.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> confidence = rng.uniform(size=500)
    >>> correct = rng.uniform(size=500) < confidence
    >>> interval = bootstrap(confidence, correct, metrics=["ace"])["ace"]
    >>> interval.low, interval.low <= interval.estimate <= interval.high
    (0.0, True)
    """
    names = _known(metrics)
    options = _checked_options(level, resamples, bins)
    runs = ScoredRuns.of(confidence, correct, score, weights=weights)
    joint = _bootstrapped({None: runs}, names, groups, *options, seed)
    return {name: joint.interval(None, name) for name in names}


def paired_test(
    first_confidence: ArrayLike,
    first_correct: ArrayLike,
    second_confidence: ArrayLike,
    second_correct: ArrayLike,
    *,
    metric: str = "ace",
    groups: GroupLabels | None = None,
    bins: int = 15,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int | np.random.Generator = 0,
) -> PairedTest:
    r"""Compare two methods on the same questions by a paired bootstrap.

    Questions are drawn with replacement and both methods are measured on each resample, so that what makes a
    question hard for both cancels. With d the difference of the metric and :math:`d^*` that of a resample,
    the p-value is the share of resamples that stray from their mean by as much as d strays from 0,

    .. math:: p = \frac{1 + \#\{|d^* - \overline{d^*}| \ge |d|\}}{1 + B}.

    Options, errors and warnings are those of :func:`bootstrap`; an InputError also if the methods were not
    given the same number of questions. Where the metric is undefined for one of the methods, the test is NaN.

    Parameters
    ----------
    first_confidence, second_confidence : array_like of float, shape (N,) or (R, N)
        Confidences of each method, the questions in the same order; any score will do for AUROC, AURAC and
        PRR.
    first_correct, second_correct : array_like of bool, same shapes
    metric : str
        A key of :func:`semcal.metrics.summary` other than n.

    Notes
    -----
    Swapping the methods' labels question by question would test more than equal metrics (that confidences
    could be exchanged, which those at two temperatures never can), so it is not used. Source: Efron and
    Tibshirani (1993), An Introduction to the Bootstrap, chapter 16.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> chance = rng.uniform(size=500)
    >>> correct = rng.uniform(size=500) < chance
    >>> test = paired_test(chance**0.3, correct, chance, correct, metric="brier")
    >>> test.difference > 0, test.p_value < 0.01
    (True, True)
    """
    joint = joint_bootstrap(
        {"first": (first_confidence, first_correct), "second": (second_confidence, second_correct)},
        metrics=[metric],
        groups=groups,
        bins=bins,
        level=level,
        resamples=resamples,
        seed=seed,
    )
    return joint.paired("first", "second", metric)


def interval_of(
    name: str,
    estimate: float,
    resampled: Floats,
    level: float,
    *,
    raised: bool = False,
    least: float = -np.inf,
    most: float = np.inf,
) -> Interval:
    """Bias-corrected interval from values over resamples, NaN where they are undefined.

    `raised` says that noise in the outcomes raises the value, `least` and `most` are the ends of its range.
    """
    resampled = resampled[~np.isnan(resampled)]
    if np.isnan(estimate) or len(resampled) < 2:
        warn_undefined(f"{name} is undefined for these data or their resamples, and so is its interval (NaN)")
        return Interval(estimate, np.nan, np.nan, np.nan, np.nan, level, len(resampled))
    low, high = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2]).tolist()
    bias = float(resampled.mean()) - estimate
    low = 2 * estimate - high if raised else low - bias
    low, high = (float(np.clip(end, least, most)) for end in (low, high - bias))
    error = float(resampled.std(ddof=1))
    return Interval(estimate, min(low, estimate), max(high, estimate), error, bias, level, len(resampled))


def at_least_wilsons(interval: Interval, units: int, least: float = 0.0) -> Interval:
    """The interval of a mean over so many units of values from `least` to 1, widened to hold Wilson's."""
    return interval.holding(
        *wilson_interval(interval.estimate, interval.standard_error, units, interval.level, least)
    )


def wilson_interval(
    mean: float, standard_error: float, units: int, level: float, least: float = 0.0
) -> tuple[float, float]:
    r"""Wilson's score interval (1927) of a share; so of any mean over n units of values from `least` to 1.

    .. math:: \frac{n \bar x + z^2 m \pm z \sqrt{n^2 s^2 + z^2 h^2}}{n + z^2}, \quad
              m = \frac{1 + \text{least}}{2}, \quad h = \frac{1 - \text{least}}{2},

    with s the standard error: it counts z² more units, half of them at each end of the range, and so has a
    width where all units agree.
    """
    z2 = float(scipy.special.ndtri((1 + level) / 2)) ** 2
    centre = (units * mean + z2 * (1 + least) / 2) / (units + z2)
    spread = (units * standard_error) ** 2 + z2 * ((1 - least) / 2) ** 2
    half = float(np.sqrt(z2 * spread)) / (units + z2)
    return max(centre - half, least), min(centre + half, 1.0)


def area_interval(area: float, right: float, wrong: float, level: float) -> tuple[float, float]:
    """Newcombe's interval of an AUROC from so many right and wrong answers (2006, method 5).

    Ends are where the AUROC observed is as far from the true one as its standard error there (Hanley and
    McNeil's, with the mean class size for both) allows; so it has a width even for an AUROC of 1.
    """
    half = (right + wrong) / 2 - 1

    def excess(true: float) -> float:
        spread = 1 + half * ((1 - true) / (2 - true) + true / (1 + true))
        variance = true * (1 - true) * spread / (right * wrong)
        return float((area - true) ** 2 - scipy.special.ndtri((1 + level) / 2) ** 2 * variance)

    tiny = 1e-12
    low = scipy.optimize.brentq(excess, 0.0, min(area, 1 - tiny)) if area > tiny else 0.0
    high = scipy.optimize.brentq(excess, max(area, tiny), 1.0) if area < 1 - tiny else 1.0
    return low, high


def _averages(
    runs: ScoredRuns, metrics: Sequence[str], bins: int, tabulate: Callable[[Floats, Floats], FrequencyTable]
) -> dict[str, Floats]:
    """Each metric of the tables of values and outcomes, averaged over runs: [B]."""
    by_run = []
    for score, confidence, correct in zip(runs.scores, runs.confidences, runs.correct):
        table = tabulate(score, correct)
        one_order = confidence is score
        ranking = [name for name in metrics if one_order or METRICS[name].ranks]
        values = measure_rows(table, ranking, bins)
        if not one_order:
            plain = [name for name in metrics if not METRICS[name].ranks]
            values |= measure_rows(tabulate(confidence, correct), plain, bins)
        by_run.append(values)
    return {
        name: np.average([values[name] for values in by_run], axis=0, weights=runs.weights)
        for name in metrics
    }


def _calibrated_errors(
    methods: Mapping[_Key, ScoredRuns],
    resamples: int,
    groups: Groups | None,
    bins: int,
    rng: np.random.Generator,
) -> Callable[[_Key, str], Floats]:
    """Errors of calibration if the confidences were calibrated, from the same numbers for all methods."""
    n = next(iter(methods.values())).n if methods else 0

    @cache
    def uniforms() -> Floats:  # they follow those of the resamples
        return draw_uniforms(n, resamples, rng, groups)

    @lru_cache(maxsize=1)  # errors of one method are asked for in a row
    def tables(key: _Key) -> list[FrequencyTable]:
        return [shared_table(values, uniforms() < values) for values in methods[key].confidences]

    def errors(key: _Key, metric: str) -> Floats:
        values = [measure_rows(table, [metric], bins)[metric] for table in tables(key)]
        return np.average(values, axis=0, weights=methods[key].weights)

    return errors


def _bootstrapped(
    methods: Mapping[_Key, ScoredRuns],
    names: Sequence[str],
    groups: GroupLabels | None,
    bins: int,
    level: float,
    resamples: int,
    seed: Any,
) -> JointBootstrap[_Key]:
    """Measure methods on as many questions in the data and in resamples."""
    rng = as_generator(seed)
    n = next(iter(methods.values())).n if methods else 0
    clusters = as_groups(groups, n) if methods else None
    counts = draw_counts(n, resamples, rng, clusters)
    resampled = {
        key: _averages(runs, names, bins, lambda values, correct: shared_table(values, correct, counts))
        for key, runs in methods.items()
    }
    if clusters is not None and clusters.max() == 0:  # all resamples are the same
        resampled = {key: {name: np.full(resamples, np.nan) for name in names} for key in methods}
    estimates = {key: _averages(runs, names, bins, frequency_table) for key, runs in methods.items()}
    return JointBootstrap(
        {key: {name: float(value[0]) for name, value in values.items()} for key, values in estimates.items()},
        resampled,
        {key: float(np.mean([outcomes.sum() for outcomes in runs.correct])) for key, runs in methods.items()},
        n,
        n if clusters is None else int(clusters.max()) + 1,
        level,
        _calibrated_errors(methods, resamples, clusters, bins, rng),
    )


def _known(metrics: Sequence[str] | None) -> list[str]:
    """The names of metrics, all by default."""
    names = list(METRICS) if metrics is None else list(metrics)
    for name in names:
        check_name(name, METRICS, what="metric")
    return names


def _checked_options(level: float, resamples: int, bins: int) -> tuple[int, float, int]:
    """Refuse options that make no sense; bins, level and resamples as plain numbers."""
    share = as_option(level, "level", "a number between 0 and 1, such as 0.95", low=0, high=1)
    count = as_option(resamples, "resamples", "a whole number, at least 2, better 1000", low=1, whole=True)
    return check_bins(bins), share, int(count)


def _elsewhere(*_: object) -> Floats:
    raise RuntimeError("intervals of single metrics are computed by the process that drew the resamples")


# ---- A grader and people -----------------------------------------------------------------------------------

#: The confusion matrix; and shares of the answers, as sums of its cells.
CELLS = ("both_right", "grader_only", "human_only", "both_wrong")
SHARES = {
    "agreement": (1, 0, 0, 1),
    "accuracy": (1, 1, 0, 0),
    "human_accuracy": (1, 0, 1, 0),
    "accuracy_difference": (0, 1, -1, 0),
    **dict(zip(CELLS, np.eye(4, dtype=int).tolist())),
}
LEVEL, RESAMPLES = 0.95, 1000


@dataclass(frozen=True)
class Agreement:
    """A grader against people: how many answers each calls right, and figures with their intervals."""

    n: int
    groups: int | None  # resampled as a whole; None where every answer stands by itself
    counts: Mapping[str, int]  # both_right, grader_only, human_only, both_wrong
    figures: Mapping[str, Interval]


def agreement(
    verdicts: ArrayLike,
    human: ArrayLike,
    *,
    groups: GroupLabels | None = None,
    seed: int | np.random.Generator = 0,
) -> Agreement:
    r"""Compare a grader's verdicts with people's.

    With :math:`p` the share of answers on which they agree and :math:`e` the share on which two would agree
    who decide independently, each as often for "right" as here, Cohen's kappa is :math:`(p - e) / (1 - e)`.
    Where people gave all answers one verdict, kappa would be 0 whatever the grader says: it is undefined. A
    grader that gives one verdict to all has a kappa of 0.

    Intervals are 95 % bootstrap intervals over answers, or over `groups` of them. Where fewer than 30 answers
    are in a share, or fewer than 30 are not, resamples show too little: its interval then holds Wilson's too,
    of as many answers as there are groups, and kappa's the ends to which that of the agreement takes it.

    Source: Cohen (1960), A coefficient of agreement for nominal scales, Educational and Psychological
    Measurement 20. Wilson (1927), Probable inference, the law of succession, and statistical inference, JASA
    22.

    Parameters
    ----------
    verdicts, human : array_like of bool, shape (N,)
        Whether the grader, and whether people, call each answer right; InputError for none, others, or
        lengths that differ.
    groups : sequence of N labels, optional
        What an answer shares with others, such as its question; by default each stands by itself.

    Returns
    -------
    Agreement
        `figures` maps agreement, kappa, accuracy (by the grader), human_accuracy, accuracy_difference and the
        share of each cell (both_right, grader_only, human_only, both_wrong) to an `Interval`. Where kappa is
        undefined, or there is one group only, that is NaN, with an UndefinedWarning.

    Examples
    --------
    >>> found = agreement([1, 1, 1, 0, 0, 0, 0, 1], [1, 1, 0, 0, 0, 0, 1, 1])
    >>> found.figures["agreement"].estimate, found.figures["kappa"].estimate, found.counts["grader_only"]
    (0.75, 0.5, 1)
    """
    ours, theirs = as_correct(verdicts), as_correct(human)
    if len(ours) != len(theirs):
        raise InputError(f"there are {len(ours)} verdicts of the grader and {len(theirs)} of people")
    n, clusters = len(ours), as_groups(groups, len(ours))
    units = n if clusters is None else int(clusters.max()) + 1
    cells = np.stack([ours * theirs, ours * (1 - theirs), (1 - ours) * theirs, (1 - ours) * (1 - theirs)])
    counts = draw_counts(n, RESAMPLES, as_generator(seed), clusters).T
    resampled = cells @ counts / counts.sum(0)  # (4, B)
    shares = cells.sum(1, keepdims=True) / n  # (4, 1)
    figures = {}
    for name, weights in SHARES.items():
        low, share = float(min(weights)), float((weights @ shares)[0])
        interval = interval_of(name, share, weights @ resampled, LEVEL, least=low, most=1.0)
        widen = low == 0 and _few(share, n)
        figures[name] = at_least_wilsons(interval, units) if widen else interval
    kappa = interval_of("kappa", float(_kappa(shares)[0]), _kappa(resampled), LEVEL, least=-1.0, most=1.0)
    if _few(figures["agreement"].estimate, n):
        agreed = figures["agreement"]
        kappa = kappa.holding(_beyond(agreed.low, shares), _beyond(agreed.high, shares))
    figures = {"agreement": figures.pop("agreement"), "kappa": kappa, **figures}
    if units == 1:
        warn_undefined("all answers are of one group, so that there are no intervals (NaN)")
        undefined = (np.nan, np.nan, np.nan, np.nan, LEVEL, 0)
        figures = {key: Interval(interval.estimate, *undefined) for key, interval in figures.items()}
    counts_by_cell = {name: int(count) for name, count in zip(CELLS, cells.sum(1))}
    return Agreement(n, None if clusters is None else units, counts_by_cell, figures)


def _by_chance(cells: Floats) -> Floats:
    """The share on which two would agree who decide independently, of cells (4, B)."""
    right, ours, theirs, neither = cells
    chance: Floats = (right + ours) * (right + theirs) + (theirs + neither) * (ours + neither)
    return chance


def _kappa(cells: Floats) -> Floats:
    """Cohen's kappa of cells (4, B), NaN where people gave one verdict only."""
    right = cells[0] + cells[2]
    defined = (right > 0) & (cells[1] + cells[3] > 0)
    chance = np.where(defined, _by_chance(cells), 0.0)
    return np.where(defined, (cells[0] + cells[3] - chance) / (1 - chance), np.nan)


def _beyond(agreed: float, cells: Floats) -> float:
    """Kappa at another agreement than that of cells (4, 1)."""
    chance = float(_by_chance(cells)[0])
    return max(-1.0, (agreed - chance) / (1 - chance)) if chance < 1 else np.nan


def _few(share: float, n: int) -> bool:
    return min(share, 1 - share) * n < FEW_OF_A_CLASS - 0.5
