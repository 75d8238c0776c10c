"""Clusters of a relation: what a partition must be, and how the three rules differ."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semcal.errors import InputError
from semcal.measures import complete, components, greedy

RULES = [components, greedy, complete]


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


@pytest.mark.parametrize("rule", RULES)
@given(relations())
def test_all_rules_give_a_partition_in_order_of_first_appearance(rule, related):
    clusters = rule(related)
    assert sorted(i for c in clusters for i in c) == list(range(len(related)))
    assert all(c == sorted(c) for c in clusters)
    assert [c[0] for c in clusters] == sorted(c[0] for c in clusters)


@given(relations())
def test_greedy_members_are_equivalent_to_the_first_of_their_cluster_and_to_no_earlier_first(related):
    clusters = greedy(related)
    for k, cluster in enumerate(clusters):
        for i in cluster[1:]:
            assert related[i, cluster[0]]
        for i in cluster:
            assert not any(related[i, earlier[0]] for earlier in clusters[:k])


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


@pytest.mark.parametrize("rule", RULES)
def test_the_diagonal_plays_no_part(rule):
    assert rule(np.zeros((2, 2), bool)) == [[0], [1]]
    assert rule(np.zeros((0, 0), bool)) == rule([]) == []


@pytest.mark.parametrize("rule", RULES)
def test_a_relation_that_holds_one_way_only_is_refused(rule):
    with pytest.raises(InputError, match=r"related\[0, 1\]"):
        rule([[1, 1], [0, 1]])
    with pytest.raises(InputError, match="square"):
        rule([[1, 1, 0]])
