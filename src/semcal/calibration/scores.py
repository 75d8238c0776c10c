"""A calibrated probability from scores alone: `ScoreCalibrator`, in the conventions of scikit-learn.

The maps, their cross-validated choice and the thresholds are those of a calibration of sampled answers (spec
section 11); scores take the place of features of samples.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from semcal.arrays import Floats, as_list, as_option, check_seed
from semcal.calibration.calibration import Threshold
from semcal.calibration.features import ISOTONIC, NEVER, ScoreColumn, logit_name, order_by
from semcal.calibration.thresholds import ThresholdLabels, kept_apart, set_thresholds
from semcal.errors import InputError, UsageError, shown
from semcal.metrics.frequencies import GroupLabels, as_groups, is_missing
from semcal.metrics.probability_maps import (
    FEW,
    PLENTY,
    Labelled,
    MapCandidate,
    MapScore,
    ProbabilityMap,
    choose_map,
    part_of,
    predict_out_of_fold,
)
from semcal.recalibration.records import check_enough

#: The first score, scaled: the only one of its kind if it orders examples.
ORDER = "x0"


def _read_labels(y: ArrayLike, n: int) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Return the two classes of n labels, and the number of each label's class; InputError otherwise."""
    labels = np.asarray(y)
    if labels.ndim != 1 or len(labels) != n:
        raise InputError(
            f"y has the shape {labels.shape}, and X has {n} rows: y should be a 1d array "
            "with one label for each row"
        )
    if missing := sum(map(is_missing, labels.tolist())):
        raise InputError(f"y has {missing} missing labels (NaN or None). Leave these examples out")
    try:
        classes, codes = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise InputError(f"y holds labels of several kinds ({error}). Give two classes") from None
    if len(classes) != 2:
        found = ", ".join(map(shown, classes[:3].tolist()))
        kind = "Unknown label type: " if labels.dtype.kind == "f" else ""
        raise InputError(
            f"{kind}y has {len(classes)} classes ({found}). Only binary classification is "
            "supported. Give two classes, such as True and False"
        )
    return classes, codes


class ScoreCalibrator:
    """Learn the probability of the second class from scores, and thresholds with a guarantee.

    The map is chosen by cross-validated gain among a constant, a beta map, a logistic map and an isotonic
    map (docs/score.md), and for a probability also the score itself and a logistic map of its logit. The
    direction of a score is learned.

    Parameters
    ----------
    risks : float or sequence of float
        For each risk a threshold is set: at most this share of the examples at or above it is of the first
        class. One score is tested on all examples; of several, two in five of the examples (whole groups of
        them) are held out for the thresholds.
    delta : float
        Probability that any of the risks is exceeded.
    seed : int
        Seed of the folds, and of the choice of held-out examples.

    Attributes
    ----------
    classes_ : array of shape (2,)
        The labels in ascending order; the second one is the positive class, such as True for correct.
    map_ : ProbabilityMap
        The chosen map.
    scores_ : list of MapScore
        The cross-validated gain of every map that was tried.
    thresholds_ : tuple of Threshold
        One for each risk, the strictest first; `threshold` is None if none was shown to hold.
    out_of_fold_ : array of shape (n_fitted,)
        The probability of each fitted example from maps that were learned on other examples.
    n_features_in_ : int
        Number of scores of an example.
    feature_names_in_ : array of str
        Names of the columns, if a DataFrame was given.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> score = rng.normal(size=400)
    >>> correct = rng.random(400) < 1 / (1 + np.exp(-2 * score))
    >>> calibrator = ScoreCalibrator(risks=0.2).fit(score, correct)
    >>> calibrator.predict_proba([[-2.0], [0.0], [2.0]])[:, 1].round(1)
    array([0. , 0.5, 0.9])
    >>> calibrator.thresholds_[0].risk_limit
    0.2
    """

    def __init__(self, risks: float | Sequence[float] = (), delta: float = 0.05, seed: int = 0) -> None:
        self.risks = risks
        self.delta = delta
        self.seed = seed

    def fit(self, X: Any, y: ArrayLike, groups: GroupLabels | None = None) -> Self:
        """Learn from labeled examples.

        Parameters
        ----------
        X : array or DataFrame of shape (n,) or (n, n_features)
            The scores; NaN stands for a score that is unknown.
        y : array of shape (n,)
            Labels of two classes, such as whether an answer is correct.
        groups : array of shape (n,), optional
            Groups of related examples, which are not independent. A group stays in one fold. With many
            groups a threshold is tested on all their members, with fewer on one member of each.

        Returns
        -------
        ScoreCalibrator

        Raises
        ------
        InputError
            If X and y differ in length, X holds anything but numbers, or y has another number of classes.
        FitError
            If there are fewer than 5 examples.
        UsageError
            If a risk or delta is not a share between 0 and 1, or the seed is invalid.
        """
        for risk in as_list(self.risks):
            as_option(risk, "risks", "shares between 0 and 1, such as 0.1", low=0, high=1)
        as_option(self.delta, "delta", "a share between 0 and 1, such as 0.05", low=0, high=1)
        check_seed(self.seed)
        risks = sorted({*as_list(self.risks)})
        columns, names = self._columns(X)
        self.classes_, codes = _read_labels(y, len(columns))
        check_enough(len(columns), of="to calibrate on")
        correct = codes.astype(np.float64)
        related = as_groups(groups, len(correct))
        is_split = bool(risks) and columns.shape[1] > 1
        apart = kept_apart(len(correct), related, self.seed) if is_split else np.zeros(len(correct), bool)
        self.n_features_in_ = columns.shape[1]
        self.__dict__.pop("feature_names_in_", None)  # of an earlier table
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        if np.isnan(columns[~apart]).all(0).any():
            raise InputError("X has a score that is NaN for all examples; leave this column out")
        #: The direction and the range of each score.
        self._scores = [
            ScoreColumn(f"x{place}").learn(column, correct[~apart])
            for place, column in enumerate(columns[~apart].T)
        ]
        features = self._features(columns)
        of_fitted = None if related is None else related[~apart]
        fitted = Labelled(part_of(features, ~apart), correct[~apart], self._candidates())
        choice = choose_map(*fitted, groups=of_fitted, seed=self.seed)
        self.map_: ProbabilityMap = choice.map
        self.scores_: list[MapScore] = list(choice.scores)
        self.out_of_fold_, _ = predict_out_of_fold([fitted], groups=of_fitted, seed=self.seed)
        self.thresholds_: tuple[Threshold, ...] = ()
        if risks:
            is_one = columns.shape[1] == 1  # then labels chose its direction alone, and all of them test it
            scores, used = self.map_.scores(features), apart | is_one
            labels_of_test = ThresholdLabels(
                (order_by(ORDER, features) if is_one else scores)[used],
                correct[used],
                None if related is None else related[used],
                n_orderings=2 if is_one else 1,
                shown=scores if is_one else None,
            )
            self.thresholds_ = set_thresholds(labels_of_test, risks, self.delta, seed=self.seed)
        return self

    def predict_proba(self, X: Any) -> Floats:
        """Return the probabilities of both classes.

        Parameters
        ----------
        X : array or DataFrame of shape (n,) or (n, n_features)
            The scores; NaN stands for a score that is unknown.

        Returns
        -------
        array of shape (n, 2)
            In the order of `classes_`. UsageError before `fit`; InputError if X is not as there.
        """
        features = self._features(self._seen_columns(X))
        p = self.map_.predict(features)
        return np.column_stack([1 - p, p])

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the more probable class of each example (n,); `X` and errors are as in `predict_proba`."""
        is_second = self.predict_proba(X)[:, 1] >= 0.5
        predicted: NDArray[Any] = self.classes_[is_second.astype(int)]
        return predicted

    def accepts(self, X: Any, risk: float | None = None) -> NDArray[np.bool_]:
        """Return whether each example (n,) is at or above the threshold of a risk, by default the largest.

        All are False if no threshold was shown. UsageError if the calibrator was fitted without this risk.
        """
        features = self._features(self._seen_columns(X))
        by_risk = {threshold.risk_limit: threshold for threshold in self.thresholds_}
        chosen = max(by_risk, default=None) if risk is None else risk
        if chosen not in by_risk:
            known = ", ".join(f"{limit:g}" for limit in by_risk) or "no risk"
            raise UsageError(f"risk: there are thresholds for {known}. Fit with risks={chosen or 0.1:g}")
        found, is_one = by_risk[chosen], self.n_features_in_ == 1
        scores = order_by(ORDER, features) if is_one else self.map_.scores(features)
        limit = found.threshold_score if is_one else found.threshold
        return np.zeros(len(scores), dtype=bool) if limit is None else scores >= limit

    def score(self, X: Any, y: ArrayLike) -> float:
        """Return the accuracy of `predict`, as classifiers of scikit-learn do."""
        return float(np.mean(self.predict(X) == np.asarray(y)))

    # ---- scikit-learn's conventions

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters of the constructor."""
        del deep
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **parameters: Any) -> Self:
        """Set parameters of the constructor; UsageError for an unknown one."""
        for name, value in parameters.items():
            if name not in self.get_params():
                raise UsageError(f"unknown parameter {shown(name)}; known: {', '.join(self.get_params())}")
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        """Describe the estimator to scikit-learn: a binary classifier that takes missing values."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags  # type: ignore[import-untyped]

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(multi_class=False),
            input_tags=InputTags(allow_nan=True),
        )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "map_")

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"{type(self).__name__}({given})"

    # ---- Features

    def _columns(self, X: Any) -> tuple[Floats, list[str] | None]:
        if hasattr(X, "tocsr"):
            raise InputError("X is a sparse matrix, which is not supported; give X.toarray()")
        names = [str(name) for name in X.columns] if hasattr(X, "columns") else None
        try:
            columns = np.asarray(X)
            if columns.dtype.kind == "c":
                raise TypeError("Complex data not supported")
            columns = columns.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"X holds values that are not numbers ({error}); give scores") from error
        columns = columns[:, None] if columns.ndim == 1 else columns
        if columns.ndim == 2 and not columns.shape[1]:
            raise InputError(f"X has 0 feature(s) (shape={columns.shape}) while a minimum of 1 is required.")
        if columns.ndim != 2 or not len(columns):
            raise InputError(f"X has the shape {columns.shape}; give a score, or several, for each example")
        if np.isinf(columns).any():
            raise InputError("X holds infinite scores; replace them, or use NaN for unknown ones")
        return columns, names

    def _seen_columns(self, X: Any) -> Floats:
        if not hasattr(self, "map_"):
            raise UsageError("this ScoreCalibrator is not fitted; call fit(X, y) first")
        columns, names = self._columns(X)
        if names is not None and names != list(getattr(self, "feature_names_in_", names)):
            raise InputError(
                f"X has the columns {', '.join(names)}, and fit had {', '.join(self.feature_names_in_)}. "
                "Give the same columns in the same order"
            )
        if columns.shape[1] != self.n_features_in_:
            expected = f"ScoreCalibrator is expecting {self.n_features_in_} features as input"
            raise InputError(f"X has {columns.shape[1]} features, but {expected}. Reshape your data")
        return columns

    def _features(self, columns: Floats) -> dict[str, Floats]:
        """Return scores (n,) by name, scaled to [0, 1], and the logits of probabilities."""
        return dict(
            item for score, column in zip(self._scores, columns.T) for item in score.features(column).items()
        )

    def _candidates(self) -> list[MapCandidate]:
        names = tuple(score.name for score in self._scores)
        probabilities = tuple(score.name for score in self._scores if score.is_probability)
        logits = tuple(logit_name(name) if name in probabilities else name for name in names)
        fewest, is_one = max(PLENTY, FEW * len(names)), len(names) == 1
        none = MapCandidate("none", (ORDER,), fewest=PLENTY if is_one and probabilities else NEVER)
        logistic = MapCandidate("logistic", names, probabilities, names if is_one else (), fewest=fewest)
        of_logits = MapCandidate("logistic", logits, (), logits if is_one else (), fewest=fewest)
        smooth = [logistic, of_logits] if probabilities else [logistic]
        if not is_one:
            return [none, *smooth]
        beta = MapCandidate("beta", names, fewest=FEW)
        return [none, beta, *smooth, MapCandidate("isotonic", names, fewest=ISOTONIC, tier=1)]
