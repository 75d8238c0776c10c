"""The pair generator of the Atlas NLI model."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest

from semcal.text.normal_form import normal_form
from tools.atlas.nli_pairs import (
    CONTRADICTION,
    ENTAILMENT,
    KINDS,
    NEUTRAL,
    fresh_names,
    garbled,
    is_held_out,
    pairs,
)

LABELS_OF_KIND = {
    "paraphrase": (ENTAILMENT, ENTAILMENT),
    "more specific": (ENTAILMENT, NEUTRAL),
    "different": (CONTRADICTION, CONTRADICTION),
    "near miss": (CONTRADICTION, CONTRADICTION),
    "number forms": (ENTAILMENT, ENTAILMENT),
    "number differs": (CONTRADICTION, CONTRADICTION),
    "wrong type": (CONTRADICTION, CONTRADICTION),
    "refusal": (NEUTRAL, NEUTRAL),
}


def test_a_seed_gives_the_same_pairs_again_and_another_seed_others():
    first, again, other = (list(islice(pairs(seed), 50)) for seed in (3, 3, 4))
    assert first == again
    assert len(set(first) & set(other)) == 0


def test_every_kind_occurs_and_the_shares_add_up_to_one():
    assert {pair.kind for pair in islice(pairs(0), 600)} == set(KINDS)
    assert sum(kind.share for kind in KINDS.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_has_its_labels_and_two_different_normal_forms(kind):
    for pair in islice(pairs(1, kind=kind), 40):
        assert sorted((pair.forward, pair.backward)) == sorted(LABELS_OF_KIND[kind])
        assert pair.first != pair.second
        assert (normal_form(pair.first), normal_form(pair.second)) == (pair.first, pair.second)
        assert pair.question.endswith("?")


def test_a_pair_is_equivalent_only_if_both_directions_are_entailment():
    assert all(pair.equivalent for pair in islice(pairs(2, kind="paraphrase"), 20))
    assert not any(pair.equivalent for pair in islice(pairs(2, kind="more specific"), 20))


def test_reversing_swaps_answers_and_labels_and_twice_is_nothing():
    pair = next(pairs(5, kind="more specific"))
    swapped = pair.reversed()
    assert (swapped.first, swapped.second) == (pair.second, pair.first)
    assert (swapped.forward, swapped.backward) == (pair.backward, pair.forward)
    assert swapped.reversed() == pair


def test_the_town_with_its_country_entails_the_country_and_not_the_other_way_round():
    towns = [pair for pair in islice(pairs(6, kind="more specific"), 60) if pair.question.startswith("Where")]
    for pair in towns:
        whole = pair if pair.forward == ENTAILMENT else pair.reversed()
        assert whole.first.endswith(f" {whole.second}")
    assert len(towns) >= 5


@pytest.mark.parametrize("held_out", [True, False])
def test_pools_of_names_keep_to_their_share(held_out):
    pool = fresh_names(Random(7), held_out=held_out)
    words = [place.name for place in pool.towns] + [place.country for place in pool.towns]
    words += [word for person in pool.people for word in person.name.split()]
    assert len(words) > 300
    assert {is_held_out(word) for word in words} == {held_out}


def test_a_garbled_name_is_never_the_name_and_keeps_some_letters():
    rng = Random(8)
    spoilt = [garbled(rng, "Toreth", "Kelmaria") for _ in range(300)]
    assert "Toreth" not in spoilt
    assert all(len(name) >= 2 and name[0].isupper() for name in spoilt)
    assert len(set(spoilt)) > 80


def test_near_misses_share_letters_far_more_often_than_different_answers():
    def shared(kind: str) -> float:
        found = [len(set(p.first.split()) & set(p.second.split())) for p in islice(pairs(9, kind=kind), 200)]
        return sum(count > 0 for count in found) / len(found)

    assert shared("near miss") > 0.45
    assert shared("different") < 0.25
