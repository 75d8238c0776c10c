"""All metrics of one data set at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from semcal.metrics.calibration import ace_of, ece_of, smooth_ece_of
from semcal.metrics.ranking import auroc_of, warn_one_class
from semcal.metrics.scores import brier_of, brier_parts, corp_parts
from semcal.metrics.selective import aurac_of, prr_of
from semcal.metrics.tally import Tally, check_bins, probability_tally, score_tally

__all__ = ["summary"]

#: The keys of a summary, in order.
KEYS = (
    *("n", "accuracy", "ece", "ace", "brier", "reliability", "resolution", "uncertainty"),
    *("mcb", "dsc", "unc", "auroc", "aurac", "prr", "smooth_ece", "mean_confidence"),
)


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
    t = probability_tally(confidence, correct)
    ranked = t if score is None else score_tally(score, correct)
    numbers = calibration_numbers(t, check_bins(bins)) | ranking_numbers(ranked)
    numbers["mean_confidence"] = float((t.count * t.value).sum() / t.n)
    if np.isnan(numbers["auroc"]):
        warn_one_class("AUROC and PRR")
    return {name: numbers[name] for name in KEYS}


def calibration_numbers(t: Tally, bins: int) -> dict[str, float]:
    """What needs probabilities."""
    rows = {"accuracy": t.accuracy, "ece": ece_of(t, bins), "ace": ace_of(t, bins), "brier": brier_of(t)}
    rows |= dict(zip(("reliability", "resolution", "uncertainty"), brier_parts(t)))
    rows |= dict(zip(("mcb", "dsc", "unc"), corp_parts(t)))
    rows["smooth_ece"] = smooth_ece_of(t)
    return {"n": t.n} | {name: float(row[0]) for name, row in rows.items()}


def ranking_numbers(t: Tally) -> dict[str, float]:
    """What needs only a ranking."""
    rows = {"auroc": auroc_of(t), "aurac": aurac_of(t), "prr": prr_of(t)}
    return {name: float(row[0]) for name, row in rows.items()}
