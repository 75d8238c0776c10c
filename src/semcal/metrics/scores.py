"""The Brier score and its decompositions, over unique confidences (Murphy) and by isotonic fit (CORP)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from semcal.metrics.tally import Floats, Tally, once_a_tally, probability_tally

__all__ = ["BrierDecomposition", "Corp", "brier", "brier_decomposition", "corp"]


@dataclass(frozen=True)
class BrierDecomposition:
    """Brier = reliability - resolution + uncertainty, over the unique confidence values.

    Attributes
    ----------
    brier, reliability, resolution, uncertainty : float
    """

    brier: float
    reliability: float
    resolution: float
    uncertainty: float

    @property
    def refinement(self) -> float:
        """uncertainty - resolution: the Brier score that recalibration would leave."""
        return self.uncertainty - self.resolution


@dataclass(frozen=True)
class Corp:
    """Brier = MCB - DSC + UNC, with isotonic recalibration.

    Attributes
    ----------
    brier : float
    mcb : float
        Miscalibration: what isotonic recalibration gains.
    dsc : float
        Discrimination: what the recalibrated confidences gain over the mean correctness.
    unc : float
        Uncertainty: the Brier score of the mean correctness.
    """

    brier: float
    mcb: float
    dsc: float
    unc: float


def brier(confidence: ArrayLike, correct: ArrayLike) -> float:
    r"""Brier score, the mean squared error of the confidence.

    .. math:: \mathrm{BS} = \frac1N \sum_i (p_i - c_i)^2

    Parameters
    ----------
    confidence : array_like of float, shape (N,)
        Probabilities; values outside [0, 1] by at most 1e-6 are clipped.
    correct : array_like of bool, shape (N,)

    Returns
    -------
    float
        In [0, 1]; 0 is best.

    Raises
    ------
    InputError
        Empty input, lengths that differ, a confidence outside [0, 1] or NaN, an outcome that is not 0 or 1.

    References
    ----------
    Brier (1950), Verification of forecasts expressed in terms of probability, Monthly Weather Review 78.

    Examples
    --------
    >>> brier([0.9, 0.6], [1, 0])
    0.185
    """
    return float(brier_of(probability_tally(confidence, correct))[0])


def brier_decomposition(confidence: ArrayLike, correct: ArrayLike) -> BrierDecomposition:
    r"""Reliability, resolution and uncertainty over the unique confidence values.

    With :math:`n_v` examples at the value v, :math:`\bar c_v` their mean correctness and :math:`\bar c` that
    of all,

    .. math:: \mathrm{BS} = \underbrace{\tfrac1N \textstyle\sum_v n_v (v - \bar c_v)^2}_{\text{reliability}}
              - \underbrace{\tfrac1N \textstyle\sum_v n_v (\bar c_v - \bar c)^2}_{\text{resolution}}
              + \underbrace{\bar c (1 - \bar c)}_{\text{uncertainty}}

    exactly. With many distinct values nearly every group is one example and both terms overfit (reliability
    is then the Brier score itself): read :func:`corp` instead.

    Parameters
    ----------
    confidence, correct
        As in :func:`brier`.

    Returns
    -------
    BrierDecomposition

    Raises
    ------
    InputError
        As in :func:`brier`.

    References
    ----------
    Murphy (1973), A new vector partition of the probability score, Journal of Applied Meteorology 12.

    Examples
    --------
    >>> parts = brier_decomposition([0.8, 0.8, 0.8, 0.8, 0.2], [1, 1, 1, 0, 0])
    >>> round(parts.reliability, 4), round(parts.resolution, 4), round(parts.uncertainty, 4)
    (0.01, 0.09, 0.24)
    >>> round(parts.refinement, 4)
    0.15
    """
    t = probability_tally(confidence, correct)
    return BrierDecomposition(float(brier_of(t)[0]), *(float(part[0]) for part in brier_parts(t)))


def corp(confidence: ArrayLike, correct: ArrayLike) -> Corp:
    r"""CORP decomposition of the Brier score: miscalibration, discrimination, uncertainty.

    With :math:`\tilde p` the isotonic regression of correctness on confidence (pool adjacent violators; ties
    in confidence pooled) and S the Brier score,

    .. math:: \mathrm{MCB} = S(p) - S(\tilde p), \quad \mathrm{DSC} = S(\bar c) - S(\tilde p), \quad
              \mathrm{UNC} = S(\bar c), \qquad S(p) = \mathrm{MCB} - \mathrm{DSC} + \mathrm{UNC}.

    Parameters
    ----------
    confidence, correct
        As in :func:`brier`.

    Returns
    -------
    Corp
        MCB and DSC are never negative.

    Raises
    ------
    InputError
        As in :func:`brier`.

    References
    ----------
    Dimitriadis, Gneiting and Jordan (2021), Stable reliability diagrams for probabilistic classifiers, PNAS
    118.

    Examples
    --------
    >>> parts = corp([0.1, 0.4, 0.5, 0.9], [0, 1, 0, 1])
    >>> parts.mcb, parts.dsc, parts.unc
    (0.0325, 0.125, 0.25)
    """
    t = probability_tally(confidence, correct)
    return Corp(float(brier_of(t)[0]), *(float(part[0]) for part in corp_parts(t)))


@once_a_tally
def brier_of(t: Tally) -> Floats:
    """Brier score of each row."""
    return _squared_error(t, t.value)


@once_a_tally
def brier_parts(t: Tally) -> tuple[Floats, Floats, Floats]:
    """Reliability, resolution and uncertainty of each row."""
    mean = t.accuracy[:, None]
    reliability = (t.count * (t.value - t.rate) ** 2).sum(-1) / t.n
    resolution = (t.count * (t.rate - mean) ** 2).sum(-1) / t.n
    return reliability, resolution, t.accuracy * (1 - t.accuracy)


@once_a_tally
def corp_parts(t: Tally) -> tuple[Floats, Floats, Floats]:
    """MCB, DSC and UNC of each row."""
    left = _squared_error(t, t.isotonic)
    discrimination = (t.count * (t.isotonic - t.accuracy[:, None]) ** 2).sum(-1) / t.n
    miscalibration = np.maximum(brier_of(t) - left, 0.0)  # rounding must not make it negative
    return miscalibration, discrimination, t.accuracy * (1 - t.accuracy)


def _squared_error(t: Tally, forecast: Floats) -> Floats:
    """Mean squared error of a forecast at each value, [U] or [B, U] -> [B]."""
    error: Floats = (t.right * (1 - forecast) ** 2 + (t.count - t.right) * forecast**2).sum(-1) / t.n
    return error
