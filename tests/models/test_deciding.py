"""A question is decided when, and only when, nothing that is left can change the decision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semcal.models.clustering import Verdicts, cluster_rows
from semcal.models.equivalence import Equivalence, ExactMatch
from semcal.models.fakes import FakeEquivalence
from semcal.rows import Row
from semcal.uncertainty import Group, PartOfDraws, Rule, settle

FORMS = ["ash", "birch wood", "cedar", "date palm", "elm", "fir tree", ""]

Draws = frozenset[int]


def top(groups: Sequence[Draws]) -> Draws:
    return max(groups, key=lambda group: (len(group), -min(group)))


def merged(groups: Sequence[Draws], chosen: Sequence[int]) -> list[Draws]:
    """The groups, the chosen ones as one."""
    union = frozenset().union(*(groups[i] for i in chosen))
    return [group for i, group in enumerate(groups) if i not in chosen] + [union]


def partitions(items: Sequence[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    first, *rest = items
    for rest_of in partitions(rest):
        yield [[first], *rest_of]
        for i, part in enumerate(rest_of):
            yield [*rest_of[:i], [first, *part], *rest_of[i + 1 :]]


def subsets(items: Sequence[int], most: int) -> Iterator[list[int]]:
    for mask in range(2 ** len(items)):
        chosen = [item for bit, item in enumerate(items) if mask >> bit & 1]
        if len(chosen) <= most:
            yield chosen


def completions(
    groups: list[Draws], empty: int | None, left: int, drawn: int, linked: bool
) -> Iterator[list[Draws]]:
    """Every way in which further draws may join the groups; `empty` is the place of the empty one."""
    if not left:
        yield groups
        return
    places = [i for i in range(len(groups)) if i != empty]
    for chosen in subsets(places, len(places) if linked else 1):
        kept = [i for i in range(len(groups)) if i not in chosen]
        joined = frozenset({drawn}).union(*(groups[i] for i in chosen))
        place = kept.index(empty) if empty is not None else None
        yield from completions([*(groups[i] for i in kept), joined], place, left - 1, drawn + 1, linked)
    if empty is not None:
        with_one = [*groups[:empty], groups[empty] | {drawn}, *groups[empty + 1 :]]
        yield from completions(with_one, empty, left - 1, drawn + 1, linked)
    else:
        with_one = [*groups, frozenset({drawn})]
        yield from completions(with_one, len(groups), left - 1, drawn + 1, linked)


@st.composite
def states(draw: st.DrawFn) -> tuple[list[Group], int]:
    """Groups of some draws, some of them open, perhaps an empty one; and how many draws are left."""
    labels = draw(st.lists(st.integers(0, 3), min_size=1, max_size=6))
    left = draw(st.integers(0, 3))
    is_open = draw(st.lists(st.booleans(), min_size=4, max_size=4))
    has_empty = draw(st.booleans())
    found = []
    for label in dict.fromkeys(labels):
        empty = has_empty and label == 0
        draws = tuple(i for i, own in enumerate(labels) if own == label)
        found.append(Group(draws, is_open[label] and not empty, empty))
    return found, left


@settings(max_examples=300, deadline=None)
@given(states(), st.booleans(), st.integers(1, 10))
def test_it_is_decided_exactly_when_all_that_can_follow_agrees(state, linked, need):
    groups, left = state
    drawn = sum(len(group.draws) for group in groups)
    rule = Rule(drawn + left, need, linked)
    outcome = rule.outcome(groups)
    loose = [i for i, group in enumerate(groups) if group.open]
    tops: list[Draws] = []
    tied = False  # a tie decides nothing before all are drawn and told apart
    for parts in partitions(loose):
        now = [frozenset(group.draws) for i, group in enumerate(groups) if i not in loose]
        now += [frozenset(j for i in part for j in groups[i].draws) for part in parts]
        closed = [group for i, group in enumerate(groups) if i not in loose]
        empty = next((i for i, group in enumerate(closed) if group.empty), None)
        wholes = [list(whole) for whole in completions(now, empty, left, drawn, linked)]
        tops += map(top, wholes)
        tied |= any([len(one) for one in whole].count(len(top(whole))) > 1 for whole in wholes)
    sizes = [len(one) for one in tops]
    assert (outcome.low, outcome.high) == (min(sizes), max(sizes))
    answer = set(outcome.answer.draws)
    same = all(answer <= one for one in tops) and not (tied and (left or len(loose) > 1))
    if min(sizes) >= need and same:
        assert outcome.answered is True
    elif max(sizes) < need:
        assert outcome.answered is False
    else:
        assert outcome.answered is None


def replayed(
    forms: Sequence[str | None], rule: Rule, equivalence: Equivalence, linkage: str
) -> tuple[PartOfDraws, int]:
    """Take the draws of a question in rounds; what was decided, and the calls it took."""
    part = PartOfDraws("q?", rule, linkage=linkage, exact=isinstance(equivalence, ExactMatch))
    verdicts, drawn = Verdicts(equivalence), 0
    while further := part.next_draws:
        taken = forms[drawn : drawn + further]
        part.add(taken, [None] * len(taken))
        drawn += further
        settle([part], verdicts)
    assert drawn <= len(forms)
    return part, verdicts.calls


@st.composite
def questions(draw: st.DrawFn) -> tuple[list[str | None], FakeEquivalence]:
    """Samples of one question and any directed relation between them, symmetric or transitive or not."""
    samples = draw(st.lists(st.sampled_from([*FORMS, None]), min_size=1, max_size=12))
    entailed = draw(st.lists(st.sampled_from(list(permutations(FORMS, 2))), max_size=30, unique=True))
    entailed += [(b, a) for a, b in entailed] if draw(st.booleans()) else []
    return samples, FakeEquivalence(entailments=entailed)


@settings(max_examples=400, deadline=None)
@given(questions(), st.sampled_from(["components", "greedy", "exact"]), st.integers(1, 13))
def test_decisions_are_those_of_all_draws_and_all_pairs(question, linkage, need):
    samples, equivalence = question
    used: Equivalence = ExactMatch() if linkage == "exact" else equivalence
    linkage = "components" if linkage == "exact" else linkage
    row = Row({"id": "1", "question": "q?", "samples": samples})
    whole = cluster_rows([row], equivalence=used, linkage=linkage).rows[0]
    without = frozenset(i for i, text in enumerate(samples) if text is None)  # which wins no tie
    winner = top([cluster for cluster in map(frozenset, whole.clusters) if cluster != without] or [without])
    winner = without if len(without) > len(winner) else winner
    rule = Rule(len(samples), need, linkage == "components" and used is equivalence)
    equivalence.asked.clear()
    part, calls = replayed(samples, rule, used, linkage)
    outcome = part.outcome
    assert outcome.answered is (winner != without and len(winner) >= need)
    assert winner == without or outcome.low <= len(winner) <= outcome.high
    if outcome.answered:
        assert winner >= set(outcome.answer.draws)
    assert calls == len(equivalence.asked) == len(set(equivalence.asked))


@pytest.mark.parametrize(
    ("forms", "need", "linkage", "drawn"),
    [
        ("aaaaaaaaaa", 7, "greedy", 7),  # 7 of 10 are enough
        ("aaaaaaaaaa", 3, "greedy", 6),  # and before 6, others might win or be as many
        ("abcdaaaaaa", 7, "greedy", 10),
        ("abcdeaaaaa", 7, "greedy", 5),  # 1 + 5 is below 7
        ("abcdeaaaaa", 7, "components", 10),  # a draw may join all of them
        ("aaaaaabaaa", 7, "components", 8),
        ("aaaaaaaaaa", 11, "greedy", 1),  # never answered
        ([None] * 10, 3, "greedy", 6),  # without an answer
        ([None, None, None, None, *"aaaaaa"], 5, "greedy", 9),
    ],
)
def test_as_few_draws_are_taken_as_decide(forms, need, linkage, drawn):
    rule = Rule(10, need, linkage == "components")
    part, _ = replayed(list(forms), rule, FakeEquivalence(), linkage)
    assert sum(len(group.draws) for group in part.groups) == drawn


def test_pairs_that_cannot_change_the_answers_share_are_not_asked():
    forms = ["ash"] * 6 + ["birch wood", "cedar", "elm", "fir tree"]
    for need, asked in ((6, 0), (7, 4)):  # of 10 pairs
        part, calls = replayed(forms, Rule(10, need, linked=True), FakeEquivalence(), "components")
        assert calls == asked
        assert part.outcome.answered is (need == 6)
    joined = FakeEquivalence([{"ash", "birch wood"}])
    part, calls = replayed(forms, Rule(10, 7, linked=True), joined, "components")
    assert part.outcome.answered is True
    assert sum(len(group.draws) for group in part.groups) == 7
    assert calls == 2
