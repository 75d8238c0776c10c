"""Splits share no id and no question, and depend on seed and questions alone."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semcal.errors import InputError
from semcal.qa.datasets import Question, load_questions
from semcal.qa.splits import Splits, SplitSizes, question_key, split_questions

SMALL = SplitSizes(calibration_train=20, validation=10, test=15, few_shot=3)


def make_pool(n: int, *, prefix: str = "", context: str | None = None) -> list[Question]:
    return [Question(f"{prefix}{i}", f"What is {prefix} {i}?", (str(i),), context) for i in range(n)]


def parts(splits: Splits) -> list[tuple[Question, ...]]:
    return [splits.few_shot, splits.test, splits.validation, splits.calibration_train]


def assert_disjoint(splits: Splits) -> None:
    for one, other in combinations(parts(splits), 2):
        assert not {q.id for q in one} & {q.id for q in other}
        assert not {question_key(q) for q in one} & {question_key(q) for q in other}


def test_splits_have_the_sizes_asked_for_and_share_nothing():
    splits = split_questions(make_pool(60), sizes=SMALL)
    assert [len(part) for part in parts(splits)] == [3, 15, 10, 20]
    assert_disjoint(splits)


def test_the_defaults_are_the_papers():
    sizes = SplitSizes()
    assert (sizes.calibration_train, sizes.validation, sizes.test) == (60_000, 2_000, 2_000)
    rest = SplitSizes(calibration_train=None, validation=5, test=5)
    assert len(split_questions(make_pool(40), sizes=rest).few_shot) == 10
    assert len(split_questions(make_pool(40, context="Kent."), sizes=rest).few_shot) == 4


def test_calibration_train_takes_the_rest_when_it_has_no_size():
    splits = split_questions(make_pool(60), sizes=SplitSizes(None, validation=10, test=15, few_shot=3))
    assert len(splits.calibration_train) == 32


@given(st.randoms(use_true_random=False))
def test_splits_do_not_depend_on_the_order_of_the_rows(rng: random.Random):
    pool = make_pool(60)
    shuffled = pool[:]
    rng.shuffle(shuffled)
    assert split_questions(shuffled, sizes=SMALL) == split_questions(pool, sizes=SMALL)


def test_splits_do_not_depend_on_the_ids():
    pool = make_pool(60)
    renamed = [Question(f"new-{q.id}", q.question, q.answers) for q in pool]
    texts = [[q.question for q in part] for part in parts(split_questions(pool, sizes=SMALL))]
    assert texts == [[q.question for q in part] for part in parts(split_questions(renamed, sizes=SMALL))]


def test_another_seed_draws_other_splits():
    pool = make_pool(60)
    assert split_questions(pool, sizes=SMALL, seed=1).test != split_questions(pool, sizes=SMALL, seed=2).test


def test_a_larger_calibration_train_leaves_the_other_splits_alone():
    small = split_questions(make_pool(80), sizes=SMALL)
    large = split_questions(make_pool(80), sizes=SplitSizes(40, validation=10, test=15, few_shot=3))
    assert parts(small)[:3] == parts(large)[:3]
    assert large.calibration_train[:20] == small.calibration_train


def test_a_question_asked_twice_counts_once():
    twice = [Question(f"again-{q.id}", q.question.upper() + " ", q.answers) for q in make_pool(48)]
    splits = split_questions(make_pool(48) + twice, sizes=SMALL)
    assert splits.repeated == 48
    assert_disjoint(splits)
    assert all(not q.id.startswith("again") for part in parts(splits) for q in part)


def test_one_question_over_two_passages_is_two_questions():
    kent, essex = Question("a", "Who?", ("Ada",), "Kent."), Question("b", "Who?", ("Bo",), "Essex.")
    splits = split_questions([kent, essex], sizes=SplitSizes(None, validation=1, test=0, few_shot=0))
    assert splits.repeated == 0
    assert {*splits.calibration_train, *splits.validation} == {kent, essex}


def test_test_questions_of_their_own_are_taken_out_of_the_pool():
    held_out = make_pool(30, prefix="dev")
    leaked = [Question(f"leak-{q.id}", q.question, q.answers) for q in held_out]
    splits = split_questions(make_pool(40) + leaked, test_questions=held_out, sizes=SMALL)
    assert len(splits.test) == 15
    assert {q.id for q in splits.test} <= {q.id for q in held_out}
    assert splits.repeated == 30
    assert_disjoint(splits)


def test_the_same_row_in_both_files_is_left_out_of_the_pool():
    held_out = make_pool(20, prefix="dev")
    splits = split_questions(make_pool(40) + held_out, test_questions=held_out, sizes=SMALL)
    assert_disjoint(splits)


@pytest.mark.parametrize("held_out", [None, make_pool(10, prefix="dev")])
def test_too_few_questions_are_a_clear_error(held_out):
    with pytest.raises(InputError, match=r"different questions are too few for .*15 test.*SplitSizes"):
        split_questions(make_pool(47), test_questions=held_out, sizes=SMALL)


def test_the_error_adds_up_what_was_asked_for():
    with pytest.raises(
        InputError, match=r"^47 .* 3 few-shot \+ 10 validation \+ 20 calibration-train \+ 15 test = 48"
    ):
        split_questions(make_pool(47), sizes=SMALL)


def test_questions_that_cannot_be_split_are_named():
    with pytest.raises(InputError, match="question 'x' has no answers"):
        split_questions([*make_pool(60), Question("x", "Why?")], sizes=SMALL)
    with pytest.raises(InputError, match="the id '7' names two different questions"):
        split_questions([*make_pool(60), Question("7", "Why?", ("So",))], sizes=SMALL)
    with pytest.raises(InputError, match="validation must be 0 or more"):
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


def test_real_questions_split_without_overlap(semcal_data):
    sizes = SplitSizes(calibration_train=3000, validation=1000, test=1000)
    for name, few_shot in (("squad", 4), ("nq_open", 10), ("triviaqa", 10)):
        train = load_questions(semcal_data / f"{name}_train_sample.jsonl.gz")
        dev = load_questions(semcal_data / f"{name}_dev_sample.jsonl.gz")
        splits = split_questions(train, test_questions=dev, sizes=sizes)
        assert [len(part) for part in parts(splits)] == [few_shot, 1000, 1000, 3000]
        assert_disjoint(splits)
