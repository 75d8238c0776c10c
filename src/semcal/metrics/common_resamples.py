"""Several methods on the same resamples of the questions: intervals, paired tests and contrasts of them all.

What `bootstrap` and `paired_test` compute for one method and one pair, at the cost of each method once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from semcal.arrays import as_generator
from semcal.errors import InputError
from semcal.metrics.intervals import (
    Interval,
    PairedTest,
    at_zero_if,
    check_options,
    interval_of,
    may_be_calibrated,
    p_value_of,
    without_single_group,
)
from semcal.metrics.recount import Counts, Recount
from semcal.metrics.resampling import Labels, Runs, as_groups, turned
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
    level : float
    if_calibrated : callable
        (method, error of calibration) → its values, shape (resamples,), with outcomes drawn from the
        confidences; computed when an interval first asks for them.
    """

    estimates: Mapping[Key, Mapping[str, float]]
    drawn: Mapping[Key, Mapping[str, Floats]]
    level: float
    if_calibrated: Callable[[Key, str], Floats] = field(repr=False)

    def interval(self, key: Key, metric: str) -> Interval:
        """The interval over questions that `bootstrap` gives, up to rounding."""
        chosen, estimate = metric_named(metric), self.estimates[key][metric]
        found = interval_of(metric, chosen, estimate, self.drawn[key][metric], self.level)
        return (
            at_zero_if(found, self.if_calibrated(key, metric)) if may_be_calibrated(metric, found) else found
        )

    def contrast(self, key: Key, metric: str) -> Contrast:
        """One metric of one method, to be compared with others."""
        return Contrast(self.estimates[key][metric], self.drawn[key][metric])

    def paired(self, first: Key, second: Key, metric: str) -> PairedTest:
        """The test that `paired_test` gives, up to rounding."""
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
    metrics: Sequence[str] | None = None,
    groups: Labels | None = None,
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
    metrics : sequence of str, optional
        Keys of :func:`semcal.metrics.summary` other than n, all of them by default; if all those chosen rank,
        any score will do.
    groups, bins, level, resamples, seed
        As in :func:`semcal.metrics.bootstrap`; a sequence of numbers is a seed as well.

    Returns
    -------
    CommonResamples
        With the same seed its intervals are those of :func:`semcal.metrics.bootstrap`, and its tests those of
        :func:`semcal.metrics.paired_test`, up to rounding (1e-12).

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
    table = METRICS if metrics is None else {name: metric_named(name) for name in metrics}
    level, resamples, bins = check_options(level, resamples, bins)
    ranks = all(metric.ranks for metric in table.values())
    runs = {key: Runs.of(*given, any_score=ranks) for key, given in methods.items()}
    if len({one.n for one in runs.values()}) > 1:
        numbers = ", ".join(f"{key}: {one.n}" for key, one in runs.items())
        raise InputError(f"methods are compared on the same questions, got different numbers ({numbers})")
    rng = as_generator(seed)
    n = next(iter(runs.values())).n if runs else 0
    clusters = as_groups(groups, n) if runs else None
    counts = Counts.drawn(n, resamples, rng, clusters)
    return CommonResamples(
        {key: one.estimates(table, bins) for key, one in runs.items()},
        {
            key: without_single_group(_recounted(one, table, bins, counts), clusters)
            for key, one in runs.items()
        },
        level,
        _Nulls(runs, bins, counts, rng).of,
    )


def _recounted(runs: Runs, table: Mapping[str, Metric], bins: int, counts: Counts) -> dict[str, Floats]:
    """Each metric in each resample, averaged over runs."""
    ranked = [Recount(sample, counts, bins) for sample in runs.scores]
    same = runs.confidences is None or runs.confidences is runs.scores
    calibrated = ranked if same else [Recount(one, counts, bins) for one in runs.confidences or ()]
    return {
        name: np.mean([one.metric(name) for one in (ranked if metric.ranks else calibrated)], axis=0)
        for name, metric in table.items()
    }


class _Nulls(Generic[Key]):
    """Errors of calibration if the confidences were calibrated, by the same numbers for all methods."""

    def __init__(self, runs: Mapping[Key, Runs], bins: int, counts: Counts, rng: np.random.Generator) -> None:
        self.runs, self.bins, self.counts, self.rng = runs, bins, counts, rng
        self.outcomes = lru_cache(maxsize=1)(self._outcomes)  # those of one method are asked for in a row

    def of(self, key: Key, metric: str) -> Floats:
        """One error of one method, averaged over runs."""
        found = [run.if_calibrated(metric, right) for run, right in self.outcomes(key)]
        mean: Floats = np.mean(found, axis=0)
        return mean

    @cached_property
    def numbers(self) -> Floats:
        """The numbers (with groups: signs) that follow those of the resamples, as in `bootstrap`: [N, B]."""
        rows, n = self.counts.double.shape[::-1]
        groups = self.counts.groups
        drawn = self.rng.random((rows, n)) if groups is None else turned(rows, groups, self.rng)
        return np.ascontiguousarray(drawn.T)

    def _outcomes(self, key: Key) -> list[tuple[Recount, Floats]]:
        runs = self.runs[key]
        several = [
            Recount(one, self.counts, self.bins)
            for one in (runs.scores if runs.confidences is None else runs.confidences)
        ]
        return [(one, one.calibrated_outcomes(self.numbers)) for one in several]
