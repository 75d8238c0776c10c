"""The seven measures against the paper's formulas written out, and what must hold whatever the input."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy as scipy_entropy

from semcal.errors import InputError, UndefinedWarning, UsageError
from semcal.measures import (
    MEASURES,
    confidence,
    number_of_clusters,
    predictive_entropy,
    semantic_entropy_monte_carlo,
    semantic_entropy_rao_blackwell,
)
from semcal.measures.formulas import complete

ALPHAS = {"t_alpha": 0.75, "g_alpha": 1.25}


def clusters_of(labels):
    """Draws of each label, in order of first appearance."""
    members = {}
    for draw, label in enumerate(labels):
        members.setdefault(label, []).append(draw)
    return list(members.values())


def paper_score(measure, likelihoods, m, alpha):
    """The unnormalised score of one cluster, in likelihoods and products as the paper writes it."""
    n, s = len(likelihoods), sum(likelihoods)
    product = math.prod(likelihoods)
    if measure == "E-SC":
        return n
    if measure == "L-SC":
        return s
    if measure == "ML-SC":
        return s / n
    if measure == "B-SC":
        return product * n / m
    if measure == "T-SC":
        return (product * n / m) ** (1 / alpha["t_alpha"])
    if measure == "IC-SC":
        entropy = -sum(p / s * math.log(p / s) for p in likelihoods if p > 0)
        return s * math.exp(-entropy)
    energy = -math.log(product) if product > 0 else math.inf
    return n / m * math.exp(-alpha["g_alpha"] * energy)


def paper_distribution(measure, log_likelihoods, clusters, alpha=ALPHAS):
    """The paper's distribution over the clusters of one question."""
    likelihood = [math.exp(u) for u in log_likelihoods]
    scores = [paper_score(measure, [likelihood[i] for i in c], len(likelihood), alpha) for c in clusters]
    return [score / sum(scores) for score in scores]


MODERATE = st.floats(-8, 0)


def questions(values=MODERATE):
    """A question: its draws' log-likelihoods and the label of each."""
    return st.integers(1, 8).flatmap(
        lambda m: st.tuples(
            st.lists(values, min_size=m, max_size=m),
            st.lists(st.integers(0, 3), min_size=m, max_size=m),
        )
    )


@given(st.lists(questions(), min_size=1, max_size=5))
def test_every_measure_is_the_papers_formula_on_ragged_questions(sets):
    clusters = [clusters_of(labels) for _, labels in sets]
    log_likelihoods = [u for u, _ in sets]
    results = confidence(clusters, log_likelihoods, **ALPHAS, measure=MEASURES)
    assert tuple(results) == tuple(MEASURES)
    for measure, result in results.items():
        for got, u, c in zip(result.per_question(), log_likelihoods, clusters):
            np.testing.assert_allclose(got, paper_distribution(measure, u, c), rtol=1e-9, atol=1e-12)


@given(st.lists(questions(st.floats(-1e4, 0)), min_size=1, max_size=4))
def test_every_distribution_sums_to_one_with_entropy_between_zero_and_log_k(sets):
    clusters = [clusters_of(labels) for _, labels in sets]
    for result in confidence(clusters, [u for u, _ in sets], measure=MEASURES).values():
        for p, entropy, top in zip(result.per_question(), result.entropy, result.confidence):
            assert p.sum() == pytest.approx(1, abs=1e-12)
            assert 0 <= entropy <= math.log(len(p)) + 1e-12
            assert top == p.max() >= 1 / len(p) - 1e-12


@given(questions(), st.randoms(use_true_random=False))
def test_the_order_of_draws_and_the_names_of_clusters_play_no_part(question, random):
    u, labels = question
    order = list(range(len(u)))
    random.shuffle(order)
    shuffled = clusters_of([labels[i] for i in order])
    before = confidence([clusters_of(labels)], [u], measure=MEASURES)
    after = confidence([shuffled], [[u[i] for i in order]], measure=MEASURES)
    for measure in MEASURES:
        probability = {
            frozenset(order[i] for i in c): p for c, p in zip(shuffled, after[measure].probabilities)
        }
        for members, p in zip(clusters_of(labels), before[measure].probabilities):
            assert probability[frozenset(members)] == pytest.approx(p, abs=1e-9)


def test_equal_tiny_likelihoods_leave_the_measures_their_closed_forms():
    results = confidence([[[0, 1], [2]]], [[-1e4] * 3], measure=MEASURES)
    assert results["E-SC"].probabilities.tolist() == [2 / 3, 1 / 3]
    np.testing.assert_allclose(results["L-SC"].probabilities, [2 / 3, 1 / 3])
    np.testing.assert_allclose(results["ML-SC"].probabilities, [0.5, 0.5], atol=1e-11)
    np.testing.assert_allclose(results["IC-SC"].probabilities, [0.5, 0.5], atol=1e-11)
    np.testing.assert_allclose(results["B-SC"].probabilities, [0, 1], atol=1e-12)


@pytest.mark.parametrize("measure", MEASURES)
@given(st.lists(st.floats(-1e4, 0), min_size=1, max_size=9))
def test_one_cluster_has_confidence_one_and_entropy_zero(measure, u):
    result = confidence([[list(range(len(u)))]], [u], measure=measure)
    assert (result.confidence[0], result.top_cluster[0], result.entropy[0]) == (1.0, 0, 0.0)


def test_equal_counts_give_equal_confidence_to_the_last_bit():
    ways = [[3, 7], [3, 4, 3], [3] + [1] * 7, [1, 3, 3, 3]]
    clusters = []
    for sizes in ways:
        ends = np.cumsum([0, *sizes])
        clusters.append([list(range(a, b)) for a, b in pairwise(ends)])
    probabilities = confidence(clusters).per_question()
    assert {p for distribution in probabilities for p in distribution if abs(p - 0.3) < 1e-9} == {0.3}


def literal_winner(measure, clusters, u):
    """The tied cluster of the largest sum of likelihoods, the first of equal ones."""
    p = confidence([clusters], [u], measure=measure).probabilities
    tied = [k for k in range(len(clusters)) if p[k] >= max(p) - 1e-9]
    sums = {k: math.fsum(math.exp(u[i]) for i in clusters[k]) for k in tied}
    equal = [k for k in tied if sums[k] >= max(sums.values()) * (1 - 1e-6)]
    return min(equal, key=lambda k: min(clusters[k]))


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([-0.5, -1.0, -2.0, -2.0 - 1e-9])), min_size=1))
def test_ties_go_to_the_cluster_whose_draws_are_likelier_together(draws):
    labels, u = zip(*draws)
    clusters = clusters_of(labels)[::-1]
    found = confidence([clusters, [[0]]], [list(u), [-1.0]], measure=MEASURES)
    for measure in MEASURES:
        assert found[measure].top_cluster[0] == literal_winner(measure, clusters, u)


def test_ties_are_settled_by_the_first_or_by_numbers_where_that_is_asked_for():
    clusters, u = [[[0], [1], [2]]] * 2, [[-2.0, -1.0, -3.0]] * 2
    assert confidence(clusters, u).top_cluster.tolist() == [1, 1]
    assert confidence(clusters, u, ties="first").top_cluster.tolist() == [0, 0]
    found = confidence(clusters, ties=[[0, 1, 4], [2, 2, 0]])
    assert found.top_cluster.tolist() == [2, 0]
    assert confidence([[[0, 3], [1, 2]], [[1, 2], [0, 3]]]).top_cluster.tolist() == [0, 1]
    with pytest.raises(InputError, match="cluster"):
        confidence(clusters, ties=[[0, 1], [2, 2, 0]])
    with pytest.raises(UsageError, match="ties"):
        confidence(clusters, u, ties="last")


def test_a_tie_of_draws_of_likelihood_zero_goes_to_the_first():
    found = confidence([[[0], [1], [2, 3]]], [[-math.inf, -math.inf, -1.0, -1.0]])
    assert found.top_cluster.tolist() == [2]
    tied = confidence([[[1], [0], [2]]], [[-math.inf, -1.0, -math.inf]])
    assert tied.top_cluster.tolist() == [0]


def test_a_matrix_of_log_likelihoods_will_do_and_stays_as_it_is():
    u = np.log([[0.5, 0.2], [0.3, 0.3]])
    before = u.copy()
    result = confidence([[[0], [1]], [[0, 1]]], u, measure="L-SC")
    np.testing.assert_allclose(result.probabilities, [5 / 7, 2 / 7, 1])
    np.testing.assert_array_equal(u, before)


def test_no_questions_give_empty_results():
    for result in confidence([], [], measure=MEASURES).values():
        assert len(result.confidence) == len(result.probabilities) == 0
        assert result.per_question() == []


# ---- Samples of likelihood 0, and refusals

ONE_OF_TWO, ALL_OF_ONE = [-1, -math.inf, -1], [-1, -2, -math.inf]  # of the clusters (0, 1) and (2)


@pytest.mark.parametrize(
    ("measure", "u", "expected"),
    [
        ("E-SC", ONE_OF_TWO, [2 / 3, 1 / 3]),
        ("L-SC", ONE_OF_TWO, [0.5, 0.5]),
        ("ML-SC", ONE_OF_TWO, [1 / 3, 2 / 3]),
        ("IC-SC", ONE_OF_TWO, [0.5, 0.5]),
        *((measure, ONE_OF_TWO, [0, 1]) for measure in ("B-SC", "T-SC", "G-SC")),
        *((measure, ALL_OF_ONE, [1, 0]) for measure in ("L-SC", "ML-SC", "IC-SC")),
    ],
)
def test_a_draw_of_likelihood_zero_counts_adds_nothing_to_sums_and_makes_products_zero(measure, u, expected):
    found = confidence([[[0, 1], [2]]], [u], measure=measure).probabilities
    assert found.tolist() == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("measure", ["B-SC", "T-SC", "G-SC"])
def test_a_measure_without_any_possible_cluster_is_null_and_says_where(measure):
    u = [[-1, -1], [-1, -math.inf, -math.inf], [-1, -2]]
    clusters = [[[0], [1]], [[0, 1], [2]], [[0, 1]]]
    with pytest.warns(UndefinedWarning, match=rf"{measure} .*'why'"):
        result = confidence(clusters, u, measure=measure, ids=["who", "why", "when"])
    assert result.top_cluster.tolist() == [0, -1, 0]
    np.testing.assert_array_equal(np.isnan(result.confidence), [False, True, False])
    np.testing.assert_array_equal(np.isnan(result.entropy), [False, True, False])
    np.testing.assert_array_equal(np.isnan(result.probabilities), [False, False, True, True, False])


def test_a_rounding_error_above_zero_is_fine():
    assert confidence([[[0], [1]]], [[1e-6, 0.0]], measure="L-SC").confidence[0] == pytest.approx(0.5)


TWO = [[[0]], [[0, 1]]]
#: Clusters, log-likelihoods, options, and a part of the message of an InputError.
INPUTS = [
    *((TWO, [[-1], [-1, value]], {}, "question 1") for value in (math.nan, 0.1, 2e-6, math.inf)),
    *(
        ([[[0]], clusters], None, {"measure": "E-SC"}, "clusters: question 1 ")
        for clusters in (
            [[0], [0, 1]],
            [[0], [2]],
            [[0], [-1]],
            [[0], []],
            [],
            *([[0, index]] for index in (0.5, math.nan, math.inf)),
        )
    ),
    (TWO, [[-1], [-1]], {}, "question 1 has 1"),
    (TWO, [[-1]], {}, "log_likelihoods"),
    (TWO, [[-1], [-1, None]], {}, "question 1 "),
    (TWO, [-1.0, -1.0], {}, "question"),
    (TWO, [["a"], [-1, -1]], {}, "question"),
    ([[[0]], [[0], [1]]], [[-1], [-math.inf] * 2], {"measure": "E-SC", "ids": ["a", "b"]}, r"'b'.*-inf"),
    ([[[0]]], None, {"measure": "E-SC", "ids": ["a", "b"]}, "ids"),
    ([[0, 1], [2]], None, {"measure": "E-SC"}, "clusters"),
]
#: Log-likelihoods, options, and a part of the message of a UsageError.
OPTIONS = [
    (None, {"measure": "X-SC"}, "'X-SC'"),
    (None, {"measure": "L-SC"}, "log_likelihoods"),
    *(
        ([[-1]], {"measure": "B-SC", option: value}, option)
        for option in ("t_alpha", "g_alpha")
        for value in (0, -1, math.inf, math.nan)
    ),
]


@pytest.mark.parametrize(("clusters", "log_likelihoods", "options", "named"), INPUTS)
def test_input_that_cannot_be_used_is_refused_by_name(clusters, log_likelihoods, options, named):
    with pytest.raises(InputError, match=named):
        confidence(clusters, log_likelihoods, **{"measure": "L-SC"} | options)


@pytest.mark.parametrize(("log_likelihoods", "options", "named"), OPTIONS)
def test_measures_and_parameters_that_make_no_sense_are_refused_by_name(log_likelihoods, options, named):
    with pytest.raises(UsageError, match=named):
        confidence([[[0]]], log_likelihoods, **options)


def test_a_question_of_one_meaning_has_entropy_zero_without_a_sign() -> None:
    entropy = confidence([[[0, 1]]], measure="E-SC").entropy
    assert math.copysign(1.0, entropy[0]) == 1.0


# ---- Entropies


CLUSTERS = [[[0, 2], [1]], [[0]], [[0], [1], [2, 3]]]
SEQUENCES = [[-1.0, -2.5, -0.3], [-4.0], [-3.0, -2.0, -9.0, -1.0]]


def probabilities(clusters, log_likelihoods):
    """Share of the sampled probability mass in each cluster."""
    mass = [sum(math.exp(log_likelihoods[i]) for i in members) for members in clusters]
    return [x / sum(mass) for x in mass]


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


def test_a_draw_of_likelihood_zero_and_no_questions_have_a_rule():
    assert predictive_entropy([[-1.0, -math.inf], [-2.0]]).tolist() == [math.inf, 2.0]
    assert number_of_clusters(CLUSTERS).tolist() == [2, 1, 3]
    assert len(predictive_entropy([])) == len(number_of_clusters([])) == 0
    assert len(semantic_entropy_monte_carlo([], [])) == len(semantic_entropy_rao_blackwell([], [])) == 0


def test_predictive_entropy_refuses_lengths_that_do_not_fit():
    with pytest.raises(InputError, match=r"'b'.*length"):
        predictive_entropy([[-1.0], [-1.0]], lengths=[[1], [0]], ids=["a", "b"])
    with pytest.raises(InputError, match="question 0 has 2"):
        predictive_entropy([[-1.0]], lengths=[[1, 1]])
    with pytest.raises(InputError, match="question 1"):
        predictive_entropy([[-1.0], []])


# ---- Complete linkage --------------------------------------------------------------------------------------


@st.composite
def relations(draw):
    """A symmetric relation on up to 7 answers."""
    n = draw(st.integers(0, 7))
    pairs = draw(st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=8)) if n else ()
    related = np.eye(n, dtype=bool)
    for i, j in pairs:
        related[i, j] = related[j, i] = True
    return related


def by_the_surest_pair(related):
    """Of the pairs between clusters all of whose pairs are equivalent merge along the surest; repeat."""
    n = len(related)
    near = [{i} | {j for j in range(n) if related[i, j]} for i in range(n)]

    def sureness(i, j):
        return Fraction(len(near[i] & near[j]), len(near[i] | near[j])), -i, -j

    clusters = [[i] for i in range(n)]
    while mergeable := [
        (max(sureness(*sorted(pair)) for pair in product(a, b)), a, b)
        for a, b in combinations(clusters, 2)
        if all(related[i, j] for i, j in product(a, b))
    ]:
        _, a, b = max(mergeable)
        clusters = [c for c in clusters if c not in (a, b)] + [sorted(a + b)]
    return sorted(clusters)


@given(relations())
def test_complete_clusters_are_those_of_merging_the_surest_pair_again_and_again(related):
    assert complete(related) == by_the_surest_pair(related)
