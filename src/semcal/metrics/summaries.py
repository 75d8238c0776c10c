"""All metrics of one data set at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from semcal.metrics.ranking import one_class
from semcal.metrics.table import METRICS
from semcal.metrics.tally import check_bins, probability_tally, score_tally, warn_undefined

__all__ = ["summary"]


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
