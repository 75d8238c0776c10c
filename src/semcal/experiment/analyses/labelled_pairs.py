"""Clusters against labelled pairs: which answers to a question mean the same, where a data set knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semcal.registry import Registry

__all__ = ["PairErrors", "SameMeaning", "labels_of", "pair_errors"]

#: (question, an answer, another) → whether they mean the same; None where that is not known.
SameMeaning = Callable[[str, str, str], bool | None]
Counts = NDArray[np.int64]

_ATLAS = ("atlas-trivia", "atlas-rare", "atlas-reading")
_LABELS = Registry("labelled pairs", dict.fromkeys(_ATLAS, "semcal.demo.meanings:same_meaning"))


@dataclass(frozen=True, eq=False)
class PairErrors:
    """Pairs of distinct answers to N questions whose relation is known, and what clusters make of them.

    Attributes
    ----------
    same, different : ndarray of int64, shape (N,)
        Pairs that mean the same, and that do not.
    split, merged : ndarray of int64, shape (N,)
        Those of `same` that stand in two clusters, those of `different` that stand in one.
    """

    same: Counts
    different: Counts
    split: Counts
    merged: Counts

    @property
    def pairs(self) -> Counts:
        """All pairs that are labelled, (N,)."""
        return self.same + self.different

    @property
    def errors(self) -> Counts:
        """All pairs that stand wrongly, (N,)."""
        return self.split + self.merged


def labels_of(source: str) -> SameMeaning | None:
    """What knows which answers to the questions of a source mean the same; None where nothing does.

    Lists of references do not: they hold what counts as right, be it one meaning or several.
    """
    found: SameMeaning | None = _LABELS.load(source) if source in _LABELS.names() else None
    return found


def pair_errors(rows: Sequence[Mapping[str, Any]], same_meaning: SameMeaning) -> PairErrors:
    """Count the labelled pairs of each row, and those that its clusters get wrong.

    Parameters
    ----------
    rows : sequence of mappings
        With `question`, `samples` and `clusters`.
    same_meaning : callable

    Examples
    --------
    >>> row = {"question": "?", "samples": ["2", "two", "3", "2"], "clusters": [[0, 3], [1, 2]]}
    >>> found = pair_errors([row], lambda _, a, b: "3" not in (a, b))
    >>> [counts.tolist() for counts in (found.same, found.different, found.split, found.merged)]
    [[1], [2], [1], [1]]
    """
    counts = np.array([_counts(row, same_meaning) for row in rows], dtype=np.int64).reshape(-1, 4)
    return PairErrors(*counts.T)


def _counts(row: Mapping[str, Any], same_meaning: SameMeaning) -> tuple[int, int, int, int]:
    cluster = {row["samples"][i]: number for number, of in enumerate(row["clusters"]) for i in of}
    found = [
        (same, cluster[a] == cluster[b])
        for a, b in combinations(cluster, 2)
        for same in [same_meaning(row["question"], a, b)]
        if same is not None
    ]
    return (
        sum(same for same, _ in found),
        sum(not same for same, _ in found),
        found.count((True, False)),
        found.count((False, True)),
    )
