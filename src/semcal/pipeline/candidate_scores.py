"""Candidates (temperatures, recalibrators) compared on the same questions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from semcal import metrics
from semcal.errors import FitError, InputError
from semcal.pipeline.rows import first_repeated, identity
from semcal.qa.questions import several, ties_of
from semcal.registry import check_name
from semcal.semantics import MEASURES

__all__ = ["TIE", "PairedScores", "Rows", "Score", "candidate_scores", "lowest_brier", "paired_scores"]

Rows = Sequence[Mapping[str, Any]]
_Choice = TypeVar("_Choice")
#: Brier scores this close to the lowest are tied with it: rounding must not choose.
TIE = 1e-12


@dataclass(frozen=True)
class Score:
    """How one candidate did under one measure, on the questions that have a confidence under all."""

    brier: float
    ace: float
    auroc: float  # NaN where all or none are right
    accuracy: float  # moves with what the measure answers
    n: int  # questions that count
    accuracy_behind: float = 0.0  # standard errors (paired over questions) below the highest accuracy


@dataclass(frozen=True, eq=False)
class PairedScores:
    """Confidence and correctness of N questions under each of C candidates, for one measure."""

    confidence: NDArray[np.float64]  # (C, N)
    correct: NDArray[np.bool_]  # (C, N)
    ids: tuple[str, ...]  # the N questions that count
    undefined: int  # left out: the measure is null under some candidate, which must gain nothing by that
    groups: NDArray[np.intp] | None = None  # (N,) by passage or field `group`; None where each is its own

    def scores(self, *, bins: int = 15) -> list[Score]:
        """Measure every candidate."""
        return [
            Score(
                brier=metrics.brier(p, c),
                ace=metrics.ace(p, c, bins=bins),
                auroc=metrics.auroc(p, c),
                accuracy=float(np.mean(c)),
                n=len(self.ids),
                accuracy_behind=float(behind),
            )
            for p, c, behind in zip(self.confidence, self.correct, self.accuracy_behind())
        ]

    def accuracy_behind(self) -> NDArray[np.float64]:
        """How many standard errors (C,) the accuracy of each lies below the highest.

        The standard error is that of the paired difference over questions; inf where all differ alike.
        """
        right = self.correct.astype(np.float64)
        lost = right[right.mean(axis=1).argmax()] - right
        error = lost.std(axis=1, ddof=1 if len(self.ids) > 1 else 0) / math.sqrt(len(self.ids))
        behind = lost.mean(axis=1)
        worst = np.where(behind > 0, np.inf, 0.0)
        return np.asarray(np.divide(behind, error, out=worst, where=error > 0))


def paired_scores(candidates: Sequence[Rows], measure: str) -> PairedScores:
    """Gather one measure of graded rows of several candidates on the same questions, in any order.

    A row without the measure counts as null. InputError if a question occurs twice, or not under all.

    Examples
    --------
    >>> cool = [{"id": "1", "confidence": {"E-SC": 0.9}, "correct": {"E-SC": True}},
    ...         {"id": "2", "confidence": {"E-SC": 0.8}, "correct": {"E-SC": False}}]
    >>> warm = [{"id": "2", "confidence": {"E-SC": 0.4}, "correct": {"E-SC": False}},
    ...         {"id": "1", "confidence": {"E-SC": None}, "correct": {"E-SC": None}}]
    >>> both = paired_scores([cool, warm], "E-SC")
    >>> both.ids, both.confidence.tolist(), both.undefined
    (('2',), [[0.8], [0.4]], 1)
    """
    by_id = [_by_id(rows) for rows in candidates]
    for other in by_id[1:]:
        for missing in by_id[0].keys() ^ other.keys():
            raise InputError(
                f"question {missing!r} is not there under every candidate; candidates are compared on the "
                "same questions"
            )
    values = {
        name: [(row["confidence"].get(measure), row["correct"].get(measure)) for row in rows]
        for name, rows in zip(by_id[0], zip(*(map(one.__getitem__, by_id[0]) for one in by_id)))
    }
    defined = {name: pairs for name, pairs in values.items() if not any(None in pair for pair in pairs)}
    shape = (len(defined), len(by_id), 2)
    table = np.array(list(defined.values()), dtype=np.float64).reshape(shape).transpose(2, 1, 0)
    groups = several(ties_of(by_id[0][name]) for name in defined)
    return PairedScores(table[0], table[1] == 1, tuple(defined), len(values) - len(defined), groups)


def candidate_scores(candidates: Mapping[str, Sequence[Rows]], *, bins: int = 15) -> dict[str, list[Score]]:
    """Measure → a score for each candidate, from measure → graded rows of each candidate.

    A measure that is defined for no question (without log-likelihoods all but E-SC) is left out; FitError if
    none is left.
    """
    paired = {
        check_name(measure, MEASURES, what="measure"): paired_scores(rows, measure)
        for measure, rows in candidates.items()
    }
    found = {measure: one.scores(bins=bins) for measure, one in paired.items() if one.ids}
    if not found:
        raise FitError(
            "no question has a confidence under any of the measures; there is nothing to choose by"
        )
    return found


def lowest_brier(
    choices: Sequence[_Choice],
    scores: Sequence[Score],
    *,
    simplicity: Callable[[_Choice], Any],
    accuracy_within: float | None = None,
) -> _Choice:
    """Return the choice of the lowest Brier score; of those within 1e-12 of it the simplest, then the first.

    With `accuracy_within` those whose accuracy lies further below the highest (standard errors) do not count.

    Examples
    --------
    >>> scores = [Score(brier, 0, 0, 0, 1) for brier in (0.3, 0.2, 0.2)]
    >>> lowest_brier(["a", "bbb", "cc"], scores, simplicity=len)
    'cc'
    """
    pairs = [
        (choice, one)
        for choice, one in zip(choices, scores)
        if accuracy_within is None or one.accuracy_behind <= accuracy_within
    ]
    least = min(one.brier for _, one in pairs)
    return min((choice for choice, one in pairs if one.brier <= least + TIE), key=simplicity)


def _by_id(rows: Rows) -> dict[str, Mapping[str, Any]]:
    repeated = first_repeated([identity(row) for row in rows])
    if repeated is not None:
        raise InputError(f"question {repeated!r} occurs twice under one candidate; ids must be distinct")
    return {identity(row): row for row in rows}
