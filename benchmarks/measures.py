"""Measures and metrics of a whole experiment, compared with loops in Python over questions.

    python -m benchmarks measures

The experiment has 2,000 questions with 10 samples each, 20 runs, seven measures, every metric of each run and
measure, and intervals from 1,000 resamples. The loops (`benchmarks/_loops.py`) compute the same numbers,
which is checked first: distribution, confidence, answer and entropy of each question for each measure, and
all metrics of each run and measure. They process one run, counted 20 times. CPU time of one thread, in turn,
medians.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from time import thread_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._loops import (
    NUMPY,
    SCIPY,
    Arithmetic,
    Found,
    array_metrics,
    list_metrics,
    question_measure,
    question_measures,
    resampled,
)
from semcal.measures import MEASURES, SemanticConfidence, confidence
from semcal.metrics import bootstrap, summaries

QUESTIONS, RUNS, M, RESAMPLES, ROUNDS = 2000, 20, 10, 1000, 3
#: Number of resamples of the loops.
FEW = 20
QUICK = {"QUESTIONS": 60, "RUNS": 2, "RESAMPLES": 20, "ROUNDS": 1, "FEW": 2}
Array = NDArray[np.float64]
Clusters = list[list[int]]
LogLikelihoods = list[list[float]]


def questions(n: int, seed: int = 0) -> tuple[list[Clusters], LogLikelihoods]:
    """Return clusters and log-likelihoods of simulated questions, from sure to unsure."""
    rng = np.random.default_rng(seed)
    clusters: list[Clusters] = []
    for steepness in rng.choice([6.0, 2.0, 1.0, 0.3], size=n):
        weights = np.arange(1, M + 1) ** -steepness
        members: dict[int, list[int]] = {}
        for draw, meaning in enumerate(rng.choice(M, size=M, p=weights / weights.sum()).tolist()):
            members.setdefault(meaning, []).append(draw)
        clusters.append(list(members.values()))
    return clusters, (-rng.gamma(1.0, 0.7, size=(n, M))).tolist()


def in_turn(jobs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return median CPU seconds of each job, run in turn."""
    spent: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(ROUNDS):
        for name, job in jobs.items():
            start = thread_time()
            job()
            spent[name].append(thread_time() - start)
    return {name: statistics.median(times) for name, times in spent.items()}


def loop_measures(
    clusters: Sequence[Clusters], u: LogLikelihoods, by: Arithmetic | None
) -> dict[str, list[Found]]:
    """Compute all measures of all questions: with arrays by the given arithmetic, else with lists."""
    if by is not None:
        return {name: [question_measure(name, *pair, by) for pair in zip(clusters, u)] for name in MEASURES}
    return dict(zip(MEASURES, zip(*map(question_measures, clusters, u))))


LISTS = "plain Python on lists, one pass over what measures share"
MEASURE_LOOPS = {
    "SciPy's logsumexp, softmax and entropy for each question and measure": SCIPY,
    "NumPy alone for each question and measure (underflows)": NUMPY,
    LISTS: None,
}


def measure_rows(clusters: list[Clusters], u: LogLikelihoods) -> list[dict[str, Any]]:
    """Yield rows of the seven measures against each variant of the loop."""
    found = confidence(clusters[:QUESTIONS], u[:QUESTIONS], measure=MEASURES)
    one = clusters[:QUESTIONS], u[:QUESTIONS]
    for by in MEASURE_LOOPS.values():
        for name, looped in loop_measures(*one, by).items():
            check_measure(found[name], looped)
    jobs: dict[str, Callable[[], object]] = {"semcal": lambda: confidence(clusters, u, measure=MEASURES)}
    jobs |= {how: lambda by=by: loop_measures(*one, by) for how, by in MEASURE_LOOPS.items()}
    seconds = in_turn(jobs)
    return [
        row("seven measures", how, seconds["semcal"], seconds[how] * RUNS, 200 if by is SCIPY else None)
        for how, by in MEASURE_LOOPS.items()
    ]


def check_measure(ours: SemanticConfidence, looped: Sequence[Found]) -> None:
    """Raise an error if the loops compute other values."""
    probabilities, largest, top, entropy = zip(*looped)
    np.testing.assert_allclose(ours.probabilities, np.concatenate(probabilities), atol=1e-9)
    np.testing.assert_allclose(ours.confidence, largest, atol=1e-9)
    np.testing.assert_array_equal(ours.top_cluster, top)
    np.testing.assert_allclose(ours.entropy, entropy, atol=1e-9)


def metric_rows(p: Array, c: Array) -> list[dict[str, Any]]:
    """Yield rows of all metrics of (B, N) confidences and outcomes, B = runs × measures, for each loop."""
    check_metrics(p[::RUNS], c[::RUNS])
    one = list(zip(p[::RUNS], c[::RUNS]))
    lists = [(x.tolist(), y.tolist()) for x, y in one]
    arrays, plain = "NumPy, scikit-learn and relplot, a function for each metric", "plain Python on lists"
    seconds = in_turn(
        {
            "semcal": lambda: summaries(p, c),
            arrays: lambda: [array_metrics(*pair) for pair in one],
            plain: lambda: [list_metrics(*pair) for pair in lists],
        }
    )
    return [
        row("all metrics", arrays, seconds["semcal"], seconds[arrays] * RUNS, 150),
        row("all metrics", f"{plain}, without SmoothECE", seconds["semcal"], seconds[plain] * RUNS),
    ]


def check_metrics(p: Array, c: Array) -> None:
    """Raise an error if the loops compute other values; relplot's grid for SmoothECE is coarser."""
    ours = summaries(p, c)
    for b, (row, correct) in enumerate(zip(p, c)):
        for name, value in array_metrics(row, correct).items():
            np.testing.assert_allclose(ours[name][b], value, atol=2e-3 if name == "smooth_ece" else 1e-9)
        for name, value in list_metrics(row.tolist(), correct.tolist()).items():
            np.testing.assert_allclose(ours[name][b], value, atol=1e-9)


def interval_row(p: Array, c: Array) -> dict[str, Any]:
    """Return the row of bootstrap intervals."""
    names = list(list_metrics(p.tolist(), c.tolist()))
    seconds = in_turn(
        {
            "semcal": lambda: bootstrap(p, c, metrics=names, resamples=RESAMPLES),
            "loops": lambda: resampled(p, c, FEW),
        }
    )
    what = f"intervals of {len(names)} metrics, {RESAMPLES} resamples"
    return row(what, "plain Python on lists", seconds["semcal"], seconds["loops"] * RESAMPLES / FEW)


def row(what: str, against: str, ours: float, loops: float, target: int | None = None) -> dict[str, Any]:
    """Return one line of the table."""
    return {
        "what": what,
        "against": against,
        "semcal, s": ours,
        "loops, s": loops,
        "times faster": loops / ours,
        "to reach": target or "",
    }


def results() -> list[dict[str, Any]]:
    """Time measures, metrics and intervals of one experiment."""
    clusters, u = questions(QUESTIONS * RUNS)
    by_measure = confidence(clusters, u, measure=MEASURES).values()
    p = np.concatenate([result.confidence.reshape(RUNS, QUESTIONS) for result in by_measure])
    c = (np.random.default_rng(1).random(p.shape) < p**2).astype(np.float64)
    return [*measure_rows(clusters, u), *metric_rows(p, c), interval_row(p[RUNS], c[RUNS])]


if __name__ == "__main__":
    from benchmarks.__main__ import table

    print(table(results()))
