"""The guarantee end to end: calibrate, set a threshold, meet new questions; how often is it broken?

    python -m benchmarks.calibrate_guarantee [WORLDS]

Each world has a difficulty, an overconfidence and a use of the likelihood of its own. 500 labelled questions,
ten draws each: 300 for the map, with the choice among all maps, and 200 for the threshold at δ = .05. The
error rate among the answered is then taken on 20 000 new questions. A guarantee that holds is broken in at
most 5 % of the worlds, give or take what chance allows (the interval is Clopper and Pearson's).
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from scipy.special import expit
from scipy.stats import binomtest

from semcal.metrics.probability_maps import choose_map, part_of
from semcal.pipeline.calibrate_rows import kept_apart, set_threshold
from semcal.pipeline.sample_features import AnswerFeatures, candidates_for

WORLDS, LABELS, NEW, DELTA = 1000, 500, 20_000, 0.05
RISKS = (0.05, 0.1, 0.2)
Data = tuple[dict[str, np.ndarray], np.ndarray]


def questions(rng: np.random.Generator, n: int, world: np.ndarray) -> Data:
    """Features of n questions of a world, and whether their answers are right."""
    harder, overconfident, useful = world
    known = rng.beta(2.5 - harder, 0.9, n)
    shares = np.maximum(rng.binomial(10, known), 1) / 10
    likelihood = rng.normal(size=n)
    right = rng.random(n) < expit(6 * known - 1 - harder - overconfident + useful * likelihood)
    entropy = -np.log(shares) + rng.exponential(0.2, n)
    meanings = np.log1p(np.round(10 * (1 - shares)))
    features = {"E-SC": shares, "entropy": entropy, "meanings": meanings, "likelihood": likelihood}
    return features, right.astype(float)


def broken(rng: np.random.Generator, seed: int) -> dict[float, float | None]:
    """For each risk limit the error rate among new answered questions, None without a threshold."""
    world = rng.uniform(0, 1, 3)
    features, right = questions(rng, LABELS, world)
    apart = kept_apart(LABELS, None, seed)
    named = AnswerFeatures(("",) * LABELS, (0,) * LABELS, features, ("E-SC",))
    chosen = choose_map(part_of(features, ~apart), right[~apart], candidates_for(named), seed=seed).map
    new, truth = questions(rng, NEW, world)
    p, held_out = chosen.predict(new), chosen.predict(part_of(features, apart))
    found: dict[float, float | None] = {}
    for risk in RISKS:
        limit = set_threshold(held_out, right[apart], risk, DELTA).threshold
        answered = p >= limit if limit is not None else np.zeros(NEW, dtype=bool)
        found[risk] = 1 - truth[answered].mean() if answered.any() else None
    return found


def results(worlds: int = WORLDS) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    rates = [broken(rng, seed) for seed in range(worlds)]
    rows = []
    for risk in RISKS:
        known = [rate for one in rates if (rate := one[risk]) is not None]
        violations = sum(rate > risk for rate in known)
        interval = binomtest(violations, worlds).proportion_ci()
        rows.append(
            {
                "at most wrong": risk,
                "worlds": worlds,
                "with a threshold": len(known) / worlds,
                "broken": violations / worlds,
                "95 % interval": f"{interval.low:.3f} to {interval.high:.3f}",
            }
        )
    return rows


def main() -> int:
    from benchmarks.__main__ import table

    print(table(results(int(sys.argv[1]) if len(sys.argv) > 1 else WORLDS)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
