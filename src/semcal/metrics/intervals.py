"""How sure one can be of a number: errors over runs, bootstrap intervals over questions, paired tests.

The error over runs holds the questions fixed and says how much sampling answers anew would move the number.
The interval over questions says how much other questions would. Neither stands for the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from semcal.arrays import as_generator, as_numbers, as_option
from semcal.errors import InputError
from semcal.metrics.resampling import Groups, Labels, Runs, as_groups, if_calibrated, resampled
from semcal.metrics.table import METRICS, Metric, metric_named
from semcal.metrics.tally import Floats, check_bins, warn_undefined

__all__ = ["Interval", "MeanOverRuns", "PairedTest", "bootstrap", "mean_and_standard_error", "paired_test"]


@dataclass(frozen=True)
class MeanOverRuns:
    """Mean and standard error over runs: the paper's ±.

    Attributes
    ----------
    mean : float
    standard_error : float
        Sample standard deviation over the square root of the number of runs; NaN for a single run.
    runs : int
    """

    mean: float
    standard_error: float
    runs: int


@dataclass(frozen=True)
class Interval:
    """A metric with its uncertainty over questions.

    Attributes
    ----------
    estimate : float
        The metric of the data (its mean over runs, where there are several).
    low, high : float
        Ends of the bias-corrected bootstrap interval.
    standard_error : float
        Over questions: standard deviation of the metric over resamples.
    bias : float
        Mean of the metric over resamples, minus the estimate.
    level : float
    resamples : int
        How many resamples the metric was defined in.
    """

    estimate: float
    low: float
    high: float
    standard_error: float
    bias: float
    level: float
    resamples: int


@dataclass(frozen=True)
class PairedTest:
    """Difference of a metric between two methods on the same questions.

    Attributes
    ----------
    first, second : float
        The metric of each method.
    difference : float
        first - second.
    low, high : float
        Ends of the bias-corrected bootstrap interval of the difference.
    standard_error : float
        Of the difference, over questions.
    p_value : float
        Two-sided, of the hypothesis that the true difference is 0.
    level : float
    resamples : int
        How many resamples the difference was defined in.
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


def mean_and_standard_error(values: ArrayLike) -> MeanOverRuns:
    r"""Mean and standard error of a metric over R runs.

    .. math:: \bar x = \frac1R \sum_r x_r, \qquad
              \mathrm{SE} = \frac{1}{\sqrt R} \sqrt{\frac{1}{R-1} \sum_r (x_r - \bar x)^2}

    The questions are held fixed, so this is not the uncertainty over questions (:func:`bootstrap`),
    which is usually several times larger.

    Parameters
    ----------
    values : array_like of float, shape (R,)
        The metric of each run.

    Returns
    -------
    MeanOverRuns

    Raises
    ------
    InputError
        No values, or values that are not one number a run.

    Warns
    -----
    UndefinedWarning
        One run has no standard error (NaN); a run whose metric is NaN makes both NaN.

    Examples
    --------
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


def bootstrap(
    confidence: ArrayLike,
    correct: ArrayLike,
    *,
    metrics: Sequence[str] | None = None,
    score: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    groups: Labels | None = None,
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
    resampling raises them again: their plain percentile interval lies too high, and on calibrated data it can
    miss the estimate itself. For these the scatter in the estimate is taken off the lower end as well,

    .. math:: [\,2\hat\theta - q_\text{high},\; q_\text{high} - b\,],

    and for the errors of calibration (all but DSC and resolution) the lower end is 0 if the outcomes do not
    contradict calibration: if the estimate is not above the upper quantile of the metric when outcomes are
    drawn from the confidences themselves (with groups: when the differences of outcome and confidence change
    sign at random, group by group). That is the test that inverts to an interval at the one value, 0, where a
    bootstrap is not consistent. In simulation 95 % intervals hold the true ACE, ECE or SmoothECE in
    89 to 99 % of data sets, percentile intervals in 0 to 97 % (docs/metrics.md). Ends are kept within the
    range of the metric, and the estimate within the interval.

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
        Number of resamples, at least 2.
    seed : int or numpy.random.Generator

    Returns
    -------
    dict of str to Interval
        In the order of `metrics`. Resamples in which a metric is undefined are left out and not counted.

    Raises
    ------
    InputError
        As :func:`semcal.metrics.summary`.
    UsageError
        An unknown metric, a level outside (0, 1), fewer than 2 resamples.

    Warns
    -----
    UndefinedWarning
        A metric is undefined for the data; its interval is NaN.

    References
    ----------
    Efron and Tibshirani (1993), An Introduction to the Bootstrap, chapters 10 and 13. Bröcker and Smith
    (2007), Increasing the Reliability of Reliability Diagrams, Weather and Forecasting 22 (outcomes drawn
    from forecasts).

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> confidence = rng.uniform(size=500)
    >>> correct = rng.uniform(size=500) < confidence
    >>> interval = bootstrap(confidence, correct, metrics=["ace"])["ace"]
    >>> interval.low, interval.low <= interval.estimate <= interval.high
    (0.0, True)
    """
    table = METRICS if metrics is None else {name: metric_named(name) for name in metrics}
    level, resamples, bins = check_options(level, resamples, bins)
    runs = Runs.of(confidence, correct, score, weights=weights)
    clusters = as_groups(groups, runs.n)
    rng = as_generator(seed)
    estimates = runs.estimates(table, bins)
    drawn = without_single_group(resampled([runs], table, bins, resamples, rng, clusters)[0], clusters)
    intervals = {
        name: interval_of(name, metric, estimates[name], drawn[name], level) for name, metric in table.items()
    }
    errors = {name: METRICS[name] for name, found in intervals.items() if may_be_calibrated(name, found)}
    calibrated = if_calibrated(runs, errors, bins, resamples, rng, clusters) if errors else {}
    return intervals | {name: at_zero_if(intervals[name], values) for name, values in calibrated.items()}


def paired_test(
    first_confidence: ArrayLike,
    first_correct: ArrayLike,
    second_confidence: ArrayLike,
    second_correct: ArrayLike,
    *,
    metric: str = "ace",
    groups: Labels | None = None,
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

    Parameters
    ----------
    first_confidence, second_confidence : array_like of float, shape (N,) or (R, N)
        Confidences of each method, the questions in the same order; any score will do for AUROC, AURAC and
        PRR.
    first_correct, second_correct : array_like of bool, same shapes
    metric : str
        A key of :func:`semcal.metrics.summary` other than n.
    groups, bins, level, resamples, seed
        As in :func:`bootstrap`.

    Returns
    -------
    PairedTest

    Raises
    ------
    InputError
        As :func:`semcal.metrics.summary`; also if the methods were not given the same number of questions.
    UsageError
        An unknown metric, a level outside (0, 1), fewer than 2 resamples.

    Warns
    -----
    UndefinedWarning
        The metric is undefined for one of the methods; the test is NaN.

    Notes
    -----
    Swapping the methods' labels question by question would test more than equal metrics (that confidences
    could be exchanged, which those at two temperatures never can), so it is not used.

    References
    ----------
    Efron and Tibshirani (1993), An Introduction to the Bootstrap, chapter 16.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> chance = rng.uniform(size=500)
    >>> correct = rng.uniform(size=500) < chance
    >>> test = paired_test(chance**0.3, correct, chance, correct, metric="brier")
    >>> test.difference > 0, test.p_value < 0.01
    (True, True)
    """
    chosen = metric_named(metric)
    level, resamples, bins = check_options(level, resamples, bins)
    pairs = ((first_confidence, first_correct), (second_confidence, second_correct))
    methods = [Runs.of(*pair, any_score=chosen.ranks) for pair in pairs]
    if methods[0].n != methods[1].n:
        raise InputError(
            f"the first method has {methods[0].n} questions, the second {methods[1].n}; "
            "a paired test needs the same questions in the same order"
        )
    first, second = (runs.estimates({metric: chosen}, bins)[metric] for runs in methods)
    clusters, rng = as_groups(groups, methods[0].n), as_generator(seed)
    drawn = [
        without_single_group(one, clusters)
        for one in resampled(methods, {metric: chosen}, bins, resamples, rng, clusters)
    ]
    difference = drawn[0][metric] - drawn[1][metric]
    signed = Metric(chosen.rows, least=-np.inf)
    interval = interval_of(f"{metric} difference", signed, first - second, difference, level)
    return PairedTest(
        first=first,
        second=second,
        difference=first - second,
        low=interval.low,
        high=interval.high,
        standard_error=interval.standard_error,
        p_value=p_value_of(first - second, difference),
        level=level,
        resamples=interval.resamples,
    )


def without_single_group(drawn: dict[str, Floats], groups: Groups | None) -> dict[str, Floats]:
    """NaN for every metric where all questions are of one group, as all resamples are then the same."""
    if groups is None or groups.max() > 0:
        return drawn
    return {name: np.full_like(values, np.nan) for name, values in drawn.items()}


def check_options(level: float, resamples: int, bins: int) -> tuple[float, int, int]:
    """Refuse options that make no sense; the same as plain numbers."""
    share = as_option(level, "level", "a number between 0 and 1, such as 0.95", low=0, high=1)
    count = as_option(resamples, "resamples", "a whole number, at least 2, better 1000", low=1, whole=True)
    return share, int(count), check_bins(bins)


def interval_of(name: str, metric: Metric, estimate: float, drawn: Floats, level: float) -> Interval:
    """Bias-corrected interval from the metric's values over resamples."""
    drawn = drawn[~np.isnan(drawn)]
    if np.isnan(estimate) or len(drawn) < 2:
        warn_undefined(f"{name} is undefined for these data or their resamples, and so is its interval (NaN)")
        return Interval(estimate, np.nan, np.nan, np.nan, np.nan, level, len(drawn))
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2]).tolist()
    bias = float(drawn.mean()) - estimate
    low = 2 * estimate - high if metric.raised else low - bias
    low, high = (float(np.clip(end, metric.least, 1.0)) for end in (low, high - bias))
    error = float(drawn.std(ddof=1))
    return Interval(estimate, min(low, estimate), max(high, estimate), error, bias, level, len(drawn))


def may_be_calibrated(name: str, interval: Interval) -> bool:
    """Whether the lower end is still to be tested against calibration: it is above 0, and 0 would mean it."""
    return metric_named(name).zero_if_calibrated and interval.low > 0


def at_zero_if(interval: Interval, calibrated: Floats) -> Interval:
    """The interval from 0 if its estimate is no larger than it may be under calibration."""
    largest = np.quantile(calibrated, (1 + interval.level) / 2)
    beyond = interval.estimate > largest + 1e-12  # signs that turn nothing give the estimate itself
    return interval if beyond else replace(interval, low=0.0)


def p_value_of(difference: float, drawn: Floats) -> float:
    """Two-sided p-value of a difference from its values over resamples."""
    drawn = drawn[~np.isnan(drawn)]
    if np.isnan(difference) or not len(drawn):
        return float("nan")
    strays = np.abs(drawn - drawn.mean()) >= abs(difference) - 1e-12  # equal methods: p = 1 despite rounding
    return float((1 + strays.sum()) / (1 + len(drawn)))
