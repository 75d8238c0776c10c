"""How sure one can be of a number: errors over runs, and intervals and tests from bootstrap resamples.

The error over runs is of the same questions and says how much sampling answers anew would move the number.
The interval over questions says how much other questions would. Neither stands for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np
import scipy
from numpy.typing import ArrayLike

from semcal.arrays import as_numbers
from semcal.errors import InputError
from semcal.metrics.frequencies import Floats, warn_undefined
from semcal.metrics.overview import METRICS

#: With fewer units an error of calibration, and with fewer of one class an AUROC, has a wider interval.
FEW_QUESTIONS, FEW_OF_A_CLASS = 200, 30

Key = TypeVar("Key", bound=Hashable)


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

    def __add__(self, other: Contrast) -> Contrast:
        return Contrast(self.value + other.value, self.resampled + other.resampled)

    def __sub__(self, other: Contrast) -> Contrast:
        return self + other * -1.0

    def __mul__(self, factor: float) -> Contrast:
        return Contrast(factor * self.value, factor * self.resampled)

    @classmethod
    def mean(cls, parts: Iterable[Contrast]) -> Contrast:
        """The mean of some contrasts."""
        several = list(parts)
        return cls(
            float(np.mean([one.value for one in several])),
            np.mean([one.resampled for one in several], axis=0),
        )

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
class JointBootstrap(Generic[Key]):
    """The metrics of several methods in the data and in the same resamples of the questions.

    In another process (pickled) it gives contrasts and tests, no intervals of single metrics.
    """

    estimates: Mapping[Key, Mapping[str, float]]  # method → metric → its mean over runs
    resampled: Mapping[Key, Mapping[str, Floats]]  # … → its value in each resample, NaN where undefined
    right: Mapping[Key, float]  # right answers of a method, mean over runs
    n: int  # questions
    units: int  # of them that are drawn: questions, or their groups
    level: float
    if_calibrated: Callable[[Key, str], Floats] = field(repr=False)
    """(method, error of calibration) → its value in each resample if the confidences were calibrated."""

    def interval(self, key: Key, metric: str) -> Interval:
        """The bias-corrected interval of one metric over questions (:func:`bootstrap`)."""
        kind, estimate = METRICS[metric], self.estimates[key][metric]
        resampled = self.resampled[key][metric]
        found = interval_of(
            metric, estimate, resampled, self.level, raised=kind.raised, least=kind.least, most=1.0
        )
        if kind.of_outcomes:
            return at_least_wilsons(found, self.units, kind.least)
        if kind.of_area is not None:
            return self._at_least_newcombes(found, self.right[key] * self.units / self.n, *kind.of_area)
        if not kind.zero_if_calibrated or not found.low > 0:
            return found
        null = self.if_calibrated(key, metric)
        # 1e-12: signs that turn nothing give the estimate itself
        if not estimate > np.quantile(null, (1 + self.level) / 2) + 1e-12:
            return replace(found, low=0.0)
        if self.units >= FEW_QUESTIONS:
            return found
        least = 2 * estimate - found.high - float(null.mean())
        return replace(found, low=min(found.low, max(least, 0.0)))

    def _at_least_newcombes(self, found: Interval, right: float, scale: float, shift: float) -> Interval:
        """The interval of AUROC, or of PRR = 2 AUROC - 1, widened where a class is of few units."""
        wrong = self.units - right
        if np.isnan(found.low) or min(right, wrong) >= FEW_OF_A_CLASS:
            return found
        area = (found.estimate + shift) / scale
        low, high = (scale * end - shift for end in area_interval(area, right, wrong, self.level))
        return replace(found, low=min(low, found.low), high=max(high, found.high))

    def contrast(self, key: Key, metric: str) -> Contrast:
        """One metric of one method, to be compared with others."""
        return Contrast(self.estimates[key][metric], self.resampled[key][metric])

    def paired(self, first: Key, second: Key, metric: str) -> PairedTest:
        """The test of two methods by one metric (:func:`paired_test`)."""
        difference = self.contrast(first, metric) - self.contrast(second, metric)
        span = 1.0 - METRICS[metric].least
        found = interval_of(
            f"{metric} difference",
            difference.value,
            difference.resampled,
            self.level,
            least=-span,
            most=span,
        )
        return PairedTest(
            first=self.estimates[first][metric],
            second=self.estimates[second][metric],
            difference=difference.value,
            low=found.low,
            high=found.high,
            standard_error=found.standard_error,
            p_value=difference.p_value(),
            level=self.level,
            resamples=found.resamples,
        )

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"if_calibrated": _elsewhere}


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
    if np.isnan(interval.low):
        return interval
    low, high = wilson_interval(interval.estimate, interval.standard_error, units, interval.level, least)
    return replace(interval, low=min(interval.low, low), high=max(interval.high, high))


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


def _elsewhere(*_: object) -> Floats:
    raise RuntimeError("intervals of single metrics are computed by the process that drew the resamples")
