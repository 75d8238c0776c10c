"""How often 95 % intervals hold the true calibration error, corrected and as plain percentiles.

    python -m benchmarks.interval_coverage
    python -m benchmarks.interval_coverage few

Simulated: 500 questions whose chance of being correct lies a constant gap below their confidence, so that
the true ACE, ECE and SmoothECE are the gap; confidences continuous or in tenths; 200 data sets, 200
resamples. With `few`: 10 to 200 questions of the populations below, in each 400 data sets.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from semcal.errors import UndefinedWarning
from semcal.metrics import bootstrap, joint_bootstrap
from semcal.metrics.frequencies import FrequencyTable
from semcal.metrics.overview import METRICS

QUESTIONS, DATA_SETS, RESAMPLES = 500, 200, 200
NAMES = ("ace", "ece", "smooth_ece")
FEW, FEW_DATA_SETS = (10, 20, 30, 50, 100, 200), 400
Curve = Callable[[np.ndarray], np.ndarray]
#: Name → parameters of the beta distribution of the confidences, their rounding, and the chance of each.
POPULATIONS: dict[str, tuple[tuple[float, float], int, Curve]] = {
    "overconfident": ((4, 1.2), 16, lambda p: 0.8 * p),
    "overconfident, tenths": ((4, 1.2), 1, lambda p: 0.8 * p),
    "far overconfident": ((4, 1.2), 16, lambda p: 0.5 * p),
    "crossing": ((2, 0.8), 16, lambda p: 0.25 + 0.5 * p),
    "calibrated": ((2, 0.8), 16, lambda p: p),
    "calibrated, sharp": ((0.6, 0.3), 16, lambda p: p),
    "calibrated, 92 % right": ((6, 0.5), 16, lambda p: p),
}


def data(gap: float, tenths: bool, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Confidences from gap to 1, most of them high, and outcomes."""
    rng = np.random.default_rng(seed)
    p = gap + (1 - gap) * rng.beta(2, 0.8, QUESTIONS)
    p = np.ceil(p * 10) / 10 if tenths else p
    return p, rng.random(QUESTIONS) < p - gap


def percentiles(p: np.ndarray, c: np.ndarray, seed: int) -> dict[str, tuple[float, float]]:
    """The plain percentile interval of each metric."""
    found = joint_bootstrap({0: (p, c)}, metrics=NAMES, resamples=RESAMPLES, seed=seed).resampled[0]
    return {name: tuple(np.quantile(values, [0.025, 0.975])) for name, values in found.items()}


def held(gap: float, tenths: bool) -> dict[str, np.ndarray]:
    """Shares of data sets in which: corrected and percentile hold the gap, percentile the estimate."""
    found = {name: np.zeros(3) for name in NAMES}
    for seed in range(DATA_SETS):
        p, c = data(gap, tenths, seed)
        plain = percentiles(p, c, seed)
        for name, interval in bootstrap(p, c, metrics=NAMES, resamples=RESAMPLES, seed=seed).items():
            low, high = plain[name]
            corrected = interval.low <= gap <= interval.high
            found[name] += [corrected, low <= gap <= high, low <= interval.estimate <= high]
    return {name: count / DATA_SETS for name, count in found.items()}


def results() -> list[dict[str, Any]]:
    """Coverage for each kind of confidence, gap and metric."""
    head = ("corrected holds it", "percentile holds it", "percentile holds the estimate")
    return [
        {"confidence": "tenths" if tenths else "continuous", "true error": gap, "metric": name}
        | dict(zip(head, shares.tolist()))
        for tenths in (False, True)
        for gap in (0.0, 0.02, 0.05, 0.1)
        for name, shares in held(gap, tenths).items()
    ]


def sampled(name: str, n: int, seed: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Confidences of a population, and the chance of each."""
    (a, b), digits, chance = POPULATIONS[name]
    p = np.round(np.random.default_rng(seed).beta(a, b, n), digits)
    return p, chance(p)


def truth(name: str, metrics: tuple[str, ...]) -> dict[str, float]:
    """The metrics of 400 000 questions with their chances in place of outcomes."""
    p, chance = sampled(name, 400_000, (0,))
    value, place, count = np.unique(p, return_inverse=True, return_counts=True)
    whole = FrequencyTable(value, count[None].astype(np.float64), np.bincount(place, chance)[None])
    return {metric: float(METRICS[metric].of(whole, 15)[0]) for metric in metrics}


def few_questions() -> list[dict[str, Any]]:
    """Coverage by population, number of questions and metric, of the data sets in which it is defined."""
    rows, metrics = [], (*NAMES, "auroc")
    warnings.simplefilter("ignore", UndefinedWarning)  # one class
    for name in POPULATIONS:
        true = truth(name, metrics)
        for n in FEW:
            held: dict[str, list[bool]] = {metric: [] for metric in metrics}
            for seed in range(FEW_DATA_SETS):
                p, chance = sampled(name, n, (1, n, seed))
                c = np.random.default_rng((2, n, seed)).random(n) < chance
                for metric, one in bootstrap(p, c, metrics=metrics, resamples=RESAMPLES, seed=seed).items():
                    if not np.isnan(one.low):
                        held[metric].append(
                            one.low <= true[metric] + 1e-9 and true[metric] <= one.high + 1e-9
                        )
            shares = {metric: round(float(np.mean(one)), 3) for metric, one in held.items()}
            rows.append({"population": name, "questions": n} | shares)
    return rows


def main() -> int:
    from benchmarks.__main__ import table

    print(table(few_questions() if sys.argv[1:] == ["few"] else results()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
