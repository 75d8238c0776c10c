"""Cluster answers by meaning with few calls of a model (spec section 5, 4-6).

The units are the distinct original answers. Each unordered pair has one verdict. Rules, equal normal forms
and different values decide first (`semcal.meaning.rules.decide`). The model decides the other pairs: it reads
normal forms and must accept both directions.

`components` first joins pairs that are equal by rule, then pairs that the model accepts, by descending margin
and then by the texts. A pair that differs by rule is a cannot-link: a join that would put both answers into
one cluster is skipped. Therefore the clusters depend only on the set of texts. `greedy` lets each answer join
the first cluster whose first member it is equivalent to, without cannot-links. In `complete`, all pairs in a
cluster are equivalent.

The model does not decide pairs whose verdict cannot change the clusters. A connected component of accepted
pairs without a cannot-link is a cluster, whatever the order of joins. Therefore components are grown first,
and all pairs are decided only in components with a cannot-link.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any, ClassVar

from semcal.errors import InputError
from semcal.meaning.answer import is_refusal
from semcal.meaning.rules import decide
from semcal.measures.formulas import complete
from semcal.models.equivalence import (
    DEFAULT,
    Equivalence,
    ExactMatch,
    Triple,
    address_of,
    count_invalid,
    form_by,
    margins_by,
)
from semcal.registry import check_name
from semcal.rows import AnswerKind, Clusters, Json, Row, RowsAt, count_ends, stated_answers
from semcal.steps import Step, WorkerState
from semcal.text.normal_form import normal_form
from semcal.workers import Progress

LINKAGES = ("components", "greedy", "complete")
#: Pairs per round: new questions start when others finish, so that batches stay full and memory is bounded.
PAIRS_PER_ROUND = 2048

TextPair = tuple[str, str]
#: A generator that yields pairs of normal forms to compare, receives their margins, and returns the clusters.
Search = Generator[list[TextPair], list[float], list[list[str]]]


@dataclass(frozen=True)
class Clustering:
    """Clusters of every question, and their cost."""

    clusters: list[list[list[int]]]  # per question a partition of its samples, numbered by first sample
    calls: int  # number of ordered pairs of normal forms that the equivalence decided


def cluster_answers(
    questions: Sequence[str],
    answers: Sequence[Sequence[str | None]],
    equivalence: Equivalence,
    *,
    linkage: str = "components",
    merge_refusals: bool = False,
    finished: Sequence[Sequence[bool]] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Clustering:
    """Cluster the sampled answers of each question by meaning.

    Rules, equal normal forms and different values decide before the equivalence (see the module). Empty
    answers are one cluster, and so are missing answers (None). The equivalence decides the remaining pairs
    that can change the partition: each ordered pair of normal forms at most once, and the second direction
    only if the first entails.

    Parameters
    ----------
    questions : sequence of str, length Q
    answers : sequence of sequence of str or None, length Q
        The original samples of each question; their number m may differ between questions.
    equivalence : Equivalence
        Decides entailment. `ExactMatch` compares only forms, without rules.
    linkage : {"components", "greedy", "complete"}
        Connected components with cannot-links; greedy clusters, in which each answer joins the first cluster
        whose first member it is equivalent to (Kuhn et al., 2023); or clusters in which all pairs are
        equivalent (complete linkage of the samples).
    merge_refusals : bool
        Put all refusals ("I don't know", …) into one cluster.
    finished : sequence of sequence of bool, length Q, optional
        True for samples that ended before the token limit. A number at the end of a cut sample is ignored.
    progress : callable, optional
        Function that receives the number of finished questions when it increases.

    Raises
    ------
    InputError
        If the numbers of questions and lists of answers differ.
    UsageError
        If the linkage is unknown.

    Examples
    --------
    >>> from semcal.models.fakes import FakeEquivalence
    >>> clustering = cluster_answers(
    ...     ["Who wrote Hamlet?"],
    ...     [["Shakespeare", "marlowe", "the bard of Avon", "shakespeare"]],
    ...     FakeEquivalence([{"shakespeare", "bard of avon"}]),
    ... )
    >>> clustering.clusters
    [[[0, 2, 3], [1]]]
    >>> clustering.calls
    3
    """
    check_name(linkage, LINKAGES, what="linkage")
    if len(questions) != len(answers):
        raise InputError(
            f"answers: got {len(answers)} lists for {len(questions)} questions. Pass one list per question"
        )
    whole = [[True] * len(texts) for texts in answers] if finished is None else finished
    exact = equivalence if isinstance(equivalence, ExactMatch) else None
    units = [
        _samples_by_unit(question, texts, exact, merge_refusals)
        for question, texts in zip(questions, answers)
    ]
    searches = [
        _equality(samples)
        if exact
        else _SEARCHES[linkage](Relation(question, samples, _cut_texts(texts, ended)))
        for question, texts, ended, (samples, _) in zip(questions, answers, whole, units, strict=True)
    ]
    verdicts = Verdicts(equivalence)
    clusters = []
    for (samples, apart), found in zip(units, _finish(questions, searches, verdicts, progress)):
        together = [[i for text in cluster for i in samples[text]] for cluster in found]
        clusters.append(sorted(sorted(cluster) for cluster in [*apart, *together]))
    return Clustering(clusters, verdicts.calls)


def _samples_by_unit(
    question: str, texts: Sequence[str | None], exact: ExactMatch | None, merge_refusals: bool
) -> tuple[dict[str, list[int]], list[list[int]]]:
    """Return the samples of each distinct answer or form, and clusters that need no comparison."""
    samples: dict[str, list[int]] = {}
    apart: tuple[list[int], ...] = [], [], []  # without an answer, empty, and refusals
    for place, text in enumerate(texts):
        unit = text if exact is None or text is None else exact.form(text, question)
        if unit is None:
            apart[0].append(place)
        elif not unit.strip():
            apart[1].append(place)
        elif merge_refusals and is_refusal(unit):
            apart[2].append(place)
        else:
            samples.setdefault(unit, []).append(place)
    return samples, [cluster for cluster in apart if cluster]


def _cut_texts(texts: Sequence[str | None], finished: Sequence[bool | None]) -> set[str]:
    return {text for text, ended in zip(texts, finished) if not ended and text is not None}


class Relation:
    """The distinct answers of one question, and the verdict of rules on each pair of them."""

    def __init__(self, question: str, counts: dict[str, list[int]], cut: set[str]) -> None:
        self.texts = list(counts)  # in the order of their first samples
        self.counts = {text: len(positions) for text, positions in counts.items()}
        self.forms = {text: normal_form(text) for text in counts}
        self._question, self._cut = question, cut
        self._verdicts: dict[TextPair, bool | None] = {}

    def verdict(self, first: str, second: str) -> bool | None:
        """Return whether two answers mean the same by rule; None if no rule decides."""
        pair = (first, second) if first < second else (second, first)
        if pair not in self._verdicts:
            cut = pair[0] in self._cut, pair[1] in self._cut
            self._verdicts[pair] = decide(self._question, *pair, cut=cut)
        return self._verdicts[pair]

    def form_pair(self, first: str, second: str) -> TextPair:
        """Return the pair for the model: the normal forms of two answers, the shorter first."""
        one, other = sorted((self.forms[first], self.forms[second]), key=_rank)
        return one, other


def _equality(units: Iterable[str]) -> Search:
    """Return each distinct form as a cluster, without comparisons."""
    yield from ()
    return [[unit] for unit in units]


def _components(relation: Relation) -> Search:
    """Join pairs by descending margin, except across cannot-links."""
    texts = sorted(relation.texts)
    same = [pair for pair in combinations(texts, 2) if relation.verdict(*pair)]
    waiting = _join(texts, [(math.inf, *pair) for pair in same], relation)
    clusters: list[list[str]] = []
    while waiting:
        component, waiting = [waiting[0]], waiting[1:]
        for unit in component:  # the list grows during the loop
            near, waiting = yield from _accepted(unit, waiting, relation)
            component += near
        members = [text for unit in component for text in unit]
        if not any(_kept_apart(one, other, relation) for one, other in combinations(component, 2)):
            clusters.append(members)
            continue
        open_pairs = [
            pair
            for one, other in combinations(component, 2)
            if not _kept_apart(one, other, relation)
            for pair in product(one, other)
        ]
        margins = yield [relation.form_pair(*pair) for pair in open_pairs]
        joins = [(math.inf, unit[0], text) for unit in component for text in unit[1:]]
        joins += [(margin, min(pair), max(pair)) for margin, pair in zip(margins, open_pairs)]
        clusters += _join(members, [join for join in joins if join[0] > 0], relation)
    return clusters


def _accepted(
    unit: list[str], others: list[list[str]], relation: Relation
) -> Generator[list[TextPair], list[float], tuple[list[list[str]], list[list[str]]]]:
    """Split units into those that share an accepted pair with `unit`, and the rest."""
    queues = {
        place: list(dict.fromkeys(relation.form_pair(*pair) for pair in product(unit, other)))
        for place, other in enumerate(others)
        if not _kept_apart(unit, other, relation)
    }
    near = set()
    while queues:
        margins = yield [queue[0] for queue in queues.values()]
        near |= {place for place, margin in zip(queues, margins) if margin > 0}
        queues = {place: queue[1:] for place, queue in queues.items() if place not in near and queue[1:]}
    return (
        [other for place, other in enumerate(others) if place in near],
        [other for place, other in enumerate(others) if place not in near],
    )


def _kept_apart(one: Iterable[str], other: Iterable[str], relation: Relation) -> bool:
    return any(relation.verdict(*pair) is False for pair in product(one, other))


def _join(texts: Sequence[str], joins: list[tuple[float, str, str]], relation: Relation) -> list[list[str]]:
    home = {text: [text] for text in texts}
    for _, first, second in sorted(joins, key=lambda join: (-join[0], join[1], join[2])):
        one, other = home[first], home[second]
        if one is not other and not _kept_apart(one, other, relation):
            one += other
            home |= dict.fromkeys(other, one)
    return list({id(cluster): cluster for cluster in home.values()}.values())


def _greedy(relation: Relation) -> Search:
    """Let each answer join the first cluster whose first member it is equivalent to."""
    clusters, waiting = [], relation.texts
    while waiting:
        first, *others = waiting
        equal = yield from _equivalent(first, others, relation)
        clusters.append([first, *equal])
        waiting = [other for other in others if other not in equal]
    return clusters


def _equivalent(
    text: str, others: Sequence[str], relation: Relation
) -> Generator[list[TextPair], list[float], list[str]]:
    """Return the other answers that are equivalent to an answer, by rule or by the model."""
    verdicts = {other: relation.verdict(text, other) for other in others}
    asked = [other for other in others if verdicts[other] is None]
    margins = yield [relation.form_pair(text, other) for other in asked]
    verdicts |= {other: margin > 0 for other, margin in zip(asked, margins)}
    return [other for other in others if verdicts[other]]


def _complete(relation: Relation) -> Search:
    """Compare all pairs, the most frequent answers first, and cluster the samples by complete linkage."""
    ordered = sorted(relation.texts, key=lambda text: (-relation.counts[text], *_rank(text)))
    related = {pair for pair in combinations(ordered, 2) if relation.verdict(*pair)}
    open_pairs = [pair for pair in combinations(ordered, 2) if relation.verdict(*pair) is None]
    margins = yield [relation.form_pair(*pair) for pair in open_pairs]
    related |= {pair for pair, margin in zip(open_pairs, margins) if margin > 0}
    samples = [text for text in ordered for _ in range(relation.counts[text])]
    matrix = [[a == b or (a, b) in related or (b, a) in related for b in samples] for a in samples]
    return [sorted({samples[i] for i in cluster}) for cluster in complete(matrix)]


_SEARCHES: dict[str, Callable[[Relation], Search]] = {
    "components": _components,
    "greedy": _greedy,
    "complete": _complete,
}


def _rank(form: str) -> tuple[int, str]:
    """Return the sort key of forms: short answers are frequent, and rarely entail longer answers."""
    return len(form), form


@dataclass
class Verdicts:
    """Margins of pairs; each pair is decided once, the reverse direction only if the first entails."""

    equivalence: Equivalence
    calls: int = 0
    _margins: dict[Triple, float] = field(default_factory=dict)

    def margins(self, triples: Sequence[Triple]) -> list[float]:
        """Return the smaller margin of the two directions of each pair of forms, > 0 if both entail."""
        forward = self._asked(triples)
        if getattr(self.equivalence, "symmetric", False):
            return forward
        back = [(q, b, a) for (q, a, b), margin in zip(triples, forward) if margin > 0]
        backward = iter(self._asked(back))
        return [min(margin, next(backward)) if margin > 0 else margin for margin in forward]

    def _asked(self, triples: Sequence[Triple]) -> list[float]:
        unknown = [triple for triple in dict.fromkeys(triples) if triple not in self._margins]
        if unknown:
            self._margins.update(zip(unknown, margins_by(self.equivalence, unknown), strict=True))
            self.calls += len(unknown)
        return [self._margins[triple] for triple in triples]


def _finish(
    questions: Sequence[str],
    searches: Sequence[Search],
    verdicts: Verdicts,
    progress: Callable[[int], None] | None = None,
) -> list[list[list[str]]]:
    """Finish the search of each question, many at a time, and return the clusters of each."""
    waiting, pending = deque(range(len(searches))), dict[int, list[TextPair]]()
    results: list[list[list[str]]] = [[] for _ in searches]

    def advance(place: int, margins: Any) -> None:
        try:
            pending[place] = searches[place].send(margins)
        except StopIteration as finished:
            results[place] = finished.value
            pending.pop(place, None)

    done = 0
    while waiting or pending:
        room = PAIRS_PER_ROUND - sum(map(len, pending.values()))
        while waiting and room > 0:
            advance(place := waiting.popleft(), None)
            room -= len(pending.get(place, ()))
        triples = [(questions[place], *pair) for place, pairs in pending.items() for pair in pairs]
        decided = iter(verdicts.margins(triples))
        for place, pairs in list(pending.items()):
            advance(place, [next(decided) for _ in pairs])
        before, done = done, len(searches) - len(waiting) - len(pending)
        if progress is not None and done > before:
            progress(done)
    return results


@dataclass(frozen=True)
class ClusterConfig:
    """Settings for clusters of answers by meaning.

    Attributes
    ----------
    equivalence : Equivalence, str or Path
        The equivalence of answers: "default", "exact", labels ("among:spam,ham"), the directory or id of an
        NLI model, or a result of `semcal.load_equivalence`.
    linkage : {"components", "greedy", "complete"}
        The rule that forms clusters from equivalent pairs.
    merge_refusals : bool
        Put all refusals to answer into one cluster.

    Raises
    ------
    UsageError
        If the linkage is unknown.

    Examples
    --------
    >>> ClusterConfig("exact").linkage
    'components'
    """

    equivalence: Equivalence | str | Path = DEFAULT
    linkage: str = "components"
    merge_refusals: bool = False

    def __post_init__(self) -> None:
        check_name(self.linkage, LINKAGES, what="linkage")

    @property
    def judge(self) -> Equivalence:
        """The loaded equivalence (see `semcal.inputs.load_cluster_config`)."""
        assert not isinstance(self.equivalence, str | Path)
        return self.equivalence

    @property
    def address(self) -> str:
        """The name from which the equivalence can be loaded again."""
        named = isinstance(self.equivalence, str | Path)
        return str(self.equivalence) if named else address_of(self.judge)


def check_clusterable(row: Row) -> None:
    """Raise InputError unless the row can be clustered."""
    _ = row.id, row.question, row.samples, row.log_likelihoods, row.finished, row.temperatures


def cluster_rows(
    rows: Sequence[Row],
    config: ClusterConfig,
    *,
    progress: Callable[[int], None] | None = None,
) -> tuple[list[Row], int]:
    """Add `normal_forms`, `clusters` and `clustered_by` to rows; return rows and the number of decided pairs.

    Rows have `question` and `samples`, whose texts are not cut; a number at the end of an unfinished sample
    is ignored. Samples of different `temperatures` are clustered separately, and all clusters are in the
    order of their first samples. `progress` receives the number of finished questions.
    """
    equivalence, form = config.judge, form_by(config.judge)
    parts = [(number, part) for number, row in enumerate(rows) for part in _by_temperature(row)]
    clustering = cluster_answers(
        [rows[number].question for number, _ in parts],
        [[rows[number].samples[i] for i in part] for number, part in parts],
        equivalence,
        linkage=config.linkage,
        merge_refusals=config.merge_refusals,
        finished=[[rows[number].finished[i] for i in part] for number, part in parts],
        progress=progress and (lambda count: progress(count * len(rows) // len(parts))),
    )
    clusters: list[list[list[int]]] = [[] for _ in rows]
    for (number, part), clusters_of_part in zip(parts, clustering.clusters):
        clusters[number] += [[part[i] for i in cluster] for cluster in clusters_of_part]
    by: Json = {
        "equivalence": config.address,
        "revision": equivalence.revision,
        "linkage": config.linkage,
        **({"merge_refusals": True} if config.merge_refusals else {}),
    }
    clustered = [
        row.add(Clusters([form(text or "") for text in row.samples], sorted(row_clusters), by))
        for row, row_clusters in zip(rows, clusters)
    ]
    return clustered, clustering.calls


def cluster_missing(
    rows: Sequence[Row],
    config: ClusterConfig,
    *,
    progress: Callable[[int], None] | None = None,
) -> list[Row]:
    """Cluster the rows without `clusters`; other rows are unchanged."""
    new = [row for row in rows if not row.has("clusters")]
    clustered = iter(cluster_rows(new, config, progress=progress)[0])
    return [row if row.has("clusters") else next(clustered) for row in rows]


def match_answers(rows: Sequence[Row], kind: AnswerKind, equivalence: Equivalence) -> list[Row]:
    """Find the cluster of an answer that is not a sample, "greedy" or "given".

    The cluster is that of samples with the normal form of the answer, unless a rule separates them. Otherwise
    it is the cluster with the most samples that are equivalent to the answer; among several the largest, then
    the first. It is None without an equivalent sample, or if the answer is not a label. A missing answer
    (null) belongs to the samples without an answer. Rows have clusters, and samples at one temperature.
    """
    answers = stated_answers(rows, kind)
    searches = [_same_as(answer.text or "", row, equivalence) for row, answer in zip(rows, answers)]
    found = _finish([row.question for row in rows], searches, Verdicts(equivalence))
    matched = []
    for row, answer, (equivalent,) in zip(rows, answers, found):
        same = {None} if answer.text is None else set[str | None](equivalent)
        agree = [sum(row.samples[i] in same for i in cluster) for cluster in row.clusters]
        best = max(range(len(agree)), key=lambda k: (agree[k], len(row.clusters[k]), -k))
        matched.append(row.set_stated(kind, replace(answer, cluster=best if agree[best] else None)))
    return matched


def match_at(rows: RowsAt, kind: AnswerKind, equivalence: Equivalence | None) -> RowsAt:
    """Apply `match_answers` at each temperature, with each pair decided once; "modal" rows are unchanged."""
    if kind == "modal":
        return rows
    assert equivalence is not None
    matched = iter(match_answers([row for part in rows.values() for row in part], kind, equivalence))
    return {t: [next(matched) for _ in part] for t, part in rows.items()}


def _same_as(answer: str, row: Row, equivalence: Equivalence) -> Search:
    """Find the samples with the meaning of an answer: samples of its form, or else all equivalent samples."""
    texts = [text for text in dict.fromkeys(row.samples) if text is not None]
    if not answer.strip():
        return [[text for text in texts if not text.strip()]]
    if isinstance(equivalence, ExactMatch):
        own = equivalence.form(answer, row.question)
        return [[text for text in texts if own and equivalence.form(text, row.question) == own]]
    own = normal_form(answer)
    cut = _cut_texts(row.samples, row.finished)
    relation = Relation(row.question, {text: [0] for text in [answer, *texts] if text.strip()}, cut)
    told = [text for text in texts if text.strip()]
    equal = [text for text in told if relation.forms[text] == own and relation.verdict(answer, text)]
    return [equal or (yield from _equivalent(answer, told, relation))]


def _by_temperature(row: Row) -> list[list[int]]:
    """Return the sample indices of each temperature; all samples of a row without temperatures."""
    temperatures = row.temperatures or [1.0] * len(row.samples)
    return [[i for i, t in enumerate(temperatures) if t == value] for value in dict.fromkeys(temperatures)]


@dataclass(frozen=True)
class ClusterStep(Step):
    """A step that clusters the answers of rows with `cluster_rows`."""

    name: ClassVar[str] = "cluster"
    needs: ClassVar[tuple[str, ...]] = ("equivalence",)
    linkage: str = "components"
    merge_refusals: bool = False

    def __call__(self, rows: Sequence[Row], models: WorkerState, progress: Progress) -> list[Row]:
        """Cluster the rows without a failure."""
        answered = [row for row in rows if row.failure is None]
        config = ClusterConfig(models.equivalence, self.linkage, self.merge_refusals)
        clustered, calls = cluster_rows(answered, config, progress=progress)
        n_draws = [len(part) for row in answered for part in _by_temperature(row)]
        cut, draws, none = count_ends(answered)
        models.costs.update(
            calls=calls,
            pairs=sum(n * (n - 1) for n in n_draws),
            draws=draws,
            cut=cut,
            none=none,
            invalid=sum(count_invalid(models.equivalence, row.texts) for row in answered),
        )
        clustered_rows = iter(clustered)
        return [row if row.failure else next(clustered_rows) for row in rows]
