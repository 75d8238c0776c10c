"""Names that an answer mentions only beside its answer."""

from __future__ import annotations

import pytest

from semcal import load_equivalence
from semcal.grading.rules import RuleGrader
from semcal.meaning.asides import is_aside
from semcal.meaning.rules import contradicts, decide

WHICH = "Which is the largest lake of the country?"
ASIDES = [
    (WHICH, "The largest lake is Mirna, although Tolva is deeper.", "Tolva"),
    (WHICH, "Mirna is the largest lake; Tolva comes second.", "Tolva"),
    (WHICH, "Mirna is the largest lake, and Tolva is next.", "Tolva"),
    (WHICH, "Unlike Tolva, Mirna is a large lake.", "Tolva"),
    (WHICH, "It is Mirna, which is larger than Tolva.", "Tolva"),
    (WHICH, "Many people think it is Tolva, but the largest lake is Mirna.", "Tolva"),
    (WHICH, "The largest lake used to be Tolva, but today Mirna is the largest lake.", "Tolva"),
    (WHICH, "Mirna is far larger than Tolva, Orlin or Garo.", "Orlin"),
    (WHICH, "It is not Orlin, but Mirna, which flows into Tolva.", "Tolva"),
    (WHICH, "The largest is Mirna, with Tolva coming second.", "Tolva"),
    ("Who wrote the play?", "The play is by Ada Velis, who also wrote one with Bo Lenz.", "Bo Lenz"),
    ("When did the bridge open?", "The bridge opened in 1954, three years after the fire of 1951.", "1951"),
    ("Which town is it?", "Mirna, near Turin", "Turin"),
    ("Which team won?", "Mirna won 3-0 against Tolva.", "Tolva"),
    ("Who built it?", "It was built by Ada Velis, who had worked for Bo Lenz.", "Bo Lenz"),
    (WHICH, "Tolva is famous, but the largest lake is Mirna.", "Tolva"),
    ("Who won the match?", "In a long final Ada Velis defeated Bo Lenz to win the cup.", "Bo Lenz"),
    ("Who wrote the play?", "The play is by Ada Velis, a contemporary of Bo Lenz.", "Bo Lenz"),
    ("Who found the tomb?", "Ada Velis, who had employed Bo Lenz", "Bo Lenz"),
    ("When did the bridge collapse?", "The bridge, which had opened in 1911, collapsed in 1954.", "1911"),
    ("How many rowers are in the boat?", "The boat has 8 rowers and up to 3 guests.", "3"),
    ("How many rowers are in it?", "This boat has 8 rowers, while dinghies have 2.", "2"),
    ("Who scored first?", "Ada Velis scored first after a pass by Bo Lenz.", "Bo Lenz"),
]
ANSWERS = [
    (WHICH, "Although Tolva is deeper, the largest lake is Mirna.", "Mirna"),
    (WHICH, "The largest lake is Mirna, although Tolva is deeper.", "Mirna"),
    (WHICH, "Many people think it is Tolva, but the largest lake is Mirna.", "Mirna"),
    (WHICH, "The lake, in the north, is Mirna.", "Mirna"),
    ("Who won the match?", "In a long final Ada Velis defeated Bo Lenz to win the cup.", "Ada Velis"),
    ("Who lost the match?", "In a long final Ada Velis defeated Bo Lenz.", "Bo Lenz"),
    (
        "Which organ is it?",
        "Blood is pumped by the heart, whose muscle began to beat around week five.",
        "week five",
    ),
    ("Where was the pact signed?", "The pact, which was signed in Turin, ended the war.", "Turin"),
    ("When did the bridge open?", "The bridge, which had opened in 1911, collapsed in 1954.", "1911"),
    ("How many rowers are in the boat?", "There are 8 (two rowers a bench).", "8"),
    (WHICH, "No lake is larger than Mirna, which lies in the north.", "Mirna"),
    ("Who employed Ada Velis?", "Ada Velis, who had worked for Bo Lenz", "Bo Lenz"),
    ("Who found the tomb?", "Ada Velis, who found it with Bo Lenz", "Ada Velis"),
    ("When did it spread?", "The term spread in towns, particularly after the report of 1987.", "1987"),
]


@pytest.mark.parametrize(("question", "text", "name"), ASIDES)
def test_these_names_are_beside_the_answer(question: str, text: str, name: str) -> None:
    assert is_aside(question, text, name)
    assert decide(question, text, name) is False
    assert contradicts(question, text, name)


@pytest.mark.parametrize(("question", "text", "name"), ANSWERS)
def test_these_names_may_be_the_answer(question: str, text: str, name: str) -> None:
    assert not is_aside(question, text, name)
    assert decide(question, text, name) is not False


def test_a_mentioned_name_and_the_answer_are_two_meanings() -> None:
    from semcal.models import cluster_answers

    samples = ["Mirna", "Tolva", "The largest lake is Mirna, although Tolva is deeper."]
    found = cluster_answers([WHICH], [samples], load_equivalence("default"))
    assert found.clusters == [[[0, 2], [1]]]


@pytest.mark.parametrize(
    "answer",
    [
        "It was not Ada Velis.",
        "I don't think that it was Velis.",
        "Many people think it was Velis, but it was Bo Lenz.",
        "Bo Lenz, as opposed to Velis",
        "I don't know whether it was Velis",
    ],
)
def test_a_denied_name_is_not_correct(answer: str) -> None:
    assert not RuleGrader().grade("Who was it?", [answer], ["Ada Velis", "Velis"]).correct
