"""Errors over runs, intervals and tests over questions, and tests of slices.

The standard error over runs measures the effect of sampling new answers to the same questions. The interval
over questions measures the effect of other questions. Neither replaces the other.
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
    as_pairs,
    check_bins,
    check_same_length,
    draw_counts,
    draw_uniforms,
    shared_table,
    warn_undefined,
)
from semcal.metrics.overview import METRICS, measure_rows, noise_floor
from semcal.registry import check_name

#: Confidence level of intervals, and its quantiles.
LEVEL = 0.95
ENDS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
#: Below these numbers of units, and of answers in a class, calibration errors and AUROC have wider intervals.
FEW_QUESTIONS, FEW_OF_A_CLASS = 200, 30

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True)
class MeanOverRuns:
    """Mean and standard error over runs (the paper's ±); the error of a single run is NaN."""

    mean: float
    standard_error: float
    runs: int


@dataclass(frozen=True)
class Interval:
    """A metric of the data (the mean over runs) with its uncertainty over questions.

    `low` and `high` are the ends of the 95% interval (:func:`bootstrap`). `standard_error` is the standard
    deviation over resamples, and `resamples` the number of resamples in which the metric is defined.
    """

    estimate: float
    low: float
    high: float
    standard_error: float
    resamples: int

    def holding(self, low: float, high: float) -> Interval:
        """Return the interval widened to these ends; NaN stays NaN."""
        return replace(self, low=min(self.low, low), high=max(self.high, high))


@dataclass(frozen=True)
class PairedTest:
    """The metric of two methods on the same questions, and the difference first - second.

    `low`, `high`, `standard_error` and `resamples` are those of an :class:`Interval` of the difference.
    `p_value` is the two-sided p-value of a true difference of 0.
    """

    first: float
    second: float
    difference: float
    low: float
    high: float
    standard_error: float
    p_value: float
    resamples: int


@dataclass(frozen=True, eq=False)
class Contrast:
    """A signed sum of metrics, and its value in each resample.

    Contrasts of the same or of independent resamples can be added and scaled.
    """

    value: float  # of the data
    resampled: Floats  # (resamples,), NaN if undefined

    def __add__(self, term: Contrast) -> Contrast:
        return Contrast(self.value + term.value, self.resampled + term.resampled)

    def __sub__(self, term: Contrast) -> Contrast:
        return self + term * -1.0

    def __mul__(self, factor: float) -> Contrast:
        return Contrast(factor * self.value, factor * self.resampled)

    @classmethod
    def mean(cls, parts: Iterable[Contrast]) -> Contrast:
        """Return the mean of some contrasts."""
        values, resampled = zip(*((contrast.value, contrast.resampled) for contrast in parts))
        return cls(float(np.mean(values)), np.mean(resampled, axis=0))

    def interval(self) -> Interval:
        """Return the bias-corrected interval over questions."""
        return interval_of("a contrast", self.value, self.resampled)

    def p_value(self) -> float:
        """Return the two-sided p-value of a true value of 0."""
        values = self.resampled[~np.isnan(self.resampled)]
        if np.isnan(self.value) or not len(values):
            return float("nan")
        # 1e-12: equal methods have p = 1 despite rounding
        strays = np.abs(values - values.mean()) >= abs(self.value) - 1e-12
        return float((1 + strays.sum()) / (1 + len(values)))


@dataclass(frozen=True, eq=False)
class JointBootstrap(Generic[_Key]):
    """The metrics of several methods in the data and in the same resamples of the questions.

    A pickled copy in another process supports contrasts and tests, but not intervals of single metrics.
    """

    estimates: Mapping[_Key, Mapping[str, float]]  # method → metric → mean over runs
    resampled: Mapping[_Key, Mapping[str, Floats]]  # method → metric → value in each resample, or NaN
    right: Mapping[_Key, float]  # correct answers of a method, mean over runs
    n: int  # questions
    units: int  # resampled units: questions or groups
    if_calibrated: Callable[[_Key, str], Floats] = field(repr=False)
    """(method, calibration error) → value in each resample if the confidences were calibrated."""

    def interval(self, key: _Key, metric: str) -> Interval:
        """Return the bias-corrected interval of one metric over questions (:func:`bootstrap`)."""
        kind, estimate, values = METRICS[metric], self.estimates[key][metric], self.resampled[key][metric]
        interval = interval_of(metric, estimate, values, raised=kind.raised, least=kind.least, most=1.0)
        if kind.of_outcomes:
            error = interval.standard_error
            return interval.holding(*wilson_interval(estimate, error, self.units, LEVEL, kind.least))
        if kind.of_area is not None:
            right = self.right[key] * self.units / self.n
            wrong = self.units - right
            if np.isnan(interval.low) or min(right, wrong) >= FEW_OF_A_CLASS:
                return interval
            scale, shift = kind.of_area  # of AUROC, or of PRR = 2 AUROC - 1
            ends = area_interval((interval.estimate + shift) / scale, right, wrong)
            return interval.holding(*(scale * end - shift for end in ends))
        if not kind.zero_if_calibrated or not interval.low > 0:
            return interval
        null = self.if_calibrated(key, metric)
        # 1e-12: if no sign changes, the simulated value equals the estimate up to rounding
        if not estimate > np.quantile(null, ENDS[1]) + 1e-12:
            return replace(interval, low=0.0)
        if self.units >= FEW_QUESTIONS:
            return interval
        least = 2 * estimate - interval.high - float(null.mean())
        return replace(interval, low=min(interval.low, max(least, 0.0)))

    def contrast(self, key: _Key, metric: str) -> Contrast:
        """Return one metric of one method as a contrast."""
        return Contrast(self.estimates[key][metric], self.resampled[key][metric])

    def paired(self, first: _Key, second: _Key, metric: str) -> PairedTest:
        r"""Test the difference of two methods in one metric by a paired bootstrap.

        Both methods are measured on each resample, so that the common difficulty of a question cancels. With
        d the difference and :math:`d^*` that of a resample, the p-value is the share of resamples that differ
        from their mean by at least as much as d from 0,

        .. math:: p = \frac{1 + \#\{|d^* - \overline{d^*}| \ge |d|\}}{1 + B}.

        A permutation test of the methods would test exchangeable confidences, not equal metrics; confidences
        at two temperatures are never exchangeable. Source: Efron and Tibshirani (1993), An Introduction to
        the Bootstrap, chapter 16.
        """
        difference = self.contrast(first, metric) - self.contrast(second, metric)
        span = 1.0 - METRICS[metric].least
        resampled = difference.resampled
        interval = interval_of(f"{metric} difference", difference.value, resampled, least=-span, most=span)
        return PairedTest(
            first=self.estimates[first][metric],
            second=self.estimates[second][metric],
            difference=difference.value,
            low=interval.low,
            high=interval.high,
            standard_error=interval.standard_error,
            p_value=difference.p_value(),
            resamples=interval.resamples,
        )

    def __getstate__(self) -> dict[str, object]:
        return vars(self) | {"if_calibrated": _elsewhere}


def mean_and_standard_error(values: ArrayLike) -> MeanOverRuns:
    r"""Compute the mean and the standard error of a metric over R runs.

    .. math:: \bar x = \frac1R \sum_r x_r, \qquad
              \mathrm{SE} = \frac{1}{\sqrt R} \sqrt{\frac{1}{R-1} \sum_r (x_r - \bar x)^2}

    The questions are fixed. The uncertainty over questions (:func:`bootstrap`) is usually several times
    larger. `values` (R,) holds the metric of each run; another shape is an InputError. The standard error of
    one run is NaN. A NaN among the values makes both results NaN. Both cases have an UndefinedWarning.

    >>> mean_and_standard_error([0.80, 0.82, 0.81, 0.83])
    MeanOverRuns(mean=0.815, standard_error=0.0064549..., runs=4)
    """
    array = as_numbers(values, "values")
    if array.ndim != 1 or not len(array):
        raise InputError(f"values: got shape {array.shape}. Pass one number per run, shape (R,) with R >= 1")
    nan = np.flatnonzero(np.isnan(array))
    if len(nan):
        warn_undefined(f"the metric of run {nan[0]} is NaN, so mean and standard error over runs are NaN")
    elif len(array) == 1:
        warn_undefined("the standard error over a single run is undefined (NaN). Use at least two runs.")
    error = array.std(ddof=1) / np.sqrt(len(array)) if len(array) > 1 else np.nan
    return MeanOverRuns(float(array.mean()), float(error), len(array))


def joint_bootstrap(
    methods: Mapping[_Key, tuple[ArrayLike, ArrayLike]],
    *,
    metrics: Sequence[str] | None = None,
    groups: GroupLabels | None = None,
    bins: int = 15,
    resamples: int = 1000,
    seed: int | Sequence[int] | np.random.Generator = 0,
) -> JointBootstrap[_Key]:
    """Measure several methods on the same resamples of the questions, for paired tests and intervals.

    The intervals are those of :func:`bootstrap` with the same seed, the tests those of
    :meth:`JointBootstrap.paired`. `methods` maps a key to (confidence, correct), arrays of shape (N,) for one
    run, or (R, N) for the mean of R runs. All methods have the same N questions in the same order, else
    InputError. Other options and errors are those of :func:`bootstrap`. If all metrics are rankings, any
    score is allowed.

    >>> rng = np.random.default_rng(1)
    >>> chance = rng.uniform(size=500)
    >>> correct = rng.uniform(size=500) < chance
    >>> methods = {"sharp": (chance**0.3, correct), "fair": (chance, correct)}
    >>> both = joint_bootstrap(methods, metrics=["brier"])
    >>> test = both.paired("sharp", "fair", "brier")
    >>> test.difference > 0, test.p_value < 0.01
    (True, True)
    """
    names = [check_name(name, METRICS, what="metric") for name in (METRICS if metrics is None else metrics)]
    ranks = all(METRICS[name].ranks for name in names)
    runs = {key: ScoredRuns.of(*arrays, any_score=ranks) for key, arrays in methods.items()}
    if len({method.n for method in runs.values()}) > 1:
        numbers = ", ".join(f"{key}: {method.n}" for key, method in runs.items())
        raise InputError(f"methods have different numbers of questions ({numbers}). Give the same questions.")
    return _bootstrapped(runs, names, groups, bins, resamples, seed)


def bootstrap(
    confidence: ArrayLike,
    correct: ArrayLike,
    *,
    metrics: Sequence[str] | None = None,
    score: ArrayLike | None = None,
    groups: GroupLabels | None = None,
    bins: int = 15,
    resamples: int = 1000,
    seed: int | np.random.Generator = 0,
) -> dict[str, Interval]:
    r"""Compute bias-corrected bootstrap intervals and standard errors over questions.

    Questions, or whole groups of questions (such as those on one passage), are drawn with replacement. With
    :math:`\hat\theta` the metric of the data, :math:`\theta^*` that of a resample, q its 2.5% and 97.5%
    quantiles, and :math:`b = \overline{\theta^*} - \hat\theta` the bias of resampling, the interval is

    .. math:: [\,q_\text{low} - b,\; q_\text{high} - b\,].

    Random variation of the outcomes raises ECE, ACE, SmoothECE, MCB, DSC, reliability and resolution, and
    resampling raises them again. For these, the variation of the estimate also corrects the lower end,

    .. math:: [\,2\hat\theta - q_\text{high},\; q_\text{high} - b\,],

    A bootstrap is not consistent at the value 0. The lower end of a calibration error (all of these but DSC
    and resolution) is therefore 0 if the estimate is not above the upper quantile of the metric for simulated
    calibrated outcomes (with groups, from one uniform number a group). With fewer than 200 questions or
    groups, the lower end is at most :math:`2\hat\theta - (q_\text{high} - b)` minus the mean of the noise
    floor (:func:`noise_floor`).

    Intervals of accuracy, Brier score and gain include Wilson's interval, generalized to the range and the
    standard error of the values. With fewer than 30 correct or 30 wrong answers (a group counts once), the
    intervals of AUROC and of PRR = 2 AUROC - 1 include Newcombe's. Simulations with 10 to 500 questions are
    in docs/decisions/few-questions.md. Ends stay within the range of the metric, and the estimate within the
    interval.

    Source: Efron and Tibshirani (1993), An Introduction to the Bootstrap, chapters 10 and 13. Bröcker and
    Smith (2007), Increasing the Reliability of Reliability Diagrams, Weather and Forecasting 22 (outcomes
    drawn from forecasts). Newcombe (2006), Confidence intervals for an effect size measure based on the
    Mann-Whitney statistic, part 2, Statistics in Medicine 25 (method 5). Wilson (1927), Probable inference,
    the law of succession, and statistical inference, JASA 22.

    Parameters
    ----------
    confidence : array_like of float, shape (N,) or (R, N)
        Probabilities of one run, or of R runs on the same N questions. The metric of R runs is the mean over
        runs, and the runs of a question are drawn together.
    correct : array_like of bool, same shape
    metrics : sequence of str, optional
        Keys of :func:`semcal.metrics.summary` other than n; all of them by default.
    score : array_like of float, same shape, optional
        Scores for AUROC, AURAC and PRR; the confidence by default.
    groups : sequence of N labels, optional
        Group of each question, a text or a number. By default, each question is its own group. With fewer
        than about 30 groups, the interval is too narrow; with one group, there is none.
    bins : int
        Number of bins of ECE and ACE.
    resamples : int
        Number of resamples, at least 2.

    Returns
    -------
    dict of str to Interval
        In the order of `metrics`. Resamples in which a metric is undefined are not counted. If the metric is
        undefined for the data, the interval is NaN, with an UndefinedWarning.

    Raises
    ------
    InputError
        As :func:`semcal.metrics.summary`.
    UsageError
        An unknown metric, fewer than 2 resamples.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> confidence = rng.uniform(size=500)
    >>> correct = rng.uniform(size=500) < confidence
    >>> interval = bootstrap(confidence, correct, metrics=["ace"])["ace"]
    >>> interval.low, interval.low <= interval.estimate <= interval.high
    (0.0, True)
    """
    names = [check_name(name, METRICS, what="metric") for name in (METRICS if metrics is None else metrics)]
    runs = ScoredRuns.of(confidence, correct, score)
    joint = _bootstrapped({None: runs}, names, groups, bins, resamples, seed)
    return {name: joint.interval(None, name) for name in names}


def interval_of(
    name: str,
    estimate: float,
    resampled: Floats,
    *,
    raised: bool = False,
    least: float = -np.inf,
    most: float = np.inf,
) -> Interval:
    """Compute the bias-corrected interval from values over resamples, NaN if undefined.

    `raised` is true if noise in the outcomes raises the value. `least` and `most` bound its range.
    """
    resampled = resampled[~np.isnan(resampled)]
    if np.isnan(estimate) or len(resampled) < 2:
        warn_undefined(f"{name} is undefined for these data or their resamples; its interval is NaN")
        return Interval(estimate, np.nan, np.nan, np.nan, len(resampled))
    low, high = np.quantile(resampled, ENDS).tolist()
    bias = float(resampled.mean()) - estimate
    low = 2 * estimate - high if raised else low - bias
    low, high = (float(np.clip(end, least, most)) for end in (low, high - bias))
    error = float(resampled.std(ddof=1))
    return Interval(estimate, min(low, estimate), max(high, estimate), error, len(resampled))


def wilson_interval(
    mean: float, standard_error: float, units: int, level: float, least: float = 0.0
) -> tuple[float, float]:
    r"""Compute Wilson's score interval (1927) of a mean over n units with values from `least` to 1.

    .. math:: \frac{n \bar x + z^2 m \pm z \sqrt{n^2 s^2 + z^2 h^2}}{n + z^2}, \quad
              m = \frac{1 + \text{least}}{2}, \quad h = \frac{1 - \text{least}}{2},

    with s the standard error. The interval counts z² additional units, half of them at each end of the range,
    so that its width is positive even if all units agree.
    """
    z2 = float(scipy.special.ndtri((1 + level) / 2)) ** 2
    center = (units * mean + z2 * (1 + least) / 2) / (units + z2)
    spread = (units * standard_error) ** 2 + z2 * ((1 - least) / 2) ** 2
    half = float(np.sqrt(z2 * spread)) / (units + z2)
    return max(center - half, least), min(center + half, 1.0)


def area_interval(area: float, right: float, wrong: float) -> tuple[float, float]:
    """Compute Newcombe's interval of an AUROC from the numbers of correct and wrong answers (2006, method 5).

    The ends are the true AUROCs from which the observed one differs by z standard errors (Hanley and
    McNeil's, with the mean class size for both). The width is positive even for an AUROC of 1.
    """
    half = (right + wrong) / 2 - 1

    def excess(true: float) -> float:
        spread = 1 + half * ((1 - true) / (2 - true) + true / (1 + true))
        variance = true * (1 - true) * spread / (right * wrong)
        return float((area - true) ** 2 - scipy.special.ndtri(ENDS[1]) ** 2 * variance)

    tiny = 1e-12
    low = scipy.optimize.brentq(excess, 0.0, min(area, 1 - tiny)) if area > tiny else 0.0
    high = scipy.optimize.brentq(excess, max(area, tiny), 1.0) if area < 1 - tiny else 1.0
    return low, high


def _averages(
    runs: ScoredRuns, metrics: Sequence[str], bins: int, tabulate: Callable[[Floats, Floats], FrequencyTable]
) -> dict[str, Floats]:
    """Average each metric of the tables over runs: [B]."""
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
    return {name: np.mean([values[name] for values in by_run], axis=0) for name in metrics}


def _calibrated_errors(
    methods: Mapping[_Key, ScoredRuns],
    resamples: int,
    groups: Groups | None,
    bins: int,
    rng: np.random.Generator,
) -> Callable[[_Key, str], Floats]:
    """Simulate calibration errors of calibrated confidences, with the same numbers for all methods."""
    n = next(iter(methods.values())).n if methods else 0

    @cache
    def uniforms() -> Floats:  # drawn after the resamples
        return draw_uniforms(n, resamples, rng, groups)

    @lru_cache(maxsize=1)  # successive calls are for one method
    def tables(key: _Key) -> list[FrequencyTable]:
        return [shared_table(values, uniforms() < values) for values in methods[key].confidences]

    def errors(key: _Key, metric: str) -> Floats:
        values = [measure_rows(table, [metric], bins)[metric] for table in tables(key)]
        mean: Floats = np.mean(values, axis=0)
        return mean

    return errors


def _bootstrapped(
    methods: Mapping[_Key, ScoredRuns],
    names: Sequence[str],
    groups: GroupLabels | None,
    bins: int,
    resamples: int,
    seed: Any,
) -> JointBootstrap[_Key]:
    bins = check_bins(bins)
    expected = "a whole number of at least 2, such as 1000"
    resamples = int(as_option(resamples, "resamples", expected, low=1, whole=True))
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
    estimates = {key: _averages(runs, names, bins, shared_table) for key, runs in methods.items()}
    return JointBootstrap(
        {key: {name: float(value[0]) for name, value in values.items()} for key, values in estimates.items()},
        resampled,
        {key: float(np.mean([outcomes.sum() for outcomes in runs.correct])) for key, runs in methods.items()},
        n,
        n if clusters is None else int(clusters.max()) + 1,
        _calibrated_errors(methods, resamples, clusters, bins, rng),
    )


def _elsewhere(*_: object) -> Floats:
    raise RuntimeError("intervals of single metrics are computed by the process that drew the resamples")


# ---- Tests in each slice of the questions ------------------------------------------------------------------

#: Minimum number of independent units in a tested slice.
FEWEST = 20
#: Maximum number of simulated outcomes for the test of one slice.
MOST_DRAWS = 20_000


@dataclass(frozen=True)
class Slice:
    """Figures and tests of the questions in one slice.

    `excess` is the mean confidence - accuracy, with its interval. `ace` is the calibration error, with its
    noise floor (`ace_floor`) and the p-value of calibration. `calibrated` is false if p, times the number of
    slices, is below 5%. `answered` is the number of answers at or above the threshold, `errors` the
    number of wrong ones, and `risk` their share with its interval. `kept` is false if the interval lies above
    the promised risk. Slices with fewer than 20 questions or groups are not tested; their tests are None.
    """

    value: str
    n: int
    accuracy: float
    mean_confidence: float
    excess: float
    excess_interval: tuple[float, float] | None
    ace: float
    ace_floor: float
    ace_p: float
    calibrated: bool | None
    answered: int | None = None
    errors: int | None = None
    risk: float | None = None
    risk_interval: tuple[float, float] | None = None
    kept: bool | None = None


def slices(
    confidence: ArrayLike,
    correct: ArrayLike,
    values: Sequence[str],
    *,
    answered: ArrayLike | None = None,
    risk_limit: float | None = None,
    groups: GroupLabels | None = None,
    seed: int = 0,
) -> list[Slice]:
    """Test calibration and the promise of a threshold in each slice, corrected for the number of slices.

    Parameters
    ----------
    confidence, correct : array_like, shape (N,)
        As in :func:`semcal.metrics.ece`, with the same errors.
    values : sequence of N str
        The slice of each question.
    answered : array_like of bool, shape (N,), optional
        True for each confidence at or above the threshold.
    risk_limit : float, optional
        Promised maximum share of wrong answers.
    groups : sequence of N labels, optional
        Group of each question. If given, the independent units are groups.
    seed : int
        Seed of the test of calibration.

    Returns
    -------
    list of Slice
        The largest first. All intervals of a kind hold together with 95% confidence (Bonferroni over the
        tested slices). The interval of the excess is Wilson's, that of the risk Clopper and Pearson's.

    Examples
    --------
    >>> right = [True] * 36 + [False] * 4 + [True] * 20 + [False] * 20
    >>> found = slices([0.9] * 80, right, ["a"] * 40 + ["b"] * 40)
    >>> [(one.value, round(one.excess, 2), one.calibrated) for one in found]
    [('a', 0.0, True), ('b', 0.4, False)]
    """
    p, c = as_pairs(confidence, correct)
    names = np.asarray(values, dtype=str)
    if names.shape != p.shape:
        raise InputError(f"values has shape {names.shape} and confidence {p.shape}. Give one value each.")
    units = np.arange(len(p)) if (labels := as_groups(groups, len(p))) is None else labels
    through = None if answered is None else as_correct(answered)
    if through is not None:
        check_same_length(p, through)
    parts = {name: np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())}
    tested = {name for name, part in parts.items() if len(np.unique(units[part])) >= FEWEST}
    alpha = (1 - LEVEL) / max(1, len(tested))
    found = []
    for name, part in sorted(parts.items(), key=lambda item: (-len(item[1]), item[0])):
        floor = noise_floor(
            p[part],
            c[part],
            groups=None if labels is None else units[part],
            draws=int(min(max(1000, 20 / alpha), MOST_DRAWS)),
            seed=seed,
        )
        excess, is_tested = p[part] - c[part], name in tested
        mean, excess_interval = float(excess.mean()), None
        if is_tested:  # Wilson's of a mean of values from -1 to 1, whose units are independent
            sums = np.bincount(np.unique(units[part], return_inverse=True)[1], excess - mean)
            n_units = len(sums)
            error = float(np.sqrt(np.sum(sums**2) * n_units / max(1, n_units - 1)) / len(excess))
            excess_interval = wilson_interval(mean, error, n_units, 1 - alpha, least=-1.0)
        found.append(
            Slice(
                value=name,
                n=len(part),
                accuracy=float(c[part].mean()),
                mean_confidence=float(p[part].mean()),
                excess=mean,
                excess_interval=excess_interval,
                ace=floor.observed,
                ace_floor=floor.mean,
                ace_p=floor.p_value,
                calibrated=floor.p_value >= alpha if is_tested else None,
                **_promise(c[part][through[part] > 0], risk_limit, alpha, is_tested)
                if through is not None
                else {},
            )
        )
    return found


def _promise(correct: Floats, limit: float | None, alpha: float, is_tested: bool) -> dict[str, Any]:
    """Count the errors of the answers, and test their share against the limit."""
    n, errors = len(correct), int((1 - correct).sum())
    counts = {"answered": n, "errors": errors, "risk": errors / n if n else None}
    if not n or not is_tested:
        return counts
    low = float(scipy.special.betaincinv(errors, n - errors + 1, alpha / 2)) if errors else 0.0
    high = float(scipy.special.betaincinv(errors + 1, n - errors, 1 - alpha / 2)) if errors < n else 1.0
    return counts | {"risk_interval": (low, high), "kept": None if limit is None else low <= limit}
