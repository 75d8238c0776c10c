"""Split questions into disjoint calibration-train, validation, test and few-shot sets (spec section 9).

Questions that share a passage or a value of the field `group` form a group. No two parts share a group.
Every group is ranked by a hash of (seed, normalized question and passage) of its alphabetically first
question; questions within a group are ranked by their own hash. A split therefore depends neither on the
order of the rows nor on their ids. The parts are filled in the order few-shot, test, validation,
calibration-train, and growing one part leaves the earlier parts unchanged.

Two questions without passages, in different parts, are near-duplicates if they have the same words in any
order. Function words ("What's X?", "What is the X?") are ignored.
"""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from semcal.data.question import (
    Question,
    RowData,
    Ties,
    group_labels,
    group_ties,
    passage_key,
    ties_of,
    turns_of,
)
from semcal.errors import InputError, SemcalWarning

Group = list[Question]

FEW_SHOT_CLOSED_BOOK, FEW_SHOT_OPEN_BOOK = 10, 4
#: Words that do not change a question, with the rest of a contraction ("what's").
_FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an the this that there of in on at to for by is are was were be been am do does did has have had "
        "will would s re ve ll d m",
    )
)


@dataclass(frozen=True)
class SplitSizes:
    """The number of questions of each split; the defaults are the paper's."""

    calibration_train: int | None = 60_000  # for the fit; None takes all that the other splits leave
    validation: int = 2_000  # for the selection
    test: int = 2_000  # for the evaluation
    few_shot: int | None = None  # examples in every prompt; None is 10 closed book, 4 open book

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            if size is not None and size < 0:
                raise InputError(f"{name} must be 0 or more questions, got {size}")


@dataclass(frozen=True)
class Splits:
    """Four sets of questions, disjoint by id, by normalised question with its passage, and by group."""

    calibration_train: tuple[Question, ...]
    validation: tuple[Question, ...]
    test: tuple[Question, ...]
    few_shot: tuple[Question, ...]
    near: tuple[tuple[str, str], ...] = ()  # ids of near-duplicates in different parts, which stay there


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation."""
    text = unicodedata.normalize("NFKC", text).casefold()
    return "".join(" " if unicodedata.category(c)[0] in "PSZC" else c for c in text).split()


def _content(question: str) -> tuple[str, ...]:
    """Return the content words of a question in order of the alphabet; all words if there are no others."""
    all_words = sorted(words(question))
    return tuple(word for word in all_words if word not in _FUNCTION_WORDS) or tuple(all_words)


def near_duplicates(parts: Mapping[str, Sequence[Question]]) -> tuple[tuple[str, str], ...]:
    """Return the ids of near-duplicates in different parts, the id of the earlier part first.

    Questions with a passage or messages are ignored: equal words with another passage ask something else.

    >>> train = [Question("1", "What's the capital of Freedonia?"), Question("2", "Who found it in 1901?")]
    >>> test = [Question("3", "What is the capital of Freedonia?"), Question("4", "Who found it in 1902?")]
    >>> near_duplicates({"train": train, "test": test})
    (('1', '3'),)
    """
    seen: dict[tuple[str, ...], list[tuple[int, str]]] = defaultdict(list)
    pairs: dict[tuple[str, str], None] = {}
    for number, questions in enumerate(parts.values()):
        for question in questions:
            if question.context is None and not question.messages:
                alike = seen[_content(question.question)]
                pairs |= {(id, question.id): None for part, id in alike if part != number}
                alike.append((number, question.id))
    return tuple(pairs)


def question_key(question: Question) -> str:
    """Return a key that equal questions share: words without case and punctuation, and the passage.

    The words of a question with messages are those of all turns.
    """
    return f"{' '.join(words(question.text)) or question.text}\n{passage_key(question.context)}"


def question_ties(row: RowData) -> Ties:
    """Return the ties of a row: its passage, its group, and the question itself."""
    question, context, messages = row.get("question"), row.get("context"), turns_of(row.get("messages"))
    if not isinstance(question, str) and not messages:
        return ties_of(row)
    passage = context if isinstance(context, str) else None
    key = question_key(Question("", question or "", (), passage, messages=messages))
    return (*ties_of(row), ("question", key))


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
        The test or development part of the data set, if it has one. The test split is taken from it. Its
        questions, and all questions of the same groups, are removed from the pool.
    sizes : SplitSizes, optional
        Number of questions of each part. The default is the paper's.
    seed : int
        Random seed of the splits. It is not the seed of a run: all runs and methods share their splits.

    Raises
    ------
    InputError
        If there are too few questions, one has no answer, or one id names two different questions.

    Warns
    -----
    SemcalWarning
        If near-duplicates are in different parts.

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
    groups, test_groups = _grouped(ranked, ranked_test, seed)
    open_book = any(question.context is not None for question in ranked.values())
    usual = FEW_SHOT_OPEN_BOOK if open_book else FEW_SHOT_CLOSED_BOOK
    few_shot = usual if sizes.few_shot is None else sizes.few_shot
    train = sizes.calibration_train
    expected = {"few-shot": few_shot, "test": sizes.test, "validation": sizes.validation}
    pool_groups = iter(groups)
    parts = {
        "few-shot": _next_part(pool_groups, few_shot, a_group=1),
        "test": _next_part(pool_groups if test_questions is None else iter(test_groups), sizes.test),
        "validation": _next_part(pool_groups, sizes.validation),
        "calibration-train": _next_part(pool_groups, train),
    }
    for name, size in (expected | {"calibration-train": train or 0}).items():
        if len(parts[name]) < size:
            raise InputError(
                f"{name}: {len(parts[name])} questions are left, expected {size}. The questions of a group "
                "stay in one part, and each few-shot example has a group of its own. Reduce the sizes in "
                "SplitSizes (calibration_train=None takes the rest), or add questions."
            )
    near = near_duplicates(parts)
    warn_of_near_duplicates(near)
    return Splits(
        few_shot=parts["few-shot"],
        test=parts["test"],
        validation=parts["validation"],
        calibration_train=parts["calibration-train"],
        near=near,
    )


def warn_of_near_duplicates(pairs: Sequence[tuple[str, str]]) -> None:
    """Warn about near-duplicates in different parts, naming the first three."""
    if pairs:
        examples = ", ".join(f"{first!r} and {second!r}" for first, second in pairs[:3])
        warnings.warn(
            f"{len(pairs):,} pairs of nearly equal questions are in different parts ({examples}, …). Give "
            "such questions one value in the field `group`, or remove one of them.",
            SemcalWarning,
            stacklevel=3,
        )


def _grouped(
    ranked: Mapping[str, Question], ranked_test: Mapping[str, Question], seed: int
) -> tuple[list[Group], list[Group]]:
    """Groups of the pool that have no test question, and groups of the test questions."""
    keys = [*ranked, *ranked_test]
    questions = [*ranked.values(), *ranked_test.values()]
    places_of: dict[int, list[int]] = defaultdict(list)
    for place, label in enumerate(group_labels(map(group_ties, questions)).tolist()):
        places_of[label].append(place)
    order = sorted(places_of.values(), key=lambda places: _rank(seed, min(keys[place] for place in places)))
    pool = [places for places in order if places[-1] < len(ranked)]
    held_out = [[place for place in places if place >= len(ranked)] for places in order]
    return (
        [[questions[place] for place in places] for places in pool],
        [[questions[place] for place in places] for places in held_out if places],
    )


def _next_part(
    groups: Iterator[Group], size: int | None, *, a_group: int | None = None
) -> tuple[Question, ...]:
    """Take `size` questions (None: all), at most `a_group` of each group."""
    members: Group = []
    while (size is None or len(members) < size) and (group := next(groups, None)) is not None:
        members += group[:a_group]
    return tuple(members[:size])


def _check(questions: Sequence[Question]) -> None:
    keys: dict[str, str] = {}
    for question in questions:
        if not question.answers:
            raise InputError(f"question {question.id!r} has no answers. Give it reference answers.")
        key = question_key(question)
        if keys.setdefault(question.id, key) != key:
            raise InputError(f"the id {question.id!r} names two different questions. Give each its own id.")


def _ranked(questions: Sequence[Question], seed: int) -> dict[str, Question]:
    """One question per key, in the order of the hashes; of equal questions the one with the smallest id."""
    unique: dict[str, Question] = {}
    for question in questions:
        key = question_key(question)
        if key not in unique or question.id < unique[key].id:
            unique[key] = question
    return {key: unique[key] for key in sorted(unique, key=lambda key: _rank(seed, key))}


def _rank(seed: int, key: str) -> bytes:
    return blake2b(f"{seed}\n{key}".encode(), digest_size=16).digest()
