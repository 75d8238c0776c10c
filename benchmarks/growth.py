"""The growth of CPU time with questions, samples and vocabulary.

    OMP_NUM_THREADS=1 python -m benchmarks growth

"scores" learns a calibration from rows with a score; "samples" clusters ten stored samples of each question
by exact match, grades the answers, and learns a calibration; "metrics" computes the figures of seven measures
of such rows. "sampling" samples 16 closed-book questions from the random model of 20M parameters of
`sampling`, with several numbers of samples, and of tokens in the vocabulary. CPU time of one thread in the
second run of each job, in which the shared prompt is known. The exponent b of a power size^b is fitted to the
times by least squares on logarithms. `stages` shows the growth of each stage, `long_log` of a log, and
`serve` of connections.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from time import process_time
from typing import Any

import numpy as np
import torch

import semcal
from benchmarks import sampling
from benchmarks.sampling import Case, network, ours
from benchmarks.stages import exponent
from semcal.errors import SemcalWarning

SCORES, QUESTIONS = (100, 1_000, 10_000, 100_000), (100, 1_000, 10_000)
MS, VOCABULARIES, ASKED = (5, 10, 20, 40), (32_000, 152_000), 16
QUICK = {"SCORES": (20, 40), "QUESTIONS": (20, 40), "MS": (2, 3), "VOCABULARIES": (1_000, 2_000), "ASKED": 2}


def of_scores(n: int) -> Callable[[], object]:
    """Return the job of learning from n scores."""
    rng = np.random.default_rng(0)
    score = rng.normal(size=n)
    correct = rng.random(n) < 1 / (1 + np.exp(-score))
    rows = [{"id": str(i), "score": s, "correct": c} for i, (s, c) in enumerate(zip(score, correct.tolist()))]
    return lambda: semcal.Calibrator().fit_rows(rows, progress=False)


def samples(n: int) -> list[dict[str, Any]]:
    """Return n questions with ten samples each, of which some share is correct."""
    rng = np.random.default_rng(0)
    right = rng.beta(1, 1, size=n)[:, None] > rng.random((n, 10))
    others = rng.choice(["Bo", "Cy", "Di"], size=(n, 10))
    texts = np.where(right, "Ana", others).tolist()
    return [
        {"id": str(i), "question": f"Who built mill {i}?", "samples": row, "answers": ["Ana"]}
        for i, row in enumerate(texts)
    ]


def of_samples(n: int) -> Callable[[], object]:
    """Return the job of learning from the samples of n questions."""
    rows = samples(n)
    return lambda: semcal.score(rows, "exact", progress=False).calibrate()


def of_metrics(n: int) -> Callable[[], object]:
    """Return the job of computing the figures of n graded questions."""
    results = semcal.score(samples(n), "exact", progress=False)
    results.metrics()  # grades the answers
    return results.metrics


def of_sampling(m: int, vocabulary: int) -> Callable[[], object]:
    """Return the job of sampling m answers to each question."""
    sampling.M, sampling.VOCABULARY = m, vocabulary
    return ours(network("20M"), Case("20M", "closed", {}, questions=ASKED))[0]


def results() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SemcalWarning)
        return list(_rows())


def _rows() -> Iterator[dict[str, Any]]:
    before = sampling.M, sampling.VOCABULARY
    try:
        yield from _growth("scores", "rows", SCORES, of_scores)
        yield from _growth("samples", "questions", QUESTIONS, of_samples)
        yield from _growth("metrics", "questions", QUESTIONS, of_metrics)
        yield from _growth("sampling", "samples", MS, lambda m: of_sampling(m, before[1]))
        yield from _growth("sampling", "vocabulary", VOCABULARIES, lambda size: of_sampling(before[0], size))
    finally:
        sampling.M, sampling.VOCABULARY = before


def _growth(
    job: str, unit: str, sizes: tuple[int, ...], job_of: Callable[[int], Callable[[], object]]
) -> Iterator[dict[str, Any]]:
    seconds = [_seconds(job_of(n)) for n in sizes]
    growth = exponent(sizes, seconds)
    for n, took in zip(sizes, seconds):
        yield {
            "job": job,
            "size": n,
            "of": unit,
            "CPU s": took,
            "exponent": growth if n == sizes[-1] else None,
        }


def _seconds(job: Callable[[], object]) -> float:
    job()
    start = process_time()
    job()
    return process_time() - start


if __name__ == "__main__":
    from benchmarks.__main__ import table

    print(table(results()))
