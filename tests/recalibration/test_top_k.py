"""Bounds and estimates from the likeliest tokens alone, against whole distributions."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import logsumexp

from semcal.recalibration.server_fit import PowerLaw, TopK, certified_interval, mean_bounds, tail_bounds

Array = NDArray[np.float64]


def known(p: Array, k: int, target: int, *, rounding: float = 1e-12) -> TopK:
    """What a server lists of one distribution: the k likeliest tokens, and the target."""
    order = [int(i) for i in np.argsort(-p, kind="stable")[:k]]
    top = [math.log(p[i]) for i in order if i != target]
    return TopK.of([top], [math.log(p[target])], vocabulary=len(p), rounding=rounding)


def truth(p: Array, beta: float) -> tuple[float, float]:
    """A(β) and A'(β) in 40 digits."""
    with mpmath.workdps(40):
        powers = [mpmath.power(mpmath.mpf(float(one)), beta) for one in p]
        total = mpmath.fsum(powers)
        mean = mpmath.fsum(w * mpmath.log(mpmath.mpf(float(one))) for w, one in zip(powers, p)) / total
        return float(mpmath.log(total)), float(mean)


distributions = st.lists(
    st.sampled_from([0.0, -0.5, -1.0, -2.0, -5.0, -9.0, -14.0]) | st.floats(-20, 0), min_size=2, max_size=25
).map(lambda z: np.exp(np.array(z) - logsumexp(z)))
betas = st.sampled_from([0.05, 0.3, 0.7, 0.999, 1.0, 1.001, 1.5, 4.0, 20.0]) | st.floats(0.05, 20)


@settings(max_examples=120, deadline=None)
@given(distributions, st.integers(1, 8), st.integers(0, 24), betas)
@example(np.full(4, 0.25), 1, 3, 0.5)
@example(np.array([0.6, 0.4]), 1, 0, 2.0)
def test_the_bounds_always_hold_the_truth(p: Array, k: int, target: int, beta: float) -> None:
    one = known(p, k, target % len(p))
    value, mean = truth(p, beta)
    s, _ = one.known_sums(beta)
    low, high = tail_bounds(beta, one)
    assert math.log(s[0] + low[0]) <= value + 1e-8
    assert value <= math.log(s[0] + high[0]) + 1e-8
    least, most = mean_bounds(beta, one)
    assert least[0] <= mean + 1e-6
    assert mean <= most[0] + 1e-6


@pytest.mark.parametrize("beta", [0.2, 0.7, 1.6, 5.0])
def test_the_two_extremal_tails_reach_their_bounds(beta: float) -> None:
    c, n, r = 0.1, 8, 0.25
    top = np.array([0.35, 0.3, c])
    even = np.concatenate([top, np.full(n, r / n)])
    vertex = np.concatenate([top, [c, c, r - 2 * c], np.zeros(n - 3)])
    one = TopK.of([np.log(top[1:])], [math.log(top[0])], vocabulary=n + 3, rounding=0.0)
    tails = [float((tail[tail > 0] ** beta).sum()) for tail in (even[3:], vertex[3:])]
    low, high = tail_bounds(beta, one)
    assert [low[0], high[0]] == pytest.approx(sorted(tails), rel=1e-12)


def test_at_temperature_1_only_the_mean_is_open() -> None:
    p = np.array([0.5, 0.3, 0.1, 0.06, 0.04])
    low, high = tail_bounds(1.0, known(p, 2, 0))
    assert low[0] == pytest.approx(0.2, abs=1e-9)
    assert high[0] == pytest.approx(0.2, abs=1e-9)
    least, most = mean_bounds(1.0, known(p, 2, 0))
    sure = 0.5 * math.log(0.5) + 0.3 * math.log(0.3)
    assert least[0] == pytest.approx(sure + 0.2 * math.log(0.2 / 3), abs=1e-6)
    assert most[0] == pytest.approx(sure + 0.2 * math.log(0.3), abs=1e-6)


def test_where_all_tokens_are_known_nothing_is_open() -> None:
    p = np.array([0.7, 0.2, 0.1])
    for beta in (0.3, 1.0, 3.0):
        value, mean = truth(p, beta)
        s, _ = known(p, 3, 2).known_sums(beta)
        assert math.log(s[0]) == pytest.approx(value, abs=1e-12)
        assert [bound[0] for bound in mean_bounds(beta, known(p, 3, 2))] == pytest.approx(
            [mean] * 2, abs=1e-9
        )


def test_a_target_far_below_the_list_is_known_and_bounds_nothing() -> None:
    one = TopK.of([[math.log(0.6), math.log(0.3)]], [math.log(0.001)], vocabulary=50)
    assert one.others[0] == 47
    assert one.largest[0] == pytest.approx(math.log(0.3))
    assert one.rest[:, 0] == pytest.approx([0.099, 0.099], abs=2e-6)


def world(seed: int, *, n: int = 80, size: int = 2000, temperature: float = 1.4) -> tuple[Array, Array]:
    """Distributions with tails such as a power of the rank, and a target of each drawn at T."""
    rng = np.random.default_rng(seed)
    rank = np.arange(1, size + 1)
    z = -rng.uniform(1.3, 3.0, (n, 1)) * np.log(rank) + rng.normal(0, 0.3, (n, size)) * (rank < 8)
    log_probs = z - logsumexp(z, axis=1, keepdims=True)
    at = log_probs / temperature
    p = np.exp(at - logsumexp(at, axis=1, keepdims=True))
    return log_probs, np.array([rng.choice(size, p=row) for row in p])


def exact_temperature(log_probs: Array, target: Array) -> float:
    def slope(beta: float) -> float:
        p = np.exp(beta * log_probs - logsumexp(beta * log_probs, axis=1, keepdims=True))
        return float((p * log_probs).sum() - target.sum())

    return 1 / brentq(slope, 0.05, 20)


def listed(log_probs: Array, targets: Array, k: int) -> tuple[TopK, Array]:
    top = [[row[i] for i in np.argsort(-row)[:k] if i != y] for row, y in zip(log_probs, targets)]
    own = log_probs[np.arange(len(targets)), targets]
    return TopK.of(top, own, vocabulary=log_probs.shape[1]), own


@pytest.mark.parametrize("seed", range(3))
def test_the_certified_interval_holds_the_optimum_and_shrinks_with_k(seed: int) -> None:
    log_probs, targets = world(seed)
    ones = np.ones(len(targets))
    found = []
    for k in (5, 20, 200):
        one, own = listed(log_probs, targets, k)
        found.append(certified_interval(one, own, ones))
    exact = exact_temperature(log_probs, own)
    assert all(low < exact < high for low, high in found)
    widths = [high - low for low, high in found]
    assert widths[0] > 1.5 * widths[1] > 1.5 * widths[2] > 0


@pytest.mark.parametrize("seed", range(3))
def test_power_law_tails_give_the_optimum_where_tails_are_power_laws(seed: int) -> None:
    log_probs, targets = world(seed)
    one, own = listed(log_probs, targets, 20)
    exact = exact_temperature(log_probs, own)
    assert PowerLaw(one).temperature(own, np.ones(len(own))) == pytest.approx(exact, abs=0.01)


def test_power_law_tails_have_the_mass_that_is_left() -> None:
    log_probs, targets = world(3)
    one, _ = listed(log_probs, targets, 10)
    value, mean, variance = PowerLaw(one).moments(1.0)
    assert value == pytest.approx(0, abs=1e-5)
    p = np.exp(log_probs)
    assert mean == pytest.approx((p * log_probs).sum(1), abs=0.05)
    assert variance == pytest.approx((p * log_probs**2).sum(1) - (p * log_probs).sum(1) ** 2, rel=0.1)


def test_an_optimum_beyond_all_temperatures_is_their_end() -> None:
    sure = TopK.of([[-3.0]] * 4, [math.log(1 - math.exp(-3.0))] * 4, vocabulary=2)
    own = sure.log_probs[:, 0]
    assert PowerLaw(sure).temperature(own, np.ones(4)) == 0.05
    assert certified_interval(sure, own, np.ones(4))[0] == pytest.approx(0.05)
    assert PowerLaw(sure).temperature(np.full(4, -3.0), np.ones(4)) == 20.0
