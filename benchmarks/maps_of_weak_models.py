"""Maps of models with little knowledge: accuracy of probabilities above 0.5, and the cost of the cap.

    python -m benchmarks.maps_of_weak_models [WORLDS]

In a simulated question, a sample has a fixed answer with probability a, and mostly a new answer otherwise. In
a weak world a is mostly near 0, so most of ten samples differ, and the logit of being correct increases by 8
from a = 0 to 1. In each world, a map is chosen from labels as in `semcal calibrate`, and 4,000 new questions
show the accuracy of answers with a probability above 0.5. A world overstates if the mean of these
probabilities exceeds the upper end of the 95% interval (Clopper and Pearson) of the accuracy. Worlds of
accuracy 0.85 compare gain and AUROC with those of the same map without cap and floor.

In a steep world a is mostly large, so few of many equal answers are correct. There the tail is compared: the
excess of probabilities above their 90th percentile over the accuracy, with the average of maps and with the
best map.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import binomtest

from semcal import metrics
from semcal.calibration.features import AnswerFeatures, candidates_for
from semcal.metrics.probability_maps import ProbabilityMap, choose_map

WORLDS, FRESH, M = 100, 4000, 10
ACCURACIES, LABELS = (0.02, 0.05, 0.1, 0.15), (60, 100, 250)
GOOD, STEEPNESS = 0.85, 8
#: Beta distributions of a.
WEAK, STEEP = (0.5, 4.5), (3.0, 1.5)
QUICK = {"WORLDS": 1, "ACCURACIES": (0.1,), "LABELS": (60,)}
Data = tuple[dict[str, np.ndarray], np.ndarray]


def questions(rng: np.random.Generator, n: int, accuracy: float, shape: tuple[float, float] = WEAK) -> Data:
    """Return features of n questions (also of samples at T = 0.5), and the correctness of answers."""
    if accuracy < 0.5:
        known = rng.beta(*shape, n)
        by = STEEPNESS * known
        chance = expit(by + brentq(lambda b: expit(by + b).mean() - accuracy, -30, 5))
    else:
        known = np.where(rng.random(n) < 0.9, rng.beta(5, 1.5, n), rng.beta(0.6, 12, n))
        chance = accuracy * (0.24 + 0.94 * known**0.5)
    right = rng.random(n) < chance
    values: dict[str, np.ndarray] = {}
    for at, p in (("", known), (" at T=0.5", np.sqrt(known))):
        same = np.maximum(rng.binomial(M, p), 1)
        meanings = 1 + rng.binomial(M - same, 0.9)
        values |= {f"E-SC{at}": same / M, f"meanings{at}": np.log(meanings)}
        if not at:
            rest = (M - same) / M
            values["entropy"] = -np.log(same / M) * same / M + rest * np.log(M)
            values["likelihood"] = np.minimum(-1.5 + 1.2 * known + 0.4 * rng.normal(size=n), 0)
            noise = np.exp(0.5 * rng.normal(size=n))
            values["L-SC"] = same * noise / (same * noise + M - same)
    return values, right.astype(float)


def world(accuracy: float, labels: int, seed: int, shape: tuple[float, float] = WEAK) -> dict[str, Any]:
    """Return the probabilities of one world's map on new questions, and the accuracy there."""
    rng = np.random.default_rng([seed, labels, round(1000 * accuracy)])
    features, right = questions(rng, labels, accuracy, shape)
    shares = ("E-SC", "L-SC", "E-SC at T=0.5")
    candidates = candidates_for(AnswerFeatures((), (), features, shares))
    found = choose_map(features, right, candidates, seed=seed).map
    fresh, truth = questions(rng, FRESH, accuracy, shape)
    p, free = found.predict(fresh), without_support(found).predict(fresh)
    alone = replace(found, others=(), weights=()).predict(fresh)
    above = p > 0.5
    states = {"chosen": found.candidate.kind, "states": bool(above.any()), "overstates": False}
    if above.any():
        share = binomtest(int(truth[above].sum()), int(above.sum())).proportion_ci().high
        states["overstates"] = bool(p[above].mean() > share)
    for name in ("gain", "auroc"):
        metric = getattr(metrics, name)
        states[f"{name} lost"] = metric(free, truth) - metric(p, truth)
    states |= {"tail": tail(p, truth), "tail of the best": tail(alone, truth)}
    states["gain of averaging"] = metrics.gain(p, truth) - metrics.gain(alone, truth)
    return states


def without_support(found: ProbabilityMap) -> ProbabilityMap:
    """Return the map, and the maps of its average, without cap and floor."""
    return replace(found, support=None, others=tuple(map(without_support, found.others)))


def tail(p: np.ndarray, right: np.ndarray) -> float:
    """Return the excess of probabilities above their 90th percentile over the accuracy."""
    above = p > np.quantile(p, 0.9)
    above = above if above.any() else p == p.max()
    return float(p[above].mean() - right[above].mean())


def results(
    worlds: int | None = None,
    accuracies: tuple[float, ...] | None = None,
    labels: tuple[int, ...] | None = None,
) -> list[dict[str, Any]]:
    """Return a row for each accuracy and number of labels, with shares of worlds."""
    rows, worlds = [], worlds or WORLDS
    weak = [(accuracy, WEAK) for accuracy in accuracies or (*ACCURACIES, GOOD)]
    for accuracy, shape in weak if accuracies else [*weak, (0.15, STEEP)]:
        for count in labels or LABELS:
            found = [world(accuracy, count, seed, shape) for seed in range(worlds)]
            kinds = [one["chosen"] for one in found]
            rows.append(
                {
                    "world": "steep" if shape == STEEP else "weak" if accuracy < 0.5 else "good",
                    "accuracy": accuracy,
                    "labels": count,
                    "worlds": worlds,
                    "a constant": kinds.count("constant"),
                    "with p above 0.5": sum(one["states"] for one in found),
                    "overstate": sum(one["overstates"] for one in found),
                    "gain lost": float(np.mean([one["gain lost"] for one in found])),
                    "AUROC lost": float(np.mean([one["auroc lost"] for one in found])),
                    "tail more than 0.1 too high": float(np.mean([one["tail"] > 0.1 for one in found])),
                    "of the best map": float(np.mean([one["tail of the best"] > 0.1 for one in found])),
                    "tail more than 0.1 too low": float(np.mean([one["tail"] < -0.1 for one in found])),
                    "gain of averaging": float(np.mean([one["gain of averaging"] for one in found])),
                }
            )
    return rows


def main(arguments: Sequence[str] = ()) -> None:
    from benchmarks.__main__ import table

    print(table(results(*map(int, arguments))))


if __name__ == "__main__":
    main(sys.argv[1:])
