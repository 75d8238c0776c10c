"""Coverage of 95% intervals for groups of questions, and for few questions.

    python -m benchmarks.cluster_coverage
    python -m benchmarks.cluster_coverage sizes

Simulation with 200 data sets per line. Metrics: groups of 1 to 9 questions share a probability of being
correct, from 0.1 to 0.8 or from 0.9 to 1, and with probability 0.9 also its outcome. Confidences are these
probabilities, or 0.2 too high; 200 resamples; a missing interval counts as coverage. Temperatures: questions
of 4 answer tokens out of 20, each with its own temperature around that of a fit to 20,000 of them. With
`sizes`: the share of rejected data sets with calibrated confidences in groups, 500 data sets of each
population.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from semcal.experiment.analyses.grid_scores import FLOORED
from semcal.metrics import bootstrap, joint_bootstrap, summary
from semcal.metrics.overview import noise_floors
from semcal.recalibration import FitFeatures
from semcal.recalibration.exact_solver import fit_temperatures
from semcal.recalibration.records import TemperatureFit

DATA_SETS, RESAMPLES = 200, 200
NAMES = ("accuracy", "brier", "gain", "auroc", "ace")
TOKENS, VOCABULARY = 4, 20
#: Beta distributions of calibrated confidences; shares of members that take the number of their group.
CALIBRATED = {"67% correct, sharp": (0.6, 0.3), "92% correct": (6, 0.5)}
ALIKE = {"alike": 1.0, "half alike": 0.5, "not": 0.0}
SIZED, DRAWS = 500, 199
#: Numbers of groups of a data set, of groups with varied size, and of questions of a fit.
GROUPS, GROUPS_SIZED, FITTED = (10, 20, 30, 60, 200), (10, 20, 40, 100), (5, 10, 20, 50, 200)
#: Numbers of groups for the true metrics, and of questions for the true temperature.
MANY, MANY_FITTED = 60_000, 20_000
QUICK = {"DATA_SETS": 2, "RESAMPLES": 20, "SIZED": 2, "DRAWS": 19, "GROUPS": (10,), "GROUPS_SIZED": (10,)}
QUICK |= {"FITTED": (5,), "MANY": 1000, "MANY_FITTED": 500}

World = tuple[float, float, float]
#: Range of the probabilities, and excess of confidences.
WORLDS: tuple[World, ...] = ((0.1, 0.8, 0.0), (0.1, 0.8, 0.2), (0.9, 1.0, 0.0))


def grouped(seed: int, groups: int, world: World) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return confidences, outcomes and groups."""
    low, high, flattery = world
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), rng.integers(1, 10, groups))
    chance = rng.uniform(low, high, groups)[group]
    drawn = np.where(rng.random(len(group)) < 0.9, rng.random(groups)[group], rng.random(len(group)))
    return chance + flattery, (drawn < chance).astype(float), group


def truth(world: World) -> dict[str, float]:
    """Return accuracy, Brier score, gain and AUROC of very many questions; ACE is the excess by design."""
    p, c, _ = grouped(0, MANY, world)
    return {**summary(p, c, draws=0), "ace": world[2]}


def metrics_held() -> list[dict[str, Any]]:
    """Yield shares of data sets whose plain and clustered intervals contain the truth."""
    rows = []
    for groups in GROUPS:
        for world in WORLDS:
            true = truth(world)
            hits = {name: np.zeros(2) for name in NAMES}
            for seed in range(1, DATA_SETS + 1):
                p, c, label = grouped(seed, groups, world)
                for place, given in enumerate((None, label)):
                    how = {"metrics": NAMES, "groups": given, "resamples": RESAMPLES, "seed": seed}
                    drawn = joint_bootstrap({0: (p, c)}, **how)
                    for name in NAMES:
                        one = drawn.interval(0, name)
                        hits[name][place] += not (one.low > true[name] or true[name] > one.high)
            rows += [
                {
                    "groups": groups,
                    "probabilities": "{} to {}".format(*world),
                    "true ACE": world[2],
                    "metric": name,
                }
                | dict(zip(("questions drawn", "groups drawn"), (count / DATA_SETS).tolist()))
                for name, count in hits.items()
            ]
    return rows


def refused(seed: int, groups: int, members: int, alike: float, shape: tuple[float, float]) -> list[bool]:
    """Return whether p ≤ 0.05, by metric, and whether the interval of ACE is above 0."""
    rng = np.random.default_rng((seed, groups, members))
    label = np.repeat(np.arange(groups), members)
    p = rng.beta(*shape, len(label))
    shared = rng.random(len(label)) < alike
    c = (np.where(shared, rng.random(groups)[label], rng.random(len(label))) <= p).astype(float)
    floors = noise_floors(p, c, FLOORED, groups=label, draws=DRAWS, seed=seed)
    low = bootstrap(p, c, metrics=["ace"], groups=label, resamples=RESAMPLES, seed=seed)["ace"].low
    return [*(floors[name].p_value <= 0.05 for name in FLOORED), low > 0]


def sizes() -> list[dict[str, Any]]:
    """Yield shares of calibrated data sets that are rejected."""
    head = (*(f"p of {name}" for name in FLOORED), "lower end of ace > 0")
    return [
        {"confidences": name, "groups": groups, "of": members, "members": agree}
        | dict(zip(head, np.mean([refused(i, groups, members, alike, shape) for i in range(SIZED)], axis=0)))
        for name, shape in CALIBRATED.items()
        for groups in GROUPS_SIZED
        for members in (3, 5)
        for agree, alike in ALIKE.items()
    ]


def fitted(seed: int, questions: int) -> TemperatureFit:
    """Return the temperature of questions with different temperatures."""
    rng = np.random.default_rng([seed, questions])
    z = torch.tensor(rng.standard_normal((questions * TOKENS, VOCABULARY), dtype=np.float32) * 2.5)
    heat = torch.tensor(1.6 * np.exp(0.4 * rng.standard_normal(questions))).repeat_interleave(TOKENS)
    chances = torch.softmax(z.double() / heat[:, None], 1).numpy().cumsum(1)
    index = torch.arange(questions)
    features = FitFeatures(
        prefix=z[:0],
        states=z,
        whole=False,
        prompt_start=index * TOKENS,
        prompt_length=torch.ones(questions, dtype=torch.long),
        answer_question=index,
        answer_start=index * TOKENS + 1,
        target_start=torch.arange(questions + 1) * TOKENS,
        targets=torch.tensor((chances > rng.random((len(z), 1))).argmax(1)),
    )
    return fit_temperatures(features, lambda s: s, losses=[("NLL", None)])[0]


def temperatures_held() -> list[dict[str, Any]]:
    """Return the share of calibration sets whose interval contains T, by their number of questions."""
    right = fitted(0, MANY_FITTED).temperature
    rows = []
    for questions in FITTED:
        found = [fitted(seed, questions) for seed in range(DATA_SETS)]
        ends = [one.interval() for one in found]
        hits = float(np.mean([low <= right <= high for low, high in ends]))
        width = float(np.median([high / low for low, high in ends]))
        rows.append({"questions": questions, "interval contains T": hits, "high / low (median)": width})
    return rows


def quick_runs(_: Path) -> list[list[str]]:
    return [[], ["sizes"]]


def main(arguments: Sequence[str] = ()) -> None:
    from benchmarks.__main__ import table

    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if list(arguments) == ["sizes"]:
            print(table(sizes()))
        else:
            print(table(metrics_held()), table(temperatures_held()), sep="\n\n")


if __name__ == "__main__":
    main(sys.argv[1:])
