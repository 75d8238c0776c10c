"""When the draws and NLI pairs that are left cannot change whether a question is answered.

A question is answered if at least `need` of m draws mean what most of them mean. After some draws, and some
verdicts on pairs of them, `Rule.outcome` bounds that count from both sides. A draw that is left may join any
group or make a new one, and with linkage "components" it may join any number of groups, but that of the empty
answers, to one; with "greedy" and with "exact" it joins at most one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from semcal.engine.clustering import QuestionSearch, Verdicts, finish, grow
from semcal.qa.values import values_differ


@dataclass(frozen=True)
class Group:
    """Draws that mean the same, as far as is known."""

    draws: tuple[int, ...]  # their numbers, ascending
    open: bool = False  # may still prove to mean the same as another open group
    empty: bool = False  # the empty answers, which mean nothing else

    @property
    def rank(self) -> tuple[int, int]:
        """Compares as answers do: the largest group wins, of equally large ones the first."""
        return len(self.draws), -self.draws[0]


@dataclass(frozen=True)
class Outcome:
    """What some draws say of all m."""

    answered: bool | None  # None: the draws that are left, or pairs, may change it
    answer: Group  # the leading group; where it is answered, part of the meaning that all m draws answer
    low: int  # at least so many of m draws mean what most mean,
    high: int  # and at most so many


@dataclass(frozen=True)
class Rule:
    """Answer if at least `need` of m draws mean the same (never, if `need` is above m)."""

    m: int
    need: int
    linked: bool  # whether a draw may join groups: linkage "components" of other than equal normal forms

    def outcome(self, groups: Sequence[Group]) -> Outcome:
        """Return what the groups of all draws so far, at least one, decide.

        "Answer" is decided when the leading group has `need` draws and no group without it can overtake it,
        "abstain" when no group can get as many as `need`.
        """
        drawn = sum(len(group.draws) for group in groups)
        left = self.m - drawn
        joinable = [group for group in groups if (not group.empty if self.linked and left else group.open)]
        apart = [group for group in groups if group not in joinable]
        answer = max(groups, key=lambda group: group.rank)
        others = _union(group for group in joinable if group is not answer)
        rivals = [(len(group.draws) + left, -group.draws[0]) for group in apart if group is not answer]
        rivals.append((len(others) + left, -others[0] if others else -drawn))
        low = len(answer.draws)
        high = left + max(len(_union(joinable)), *(len(group.draws) for group in apart), 0)
        ahead = all(rival < answer.rank for rival in rivals)
        answered = True if low >= self.need and ahead else False if high < self.need else None
        return Outcome(answered, answer, low, high)

    def may_decide(self, groups: Sequence[Group], further: int) -> bool:
        """Whether `further` draws, and verdicts on all pairs, can decide it.

        Most for "answer" does a draw that joins the leading group, for "abstain" one that means something
        new; open groups may be one, or all differ. That a further draw joins groups is not looked ahead to.
        """
        drawn = sum(len(group.draws) for group in groups)
        new = tuple(range(drawn, drawn + further))
        differ = [Group(group.draws, empty=group.empty) for group in groups]
        merged = [Group(group.draws, empty=group.empty) for group in groups if not group.open]
        if union := _union(group for group in groups if group.open):
            merged.append(Group(union))
        outcomes = (_joined(merged, new), _joined(differ, new), [*differ, *(Group((i,)) for i in new)])
        return any(self.outcome(one).answered is not None for one in outcomes)

    def fewest(self, groups: Sequence[Group]) -> int:
        """The number of further draws, at least 1, before the end of which nothing is decided."""
        left = self.m - sum(len(group.draws) for group in groups)
        return next(further for further in range(1, left + 1) if self.may_decide(groups, further))


def _union(groups: Iterable[Group]) -> tuple[int, ...]:
    return tuple(sorted(chain.from_iterable(group.draws for group in groups)))


def _joined(groups: Sequence[Group], new: tuple[int, ...]) -> list[Group]:
    """The groups, with new draws in the leading one."""
    if not new or not groups:
        return [*groups, *([Group(new)] if new else [])]
    leading = max(groups, key=lambda group: group.rank)
    others = [group for group in groups if group is not leading]
    return [*others, Group((*leading.draws, *new), empty=leading.empty)]


class PartOfDraws:
    """The draws of one question so far, and their groups as far as they matter."""

    def __init__(self, question: str, rule: Rule, *, linkage: str, exact: bool) -> None:
        self.question, self.rule = question, rule
        self.groups: list[Group] = []
        self._linkage, self._exact = linkage, exact
        self._positions: dict[str, list[int]] = {}  # normal form → its draws
        self._drawn = 0

    @property
    def next_draws(self) -> int:
        """How many draws to take next; 0 where it is decided."""
        if self._drawn and self.outcome.answered is not None:
            return 0
        return self.rule.fewest(self.groups)

    @property
    def outcome(self) -> Outcome:
        """What the draws so far decide."""
        return self.rule.outcome(self.groups)

    def add(self, forms: Sequence[str]) -> None:
        """Take further draws as normal forms; `settle` groups them."""
        for form in forms:
            self._positions.setdefault(form, []).append(self._drawn)
            self._drawn += 1

    def search(self) -> QuestionSearch:
        """Group the draws until it is decided, or no verdict on a pair of them can decide it.

        Components grow from the commonest answer, greedy clusters have to from the first.
        """
        forms = [form for form in self._positions if form]
        if self._linkage == "components":
            forms.sort(key=lambda form: (-len(self._positions[form]), len(form), form))
        search = grow(forms, values_differ, linkage=self._linkage, enough=self._is_enough)
        return QuestionSearch(self.question, search)

    def _is_enough(self, clusters: list[list[str]], rest: list[str]) -> bool:
        if self._exact:
            return True
        groups = self._grouped(clusters, rest)
        return self.rule.outcome(groups).answered is not None or not self.rule.may_decide(groups, 0)

    def group(self, clusters: list[list[str]]) -> None:
        """Take what the search found; answers that it did not get to are groups of their own."""
        found = {"", *chain.from_iterable(clusters)}
        self.groups = self._grouped(clusters, [form for form in self._positions if form not in found])

    def _grouped(self, clusters: list[list[str]], rest: list[str]) -> list[Group]:
        growing = len(clusters) - 1 if rest and not self._exact else None
        groups = [self._group(cluster, number == growing) for number, cluster in enumerate(clusters)]
        groups += [self._group([form], not self._exact) for form in rest]
        return groups + ([Group(tuple(self._positions[""]), empty=True)] if "" in self._positions else [])

    def _group(self, forms: Sequence[str], may_grow: bool) -> Group:
        return Group(tuple(sorted(i for form in forms for i in self._positions[form])), may_grow)


def settle(questions: Sequence[PartOfDraws], verdicts: Verdicts) -> None:
    """Group the draws of all questions, as far as that can decide something, in common batches of pairs."""
    searches = [question.search() for question in questions]
    for _ in finish(searches, verdicts):
        pass
    for question, search in zip(questions, searches):
        question.group(search.found)
