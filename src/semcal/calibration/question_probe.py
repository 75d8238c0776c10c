"""A probe of questions: the probability of a correct answer from a hidden state of a local model.

The state is that of the last token of the prompt, before any answer (compare P(IK) of Kadavath et al. 2022,
arXiv 2207.05221). The probe is a logistic regression with a ridge on the principal components of the states.
It is learned from the labels of a calibration, and its probability is a feature of the answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from semcal.arrays import Floats
from semcal.calibration.features import AnsweredRow, AnswerFeatures
from semcal.errors import InputError
from semcal.metrics.frequencies import Groups
from semcal.metrics.probability_maps import FEW, expit, fit_slopes, fold_masks
from semcal.rows import QUESTION_PROBE

#: Number of principal components for up to `FEW_LABELS` labels, and for more.
COMPONENTS, FEW_LABELS, MOST_COMPONENTS = 32, 200, 128
#: Weight of half the squared norm of the slopes, for scores of variance 1: the log odds deviate by about 1.
RIDGE = 1.0


@dataclass(frozen=True)
class QuestionProbe:
    """A linear function of a state: the log odds of a correct answer."""

    weights: tuple[float, ...]
    intercept: float

    @classmethod
    def fit(cls, states: Floats, correct: Floats) -> QuestionProbe:
        """Fit the probe to states (N, d) and outcomes (N,)."""
        center, scale = states.mean(0), states.std(0)
        standard = (states - center) / np.where(scale > 0, scale, np.inf)  # a constant has no say
        _, lengths, directions = np.linalg.svd(standard, full_matrices=False)
        directions = directions[: COMPONENTS if len(states) <= FEW_LABELS else MOST_COMPONENTS]
        size = np.sqrt((lengths**2).sum() / len(states)) or 1.0
        scores, free = standard @ directions.T / size, np.zeros(len(directions))
        slopes, intercept = fit_slopes(scores, correct, free, RIDGE)
        weights = slopes @ directions / size / np.where(scale > 0, scale, np.inf)
        return cls(tuple(weights.tolist()), float(intercept - weights @ center))

    def predict(self, states: Floats) -> Floats:
        """Return the probabilities (N,) of correct answers from states (N, d); NaN for an unknown state."""
        return expit(states @ np.array(self.weights) + self.intercept)

    def add_to(self, features: AnswerFeatures, answered: Sequence[AnsweredRow]) -> AnswerFeatures:
        """Return the features with the probability of each answer."""
        return _with_probability(features, self.predict(states_of(answered, len(self.weights))))


def learn_probe(
    features: AnswerFeatures,
    answered: Sequence[AnsweredRow],
    correct: Floats,
    fitted: NDArray[np.bool_],
    groups: Groups | None,
    seed: int,
) -> tuple[QuestionProbe | None, AnswerFeatures]:
    """Learn a probe from the fitted answers of N, and return it with the features of all answers.

    The probability of a fitted answer is out of fold, since a map learns from it. With fewer than 5 known
    states there is no probe, and the feature stays unknown.
    """
    states = states_of(answered)
    known = np.flatnonzero(fitted & ~np.isnan(states).any(1))
    if len(known) < FEW:
        return None, features
    of_known, right = states[known], correct[known]
    probe = QuestionProbe.fit(of_known, right)
    p = probe.predict(states)
    for rest, fold in fold_masks(right, None if groups is None else groups[known], seed):
        p[known[fold]] = QuestionProbe.fit(of_known[rest], right[rest]).predict(of_known[fold])
    return probe, _with_probability(features, p)


def _with_probability(features: AnswerFeatures, p: Floats) -> AnswerFeatures:
    return replace(features, values={**features.values, QUESTION_PROBE: p})


def states_of(answered: Sequence[AnsweredRow], width: int | None = None) -> Floats:
    """Return the states (N, d) of questions, NaN if unknown; InputError if one has another width."""
    found = [item.row.signals_of(item.text).get(QUESTION_PROBE) for item in answered]
    width = width or next((len(state) for state in found if state is not None), 1)
    for item, state in zip(answered, found):
        if state is not None and len(state) != width:
            raise InputError(
                f"question {item.row.id!r}: the state of {QUESTION_PROBE!r} has {len(state)} numbers, and "
                f"{width} are expected. Use the model of the calibration"
            )
    return np.array([[np.nan] * width if state is None else state for state in found], float)
