"""Entropies against their definitions written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import entr
from scipy.stats import entropy as scipy_entropy

from semcal.errors import InputError
from semcal.measures import (
    confidence,
    number_of_clusters,
    predictive_entropy,
    semantic_entropy_monte_carlo,
    semantic_entropy_rao_blackwell,
)
from semcal.measures import (
    formulas as measures,
)

CLUSTERS = [[[0, 2], [1]], [[0]], [[0], [1], [2, 3]]]
SEQUENCES = [[-1.0, -2.5, -0.3], [-4.0], [-3.0, -2.0, -9.0, -1.0]]


def probabilities(clusters, log_likelihoods):
    """Share of the sampled probability mass in each cluster."""
    mass = [sum(math.exp(log_likelihoods[i]) for i in members) for members in clusters]
    return [x / sum(mass) for x in mass]


def test_terms_of_entropies_are_scipys_to_the_bit():
    p = np.append(10 ** np.random.default_rng(0).uniform(-320, 0, 4000), [0.0, 1.0, np.nan])
    np.testing.assert_array_equal(measures._entropy_terms(p), entr(p))


def test_semantic_entropy_of_a_measure_is_the_shannon_entropy_of_its_distribution():
    for measure in ("E-SC", "L-SC", "G-SC"):
        result = confidence(CLUSTERS, SEQUENCES, measure=measure)
        expected = [scipy_entropy(p) for p in result.per_question()]
        np.testing.assert_allclose(result.entropy, expected, atol=1e-12)


def test_rao_blackwell_weighs_log_probabilities_by_probabilities():
    expected = [
        -sum(p * math.log(p) for p in probabilities(c, u)) for c, u in zip(CLUSTERS, SEQUENCES, strict=True)
    ]
    np.testing.assert_allclose(semantic_entropy_rao_blackwell(CLUSTERS, SEQUENCES), expected, atol=1e-12)


def test_monte_carlo_averages_over_draws():
    expected = []
    for clusters, u in zip(CLUSTERS, SEQUENCES, strict=True):
        p = probabilities(clusters, u)
        of_draw = {i: p[c] for c, members in enumerate(clusters) for i in members}
        expected.append(-sum(math.log(of_draw[i]) for i in range(len(u))) / len(u))
    np.testing.assert_allclose(semantic_entropy_monte_carlo(CLUSTERS, SEQUENCES), expected, atol=1e-12)


def test_the_two_estimates_agree_when_frequencies_are_probabilities():
    clusters, u = [[[0, 1, 2], [3]]], [[-2.0] * 4]
    both = semantic_entropy_monte_carlo(clusters, u), semantic_entropy_rao_blackwell(clusters, u)
    assert both[0][0] == pytest.approx(both[1][0]) == pytest.approx(scipy_entropy([3, 1]))


def test_sequence_log_likelihoods_of_minus_ten_thousand_do_no_harm():
    u = [[-1e4, -1e4, -1.1e4]]
    assert semantic_entropy_rao_blackwell([[[0], [1, 2]]], u)[0] == pytest.approx(math.log(2))
    assert semantic_entropy_monte_carlo([[[0, 1], [2]]], u)[0] == pytest.approx((1000 + math.log(2)) / 3)


def test_a_cluster_of_likelihood_zero_has_infinite_monte_carlo_surprise_and_adds_nothing_to_the_other():
    u = [[-1.0, -math.inf]]
    assert semantic_entropy_monte_carlo([[[0], [1]]], u)[0] == math.inf
    assert semantic_entropy_rao_blackwell([[[0], [1]]], u)[0] == 0


@given(st.lists(st.floats(-50, 0), min_size=1, max_size=9))
def test_predictive_entropy_is_minus_the_mean_log_likelihood(u):
    assert predictive_entropy([u])[0] == pytest.approx(-np.mean(u), abs=1e-12)
    lengths = list(range(1, len(u) + 1))
    unnormalised = -np.mean([x * n for x, n in zip(u, lengths)])
    assert predictive_entropy([u], lengths=[lengths])[0] == pytest.approx(unnormalised, abs=1e-9)


def test_predictive_entropy_with_a_draw_of_likelihood_zero_is_infinite():
    assert predictive_entropy([[-1.0, -math.inf], [-2.0]]).tolist() == [math.inf, 2.0]


def test_predictive_entropy_refuses_lengths_that_do_not_fit():
    with pytest.raises(InputError, match=r"question 1 \(id 'b'\) has a length below 1"):
        predictive_entropy([[-1.0], [-1.0]], lengths=[[1], [0]], ids=["a", "b"])
    with pytest.raises(InputError, match="question 0 has 2 lengths and 1 draws"):
        predictive_entropy([[-1.0]], lengths=[[1, 1]])
    with pytest.raises(InputError, match="question 1 has no log-likelihoods"):
        predictive_entropy([[-1.0], []])


def test_number_of_clusters_counts_meanings():
    assert number_of_clusters(CLUSTERS).tolist() == [2, 1, 3]


def test_no_questions_give_no_entropies():
    assert len(predictive_entropy([])) == len(number_of_clusters([])) == 0
    assert len(semantic_entropy_monte_carlo([], [])) == len(semantic_entropy_rao_blackwell([], [])) == 0
