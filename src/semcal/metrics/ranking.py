"""Discrimination: does a surer answer tend to be the right one?"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from semcal.metrics.tally import Floats, Tally, score_tally, warn_undefined

__all__ = ["auroc"]


def auroc(score: ArrayLike, correct: ArrayLike) -> float:
    r"""Area under the ROC curve: the chance that a right answer scores above a wrong one, ties counted half.

    .. math:: \mathrm{AUROC} = \frac{1}{N_1 N_0} \sum_{i: c_i = 1} \sum_{j: c_j = 0}
              \bigl( \mathbf 1[s_i > s_j] + \tfrac12 \mathbf 1[s_i = s_j] \bigr)

    Parameters
    ----------
    score : array_like of float, shape (N,)
        Any real score, larger is surer: a confidence, or the negative of an entropy.
    correct : array_like of bool, shape (N,)

    Returns
    -------
    float
        In [0, 1]; 0.5 is chance, 1 is best. NaN when all or none are correct.

    Raises
    ------
    InputError
        Empty input, lengths that differ, a score that is NaN, an outcome that is not 0 or 1.

    Warns
    -----
    UndefinedWarning
        All or none are correct.

    References
    ----------
    Bradley (1997), The use of the area under the ROC curve, Pattern Recognition 30; Hanley and McNeil (1982),
    Radiology 143.

    Examples
    --------
    >>> auroc([0.9, 0.8, 0.8, 0.3], [1, 1, 0, 0])
    0.875
    """
    value = float(auroc_of(score_tally(score, correct))[0])
    if np.isnan(value):
        warn_undefined(one_class("AUROC"))
    return value


def auroc_of(t: Tally) -> Floats:
    """AUROC of each row; NaN for a row with one class."""
    wrong = t.count - t.right
    below = np.cumsum(wrong, -1) - wrong / 2
    pairs = t.right.sum(-1) * wrong.sum(-1)
    wins = (t.right * below).sum(-1)
    area: Floats = np.divide(wins, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)
    return area


def one_class(*metrics: str) -> str:
    """Why metrics that need both classes are undefined."""
    one = len(metrics) == 1
    return (
        f"{' and '.join(metrics)} {'is' if one else 'are'} undefined (NaN): all answers are correct, or none "
        f"is; {'it needs' if one else 'they need'} at least one of each"
    )
