"""How often 95 % intervals hold the true calibration error, corrected and as plain percentiles.

    python -m benchmarks.interval_coverage

Simulated: 500 questions whose chance of being correct lies a constant gap below their confidence, so that
the true ACE, ECE and SmoothECE are the gap; confidences continuous or in tenths; 200 data sets, 200
resamples.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from semcal.metrics import bootstrap, joint_bootstrap

QUESTIONS, DATA_SETS, RESAMPLES = 500, 200, 200
NAMES = ("ace", "ece", "smooth_ece")


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


def main() -> int:
    from benchmarks.__main__ import table

    print(table(results()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
