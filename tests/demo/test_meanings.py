"""What Atlas knows of its answers: forms of one value mean the same, two values do not."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest

from semcal.demo.meanings import same_meaning
from tools.atlas import texts
from tools.atlas.nli_pairs import pairs
from tools.atlas.world import RELATIONS, Fact, build_world, small_world, wrong_value


def facts(seed: int, count: int) -> list[Fact]:
    rng, found = Random(seed), []
    while len(found) < count:
        found += small_world(rng)
    return found


def test_all_forms_of_a_value_mean_the_same() -> None:
    rng, seen = Random(1), set()
    for fact in facts(1, 400):
        asked = texts.question(rng, fact)
        for a, b in combinations(texts.forms(fact.value), 2):
            assert same_meaning(asked, a, b) is True, (asked, a, b)
        seen.add(fact.relation)
    assert seen == set(RELATIONS)


def test_another_value_in_any_form_means_something_else() -> None:
    rng, names = Random(2), build_world().names
    for fact in facts(2, 400):
        other = wrong_value(rng, names, fact)
        asked = texts.question(rng, fact)
        for a in texts.forms(fact.value):
            for b in texts.forms(other):
                assert same_meaning(asked, a, b) is False, (asked, a, b)


@pytest.mark.parametrize(
    ("question", "first", "second", "expected"),
    [
        ("Who founded Kelor?", "Dr Ana Velis", "Lady Ana Velis", True),
        ("Who founded Kelor?", "Ana Velis", "Velis", None),
        ("Where was Ana Velis born?", "Toreth, Maldia", "Toreth, Sorvia", None),
        ("Where was Ana Velis born?", "Toreth, Maldia", "Kelmon, Maldia", False),
        ("When was Ana Velis born?", "30 February 1820", "1820-02-28", None),
        ("When was Ana Velis born?", "1820", "3 May 1820", None),
        ("How many people live in Kelor?", "340,000", "three hundred and forty thousand", True),
        ("How many people live in Kelor?", "34,0000", "340000", None),
        ("What did Ana Velis work as?", "a weaver", "an weaver", True),
        ("Who built mill 3?", "Ana Velis", "Bo Velis", None),
    ],
)
def test_what_the_world_does_not_write_is_unknown(question, first, second, expected) -> None:
    assert same_meaning(question, first, second) is expected
    assert same_meaning(question, second, first) is expected


def test_labels_agree_with_the_pairs_of_the_nli_model() -> None:
    stream = pairs(3, kind="different")
    known = [
        (pair, found)
        for pair in (next(stream) for _ in range(300))
        if (found := same_meaning(pair.question, pair.first, pair.second)) is not None
    ]
    assert len(known) > 10
    assert all(found == pair.equivalent for pair, found in known)
