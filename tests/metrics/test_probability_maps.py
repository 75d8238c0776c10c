"""Maps from features to probabilities: fits against independent sources, the choice, and what is stored."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from semcal.errors import InputError
from semcal.metrics.probability_maps import (
    FEW,
    Labelled,
    MapCandidate,
    ProbabilityMap,
    Support,
    choose_answers,
    choose_map,
    predict_out_of_fold,
)

NONE = MapCandidate("none", ("share",))
BETA = MapCandidate("beta", ("share",))
BOTH = MapCandidate("logistic", ("share", "depth"), ("share",))


def overconfident(n: int = 400, seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Shares of ten draws whose answers are right less often than they say, and a feature that helps."""
    rng = np.random.default_rng(seed)
    share = np.ceil(10 * rng.beta(4, 1.2, n)) / 10
    depth = rng.normal(size=n)
    right = rng.random(n) < 1 / (1 + np.exp(-(3 * share - 2.5 + depth)))
    return {"share": share, "depth": depth}, right.astype(float)


def test_logistic_is_scikit_learns_with_the_same_penalty_on_standardised_features() -> None:
    features, right = overconfident()
    found = replace(BOTH.fit(features, right), support=None)
    squeezed = 0.01 + 0.98 * features["share"]
    columns = np.stack([np.log(squeezed) - np.log1p(-squeezed), features["depth"]], axis=1)
    z = (columns - columns.mean(0)) / columns.std(0)
    theirs = LogisticRegression(C=1 / 3, tol=1e-10, max_iter=1000).fit(z, right)
    assert found.predict(features) == pytest.approx(theirs.predict_proba(z)[:, 1], abs=1e-5)


def test_isotonic_is_scikit_learns() -> None:
    features, right = overconfident()
    found = replace(MapCandidate("isotonic", ("share",)).fit(features, right), support=None)
    theirs = IsotonicRegression(out_of_bounds="clip").fit(features["share"], right)
    assert found.predict(features) == pytest.approx(theirs.predict(features["share"]))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), step=st.floats(0.01, 0.5))
def test_the_probability_does_not_fall_when_a_rising_feature_rises(seed: int, step: float) -> None:
    features, right = overconfident(60, seed)
    rising = MapCandidate("logistic", ("share", "depth"), ("share",), rising=("share", "depth"))
    found = rising.fit({**features, "depth": -features["depth"]}, right)  # the labels want it to fall
    before = found.predict(features)
    for name in features:
        after = found.predict(
            {**features, name: np.minimum(features[name] + step, 1.0 if name == "share" else 9)}
        )
        assert (after >= before - 1e-12).all()


def test_a_map_is_chosen_where_shares_are_overconfident_and_declined_where_they_are_calibrated() -> None:
    features, right = overconfident()
    assert choose_map(features, right, [NONE, BETA, BOTH]).map.candidate == BOTH
    rng = np.random.default_rng(1)
    declined = 0
    for seed in range(20):
        share = rng.integers(1, 11, 200) / 10
        calibrated = (rng.random(200) < share).astype(float)
        noise = {"share": share, "depth": rng.normal(size=200)}
        declined += choose_map(noise, calibrated, [NONE, BETA, BOTH], seed=seed).map.candidate == NONE
    assert declined >= 15  # one standard error is beaten by chance in about one of six


def test_a_map_of_a_higher_tier_must_be_clearly_better() -> None:
    features, right = overconfident()
    copy = {**features, "copy": features["depth"]}
    dear = MapCandidate("logistic", ("share", "depth", "copy"), ("share",), tier=1)
    assert choose_map(copy, right, [NONE, BOTH, dear]).map.candidate == BOTH
    cheap = MapCandidate("logistic", ("share",), ("share",))
    assert choose_map(copy, right, [NONE, cheap, dear]).map.candidate == dear


@pytest.mark.parametrize("seed", range(4))
def test_bounded_slopes_are_those_of_another_solver(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, names = 120, ("up", "down", "turned up", "turned down", "free")
    x = rng.normal(size=(n, 5)) @ (np.eye(5) + 0.4)
    right = (rng.random(n) < expit(x @ [0.8, -0.8, -1.0, 1.0, -0.5])).astype(float)
    candidate = MapCandidate("logistic", names, rising=("up", "turned up"), falling=("down", "turned down"))
    slopes = np.array(candidate.fit(dict(zip(names, x.T)), right).parameters["slopes"]) * x.std(0)
    z = (x - x.mean(0)) / x.std(0)

    def loss(theta: np.ndarray) -> float:
        score = z @ theta[:-1] + theta[-1]
        return float((np.logaddexp(0, score) - right * score).sum() + 1.5 * (theta[:-1] ** 2).sum())

    bounds = [(0, None), (None, 0), (0, None), (None, 0), (None, None), (None, None)]
    options = {"ftol": 1e-12, "maxiter": 500}
    theirs = minimize(loss, np.zeros(6), method="SLSQP", bounds=bounds, options=options)
    assert slopes == pytest.approx(theirs.x[:-1], abs=1e-3)
    assert (slopes == 0).sum() >= 1  # or no bound would be met


@pytest.mark.parametrize(("rights", "expected"), [(0, 1 / 402), (400, 401 / 402)])
def test_answers_all_wrong_or_all_right_leave_a_constant_and_the_share_as_their_order(
    rights: int, expected: float
) -> None:
    features, _ = overconfident()
    right = (np.arange(400) < rights).astype(float)
    found = choose_map(features, right, [NONE, BETA, BOTH])
    assert found.map.candidate.name == "constant(share)"
    assert found.map.predict(features) == pytest.approx(np.full(400, expected))
    assert found.map.scores(features) == pytest.approx(features["share"])
    assert found.map.scores({"share": np.array([np.nan])}) == pytest.approx(features["share"].mean())
    assert [one.candidate.kind for one in found.scores] == ["none", "constant"]
    given = [Labelled(features, right, [NONE, BETA, BOTH])]
    out, kinds = predict_out_of_fold(given)
    assert not kinds.any()
    assert out == pytest.approx(np.full(400, (0.8 * rights + 1) / 322))
    groups = np.arange(400) % 3
    few, _ = predict_out_of_fold(given, groups=groups)
    assert few == pytest.approx(np.full(400, expected))
    assert choose_map(features, right, [NONE], groups=0 * groups).map.candidate.kind == "constant"


@pytest.mark.parametrize("rights", [1, 4, 396, 399])
def test_fewer_than_five_right_or_wrong_answers_leave_a_constant(rights: int) -> None:
    features, _ = overconfident()
    right = (np.arange(400) < rights).astype(float)
    found = choose_map(features, right, [NONE, replace(BETA, fewest=FEW), BOTH])
    assert found.map.candidate.kind == "constant"
    assert [one.candidate.kind for one in found.scores] == ["none", "constant"]


@pytest.mark.parametrize("rights", [5, 9, 391, 395])
def test_five_to_nine_leave_a_constant_or_a_beta_map_that_beats_it_and_never_the_share(rights: int) -> None:
    rng, given = np.random.default_rng(rights), [NONE, replace(BETA, fewest=FEW), BOTH]
    right = (np.arange(400) < rights).astype(float)
    rare, few = (1.0, 0.9) if rights < 10 else (0.0, 0.1)  # of the other kind seven look like the rare one
    alike = (right == rare) | (np.cumsum(right != rare) <= 7)
    told = {"share": np.where(alike, few, 0.5), "depth": right}
    found = choose_map(told, right, given)
    assert [one.candidate.kind for one in found.scores] == ["none", "constant", "beta"]
    assert found.map.candidate.kind == "beta"
    untold = {"share": rng.integers(1, 11, 400) / 10, "depth": right}
    assert choose_map(untold, right, given).map.candidate.kind == "constant"


def test_a_share_that_tells_nothing_gives_way_to_the_constant_also_where_there_are_many_labels() -> None:
    rng = np.random.default_rng(0)
    right = (rng.random(300) < 0.4).astype(float)
    untold = {"share": rng.integers(1, 11, 300) / 10, "depth": rng.normal(size=300)}
    found = choose_map(untold, right, [NONE, BETA, BOTH])
    assert found.map.candidate.kind == "constant"
    assert found.score.gain > found.scores[0].gain


def brute_force(f: np.ndarray, right: np.ndarray, at: float) -> tuple[float, float]:
    """Floor and cap at a value, over every w that can matter."""
    below = [w for w in (*f, at, 0.0) if w <= at]
    above = [w for w in (*f, at, 1.0) if w >= at]

    def share(chosen: np.ndarray) -> float:
        return (right[chosen].sum() + 1) / (chosen.sum() + 2)

    caps = [share(f >= w) for w in below if (f >= w).sum() >= 10]
    floors = [share(f <= w) for w in above if (f <= w).sum() >= 10]
    return min(floors), max(caps)


@settings(max_examples=60, deadline=None)
@given(
    answers=st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=10, max_size=60),
    new=st.lists(st.floats(0, 1), min_size=1, max_size=8),
)
def test_the_support_of_a_map_is_that_of_all_labelled_answers_above_and_below(
    answers: list[tuple[int, bool]], new: list[float]
) -> None:
    f = np.array([value / 20 for value, _ in answers])
    right = np.array([float(one) for _, one in answers])
    at = np.sort(np.concatenate([np.array(new), f]))
    found = Support.of(f, right)
    expected = [np.clip(one, *brute_force(f, right, one)) for one in at]
    assert found.clip(at) == pytest.approx(expected, abs=1e-8)
    assert (np.diff(found.clip(at)) >= -1e-9).all()
    overall = (right.sum() + 1) / (len(right) + 2)
    assert max(found.floor) <= overall <= min(found.cap)


def test_a_map_that_few_answers_bear_out_states_what_ten_of_them_do() -> None:
    share = np.array([0.1] * 190 + [0.9] * 4 + [0.2] * 6)
    right = np.array([0.0] * 190 + [1.0] * 4 + [0.0] * 6)
    found = BETA.fit({"share": share}, right)
    free = replace(found, support=None)
    top = {"share": np.array([0.9, 1.0])}
    assert found.predict(top) == pytest.approx([5 / 12, 5 / 12])
    assert free.predict(top)[0] > 0.6


def test_another_kind_of_answer_is_taken_if_it_gains_more_by_a_standard_error_and_in_each_fold_anew() -> None:
    rng = np.random.default_rng(0)
    share = rng.integers(1, 11, 300) / 10
    right = (rng.random(300) < share).astype(float)
    worse, same = right * (rng.random(300) < 0.5), right.copy()
    same[0] = 1 - same[0]
    features = {"share": share}
    given = [Labelled(features, one, [NONE, BETA]) for one in (worse, right, same)]
    place, found = choose_answers(given)
    assert place in (1, 2)
    assert found[place].score.gain > found[0].score.gain
    assert choose_answers([given[1], given[2]])[0] == 0
    assert choose_answers([given[1], given[0]])[0] == 0
    p, kinds = predict_out_of_fold([given[0], given[1]])
    assert kinds.all()
    assert p == pytest.approx(predict_out_of_fold([given[1]], seed=0)[0], abs=0.2)


def test_the_score_of_no_map_is_the_gain_of_the_share() -> None:
    features, right = overconfident()
    share = features["share"]
    assert NONE.fit(features, right).predict(features) == pytest.approx(share)
    scores = choose_map(features, right, [NONE, BOTH]).scores
    assert scores[0].gain == pytest.approx(np.mean(2 * share * right - share**2))
    assert scores[-1].above == pytest.approx(scores[-1].gain - scores[0].gain)


def test_groups_stay_in_one_fold() -> None:
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(60), 4)
    right = np.repeat(rng.integers(0, 2, 60), 4).astype(float)
    secret = np.repeat(rng.normal(size=60), 4)  # tells the group and nothing else
    features = {"share": np.full(240, 0.5), "secret": secret}
    steps = MapCandidate("isotonic", ("secret",))
    told = choose_map({**features, "secret": rng.permutation(60)[groups] / 60}, right, [NONE, steps])
    kept = choose_map(
        {**features, "secret": rng.permutation(60)[groups] / 60}, right, [NONE, steps], groups=groups
    )
    assert told.scores[-1].gain > kept.scores[-1].gain


def test_out_of_fold_probabilities_do_not_know_their_own_answer() -> None:
    features, right = overconfident(200)
    tried = [NONE, BETA, BOTH]
    first, _ = predict_out_of_fold([Labelled(features, right, tried)])
    flipped = right.copy()
    flipped[7] = 1 - flipped[7]
    folds_may_move, _ = predict_out_of_fold([Labelled(features, flipped, tried)])
    assert first[7] == pytest.approx(folds_may_move[7], abs=0.1)
    noise = np.random.default_rng(3).integers(0, 2, 200).astype(float)
    p, _ = predict_out_of_fold([Labelled(features, noise, tried)])
    assert np.ptp(p) < 1e-9 or np.corrcoef(p, noise)[0, 1] < 0.2


def test_an_unknown_feature_counts_as_its_mean_in_the_fit() -> None:
    features, right = overconfident()
    found = BOTH.fit(features, right)
    mean = found.predict({"share": np.array([0.7]), "depth": np.array([features["depth"].mean()])})
    assert found.predict({"share": np.array([0.7]), "depth": np.array([np.nan])}) == pytest.approx(mean)


def test_a_constant_feature_has_no_say() -> None:
    features, right = overconfident()
    found = BOTH.fit({**features, "depth": np.full(400, 3.0)}, right)
    assert found.parameters["slopes"][1] == 0


def test_what_is_chosen_is_averaged_by_exponential_weights_of_the_gain() -> None:
    share = np.ceil(10 * np.random.default_rng(2).beta(2, 2, 120)) / 10
    right = (np.random.default_rng(3).random(120) < share**2).astype(float)
    features = {"share": share, "depth": np.random.default_rng(4).normal(size=120)}
    found = choose_map(features, right, [NONE, BETA, BOTH, replace(BOTH, tier=1)])
    assert found.map.candidate.tier == 0
    own = [score for score in found.scores if score.candidate.tier == 0]
    weights = np.array([np.exp(120 * score.gain / 2) for score in own])
    weights /= weights.sum()
    weights[weights < 0.02] = 0
    weights /= weights.sum()
    assert sum(weights > 0) > 1
    expected = np.zeros(120)
    for weight, score in zip(weights, own):
        assert found.map.weight_of(score.candidate) == pytest.approx(weight, abs=1e-9)
        fitted = score.candidate.fit(features, right)
        if score.candidate == NONE:
            fitted = replace(fitted, support=Support.of(share, right))
        expected += weight * fitted.predict(features)
    assert found.map.predict(features) == pytest.approx(expected)
    assert set(found.map.features) == {"share", "depth"}


def test_a_constant_of_nearly_the_same_gain_is_not_averaged() -> None:
    rng = np.random.default_rng(0)
    share = np.ceil(10 * rng.beta(2, 2, 400)) / 10
    right = (rng.random(400) < 0.2 + 0.35 * share).astype(float)
    found = choose_map({"share": share}, right, [NONE, BETA])
    constant = found.scores[1]
    assert np.exp(400 * (constant.gain - found.score.gain) / 2) > 0.1  # or it would have no weight anyway
    assert (found.map.candidate, found.map.weight_of(constant.candidate)) == (BETA, 0)


@pytest.mark.parametrize("weights", [(), (0.5, 0.2), (-0.1,), (1.1,)])
def test_an_average_with_other_weights_than_it_has_maps_is_refused(weights: tuple[float, ...]) -> None:
    features, right = overconfident()
    with pytest.raises(InputError, match="averaged"):
        replace(BETA.fit(features, right), others=(NONE.fit(features, right),), weights=weights)


@pytest.mark.parametrize(
    ("candidate", "parameters", "unknown"),
    [
        (MapCandidate("spline", ("share",)), {}, (0.0,)),
        (BETA, {"a": (1.0,), "b": (1.0,)}, (0.0,)),
        (BETA, {"a": (1.0, 2.0), "b": (1.0,), "c": (0.0,)}, (0.0,)),
        (BOTH, {"slopes": (1.0,), "intercept": (0.0,)}, (0.0, 0.0)),
        (BOTH, {"slopes": (1.0, 1.0), "intercept": (0.0,)}, (0.0,)),
        (MapCandidate("isotonic", ("share",)), {"thresholds": (), "values": ()}, (0.0,)),
        (MapCandidate("isotonic", ("share",)), {"thresholds": (0.1, 0.2), "values": (0.5,)}, (0.0,)),
        (MapCandidate("none", ("share", "depth")), {}, (0.0, 0.0)),
        (MapCandidate("constant", ("share",)), {}, (0.0,)),
    ],
)
def test_a_map_with_other_parameters_than_its_kind_has_is_refused(
    candidate: MapCandidate, parameters: dict[str, tuple[float, ...]], unknown: tuple[float, ...]
) -> None:
    with pytest.raises(InputError):
        ProbabilityMap(candidate, parameters, unknown)


def test_isotonic_is_not_tried_where_its_steps_would_follow_a_few_wrong_answers() -> None:
    features, _ = overconfident()
    steps = MapCandidate("isotonic", ("share",), fewest=50)
    tried = [
        steps in [one.candidate for one in choose_map(features, right, [NONE, steps]).scores]
        for right in ((np.arange(400) < n).astype(float) for n in (49, 50, 350, 351))
    ]
    assert tried == [False, True, True, False]
