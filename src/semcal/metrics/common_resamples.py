"""Several methods on the same resamples of the questions: intervals, paired tests and contrasts of them all.

What `bootstrap` and `paired_test` compute for one method and one pair, at the cost of each method once.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from semcal.errors import InputError
from semcal.metrics.intervals import Interval, PairedTest, check_options, interval_of, p_value_of
from semcal.metrics.resampling import Runs, if_calibrated, resampled
from semcal.metrics.table import METRICS, Metric, metric_named
from semcal.metrics.tally import Floats

__all__ = ["CommonResamples", "Contrast", "common_resamples"]

Key = TypeVar("Key", bound=Hashable)
_SIGNED = Metric(METRICS["brier"].rows, least=-np.inf)


@dataclass(frozen=True, eq=False)
class Contrast:
    """A sum of metrics with signs, and its value in each resample.

    Contrasts of the same or of independent resamples can be added and scaled.

    Attributes
    ----------
    value : float
        Of the data.
    drawn : ndarray of float64, shape (resamples,)
        Of each resample; NaN where it is undefined.
    """

    value: float
    drawn: Floats

    def __add__(self, other: Contrast) -> Contrast:
        return Contrast(self.value + other.value, self.drawn + other.drawn)

    def __sub__(self, other: Contrast) -> Contrast:
        return self + other * -1.0

    def __mul__(self, factor: float) -> Contrast:
        return Contrast(factor * self.value, factor * self.drawn)

    @classmethod
    def mean(cls, parts: Iterable[Contrast]) -> Contrast:
        """The mean of some contrasts."""
        several = list(parts)
        return cls(
            float(np.mean([one.value for one in several])), np.mean([one.drawn for one in several], axis=0)
        )

    def interval(self, *, level: float = 0.95) -> Interval:
        """Bias-corrected interval over questions."""
        return interval_of("a contrast", _SIGNED, self.value, self.drawn, level)

    def p_value(self) -> float:
        """Two-sided p-value of the hypothesis that the true value is 0."""
        return p_value_of(self.value, self.drawn)


@dataclass(frozen=True, eq=False)
class CommonResamples(Generic[Key]):
    """The metrics of several methods in the data and in the same resamples of the questions.

    Attributes
    ----------
    estimates : mapping of key to mapping of str to float
        Method → metric → its value (mean over runs).
    drawn : mapping of key to mapping of str to ndarray of float64, shape (resamples,)
        Method → metric → its value in each resample.
    calibrated : mapping of key to mapping of str to ndarray of float64, shape (resamples,)
        The same for errors of calibration, with outcomes drawn from the confidences.
    level : float
    """

    estimates: Mapping[Key, Mapping[str, float]]
    drawn: Mapping[Key, Mapping[str, Floats]]
    calibrated: Mapping[Key, Mapping[str, Floats]]
    level: float

    def interval(self, key: Key, metric: str) -> Interval:
        """The interval over questions that `bootstrap` gives."""
        chosen, estimate = metric_named(metric), self.estimates[key][metric]
        found = interval_of(metric, chosen, estimate, self.drawn[key][metric], self.level)
        null = self.calibrated[key].get(metric)
        if null is not None and found.estimate <= np.quantile(null, (1 + self.level) / 2):
            return replace(found, low=0.0)
        return found

    def contrast(self, key: Key, metric: str) -> Contrast:
        """One metric of one method, to be compared with others."""
        return Contrast(self.estimates[key][metric], self.drawn[key][metric])

    def paired(self, first: Key, second: Key, metric: str) -> PairedTest:
        """The test that `paired_test` gives."""
        difference = self.contrast(first, metric) - self.contrast(second, metric)
        interval = difference.interval(level=self.level)
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


def common_resamples(
    methods: Mapping[Key, tuple[ArrayLike, ArrayLike]],
    *,
    metrics: Sequence[str],
    bins: int = 15,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int | Sequence[int] = 0,
) -> CommonResamples[Key]:
    """Measure several methods on the same resamples of the questions.

    Parameters
    ----------
    methods : mapping of key to (confidence, correct)
        Arrays of shape (N,) or (R, N): one run, or R runs of which the mean is taken; the same N questions in
        the same order for all.
    metrics : sequence of str
        Keys of :func:`semcal.metrics.summary` other than n; if all of them rank, any score will do.
    bins, level, resamples, seed
        As in :func:`semcal.metrics.bootstrap`; a sequence of numbers is a seed as well.

    Returns
    -------
    CommonResamples
        With the same seed its intervals are those of :func:`semcal.metrics.bootstrap`, and its tests those of
        :func:`semcal.metrics.paired_test`.

    Raises
    ------
    InputError
        As :func:`semcal.metrics.summary`; also if the methods were not given the same number of questions.
    UsageError
        An unknown metric, a level outside (0, 1), fewer than 2 resamples.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> chance = rng.uniform(size=500)
    >>> correct = rng.uniform(size=500) < chance
    >>> methods = {"sharp": (chance**0.3, correct), "fair": (chance, correct)}
    >>> both = common_resamples(methods, metrics=["brier"])
    >>> test = both.paired("sharp", "fair", "brier")
    >>> test.difference > 0, test.p_value < 0.01
    (True, True)
    """
    table = {name: metric_named(name) for name in metrics}
    bins = check_options(level, resamples, bins)
    ranks = all(metric.ranks for metric in table.values())
    runs = {key: Runs.of(*given, any_score=ranks) for key, given in methods.items()}
    if len({one.n for one in runs.values()}) > 1:
        counts = ", ".join(f"{key}: {one.n}" for key, one in runs.items())
        raise InputError(f"methods are compared on the same questions, got different numbers ({counts})")
    rng = np.random.default_rng(seed)
    drawn = resampled(list(runs.values()), table, bins, resamples, rng) if runs else []
    errors = {name: metric for name, metric in table.items() if metric.zero_if_calibrated}
    return CommonResamples(
        {key: one.estimates(table, bins) for key, one in runs.items()},
        dict(zip(runs, drawn)),
        {
            key: if_calibrated(one, errors, bins, resamples, copy.deepcopy(rng)) if errors else {}
            for key, one in runs.items()
        },
        level,
    )
