"""Properties of meanings and grades, with the equivalence that is used if nothing is named."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semcal.grading.rules import RuleGrader
from semcal.models.clustering import cluster_answers
from semcal.models.equivalence import EmbeddedEquivalence

QUESTION = "Who painted the lighthouse of Belmar?"
ANSWERS = ("Mira Talso", "Berin Kolm", "Toreth Velis", "Ana Durak", "Osmo Hald")
WRITTEN = (
    *("{}", "{}.", "The answer is {}.", '"{}"', "**{}**", "`{}`", "```\n{}\n```", "I think it is {}"),
    *("Dr {}", "the {}", "Answer: {}"),
)
CLOSED = "Is Belmar a river?"
POLAR = {
    True: ("Yes", "yes.", "Yes, it is.", "It is.", "Yes, Belmar is a river.", "True", "Correct.", "Indeed."),
    False: ("No", "no.", "No, it is not.", "It isn't.", "No, Belmar is not a river.", "False", "Incorrect."),
}


@pytest.fixture(scope="module")
def model() -> EmbeddedEquivalence:
    return EmbeddedEquivalence()


@settings(max_examples=30)
@given(
    name=st.sampled_from(ANSWERS),
    other=st.sampled_from(ANSWERS),
    form=st.sampled_from(WRITTEN),
    upper=st.booleans(),
)
def test_how_an_answer_is_written_changes_neither_its_meaning_nor_its_grade(
    model: EmbeddedEquivalence, name: str, other: str, form: str, upper: bool
) -> None:
    written = form.format(name.upper() if upper else name)
    (clusters,) = cluster_answers([QUESTION], [[name, other, written]], model).clusters
    assert any({0, 2} <= set(cluster) for cluster in clusters)
    assert len(clusters) == len({name, other})
    assert RuleGrader().grade(QUESTION, [written], [other]).correct == (name == other)


@settings(max_examples=30)
@given(
    name=st.sampled_from(ANSWERS),
    form=st.sampled_from(("It is not {}", "Not {}", "It was never {}.", "It isn't {}.")),
)
def test_a_denial_is_another_meaning_and_wrong(model: EmbeddedEquivalence, name: str, form: str) -> None:
    (clusters,) = cluster_answers([QUESTION], [[name, form.format(name)]], model).clusters
    assert clusters == [[0], [1]]
    assert not RuleGrader().grade(QUESTION, [form.format(name)], [name]).correct


@settings(max_examples=40)
@given(
    st.lists(
        st.sampled_from([*POLAR[True], *POLAR[False], "It depends", "A river", ""]), min_size=2, max_size=10
    ),
    st.integers(),
)
def test_no_meaning_holds_both_yes_and_no_in_whatever_order_samples_come(
    model: EmbeddedEquivalence, samples: list[str], seed: int
) -> None:
    (clusters,) = cluster_answers([CLOSED], [samples], model).clusters
    for cluster in clusters:
        said = {polarity for i in cluster for polarity in POLAR if samples[i] in POLAR[polarity]}
        assert len(said) < 2
    order = random.Random(seed).sample(range(len(samples)), len(samples))
    (moved,) = cluster_answers([CLOSED], [[samples[i] for i in order]], model).clusters
    assert sorted(sorted(order[i] for i in cluster) for cluster in moved) == clusters
