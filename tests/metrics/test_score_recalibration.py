"""Isotonic, beta and Platt recalibration against scikit-learn, the formulas, and known truths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit, logit
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from semcal.errors import FitError, InputError, UsageError
from semcal.metrics import (
    SCORE_RECALIBRATORS,
    BetaCalibration,
    IsotonicCalibration,
    PlattCalibration,
    auroc,
    brier,
    corp,
)

TENTHS = st.integers(0, 10).map(lambda k: k / 10)
EXAMPLES = st.lists(
    st.tuples(st.one_of(TENTHS, st.floats(0, 1)), st.booleans()), min_size=1, max_size=40
).map(lambda rows: tuple(np.array(column, float) for column in zip(*rows, strict=True)))
GRID = np.linspace(0, 1, 101)
NAMES = sorted(SCORE_RECALIBRATORS)


def drawn(n: int, seed: int, curve=lambda p: p) -> tuple[np.ndarray, np.ndarray]:
    """Confidences of which some are exactly 0 or 1, right with the chance that `curve` gives them."""
    rng = np.random.default_rng(seed)
    p = np.clip(np.round(rng.uniform(-0.05, 1.05, n), 2), 0, 1)
    return p, (rng.uniform(size=n) < curve(p)).astype(float)


@given(EXAMPLES)
def test_isotonic_is_that_of_scikit_learn(examples) -> None:
    p, c = np.round(examples[0], 6), examples[1]  # scikit-learn pools what differs by rounding alone
    oracle = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(p, c)
    np.testing.assert_allclose(IsotonicCalibration().fit(p, c).predict(GRID), oracle.predict(GRID), atol=1e-9)


@given(EXAMPLES)
def test_isotonic_gains_mcb_on_the_data_it_was_fitted_to(examples) -> None:
    p, c = examples
    gained = brier(p, c) - brier(IsotonicCalibration().fit(p, c).predict(p), c)
    assert gained == pytest.approx(corp(p, c).mcb, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_platt_is_an_unpenalised_logistic_regression_on_smoothed_targets(seed) -> None:
    p, c = drawn(300, seed, lambda p: 0.2 + 0.5 * p**2)
    right, wrong = c.sum(), (1 - c).sum()
    share = np.where(c == 1, (right + 1) / (right + 2), 1 / (wrong + 2))
    oracle = LogisticRegression(
        C=np.inf, tol=1e-10, max_iter=5000
    ).fit(  # each row right in part, wrong in part
        np.tile(p, 2)[:, None], np.repeat([1, 0], len(p)), sample_weight=np.concatenate([share, 1 - share])
    )
    fitted = PlattCalibration().fit(p, c)
    assert (fitted.slope_, fitted.intercept_) == pytest.approx(
        (oracle.coef_[0, 0], oracle.intercept_[0]), rel=1e-4
    )
    np.testing.assert_allclose(fitted.predict(GRID), oracle.predict_proba(GRID[:, None])[:, 1], atol=1e-6)


def beta_log_likelihood(theta, p, c) -> float:
    a, b, cc = theta
    return sum(
        np.log(expit(s)) if right else np.log(expit(-s))
        for s, right in zip(a * np.log(p) - b * np.log(1 - p) + cc, c)
    )


@pytest.mark.parametrize("seed", range(5))
def test_beta_maximises_the_likelihood_of_its_formula(seed) -> None:
    p, c = drawn(300, seed, lambda p: expit(0.6 * logit(np.clip(p, 0.01, 0.99)) - 0.4))
    squeezed = 0.01 + 0.98 * p
    beta = BetaCalibration().fit(p, c)
    found = minimize(
        lambda theta: -beta_log_likelihood(theta, squeezed, c),
        [1, 1, 0],
        method="Nelder-Mead",
        bounds=[(0, None), (0, None), (None, None)],
        options={"xatol": 1e-8, "fatol": 1e-11, "maxiter": 4000},
    )
    ours = beta_log_likelihood((beta.a_, beta.b_, beta.c_), squeezed, c)
    assert ours == pytest.approx(-found.fun, abs=1e-6)
    a, b, cc = beta.a_, beta.b_, beta.c_
    q = 1 / (1 + 1 / (np.exp(cc) * squeezed**a / (1 - squeezed) ** b))  # Kull et al., equation of the map
    np.testing.assert_allclose(beta.predict(p), q, atol=1e-12)


def test_beta_without_constraints_at_work_is_scikit_learns_logistic_regression() -> None:
    p, c = drawn(2000, 3, lambda p: p**1.5)
    p = np.clip(p, 0.01, 0.99)
    beta = BetaCalibration(squeeze=1e-12).fit(p, c)
    oracle = LogisticRegression(C=np.inf, tol=1e-10, max_iter=5000)
    oracle.fit(np.stack([np.log(p), -np.log(1 - p)], axis=1), c)
    assert min(beta.a_, beta.b_) > 0.05
    assert [beta.a_, beta.b_, beta.c_] == pytest.approx([*oracle.coef_[0], oracle.intercept_[0]], abs=1e-3)


def test_beta_recovers_the_map_that_made_the_outcomes() -> None:
    rng = np.random.default_rng(0)
    p = rng.uniform(0.02, 0.98, 200_000)
    truth = expit(1.4 * np.log(p) - 0.5 * np.log(1 - p) - 0.3)
    beta = BetaCalibration(squeeze=1e-12).fit(p, rng.uniform(size=len(p)) < truth)
    assert [beta.a_, beta.b_, beta.c_] == pytest.approx([1.4, 0.5, -0.3], abs=0.05)


def test_platt_recovers_the_curve_that_made_the_outcomes() -> None:
    rng = np.random.default_rng(0)
    p = rng.uniform(size=200_000)
    platt = PlattCalibration().fit(p, rng.uniform(size=len(p)) < expit(2.5 * p - 1.5))
    assert [platt.slope_, platt.intercept_] == pytest.approx([2.5, -1.5], abs=0.04)


@pytest.mark.parametrize("name", NAMES)
def test_what_was_sure_and_wrong_is_calibrated_on_new_answers(name) -> None:
    def curve(p):
        return 0.1 + 0.5 * p

    p, c = drawn(20_000, 1, curve)
    q = SCORE_RECALIBRATORS[name]().fit(p, c).predict(GRID)
    np.testing.assert_allclose(q, curve(GRID), atol=0.06)


@settings(max_examples=60)
@given(EXAMPLES, st.sampled_from(["isotonic", "beta"]))
def test_isotonic_and_beta_never_decrease_and_stay_probabilities(examples, name) -> None:
    q = SCORE_RECALIBRATORS[name]().fit(*examples).predict(GRID)
    assert (np.diff(q) >= -1e-12).all()
    assert ((q >= 0) & (q <= 1)).all()


@settings(max_examples=60)
@given(EXAMPLES, st.sampled_from(NAMES), st.randoms())
def test_the_order_of_the_rows_plays_no_part(examples, name, random) -> None:
    p, c = examples
    order = random.sample(range(len(p)), len(p))
    first = SCORE_RECALIBRATORS[name]().fit(p, c).predict(GRID)
    second = SCORE_RECALIBRATORS[name]().fit(p[order], c[order]).predict(GRID)
    np.testing.assert_allclose(first, second, atol=1e-4)


@pytest.mark.parametrize("name", ["beta", "platt"])
def test_a_strictly_increasing_map_leaves_auroc_alone(name) -> None:
    p, c = drawn(500, 2, lambda p: 0.3 + 0.4 * p)
    q = SCORE_RECALIBRATORS[name]().fit(p, c).predict(p)
    assert auroc(q, c) == auroc(p, c)


@pytest.mark.parametrize("right", [0, 1])
def test_with_one_class_isotonic_is_certain_and_the_others_are_nearly(right) -> None:
    p, c = [0.2, 0.6, 0.6, 1.0], [right] * 4
    predicted = {
        name: make().fit(p, c).predict([0.0, 0.6, 1.0]) for name, make in SCORE_RECALIBRATORS.items()
    }
    smoothed = 5 / 6 if right else 1 / 6
    assert predicted["isotonic"].tolist() == [right] * 3
    assert predicted["beta"] == pytest.approx([smoothed] * 3)
    assert predicted["platt"] == pytest.approx([smoothed] * 3)


def test_with_equal_confidences_the_map_is_a_constant() -> None:
    p, c = [1.0] * 8, [1, 1, 1, 1, 1, 1, 0, 0]
    for name, expected in {"isotonic": 0.75, "beta": 0.75, "platt": (6 * 7 / 8 + 2 * 1 / 4) / 8}.items():
        assert SCORE_RECALIBRATORS[name]().fit(p, c).predict([0, 0.5, 1]) == pytest.approx([expected] * 3)


def test_a_single_answer_is_enough() -> None:
    predicted = {
        name: make().fit([0.7], [1]).predict([0.1, 0.9]).tolist()
        for name, make in SCORE_RECALIBRATORS.items()
    }
    assert predicted["isotonic"] == [1, 1]
    assert predicted["beta"] == predicted["platt"] == pytest.approx([2 / 3] * 2)


def test_parted_outcomes_leave_beta_finite() -> None:
    beta = BetaCalibration().fit([0.1, 0.3, 0.7, 0.7, 0.9], [0, 0, 1, 0, 1])  # .7 stands on both sides
    q = beta.predict([0.1, 0.3, 0.7, 0.9])
    assert np.isfinite([beta.a_, beta.b_, beta.c_]).all()
    assert max(beta.a_, beta.b_) < 50
    assert 0.05 < q[0] <= q[1] < q[2] < q[3] < 0.95


def test_beta_holds_a_confidence_that_ranks_the_wrong_way_at_a_constant() -> None:
    beta = BetaCalibration().fit([0.1, 0.2, 0.8, 0.9], [1, 1, 0, 0])
    assert (beta.a_, beta.b_) == (0, 0)
    assert beta.predict([0.1, 0.9]) == pytest.approx([0.5, 0.5])
    assert PlattCalibration().fit([0.1, 0.2, 0.8, 0.9], [1, 1, 0, 0]).slope_ < 0


def test_answers_of_confidence_exactly_1_do_not_bend_the_curve_of_beta() -> None:
    rng = np.random.default_rng(0)
    p = np.where(
        rng.uniform(size=2000) < 0.25, 1.0, expit(2.5 * logit(rng.beta(0.8, 0.5, 2000).clip(0.02, 0.999)))
    )
    truth = expit(0.5 * logit(np.clip(p, 0.02, 0.98)) - 0.5)
    c = rng.uniform(size=2000) < truth
    errors = [((BetaCalibration(squeeze=s).fit(p, c).predict(p) - truth) ** 2).mean() for s in (0.01, 1e-6)]
    assert errors[0] < 0.001 < 0.003 < errors[1]
    with pytest.raises(UsageError, match="squeeze is 0"):
        BetaCalibration(squeeze=0)


@pytest.mark.parametrize("name", NAMES)
def test_nonsense_is_refused(name) -> None:
    make = SCORE_RECALIBRATORS[name]
    with pytest.raises(FitError, match="call fit first"):
        make().predict([0.5])
    for p, c in [([], []), ([0.5], [1, 0]), ([1.2], [1]), ([np.nan], [1]), ([0.5], [0.5])]:
        with pytest.raises(InputError):
            make().fit(p, c)
    with pytest.raises(InputError, match="expected a probability"):
        make().fit([0.1, 0.9], [0, 1]).predict([2.0])


@pytest.mark.parametrize("name", NAMES)
def test_inputs_are_left_as_they_were(name) -> None:
    p, c = np.array([0.0, 0.4, 1.0]), np.array([0.0, 1.0, 1.0])
    SCORE_RECALIBRATORS[name]().fit(p, c).predict(p)
    assert (p.tolist(), c.tolist()) == ([0.0, 0.4, 1.0], [0.0, 1.0, 1.0])
