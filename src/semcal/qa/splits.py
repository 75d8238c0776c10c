"""Calibration-train, validation, test and few-shot questions that share nothing (spec.md, section 9).

Every question is ranked by a hash of (seed, normalised question and passage), so a split depends
neither on the order of the rows nor on their ids, and growing one split leaves the earlier ones as
they were. The order is few-shot, test, validation, calibration-train.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice

from semcal.errors import InputError
from semcal.qa.datasets import Question

__all__ = ["SplitSizes", "Splits", "question_key", "split_questions"]

FEW_SHOT_CLOSED_BOOK, FEW_SHOT_OPEN_BOOK = 10, 4


@dataclass(frozen=True)
class SplitSizes:
    """How many questions each split gets; the defaults are the paper's.

    Parameters
    ----------
    calibration_train : int or None
        For the fit; None takes all that the other splits leave.
    validation : int
        For the selection.
    test : int
        For the evaluation.
    few_shot : int or None
        Examples in every prompt; None is 10 closed book, 4 open book.
    """

    calibration_train: int | None = 60_000
    validation: int = 2_000
    test: int = 2_000
    few_shot: int | None = None

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            if size is not None and size < 0:
                raise InputError(f"{name} must be 0 or more questions, got {size}")


@dataclass(frozen=True)
class Splits:
    """Four sets of questions, disjoint by id and by normalised question with its passage.

    Parameters
    ----------
    calibration_train, validation, test, few_shot : tuple of Question
        The splits.
    repeated : int
        Questions left out because they ask what another one asks.
    """

    calibration_train: tuple[Question, ...]
    validation: tuple[Question, ...]
    test: tuple[Question, ...]
    few_shot: tuple[Question, ...]
    repeated: int


def question_key(question: Question) -> str:
    """Return what two questions share exactly if they ask the same: words without case and punctuation.

    Examples
    --------
    >>> a, b = Question("1", "Who  wrote “Moonfleet”?"), Question("2", "who wrote moonfleet")
    >>> question_key(a) == question_key(b)
    True
    >>> c, d = Question("3", "Who fell?", context="Ada."), Question("4", "Who fell?", context="Bo.")
    >>> question_key(c) == question_key(d)
    False
    """
    passage = "" if question.context is None else " ".join(question.context.casefold().split())
    return f"{_words(question.question) or question.question}\n{passage}"


def _words(text: str) -> str:
    text = unicodedata.normalize("NFKC", text).casefold()
    return " ".join("".join(" " if unicodedata.category(c)[0] in "PSZC" else c for c in text).split())


def split_questions(
    questions: Iterable[Question],
    *,
    test_questions: Iterable[Question] | None = None,
    sizes: SplitSizes | None = None,
    seed: int = 0,
) -> Splits:
    """Split questions into calibration-train, validation, test and few-shot examples.

    Parameters
    ----------
    questions : iterable of Question
        The pool. Few-shot examples come from it and are used nowhere else.
    test_questions : iterable of Question, optional
        Where the data set has a test or development part of its own: the test split is drawn from it, and
        what it asks is taken out of the pool.
    sizes : SplitSizes, optional
        How many of each; by default the paper's.
    seed : int
        Another seed draws other splits. It is no run's seed: all runs and methods share their splits.

    Returns
    -------
    Splits

    Raises
    ------
    InputError
        If there are too few questions, one has no answer, or one id names two different questions.

    Examples
    --------
    >>> pool = [Question(str(n), f"What is {n} plus one?", (str(n + 1),)) for n in range(9)]
    >>> splits = split_questions(pool, sizes=SplitSizes(None, validation=2, test=3, few_shot=1))
    >>> [len(part) for part in (splits.calibration_train, splits.validation, splits.test, splits.few_shot)]
    [3, 2, 3, 1]
    """
    sizes = sizes or SplitSizes()
    pool = list(questions)
    held_out = [] if test_questions is None else list(test_questions)
    _check([*pool, *held_out])
    ranked_test = _ranked(held_out, seed)
    ranked = {key: question for key, question in _ranked(pool, seed).items() if key not in ranked_test}
    repeated = len(pool) + len(held_out) - len(ranked) - len(ranked_test)
    few_shot = _few_shot_size(ranked.values()) if sizes.few_shot is None else sizes.few_shot
    wanted = {"few-shot": few_shot, "validation": sizes.validation}
    wanted["calibration-train"] = sizes.calibration_train or 0
    if test_questions is None:
        _check_enough(ranked, wanted | {"test": sizes.test})
    else:
        _check_enough(ranked, wanted)
        _check_enough(ranked_test, {"test": sizes.test})
    rest = iter(ranked.values())
    test_pool = rest if test_questions is None else iter(ranked_test.values())
    return Splits(
        few_shot=tuple(islice(rest, few_shot)),
        test=tuple(islice(test_pool, sizes.test)),
        validation=tuple(islice(rest, sizes.validation)),
        calibration_train=tuple(islice(rest, sizes.calibration_train)),
        repeated=repeated,
    )


def _check(questions: Sequence[Question]) -> None:
    keys: dict[str, str] = {}
    for question in questions:
        if not question.answers:
            raise InputError(f"question {question.id!r} has no answers: splits are for labelled questions")
        key = question_key(question)
        if keys.setdefault(question.id, key) != key:
            raise InputError(f"the id {question.id!r} names two different questions: give each its own")


def _ranked(questions: Sequence[Question], seed: int) -> dict[str, Question]:
    """One question per key, in the order of their hashes; of several the one with the smallest id."""
    unique: dict[str, Question] = {}
    for question in questions:
        key = question_key(question)
        if key not in unique or question.id < unique[key].id:
            unique[key] = question
    return {key: unique[key] for key in sorted(unique, key=lambda key: _rank(seed, key))}


def _rank(seed: int, key: str) -> bytes:
    return blake2b(f"{seed}\n{key}".encode(), digest_size=16).digest()


def _few_shot_size(questions: Iterable[Question]) -> int:
    open_book = any(question.context is not None for question in questions)
    return FEW_SHOT_OPEN_BOOK if open_book else FEW_SHOT_CLOSED_BOOK


def _check_enough(ranked: Mapping[str, Question], wanted: Mapping[str, int]) -> None:
    total = sum(wanted.values())
    if len(ranked) < total:
        parts = " + ".join(f"{size} {name}" for name, size in wanted.items() if size)
        raise InputError(
            f"{len(ranked)} different questions are too few for {parts} = {total}: "
            "ask for less with SplitSizes (calibration_train=None takes what is left), or bring more"
        )
