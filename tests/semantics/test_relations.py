"""Clusters of a relation: what a partition must be, and how the two rules differ."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semcal.errors import InputError
from semcal.semantics import components, greedy


@st.composite
def relations(draw):
    """A symmetric relation on up to 7 answers."""
    n = draw(st.integers(1, 7))
    pairs = draw(st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=8))
    related = np.eye(n, dtype=bool)
    for i, j in pairs:
        related[i, j] = related[j, i] = True
    return related


def reachable(related):
    """Components by repeated squaring of the relation."""
    closure = related | np.eye(len(related), dtype=bool)
    for _ in range(len(related)):
        closure = closure @ closure
    return sorted({tuple(np.flatnonzero(row).tolist()) for row in closure})


@given(relations())
def test_components_are_what_can_be_reached(related):
    assert [tuple(c) for c in components(related)] == reachable(related)


@pytest.mark.parametrize("rule", [components, greedy])
@given(relations())
def test_both_rules_give_a_partition_in_order_of_first_appearance(rule, related):
    clusters = rule(related)
    assert sorted(i for c in clusters for i in c) == list(range(len(related)))
    assert all(c == sorted(c) for c in clusters)
    assert [c[0] for c in clusters] == sorted(c[0] for c in clusters)


@given(relations())
def test_greedy_clusters_refine_components(related):
    home = {i: c for c, members in enumerate(components(related)) for i in members}
    assert all(len({home[i] for i in cluster}) == 1 for cluster in greedy(related))


@given(relations())
def test_greedy_members_are_equivalent_to_the_first_of_their_cluster_and_to_no_earlier_first(related):
    clusters = greedy(related)
    for k, cluster in enumerate(clusters):
        for i in cluster[1:]:
            assert related[i, cluster[0]]
        for i in cluster:
            assert not any(related[i, earlier[0]] for earlier in clusters[:k])


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_the_rules_agree_on_a_true_equivalence(labels):
    related = np.equal.outer(labels, labels)
    assert components(related) == greedy(related)


def test_the_diagonal_plays_no_part():
    assert components(np.zeros((2, 2), bool)) == greedy(np.zeros((2, 2), bool)) == [[0], [1]]


def test_no_answers_make_no_clusters():
    assert components(np.zeros((0, 0), bool)) == greedy([]) == []


@pytest.mark.parametrize("rule", [components, greedy])
def test_a_relation_that_holds_one_way_only_is_refused(rule):
    with pytest.raises(InputError, match=r"related\[0, 1\] is true and related\[1, 0\] is false"):
        rule([[1, 1], [0, 1]])
    with pytest.raises(InputError, match="square"):
        rule([[1, 1, 0]])
