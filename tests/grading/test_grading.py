"""Every rule of spec.md, section 7, and its guards."""

from __future__ import annotations

import random
import re
from collections import Counter
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from benchmarks import linkage
from benchmarks.grading_quality import Judged, agreements, by_rules, judged_rows, plain_rule, rows_of
from semcal.data.datasets import load_questions
from semcal.errors import InputError, UsageError
from semcal.grading.rules import Grade, RuleGrader, Thresholds, members_to_grade, rouge_l, squad_f1
from semcal.meaning.rules import contradicts
from tests.tables import pairs

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
        ("the mill is 40 kilometres away", "40 km", "containment"),
        ("it was about 21 degrees Celsius warm", "21 °C", "containment"),
        ("7 May 1821", "1821", "date"),
        ("on 7 May 1821 in Kent", "May 1821", "date"),
        ("Ada Marshe", "Ada Marsh", "fuzzy"),
        ("the mill on the old river Stour", "old mill on the river Stour", "F1"),
        ("Kent", "Essex", "none"),
        ("Kent", "Kent Essex", "F1"),
        ("", "Kent", "empty"),
        (" \n", "Kent", "empty"),
        ("", " ", "empty"),
        ("Kent", " ", "none"),
        # a reference stands in a prediction as whole words only
        ("Kentish Town in the north of the city", "Kent", "none"),
        ("10000000", "100000000", "none"),
        ("1.5 and 2.5", "5", "none"),
        ("river Stour", "Stour valley", "none"),  # F1 of exactly 0.5
        ("river Stour valley", "Stour valley railway", "F1"),  # 2/3
        ("abcdefghij", "abcdefghix", "fuzzy"),  # a ratio of 90
        ("abcdefghi", "abcdefghx", "none"),  # 88.9
        ("Apollo11mission", "Apollo12mission", "none"),  # fuzzy is not asked about numerals
        ("Rocketman VII", "Rocketman VIII", "none"),
        ("Malcom X", "Malcolm X", "fuzzy"),
        ("the mill by the river", "river mill of the north wind", "none"),
        # numerals agree by value, and one that is left out is no contradiction
        ("World War Two", "World War II", "F1"),
        ("World War 2", "Second World War", "F1"),
        ("the 8th King Henry", "King Henry VIII", "F1"),
        ("Battle of the old bridge", "Battle of the old bridge (1471)", "F1"),
        *((mark, mark, "equality") for mark in ("A+", "*", ".", "+")),
        *((mark, "Kent", "none") for mark in ("A+", "*", ".", "+")),
    ],
)
def test_the_grade_names_the_rule_that_decided(prediction, reference, expected):
    assert grade(prediction, reference) == Grade(expected not in ("none", "empty"), expected)


# Dates


MET = pairs("""
20 December 1988 → 1988 | December 1988 → 1988 | 1988 → 1988 | 20 December 1988 → December 1988
20 December 1988 → 20th December 1988 | 20 December 1988 → December 20
20 December 1988 → the 20th of December | 20 December 1988 → December | 20 December 1988 → Dec.
It opened in May 1821 near Kent → in 1821 | 1066 AD → 1066 | 1066 → AD 1066 | 1066 B.C. → 1066 BC
the 5th century BCE → 5th century BC | the 5th century → 5th century AD | 753 BCE → 753 BC
753 BC → 753 B.C.E. | 70 CE → AD 70 | The temple fell in 70 CE. → AD 70 | 70 AD → 70 C.E.
100–200 CE → AD 100–200 | in the 1st century AD 500 soldiers → the 1st century AD
19 August 14 → 19 August 14 AD | 19 August AD 14 → 19 August 14 CE | 14 AD → 19 August 14 AD
5 May 1200 AD → 5 May 1200 | 1066-10-14 BC → 1066 BC | 1066-10-14 AD → 1066
""")
NOT_MET = pairs("""
20 December 1988 → November 1988 | 19/12/1988 → 20 December 1988 | December 1988 → 20 December 1988
1988 → 20 December 1988 | 1988 → December 1988 | 1989 → 1988 | 20 December 1988 → December 21
December 1988 → December 20 | 20 December 1988 → 20 | between 1987 and 1989 → 1988 | 1066 BC → 1066
1066 → 1066 BC | 1066 BCE → 1066 AD | in the year 1066 BC in Kent → in the year 1066 in Kent
the 5th century BC → the 5th century | the fifth century B.C. → 5th century CE | 70 CE → 70 BCE
753 BCE → 752 BC | 19 August 14 BC → 19 August 14 AD | 19 August 14 AD → 19 August 14 BC
He died on 19 August, 14 BC. → 19 August 14 | August 14 BC → August 14 AD
It was on 5 May 1200 in Kent town hall → It was on 5 May 1200 BC in Kent town hall
5 May 1200 → 5 May 1200 BC | 1066-10-14 BC → 1066 | 1066-10-14 BC → October 1066
""")


@pytest.mark.parametrize(("prediction", "reference"), [*MET, *NOT_MET])
def test_dates_are_compared_by_the_granularity_of_the_reference_and_their_eras(prediction, reference):
    assert is_right(prediction, reference) is ((prediction, reference) in MET)


# Numerals


WRONG_VALUES = pairs("""
on 20 December 1988 in the old town → on 21 December 1988 in the old town
December 1988 in the old town → 20 December 1988 in the old town
Henry VII → Henry VIII | King Henry VII of England → King Henry VIII of England
World War I → World War II | World War One → World War II | First World War → Second World War
World War 1 → World War 2 | Apollo 12 mission → Apollo 11 mission | 5 ft 5 in → 5 ft 6 in
54 square miles → 58 square miles | about five million people → about six million people
III Corps of the Army → II Corps of the Army | the twentieth century → the nineteenth century
Hepatitis B → Hepatitis A | Plan B → Plan A | Vitamin C → Vitamin A | Schedule B → Schedule A
Influenza B virus → Influenza A virus | Ana C. Marsh → Ana B. Marsh | AB- → AB+
the AB− blood type → the AB+ blood type | blood type O+ → blood type A+ | C++ → C#
the C programming language → the C# programming language | 5>3 → 5<3 | £5 a week → $5 a week
19 December in Kent → 19 November in Kent | the old mill in 1987 → the old mill of 1988 | 5 → - 5
- 5 → 5 | 1,5 → 5 | 1,5 → 1 | 1 000 000 → 1 | 1 000 000 → 000 | 1,00,000 → 1 | 1,2,3 → 2 | 10^6 → 6
2^10 → 10 | 10⁶ → 106 | 106 → 10⁶ | 100, 200, 300 → 100200300
""")


@pytest.mark.parametrize(("prediction", "reference"), WRONG_VALUES)
def test_a_wrong_value_is_never_rescued(prediction, reference):
    assert rule(prediction, reference) == "none"
    assert grade(prediction, reference, grader=RuleGrader(rouge=True)).rule == "none"


ONE_VALUE = pairs("""
7.0 → 7 | 0.50 → 0.5 | one half → 1/2 | ½ → 0.5 | 2nd → second | Elizabeth the Second → Elizabeth II
Queen Elizabeth II → Elizabeth the Second | Jose Ibanez → José Ibáñez | the village of Lodz → Łódź
it scored 36 → 36.0
""")


@pytest.mark.parametrize(("prediction", "reference"), ONE_VALUE)
def test_one_value_in_two_writings_is_right(prediction, reference):
    assert rule(prediction, reference) in ("equality", "containment")


@pytest.mark.parametrize("word", ["mix", "civil", "mild", "dim", "l", "c", "vivid", "ill"])
def test_words_of_roman_letters_are_no_numerals(word):
    assert rule(f"the {word} wind of York", f"the wind of York {word}") == "F1"
    assert rule(f"{word} wind of York city", "5th wind of York city") == "F1"


# Degenerate texts


@pytest.mark.parametrize(
    ("predictions", "references", "named"),
    [(["Ada"], [], "references"), ([], ["Ada"], "predictions"), ("Ada", ["Ada"], "'Ada'")],
)
def test_grading_against_nothing_is_an_error(predictions, references, named):
    with pytest.raises(InputError, match=named):
        GRADER.grade("Who?", predictions, references)


def test_one_right_prediction_or_reference_is_enough():
    assert rule("Kent", "", "Kent") == "equality"
    assert GRADER.grade("Who?", ["", "Bo", "Ada"], ["Ada"]) == Grade(True, "equality")
    assert GRADER.grade("Who?", ["", "Bo"], ["Ada"]) == Grade(False, "none")


# Options


def test_rouge_is_asked_only_when_wanted():
    assert grade("old mill by river", "old bridge", grader=RuleGrader(rouge=True)) == Grade(True, "ROUGE-L")
    assert rule("old mill by river", "old bridge") == "none"


def test_rules_can_be_asked_alone_and_unknown_ones_are_named():
    assert grade("twenty", "20", grader=RuleGrader(rules=["fuzzy"])).rule == "none"
    assert RuleGrader(rules=["F1"], rouge=True).rules == ("F1", "ROUGE-L")
    with pytest.raises(UsageError, match="fuzy"):
        RuleGrader(rules=["fuzy"])


# Properties

VOCABULARY = "a b o+ o- bc - 7.0 ½ kent mill henry vii viii 5 6 1988 december 20 one second of the x i war"
WORDS = st.sampled_from(VOCABULARY.split())
TEXTS = st.lists(WORDS, max_size=6).map(" ".join)


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_the_order_of_the_references_does_not_matter(prediction, references, rng: random.Random):
    shuffled = references[:]
    rng.shuffle(shuffled)
    assert grade(prediction, *references) == grade(prediction, *shuffled)


@given(st.lists(TEXTS, min_size=1, max_size=4), TEXTS, st.lists(TEXTS, min_size=1, max_size=4))
def test_one_more_text_never_makes_a_right_answer_wrong(predictions, more, references):
    if GRADER.grade("?", predictions, references).correct:
        assert GRADER.grade("?", [more, *predictions], references).correct
        assert GRADER.grade("?", predictions, [*references, more]).correct


@given(TEXTS.filter(str.strip))
def test_every_answer_meets_itself(text):
    assert rule(text, text) == "equality"


@given(TEXTS, TEXTS)
def test_without_guards_f1_is_squads(prediction, reference):
    shared = (Counter(prediction.split()) & Counter(reference.split())).total()
    total = len(prediction.split()) + len(reference.split())
    expected = 0.0 if not shared else 2 * (shared / total)
    assert squad_f1(Counter(prediction.split()), Counter(reference.split())) == pytest.approx(expected)


SCORER = RougeScorer(["rougeL"], use_stemmer=False)
PLAIN = st.lists(st.from_regex("[a-c]{1,2}", fullmatch=True), max_size=6).map(" ".join)


@given(PLAIN, PLAIN)
def test_rouge_l_is_rouge_scores(prediction, reference):
    expected = SCORER.score(reference, prediction)["rougeL"].fmeasure
    assert rouge_l(prediction.split(), reference.split()) == pytest.approx(expected)


# Members of a cluster


def test_rouge_l_of_texts_of_a_megabyte_is_exact_and_takes_no_quadratic_work() -> None:
    assert rouge_l(["a", "b"] * 50_000, ["b", "c"] * 50_000) == 0.5


def test_small_clusters_are_graded_whole_and_large_ones_by_four_members_in_whatever_order() -> None:
    assert members_to_grade([4, 0, 9], seed=1, question_id="q") == (0, 4, 9)
    chosen = members_to_grade(range(10), seed=1, question_id="q")
    assert len(set(chosen)) == 4
    assert members_to_grade(range(9, -1, -1), seed=1, question_id="q") == chosen


def test_the_draw_depends_on_seed_and_question():
    def draw(**changes):
        return members_to_grade(range(50), **({"seed": 1, "question_id": "q"} | changes))

    assert draw() == draw()
    assert len({draw(), draw(seed=2), draw(question_id="r"), draw(limit=5)}) == 4


def test_every_member_is_drawn_equally_often():
    chosen = [members_to_grade(range(10), seed=0, question_id=str(n)) for n in range(3000)]
    counts = Counter(member for members in chosen for member in members)
    assert min(counts.values()) > 1200 - 110  # 4 standard deviations of a binomial (3000, 0.4)
    assert max(counts.values()) < 1200 + 110


@pytest.mark.parametrize("name", ["Apollo 11", "Game 7", "Super Bowl 11", "Week 3:", "Room 12", "Act 2"])
@pytest.mark.parametrize(("said", "reference"), [("July 20", "20 August"), ("20 August", "July 20")])
def test_a_number_of_a_name_before_a_month_is_no_day_of_it(name: str, said: str, reference: str) -> None:
    assert is_right(f"{name}, {said}", f"{name}, {said}")
    assert not is_right(f"{name}, {said}", f"{name}, {reference}")


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
    assert GRADER.grade(ASKED, [prediction], references) == Grade(rule != "none", rule)


def test_without_a_question_nothing_is_an_echo() -> None:
    found = GRADER.grade("", ["The Sahara Desert or Australia?"], ["Sahara Desert"])
    assert found.rule == "containment"
    assert GRADER.grade("", ["the Sahara"], ["The Sahara Desert"]).rule == "F1"


# ---- Contradictions, and equal values in other notations


WRONG = [
    (
        "Who won the election of 1988, the second after 1984?",
        "Ana Velis of Toreth in 1984",
        "Ana Velis Toreth in 1988",
    ),
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
    assert GRADER.grade(question, [prediction], [reference]) == Grade(False, "none")


@pytest.mark.parametrize(("question", "prediction", "reference", "rule"), RIGHT)
def test_the_answer_in_another_notation_or_beside_a_denied_one_is_right(
    question: str, prediction: str, reference: str, rule: str
) -> None:
    assert GRADER.grade(question, [prediction], [reference]) == Grade(True, rule)


def test_lenient_thresholds_do_not_ask_for_contradictions() -> None:
    lenient = RuleGrader(thresholds=Thresholds(numerals=False))
    assert lenient.grade("Which capital?", ["It is not Turin"], ["Turin"]).correct


def test_only_the_reference_that_is_denied_is_contradicted() -> None:
    assert is_right("Not Bo but Ada", "Bo", "Ada")
    assert not contradicts("Who?", "Bo. Some say that it was not Bo.", "Bo")


@pytest.mark.parametrize(
    ("name", "question", "prediction", "reference", "correct"),
    [
        ("exact", "Which code is on it?", "KX7", "kx7", False),
        ("exact", "Which version?", "2.1", "2.10", False),
        ("exact", "Which one?", "KX71", "kx71", False),
        ("exact", "Which code is on it?", "`kx7`", "kx7", True),
        ("exact", "Which share?", "2.10", "2.1", True),
        ("exact", "Who?", "the old mill.", "Old Mill", True),
        ("letter", "Which?", " Caf\u00e9 ", "Cafe\u0301", True),
        ("letter", "Which?", "caf\u00e9", "Caf\u00e9", False),
        ("letter", "Which?", "Turin.", "Turin", False),
    ],
)
def test_codes_count_to_the_letter_and_letter_by_letter_only_outer_blanks_are_ignored(
    name: str, question: str, prediction: str, reference: str, correct: bool
) -> None:
    grade = RuleGrader(rules=(name,)).grade(question, [prediction], [reference])
    assert grade == Grade(correct, name if correct else "none")


# ---- Grading against human judgements (docs/meaning-evidence.md); needs SEMCAL_DATA ------------------------


@lru_cache(maxsize=1)
def judged(folder: Path) -> list[Judged]:
    return list(judged_rows(folder))


def test_grading_is_nowhere_far_below_the_plain_rule_and_above_it_on_average(semcal_data):
    every = judged(semcal_data)
    assert len(every) == 13316
    cells = list(agreements(every[::3], plain_rule, by_rules()))  # benchmarks.grading_quality takes all
    for _, _, n, plain, ours in cells[:-1]:
        assert ours - plain >= -max(0.003, 1.01 / n)  # a system with 10 answers may lose one of them
    assert all(ours >= plain for _, _, n, plain, ours in cells if n > 100)
    _, _, n, plain, ours = cells[-1]
    assert n == 4439
    assert ours - plain > 0.01


def test_judgements_hold_ids_hashes_and_verdicts_and_no_text() -> None:
    for row in rows_of(linkage.GROUPS.parent / "answers.jsonl"):
        assert set(row) == {"set", "id", "answer_sha256", "model", "correct"}
        assert re.fullmatch("[0-9a-f]{16}", row["answer_sha256"])
    for row in rows_of(linkage.GROUPS):
        assert set(row) == {"set", "id", "model", "temperature", "forms", "meaning"}
        assert all(re.fullmatch("[0-9a-f]{16}", form) for form in row["forms"])


def test_every_real_question_accepts_its_own_references(semcal_data):
    grader = RuleGrader()
    for name in ("squad", "nq_open", "triviaqa"):
        for question in load_questions(semcal_data / f"{name}_dev_sample.jsonl.gz"):
            for answer in question.answers:
                assert grader.grade(question.question, [answer], question.answers).correct
