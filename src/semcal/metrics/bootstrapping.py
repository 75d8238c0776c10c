"""Bootstrap intervals and paired tests over questions, of one method or of several on the same resamples."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from semcal.arrays import as_generator, as_option
from semcal.errors import InputError
from semcal.metrics.argument_names import both_names
from semcal.metrics.frequencies import (
    Floats,
    FrequencyTable,
    Groups,
    Labels,
    Runs,
    as_groups,
    check_bins,
    draw_counts,
    draw_uniforms,
    frequency_table,
    shared_table,
)
from semcal.metrics.intervals import Interval, JointBootstrap, PairedTest
from semcal.metrics.overview import METRICS, measure_rows
from semcal.registry import check_name

Key = TypeVar("Key", bound=Hashable)


def joint_bootstrap(
    methods: Mapping[Key, tuple[ArrayLike, ArrayLike]],
    *,
    metrics: Sequence[str] | None = None,
    groups: Labels | None = None,
    bins: int = 15,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int | Sequence[int] | np.random.Generator = 0,
) -> JointBootstrap[Key]:
    """Measure several methods on the same resamples of the questions.

    The intervals are those of :func:`bootstrap` with the same seed, the tests those of :func:`paired_test`.
    Options and errors are those of :func:`bootstrap`; an InputError also if the methods were not given the
    same number of questions.

    Parameters
    ----------
    methods : mapping of key to (confidence, correct)
        Arrays of shape (N,) or (R, N): one run, or R runs of which the mean is taken; the same N questions in
        the same order for all.
    metrics : sequence of str, optional
        As in :func:`bootstrap`; if all those chosen rank, any score will do.
    seed : int, sequence of int or numpy.random.Generator

    Examples
    --------
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
    runs = {key: Runs.of(*given, any_score=ranks) for key, given in methods.items()}
    if len({one.n for one in runs.values()}) > 1:
        numbers = ", ".join(f"{key}: {one.n}" for key, one in runs.items())
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
    drawn from the confidences themselves (with groups: from one uniform number a group, which makes members
    right together). That is the test that inverts to an interval at the one value, 0, where a bootstrap is
    not consistent. Chance raises an error of calibration by at most its noise floor
    (:func:`noise_floor`): with fewer than 200 questions (or groups), where resamples show too little of that,
    the lower end is at most :math:`2\hat\theta - (q_\text{high} - b)` less the floor's mean.

    Where all of few questions are right, they are in every resample. Intervals of accuracy, Brier score and
    gain hold Wilson's as well, for the latter two with the range and the standard error of their values: as
    if z² more questions (or groups) had been seen, half of them at each end of the range. With fewer than 30
    right or 30 wrong answers (a group counts as one) the interval of AUROC (and of PRR, 2 AUROC - 1) holds
    Newcombe's as well. In simulation 95 % intervals of these and of ACE, ECE and SmoothECE then hold the true
    value in 89 to 100 % of data sets of 10 to 500 questions (docs/decisions/few-questions.md). Ends are kept
    within the range of the metric, and the estimate within the interval.

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
    from forecasts). Newcombe (2006), Confidence intervals for an effect size measure based on the
    Mann-Whitney statistic, part 2, Statistics in Medicine 25 (method 5). Wilson (1927), Probable inference,
    the law of succession, and statistical inference, JASA 22.

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
    runs = Runs.of(confidence, correct, score, weights=weights)
    found = _bootstrapped({None: runs}, names, groups, *options, seed)
    return {name: found.interval(None, name) for name in names}


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
    both = joint_bootstrap(
        {"first": (first_confidence, first_correct), "second": (second_confidence, second_correct)},
        metrics=[metric],
        groups=groups,
        bins=bins,
        level=level,
        resamples=resamples,
        seed=seed,
    )
    return both.paired("first", "second", metric)


def _averages(
    runs: Runs, metrics: Sequence[str], bins: int, tabulate: Callable[[Floats, Floats], FrequencyTable]
) -> dict[str, Floats]:
    """Each metric of the tables of values and outcomes, averaged over runs: [B]."""
    by_run = []
    for score, confidence, correct in zip(runs.scores, runs.confidences, runs.correct):
        table = tabulate(score, correct)
        same = confidence is score
        ranking = [name for name in metrics if same or METRICS[name].ranks]
        values = measure_rows(table, ranking, bins)
        if not same:
            plain = [name for name in metrics if not METRICS[name].ranks]
            values |= measure_rows(tabulate(confidence, correct), plain, bins)
        by_run.append(values)
    return {
        name: np.average([values[name] for values in by_run], axis=0, weights=runs.weights)
        for name in metrics
    }


def _calibrated_errors(
    methods: Mapping[Key, Runs],
    resamples: int,
    groups: Groups | None,
    bins: int,
    rng: np.random.Generator,
) -> Callable[[Key, str], Floats]:
    """Errors of calibration if the confidences were calibrated, from the same numbers for all methods."""
    n = next(iter(methods.values())).n if methods else 0

    @cache
    def uniforms() -> Floats:  # they follow those of the resamples
        return draw_uniforms(n, resamples, rng, groups)

    @lru_cache(maxsize=1)  # errors of one method are asked for in a row
    def tables(key: Key) -> list[FrequencyTable]:
        return [shared_table(values, uniforms() < values) for values in methods[key].confidences]

    def errors(key: Key, metric: str) -> Floats:
        values = [measure_rows(table, [metric], bins)[metric] for table in tables(key)]
        return np.average(values, axis=0, weights=methods[key].weights)

    return errors


def _bootstrapped(
    methods: Mapping[Key, Runs],
    names: Sequence[str],
    groups: Labels | None,
    bins: int,
    level: float,
    resamples: int,
    seed: Any,
) -> JointBootstrap[Key]:
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
        {key: {name: float(value[0]) for name, value in of.items()} for key, of in estimates.items()},
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
