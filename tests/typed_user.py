"""A user's program, for mypy --strict against the installed package (`make release-check`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import semcal
from semcal import metrics
from semcal.errors import SemcalError


def shares(clusters: list[list[list[int]]], log_likelihoods: list[list[float]]) -> NDArray[np.float64]:
    """Confidences of one measure."""
    return semcal.confidence(clusters, log_likelihoods, measure="L-SC").probabilities


def error(confidence: list[float], correct: list[bool]) -> float:
    """A metric beside its noise floor."""
    floor: metrics.NoiseFloor = metrics.noise_floor(confidence, correct)
    return float(metrics.ace(confidence, correct)) - floor.mean


def asked(questions: list[str], path: str) -> list[tuple[str | None, float | None]]:
    """Answers with the probability that they are right."""
    try:
        calibration: semcal.Calibration = semcal.calibrate(
            path, "labelled.jsonl", equivalence="exact", risk=0.1
        )
        answers: semcal.Results = semcal.ask_many(path, questions, calibration=calibration)
    except SemcalError:
        return []
    return [(answer.text, answer.confidence) for answer in answers if not answer.abstained]


def scored(rows: list[dict[str, object]]) -> dict[str, object]:
    """Stored samples."""
    results = semcal.score(rows, equivalence="exact")
    return dict(results.metrics()["E-SC"])


model = semcal.load_model("atlas")
asking = semcal.SemanticUQ(model, equivalence=semcal.load_equivalence("atlas"))
answer: semcal.Answer = asking.ask(semcal.Question("q1", "Who governed Ruvorkreth?", ()))
