"""Answers to clusters of one meaning each, with no needless question to the model (spec section 5, 4-6).

Two answers are equivalent when each entails the other. `components` takes the connected components of
that relation, `greedy` lets each answer join the first cluster whose first member it is equivalent to.
Both grow one meaning at a time from a *probe*, which is held against every answer that has no meaning
yet: with `components` every member becomes a probe, with `greedy` only the first. So no answer is ever
held against a member of its own meaning, and each pair asked about can change the result.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from semcal.engine.equivalence import Equivalence, ExactMatch, Triple
from semcal.errors import InputError
from semcal.qa.first_answer import is_refusal
from semcal.qa.values import values_differ
from semcal.registry import check_name

__all__ = ["LINKAGES", "Clustering", "cluster_answers"]

LINKAGES = ("components", "greedy")
#: Pairs asked about at once: questions enter as others leave, so that batches stay full and memory bounded.
ROUND = 2048

Pair = tuple[str, str]
#: Yields the pairs that must be known next, is sent their verdicts, returns the meanings.
Search = Generator[list[Pair], list[bool] | None, list[list[str]]]
_Differ = Callable[[str, str], bool]
_Searcher = Callable[[list[str], _Differ], Search]


@dataclass(frozen=True)
class Clustering:
    """Clusters of every question, and what they cost.

    Attributes
    ----------
    clusters : list of list of list of int
        Per question a partition of its sample indices, numbered by first sample.
    calls : int
        Ordered pairs that the equivalence was asked about.
    plain_calls : int
        Ordered pairs of samples in all, m (m − 1) a question: what asking about each would have cost.
    """

    clusters: list[list[list[int]]]
    calls: int
    plain_calls: int


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

    Equal normal forms mean the same. The empty answer is a meaning of its own, and two answers that state
    different values (`semcal.qa.values`) are never equivalent; the model is asked about neither. Of all other
    pairs of distinct normal forms it is asked what the partition depends on, each ordered pair at most once
    and the second direction only where the first entailed.

    Parameters
    ----------
    questions : sequence of str, length Q
    normal_forms : sequence of sequence of str, length Q
        The normal forms of each question's samples; their number m may differ by question.
    equivalence : Equivalence
        Decides whether one answer entails another.
    linkage : {"components", "greedy"}
        Connected components of the relation (as the paper's code does), or each answer to the first
        cluster whose first member it is equivalent to (Kuhn et al., 2023).
    merge_refusals : bool
        Count all refusals ("I don't know", …; see `semcal.qa.first_answer`) as one meaning, about which
        the model is not asked.
    read_as : sequence of sequence of str, length Q, optional
        Normal forms from which values are read, where `normal_forms` are texts of another kind.
    progress : callable, optional
        Called with the number of questions that are settled, whenever it has grown.

    Returns
    -------
    Clustering

    Raises
    ------
    InputError
        If there are not as many lists of normal forms as questions.
    UsageError
        If the linkage is unknown.

    Examples
    --------
    >>> from semcal.engine.fakes import FakeEquivalence
    >>> found = cluster_answers(
    ...     ["Who wrote Hamlet?"],
    ...     [["shakespeare", "marlowe", "william shakespeare", "shakespeare"]],
    ...     FakeEquivalence([{"shakespeare", "william shakespeare"}]),
    ... )
    >>> found.clusters
    [[[0, 2, 3], [1]]]
    >>> found.calls, found.plain_calls
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
    asker = _Asker(equivalence)
    settled = 0
    for settled_now in _rounds(rows, asker):
        settled += settled_now
        if progress is not None and settled_now:
            progress(settled)
    return Clustering(
        clusters=[row.clusters() for row in rows],
        calls=asker.calls,
        plain_calls=sum(len(forms) * (len(forms) - 1) for forms in normal_forms),
    )


class _Row:
    """One question: where each distinct answer stands, and the search for its meanings."""

    def __init__(
        self,
        question: str,
        forms: Sequence[str],
        search: _Searcher,
        merge_refusals: bool,
        read_as: Sequence[str],
    ) -> None:
        self.question = question
        self.pending: list[Pair] = []
        self._meanings: list[list[str]] = []
        self._positions: dict[str | None, list[int]] = {}  # None stands for any refusal
        for position, form in enumerate(forms):
            key = None if merge_refusals and is_refusal(form) else form
            self._positions.setdefault(key, []).append(position)
        self._read_as = dict(zip(forms, read_as))
        self._search = search([key for key in self._positions if key], self._differ)  # no "", no refusals

    def _differ(self, a: str, b: str) -> bool:
        return values_differ(self._read_as[a], self._read_as[b])

    def advance(self, verdicts: list[bool] | None) -> bool:
        """Take the verdicts on the pending pairs (None to begin); true if there is more to ask."""
        try:
            self.pending = self._search.send(verdicts)
        except StopIteration as finished:
            self.pending, self._meanings = [], finished.value
        return bool(self.pending)

    def clusters(self) -> list[list[int]]:
        """Meanings as sorted sample indices, numbered by first sample."""
        apart = [positions for key, positions in self._positions.items() if not key]
        together = [[i for form in meaning for i in self._positions[form]] for meaning in self._meanings]
        return sorted(sorted(cluster) for cluster in apart + together)


def _equality(forms: list[str], _: _Differ) -> Search:
    """Each distinct normal form is a meaning; nothing is asked."""
    yield from ()
    return [[form] for form in forms]


def _greedy(forms: list[str], differ: _Differ) -> Search:
    """Hold the first answer without a meaning against all others that have none; repeat."""
    meanings = []
    while forms:
        first, *others = forms
        found, forms = yield from _matches(first, others, differ)
        meanings.append([first, *found])
    return meanings


def _components(forms: list[str], differ: _Differ) -> Search:
    """Grow each component from its members, each held against all that is not yet in it.

    Components do not depend on the order, and a fixed order lets later runs find their verdicts in the
    cache.
    """
    meanings = []
    forms = sorted(forms, key=_rank)
    while forms:
        first, *forms = forms
        meaning = [first]
        for probe in meaning:  # grows while it is read
            found, forms = yield from _matches(probe, forms, differ)
            meaning += found
        meanings.append(meaning)
    return meanings


def _matches(
    probe: str, others: list[str], differ: _Differ
) -> Generator[list[Pair], list[bool] | None, tuple[list[str], list[str]]]:
    """Split `others` into those equivalent to `probe` and the rest, order kept."""
    pairs = [(probe, other) for other in others if not differ(probe, other)]
    verdicts = (yield pairs) if pairs else None
    equivalent = {other for (_, other), same in zip(pairs, verdicts or []) if same}
    return [o for o in others if o in equivalent], [o for o in others if o not in equivalent]


_SEARCHES: dict[str, _Searcher] = {"components": _components, "greedy": _greedy}


def _rank(form: str) -> tuple[int, str]:
    """Short answers first: they are the common ones, and the likelier not to entail a longer one."""
    return len(form), form


@dataclass
class _Asker:
    """Puts pairs to the equivalence, the reverse direction only where the first entailed; forgets nothing."""

    equivalence: Equivalence
    calls: int = 0
    _verdicts: dict[Triple, bool] = field(default_factory=dict)

    def equivalent(self, questions: Sequence[str], pairs: Sequence[Pair]) -> list[bool]:
        """Say for each pair whether both directions entail."""
        there = [(q, min(pair, key=_rank), max(pair, key=_rank)) for q, pair in zip(questions, pairs)]
        forward = self._entails(there)
        back = [(q, b, a) for (q, a, b), entailed in zip(there, forward) if entailed]
        backward = iter(self._entails(back))
        return [entailed and next(backward) for entailed in forward]

    def _entails(self, triples: Sequence[Triple]) -> list[bool]:
        unknown = [triple for triple in dict.fromkeys(triples) if triple not in self._verdicts]
        if unknown:
            self._verdicts.update(zip(unknown, self.equivalence.entails(unknown), strict=True))
            self.calls += len(unknown)
        return [self._verdicts[triple] for triple in triples]


def _rounds(rows: Iterable[_Row], asker: _Asker) -> Iterator[int]:
    """Settle all rows, many at a time; yield after each round how many it has settled."""
    waiting = iter(rows)
    active: list[_Row] = []
    while True:
        settled = 0
        pairs = sum(len(row.pending) for row in active)
        while pairs < ROUND and (row := next(waiting, None)) is not None:
            if row.advance(None):
                active.append(row)
                pairs += len(row.pending)
            else:
                settled += 1
        if not active:
            yield settled
            return
        going_on = _ask(active, asker)
        yield settled + len(active) - len(going_on)
        active = going_on


def _ask(rows: Sequence[_Row], asker: _Asker) -> list[_Row]:
    """Ask about all pending pairs of all rows at once; return the rows that have more to ask."""
    questions = [row.question for row in rows for _ in row.pending]
    verdicts = iter(asker.equivalent(questions, [pair for row in rows for pair in row.pending]))
    return [row for row in rows if row.advance([next(verdicts) for _ in row.pending])]
