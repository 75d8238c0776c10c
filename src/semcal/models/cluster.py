"""Clusters of rows of sampled answers (spec section 5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from semcal.models.clustering import cluster_answers
from semcal.models.equivalence import CachedEquivalence, Equivalence
from semcal.rows import Clusters, Row
from semcal.steps import WorkerState
from semcal.text.normal_form import normal_form
from semcal.text.values import values_read
from semcal.workers import Progress


@dataclass(frozen=True)
class Clustering:
    """How answers are grouped by meaning."""

    equivalence: Equivalence
    linkage: str = "components"


def check_clusterable(row: Row) -> None:
    """Raise InputError unless the row can be clustered."""
    _ = row.id, row.question, row.samples, row.log_likelihoods, row.finished, row.temperatures


@dataclass(frozen=True)
class ClusteredRows:
    """Rows with clusters, and what they cost."""

    rows: list[Row]
    calls: int  # pairs that had to be decided
    hits: int = 0  # those of them that the file of verdicts knew


def cluster_rows(
    rows: Sequence[Row],
    *,
    equivalence: Equivalence,
    linkage: str = "components",
    merge_refusals: bool = False,
    progress: Callable[[int], None] | None = None,
) -> ClusteredRows:
    """Add `normal_forms` and `clusters` to rows.

    Rows have `question` and `samples`, whose texts are taken as they are and never cut; a number at the end
    of one that is not `finished` keeps none apart. Samples of several `temperatures` are clustered apart, and
    all clusters stand in the order of their first samples. `linkage` ("components", "greedy", "complete")
    makes clusters of pairs; with `merge_refusals` all refusals to answer are one meaning. `progress` gets the
    number of questions that are settled.
    """
    hits = _hits(equivalence)
    forms = [[normal_form(text) for text in row.samples] for row in rows]
    values = [values_read(form, row.finished) for row, form in zip(rows, forms)]
    parts = [(number, part) for number, row in enumerate(rows) for part in _by_temperature(row)]
    clustering = cluster_answers(
        [rows[number].question for number, _ in parts],
        [[forms[number][i] for i in part] for number, part in parts],
        equivalence,
        linkage=linkage,
        merge_refusals=merge_refusals,
        read_as=[[values[number][i] for i in part] for number, part in parts],
        progress=progress and (lambda done: progress(done * len(rows) // len(parts))),
    )
    clusters: list[list[list[int]]] = [[] for _ in rows]
    for (number, part), clusters_of_part in zip(parts, clustering.clusters):
        clusters[number] += [[part[i] for i in cluster] for cluster in clusters_of_part]
    clustered = [row.add(Clusters(form, sorted(found))) for row, form, found in zip(rows, forms, clusters)]
    return ClusteredRows(clustered, clustering.calls, _hits(equivalence) - hits)


def cluster_missing(
    rows: Sequence[Row],
    *,
    equivalence: Equivalence,
    linkage: str,
    progress: Callable[[int], None] | None = None,
) -> list[Row]:
    """Cluster the rows that hold no `clusters` yet; the others are as they were."""
    new = [row for row in rows if not row.has("clusters")]
    clustered = iter(cluster_rows(new, equivalence=equivalence, linkage=linkage, progress=progress).rows)
    return [row if row.has("clusters") else next(clustered) for row in rows]


def _by_temperature(row: Row) -> list[list[int]]:
    """The draws of each temperature; all of them where the row names none."""
    temperatures = row.temperatures or [1.0] * len(row.samples)
    return [[i for i, t in enumerate(temperatures) if t == one] for one in dict.fromkeys(temperatures)]


@dataclass(frozen=True)
class ClusterStep:
    """Groups the answers of rows by meaning: `cluster_rows`."""

    name: ClassVar[str] = "cluster"
    needs: ClassVar[tuple[str, ...]] = ("equivalence",)
    linkage: str = "components"
    merge_refusals: bool = False

    def __call__(self, rows: Sequence[Row], models: WorkerState, progress: Progress) -> list[Row]:
        """Cluster those rows that a server has answered."""
        answered = [row for row in rows if row.failure is None]
        clustered = cluster_rows(
            answered,
            equivalence=models.equivalence,
            linkage=self.linkage,
            merge_refusals=self.merge_refusals,
            progress=progress,
        )
        n_draws = [len(part) for row in answered for part in _by_temperature(row)]
        models.costs.update(
            calls=clustered.calls, hits=clustered.hits, pairs=sum(n * (n - 1) for n in n_draws)
        )
        done = iter(clustered.rows)
        return [row if row.failure else next(done) for row in rows]


def _hits(equivalence: Equivalence) -> int:
    return equivalence.hits if isinstance(equivalence, CachedEquivalence) else 0
