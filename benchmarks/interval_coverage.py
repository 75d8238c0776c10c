"""Coverage of 95% intervals for the calibration error, corrected and as plain percentiles.

    python -m benchmarks.interval_coverage
    python -m benchmarks.interval_coverage few
    python -m benchmarks.interval_coverage means

Simulation: 500 questions whose probability of being correct is a constant gap below their confidence, so that
the true ACE, ECE and SmoothECE are the gap. Confidences are continuous or in tenths; 200 data sets, 200
resamples. With `few`: 10 to 200 questions of the populations below, 400 data sets each. With `means`:
accuracy, Brier score and gain of 10 to 200 questions with accuracy 2% to 98%, 400 data sets each: the
smallest coverage and the mean width over these accuracies, of the bootstrap alone and of the interval.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from semcal.errors import UndefinedWarning
from semcal.metrics import bootstrap, joint_bootstrap
from semcal.metrics.frequencies import FrequencyTable
from semcal.metrics.intervals import interval_of
from semcal.metrics.overview import METRICS

QUESTIONS, DATA_SETS, RESAMPLES = 500, 200, 200
NAMES = ("ace", "ece", "smooth_ece")
FEW, FEW_DATA_SETS = (10, 20, 30, 50, 100, 200), 400
MANY = 400_000  # questions for the true metrics
QUICK: dict[str, Any] = {
    "QUESTIONS": 50,
    "DATA_SETS": 2,
    "RESAMPLES": 20,
    "FEW": (10,),
    "FEW_DATA_SETS": 2,
    "MANY": 4000,
}
Curve = Callable[[np.ndarray], np.ndarray]
#: Name → parameters of the beta distribution of the confidences, their rounding, and the probability of each.
POPULATIONS: dict[str, tuple[tuple[float, float], int, Curve]] = {
    "overconfident": ((4, 1.2), 16, lambda p: 0.8 * p),
    "overconfident, tenths": ((4, 1.2), 1, lambda p: 0.8 * p),
    "far overconfident": ((4, 1.2), 16, lambda p: 0.5 * p),
    "crossing": ((2, 0.8), 16, lambda p: 0.25 + 0.5 * p),
    "calibrated": ((2, 0.8), 16, lambda p: p),
    "calibrated, sharp": ((0.6, 0.3), 16, lambda p: p),
    "calibrated, 92% correct": ((6, 0.5), 16, lambda p: p),
}
MEANS, ACCURACIES = ("accuracy", "brier", "gain"), (0.02, 0.05, 0.1, 0.5, 0.9, 0.95, 0.98)
Population = Callable[[np.random.Generator, int, float], tuple[np.ndarray, np.ndarray]]


def data(gap: float, tenths: bool, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return confidences from gap to 1, most of them high, and outcomes."""
    rng = np.random.default_rng(seed)
    p = gap + (1 - gap) * rng.beta(2, 0.8, QUESTIONS)
    p = np.ceil(p * 10) / 10 if tenths else p
    return p, rng.random(QUESTIONS) < p - gap


def percentiles(p: np.ndarray, c: np.ndarray, seed: int) -> dict[str, tuple[float, float]]:
    """Return the plain percentile interval of each metric."""
    found = joint_bootstrap({0: (p, c)}, metrics=NAMES, resamples=RESAMPLES, seed=seed).resampled[0]
    return {name: tuple(np.quantile(values, [0.025, 0.975])) for name, values in found.items()}


def held(gap: float, tenths: bool) -> dict[str, np.ndarray]:
    """Return shares of data sets: both intervals contain the gap; percentiles contain the estimate."""
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
    """Return coverage for each kind of confidence, gap and metric."""
    head = ("corrected contains it", "percentile contains it", "percentile contains the estimate")
    return [
        {"confidence": "tenths" if tenths else "continuous", "true error": gap, "metric": name}
        | dict(zip(head, shares.tolist()))
        for tenths in (False, True)
        for gap in (0.0, 0.02, 0.05, 0.1)
        for name, shares in held(gap, tenths).items()
    ]


def sampled(name: str, n: int, seed: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return confidences of a population, and the probability of each."""
    (a, b), digits, chance = POPULATIONS[name]
    p = np.round(np.random.default_rng(seed).beta(a, b, n), digits)
    return p, chance(p)


def truth(name: str, metrics: tuple[str, ...]) -> dict[str, float]:
    """Return the metrics of `MANY` questions with probabilities instead of outcomes."""
    p, chance = sampled(name, MANY, (0,))
    value, place, count = np.unique(p, return_inverse=True, return_counts=True)
    whole = FrequencyTable(value, count[None].astype(np.float64), np.bincount(place, chance)[None])
    return {metric: float(METRICS[metric].formula(whole, 15)[0]) for metric in metrics}


def few_questions() -> list[dict[str, Any]]:
    """Yield coverage by population, number of questions and metric, of data sets with a defined metric."""
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


def chances(power: float) -> Population:
    """Return probabilities from a beta distribution, and confidences that are a power of them."""

    def draw(rng: np.random.Generator, n: int, right: float) -> tuple[np.ndarray, np.ndarray]:
        chance = rng.beta(4 * right, 4 * (1 - right), n)
        return chance**power, chance

    return draw


def mostly(rng: np.random.Generator, n: int, common: float, odd: float, often: float) -> np.ndarray:
    """Return one value, and sometimes another."""
    return np.where(rng.random(n) < often, odd, common)


#: (random numbers, questions, accuracy) → confidences, and the probability of each.
SHAPES: dict[str, Population] = {
    "all .9": lambda _, n, right: (np.full(n, 0.9), np.full(n, right)),
    "calibrated": chances(1.0),
    "overconfident": chances(1 / 3),
    "underconfident": chances(3.0),
    "0 or 1": lambda rng, n, right: (mostly(rng, n, float(right > 0.5), 0.5, 0.1), np.full(n, right)),
    ".5, seldom 1": lambda rng, n, right: (mostly(rng, n, 0.5, 1.0, 0.05), np.full(n, right)),
}


def means() -> list[dict[str, Any]]:
    """Yield smallest coverage and mean width over accuracies, by population, number of questions, metric."""
    rows = []
    for name in SHAPES:
        for n in FEW:
            found = np.array([held_means(name, n, right) for right in ACCURACIES])  # [accuracies, metrics, 4]
            for metric, (plain, shown, before, width) in zip(MEANS, np.moveaxis(found, 0, -1)):
                least = {"bootstrap contains it": plain.min(), "interval contains it": shown.min()}
                widths = {"width of bootstrap": before.mean(), "width": width.mean()}
                at_half = {"width at 0.5": width[3] / before[3]}
                rows.append(
                    {"confidences": name, "questions": n, "metric": metric} | least | widths | at_half
                )
    return rows


def held_means(name: str, n: int, right: float) -> np.ndarray:
    """Return whether bootstrap and interval contain the true value, and their widths: [metrics, 4]."""
    p, chance = SHAPES[name](np.random.default_rng(0), MANY, right)
    worth = {"accuracy": chance, "brier": chance * (1 - 2 * p) + p**2, "gain": p * (2 * chance - p)}
    found = np.zeros((len(MEANS), 4))
    for seed in range(FEW_DATA_SETS):
        rng = np.random.default_rng((n, seed))
        p, chance = SHAPES[name](rng, n, right)
        drawn = joint_bootstrap(
            {0: (p, rng.random(n) < chance)}, metrics=MEANS, resamples=RESAMPLES, seed=seed
        )
        for row, metric in zip(found, MEANS):
            one, least = drawn.interval(0, metric), METRICS[metric].least
            resampled = drawn.resampled[0][metric]
            plain = interval_of(metric, one.estimate, resampled, least=least, most=1.0)
            true = worth[metric].mean()
            row[:2] += [each.low - 1e-9 <= true <= each.high + 1e-9 for each in (plain, one)]
            row[2:] += [each.high - each.low for each in (plain, one)]
    return found / FEW_DATA_SETS


def quick_runs(_: Path) -> list[list[str]]:
    return [[], ["few"], ["means"]]


def main(arguments: Sequence[str] = ()) -> None:
    from benchmarks.__main__ import table

    print(table({"few": few_questions, "means": means, "": results}[arguments[0] if arguments else ""]()))


if __name__ == "__main__":
    main(sys.argv[1:])
