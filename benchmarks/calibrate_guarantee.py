"""The guarantee end to end: calibrate, set a threshold, meet new questions; how often is it broken?

    python -m benchmarks.calibrate_guarantee [WORLDS]

Each world has a difficulty, an overconfidence and a use of the likelihood of its own. 500 labeled questions,
ten draws each: 300 for the map, with the choice among all maps, and 200 for the threshold at δ = .05. The
error rate among the answered is then taken on 20 000 new questions. A guarantee that holds is broken in at
most 5 % of the worlds, give or take what chance allows (the interval is Clopper and Pearson's).

"made up" is a world in which a start that the tested confidences choose by their chance to pass breaks the
guarantee (.128 of the worlds with δ = .1); the start by their ranks does not. There .9999 is always right,
.9901 never, .96 nine times in ten, and from every threshold on but the first a little more than one in ten is
wrong.

"all three" are the thresholds of the three risks at once, each at δ / 3: broken is how often any of them is.

"independent" are questions drawn one by one. "in groups" are 1 to 5 on one passage, harder or easier and
surer or less sure together; of those kept apart one of each group counts, and new questions are of new
groups.

"added" are `calibrate --add --audited`: 300 labeled questions and 600 audited replies to others, of which two
in five set the threshold for .1. The calibration in use answers from a share of .7 on. Its replies are all
labeled, or those that it answered, or of these the correct ones (people say thanks). Replies without a label
are left out, as a rule without audits does; or no threshold is set below 95 % labeled (the default). At most
200 worlds.

"all labels" are tests on all labels by a score that no label chose, in worlds whose error rates are known
exactly (`--all-labels WORLDS`, 20,000 by default). 250 labels, or 1,500, with which a second test starts at
the strictest 5%; "found" and "coverage" are beside those of the test on two in five labels. The error rate at
a score is: monotone; at the limit everywhere, the hardest case; not monotone, where the rate among answers
crosses the limit several times; or 1 for the strictest score. "several risks" are three at once, of which
none may be exceeded. "groups" are on 60 groups, of each of which one question is tested, and on 130, where
bets are placed on all questions; the rate is at the limit, or monotone. "choice" are 80 to 150 groups, whose
number chooses the test.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from scipy.special import expit, ndtr
from scipy.stats import binomtest

from semcal.calibration.calibration import Calibration
from semcal.calibration.features import AnswerFeatures, candidates_for
from semcal.calibration.production import LoggedReply, labels_for
from semcal.calibration.thresholds import ThresholdLabels, kept_apart, set_threshold, set_thresholds
from semcal.metrics import risk_controlled_threshold
from semcal.metrics.probability_maps import choose_map, part_of
from semcal.metrics.thresholds import likeliest_start

WORLDS, LABELS, NEW, DELTA = 1000, 500, 20_000, 0.05
RISKS, ALL = (0.05, 0.1, 0.2), "all three"
#: Labels of audited replies, and what becomes of replies without one.
ALL_LABELED = ("added: all labeled", "default")
ADDED = [
    ALL_LABELED,
    *product(
        ("added: answered labeled", "added: correct answered labeled"),
        ("others left out", "default"),
    ),
]
ANSWERED_FROM, REPLIES, RISK_ADDED, MOST_ADDED = 0.7, 600, 0.1, 200
#: Worlds, labels, risk and levels of the score of the tests on all labels.
EXACT_WORLDS, ALL_LABELS, EXACT_RISK, LEVELS_OF_SCORE = 20_000, 250, 0.2, 10
#: So many labels test from a second, stricter start.
WITH_STRICT_START = 1500
#: Worlds in which the test on two in five labels is tried too.
WORLDS_BEFORE = 2000
Data = tuple[dict[str, np.ndarray], np.ndarray]


KINDS = ("independent", "in groups")
QUICK = {"WORLDS": 2, "NEW": 1000, "EXACT_WORLDS": 3}
#: Of the made-up world: confidences, how often each is right, and how frequent it is.
LEVELS, RIGHT = np.array([0.9999, 0.9901, 0.96]), np.array([1.0, 0.0, 0.9])
SHARES = np.array([0.12 * (1 - 0.10001), 0.12 * 0.10001, 0.88])
MADE_UP, OF_MADE_UP = "made up", 0.1


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
    new, truth = questions(rng, np.arange(NEW), world, effect)
    p, held_out = chosen.predict(new), chosen.predict(part_of(features, apart))
    how: dict[str, Any] = {"groups": groups[apart], "seed": seed}

    def exceeds(risk: float, limit: float | None) -> bool | None:
        answered = p >= limit if limit is not None else np.zeros(NEW, dtype=bool)
        return bool(1 - truth[answered].mean() > risk) if answered.any() else None

    found: dict[float | str, bool | None] = {
        risk: exceeds(risk, set_threshold(held_out, right[apart], risk, DELTA, **how).threshold)
        for risk in RISKS
    }
    labels = ThresholdLabels(held_out, right[apart], groups[apart])
    bands = set_thresholds(labels, RISKS, DELTA, seed=seed, explain=False)
    known = [one for band in bands if (one := exceeds(band.risk_limit, band.threshold)) is not None]
    return found | {ALL: any(known) if known else None}


def results(worlds: int | None = None, kinds: Sequence[str] = KINDS) -> list[dict[str, Any]]:
    worlds = worlds or WORLDS
    return (
        [row for kind in kinds for row in _of_kind(kind, worlds)]
        + made_up(worlds)
        + added_rows(min(worlds, MOST_ADDED))
        + all_labels()
    )


@dataclass(frozen=True)
class ExactWorld:
    """Scores with levels, the strictest first: shares of questions (L,) and error rates (L,)."""

    share: np.ndarray
    wrong: np.ndarray

    def answered(self, limit: float | None) -> tuple[float, float]:
        """Return the share of questions answered by a threshold, and their error rate."""
        is_answered = np.arange(len(self.share)) <= (-1 if limit is None else -limit)
        share = float(self.share[is_answered].sum())
        return share, float(self.share[is_answered] @ self.wrong[is_answered]) / share if share else 0.0

    def draw(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Sample scores (n,), larger for stricter levels, and whether answers are correct (n,)."""
        level = rng.choice(len(self.share), size=n, p=self.share)
        return -level.astype(float), (rng.random(n) >= self.wrong[level]).astype(float)


def exact_world(rng: np.random.Generator, kind: str, levels: int, risk: float) -> ExactWorld:
    """Sample a world of a kind; a continuous score has as many levels as questions."""
    share = rng.dirichlet(np.ones(levels)) if levels <= LEVELS_OF_SCORE else np.full(levels, 1 / levels)
    if kind == "at the limit":
        return ExactWorld(share, np.full(levels, risk + 1e-9))
    if kind == "not monotone":  # the excess of errors over the limit crosses 0 again and again
        at = np.cumsum(share)
        excess = rng.uniform(0, 0.05) * np.sin(rng.uniform(5, 40) * at + rng.uniform(0, 6))
        return ExactWorld(share, np.clip(risk + np.diff(excess, prepend=0) / share, 0, 1))
    wrong = np.clip(np.sort(rng.beta(1, 3, levels)) * rng.uniform(0.3, 1.5), 0, 1)
    if kind == "strictest wrong":
        wrong[0] = 1.0
    return ExactWorld(share, wrong)


def all_labels(worlds: int | None = None) -> list[dict[str, Any]]:
    """Of tests on all labels, beside the test on two in five of them."""
    worlds = worlds or EXACT_WORLDS
    kinds = ("monotone", "at the limit", "not monotone", "strictest wrong")
    rows = [_on_all_labels(kind, levels, worlds) for levels in (LEVELS_OF_SCORE, 1000) for kind in kinds]
    rows += [_on_all_labels(kind, LEVELS_OF_SCORE, worlds, RISKS) for kind in kinds[1:3]]
    rows += [_on_all_labels(kind, 1000, worlds, n=WITH_STRICT_START) for kind in kinds]
    for sizes, text in (((60, 61), "60 groups"), ((130, 131), "130 groups"), ((80, 151), "choice")):
        rows += [_on_groups(kind, sizes, text, worlds) for kind in ("at the limit", "monotone")]
    return rows


def _on_all_labels(
    kind: str, levels: int, worlds: int, risks: Sequence[float] = (EXACT_RISK,), n: int = ALL_LABELS
) -> dict[str, Any]:
    rng, broken, found, coverage = np.random.default_rng(0), 0, 0, 0.0
    before = list[float]()
    for seed in range(worlds):
        world = exact_world(rng, kind, levels, risks[-1])
        scores, correct = world.draw(rng, n)
        bands = set_thresholds(ThresholdLabels(scores, correct), risks, DELTA, explain=False)
        answered = [world.answered(one.threshold) for one in bands]
        broken += any(risk > limit for (_, risk), limit in zip(answered, risks, strict=True))
        found, coverage = found + (answered[-1][0] > 0), coverage + answered[-1][0]
        if seed < WORLDS_BEFORE:
            before.append(_before(world, scores, correct, risks[-1], seed))
    name = f"all {n:,} labels: {kind}, {'continuous' if levels > LEVELS_OF_SCORE else f'{levels} levels'}"
    row = _row(name + ", several risks" * (len(risks) > 1), risks[-1], worlds, found, broken)
    return row | _beside(coverage / worlds, before)


def _beside(coverage: float, before: Sequence[float]) -> dict[str, float]:
    found = float(np.mean([one > 0 for one in before]))
    return {
        "coverage": coverage,
        "two in five: found": found,
        "two in five: coverage": float(np.mean(before)),
    }


def _before(world: ExactWorld, scores: np.ndarray, correct: np.ndarray, risk: float, seed: int) -> float:
    """Return the coverage by the test on held-out questions, whose start comes from the others."""
    apart = kept_apart(len(scores), None, seed)
    grid = np.round(1 + scores / len(world.share), 6)  # as probabilities
    place = np.unique(scores[~apart], return_inverse=True)[1]
    p = (np.bincount(place, correct[~apart]) / np.bincount(place))[place]
    start = likeliest_start(grid[~apart], 1 - p, int(apart.sum()), risk_limit=risk, delta=DELTA)
    limit = risk_controlled_threshold(
        grid[apart], correct[apart], risk_limit=risk, delta=DELTA, start=start
    ).threshold
    return world.answered(None if limit is None else (limit - 1) * len(world.share) - 1e-3)[0]


def _on_groups(kind: str, sizes: tuple[int, int], text: str, worlds: int) -> dict[str, Any]:
    """Groups of 1 to 5 questions that are harder or easier together; their sizes are independent of that."""
    rng, broken, found, coverage = np.random.default_rng(0), 0, 0, 0.0
    before = list[float]()
    for seed in range(worlds):
        world = exact_world(rng, kind, LEVELS_OF_SCORE, EXACT_RISK)
        groups = np.repeat(np.arange(n := int(rng.integers(*sizes))), rng.integers(1, 6, n))
        level = rng.choice(len(world.share), size=len(groups), p=world.share)
        # a Gaussian copula keeps the error rates, and ties the questions of a group
        common = np.sqrt(0.5) * (rng.normal(size=n)[groups] + rng.normal(size=len(groups)))
        scores, correct = -level.astype(float), (ndtr(common) >= world.wrong[level]).astype(float)
        limit = set_threshold(scores, correct, EXACT_RISK, DELTA, groups=groups, seed=seed).threshold
        answered, risk = world.answered(limit)
        found, coverage, broken = found + (answered > 0), coverage + answered, broken + (risk > EXACT_RISK)
        if seed < WORLDS_BEFORE:
            apart = kept_apart(len(groups), groups, seed)
            start = float(np.sort(scores)[-(len(scores) // 5)])
            limit = risk_controlled_threshold(
                scores[apart],
                correct[apart],
                risk_limit=EXACT_RISK,
                thresholds=np.unique(scores),
                start=start,
                groups=groups[apart],
            ).threshold
            before.append(world.answered(limit)[0])
    row = _row(f"all labels: {text}, {kind}", EXACT_RISK, worlds, found, broken)
    return row | _beside(coverage / worlds, before)


def added_rows(worlds: int) -> list[dict[str, Any]]:
    """Of labels that came back in production."""
    rows = []
    for labeled, unlabeled in ADDED:
        rng = np.random.default_rng(0)
        found = [added(rng, seed, labeled, unlabeled) for seed in range(worlds)]
        known = [one for one in found if one is not None]
        rows.append(_row(f"{labeled}, {unlabeled}", RISK_ADDED, worlds, len(known), sum(known)))
    return rows


def added(rng: np.random.Generator, seed: int, labeled: str, unlabeled: str) -> bool | None:
    """Whether more new answered questions are wrong by a threshold on audited replies, None without one."""
    calibration, world = Calibration.from_pretrained("atlas"), rng.uniform(0, 1, 3)
    assert calibration.provenance is not None
    own, own_right = questions(rng, np.arange(300), world, 0)
    features, right = questions(rng, np.arange(REPLIES), world, 0)
    new, truth = questions(rng, np.arange(NEW), world, 0)
    answered = features["E-SC"] >= ANSWERED_FROM
    liked = answered & (right > 0) if "correct" in labeled else answered
    is_labeled = right >= 0 if (labeled, unlabeled) == ALL_LABELED else liked
    by = (True, calibration.id, calibration.provenance.prompt_hash, True)
    replies = [
        LoggedReply(
            *(number, f"{seed} {number}", bool(right[number]) if is_labeled[number] else None, *by),
            {name: float(values[number]) for name, values in features.items()},
        )
        for number in range(REPLIES)
        if is_labeled[number] or unlabeled != "others left out"
    ]
    labels = labels_for(calibration, replies, alone=True)
    if not labels.apart.any():
        return None
    fit = {name: np.concatenate([own[name], labels.features[name][~labels.apart]]) for name in own}
    fit_right = np.concatenate([own_right, labels.correct[~labels.apart]])
    named = AnswerFeatures(("",) * len(fit_right), (0,) * len(fit_right), fit, ("E-SC",))
    candidates = candidates_for(named)
    chosen = choose_map(fit, fit_right, candidates, seed=seed).map
    limit = set_threshold(
        chosen.predict(part_of(labels.features, labels.apart)),
        labels.correct[labels.apart],
        *(RISK_ADDED, DELTA),
        seed=seed,
    ).threshold
    return None if limit is None else bool(1 - truth[chosen.predict(new) >= limit].mean() > RISK_ADDED)


def made_up(worlds: int) -> list[dict[str, Any]]:
    """Return the row of the made-up world with 200 tested questions."""
    rng, found = np.random.default_rng(0), 0
    for _ in range(worlds):
        tested = LEVELS[rng.choice(3, size=200, p=SHARES)]
        right = rng.random(200) < RIGHT[np.searchsorted(-LEVELS, -tested)]
        limit = set_threshold(tested, right, OF_MADE_UP, OF_MADE_UP).threshold
        found += limit is not None and limit < LEVELS[0]
    return [_row(MADE_UP, OF_MADE_UP, worlds, found, found)]


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

    if arguments[:1] == ["--all-labels"]:
        print(table(all_labels(*map(int, arguments[1:]))))
    else:
        print(table(results(*map(int, arguments))))


if __name__ == "__main__":
    main(sys.argv[1:])
