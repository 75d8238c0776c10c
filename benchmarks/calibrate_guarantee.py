"""The guarantee end to end: calibrate, set a threshold, meet new questions; how often is it broken?

    python -m benchmarks.calibrate_guarantee [WORLDS]

Each world has a difficulty, an overconfidence and a use of the likelihood of its own. 500 labelled questions,
ten draws each: 300 for the map, with the choice among all maps, and 200 for the threshold at δ = .05. The
error rate among the answered is then taken on 20 000 new questions. A guarantee that holds is broken in at
most 5 % of the worlds, give or take what chance allows (the interval is Clopper and Pearson's).

"made up" is a world in which a start chosen by the tested confidences breaks the guarantee (δ = .1): .9999 is
always right, .9901 never, .96 nine times in ten, and from every threshold on a little more than one in ten is
wrong. "made up, start by the tested" is what the rule of version 0.1 does there.

"all three" are the thresholds of the three risks at once, each at δ / 3: broken is how often any of them is.

"independent" are questions drawn one by one. "in groups" are 1 to 5 on one passage, harder or easier and
surer or less sure together; of those kept apart one of each group counts, and new questions are of new
groups.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import expit
from scipy.stats import binomtest

from semcal.calibration.features import AnswerFeatures, candidates_for
from semcal.calibration.learn import kept_apart, set_threshold, set_thresholds
from semcal.metrics.probability_maps import Labelled, choose_map, part_of, predict_out_of_fold

WORLDS, LABELS, NEW, DELTA = 1000, 500, 20_000, 0.05
RISKS, ALL = (0.05, 0.1, 0.2), "all three"
Data = tuple[dict[str, np.ndarray], np.ndarray]


KINDS = ("independent", "in groups")
QUICK = {"WORLDS": 2, "NEW": 1000}
#: Of the made-up world: confidences, how often each is right, and how frequent it is.
LEVELS, RIGHT = np.array([0.9999, 0.9901, 0.96]), np.array([1.0, 0.0, 0.9])
SHARES = np.array([0.12 * (1 - 0.10001), 0.12 * 0.10001, 0.88])
MADE_UP, OF_MADE_UP = ("made up", "made up, start by the tested"), 0.1


def questions(rng: np.random.Generator, groups: np.ndarray, world: np.ndarray, effect: float) -> Data:
    """Features of the questions (N,) of some groups, and whether their answers are right."""
    harder, overconfident, useful = world
    n, of_group = len(groups), groups.max() + 1
    known = rng.beta(2.5 - harder, 0.9, of_group)[groups] if effect else rng.beta(2.5 - harder, 0.9, n)
    shares = np.maximum(rng.binomial(10, known), 1) / 10
    likelihood = rng.normal(size=n)
    logit = 6 * known - 1 - harder - overconfident + useful * likelihood
    if effect:
        logit += effect * rng.normal(size=of_group)[groups]
    right = rng.random(n) < expit(logit)
    entropy = -np.log(shares) + rng.exponential(0.2, n)
    meanings = np.log1p(np.round(10 * (1 - shares)))
    features = {"E-SC": shares, "entropy": entropy, "meanings": meanings, "likelihood": likelihood}
    return features, right.astype(float)


def broken(rng: np.random.Generator, seed: int, kind: str) -> dict[float | str, bool | None]:
    """For each risk limit whether more new answered questions are wrong, None without a threshold."""
    world, effect = rng.uniform(0, 1, 3), 0.0 if kind == "independent" else 2.0
    groups = np.arange(LABELS)
    if effect:
        groups = np.repeat(groups, rng.integers(1, 6, LABELS))[:LABELS]
    features, right = questions(rng, groups, world, effect)
    apart = kept_apart(LABELS, groups, seed)
    named = AnswerFeatures(("",) * LABELS, (0,) * LABELS, features, ("E-SC",))
    fitted: dict[str, Any] = {"groups": groups[~apart] if effect else None, "seed": seed}
    labelled, candidates = (part_of(features, ~apart), right[~apart]), candidates_for(named)
    chosen = choose_map(*labelled, candidates, **fitted).map
    out_of_fold, _ = predict_out_of_fold([Labelled(*labelled, candidates)], **fitted)
    new, truth = questions(rng, np.arange(NEW), world, effect)
    p, held_out = chosen.predict(new), chosen.predict(part_of(features, apart))
    how: dict[str, Any] = {
        "fitted": (chosen.predict(labelled[0]), out_of_fold),
        "groups": groups[apart],
        "seed": seed,
    }

    def exceeds(risk: float, limit: float | None) -> bool | None:
        answered = p >= limit if limit is not None else np.zeros(NEW, dtype=bool)
        return bool(1 - truth[answered].mean() > risk) if answered.any() else None

    found: dict[float | str, bool | None] = {
        risk: exceeds(risk, set_threshold(held_out, right[apart], risk, DELTA, **how).threshold)
        for risk in RISKS
    }
    bands = set_thresholds(held_out, right[apart], RISKS, DELTA, **how)
    known = [one for band in bands if (one := exceeds(band.risk_limit, band.threshold)) is not None]
    return found | {ALL: any(known) if known else None}


def results(worlds: int | None = None, kinds: Sequence[str] = KINDS) -> list[dict[str, Any]]:
    worlds = worlds or WORLDS
    return [row for kind in kinds for row in _of_kind(kind, worlds)] + made_up(worlds)


def made_up(worlds: int) -> list[dict[str, Any]]:
    """Of the made-up world: 300 fitted questions and 200 tested ones, which alone may say where to start."""
    rows = []
    for kind in MADE_UP:
        rng, found = np.random.default_rng(0), 0
        for _ in range(worlds):
            fitted, tested = (LEVELS[rng.choice(3, size=n, p=SHARES)] for n in (300, 200))
            right = rng.random(200) < RIGHT[np.searchsorted(-LEVELS, -tested)]
            known = fitted if kind == "made up" else tested
            limit = set_threshold(tested, right, OF_MADE_UP, OF_MADE_UP, fitted=(known, known))
            found += limit.threshold is not None
        rows.append(_row(kind, OF_MADE_UP, worlds, found, found))
    return rows


def _of_kind(kind: str, worlds: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    worlds_broken = [broken(rng, seed, kind) for seed in range(worlds)]
    rows = []
    for risk in (*RISKS, ALL):
        known = [one for world in worlds_broken if (one := world[risk]) is not None]
        rows.append(_row(kind, risk, worlds, len(known), sum(known)))
    return rows


def _row(kind: str, risk: float | str, worlds: int, found: int, violations: int) -> dict[str, Any]:
    interval = binomtest(violations, worlds).proportion_ci()
    return {
        "questions": kind,
        "at most wrong": risk,
        "worlds": worlds,
        "with a threshold": found / worlds,
        "broken": violations / worlds,
        "95 % interval": f"{interval.low:.3f} to {interval.high:.3f}",
    }


def main(arguments: Sequence[str] = ()) -> None:
    from benchmarks.__main__ import table

    print(table(results(*map(int, arguments))))


if __name__ == "__main__":
    main(sys.argv[1:])
