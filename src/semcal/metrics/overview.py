"""All metrics of one data set at once, and of many."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from semcal.arrays import as_numbers
from semcal.errors import InputError
from semcal.metrics.ranking import one_class
from semcal.metrics.table import METRICS
from semcal.metrics.tally import (
    Floats,
    as_correct,
    as_probabilities,
    check_bins,
    probability_tally,
    score_tally,
    tallies,
    warn_undefined,
)

__all__ = ["summaries", "summary"]

#: Data sets computed at a time, so that the arrays stay in the processor's cache.
ROWS = 16


def summary(
    confidence: ArrayLike, correct: ArrayLike, *, bins: int = 15, score: ArrayLike | None = None
) -> dict[str, float]:
    """Every metric of one set of confidences.

    Parameters
    ----------
    confidence : array_like of float, shape (N,)
        Probabilities; values outside [0, 1] by at most 1e-6 are clipped.
    correct : array_like of bool, shape (N,)
    bins : int
        Bins of ECE and ACE.
    score : array_like of float, shape (N,), optional
        What AUROC, AURAC and PRR rank by, such as the negative semantic entropy; the confidence by default.

    Returns
    -------
    dict of str to float
        ``n`` (an int), ``accuracy, ece, ace, brier, reliability, resolution, uncertainty, mcb, dsc, unc,
        auroc, aurac, prr, smooth_ece, mean_confidence``.

    Raises
    ------
    InputError
        Empty input, lengths that differ, a confidence outside [0, 1] or NaN, an outcome that is not 0 or 1.

    Warns
    -----
    UndefinedWarning
        All or none are correct: AUROC and PRR are NaN.

    Examples
    --------
    >>> numbers = summary([0.9, 0.8, 0.8, 0.3], [1, 1, 0, 0])
    >>> {name: round(numbers[name], 3) for name in ("n", "accuracy", "ece", "brier", "auroc")}
    {'n': 4, 'accuracy': 0.5, 'ece': 0.25, 'brier': 0.195, 'auroc': 0.875}
    """
    bins = check_bins(bins)
    t = probability_tally(confidence, correct)
    ranked = t if score is None else score_tally(score, correct)
    numbers: dict[str, float] = {"n": t.n}
    for name, metric in METRICS.items():
        numbers[name] = float(metric.rows(ranked if metric.ranks else t, bins)[0])
    if np.isnan(numbers["auroc"]):
        warn_undefined(one_class("AUROC", "PRR"))
    return numbers


def summaries(confidence: ArrayLike, correct: ArrayLike, *, bins: int = 15) -> dict[str, Floats]:
    """Every metric of many sets of as many confidences: runs, measures, methods.

    The same numbers as :func:`summary` of each, to rounding, in a fraction of the time.

    Parameters
    ----------
    confidence : array_like of float, shape (B, N)
        Probabilities, a row each; values outside [0, 1] by at most 1e-6 are clipped.
    correct : array_like of bool, shape (B, N)
    bins : int
        Bins of ECE and ACE.

    Returns
    -------
    dict of str to ndarray of float64, shape (B,)
        The metrics of :func:`summary`, less n. AUROC and PRR of a set with one class are NaN.

    Raises
    ------
    InputError
        As :func:`summary`, naming the first set that is refused; shapes that differ.

    Examples
    --------
    >>> numbers = summaries([[0.9, 0.8, 0.8, 0.3], [0.5, 0.5, 0.5, 0.5]], [[1, 1, 0, 0], [1, 0, 1, 0]])
    >>> numbers["auroc"], numbers["ece"]
    (array([0.875, 0.5  ]), array([0.25, 0.  ]))
    """
    bins = check_bins(bins)
    values = _checked_rows(confidence, "confidence", as_probabilities)
    outcomes = _checked_rows(correct, "correct", as_correct)
    if values.shape != outcomes.shape:
        raise InputError(
            f"confidence has shape {values.shape} and correct {outcomes.shape}; give one outcome for each"
        )
    found = []
    for start in range(0, len(values), ROWS):
        t = tallies(values[start : start + ROWS], outcomes[start : start + ROWS])
        found.append([metric.rows(t, bins) for metric in METRICS.values()])
    return dict(zip(METRICS, np.concatenate(found, axis=1)))


def _checked_rows(values: ArrayLike, what: str, check: Callable[[ArrayLike], Floats]) -> Floats:
    """Rows that `check` accepts as one array (B, N)."""
    array = as_numbers(values, what)
    if array.ndim != 2 or not array.size:
        raise InputError(f"{what} has shape {array.shape}; expected one row a set, shape (B, N)")
    try:
        return check(array.ravel()).reshape(array.shape)
    except InputError:
        _refuse_row(array, check)
        raise


def _refuse_row(rows: Floats, check: Callable[[ArrayLike], Floats]) -> None:
    """Raise for the first row that `check` refuses, and name it."""
    for number, row in enumerate(rows):
        try:
            check(row)
        except InputError as error:
            raise InputError(f"set {number}: {error}") from error
