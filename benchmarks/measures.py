"""Measures and metrics of a whole experiment, against loops in Python over questions.

    python -m benchmarks.measures

The experiment: 2000 questions with 10 draws each, 20 runs, seven measures; every metric of each run and
measure; and intervals from 1000 resamples. The loops compute the same numbers, question by question and
cluster by cluster, as one writes them first. CPU time of one thread, the two in turn, median of five.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from time import thread_time
from typing import Any

import numpy as np

from semcal.metrics import bootstrap, summary
from semcal.semantics import confidences

QUESTIONS, RUNS, M, RESAMPLES, ROUNDS = 2000, 20, 10, 1000, 5
Clusters = list[list[int]]


def questions(n: int, seed: int = 0) -> tuple[list[Clusters], list[list[float]]]:
    """Clusters and log-likelihoods of made-up questions, from sure to unsure."""
    rng = np.random.default_rng(seed)
    clusters: list[Clusters] = []
    for steepness in rng.choice([6.0, 2.0, 1.0, 0.3], size=n):
        weights = np.arange(1, M + 1) ** -steepness
        members: dict[int, list[int]] = {}
        for draw, meaning in enumerate(rng.choice(M, size=M, p=weights / weights.sum()).tolist()):
            members.setdefault(meaning, []).append(draw)
        clusters.append(list(members.values()))
    return clusters, (-rng.gamma(1.0, 0.7, size=(n, M))).tolist()


def loop_measures(
    clusters: Sequence[Clusters], log_likelihoods: Sequence[Sequence[float]]
) -> list[list[float]]:
    """The largest probability under each measure, a loop per question, measure and cluster."""
    largest = []
    for question, u in zip(clusters, log_likelihoods):
        scores = [log_scores([u[i] for i in members], len(u)) for members in question]
        largest.append([max(softmax(column)) for column in zip(*scores)])
    return largest


def log_scores(u: Sequence[float], m: int) -> list[float]:
    """The seven log-scores of one cluster, a = 0.5."""
    peak = max(u)
    total = sum(math.exp(x - peak) for x in u)
    log_sum, log_share = peak + math.log(total), math.log(len(u) / m)
    q = [math.exp(x - log_sum) for x in u]
    entropy = -sum(x * math.log(x) for x in q if x > 0)
    product = sum(u) + log_share
    ml = log_sum - math.log(len(u))
    return [
        math.log(len(u)),
        log_sum,
        ml,
        product,
        product / 0.5,
        log_sum - entropy,
        log_share + 0.5 * sum(u),
    ]


def softmax(scores: Sequence[float]) -> list[float]:
    """Probabilities of log-scores."""
    peak = max(scores)
    exps = [math.exp(score - peak) for score in scores]
    return [x / sum(exps) for x in exps]


def loop_metrics(p: Sequence[float], c: Sequence[bool]) -> dict[str, float]:
    """ECE, ACE, Brier, CORP-MCB, AUROC, AURAC and PRR, ties in confidence averaged, loops over questions."""
    n = len(p)
    order = sorted(range(n), key=lambda i: p[i])
    groups: dict[float, list[int]] = {}
    for i in order:
        groups.setdefault(p[i], []).append(i)
    rate = {value: sum(c[i] for i in members) / len(members) for value, members in groups.items()}
    shared = [(p[i], rate[p[i]]) for i in order]
    brier = sum((x - y) ** 2 for x, y in zip(p, c)) / n
    left = sum(size * mean * (1 - mean) for mean, size in pooled(rate, groups)) / n
    wrong_below, wins, wrong = 0.0, 0.0, n - sum(c)
    for value, members in groups.items():
        here = len(members) * (1 - rate[value])
        wins += len(members) * rate[value] * (wrong_below + here / 2)
        wrong_below += here
    accuracies, right = [], 0.0
    for k, (_, mean) in enumerate(reversed(shared), 1):
        right += mean
        accuracies.append(right / k)
    errors, remaining = [float(wrong)], float(wrong)
    for _, mean in shared:
        remaining -= 1 - mean
        errors.append(remaining)
    area = sum(a + b for a, b in pairwise(errors)) / 2
    straight, oracle = wrong * n / 2, wrong**2 / 2
    return {
        "ece": binned([[s for s in shared if bin_of(s[0]) == b] for b in range(15)], n),
        "ace": binned([shared[a:b] for a, b in equal_parts(n, 15)], n),
        "brier": brier,
        "mcb": brier - left,
        "auroc": wins / ((n - wrong) * wrong),
        "aurac": sum(accuracies) / n,
        "prr": (straight - area) / (straight - oracle),
    }


def pooled(rate: dict[float, float], groups: dict[float, list[int]]) -> list[tuple[float, int]]:
    """Pool adjacent violators: (mean, size) of each block."""
    blocks: list[tuple[float, int]] = []
    for value, members in groups.items():
        mean, size = rate[value], len(members)
        while blocks and blocks[-1][0] >= mean:
            before, more = blocks.pop()
            mean, size = (before * more + mean * size) / (more + size), more + size
        blocks.append((mean, size))
    return blocks


def bin_of(p: float) -> int:
    """Index among 15 bins of equal width."""
    return min(max(math.ceil((p - 1e-6) * 15) - 1, 0), 14)


def equal_parts(n: int, parts: int) -> list[tuple[int, int]]:
    """Where parts of nearly equal size begin and end, larger ones first."""
    sizes = [n // parts + (b < n % parts) for b in range(parts)]
    ends = np.cumsum(sizes).tolist()
    return list(zip([0, *ends], ends))


def binned(bins: Sequence[Sequence[tuple[float, float]]], n: int) -> float:
    """Weighted mean over bins of |accuracy - confidence|."""
    return sum(abs(sum(mean - x for x, mean in part)) for part in bins) / n


def loop_bootstrap(p: np.ndarray, c: np.ndarray, resamples: int) -> dict[str, list[float]]:
    """Metrics of resamples, one after another."""
    rng = np.random.default_rng(0)
    found: dict[str, list[float]] = {}
    for _ in range(resamples):
        rows = rng.integers(len(p), size=len(p))
        for name, value in loop_metrics(p[rows].tolist(), c[rows].tolist()).items():
            found.setdefault(name, []).append(value)
    return found


def in_turn(ours: Callable[[], Any], loops: Callable[[], Any], rounds: int = ROUNDS) -> tuple[float, float]:
    """Median CPU seconds of both, run in turn."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for function, seconds in zip((ours, loops), times):
            start = thread_time()
            function()
            seconds.append(thread_time() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def row(what: str, ours: float, loops: float) -> dict[str, Any]:
    """One line of the table."""
    return {"what": what, "semcal, s": ours, "loops, s": loops, "ratio": loops / ours}


def results() -> list[dict[str, Any]]:
    """Time measures, metrics and intervals of one experiment."""
    clusters, u = questions(QUESTIONS * RUNS)
    by_measure = confidences(clusters, u)
    looped = np.array(loop_measures(clusters[:QUESTIONS], u[:QUESTIONS])).T
    for result, plain in zip(by_measure.values(), looped):
        np.testing.assert_allclose(result.confidence[:QUESTIONS], plain, atol=1e-9)
    rng = np.random.default_rng(1)
    sets = []
    for result in by_measure.values():
        for p in np.split(result.confidence, RUNS):
            sets.append((p, rng.random(QUESTIONS) < p**2))
    p, c = sets[RUNS]
    ours, plain_numbers = summary(p, c), loop_metrics(p.tolist(), c.tolist())
    for name, value in plain_numbers.items():
        np.testing.assert_allclose(ours[name], value, atol=1e-9)
    names = list(plain_numbers)
    lists = [(x.tolist(), y.tolist()) for x, y in sets]
    size = f"{QUESTIONS} questions x {RUNS} runs x 7 measures"
    few = RESAMPLES // 20
    once = in_turn(
        partial(bootstrap, p, c, metrics=names, resamples=RESAMPLES), partial(loop_bootstrap, p, c, few), 3
    )
    return [
        row(
            f"measures, {size}",
            *in_turn(partial(confidences, clusters, u), partial(loop_measures, clusters, u), 3),
        ),
        row(
            f"all metrics, {size}",
            *in_turn(lambda: [summary(*s) for s in sets], lambda: [loop_metrics(*s) for s in lists], 3),
        ),
        row(f"intervals of {len(names)} metrics, {RESAMPLES} resamples", once[0], once[1] * RESAMPLES / few),
    ]


def main() -> int:
    from benchmarks.__main__ import table

    print(table(results()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
