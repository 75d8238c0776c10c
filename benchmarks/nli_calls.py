"""How many NLI calls clustering makes, against all ordered pairs of samples, as a Markdown table.

    python -m benchmarks.nli_calls

Simulated questions: a pool of wordings with Zipf weights, about a third of them further wordings of an
earlier meaning; 10 samples each at five temperatures and four seeds. The simulated model entails between
wordings of one meaning, and wrongly in one of seven ordered pairs apart. Calls are counted, not timed.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from semcal.engine import cluster_answers
from semcal.engine.equivalence import Triple
from semcal.engine.verdicts import CachedEquivalence

QUESTIONS, M, POOL = 2000, 10, 16
TEMPERATURES = (1.0, 0.5, 1.3, 1.2, 1.1)
SEEDS = 4


@dataclass(frozen=True)
class Simulated:
    """A question: the probability of each wording at temperature 1, and the meaning of each."""

    name: str
    weights: NDArray[np.float64]
    meanings: dict[str, int]

    @classmethod
    def draw(cls, number: int, rng: Generator) -> Simulated:
        """Questions range from one that has nearly one wording to one of a long tail."""
        steepness = rng.choice([6.0, 2.0, 1.5, 1.0], p=[0.25, 0.3, 0.3, 0.15])
        weights = np.arange(1, POOL + 1) ** -steepness
        meanings: list[int] = []
        for _ in range(POOL):
            further = meanings and rng.random() < 0.35
            meanings.append(int(rng.choice(meanings)) if further else max(meanings, default=-1) + 1)
        words = [f"{'x' * int(rng.integers(1, 12))}{place}" for place in range(POOL)]
        return cls(f"question {number}", weights, dict(zip(words, meanings)))

    def samples(self, temperature: float, rng: Generator) -> list[str]:
        weights = self.weights ** (1 / temperature)
        return [str(word) for word in rng.choice(list(self.meanings), size=M, p=weights / weights.sum())]


class SimulatedModel:
    """Entails within a meaning, and by a fixed coin of 1 in 7 elsewhere."""

    name, revision = "simulated", "1"

    def __init__(self, questions: Sequence[Simulated]) -> None:
        self.meanings = {question.name: question.meanings for question in questions}

    def entails(self, triples: Sequence[Triple]) -> list[bool]:
        return [self._entails(*triple) for triple in triples]

    def _entails(self, name: str, premise: str, hypothesis: str) -> bool:
        if self.meanings[name][premise] == self.meanings[name][hypothesis]:
            return True
        return hashlib.sha256(f"{name}|{premise}|{hypothesis}".encode()).digest()[0] < 256 / 7


def main() -> None:
    """Count the calls of one run, and of all runs with one cache."""
    rng = np.random.default_rng(0)
    questions = [Simulated.draw(number, rng) for number in range(QUESTIONS)]
    names = [question.name for question in questions]
    runs = [
        [question.samples(temperature, rng) for question in questions]
        for temperature in TEMPERATURES
        for _ in range(SEEDS)
    ]
    wordings = np.mean([len(set(samples)) for samples in runs[0]])
    print(f"{QUESTIONS} questions, {M} samples, {wordings:.1f} distinct wordings a question at T = 1\n")
    print("| linkage | runs | all pairs, a question | calls, a question | fewer |")
    print("| --- | --- | --- | --- | --- |")
    for linkage in ("components", "greedy"):
        with tempfile.TemporaryDirectory() as folder:
            cached = CachedEquivalence(SimulatedModel(questions), Path(folder) / "verdicts.sqlite")
            for number, run in enumerate(runs, 1):
                cluster_answers(names, run, cached, linkage=linkage)
                if number in (1, len(runs)):
                    plain, calls = number * M * (M - 1), cached.calls / QUESTIONS
                    print(f"| {linkage} | {number} | {plain} | {calls:.1f} | {plain / calls:.1f} × |")


if __name__ == "__main__":
    main()
