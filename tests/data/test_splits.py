"""Splits share no id and no question, and depend on seed and questions alone."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semcal.data.question import Question
from semcal.data.splits import Splits, SplitSizes, near_duplicates, question_key, split_questions
from semcal.errors import InputError, SemcalWarning

SMALL = SplitSizes(calibration_train=20, validation=10, test=15, few_shot=3)


def make_pool(n: int, *, prefix: str = "") -> list[Question]:
    return [Question(f"{prefix}{i}", f"What is {prefix} {i}?", (str(i),)) for i in range(n)]


def grouped_pool(passages: int, each: int) -> list[Question]:
    """`each` questions on each passage."""
    return [
        Question(f"{p}-{i}", f"What is {i}?", (str(i),), f"Passage {p}.")
        for p in range(passages)
        for i in range(each)
    ]


def parts(splits: Splits) -> list[tuple[Question, ...]]:
    return [splits.few_shot, splits.test, splits.validation, splits.calibration_train]


def assert_disjoint(splits: Splits) -> None:
    for one, other in combinations(parts(splits), 2):
        assert not {q.id for q in one} & {q.id for q in other}
        assert not {question_key(q) for q in one} & {question_key(q) for q in other}


def test_the_defaults_are_the_papers():
    sizes = SplitSizes()
    assert (sizes.calibration_train, sizes.validation, sizes.test) == (60_000, 2_000, 2_000)
    rest = SplitSizes(calibration_train=None, validation=5, test=5)  # takes what the others leave
    assert [len(part) for part in parts(split_questions(make_pool(40), sizes=rest))] == [10, 5, 5, 20]
    open_book = [replace(q, context=f"Kent {q.id}.") for q in make_pool(40)]
    assert len(split_questions(open_book, sizes=rest).few_shot) == 4


@pytest.mark.parametrize(
    ("pool", "sizes"), [(make_pool(60), SMALL), (grouped_pool(30, 4), SplitSizes(40, 12, 15, few_shot=3))]
)
@given(rng=st.randoms(use_true_random=False))
def test_splits_depend_neither_on_the_order_of_the_rows_nor_on_the_ids(pool, sizes, rng: random.Random):
    def asked(given: list[Question]) -> list[list[tuple[str, str | None]]]:
        return [
            [(q.question, q.context) for q in part] for part in parts(split_questions(given, sizes=sizes))
        ]

    shuffled = rng.sample(pool, len(pool))
    assert split_questions(shuffled, sizes=sizes) == split_questions(pool, sizes=sizes)
    assert asked([replace(q, id=f"new-{q.id}") for q in shuffled]) == asked(pool)


def test_a_larger_calibration_train_leaves_the_other_splits_alone():
    small = split_questions(make_pool(80), sizes=SMALL)
    large = split_questions(make_pool(80), sizes=SplitSizes(40, validation=10, test=15, few_shot=3))
    assert parts(small)[:3] == parts(large)[:3]
    assert large.calibration_train[:20] == small.calibration_train


def test_a_question_asked_twice_counts_once():
    twice = [Question(f"again-{q.id}", q.question.upper() + " ", q.answers) for q in make_pool(48)]
    splits = split_questions(make_pool(48) + twice, sizes=SMALL)
    assert_disjoint(splits)
    assert all(not q.id.startswith("again") for part in parts(splits) for q in part)


def test_one_question_over_two_passages_is_two_questions():
    kent, essex = Question("a", "Who?", ("Ada",), "Kent."), Question("b", "Who?", ("Bo",), "Essex.")
    splits = split_questions([kent, essex], sizes=SplitSizes(None, validation=1, test=0, few_shot=0))
    assert {*splits.calibration_train, *splits.validation} == {kent, essex}


def test_test_questions_of_their_own_are_taken_out_of_the_pool():
    held_out = make_pool(30, prefix="dev")
    leaked = [Question(f"leak-{q.id}", q.question, q.answers) for q in held_out]
    for twice in (leaked, held_out):
        splits = split_questions(make_pool(40) + twice, test_questions=held_out, sizes=SMALL)
        assert {q.id for q in splits.test} <= {q.id for q in held_out}
        assert_disjoint(splits)


@pytest.mark.parametrize(
    ("pool", "options", "named"),
    [
        (make_pool(47), {}, "calibration-train: 19 questions are left, expected 20"),
        (make_pool(12), {}, "^test: "),  # the first part that is too small
        (make_pool(47), {"test_questions": make_pool(10, prefix="dev")}, "test: 10 questions"),
        (grouped_pool(4, 20), {"sizes": SplitSizes(0, validation=10, test=15, few_shot=3)}, "validation"),
        ([*make_pool(60), Question("x", "Why?")], {}, "'x'"),
        ([*make_pool(60), Question("7", "Why?", ("So",))], {}, "'7'"),
    ],
)
def test_questions_that_cannot_be_split_are_a_clear_error(pool, options, named):
    with pytest.raises(InputError, match=named):
        split_questions(pool, **{"sizes": SMALL, **options})
    with pytest.raises(InputError, match="validation"):
        SplitSizes(validation=-1)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Who wrote “Kim”?", "who wrote kim", True),
        ("Who wrote\u00a0Kim ?", "Who wrote Kim?", True),
        ("Who wrote Kim?", "Who wrote Kin?", False),
        ("???", "!!!", False),
    ],
)
def test_case_blanks_and_punctuation_make_no_other_question(one, other, same):
    assert (question_key(Question("1", one)) == question_key(Question("2", other))) is same


def groups_in(part: tuple[Question, ...]) -> set[str | None]:
    return {q.context for q in part}


def test_questions_on_one_passage_stay_in_one_part_and_few_shot_examples_are_of_several():
    splits = split_questions(grouped_pool(30, 5), sizes=SplitSizes(None, validation=22, test=31, few_shot=3))
    assert [len(part) for part in parts(splits)] == [3, 31, 22, 150 - 3 * 5 - 7 * 5 - 5 * 5]
    for one, other in combinations(parts(splits), 2):
        assert not groups_in(one) & groups_in(other)
    assert len(groups_in(splits.few_shot)) == 3
    assert len(groups_in(splits.test)) == 7


def test_a_group_field_keeps_questions_together_also_through_a_passage():
    pool = make_pool(60)
    pool[:4] = [replace(q, extra={"group": "g"}) for q in pool[:4]]
    pool[4] = replace(pool[4], context="Kent.")
    pool[0] = replace(pool[0], context="Kent ", extra={"group": "g"})
    pool[5] = replace(pool[5], context="kent")
    for seed in range(20):
        splits = split_questions(pool, sizes=SMALL, seed=seed)
        together = [{q.id for q in part} & {"0", "1", "2", "3", "5"} for part in parts(splits)]
        assert sum(map(bool, together)) <= 1


def test_passages_of_the_test_file_are_taken_out_of_the_pool():
    pool, held_out = grouped_pool(20, 3), grouped_pool(5, 4)[3::4]  # question 3, not asked in the pool
    splits = split_questions(pool, test_questions=held_out, sizes=SplitSizes(None, 10, 5, 2))
    assert groups_in(splits.test) == {f"Passage {p}." for p in range(5)}
    assert not groups_in(splits.test) & groups_in(splits.calibration_train + splits.validation)


def test_near_duplicates_in_different_parts_are_counted_and_named():
    texts = ("What's the capital of Freedonia?", "What is the capital of Freedonia?")
    pair = [Question(text, text, ("Fredville",)) for text in texts]
    with pytest.warns(SemcalWarning, match="^1 pairs .*`group`"):
        splits = split_questions(pair, sizes=SplitSizes(0, validation=1, test=1, few_shot=0))
    assert set(splits.near[0]) == {*texts}


@pytest.mark.parametrize(
    ("one", "other", "near"),
    [
        ("What's the tallest tower?", "What is the tallest tower", True),
        ("In which year was Kim written?", "Kim was written in which year?", True),
        ("Who won the cup in 1956?", "Who won the cup in 1957?", False),
        ("Who wrote the novel Kim?", "Who wrote the novel Ivanhoe?", False),
        ("When was Kim born?", "Where was Kim born?", False),
    ],
)
def test_near_duplicates_differ_in_function_words_and_order(one, other, near):
    pair = {"a": [Question("1", one)], "b": [Question("2", other)]}
    assert near_duplicates(pair) == ((("1", "2"),) if near else ())
