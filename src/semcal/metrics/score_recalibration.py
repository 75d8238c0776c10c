"""Recalibration of a confidence itself, after the fact: isotonic, beta and Platt (spec section 6, last part).

The classical comparison to a recalibrated token distribution: the answers and their ranking stay as they
were, one increasing map is learnt from (confidence, correct) pairs and applied to further confidences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol, Self

import numpy as np
import scipy
from numpy.typing import ArrayLike

from semcal.arrays import as_option
from semcal.errors import FitError
from semcal.metrics.frequencies import Floats, as_pairs, as_probabilities, probability_table


class ScoreRecalibrator(Protocol):
    """A map from confidences to confidences, learnt from answers of known correctness."""

    def fit(self, confidence: ArrayLike, correct: ArrayLike) -> Self:
        """Learn the map from (N,) confidences and outcomes."""
        ...

    def predict(self, confidence: ArrayLike) -> Floats:
        """Map confidences (N,) to recalibrated ones (N,)."""
        ...


class IsotonicCalibration:
    r"""The non-decreasing map of least squared error: isotonic regression of correctness on confidence.

    The fit is by pool adjacent violators with ties in confidence pooled, as in :func:`semcal.metrics.corp`;
    on the data it was fitted to, its gain in Brier score is MCB. Between two confidences seen while fitting
    the prediction is linear, beyond the first and the last it is constant.

    Learnt: `thresholds_` (U,), the distinct confidences of the fit in ascending order, and `values_` (U,),
    the recalibrated confidence at each.

    Notes
    -----
    All confidences equal, or a single one: the map is the share of right answers. All or none right: the map
    is 1 or 0, exactly. Where the map is flat, answers become tied, so AUROC can move. The more flexible a
    map, the more answers it takes: with a few hundred, beta or Platt overfit less.

    References
    ----------
    Zadrozny and Elkan (2002), Transforming classifier scores into accurate multiclass probability estimates,
    KDD. Niculescu-Mizil and Caruana (2005), Predicting good probabilities with supervised learning, ICML
    (how much data it takes).

    Examples
    --------
    >>> isotonic = IsotonicCalibration().fit([0.2, 0.4, 0.4, 0.6, 0.8], [0, 1, 0, 0, 1])
    >>> isotonic.predict([0.0, 0.3, 0.5, 0.7])
    array([0.  , 0.1667, 0.3333, 0.6667])
    """

    def fit(self, confidence: ArrayLike, correct: ArrayLike) -> Self:
        """Learn the map from (N,) probabilities and outcomes; errors as in :func:`semcal.metrics.ece`."""
        table = probability_table(confidence, correct)
        self.thresholds_: Floats = table.value
        self.values_: Floats = table.isotonic[0]
        return self

    def predict(self, confidence: ArrayLike) -> Floats:
        """Map confidences (N,) to recalibrated ones (N,); FitError before `fit`."""
        _check_fitted(self, "thresholds_")
        q: Floats = np.interp(as_probabilities(confidence), self.thresholds_, self.values_)
        return q


class PlattCalibration:
    r"""A logistic curve through the confidence as it is: :math:`q = \sigma(a p + b)`.

    Fitted by maximum likelihood to Platt's smoothed targets, :math:`(N_1 + 1)/(N_1 + 2)` for a right answer
    and :math:`1/(N_0 + 2)` for a wrong one, of which there are :math:`N_1` and :math:`N_0`; so a finite
    optimum always exists. The input is p, not its logit: a confidence of exactly 0 or 1 is as good as any
    other (for the logit see :class:`BetaCalibration`).

    Learnt: `slope_` a and `intercept_` b. The sign of a is free, as Platt has it: a negative one says that
    the confidence ranks right answers below wrong ones.

    Notes
    -----
    All confidences equal: a = 0 and the map is the mean target. All or none right: a = 0 and the map is
    :math:`(N + 1)/(N + 2)` or :math:`1/(N + 2)`.

    References
    ----------
    Platt (1999), Probabilistic outputs for support vector machines, Advances in Large Margin Classifiers.
    Lin, Lin and Weng (2007), A note on Platt's probabilistic outputs, Machine Learning 68.

    Examples
    --------
    >>> platt = PlattCalibration().fit([0.5] * 8 + [1.0] * 8, [1] * 2 + [0] * 6 + [1] * 6 + [0] * 2)
    >>> platt.predict([0.5, 0.75, 1.0])
    array([0.3, 0.5, 0.7])
    """

    def fit(self, confidence: ArrayLike, correct: ArrayLike) -> Self:
        """Learn the map; errors as in :meth:`IsotonicCalibration.fit`."""
        p, c = as_pairs(confidence, correct)
        (slope,), intercept = _logistic(p[:, None], _smoothed(c), non_negative=False)
        self.slope_, self.intercept_ = float(slope), intercept
        return self

    def predict(self, confidence: ArrayLike) -> Floats:
        """Map confidences (N,) to recalibrated ones (N,); FitError before `fit`."""
        _check_fitted(self, "slope_")
        q: Floats = scipy.special.expit(self.slope_ * as_probabilities(confidence) + self.intercept_)
        return q


class BetaCalibration:
    r"""The map that is exact when right and wrong answers have beta-distributed confidences.

    .. math:: \operatorname{logit} q = a \ln p' - b \ln(1 - p') + c, \qquad a, b \ge 0, \qquad
              p' = s + (1 - 2s)\,p,

    fitted by maximum likelihood. a = b = 1, c = 0 is the identity (on p'), a = b is Platt's curve on the
    logit.

    Parameters
    ----------
    squeeze : float
        The s that takes confidences of exactly 0 and 1 to where logarithms are finite; order and ties are
        kept. A confidence of exactly 1 is frequent here (all draws mean the same) and says no more than
        that m draws agreed; with s = 1e-6 such answers stand so far out, at ln(1 - p') = -14, that they
        bend the whole curve.

    Learnt: `a_`, `b_`, `c_`.

    Notes
    -----
    All confidences equal: a = b = 0 and the map is the share of right answers. Where the likelihood has no
    maximum (all or none are right, or a threshold parts right from wrong), Platt's smoothed targets take the
    place of the outcomes (:class:`PlattCalibration`).

    References
    ----------
    Kull, Silva Filho and Flach (2017), Beta calibration: a well-founded and easily implemented improvement
    on logistic calibration for binary classifiers, AISTATS. Smithson and Verkuilen (2006), A better lemon
    squeezer?, Psychological Methods 11 (the squeeze).

    Examples
    --------
    >>> p = [0.2] * 5 + [0.5] * 4 + [0.8] * 5
    >>> correct = [1, 0, 0, 0, 0] + [1, 1, 0, 0] + [1, 1, 1, 1, 0]  # calibrated as it is
    >>> beta = BetaCalibration().fit(p, correct)
    >>> beta.predict([0.2, 0.5, 0.8]).round(4)
    array([0.2, 0.5, 0.8])
    """

    def __init__(self, *, squeeze: float = 0.01) -> None:
        expected = "a small positive number below 0.5, such as 0.01"
        self.squeeze = as_option(squeeze, "squeeze", expected, low=0, high=0.5)

    def fit(self, confidence: ArrayLike, correct: ArrayLike) -> Self:
        """Learn the map; errors as in :meth:`IsotonicCalibration.fit`."""
        p, c = as_pairs(confidence, correct)
        targets = _smoothed(c) if _is_parted(p, c) else c
        (a, b), self.c_ = _logistic(self._features(p), targets, non_negative=True)
        self.a_, self.b_ = float(a), float(b)
        return self

    def predict(self, confidence: ArrayLike) -> Floats:
        """Map confidences (N,) to recalibrated ones (N,); FitError before `fit`."""
        _check_fitted(self, "a_")
        q: Floats = scipy.special.expit(
            self._features(as_probabilities(confidence)) @ [self.a_, self.b_] + self.c_
        )
        return q

    def _features(self, p: Floats) -> Floats:
        """ln p' and -ln(1 - p'): (N, 2)."""
        p = self.squeeze + (1 - 2 * self.squeeze) * p
        return np.stack([np.log(p), -np.log1p(-p)], axis=1)


#: The three maps by name.
SCORE_RECALIBRATORS: Mapping[str, Callable[[], ScoreRecalibrator]] = MappingProxyType(
    {"isotonic": IsotonicCalibration, "beta": BetaCalibration, "platt": PlattCalibration}
)


def _check_fitted(recalibrator: ScoreRecalibrator, attribute: str) -> None:
    if not hasattr(recalibrator, attribute):
        raise FitError(f"this {type(recalibrator).__name__} is not fitted yet; call fit first")


def _smoothed(correct: Floats) -> Floats:
    """Platt's targets in place of outcomes."""
    right = correct.sum()
    wrong = len(correct) - right
    targets: Floats = np.where(correct == 1, (right + 1) / (right + 2), 1 / (wrong + 2))
    return targets


def _is_parted(p: Floats, correct: Floats) -> bool:
    """Whether no right answer has a lower confidence than a wrong one, so that any slope can be beaten."""
    right, wrong = p[correct == 1], p[correct == 0]
    if not len(right) or not len(wrong):
        return True
    return bool(wrong.max() <= right.min() and p.min() < p.max())


def _logistic(features: Floats, targets: Floats, *, non_negative: bool) -> tuple[Floats, float]:
    """Slopes (F,) and intercept of the logistic regression of targets in [0, 1] on features (N, F)."""
    mean, scale = features.mean(0), features.std(0)
    flat = scale <= 1e-12 * np.maximum(1, np.abs(mean))
    x = np.where(flat, 0.0, (features - mean) / np.where(flat, 1.0, scale))

    def loss(theta: Floats) -> tuple[float, Floats]:
        score = x @ theta[:-1] + theta[-1]
        residual = scipy.special.expit(score) - targets
        value = -(
            targets * scipy.special.log_expit(score) + (1 - targets) * scipy.special.log_expit(-score)
        ).mean()
        return float(value), np.append(residual @ x, residual.sum()) / len(x)

    least = 0.0 if non_negative else None
    found = scipy.optimize.minimize(
        loss,
        np.append(np.zeros(x.shape[1]), scipy.special.logit(targets.mean())),
        jac=True,
        method="L-BFGS-B",
        bounds=[(least, None)] * x.shape[1] + [(None, None)],
        options={"ftol": 1e-15, "gtol": 1e-9, "maxiter": 1000},
    )
    slopes: Floats = np.where(flat, 0.0, found.x[:-1] / np.where(flat, 1.0, scale))
    return slopes, float(found.x[-1] - slopes @ mean)
