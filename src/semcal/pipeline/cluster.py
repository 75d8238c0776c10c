"""Clusters of rows of sampled answers (spec section 5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semcal.engine.clustering import cluster_answers
from semcal.engine.equivalence import CachedEquivalence, Equivalence
from semcal.pipeline.executor import Progress
from semcal.pipeline.rows import (
    finished_of,
    identity,
    log_likelihoods_of,
    question_of,
    samples_of,
    temperatures_of,
)
from semcal.pipeline.worker_state import WorkerState
from semcal.qa.normal_form import normal_form
from semcal.qa.values import values_read

Rows = list[dict[str, Any]]


def check_clusterable(row: Mapping[str, Any]) -> None:
    """Raise InputError unless the row can be clustered."""
    identity(row)
    question_of(row)
    log_likelihoods_of(row, m := len(samples_of(row)))
    finished_of(row, m)
    temperatures_of(row)


def cluster_rows(
    rows: Sequence[Mapping[str, Any]],
    *,
    equivalence: Equivalence,
    linkage: str = "components",
    merge_refusals: bool = False,
    progress: Callable[[int], None] | None = None,
) -> tuple[list[dict[str, Any]], int]:
    """Add `normal_forms` and `clusters` to rows, and return them with the number of NLI calls made.

    Rows have `question` and `samples`, whose texts are taken as they are and never cut; a number at the end
    of one that is not `finished` keeps none apart. Samples of several `temperatures` are clustered apart, and
    all clusters stand in the order of their first samples. `linkage` ("components", "greedy", "complete")
    makes clusters of pairs; with `merge_refusals` all refusals to answer are one meaning. `progress` gets the
    number of questions that are settled.
    """
    forms = [[normal_form(text) for text in samples_of(row)] for row in rows]
    read = [values_read(form, finished_of(row, len(form))) for row, form in zip(rows, forms)]
    parts = [(number, part) for number, row in enumerate(rows) for part in _drawn_alike(row)]
    clustering = cluster_answers(
        [question_of(rows[number]) for number, _ in parts],
        [[forms[number][i] for i in part] for number, part in parts],
        equivalence,
        linkage=linkage,
        merge_refusals=merge_refusals,
        read_as=[[read[number][i] for i in part] for number, part in parts],
        progress=progress and (lambda done: progress(done * len(rows) // len(parts))),
    )
    found: list[list[list[int]]] = [[] for _ in rows]
    for (number, part), clusters in zip(parts, clustering.clusters):
        found[number] += [[part[i] for i in cluster] for cluster in clusters]
    added = [
        {**row, "normal_forms": form, "clusters": sorted(clusters)}
        for row, form, clusters in zip(rows, forms, found)
    ]
    return added, clustering.calls


def cluster_new(
    rows: Sequence[Mapping[str, Any]],
    *,
    equivalence: Equivalence,
    linkage: str = "components",
    progress: Callable[[int], None] | None = None,
) -> list[Mapping[str, Any]]:
    """Return rows with `clusters`: those that they hold already, the others as `cluster_rows` finds them."""
    new = [row for row in rows if "clusters" not in row]
    found = iter(cluster_rows(new, equivalence=equivalence, linkage=linkage, progress=progress)[0])
    return [row if "clusters" in row else next(found) for row in rows]


def _drawn_alike(row: Mapping[str, Any]) -> list[list[int]]:
    """The samples of each temperature; all of them where the row names none."""
    given = temperatures_of(row) or [1.0] * len(samples_of(row))
    return [[i for i, t in enumerate(given) if t == chosen] for chosen in dict.fromkeys(given)]


@dataclass(frozen=True)
class Clustered:
    """Rows with clusters, and what they cost."""

    rows: Rows
    calls: int  # pairs that had to be decided
    hits: int  # those of them that the file of verdicts knew


@dataclass(frozen=True)
class ClusterJob:
    """Rows with `normal_forms` and `clusters`."""

    rows: tuple[Mapping[str, Any], ...]
    linkage: str = "components"
    merge_refusals: bool = False

    def __call__(self, state: WorkerState, progress: Progress) -> Clustered:
        """Cluster."""
        known = _hits(state.equivalence)
        rows, calls = cluster_rows(
            self.rows,
            equivalence=state.equivalence,
            linkage=self.linkage,
            merge_refusals=self.merge_refusals,
            progress=progress,
        )
        return Clustered(rows, calls, _hits(state.equivalence) - known)


def _hits(equivalence: Equivalence) -> int:
    return equivalence.hits if isinstance(equivalence, CachedEquivalence) else 0
