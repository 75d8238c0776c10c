"""Which questions belong together: those on one passage, or with one value in the field `group`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from semcal.errors import InputError, shown

if TYPE_CHECKING:
    from semcal.qa.datasets import Question

__all__ = ["GROUP", "Ties", "group_labels", "group_of", "group_ties", "passage_key", "several", "ties_of"]

#: The field of a row that names its group.
GROUP = "group"
Ties = tuple[Any, ...]
"""What a question shares with the others of its group: values, of which one in common is enough."""


@lru_cache(maxsize=4096)  # the rows of all candidates and runs keep one copy
def passage_key(context: str | None) -> str:
    """Return what passages share that differ at most in case and white space; "" for none."""
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
    """Return what a row shares with others of its group, from its keys `context` and `group`."""
    context, group = row.get("context"), group_of(row)
    passage = passage_key(context) if isinstance(context, str) else ""
    return tuple((kind, tie) for kind, tie in (("passage", passage), (GROUP, group)) if tie not in ("", None))


def group_ties(question: Question) -> Ties:
    """Return what a question shares with others of its group."""
    return ties_of({"context": question.context, GROUP: question.extra.get(GROUP)})


def group_labels(ties: Iterable[Ties]) -> NDArray[np.intp]:
    """Number the groups, 0, 1, … in order of first appearance; one tie in common is enough, also by others.

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
    """Return the group of each question as `group_labels` does; None where each question is its own."""
    labels = group_labels(ties)
    return labels if len(labels) > len(np.unique(labels)) else None
