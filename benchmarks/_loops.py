"""Measures and metrics in the simplest form: a loop over questions with the formula inside.

There are two variants. With arrays, a small function of NumPy, SciPy or a public package is called for each
question and measure, or for each data set and metric. With lists, plain Python shares common parts of
measures and metrics and takes linear time where possible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax
from scipy.stats import entropy as entropy_of

Array = NDArray[np.float64]
Clusters = Sequence[Sequence[int]]
A, BINS, EDGE = 0.5, 15, 1e-6


class Found(NamedTuple):
    """The result of one question for one measure."""

    probabilities: Sequence[float]
    confidence: float
    top_cluster: int
    entropy: float


# Measures, with arrays


@dataclass(frozen=True)
class Arithmetic:
    """The source of logsumexp, softmax and entropy."""

    log_sum: Callable[[Array], float]
    softmax: Callable[[Array], Array]
    entropy: Callable[[Array], float]


def _plain_softmax(scores: Array) -> Array:
    shifted = np.exp(scores - scores.max())
    return shifted / shifted.sum()


def _plain_entropy(p: Array) -> float:
    p = p[p > 0]
    return -(p * np.log(p)).sum()


SCIPY = Arithmetic(logsumexp, softmax, entropy_of)
#: Shorter, but it fails if all likelihoods are too small for a float.
NUMPY = Arithmetic(lambda u: np.log(np.exp(u).sum()), _plain_softmax, _plain_entropy)


def score(measure: str, u: Array, m: int, by: Arithmetic) -> float:
    """Return the log-score of a cluster with log-likelihoods u."""
    n = len(u)
    if measure == "E-SC":
        return np.log(n)
    if measure == "L-SC":
        return by.log_sum(u)
    if measure == "ML-SC":
        return by.log_sum(u) - np.log(n)
    if measure == "IC-SC":
        return by.log_sum(u) - by.entropy(by.softmax(u))
    if measure == "B-SC":
        return u.sum() + np.log(n / m)
    if measure == "T-SC":
        return (u.sum() + np.log(n / m)) / A
    return np.log(n / m) + A * u.sum()


def question_measure(measure: str, clusters: Clusters, u: Sequence[float], by: Arithmetic) -> Found:
    """Return the result of one question for one measure."""
    likelihoods = np.asarray(u)
    scores = [score(measure, likelihoods[members], len(u), by) for members in clusters]
    p = by.softmax(np.array(scores))
    tied = np.flatnonzero(p >= p.max() - 1e-9)
    sums = np.array([by.log_sum(likelihoods[clusters[k]]) for k in tied])
    top = int(tied[np.flatnonzero(sums >= sums.max() - 1e-6)[0]])
    return Found(p, p.max(), top, by.entropy(p))


# Measures, with lists


def question_measures(clusters: Clusters, u: Sequence[float]) -> list[Found]:
    """Return the results of one question for all seven measures, in the order of the paper."""
    scores = [_log_scores([u[i] for i in members], len(u)) for members in clusters]
    columns = list(zip(*scores))
    return [_of_scores(column, columns[1]) for column in columns]


def _log_scores(u: Sequence[float], m: int) -> list[float]:
    peak = max(u)
    log_sum = peak + math.log(sum(math.exp(x - peak) for x in u))
    log_size, log_share = math.log(len(u)), math.log(len(u) / m)
    q = [math.exp(x - log_sum) for x in u]
    inside = -sum(x * math.log(x) for x in q if x > 0)
    total = sum(u)
    product = total + log_share
    return [
        log_size,
        log_sum,
        log_sum - log_size,
        product,
        product / A,
        log_sum - inside,
        log_share + A * total,
    ]


def _of_scores(scores: Sequence[float], log_sums: Sequence[float]) -> Found:
    peak = max(scores)
    exps = [math.exp(x - peak) for x in scores]
    total = sum(exps)
    p = [x / total for x in exps]
    largest = max(p)
    tied = [k for k, x in enumerate(p) if x >= largest - 1e-9]
    likeliest = max(log_sums[k] for k in tied)
    top = next(k for k in tied if log_sums[k] >= likeliest - 1e-6)
    return Found(p, largest, top, -sum(x * math.log(x) for x in p if x > 0))


# Metrics, with arrays and public packages


def array_metrics(p: Array, c: Array) -> dict[str, float]:
    """Return every metric of one data set, with one function for each."""
    import relplot
    from sklearn.metrics import brier_score_loss, roc_auc_score

    confidence, right = tie_averaged(p, c)
    reliability, resolution, uncertainty = murphy(p, c)
    mcb, dsc, unc = corp(p, c)
    return {
        "accuracy": c.mean(),
        "ece": ece(p, c),
        "ace": ace(confidence, right),
        "brier": brier_score_loss(c, p),
        "reliability": reliability,
        "resolution": resolution,
        "uncertainty": uncertainty,
        "mcb": mcb,
        "dsc": dsc,
        "unc": unc,
        "auroc": roc_auc_score(c, p),
        "aurac": aurac(right),
        "prr": prr(right, c),
        "smooth_ece": relplot.smECE(p, c),
        "mean_confidence": p.mean(),
    }


def ece(p: Array, c: Array) -> float:
    """Return ECE with a mask for each bin."""
    total = 0.0
    for b in range(BINS):
        inside = (p > b / BINS + EDGE) & (p <= (b + 1) / BINS + EDGE) if b else p <= 1 / BINS + EDGE
        if inside.any():
            total += inside.mean() * abs(c[inside].mean() - p[inside].mean())
    return total


def tie_averaged(p: Array, c: Array) -> tuple[Array, Array]:
    """Return confidence and correctness in ascending order; ties share their mean correctness."""
    order = np.argsort(p)
    confidence, right = p[order], c[order]
    for value in np.unique(confidence):
        tied = confidence == value
        right[tied] = right[tied].mean()
    return confidence, right


def ace(confidence: Array, right: Array) -> float:
    """Return ACE with bins of equal mass."""
    parts = zip(np.array_split(confidence, BINS), np.array_split(right, BINS))
    return sum(len(p) / len(right) * abs(c.mean() - p.mean()) for p, c in parts)


def murphy(p: Array, c: Array) -> tuple[float, float, float]:
    """Return reliability, resolution and uncertainty, with a mask for each distinct confidence."""
    reliability = resolution = 0.0
    mean = c.mean()
    for value in np.unique(p):
        tied = p == value
        rate = c[tied].mean()
        reliability += tied.mean() * (value - rate) ** 2
        resolution += tied.mean() * (rate - mean) ** 2
    return reliability, resolution, mean * (1 - mean)


def corp(p: Array, c: Array) -> tuple[float, float, float]:
    """Return MCB, DSC and UNC by scikit-learn's isotonic regression."""
    from sklearn.isotonic import IsotonicRegression

    fit = IsotonicRegression().fit_transform(p, c)
    before, after, flat = (np.mean((x - c) ** 2) for x in (p, fit, c.mean()))
    return before - after, flat - after, flat


def aurac(right: Array) -> float:
    """Return the mean over k of the accuracy of the k most confident answers."""
    best_first = right[::-1]
    return np.mean([best_first[:k].mean() for k in range(1, len(right) + 1)])


def prr(right: Array, c: Array) -> float:
    """Return (random − actual) / (random − oracle) of areas under the remaining errors, by trapezoids."""
    oracle = np.sort(c)
    actual, best = (rejection_area(1 - x) for x in (right, oracle))
    straight = (1 - c).mean() / 2
    return (straight - actual) / (straight - best)


def rejection_area(wrong: Array) -> float:
    """Return the area under the remaining errors by number of rejected answers, and the oracle's area."""
    n = len(wrong)
    left = [wrong[k:].sum() / n for k in range(n + 1)]
    return sum(a + b for a, b in pairwise(left)) / (2 * n)


# Metrics, with lists


def list_metrics(p: Sequence[float], c: Sequence[bool]) -> dict[str, float]:
    """Return all metrics except SmoothECE, each in linear time after one sort."""
    n = len(p)
    order = sorted(range(n), key=lambda i: p[i])
    groups: dict[float, list[int]] = {}
    for i in order:
        groups.setdefault(p[i], []).append(i)
    rate = {value: sum(c[i] for i in members) / len(members) for value, members in groups.items()}
    shared = [(p[i], rate[p[i]]) for i in order]
    right = sum(c)
    accuracy, wrong = right / n, n - right
    uncertainty = accuracy * (1 - accuracy)
    brier = sum((x - y) ** 2 for x, y in zip(p, c)) / n
    blocks = _pooled(rate, groups)
    left = sum(size * mean * (1 - mean) for mean, size in blocks) / n
    wrong_below, wins = 0.0, 0.0
    for value, members in groups.items():
        here = len(members) * (1 - rate[value])
        wins += len(members) * rate[value] * (wrong_below + here / 2)
        wrong_below += here
    area, errors = 0.0, float(wrong)
    for _, mean in shared:
        area += errors - (1 - mean) / 2
        errors -= 1 - mean
    accuracies, hits = 0.0, 0.0
    for k, (_, mean) in enumerate(reversed(shared), 1):
        hits += mean
        accuracies += hits / k
    straight, oracle = wrong * n / 2, wrong**2 / 2
    bins: list[list[tuple[float, float]]] = [[] for _ in range(BINS)]
    for pair in shared:
        bins[min(max(math.ceil((pair[0] - EDGE) * BINS) - 1, 0), BINS - 1)].append(pair)
    return {
        "accuracy": accuracy,
        "ece": _binned(bins, n),
        "ace": _binned([shared[a:b] for a, b in _equal_parts(n)], n),
        "brier": brier,
        "reliability": sum(len(g) * (v - rate[v]) ** 2 for v, g in groups.items()) / n,
        "resolution": sum(len(g) * (rate[v] - accuracy) ** 2 for v, g in groups.items()) / n,
        "uncertainty": uncertainty,
        "mcb": brier - left,
        "dsc": uncertainty - left,
        "unc": uncertainty,
        "auroc": wins / (right * wrong),
        "aurac": accuracies / n,
        "prr": (straight - area) / (straight - oracle),
        "mean_confidence": sum(p) / n,
    }


def _pooled(rate: dict[float, float], groups: dict[float, list[int]]) -> list[tuple[float, int]]:
    """Pool adjacent violators, and return (mean, size) of each block."""
    blocks: list[tuple[float, int]] = []
    for value, members in groups.items():
        mean, size = rate[value], len(members)
        while blocks and blocks[-1][0] >= mean:
            before, more = blocks.pop()
            mean, size = (before * more + mean * size) / (more + size), more + size
        blocks.append((mean, size))
    return blocks


def _equal_parts(n: int) -> list[tuple[int, int]]:
    """Return the ends of parts of nearly equal size, larger ones first."""
    sizes = [n // BINS + (b < n % BINS) for b in range(BINS)]
    ends = [sum(sizes[: b + 1]) for b in range(BINS)]
    return list(zip([0, *ends], ends))


def _binned(bins: Sequence[Sequence[tuple[float, float]]], n: int) -> float:
    return sum(abs(sum(mean - x for x, mean in part)) for part in bins) / n


def resampled(p: Array, c: Array, resamples: int) -> dict[str, list[float]]:
    """Return metrics of resamples, one after another, with lists."""
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {}
    for _ in range(resamples):
        rows = rng.integers(len(p), size=len(p))
        for name, value in list_metrics(p[rows].tolist(), c[rows].tolist()).items():
            found.setdefault(name, []).append(value)
    return found
