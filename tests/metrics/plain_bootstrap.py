"""The bootstrap as it is defined: resamples written out row by row and measured by the plain metrics."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from semcal.errors import UndefinedWarning
from semcal.metrics import summary
from semcal.metrics.intervals import area_interval
from semcal.metrics.overview import METRICS

Floats = NDArray[np.float64]
Runs = Sequence[tuple[Floats, Floats]]


def plain_summary(runs: Runs) -> dict[str, float]:
    """Every metric, averaged over runs (confidence, correct)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)  # of resamples of one class
        found = [summary(p, c, draws=0) for p, c in runs]
    return {name: float(np.mean([one[name] for one in found])) for name in METRICS}


def plain_resamples(
    runs: Runs, resamples: int, rng: np.random.Generator, label: NDArray[np.int64] | None = None
) -> dict[str, Floats]:
    """Every metric of resamples of questions, or of whole groups of them: metric -> [resamples]."""
    groups = np.arange(len(runs[0][0])) if label is None else label
    members = [np.flatnonzero(groups == g) for g in range(groups.max() + 1)]
    found = []
    for _ in range(resamples):
        places = np.concatenate([members[g] for g in rng.integers(len(members), size=len(members))])
        found.append(plain_summary([(p[places], c[places]) for p, c in runs]))
    return {name: np.array([one[name] for one in found]) for name in METRICS}


def plain_calibrated(runs: Runs, resamples: int, rng: np.random.Generator) -> dict[str, Floats]:
    """Every metric with outcomes drawn from the confidences: metric -> [resamples]."""
    found = []
    for _ in range(resamples):
        numbers = rng.random(len(runs[0][0]))
        found.append(plain_summary([(p, numbers < p) for p, _ in runs]))
    return {name: np.array([one[name] for one in found]) for name in METRICS}


def plain_intervals(runs: Runs, resamples: int, seed: int) -> dict[str, tuple[float, float, float]]:
    """(low, high, standard error) of every metric, as the documentation of `bootstrap` defines them."""
    rng = np.random.default_rng(seed)
    estimates, drawn = plain_summary(runs), plain_resamples(runs, resamples, rng)
    calibrated = plain_calibrated(runs, resamples, rng)
    found = {}
    for name, metric in METRICS.items():
        values, estimate = drawn[name][~np.isnan(drawn[name])], estimates[name]
        low, high = np.quantile(values, [0.025, 0.975])
        bias = values.mean() - estimate
        low = 2 * estimate - high if metric.raised else low - bias
        if metric.zero_if_calibrated and estimate <= np.quantile(calibrated[name], 0.975):
            low = 0.0
        low, high = (max(metric.least, min(end, 1.0)) for end in (low, high - bias))
        if metric.zero_if_calibrated and low > 0 and len(runs[0][0]) < 200:
            low = min(low, max(0.0, 2 * estimate - high - calibrated[name].mean()))
        right = float(np.mean([c.sum() for _, c in runs]))
        wrong = len(runs[0][0]) - right
        if name in ("auroc", "prr") and min(right, wrong) < 30:
            area = estimate if name == "auroc" else (estimate + 1) / 2
            ends = area_interval(area, right, wrong)
            ends = ends if name == "auroc" else tuple(2 * end - 1 for end in ends)
            low, high = min(low, ends[0]), max(high, ends[1])
        if name in ("accuracy", "brier", "gain"):
            n, error, half, z = len(runs[0][0]), values.std(ddof=1), (1 - metric.least) / 2, norm.ppf(0.975)
            centre = (n * estimate + z**2 * (1 - half)) / (n + z**2)
            reach = z * np.hypot(n * error, z * half) / (n + z**2)
            low, high = min(low, max(centre - reach, metric.least)), max(high, min(centre + reach, 1.0))
        found[name] = min(low, estimate), max(high, estimate), values.std(ddof=1)
    return found
