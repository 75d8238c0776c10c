"""Clustering answers by meaning with as few NLI calls as possible (spec section 5, 4-6).

Two answers are equivalent when each entails the other. `components` takes the connected components of
that relation, `greedy` lets each answer join the first cluster whose first member it is equivalent to.
Both grow one cluster at a time: a member is compared with every answer that has no cluster yet, with
`components` every member, with `greedy` only the first. So no answer is compared with a member of its own
cluster, and each compared pair can change the result. `complete` needs all pairs: those of a cluster are
all equivalent.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import ClassVar

from semcal.errors import InputError
from semcal.meaning.answer import is_refusal
from semcal.measures import complete
from semcal.models.equivalence import (
    CachedEquivalence,
    Equivalence,
    ExactMatch,
    Triple,
    count_invalid,
    form_by,
)
from semcal.registry import check_name
from semcal.rows import AnswerKind, Clusters, Row, RowsAt, stated_answers
from semcal.steps import WorkerState
from semcal.text.values import values_differ, values_read
from semcal.workers import Progress

LINKAGES = ("components", "greedy", "complete")
#: Pairs per round: questions start as others finish, so that batches stay full and memory bounded.
PAIRS_PER_ROUND = 2048

Pair = tuple[str, str]
#: Yields the pairs to compare next, is sent their verdicts, returns the clusters.
Search = Generator[list[Pair], list[bool] | None, list[list[str]]]
_Differ = Callable[[str, str], bool]
#: Takes how many samples each answer has, in the order of the first ones.
_Searcher = Callable[[dict[str, int], _Differ], Search]
#: Whether a search may end: clusters, the last of which is growing, and answers that have none yet.
Enough = Callable[[list[list[str]], list[str]], bool]


@dataclass(frozen=True)
class Clustering:
    """Clusters of every question, and their cost."""

    clusters: list[list[list[int]]]  # per question a partition of its samples, numbered by first sample
    calls: int  # ordered pairs that the equivalence decided
    plain_calls: int  # all ordered pairs of samples, m (m − 1) per question: the cost of deciding each


def cluster_answers(
    questions: Sequence[str],
    normal_forms: Sequence[Sequence[str]],
    equivalence: Equivalence,
    *,
    linkage: str = "components",
    merge_refusals: bool = False,
    read_as: Sequence[Sequence[str]] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Clustering:
    """Group the sampled answers of each question by meaning.

    Equal normal forms mean the same. The empty answer is a cluster of its own, and two answers that state
    different values (`semcal.text.values`) are never equivalent; neither needs the model. Of all other pairs
    of distinct normal forms it decides those that the partition depends on, each ordered pair at most once
    and the second direction only where the first entails.

    Parameters
    ----------
    questions : sequence of str, length Q
    normal_forms : sequence of sequence of str, length Q
        The normal forms of each question's samples; their number m may differ by question.
    equivalence : Equivalence
        Decides whether one answer entails another.
    linkage : {"components", "greedy", "complete"}
        Connected components of the relation (as the paper's code does); each answer to the first
        cluster whose first member it is equivalent to (Kuhn et al., 2023); or clusters in which all pairs
        are equivalent (:func:`semcal.measures.complete`, of the samples).
    merge_refusals : bool
        Put all refusals ("I don't know", …; see `semcal.meaning.answer`) into one cluster by rule.
    read_as : sequence of sequence of str, length Q, optional
        Normal forms from which values are read, where `normal_forms` are texts of another kind.
    progress : callable, optional
        Called with the number of questions finished so far, whenever it has grown.

    Raises
    ------
    InputError
        If there are not as many lists of normal forms as questions.
    UsageError
        If the linkage is unknown.

    Examples
    --------
    >>> from semcal.models.fakes import FakeEquivalence
    >>> clustering = cluster_answers(
    ...     ["Who wrote Hamlet?"],
    ...     [["shakespeare", "marlowe", "william shakespeare", "shakespeare"]],
    ...     FakeEquivalence([{"shakespeare", "william shakespeare"}]),
    ... )
    >>> clustering.clusters
    [[[0, 2, 3], [1]]]
    >>> clustering.calls, clustering.plain_calls
    (4, 12)
    """
    check_name(linkage, LINKAGES, what="linkage")
    if len(questions) != len(normal_forms):
        raise InputError(
            f"every question needs its list of normal forms: got {len(questions)} questions "
            f"and {len(normal_forms)} lists"
        )
    search = _equality if isinstance(equivalence, ExactMatch) else _SEARCHES[linkage]
    rows = [
        _Row(question, forms, search, merge_refusals, read)
        for question, forms, read in zip(questions, normal_forms, read_as or normal_forms, strict=True)
    ]
    verdicts = Verdicts(equivalence)
    finished = 0
    for newly_finished in finish(rows, verdicts):
        finished += newly_finished
        if progress is not None and newly_finished:
            progress(finished)
    return Clustering(
        clusters=[row.clusters() for row in rows],
        calls=verdicts.calls,
        plain_calls=sum(len(forms) * (len(forms) - 1) for forms in normal_forms),
    )


class QuestionSearch:
    """The search for the clusters of one question's distinct answers."""

    def __init__(self, question: str, search: Search) -> None:
        self.question = question
        self.pending: list[Pair] = []
        self.found: list[list[str]] = []
        self._search = search

    def advance(self, verdicts: list[bool] | None) -> bool:
        """Take the verdicts on the pending pairs (None at the start); true if more pairs are pending."""
        try:
            self.pending = self._search.send(verdicts)
        except StopIteration as finished:
            self.pending, self.found = [], finished.value
        return bool(self.pending)


class _Row(QuestionSearch):
    """One question: the samples of each distinct answer, and the search for its clusters."""

    def __init__(
        self,
        question: str,
        forms: Sequence[str],
        search: _Searcher,
        merge_refusals: bool,
        read_as: Sequence[str],
    ) -> None:
        self._positions: dict[str | None, list[int]] = {}  # None is any refusal
        for position, form in enumerate(forms):
            key = None if merge_refusals and is_refusal(form) else form
            self._positions.setdefault(key, []).append(position)
        self._read_as = dict(zip(forms, read_as))
        answers = {key: len(at) for key, at in self._positions.items() if key}  # no "", no refusals
        super().__init__(question, search(answers, self._differ))

    def _differ(self, a: str, b: str) -> bool:
        return values_differ(self._read_as[a], self._read_as[b])

    def clusters(self) -> list[list[int]]:
        """Clusters as sorted sample indices, ordered by first sample."""
        apart = [positions for key, positions in self._positions.items() if not key]
        together = [[i for form in cluster for i in self._positions[form]] for cluster in self.found]
        return sorted(sorted(cluster) for cluster in apart + together)


def _equality(forms: dict[str, int], _: _Differ) -> Search:
    """Each distinct normal form is a cluster; no pair is compared."""
    yield from ()
    return [[form] for form in forms]


def _complete(forms: dict[str, int], differ: _Differ) -> Search:
    """Compare all pairs, the commonest answers first, and link the samples."""
    ordered = sorted(forms, key=lambda form: (-forms[form], *_rank(form)))
    pairs = [pair for pair in combinations(ordered, 2) if not differ(*pair)]
    verdicts = (yield pairs) if pairs else None
    equivalent = {frozenset(pair) for pair, verdict in zip(pairs, verdicts or []) if verdict}
    samples = [form for form in ordered for _ in range(forms[form])]
    related = [[a == b or {a, b} in equivalent for b in samples] for a in samples]
    return [sorted({samples[i] for i in cluster}) for cluster in complete(related)]


def grow(forms: list[str], differ: _Differ, *, linkage: str, enough: Enough | None = None) -> Search:
    """Grow one cluster after the other from the first answer that has none, until that is `enough`.

    A member is compared with every answer that has no cluster yet: with "greedy" the first member alone.
    What then has no cluster is not in the result.
    """
    clusters: list[list[str]] = []
    while forms:
        first, *forms = forms
        cluster = [first]
        clusters.append(cluster)
        for member in cluster if linkage == "components" else (first,):  # the list grows during the loop
            if enough is not None and enough(clusters, forms):
                return clusters
            matches, forms = yield from _matches(member, forms, differ)
            cluster += matches
    return clusters


def _matches(
    member: str, answers: list[str], differ: _Differ
) -> Generator[list[Pair], list[bool] | None, tuple[list[str], list[str]]]:
    """Split `answers` into those equivalent to `member` and the rest, in order."""
    pairs = [(member, answer) for answer in answers if not differ(member, answer)]
    verdicts = (yield pairs) if pairs else None
    equivalent = {answer for (_, answer), verdict in zip(pairs, verdicts or []) if verdict}
    return [o for o in answers if o in equivalent], [o for o in answers if o not in equivalent]


_SEARCHES: dict[str, _Searcher] = {
    # components do not depend on the order; a fixed one lets later runs find their verdicts in the cache
    "components": lambda forms, differ: grow(sorted(forms, key=_rank), differ, linkage="components"),
    "greedy": lambda forms, differ: grow(list(forms), differ, linkage="greedy"),
    "complete": _complete,
}


def _rank(form: str) -> tuple[int, str]:
    """Short answers first: they are common, and less likely to entail a longer one."""
    return len(form), form


@dataclass
class Verdicts:
    """Verdicts on pairs, each decided once, the reverse direction only where the first entails."""

    equivalence: Equivalence
    calls: int = 0
    _verdicts: dict[Triple, bool] = field(default_factory=dict)

    def equivalent(self, questions: Sequence[str], pairs: Sequence[Pair]) -> list[bool]:
        """For each pair, whether both directions entail."""
        triples = [(q, min(pair, key=_rank), max(pair, key=_rank)) for q, pair in zip(questions, pairs)]
        forward = self._entails(triples)
        if getattr(self.equivalence, "symmetric", False):
            return forward
        back = [(q, b, a) for (q, a, b), entailed in zip(triples, forward) if entailed]
        backward = iter(self._entails(back))
        return [entailed and next(backward) for entailed in forward]

    def _entails(self, triples: Sequence[Triple]) -> list[bool]:
        unknown = [triple for triple in dict.fromkeys(triples) if triple not in self._verdicts]
        if unknown:
            self._verdicts.update(zip(unknown, self.equivalence.entails(unknown), strict=True))
            self.calls += len(unknown)
        return [self._verdicts[triple] for triple in triples]


def finish(searches: Iterable[QuestionSearch], verdicts: Verdicts) -> Iterator[int]:
    """Finish all searches, many at a time; yields after each round how many it has finished."""
    waiting = iter(searches)
    active: list[QuestionSearch] = []
    while True:
        finished = 0
        pairs = sum(len(row.pending) for row in active)
        while pairs < PAIRS_PER_ROUND and (row := next(waiting, None)) is not None:
            if row.advance(None):
                active.append(row)
                pairs += len(row.pending)
            else:
                finished += 1
        if not active:
            yield finished
            return
        questions = [row.question for row in active for _ in row.pending]
        pending = [pair for row in active for pair in row.pending]
        decided = iter(verdicts.equivalent(questions, pending))
        remaining = [row for row in active if row.advance([next(decided) for _ in row.pending])]
        yield finished + len(active) - len(remaining)
        active = remaining


@dataclass(frozen=True)
class Grouping:
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
    normal_form = form_by(equivalence)
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
        progress=progress and (lambda count: progress(count * len(rows) // len(parts))),
    )
    clusters: list[list[list[int]]] = [[] for _ in rows]
    for (number, part), clusters_of_part in zip(parts, clustering.clusters):
        clusters[number] += [[part[i] for i in cluster] for cluster in clusters_of_part]
    clustered = [
        row.add(Clusters(form, sorted(row_clusters)))
        for row, form, row_clusters in zip(rows, forms, clusters)
    ]
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


def match_answers(rows: Sequence[Row], kind: AnswerKind, equivalence: Equivalence) -> list[Row]:
    """Find the meaning of an answer that is not read of the draws, "greedy" or "given", among their clusters.

    It is that of the draws of the answer's normal form; else the one most of whose draws are equivalent to
    the answer, of several the largest and then the first; and none where no draw is, or where the answer is a
    text without a normal form (none of the labels). Rows are clustered, of
    draws at one temperature each.
    """
    normal_form, exact = form_by(equivalence), isinstance(equivalence, ExactMatch)
    answers = stated_answers(rows, kind)
    forms = [[normal_form(text) for text in row.samples] for row in rows]
    searches = [
        QuestionSearch(row.question, _same_as(normal_form(answer.text), of_draws, row.finished, exact=exact))
        for row, answer, of_draws in zip(rows, answers, forms)
    ]
    for _ in finish(searches, Verdicts(equivalence)):
        pass
    matched = []
    for row, answer, of_draws, search in zip(rows, answers, forms, searches):
        same = set(filter(None, search.found[0])) if answer.text.strip() else {""}
        agree = [sum(of_draws[i] in same for i in cluster) for cluster in row.clusters]
        best = max(range(len(agree)), key=lambda k: (agree[k], len(row.clusters[k]), -k))
        matched.append(row.set_stated(kind, replace(answer, cluster=best if agree[best] else None)))
    return matched


def match_at(rows: RowsAt, kind: AnswerKind, equivalence: Equivalence | None) -> RowsAt:
    """`match_answers` at each temperature, each pair decided once; "modal" rows as they are."""
    if kind == "modal":
        return rows
    assert equivalence is not None
    matched = iter(match_answers([row for part in rows.values() for row in part], kind, equivalence))
    return {t: [next(matched) for _ in part] for t, part in rows.items()}


def _same_as(form: str, forms: Sequence[str], finished: Sequence[bool], *, exact: bool) -> Search:
    """Compare a normal form with the others, unless one of them is the same."""
    if form in forms or exact or not form:
        yield from ()
        return [[form]]
    (value,) = values_read([form], [True])
    others = dict(zip(forms, values_read(forms, finished)))
    pairs = [(form, other) for other, read in others.items() if other and not values_differ(value, read)]
    verdicts = (yield pairs) if pairs else None
    return [[form, *(other for (_, other), same in zip(pairs, verdicts or []) if same)]]


def _by_temperature(row: Row) -> list[list[int]]:
    """The draws of each temperature; all of them where the row names none."""
    temperatures = row.temperatures or [1.0] * len(row.samples)
    return [[i for i, t in enumerate(temperatures) if t == value] for value in dict.fromkeys(temperatures)]


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
            calls=clustered.calls,
            hits=clustered.hits,
            pairs=sum(n * (n - 1) for n in n_draws),
            draws=sum(n_draws),
            invalid=sum(count_invalid(models.equivalence, row.samples) for row in answered),
        )
        clustered_rows = iter(clustered.rows)
        return [row if row.failure else next(clustered_rows) for row in rows]


def _hits(equivalence: Equivalence) -> int:
    return equivalence.hits if isinstance(equivalence, CachedEquivalence) else 0
