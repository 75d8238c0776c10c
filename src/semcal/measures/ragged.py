"""Checks nested lists of clusters and lays them out as flat arrays, question after question.

The measures use segment reductions of these arrays; no loop runs per question.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from semcal.errors import InputError

Scalar = TypeVar("Scalar", bound=np.generic)
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Clusters = Sequence[Sequence[Sequence[int]]]
LogLikelihoods = Sequence[Sequence[float]] | NDArray[np.floating]

#: A log-likelihood above zero by no more than this is a rounding error; beyond it, it is a mistake.
ABOVE_ZERO = 1e-6
#: The least finite log-likelihood that is accepted: sums of smaller ones overflow.
LEAST = -1e300


@dataclass(frozen=True)
class Layout:
    """The clusters of Q questions (K clusters, S draws in all) as flat arrays."""

    offsets: Ints  # [Q+1] clusters of question q are offsets[q]:offsets[q+1]
    m: Ints  # [Q] draws of each question
    size: Ints  # [K] draws in each cluster
    starts: Ints  # [K] where each cluster begins among the draws
    first_draw: Ints  # [K] smallest draw index in each cluster, counted within its question
    order: Ints  # [S] for each draw in cluster order, its place in question order

    @cached_property
    def question(self) -> Ints:
        """The question of each cluster: [K]."""
        return np.repeat(np.arange(len(self.m)), np.diff(self.offsets))

    def spread(self, per_question: NDArray[Scalar]) -> NDArray[Scalar]:
        """Repeat one value a question over its clusters: [Q] -> [K]."""
        return per_question[self.question]

    def question_sum(self, per_cluster: Floats) -> Floats:
        """Sum over the clusters of each question: [K] -> [Q]."""
        return np.add.reduceat(per_cluster, self.offsets[:-1]) if len(self.m) else np.zeros(0)

    def question_max(self, per_cluster: Floats) -> Floats:
        """Maximum over the clusters of each question: [K] -> [Q]."""
        return np.maximum.reduceat(per_cluster, self.offsets[:-1]) if len(self.m) else np.zeros(0)

    def cluster_sum(self, per_draw: Floats) -> Floats:
        """Sum over the draws of each cluster: [S] -> [K]."""
        return np.add.reduceat(per_draw, self.starts) if len(self.m) else np.zeros(0)

    def cluster_max(self, per_draw: Floats) -> Floats:
        """Maximum over the draws of each cluster: [S] -> [K]."""
        return np.maximum.reduceat(per_draw, self.starts) if len(self.m) else np.zeros(0)

    def log_sum(self, per_draw: Floats) -> Floats:
        """logsumexp over the draws of each cluster, -inf for a cluster of -inf alone: [S] -> [K]."""
        peak = self.cluster_max(per_draw)
        peak = np.where(np.isfinite(peak), peak, 0.0)
        with np.errstate(divide="ignore"):
            return peak + np.log(self.cluster_sum(np.exp(per_draw - np.repeat(peak, self.size))))


def name_question(index: int, ids: Sequence[str] | None) -> str:
    """Return the name of a question for messages, with its id if known."""
    return f"question {index}" if ids is None else f"question {index} (id {ids[index]!r})"


def lay_out(clusters: Clusters, ids: Sequence[str] | None = None) -> Layout:
    """Flatten `clusters`; InputError names the question whose clusters are no partition of its draws."""
    if ids is not None and len(ids) != len(clusters):
        raise InputError(
            f"ids names {len(ids)} questions, clusters holds {len(clusters)}: give one id a question"
        )
    try:
        k = _lengths(clusters)
        flat = list(chain.from_iterable(clusters))
        size = _lengths(flat)
        numbers = _doubles(chain.from_iterable(flat))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"clusters must be nested three deep, question > cluster > draw index ({error}); "
            "for a single question write [clusters]"
        ) from error
    with np.errstate(invalid="ignore"):
        draws = numbers.astype(np.int64)
    odd = np.flatnonzero(draws != numbers)
    if len(odd):
        question_of_draw = np.repeat(np.repeat(np.arange(len(k)), k), size)
        _refuse(question_of_draw[odd], "has a draw index that is no whole number", ids)
    return _checked_layout(k, size, draws, ids)


def _lengths(sequences: Sequence[Sized] | NDArray[np.floating]) -> Ints:
    """The length of each item of `sequences`."""
    return np.fromiter(map(len, sequences), np.int64, len(sequences))


def _checked_layout(k: Ints, size: Ints, draws: Ints, ids: Sequence[str] | None) -> Layout:
    """Check that the clusters of each question partition 0..m-1, and lay them out."""
    _refuse(
        np.flatnonzero(k == 0), "has no clusters; leave the question out or give it at least one draw", ids
    )
    question_of_cluster = np.repeat(np.arange(len(k)), k)
    _refuse(question_of_cluster[size == 0], "has an empty cluster; drop the cluster", ids)
    offsets = cumulative(k)
    starts = cumulative(size)[:-1]
    m = np.add.reduceat(size, offsets[:-1]) if len(k) else size
    question_of_draw = np.repeat(np.arange(len(k)), m)
    place = np.repeat(cumulative(m)[:-1], m) + draws
    outside = (draws < 0) | (draws >= np.repeat(m, m))
    _refuse(question_of_draw[outside], "has a draw index outside 0..m-1 (m draws in its clusters)", ids)
    times = np.bincount(place, minlength=len(draws))
    twice = question_of_draw[times[place] > 1] if (times != 1).any() else times[:0]
    _refuse(twice, "has a draw in two clusters; every draw belongs to exactly one", ids)
    first_draw = np.minimum.reduceat(draws, starts) if len(size) else size
    return Layout(offsets=offsets, m=m, size=size, starts=starts, first_draw=first_draw, order=place)


def cumulative(lengths: Ints) -> Ints:
    """Return where each segment begins, and the total: [n] -> [n+1]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _refuse(questions: Ints, why: str, ids: Sequence[str] | None) -> None:
    """Raise for the first of `questions`, if there is one."""
    if len(questions):
        raise InputError(f"{name_question(int(questions[0]), ids)} {why}")


def draws_in_cluster_order(
    layout: Layout, log_likelihoods: LogLikelihoods, ids: Sequence[str] | None = None
) -> Floats:
    """Check one log-likelihood a draw and put them in cluster order: [S]."""
    values, m = flat_log_likelihoods(log_likelihoods, ids)
    _same_draws("log-likelihoods", m, layout.m, ids)
    return values[layout.order]


def flat_log_likelihoods(
    log_likelihoods: LogLikelihoods, ids: Sequence[str] | None = None
) -> tuple[Floats, Ints]:
    """Check the log-likelihoods of Q questions and lay them flat: values [S], draws of each question [Q]."""
    values, m = flat_numbers(log_likelihoods, "log_likelihoods")
    _refuse(np.flatnonzero(m == 0), "has no log-likelihoods; leave the question out or give it a draw", ids)
    bad = np.flatnonzero(np.isnan(values) | (values > ABOVE_ZERO) | ((values < LEAST) & (values > -np.inf)))
    if len(bad):
        where = name_question(int(np.repeat(np.arange(len(m)), m)[bad[0]]), ids)
        if values[bad[0]] < LEAST:
            raise InputError(
                f"{where} has log-likelihood {values[bad[0]]}; below {LEAST:g} sums are beyond what a float "
                "holds: give -inf for a draw of likelihood 0"
            )
        raise InputError(
            f"{where} has log-likelihood {values[bad[0]]}; expected the natural logarithm of a probability, "
            "a number <= 0 or -inf: mend the value, or leave log_likelihoods out and use E-SC alone"
        )
    best = np.maximum.reduceat(values, cumulative(m)[:-1]) if len(m) else values
    none_finite = (
        "has log-likelihood -inf for every draw, so that they cannot be weighed; at least one must be finite"
    )
    _refuse(np.flatnonzero(best == -np.inf), none_finite, ids)
    return values, m


def flat_lengths(lengths: Sequence[Sequence[int]], m: Ints, ids: Sequence[str] | None = None) -> Floats:
    """Check one token count a draw and lay them flat: [S]."""
    values, counts = flat_numbers(lengths, "lengths")
    _same_draws("lengths", counts, m, ids)
    question = np.repeat(np.arange(len(m)), m)
    _refuse(question[~(values >= 1)], "has a length below 1; a draw has at least its end-of-turn token", ids)
    return values


def flat_numbers(
    rows: Sequence[Sequence[float]] | NDArray[np.floating], argument: str
) -> tuple[Floats, Ints]:
    """Lay a list of lists of numbers flat: values [S], NaN for None, and the length of each list [Q]."""
    try:
        if any(isinstance(row, (set, frozenset, dict)) for row in rows):
            raise TypeError("a set or a dictionary has no order")
        lengths = _lengths(rows)
        try:
            return _doubles(_chained(rows)), lengths
        except TypeError:  # perhaps because of None, which is looked for only then
            return _doubles(math.nan if value is None else value for value in _chained(rows)), lengths
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{argument} must be one list of numbers a question ({error})") from error


def _doubles(values: Iterable[float]) -> Floats:
    """Numbers as float64; unlike numpy, `array` takes no text for a number."""
    doubles = array("d", values)
    return np.frombuffer(doubles, dtype=np.float64) if doubles else np.zeros(0)


def _same_draws(argument: str, counts: Ints, m: Ints, ids: Sequence[str] | None) -> None:
    """Refuse a number of values that differs from the number of draws."""
    if len(counts) != len(m):
        raise InputError(
            f"there are {argument} for {len(counts)} questions and draws for {len(m)}; give one list a "
            "question"
        )
    wrong = np.flatnonzero(counts != m)
    if len(wrong):
        at = int(wrong[0])
        raise InputError(
            f"{name_question(at, ids)} has {counts[at]} {argument} and {m[at]} draws; give one a draw"
        )


def _chained(rows: Iterable[Iterable[float]]) -> Iterable[float]:
    """All values of all rows; arrays and tensors become lists first, which are read much faster."""
    return chain.from_iterable(row.tolist() if hasattr(row, "tolist") else row for row in rows)
