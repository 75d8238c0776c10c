"""Predictions that hold a reference and contradict it, and equal values in other notations."""

from __future__ import annotations

import pytest

from semcal.grading.rules import Grade, RuleGrader, Thresholds
from semcal.meaning.rules import contradicts

WRONG = [
    ("Which capital?", "It is not Turin", "Turin"),
    ("Which capital?", "It isn't in Turin", "Turin"),
    ("Who painted it?", "Not Ada Velis but Bo Lenz", "Ada Velis"),
    ("Who painted it?", "Bo Lenz, rather than Ada Velis", "Ada Velis"),
    ("Is it so?", "It is not true", "True"),
    ("Is it allowed?", "Yes, no rule forbids it", "No"),
    ("What do you say?", "I don't like rain", "I like rain"),
    ("Which?", "irreversible", "reversible"),
    ("In what state?", "The door is locked by default", "The door is unlocked by default"),
    ("How many?", "at most 12", "at least 12"),
    ("How hot is it?", "15 degrees Fahrenheit", "15 degrees Celsius"),
    ("Who?", "Ada Velis Sr.", "Ada Velis Jr."),
    ("Who?", "George H. W. Bush", "George W. Bush"),
    ("Where?", "South Sudan", "Sudan"),
    ("Where?", "New York", "York"),
    ("How many moons?", "1 [2]", "2"),
    ("When?", "1907 (https://example.org/1908)", "1908"),
    ("What is the limit?", "2 - 1/e", "2 + 1/e"),
    ("Wann?", "am 3. Oktober", "am 3. November"),
    ("Who sued whom?", "Ada Velis sued Bo Lenz", "Bo Lenz sued Ada Velis"),
    ("首都?", "不是北京", "北京"),
]

RIGHT = [
    ("Who painted it?", "Not Ada Velis but Bo Lenz", "Bo Lenz", "containment"),
    ("Which capital?", "Turin, not Milan", "Turin", "containment"),
    ("When did it end?", "It did not end until 1907", "1907", "containment"),
    ("Who founded it?", "Ada Velis and Bo Lenz", "Bo Lenz", "containment"),
    ("Which capital?", "<b>Turin</b>", "Turin", "equality"),
    ("When?", "1907¹", "1907", "equality"),
    ("What share?", "40%", "0.4", "same"),
    ("What is y?", "0.125", r"\frac{1}{8}", "same"),
    ("How many?", "2.5e4", "25000", "same"),
    ("How far is it?", "7000 m", "7 km", "same"),
    ("How many?", "20 to 25", "20-25", "same"),
    ("Which war?", "WWII", "World War II", "same"),
    ("Which option?", "C) Turin", "C", "containment"),
    ("How many?", "3 ducks. The answer is 12.00", "12", "same"),
    ("Is it so?", "No, it is not.", "False", "same"),
    ("首都?", "中国的首都是北京", "北京", "containment"),
    ("首都は?", "日本の首都は東京です", "東京", "containment"),
]


@pytest.mark.parametrize(("question", "prediction", "reference"), WRONG)
def test_a_contradiction_is_never_rescued(question: str, prediction: str, reference: str) -> None:
    assert RuleGrader().grade(question, [prediction], [reference]) == Grade(False, "none")


@pytest.mark.parametrize(("question", "prediction", "reference", "rule"), RIGHT)
def test_the_answer_in_another_notation_or_beside_a_denied_one_is_right(
    question: str, prediction: str, reference: str, rule: str
) -> None:
    assert RuleGrader().grade(question, [prediction], [reference]) == Grade(True, rule)


def test_lenient_thresholds_do_not_ask_for_contradictions() -> None:
    lenient = RuleGrader(thresholds=Thresholds(numerals=False))
    assert lenient.grade("Which capital?", ["It is not Turin"], ["Turin"]).correct


def test_only_the_reference_that_is_denied_is_contradicted() -> None:
    grader = RuleGrader()
    assert grader.grade("Who?", ["Not Bo but Ada"], ["Bo", "Ada"]).correct
    assert not contradicts("Who?", "Bo. Some say that it was not Bo.", "Bo")


def test_codes_count_to_the_letter_where_they_are_asked_for() -> None:
    grader = RuleGrader(rules=("exact",))
    assert not grader.grade("Which code is on it?", ["KX7"], ["kx7"]).correct
    assert not grader.grade("Which version?", ["2.1"], ["2.10"]).correct
    assert not grader.grade("Which one?", ["KX71"], ["kx71"]).correct
    assert grader.grade("Which code is on it?", ["`kx7`"], ["kx7"]).correct
    assert grader.grade("Which share?", ["2.10"], ["2.1"]).correct
    assert grader.grade("Who?", ["the old mill."], ["Old Mill"]).correct


def test_letter_by_letter_nothing_but_blanks_around_is_ignored() -> None:
    grader = RuleGrader(rules=("letter",))
    assert grader.grade("Which?", [" Caf\u00e9 "], ["Cafe\u0301"]) == Grade(True, "letter")
    assert not grader.grade("Which?", ["caf\u00e9"], ["Caf\u00e9"]).correct
    assert not grader.grade("Which?", ["Turin."], ["Turin"]).correct
