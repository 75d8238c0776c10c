"""The seven measures against the paper's formulas written out, and what must hold whatever the input."""

from __future__ import annotations

import math
import warnings
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semcal.errors import InputError, UndefinedWarning, UsageError
from semcal.measures import MEASURES, confidence

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


@pytest.mark.parametrize("measure", MEASURES)
@given(questions())
def test_clusters_may_come_in_any_order(measure, question):
    u, labels = question
    forwards = clusters_of(labels)
    a = confidence([forwards], [u], measure=measure)
    b = confidence([forwards[::-1]], [u], measure=measure)
    np.testing.assert_allclose(a.probabilities, b.probabilities[::-1], atol=1e-12)
    assert forwards[a.top_cluster[0]] == forwards[::-1][b.top_cluster[0]]


@pytest.mark.parametrize("measure", MEASURES)
def test_log_likelihoods_of_minus_ten_thousand_give_a_proper_distribution(measure):
    result = confidence([[[0, 3], [1], [2]]], [[-1e4] * 4], measure=measure)
    assert np.isfinite(result.probabilities).all()
    assert result.probabilities.sum() == pytest.approx(1, abs=1e-12)


def test_equal_tiny_likelihoods_leave_the_measures_their_closed_forms():
    results = confidence([[[0, 1], [2]]], [[-1e4] * 3], measure=MEASURES)
    assert results["E-SC"].probabilities.tolist() == [2 / 3, 1 / 3]
    np.testing.assert_allclose(results["L-SC"].probabilities, [2 / 3, 1 / 3])
    np.testing.assert_allclose(results["ML-SC"].probabilities, [0.5, 0.5], atol=1e-11)
    np.testing.assert_allclose(results["IC-SC"].probabilities, [0.5, 0.5], atol=1e-11)
    np.testing.assert_allclose(results["B-SC"].probabilities, [0, 1], atol=1e-12)


def test_nine_likely_draws_against_one_lose_under_the_product_measures():
    clusters, u = [[list(range(9)), [9]]], [[math.log(0.6)] * 10]
    results = confidence(clusters, u, measure=MEASURES)
    assert results["E-SC"].confidence[0] == 0.9
    assert results["B-SC"].probabilities[0] == pytest.approx(0.13, abs=0.005)
    assert results["B-SC"].top_cluster[0] == 1


@given(st.integers(1, 9), st.floats(0.01, 1))
def test_n_equal_draws_of_likelihood_p_score_p_under_ic_sc(n, p):
    u = [math.log(p)] * n + [math.log(0.5)]
    result = confidence([[list(range(n)), [n]]], [u], measure="IC-SC")
    assert result.probabilities[0] == pytest.approx(p / (p + 0.5))


@given(questions())
def test_t_sc_and_g_sc_with_parameter_one_are_b_sc(question):
    u, labels = question
    results = confidence([clusters_of(labels)], [u], t_alpha=1, g_alpha=1, measure=MEASURES)
    for measure in ("T-SC", "G-SC"):
        np.testing.assert_allclose(results[measure].probabilities, results["B-SC"].probabilities, atol=1e-9)


@given(questions())
def test_t_sc_with_a_smaller_parameter_is_sharper(question):
    u, labels = question
    sharp, flat = (
        confidence([clusters_of(labels)], [u], measure="T-SC", t_alpha=a).confidence[0] for a in (0.5, 1.25)
    )
    assert sharp >= flat - 1e-12


@given(questions(st.floats(-8, -1)), st.floats(-0.9, 0.9))
def test_a_factor_on_all_likelihoods_leaves_the_measures_without_products_alone(question, shift):
    u, labels = question
    clusters = [clusters_of(labels)]
    for measure in ("L-SC", "ML-SC", "IC-SC"):
        before = confidence(clusters, [u], measure=measure).probabilities
        after = confidence(clusters, [[x + shift for x in u]], measure=measure).probabilities
        np.testing.assert_allclose(before, after, atol=1e-9)


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


def test_ties_go_to_the_cluster_that_appeared_first_where_likelihoods_are_unknown():
    found = confidence([[[0, 3], [1, 2]], [[1, 2], [0, 3]], [[0, 1], [2]]])
    assert found.top_cluster.tolist() == [0, 1, 0]


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
    with pytest.raises(InputError, match="a number for each cluster"):
        confidence(clusters, ties=[[0, 1], [2, 2, 0]])
    with pytest.raises(UsageError, match="rule for ties"):
        confidence(clusters, u, ties="last")


def test_a_tie_of_draws_of_likelihood_zero_goes_to_the_first():
    found = confidence([[[0], [1], [2, 3]]], [[-math.inf, -math.inf, -1.0, -1.0]])
    assert found.top_cluster.tolist() == [2]
    tied = confidence([[[1], [0], [2]]], [[-math.inf, -1.0, -math.inf]])
    assert tied.top_cluster.tolist() == [0]


def test_rounding_does_not_decide_a_tie():
    # The same likelihoods summed in two orders: 0.1 + 0.2 + 0.3 against 0.3 + 0.2 + 0.1.
    u = np.log([0.1, 0.3, 0.2, 0.2, 0.3, 0.1]).tolist()
    for measure in MEASURES:
        assert confidence([[[0, 2, 4], [1, 3, 5]]], [u], measure=measure).top_cluster[0] == 0


def test_questions_are_independent_of_each_other():
    rng = np.random.default_rng(3)
    clusters, u = [], []
    for _ in range(30):
        m = rng.integers(1, 12)
        clusters.append(clusters_of(rng.integers(0, 4, m)))
        u.append(rng.normal(-1, 1, m).clip(max=0).tolist())
    together = confidence(clusters, u, measure=MEASURES)
    for q in range(30):
        alone = confidence(clusters[q : q + 1], u[q : q + 1], measure=MEASURES)
        for measure in MEASURES:
            np.testing.assert_allclose(
                together[measure].per_question()[q], alone[measure].probabilities, atol=1e-14
            )
            assert together[measure].top_cluster[q] == alone[measure].top_cluster[0]


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


class TestLikelihoodZero:
    clusters = ((0, 1), (2,))

    def result(self, measure, u):
        return confidence([self.clusters], [u], measure=measure).probabilities.tolist()

    def test_e_sc_counts_the_draw(self):
        assert self.result("E-SC", [-1, -math.inf, -1]) == [2 / 3, 1 / 3]

    def test_sums_and_entropy_pass_over_it(self):
        assert self.result("L-SC", [-1, -math.inf, -1]) == pytest.approx([0.5, 0.5])
        assert self.result("ML-SC", [-1, -math.inf, -1]) == pytest.approx([1 / 3, 2 / 3])
        assert self.result("IC-SC", [-1, -math.inf, -1]) == pytest.approx([0.5, 0.5])

    @pytest.mark.parametrize("measure", ["B-SC", "T-SC", "G-SC"])
    def test_a_product_with_it_is_zero(self, measure):
        assert self.result(measure, [-1, -math.inf, -1]) == [0.0, 1.0]

    @pytest.mark.parametrize("measure", ["L-SC", "ML-SC", "IC-SC"])
    def test_a_cluster_of_nothing_else_is_impossible(self, measure):
        assert self.result(measure, [-1, -2, -math.inf]) == [1.0, 0.0]

    @pytest.mark.parametrize("measure", ["B-SC", "T-SC", "G-SC"])
    def test_a_measure_without_any_possible_cluster_is_null_and_says_where(self, measure):
        u = [[-1, -1], [-1, -math.inf, -math.inf], [-1, -2]]
        clusters = [[[0], [1]], [[0, 1], [2]], [[0, 1]]]
        with pytest.warns(UndefinedWarning, match=rf"{measure} is null for 1 question.*id 'why'"):
            result = confidence(clusters, u, measure=measure, ids=["who", "why", "when"])
        assert result.top_cluster.tolist() == [0, -1, 0]
        np.testing.assert_array_equal(np.isnan(result.confidence), [False, True, False])
        np.testing.assert_array_equal(np.isnan(result.entropy), [False, True, False])
        np.testing.assert_array_equal(np.isnan(result.probabilities), [False, False, True, True, False])

    def test_all_draws_of_likelihood_zero_are_an_error(self):
        with pytest.raises(InputError, match=r"question 1 \(id 'b'\) has log-likelihood -inf for every draw"):
            confidence([[[0]], [[0], [1]]], [[-1], [-math.inf] * 2], measure="E-SC", ids=["a", "b"])

    def test_nothing_else_warns(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for measure in ("E-SC", "L-SC", "ML-SC", "IC-SC"):
                self.result(measure, [-math.inf, -math.inf, -1])


class TestRefusals:
    @pytest.mark.parametrize("value", [math.nan, 0.1, 2e-6, math.inf])
    def test_a_log_likelihood_that_is_none(self, value):
        with pytest.raises(InputError, match="question 1 has log-likelihood"):
            confidence([[[0]], [[0, 1]]], [[-1], [-1, value]], measure="L-SC")

    def test_a_rounding_error_above_zero_is_fine(self):
        assert confidence([[[0], [1]]], [[1e-6, 0.0]], measure="L-SC").confidence[0] == pytest.approx(0.5)

    @pytest.mark.parametrize(
        ("clusters", "message"),
        [
            ([[[0], [0, 1]]], "draw in two clusters"),
            ([[[0], [2]]], "outside 0..m-1"),
            ([[[0], [-1]]], "outside 0..m-1"),
            ([[[0], []]], "empty cluster"),
            ([[]], "has no clusters"),
        ],
    )
    def test_clusters_that_are_no_partition(self, clusters, message):
        with pytest.raises(InputError, match=f"question 1 .*{message}"):
            confidence([[[0]], *clusters])

    def test_the_clusters_of_one_question_without_its_brackets(self):
        with pytest.raises(InputError, match=r"write \[clusters\]"):
            confidence([[0, 1], [2]])

    def test_numbers_of_log_likelihoods_that_do_not_fit(self):
        with pytest.raises(InputError, match="question 1 has 1 log-likelihoods and 2 draws"):
            confidence([[[0]], [[0, 1]]], [[-1], [-1]], measure="L-SC")
        with pytest.raises(InputError, match="for 1 questions and draws for 2"):
            confidence([[[0]], [[0, 1]]], [[-1]], measure="L-SC")

    def test_a_missing_log_likelihood(self):
        with pytest.raises(InputError, match="question 0 has log-likelihood nan"):
            confidence([[[0, 1]]], [[-1, None]], measure="L-SC")

    def test_log_likelihoods_that_are_no_lists_of_numbers(self):
        for wrong in ([-1.0], [["a"]]):
            with pytest.raises(InputError, match="one list of numbers a question"):
                confidence([[[0]]], wrong, measure="L-SC")

    def test_ids_of_other_questions(self):
        with pytest.raises(InputError, match="ids names 2 questions"):
            confidence([[[0]]], ids=["a", "b"])

    def test_a_measure_that_does_not_exist_or_needs_what_is_missing(self):
        with pytest.raises(UsageError, match="unknown measure 'X-SC'"):
            confidence([[[0]]], measure="X-SC")
        with pytest.raises(UsageError, match="L-SC needs log_likelihoods"):
            confidence([[[0]]], measure="L-SC")

    @pytest.mark.parametrize("option", ["t_alpha", "g_alpha"])
    @pytest.mark.parametrize("value", [0, -1, math.inf, math.nan])
    def test_a_parameter_that_is_not_positive(self, option, value):
        with pytest.raises(UsageError, match=option):
            confidence([[[0]]], [[-1]], measure="B-SC", **{option: value})


@pytest.mark.parametrize("bad", [0.5, math.nan, math.inf])
def test_a_draw_index_that_is_no_whole_number_is_an_error(bad) -> None:
    with pytest.raises(InputError, match=r"question 1 has a draw index"):
        confidence([[[0, 1]], [[0, bad]]], measure="E-SC")


def test_a_question_of_one_meaning_has_entropy_zero_without_a_sign() -> None:
    entropy = confidence([[[0, 1]]], measure="E-SC").entropy
    assert math.copysign(1.0, entropy[0]) == 1.0
