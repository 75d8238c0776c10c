"""Clusters of rows of sampled answers (spec section 5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semcal.engine.clustering import cluster_answers
from semcal.engine.equivalence import Equivalence
from semcal.engine.verdicts import CachedEquivalence
from semcal.pipeline.executor import Progress
from semcal.pipeline.rows import identity, log_likelihoods_of, question_of, samples_of
from semcal.pipeline.worker_state import WorkerState
from semcal.qa.normal_form import normal_form

__all__ = ["ClusterJob", "Clustered", "check_clusterable", "cluster_rows"]

Rows = list[dict[str, Any]]


def check_clusterable(row: Mapping[str, Any]) -> None:
    """Raise InputError unless the row can be clustered."""
    identity(row)
    question_of(row)
    log_likelihoods_of(row, len(samples_of(row)))


def cluster_rows(
    rows: Sequence[Mapping[str, Any]],
    *,
    equivalence: Equivalence,
    linkage: str = "components",
    merge_refusals: bool = False,
    progress: Callable[[int], None] | None = None,
) -> tuple[list[dict[str, Any]], int]:
    """Add `normal_forms` and `clusters` to rows, and return them with the number of NLI calls made.

    Rows have `question` and `samples`, whose texts are taken as they are and never cut. `linkage`
    ("components" or "greedy") makes clusters of pairs; with `merge_refusals` all refusals to answer are one
    meaning. `progress` gets the number of questions that are settled.
    """
    forms = [[normal_form(text) for text in samples_of(row)] for row in rows]
    clustering = cluster_answers(
        [question_of(row) for row in rows],
        forms,
        equivalence,
        linkage=linkage,
        merge_refusals=merge_refusals,
        progress=progress,
    )
    added = [
        {**row, "normal_forms": form, "clusters": clusters}
        for row, form, clusters in zip(rows, forms, clustering.clusters)
    ]
    return added, clustering.calls


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
