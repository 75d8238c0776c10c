"""Questions or groups of them drawn with replacement, and outcomes as if the confidences were calibrated."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from semcal.arrays import as_numbers
from semcal.errors import InputError
from semcal.metrics.table import Metric
from semcal.metrics.tally import (
    Floats,
    Tally,
    as_correct,
    as_probabilities,
    as_scores,
    check_same_length,
)

Labels = Sequence[Hashable] | NDArray[Any]
Groups = NDArray[np.intp]
"""The number of each question's group: 0, 1, … in order of first appearance."""

#: Resamples computed at a time, so that the arrays stay in the processor's cache.
CHUNK = 50


@dataclass(frozen=True, eq=False)
class Sorted:
    """Values of N questions and their outcomes, ascending by value; starts of the tie groups."""

    order: NDArray[np.intp]  # [N] question at each place
    starts: NDArray[np.intp]  # [U]
    value: Floats  # [U]
    correct: Floats  # [N] in order

    @classmethod
    def of(cls, values: Floats, correct: Floats) -> Sorted:
        """Sort checked values and outcomes of one length."""
        check_same_length(values, correct)
        order = np.argsort(values, kind="stable")
        value, starts = np.unique(values[order], return_index=True)
        return cls(order, starts, value, correct[order])

    def weighted(self, weights: Floats) -> Tally:
        """The tallies in which question i occurs weights[b, i] times: [B, N] -> B rows."""
        weights = weights[:, self.order]
        return self._summed(weights, weights * self.correct)

    def with_outcomes_below(self, uniforms: Floats) -> Tally:
        """The tallies in which question i is right if uniforms[b, i] is below its value: [B, N] -> B rows."""
        values = np.repeat(self.value, np.diff(np.append(self.starts, len(self.order))))
        right = (uniforms[:, self.order] < values).astype(np.float64)
        return self._summed(np.ones_like(right), right)

    def with_turned_residuals(self, signs: Floats) -> Tally:
        """The tallies in which outcome − value of question i is turned by signs[b, i]: [B, N] -> B rows."""
        values = np.repeat(self.value, np.diff(np.append(self.starts, len(self.order))))
        right = values + signs[:, self.order] * (self.correct - values)
        return self._summed(np.ones_like(right), right)

    def _summed(self, count: Floats, right: Floats) -> Tally:
        """Sum over the tie groups."""
        return Tally(
            self.value,
            np.add.reduceat(count, self.starts, axis=1),
            np.add.reduceat(right, self.starts, axis=1),
        )


@dataclass(frozen=True, eq=False)
class Runs:
    """R runs on the same N questions: what calibration is measured on, and what questions are ranked by."""

    confidences: Sequence[Sorted] | None  # absent where any score was given
    scores: Sequence[Sorted]
    n: int
    weights: Floats | None = None  # [R] share of each run in the mean, equal by default

    @classmethod
    def of(
        cls,
        confidence: ArrayLike,
        correct: ArrayLike,
        score: ArrayLike | None = None,
        *,
        any_score: bool = False,
        weights: ArrayLike | None = None,
    ) -> Runs:
        """Check arrays of shape (N,) or (R, N), and weights (R,)."""
        outcomes = [as_correct(row) for row in _rows(correct, "correct")]
        given = [as_scores(row, "score") for row in _rows(confidence if score is None else score, "score")]
        scores = [Sorted.of(*pair) for pair in _paired_rows(given, outcomes)]
        shares = None if weights is None else _shares(weights, len(outcomes))
        if any_score:
            return cls(None, scores, len(outcomes[0]), shares)
        probabilities = [as_probabilities(row) for row in _rows(confidence, "confidence")]
        confidences = [Sorted.of(*pair) for pair in _paired_rows(probabilities, outcomes)]
        return cls(confidences, scores if score is not None else confidences, len(outcomes[0]), shares)

    def measured(
        self, metrics: Mapping[str, Metric], bins: int, tallies: Callable[[Sorted], Tally]
    ) -> dict[str, Floats]:
        """Each metric on the tallies made of each run, averaged over runs: [metric] -> [B]."""
        ranked = [tallies(sample) for sample in self.scores]
        same = self.confidences is None or self.confidences is self.scores
        calibrated = ranked if same else [tallies(sample) for sample in self.confidences or ()]
        return {
            name: np.average(
                [metric.rows(t, bins) for t in (ranked if metric.ranks else calibrated)],
                axis=0,
                weights=self.weights,
            )
            for name, metric in metrics.items()
        }

    def estimates(self, metrics: Mapping[str, Metric], bins: int) -> dict[str, float]:
        """Each metric of the data, averaged over runs."""
        once = np.ones((1, self.n))
        measured = self.measured(metrics, bins, partial(Sorted.weighted, weights=once))
        return {name: float(value[0]) for name, value in measured.items()}


def resampled(
    methods: Sequence[Runs],
    metrics: Mapping[str, Metric],
    bins: int,
    resamples: int,
    rng: np.random.Generator,
    groups: Groups | None = None,
) -> list[dict[str, Floats]]:
    """Each metric of each method on the same resamples of the questions: [method][metric] -> [resamples]."""
    n = methods[0].n
    parts: list[list[dict[str, Floats]]] = [[] for _ in methods]
    for some in drawn_weights(n, resamples, rng, groups):
        # resamples of groups differ in size, those in one tally must not
        for weights in [some] if groups is None else some[:, None]:
            for method, part in zip(methods, parts):
                part.append(method.measured(metrics, bins, partial(Sorted.weighted, weights=weights)))
    return [_joined(part, metrics) for part in parts]


def drawn_weights(
    n: int, resamples: int, rng: np.random.Generator, groups: Groups | None = None
) -> Iterator[Floats]:
    """How often each of n questions is drawn, alone or with its group, some resamples at a time: [B, n]."""
    drawn = n if groups is None else int(groups.max()) + 1
    for rows in _chunks(resamples):
        places = rng.integers(drawn, size=(rows, drawn)) + drawn * np.arange(rows)[:, None]
        counts = np.bincount(places.ravel(), minlength=rows * drawn).reshape(rows, drawn).astype(np.float64)
        yield counts if groups is None else counts[:, groups]


def if_calibrated(
    runs: Runs,
    metrics: Mapping[str, Metric],
    bins: int,
    resamples: int,
    rng: np.random.Generator,
    groups: Groups | None = None,
) -> dict[str, Floats]:
    """Each metric with the confidences calibrated: on outcomes drawn from them or, as those of one group are
    not independent, with the residuals of whole groups turned at random (the wild bootstrap).
    """
    parts = []
    for rows in _chunks(resamples):
        if groups is None:
            tallies = partial(Sorted.with_outcomes_below, uniforms=rng.random((rows, runs.n)))
        else:
            tallies = partial(Sorted.with_turned_residuals, signs=turned(rows, groups, rng))
        parts.append(runs.measured(metrics, bins, tallies))
    return _joined(parts, metrics)


def turned(rows: int, groups: Groups, rng: np.random.Generator) -> Floats:
    """A sign for each group, 1 or −1, given to all its questions: [rows, N]."""
    return np.where(rng.random((rows, int(groups.max()) + 1)) < 0.5, -1.0, 1.0)[:, groups]


def as_groups(groups: Labels | None, n: int) -> Groups | None:
    """Number the groups of n questions; None if each is its own, and is drawn alone."""
    if groups is None:
        return None
    labels = groups.tolist() if isinstance(groups, np.ndarray) else list(groups)
    if len(labels) != n:
        raise InputError(f"there are {len(labels)} groups for {n} questions; give each one's label")
    first: dict[Hashable, int] = {}
    try:
        numbers = np.array([first.setdefault(label, len(first)) for label in labels], np.intp)
    except TypeError as error:
        raise InputError(
            f"groups holds something that is no label ({error}); expected texts or numbers"
        ) from error
    if any(label != label for label in first):
        raise InputError("groups holds NaN; expected a text or a number for each question")
    return None if len(first) == n else numbers


def _joined(parts: list[dict[str, Floats]], metrics: Mapping[str, Metric]) -> dict[str, Floats]:
    """The chunks of each metric in one array."""
    return {name: np.concatenate([part[name] for part in parts]) for name in metrics}


def _chunks(total: int) -> Iterator[int]:
    """`total` cut into pieces of at most CHUNK."""
    for start in range(0, total, CHUNK):
        yield min(CHUNK, total - start)


def _rows(values: ArrayLike, what: str) -> list[Floats]:
    """One array a run."""
    array = as_numbers(values, what)
    if array.ndim not in (1, 2) or not array.size:
        raise InputError(f"{what} has shape {array.shape}; expected (N,) for one run or (R, N) for several")
    return list(np.atleast_2d(array))


def _shares(weights: ArrayLike, runs: int) -> Floats:
    """Non-negative weights of the runs, made to add up to 1."""
    values = as_scores(weights, "weights")
    if len(values) != runs or (values < 0).any() or not 0 < values.sum() < np.inf:
        raise InputError(
            f"weights is {values.tolist()}; expected {runs} non-negative finite numbers, one a run, not all 0"
        )
    shares: Floats = values / values.sum()
    return shares


def _paired_rows(values: list[Floats], correct: list[Floats]) -> Iterator[tuple[Floats, Floats]]:
    """Values and outcomes run by run."""
    if len(values) != len(correct):
        raise InputError(
            f"there are confidences of {len(values)} runs, outcomes of {len(correct)}; give as many"
        )
    return zip(values, correct)
