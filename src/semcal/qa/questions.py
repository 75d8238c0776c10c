"""A question with its answers, and which questions belong together: one passage, or one value of `group`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semcal.errors import InputError, QuestionError, RowError, shown
from semcal.records import dumps

__all__ = [
    "GROUP",
    "Question",
    "Ties",
    "data_hash",
    "group_labels",
    "group_of",
    "group_ties",
    "passage_key",
    "several",
    "ties_of",
]

#: The field of a row that names its group.
GROUP = "group"
Ties = tuple[Any, ...]
"""What ties a question to others of its group: values, of which one in common is enough."""


@dataclass(frozen=True)
class Question:
    """One question, its reference answers and, open book, its passage.

    Parameters
    ----------
    id : str
        Unique in its data set.
    question : str
        The question, on one line.
    answers : tuple of str
        Reference answers without duplicates, in the order of the source; few-shot examples show the first.
    context : str or None
        The passage, exactly as given.
    extra : mapping of str to object
        The other keys of the row.
    line : int or None
        Its line in the file, for messages.

    Examples
    --------
    >>> Question("q1", "Who wrote it?", ("Ana Velis",)).row()
    {'id': 'q1', 'question': 'Who wrote it?', 'answers': ['Ana Velis']}
    """

    id: str
    question: str
    answers: tuple[str, ...] = ()
    context: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
    line: int | None = field(default=None, compare=False, repr=False)

    def row(self) -> dict[str, Any]:
        """Return the question as a row of a file, without the passage or answers that it lacks."""
        context = {} if self.context is None else {"context": self.context}
        answers = {"answers": list(self.answers)} if self.answers else {}
        return {"id": self.id, "question": self.question, **context, **answers, **self.extra}

    def error(self, reason: str) -> RowError | QuestionError:
        """Return the error that a model cannot be asked it, with its line, if known, and its id."""
        if self.line is None:
            return QuestionError(self.id, reason)
        return RowError(self.line, reason, self.id)


def data_hash(questions: Sequence[Question]) -> str:
    """Return the hash of ids, questions, passages, reference answers and groups (if any), in order."""
    content = [
        [q.id, q.question, q.context, list(q.answers), *([q.extra[GROUP]] if GROUP in q.extra else [])]
        for q in questions
    ]
    return hashlib.sha256(dumps(content).encode()).hexdigest()[:32]


@lru_cache(maxsize=4096)  # the rows of all candidates and runs share one copy
def passage_key(context: str | None) -> str:
    """Return the same text for passages that differ only in case and white space; "" for none."""
    return "" if context is None else " ".join(context.casefold().split())


def group_of(row: Mapping[str, Any]) -> str | float | None:
    """Return the value of the field `group` of a row; None where it has none.

    Raises
    ------
    InputError
        If it is neither a text nor a number.

    Examples
    --------
    >>> group_of({"question": "Who?", "group": "chapter 3"}), group_of({"question": "Who?"})
    ('chapter 3', None)
    """
    value = row.get(GROUP)
    if value is None or isinstance(value, str) or (isinstance(value, (int, float)) and not math.isnan(value)):
        return value
    raise InputError(f"'{GROUP}' must be a text or a number that questions share, got {shown(value)}")


def ties_of(row: Mapping[str, Any]) -> Ties:
    """Return what ties a row to others of its group, from its keys `context` and `group`."""
    context, group = row.get("context"), group_of(row)
    passage = passage_key(context) if isinstance(context, str) else ""
    return tuple((kind, tie) for kind, tie in (("passage", passage), (GROUP, group)) if tie not in ("", None))


def group_ties(question: Question) -> Ties:
    """Return what ties a question to others of its group."""
    return ties_of({"context": question.context, GROUP: question.extra.get(GROUP)})


def group_labels(ties: Iterable[Ties]) -> NDArray[np.intp]:
    """Number the groups 0, 1, … in order of first appearance; ties count through third questions, too.

    Examples
    --------
    >>> group_labels([("a",), ("b",), (), ("b", "c"), ("c",), ()])
    array([0, 1, 2, 1, 1, 3])
    """
    above: list[int] = []
    first: dict[Any, int] = {}

    def root(place: int) -> int:
        while above[place] != place:
            above[place] = place = above[above[place]]
        return place

    for place, own in enumerate(ties):
        above.append(place)
        for tie in own:
            low, high = sorted((root(first.setdefault(tie, place)), root(place)))
            above[high] = low
    roots = [root(place) for place in range(len(above))]
    return np.unique(roots, return_inverse=True)[1].astype(np.intp) if roots else np.zeros(0, np.intp)


def several(ties: Iterable[Ties]) -> NDArray[np.intp] | None:
    """Return `group_labels`, or None if every question is a group of its own."""
    labels = group_labels(ties)
    return labels if len(labels) > len(np.unique(labels)) else None
