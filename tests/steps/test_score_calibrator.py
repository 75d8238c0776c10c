"""Probabilities from scores alone, in scikit-learn's conventions."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import estimator_checks_generator

from semcal import Calibrator, ScoreCalibrator, metrics
from semcal.errors import FitError, InputError, SemcalError, UsageError

pytestmark = pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")

#: Checks of scikit-learn that do not apply, and the reason.
NOT_OURS = {
    "check_classifiers_classes": "fits four classes",
    "check_classifiers_train": "fits three classes",
    "check_classifiers_one_label": "one class is refused, since it has no second probability",
    "check_classifiers_one_label_sample_weights": "as above",
    "check_estimators_overwrite_params": "fits three classes",
    "check_estimators_unfitted": "UsageError, since scikit-learn is no dependency",
    "check_dtype_object": "objects are refused with our own error",
    "check_fit1d": "one score may be one-dimensional",
    "check_supervised_y_2d": "a column of labels is refused",
    "check_fit2d_1sample": "fewer than 5 examples are refused in our words",
    "check_fit2d_1feature": "fits too few examples of a class for a map",
}


def world(n: int, seed: int = 0, slope: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    score = rng.normal(size=n)
    return score, rng.random(n) < 1 / (1 + np.exp(-slope * score))


def test_the_probability_is_calibrated_on_other_data_and_ranks_like_the_score() -> None:
    score, correct = world(500)
    others, labels = world(5000, seed=1)
    p = ScoreCalibrator().fit(score, correct).predict_proba(others)
    assert p.shape == (5000, 2)
    assert np.allclose(p.sum(1), 1)
    assert metrics.ace(p[:, 1], labels) < 0.04
    assert metrics.auroc(p[:, 1], labels) == pytest.approx(metrics.auroc(others, labels), abs=0.01)


@pytest.mark.parametrize("n", [30, 50, 250])
@pytest.mark.parametrize("scale", [lambda s: 2 * s, lambda s: 1 / (1 + np.exp(s)), lambda s: 0 * s + 3])
def test_arrays_and_rows_of_one_score_teach_one_map(n: int, scale: Any) -> None:
    """A constant is no candidate of the average, which it would draw to the accuracy."""
    score, correct = world(n)
    score = scale(score)
    p = ScoreCalibrator().fit(score, correct).predict_proba(score)[:, 1]
    rows = [{"score": float(s), "correct": bool(c)} for s, c in zip(score, correct)]
    applied = Calibrator().fit_rows(rows).apply([{"score": float(s)} for s in score])
    assert p == pytest.approx([answer.probability for answer in applied], abs=1e-12)


@pytest.mark.parametrize("confident", [False, True])
def test_probabilities_near_0_and_near_1_are_told_apart(confident: bool) -> None:
    """Likelihoods of long answers differ by factors, as do the errors of confident classifiers."""
    errors = []
    for seed in range(8):
        score, correct = world(90, seed, slope=1.5)
        others, _ = world(2000, seed + 100)
        p, q = (np.exp(-12 + 2 * s) for s in (score, others))
        if confident:
            p, q = (1 - np.exp(-9 - 1.5 * s) for s in (score, others))
        found = ScoreCalibrator().fit(p, correct).predict_proba(q)[:, 1]
        errors.append(np.abs(found - 1 / (1 + np.exp(-1.5 * others))).mean())
    assert np.mean(errors) < 0.1


def test_the_logits_of_several_probabilities_count_beside_other_scores() -> None:
    """A likelihood and a margin: each alone has an AUROC of about 0.75."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(4250, 2))
    right = rng.random(4250) < 1 / (1 + np.exp(-z.sum(1)))
    X = np.column_stack([np.exp(-20 + 3 * z[:, 0]), z[:, 1]])
    p = ScoreCalibrator().fit(X[:250], right[:250]).predict_proba(X[250:])[:, 1]
    assert np.abs(p - 1 / (1 + np.exp(-z[250:].sum(1)))).mean() < 0.06


@pytest.mark.parametrize("factor", [1e-310, 1e-12, 5e307])
def test_scores_of_any_magnitude_count_also_beside_others(factor: float) -> None:
    score, correct = world(300)
    score = np.clip(score, -2, 2)
    table = np.column_stack([score * factor, np.random.default_rng(3).normal(size=300)])
    for columns in (table[:, 0], table):
        p = ScoreCalibrator().fit(columns, correct).predict_proba(columns)[:, 1]
        assert metrics.auroc(p, correct) > 0.8


def test_thresholds_are_those_of_exact_tests_of_all_labels_which_chose_one_of_two_directions() -> None:
    """Two risks and two directions leave a quarter of delta; test_risk.py simulates the promise."""
    score, correct = world(400)
    calibrator = ScoreCalibrator(risks=np.array([0.2, 0.3])).fit(score, correct)
    accepted = [calibrator.accepts(score, risk=risk) for risk in (0.2, 0.3)]
    for risk, found in zip((0.2, 0.3), accepted):
        limit = metrics.label_free_threshold(score, correct, risk_limit=risk, delta=0.0125).threshold
        assert limit is not None
        assert np.array_equal(found, score >= limit)
    assert accepted[0].sum() < accepted[1].sum()


def test_groups_stay_together_and_all_their_members_count_for_a_threshold() -> None:
    score, correct = world(400)
    groups = np.repeat(np.arange(100), 4)
    calibrator = ScoreCalibrator(risks=0.3).fit(score, correct, groups=groups)
    found = calibrator.thresholds_[0]
    assert (found.test, found.groups, found.n) == ("betting", 90, 360)  # ten groups choose the stakes


def test_tables_have_names_and_missing_scores_have_probabilities() -> None:
    score, correct = world(300)
    noise = np.random.default_rng(3).normal(size=300)
    table = pd.DataFrame({"likelihood": score, "noise": noise})
    table.loc[::10, "likelihood"] = np.nan
    calibrator = ScoreCalibrator().fit(table, pd.Series(np.where(correct, "right", "wrong")))
    assert calibrator.feature_names_in_.tolist() == ["likelihood", "noise"]
    assert calibrator.classes_.tolist() == ["right", "wrong"]
    p = calibrator.predict_proba(table)
    assert np.isfinite(p).all()
    assert calibrator.score(table, np.where(correct, "right", "wrong")) > 0.7
    with pytest.raises(InputError, match="noise, likelihood"):
        calibrator.predict_proba(table[["noise", "likelihood"]])


def test_it_is_the_last_step_of_a_pipeline_and_can_be_cloned_and_pickled() -> None:
    score, correct = world(300)
    pipeline = make_pipeline(FunctionTransformer(np.square), ScoreCalibrator())
    assert cross_val_score(pipeline, score[:, None], correct, cv=3).shape == (3,)
    fitted = ScoreCalibrator(risks=0.4).fit(score, correct)
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict_proba(score), fitted.predict_proba(score))
    assert clone(fitted).get_params() == {"risks": 0.4, "delta": 0.05, "seed": 0}


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it does not inherit from BaseEstimator, on purpose
    GENERATED = list(estimator_checks_generator(ScoreCalibrator(), legacy=True))
CHECKS = [
    pytest.param(estimator, check, id=f"{number} {check.func.__name__}")
    for number, (estimator, check) in enumerate(GENERATED)
    if check.func.__name__ not in NOT_OURS
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_the_applicable_checks_of_scikit_learn_pass(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize(
    ("X", "y", "named"),
    [
        ([1, 2, 3], [0, 1], "y has the shape"),
        (["a"] * 20, [0, 1] * 10, "X"),
        (np.full(20, np.inf), [0, 1] * 10, "infinite"),
        (np.arange(20), [0] * 20, "classes"),
        (np.arange(21), [0, 1, 2] * 7, "classes"),
        (np.zeros((20, 2, 2)), [0, 1] * 10, "X has the shape"),
        (np.arange(20), [None, *[True, False] * 9, True], "y"),
        (np.arange(20), pd.array([None, *[True] * 19], dtype="boolean"), "y"),
    ],
)
def test_bad_input_is_refused_by_name(X: Any, y: Any, named: str) -> None:
    with pytest.raises(InputError, match=named):
        ScoreCalibrator().fit(X, y)


def test_wrong_calls_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="risks"):
        ScoreCalibrator(risks=2).fit(*world(50))
    with pytest.raises(UsageError, match="fit"):
        ScoreCalibrator().predict([0.5])
    with pytest.raises(UsageError, match="risk"):
        ScoreCalibrator(risks=0.3).fit(*world(100)).accepts([0.5], risk=0.2)
    with pytest.raises(FitError):
        ScoreCalibrator().fit([0.1, 0.9], [0, 1])
    with pytest.raises(UsageError, match=r"^seed"):
        ScoreCalibrator(seed=-1).fit(*world(50))


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA])
def test_a_missing_group_is_refused(missing: object) -> None:
    with pytest.raises(InputError, match=r"^groups"):
        ScoreCalibrator().fit(*world(50), groups=[missing, missing, *range(48)])


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.booleans()), min_size=5, max_size=60))
@settings(max_examples=40, deadline=None)
def test_any_scores_give_probabilities_or_one_clear_error(rows: list[tuple[float, bool]]) -> None:
    scores, labels = zip(*rows)
    try:
        p = ScoreCalibrator().fit(scores, labels).predict_proba(scores)
    except SemcalError:
        assert len(set(labels)) == 1
        return
    assert ((p >= 0) & (p <= 1)).all()
