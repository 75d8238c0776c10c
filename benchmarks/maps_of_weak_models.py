"""Maps of a model that knows little: do probabilities above .5 hold? And what does the cap cost a good one?

    python -m benchmarks.maps_of_weak_models [WORLDS]

A question has a chance a that a draw says one answer; else it mostly says something new. In a weak world a is
mostly near 0, so that ten draws are mostly apart, and the logit of being right rises by 8 from a = 0 to 1.
Each world has labels of its own, a map is chosen from them as by `semcal calibrate`, and 4,000 fresh
questions tell how often answers with a probability above .5 are right. A world overstates where the mean of
these probabilities exceeds the upper end of the 95 % interval (Clopper and Pearson) of the share right. The
worlds of accuracy .85 compare gain and AUROC with those of the same map without cap and floor.

In a steep world a is mostly large, so that of many answers that are alike few are right. There the tail is
compared: by how much probabilities above their 90th percentile exceed the share right, with the average of
maps and with the best map alone.
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
    """Features of n questions (also of draws at T = .5), and whether answers are right."""
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
    """The map of one world on fresh questions: what it states, and what is right there."""
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
    """The map, and those that it is averaged with, without cap and floor."""
    return replace(found, support=None, others=tuple(map(without_support, found.others)))


def tail(p: np.ndarray, right: np.ndarray) -> float:
    """By how much probabilities above their 90th percentile exceed the share right."""
    above = p > np.quantile(p, 0.9)
    above = above if above.any() else p == p.max()
    return float(p[above].mean() - right[above].mean())


def results(
    worlds: int | None = None,
    accuracies: tuple[float, ...] | None = None,
    labels: tuple[int, ...] | None = None,
) -> list[dict[str, Any]]:
    """A row for each accuracy and number of labels: of how many worlds what holds."""
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
                    "state above .5": sum(one["states"] for one in found),
                    "overstate": sum(one["overstates"] for one in found),
                    "gain lost": float(np.mean([one["gain lost"] for one in found])),
                    "AUROC lost": float(np.mean([one["auroc lost"] for one in found])),
                    "tail > .1 too high": float(np.mean([one["tail"] > 0.1 for one in found])),
                    "of the best map": float(np.mean([one["tail of the best"] > 0.1 for one in found])),
                    "tail > .1 too low": float(np.mean([one["tail"] < -0.1 for one in found])),
                    "gain of averaging": float(np.mean([one["gain of averaging"] for one in found])),
                }
            )
    return rows


def main(arguments: Sequence[str] = ()) -> None:
    from benchmarks.__main__ import table

    print(table(results(*map(int, arguments))))


if __name__ == "__main__":
    main(sys.argv[1:])
