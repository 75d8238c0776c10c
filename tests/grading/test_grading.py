"""Every rule of spec.md, section 7, and its guards."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from semcal.errors import InputError, UsageError
from semcal.grading.rules import RULES, Grade, RuleGrader, members_to_grade, rouge_l, squad_f1

GRADER = RuleGrader()


def grade(prediction: str, *references: str, grader: RuleGrader = GRADER) -> Grade:
    return grader.grade("A question?", [prediction], references)


def rule(prediction: str, *references: str) -> str:
    return grade(prediction, *references).rule


def is_right(prediction: str, *references: str) -> bool:
    return grade(prediction, *references).correct


# Each rule


@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        ("The Old Mill.", "old mill", "equality"),
        ("twenty-one", "21", "equality"),
        ("7 May 1821", "May 7, 1821", "equality"),
        ("It was built by Ada Marsh in Kent", "Ada Marsh", "containment"),
        ("there were four mills", "4", "containment"),
        ("7 May 1821", "1821", "date"),
        ("on 7 May 1821 in Kent", "May 1821", "date"),
        ("Ada Marshe", "Ada Marsh", "fuzzy"),
        ("the mill on the old river Stour", "old mill on the river Stour", "F1"),
        ("Kent", "Essex", "none"),
        ("Kent", "Kent Essex", "F1"),
        ("", "Kent", "empty"),
        (" \n", "Kent", "empty"),
    ],
)
def test_the_grade_names_the_rule_that_decided(prediction, reference, expected):
    assert grade(prediction, reference) == Grade(expected not in ("none", "empty"), expected)


def test_a_reference_stands_in_a_prediction_as_whole_words_only():
    assert rule("Kentish Town in the north of the city", "Kent") == "none"
    assert rule("10000000", "100000000") == "none"
    assert rule("1.5 and 2.5", "5") == "none"


def test_f1_must_be_above_one_half():
    assert rule("river Stour", "Stour valley") == "none"  # exactly 0.5
    assert rule("river Stour valley", "Stour valley railway") == "F1"  # 2/3


def test_fuzzy_needs_a_ratio_of_90():
    assert rule("abcdefghij", "abcdefghix") == "fuzzy"  # 90
    assert rule("abcdefghi", "abcdefghx") == "none"  # 88.9


# Dates


@pytest.mark.parametrize(
    ("prediction", "reference", "right"),
    [
        ("20 December 1988", "1988", True),
        ("December 1988", "1988", True),
        ("1988", "1988", True),
        ("20 December 1988", "December 1988", True),
        ("20 December 1988", "November 1988", False),
        ("20 December 1988", "20th December 1988", True),
        ("19/12/1988", "20 December 1988", False),
        ("December 1988", "20 December 1988", False),
        ("1988", "20 December 1988", False),
        ("1988", "December 1988", False),
        ("1989", "1988", False),
        ("20 December 1988", "December 20", True),
        ("20 December 1988", "the 20th of December", True),
        ("20 December 1988", "December", True),
        ("20 December 1988", "Dec.", True),
        ("20 December 1988", "December 21", False),
        ("December 1988", "December 20", False),
        ("20 December 1988", "20", False),
        ("It opened in May 1821 near Kent", "in 1821", True),
        ("between 1987 and 1989", "1988", False),
    ],
)
def test_dates_are_compared_by_the_granularity_of_the_reference(prediction, reference, right):
    assert is_right(prediction, reference) is right


@pytest.mark.parametrize(
    ("prediction", "reference"),
    [
        ("on 20 December 1988 in the old town", "on 21 December 1988 in the old town"),
        ("December 1988 in the old town", "20 December 1988 in the old town"),
        ("the old mill in 1987", "the old mill of 1988"),
    ],
)
def test_a_wrong_date_is_not_rescued_by_words_around_it(prediction, reference):
    assert rule(prediction, reference) == "none"


def test_a_date_within_the_references_year_is_no_wrong_numeral():
    assert rule("old mill on 20 December 1988", "old mill 1988") == "F1"


# Numerals


@pytest.mark.parametrize(
    ("prediction", "reference"),
    [
        ("Henry VII", "Henry VIII"),
        ("King Henry VII of England", "King Henry VIII of England"),
        ("World War I", "World War II"),
        ("World War One", "World War II"),
        ("First World War", "Second World War"),
        ("World War 1", "World War 2"),
        ("Apollo 12 mission", "Apollo 11 mission"),
        ("5 ft 5 in", "5 ft 6 in"),
        ("54 square miles", "58 square miles"),
        ("about five million people", "about six million people"),
        ("III Corps of the Army", "II Corps of the Army"),
        ("the twentieth century", "the nineteenth century"),
    ],
)
def test_a_wrong_numeral_is_never_rescued(prediction, reference):
    assert rule(prediction, reference) == "none"
    assert grade(prediction, reference, grader=RuleGrader(rouge=True)).rule == "none"


@pytest.mark.parametrize(
    ("prediction", "reference"),
    [
        ("Hepatitis B", "Hepatitis A"),
        ("Plan B", "Plan A"),
        ("Vitamin C", "Vitamin A"),
        ("Schedule B", "Schedule A"),
        ("Influenza B virus", "Influenza A virus"),
        ("Ana C. Marsh", "Ana B. Marsh"),
        ("AB-", "AB+"),
        ("the AB− blood type", "the AB+ blood type"),
        ("blood type O+", "blood type A+"),
        ("C++", "C#"),
        ("the C programming language", "the C# programming language"),
        ("5>3", "5<3"),
        ("£5 a week", "$5 a week"),
        ("19 December in Kent", "19 November in Kent"),
    ],
)
def test_a_wrong_letter_or_sign_is_never_rescued(prediction, reference):
    assert rule(prediction, reference) == "none"
    assert grade(prediction, reference, grader=RuleGrader(rouge=True)).rule == "none"


@pytest.mark.parametrize(
    ("prediction", "reference"),
    [
        ("5", "- 5"),
        ("- 5", "5"),
        ("1,5", "5"),
        ("1,5", "1"),
        ("1 000 000", "1"),
        ("1 000 000", "000"),
        ("1,00,000", "1"),
        ("1,2,3", "2"),
        ("10^6", "6"),
        ("2^10", "10"),
        ("10⁶", "106"),
        ("106", "10⁶"),
        ("100, 200, 300", "100200300"),
    ],
)
def test_a_piece_of_a_number_is_not_the_number(prediction, reference):
    assert rule(prediction, reference) == "none"


@pytest.mark.parametrize(
    ("prediction", "reference", "right"),
    [
        ("1066 BC", "1066", False),
        ("1066", "1066 BC", False),
        ("1066 BCE", "1066 AD", False),
        ("in the year 1066 BC in Kent", "in the year 1066 in Kent", False),
        ("the 5th century BC", "the 5th century", False),
        ("the fifth century B.C.", "5th century CE", False),
        ("1066 AD", "1066", True),
        ("1066", "AD 1066", True),
        ("1066 B.C.", "1066 BC", True),
        ("the 5th century BCE", "5th century BC", True),
        ("the 5th century", "5th century AD", True),
        ("753 BCE", "753 BC", True),
        ("753 BC", "753 B.C.E.", True),
        ("70 CE", "AD 70", True),
        ("The temple fell in 70 CE.", "AD 70", True),
        ("70 AD", "70 C.E.", True),
        ("100–200 CE", "AD 100–200", True),
        ("in the 1st century AD 500 soldiers", "the 1st century AD", True),
        ("70 CE", "70 BCE", False),
        ("753 BCE", "752 BC", False),
        ("19 August 14 BC", "19 August 14 AD", False),
        ("19 August 14 AD", "19 August 14 BC", False),
        ("He died on 19 August, 14 BC.", "19 August 14", False),
        ("19 August 14", "19 August 14 AD", True),
        ("19 August AD 14", "19 August 14 CE", True),
        ("14 AD", "19 August 14 AD", True),
        ("August 14 BC", "August 14 AD", False),
        ("It was on 5 May 1200 in Kent town hall", "It was on 5 May 1200 BC in Kent town hall", False),
        ("5 May 1200 AD", "5 May 1200", True),
        ("5 May 1200", "5 May 1200 BC", False),
        ("1066-10-14 BC", "1066", False),
        ("1066-10-14 BC", "October 1066", False),
        ("1066-10-14 BC", "1066 BC", True),
        ("1066-10-14 AD", "1066", True),
    ],
)
def test_an_era_belongs_to_its_number_date_or_century(prediction, reference, right):
    assert is_right(prediction, reference) is right


@pytest.mark.parametrize(
    ("prediction", "reference"),
    [
        ("7.0", "7"),
        ("0.50", "0.5"),
        ("one half", "1/2"),
        ("½", "0.5"),
        ("2nd", "second"),
        ("Elizabeth the Second", "Elizabeth II"),
        ("Queen Elizabeth II", "Elizabeth the Second"),
        ("Jose Ibanez", "José Ibáñez"),
        ("the village of Lodz", "Łódź"),
        ("it scored 36", "36.0"),
    ],
)
def test_one_value_in_two_writings_is_right(prediction, reference):
    assert rule(prediction, reference) in ("equality", "containment")


@pytest.mark.parametrize(
    ("prediction", "reference"),
    [
        ("World War Two", "World War II"),
        ("World War 2", "Second World War"),
        ("the 8th King Henry", "King Henry VIII"),
        ("Battle of the old bridge", "Battle of the old bridge (1471)"),
    ],
)
def test_numerals_agree_by_value_and_one_left_out_is_no_contradiction(prediction, reference):
    assert rule(prediction, reference) == "F1"


def test_fuzzy_is_not_asked_about_texts_with_numerals():
    assert rule("Apollo11mission", "Apollo12mission") == "none"
    assert rule("Rocketman VII", "Rocketman VIII") == "none"
    assert rule("Malcom X", "Malcolm X") == "fuzzy"


@pytest.mark.parametrize("word", ["mix", "civil", "mild", "dim", "l", "c", "vivid", "ill"])
def test_words_of_roman_letters_are_no_numerals(word):
    assert rule(f"the {word} wind of York", f"the wind of York {word}") == "F1"
    assert rule(f"{word} wind of York city", "5th wind of York city") == "F1"


# Degenerate texts


def test_an_empty_reference_matches_nothing():
    assert rule("Kent", "", " ") == "none"
    assert rule("", "", " ") == "empty"
    assert rule("Kent", "", "Kent") == "equality"


@pytest.mark.parametrize("mark", ["A+", "*", ".", "+"])
def test_references_of_marks_alone_are_met_by_themselves(mark):
    assert rule(mark, mark) == "equality"
    assert not is_right(mark, "Kent")


def test_grading_against_nothing_is_an_error():
    with pytest.raises(InputError, match="references must be one or more texts"):
        GRADER.grade("Who?", ["Ada"], [])
    with pytest.raises(InputError, match="predictions must be one or more texts"):
        GRADER.grade("Who?", [], ["Ada"])
    with pytest.raises(InputError, match="in a list, got 'Ada'"):
        GRADER.grade("Who?", "Ada", ["Ada"])


def test_one_right_prediction_is_enough():
    assert GRADER.grade("Who?", ["", "Bo", "Ada"], ["Ada"]) == Grade(True, "equality")
    assert GRADER.grade("Who?", ["", "Bo"], ["Ada"]) == Grade(False, "none")


# Options


def test_rouge_is_asked_only_when_wanted():
    prediction, reference = "the mill by the river", "river mill of the north wind"
    assert rule(prediction, reference) == "none"
    assert grade("old mill by river", "old bridge", grader=RuleGrader(rouge=True)) == Grade(True, "ROUGE-L")
    assert rule("old mill by river", "old bridge") == "none"


def test_rules_can_be_asked_alone_and_unknown_ones_are_named():
    assert grade("twenty", "20", grader=RuleGrader(rules=["fuzzy"])).rule == "none"
    assert RuleGrader(rules=["F1"], rouge=True).rules == ("F1", "ROUGE-L")
    with pytest.raises(UsageError, match="did you mean 'fuzzy'"):
        RuleGrader(rules=["fuzy"])


def test_another_normal_form_can_be_given():
    assert grade("KENT", "kent", grader=RuleGrader(normal_form=str.strip)).rule == "none"


# Properties

VOCABULARY = "a b o+ o- bc - 7.0 ½ kent mill henry vii viii 5 6 1988 december 20 one second of the x i war"
WORDS = st.sampled_from(VOCABULARY.split())
TEXTS = st.lists(WORDS, max_size=6).map(" ".join)


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_the_order_of_the_references_does_not_matter(prediction, references, rng: random.Random):
    shuffled = references[:]
    rng.shuffle(shuffled)
    assert grade(prediction, *references) == grade(prediction, *shuffled)


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=4), TEXTS)
def test_one_more_reference_never_makes_a_right_answer_wrong(prediction, references, more):
    if is_right(prediction, *references):
        assert is_right(prediction, *references, more)


@given(st.lists(TEXTS, min_size=1, max_size=4), TEXTS, st.lists(TEXTS, min_size=1, max_size=4))
def test_one_more_prediction_never_makes_an_answer_wrong(predictions, more, references):
    if GRADER.grade("?", predictions, references).correct:
        assert GRADER.grade("?", [more, *predictions], references).correct


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=6))
def test_grades_do_not_depend_on_what_was_graded_before(pairs):
    forwards = [grade(prediction, reference) for prediction, reference in pairs]
    backwards = [grade(prediction, reference) for prediction, reference in reversed(pairs)]
    assert forwards == backwards[::-1]


@given(TEXTS.filter(str.strip))
def test_every_answer_meets_itself(text):
    assert rule(text, text) == "equality"


@given(TEXTS, TEXTS)
def test_without_guards_f1_is_squads(prediction, reference):
    shared = (Counter(prediction.split()) & Counter(reference.split())).total()
    total = len(prediction.split()) + len(reference.split())
    expected = 0.0 if not shared else 2 * (shared / total)
    assert squad_f1(Counter(prediction.split()), Counter(reference.split())) == pytest.approx(expected)


@given(TEXTS, TEXTS)
def test_equality_is_symmetric(a, b):
    assert (rule(a, b) == "equality") == (rule(b, a) == "equality")


SCORER = RougeScorer(["rougeL"], use_stemmer=False)


PLAIN = st.lists(st.from_regex("[a-c]{1,2}", fullmatch=True), max_size=6).map(" ".join)


@given(PLAIN, PLAIN)
def test_rouge_l_is_rouge_scores(prediction, reference):
    expected = SCORER.score(reference, prediction)["rougeL"].fmeasure
    assert rouge_l(prediction.split(), reference.split()) == pytest.approx(expected)


def test_rouge_l_of_texts_of_a_megabyte_takes_seconds_and_is_exact():
    one, other = ["a", "b"] * 50_000, ["b", "c"] * 50_000
    start = time.process_time()
    assert rouge_l(one, other) == 0.5
    assert time.process_time() - start < 20


# Members of a cluster


def test_small_clusters_are_graded_whole():
    assert members_to_grade([4, 0, 9], seed=1, question_id="q") == (0, 4, 9)


def test_large_clusters_give_four_of_their_members_whatever_their_order():
    cluster = list(range(10))
    chosen = members_to_grade(cluster, seed=1, question_id="q")
    assert len(set(chosen)) == 4
    assert set(chosen) <= set(cluster)
    assert members_to_grade(cluster[::-1], seed=1, question_id="q") == chosen


def test_the_draw_depends_on_seed_question_and_measure():
    def draw(**changes):
        return members_to_grade(range(50), **({"seed": 1, "question_id": "q"} | changes))

    assert draw() == draw()
    assert len({draw(), draw(seed=2), draw(question_id="r"), draw(measure="E-SC"), draw(limit=5)}) == 5


def test_every_member_is_drawn_equally_often():
    chosen = [members_to_grade(range(10), seed=0, question_id=str(n)) for n in range(3000)]
    counts = Counter(member for members in chosen for member in members)
    assert min(counts.values()) > 1200 - 110  # 4 standard deviations of a binomial (3000, 0.4)
    assert max(counts.values()) < 1200 + 110


def test_the_default_rules_stand_in_the_order_of_the_specification():
    assert RULES == ("equality", "containment", "date", "fuzzy", "F1", "same")
    assert GRADER.rules == RULES


@pytest.mark.parametrize("name", ["Apollo 11", "Game 7", "Super Bowl 11", "Week 3:", "Room 12", "Act 2"])
@pytest.mark.parametrize(("said", "reference"), [("July 20", "20 August"), ("20 August", "July 20")])
def test_a_number_of_a_name_before_a_month_is_no_day_of_it(name: str, said: str, reference: str) -> None:
    right = RuleGrader().grade("When?", [f"{name}, {said}"], [f"{name}, {said}"])
    wrong = RuleGrader().grade("When?", [f"{name}, {said}"], [f"{name}, {reference}"])
    assert (right.correct, wrong.correct) == (True, False)


ASKED = "Which is larger: the Sahara Desert or Australia?"


@pytest.mark.parametrize(
    ("prediction", "references", "rule"),
    [
        ("The Sahara Desert", ["Sahara Desert"], "equality"),
        ("the Sahara desert or Australia", ["The Sahara Desert or Australia?"], "equality"),
        ("The Sahara Desert or Australia?", ["Sahara Desert"], "none"),
        ("Which is larger, the Sahara Desert", ["Sahara Desert"], "none"),
        ("In the Sahara Desert", ["Sahara Desert"], "containment"),
        ("The Sahara Desert, by far", ["Sahara Desert"], "containment"),
        ("the Sahara", ["The Sahara Desert"], "none"),
        ("larger Nile delta of Toreth", ["Toreth delta, the Nile"], "F1"),
        ("the larger Sahara Desert of Australia", ["Nile larger Sahara Desert"], "none"),
    ],
)
def test_words_of_the_question_are_no_evidence(prediction: str, references: list[str], rule: str) -> None:
    found = RuleGrader().grade(ASKED, [prediction], references)
    assert (found.rule, found.correct) == (rule, rule != "none")


def test_without_a_question_nothing_is_an_echo() -> None:
    assert (
        RuleGrader().grade("", ["The Sahara Desert or Australia?"], ["Sahara Desert"]).rule == "containment"
    )
    assert RuleGrader().grade("", ["the Sahara"], ["The Sahara Desert"]).rule == "F1"


def test_a_wrong_value_is_wrong_though_it_stands_in_the_question() -> None:
    asked = "Who won the election of 1988, the second after 1984?"
    assert (
        not RuleGrader().grade(asked, ["Ana Velis of Toreth in 1984"], ["Ana Velis Toreth in 1988"]).correct
    )
