"""Many paired tests on the same questions: each method is measured on the resamples once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from semcal.metrics.intervals import PairedTest, check_options, paired_from
from semcal.metrics.resampling import Runs, resampled
from semcal.metrics.table import metric_named

__all__ = ["paired_tests"]

Key = TypeVar("Key", bound=Hashable)


def paired_tests(
    methods: Mapping[Key, tuple[ArrayLike, ArrayLike]],
    pairs: Sequence[tuple[Key, Key]],
    *,
    metrics: Sequence[str],
    bins: int = 15,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[tuple[Key, Key, str], PairedTest]:
    """Compare pairs of methods by every metric.

    Parameters
    ----------
    methods : mapping of key to (confidence, correct)
        As for :func:`semcal.metrics.paired_test`, all on the same questions in the same order.
    pairs : sequence of (key, key)
    metrics : sequence of str
    bins, level, resamples, seed
        As in :func:`semcal.metrics.bootstrap`.

    Returns
    -------
    dict of (first, second, metric) to PairedTest
        What :func:`semcal.metrics.paired_test` gives, to the last digit.

    Raises
    ------
    InputError, UsageError
        As :func:`semcal.metrics.paired_test`.

    Examples
    --------
    >>> correct = [1, 0, 1, 1, 0, 1]
    >>> methods = {"a": ([0.9, 0.2, 0.8, 0.6, 0.4, 0.9], correct), "b": ([0.5] * 6, correct)}
    >>> found = paired_tests(methods, [("a", "b")], metrics=["brier", "ace"], resamples=100)
    >>> round(found["a", "b", "brier"].difference, 4)
    -0.18
    """
    bins = check_options(level, resamples, bins)
    found = {}
    for ranks in (False, True):  # what ranks takes any score, and is not to have its scores clipped
        table = {name: metric for name in metrics if (metric := metric_named(name)).ranks == ranks}
        if not table:
            continue
        runs = {key: Runs.of(*given, any_score=ranks) for key, given in methods.items()}
        rng = np.random.default_rng(seed)
        drawn = dict(zip(runs, resampled(list(runs.values()), table, bins, resamples, rng)))
        estimates = {key: one.estimates(table, bins) for key, one in runs.items()}
        for first, second in pairs:
            for name in table:
                values = [estimates[key][name] for key in (first, second)]
                of_resamples = [drawn[key][name] for key in (first, second)]
                found[first, second, name] = paired_from(name, values, of_resamples, level)
    return found
