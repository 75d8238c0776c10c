"""The same questions under several candidates (temperatures, recalibrators), measured on common ground."""

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

__all__ = ["TIE", "Outcomes", "Scored", "common_outcomes", "lowest", "scored_by_measure"]

Rows = Sequence[Mapping[str, Any]]
_Choice = TypeVar("_Choice")
#: Brier scores this close to the lowest are tied with it: rounding must not choose.
TIE = 1e-12


@dataclass(frozen=True)
class Scored:
    """How one candidate did under one measure.

    Attributes
    ----------
    brier, ace, auroc : float
        On the questions that count; AUROC is NaN where all or none are right.
    accuracy : float
        Share of right answers: what a measure answers moves with it, so this does too.
    n : int
        Questions that count: those for which the measure is defined under every candidate.
    accuracy_behind : float
        How many standard errors (of the paired difference over questions) the accuracy lies below the
        highest of the candidates.
    """

    brier: float
    ace: float
    auroc: float
    accuracy: float
    n: int
    accuracy_behind: float = 0.0


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Confidence and correctness of N questions under each of C candidates, for one measure.

    Attributes
    ----------
    confidence : ndarray of float64, shape (C, N)
    correct : ndarray of bool, shape (C, N)
    ids : tuple of N str
        The questions that count.
    undefined : int
        Questions left out because the measure is null for them under some candidate: a candidate must not
        gain by having no opinion.
    groups : ndarray of int, shape (N,), or None
        The group of each question: those that share a passage or a value in the field `group`; None where
        none do.
    """

    confidence: NDArray[np.float64]
    correct: NDArray[np.bool_]
    ids: tuple[str, ...]
    undefined: int
    groups: NDArray[np.intp] | None = None

    def scored(self, *, bins: int = 15) -> list[Scored]:
        """Measure every candidate."""
        return [
            Scored(
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

        The standard error is that of the difference over questions, both answering the same ones; inf where
        every question differs in the same way.
        """
        right = self.correct.astype(np.float64)
        lost = right[right.mean(axis=1).argmax()] - right
        error = lost.std(axis=1, ddof=1 if len(self.ids) > 1 else 0) / math.sqrt(len(self.ids))
        behind = lost.mean(axis=1)
        worst = np.where(behind > 0, np.inf, 0.0)
        return np.asarray(np.divide(behind, error, out=worst, where=error > 0))


def common_outcomes(candidates: Sequence[Rows], measure: str) -> Outcomes:
    """Gather one measure of graded rows of several candidates on the same questions.

    Parameters
    ----------
    candidates : sequence of sequences of mappings
        Rows as `measure_rows` and `grade_row` leave them, for each candidate the same questions, in any
        order.
    measure : str
        A key of `confidence` and `correct`; where a row lacks it, it counts as null.

    Raises
    ------
    InputError
        If a question occurs twice under a candidate, or not under all.

    Examples
    --------
    >>> cool = [{"id": "1", "confidence": {"E-SC": 0.9}, "correct": {"E-SC": True}},
    ...         {"id": "2", "confidence": {"E-SC": 0.8}, "correct": {"E-SC": False}}]
    >>> warm = [{"id": "2", "confidence": {"E-SC": 0.4}, "correct": {"E-SC": False}},
    ...         {"id": "1", "confidence": {"E-SC": None}, "correct": {"E-SC": None}}]
    >>> both = common_outcomes([cool, warm], "E-SC")
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
    return Outcomes(table[0], table[1] == 1, tuple(defined), len(values) - len(defined), groups)


def scored_by_measure(candidates: Mapping[str, Sequence[Rows]], *, bins: int = 15) -> dict[str, list[Scored]]:
    """Score candidates under several measures.

    Parameters
    ----------
    candidates : mapping of str to sequence of sequences of mappings
        Measure → graded rows of each candidate, the same questions for each.
    bins : int
        Bins of ACE.

    Returns
    -------
    dict of str to list of Scored
        Measure → a score for each candidate. A measure that is defined for no question (without
        log-likelihoods all but E-SC) is left out.

    Raises
    ------
    FitError
        If none is defined for any question.
    """
    outcomes = {
        check_name(measure, MEASURES, what="measure"): common_outcomes(rows, measure)
        for measure, rows in candidates.items()
    }
    found = {measure: one.scored(bins=bins) for measure, one in outcomes.items() if one.ids}
    if not found:
        raise FitError(
            "no question has a confidence under any of the measures; there is nothing to choose by"
        )
    return found


def lowest(
    choices: Sequence[_Choice],
    scored: Sequence[Scored],
    *,
    simplicity: Callable[[_Choice], Any],
    accuracy_within: float | None = None,
) -> _Choice:
    """Return the choice of the lowest Brier score; of those within 1e-12 of it the simplest, then the first.

    Parameters
    ----------
    accuracy_within : float, optional
        How many standard errors the accuracy of a choice may lie below the highest; one further below does
        not count. By default all count.

    Examples
    --------
    >>> scored = [Scored(brier, 0, 0, 0, 1) for brier in (0.3, 0.2, 0.2)]
    >>> lowest(["a", "bbb", "cc"], scored, simplicity=len)
    'cc'
    """
    pairs = [
        (choice, one)
        for choice, one in zip(choices, scored)
        if accuracy_within is None or one.accuracy_behind <= accuracy_within
    ]
    least = min(one.brier for _, one in pairs)
    return min((choice for choice, one in pairs if one.brier <= least + TIE), key=simplicity)


def _by_id(rows: Rows) -> dict[str, Mapping[str, Any]]:
    repeated = first_repeated([identity(row) for row in rows])
    if repeated is not None:
        raise InputError(f"question {repeated!r} occurs twice under one candidate; ids must be distinct")
    return {identity(row): row for row in rows}
