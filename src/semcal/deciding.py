"""Answer or abstain with as few draws and NLI pairs as decide it: `SemanticUQ(decide=True)`, `ask --decide`.

The draws are taken in rounds, and are the first of the m that would be taken otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from typing import TYPE_CHECKING

import numpy as np

from semcal.errors import QuestionError, UsageError
from semcal.measuring import likeliest
from semcal.metrics.frequencies import Floats
from semcal.models.clustering import QuestionSearch, Verdicts, finish, grow
from semcal.models.equivalence import ExactMatch
from semcal.models.sampling import Sampling, sample_runs
from semcal.rows import CALIBRATED
from semcal.text.normal_form import normal_form
from semcal.text.values import values_differ, values_read

if TYPE_CHECKING:
    from semcal.calibration.calibrated import Calibration
    from semcal.data.question import Question
    from semcal.models.equivalence import Equivalence
    from semcal.models.language_model import Sampler


@dataclass(frozen=True)
class Group:
    """Draws that mean the same, as far as is known."""

    draws: tuple[int, ...]  # their numbers, ascending
    open: bool = False  # may still prove to mean the same as another open group
    empty: bool = False  # the empty answers, which mean nothing else

    @property
    def rank(self) -> tuple[int, int]:
        """The largest group leads, of equally large ones for now the first."""
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

        "Answer" is decided when the leading group has `need` draws and no group without it can get as many,
        or all are drawn and told apart: likelihoods then settle a tie. "Abstain" is when no group can get as
        many as `need`.
        """
        remaining = self.m - sum(len(group.draws) for group in groups)
        joinable = [
            group for group in groups if (not group.empty if self.linked and remaining else group.open)
        ]
        apart = [group for group in groups if group not in joinable]
        answer = max(groups, key=lambda group: group.rank)
        joined = _union(group for group in joinable if group is not answer)
        rivals = [len(joined), *(len(group.draws) for group in apart if group is not answer)]
        low = len(answer.draws)
        high = remaining + max(len(_union(joinable)), *(len(group.draws) for group in apart), 0)
        ahead = max(rivals) + remaining < low or (not remaining and len(joinable) < 2)
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
        remaining = self.m - sum(len(group.draws) for group in groups)
        return next(further for further in range(1, remaining + 1) if self.may_decide(groups, further))


def _union(groups: Iterable[Group]) -> tuple[int, ...]:
    return tuple(sorted(chain.from_iterable(group.draws for group in groups)))


def _joined(groups: Sequence[Group], new: tuple[int, ...]) -> list[Group]:
    """The groups, with new draws in the leading one."""
    if not new or not groups:
        return [*groups, *([Group(new)] if new else [])]
    leading = max(groups, key=lambda group: group.rank)
    following = [group for group in groups if group is not leading]
    return [*following, Group((*leading.draws, *new), empty=leading.empty)]


class PartOfDraws:
    """The draws of one question so far, and their groups as far as they matter."""

    def __init__(self, question: str, rule: Rule, *, linkage: str, exact: bool) -> None:
        self.question, self.rule = question, rule
        self.groups: list[Group] = []
        self._linkage, self._exact = linkage, exact
        self._positions: dict[str, list[int]] = {}  # normal form → its draws
        self._read_as: dict[str, str] = {}
        self._log_likelihoods: list[float | None] = []  # log-likelihoods of the draws
        self._n_drawn = 0

    @property
    def next_draws(self) -> int:
        """How many draws to take next; 0 where it is decided."""
        if self._n_drawn and self.outcome.answered is not None:
            return 0
        return self.rule.fewest(self.groups)

    @property
    def outcome(self) -> Outcome:
        """What the draws so far decide."""
        tied = self.tied(outcome := self.rule.outcome(self.groups))
        place = likeliest([group.draws for group in tied], self.log_likelihoods)
        return replace(outcome, answer=tied[place])

    @property
    def log_likelihoods(self) -> list[float] | None:
        """Those of the draws; None where one is not known."""
        values = [u for u in self._log_likelihoods if u is not None]
        return values if len(values) == self._n_drawn else None

    def tied(self, outcome: Outcome) -> list[Group]:
        """The groups that are as large as the leading one, in the order in which they appeared."""
        tied = [group for group in self.groups if len(group.draws) == outcome.low]
        return sorted(tied, key=lambda group: group.draws[0])

    def add(
        self,
        forms: Sequence[str],
        log_likelihoods: Sequence[float | None],
        read_as: Sequence[str] | None = None,
    ) -> None:
        """Take further draws as normal forms, and what their values are read from; `settle` groups them."""
        self._log_likelihoods += log_likelihoods
        for form, value in zip(forms, read_as or forms, strict=True):
            self._positions.setdefault(form, []).append(self._n_drawn)
            self._read_as[form] = min(value, self._read_as.get(form, value), key=len)
            self._n_drawn += 1

    def search(self) -> QuestionSearch:
        """Group the draws until it is decided, or no verdict on a pair of them can decide it.

        Components grow from the commonest answer, greedy clusters have to from the first.
        """
        forms = [form for form in self._positions if form]
        if self._linkage == "components":
            forms.sort(key=lambda form: (-len(self._positions[form]), len(form), form))
        values = self._read_as
        differ = lambda a, b: values_differ(values[a], values[b])  # noqa: E731
        search = grow(forms, differ, linkage=self._linkage, enough=self._is_enough)
        return QuestionSearch(self.question, search)

    def _is_enough(self, clusters: list[list[str]], waiting: list[str]) -> bool:
        if self._exact:
            return True
        groups = self._grouped(clusters, waiting)
        return self.rule.outcome(groups).answered is not None or not self.rule.may_decide(groups, 0)

    def group(self, clusters: list[list[str]]) -> None:
        """Take what the search found; answers that it did not get to are groups of their own."""
        settled = {"", *chain.from_iterable(clusters)}
        self.groups = self._grouped(clusters, [form for form in self._positions if form not in settled])

    def _grouped(self, clusters: list[list[str]], waiting: list[str]) -> list[Group]:
        growing = len(clusters) - 1 if waiting and not self._exact else None
        groups = [self._group(cluster, number == growing) for number, cluster in enumerate(clusters)]
        groups += [self._group([form], not self._exact) for form in waiting]
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


@dataclass(frozen=True)
class DecisionRule:
    """The confidence that each count of m draws would have, and the threshold that decides."""

    confidences: Floats  # (m + 1,), of the counts 0 … m
    threshold: float
    measure: str

    @classmethod
    def of(
        cls, m: int, measure: str, threshold: float | None, calibration: Calibration | None
    ) -> DecisionRule:
        """That of some settings.

        UsageError unless there is a threshold, and the confidence rises with the answer's share and reads
        nothing else.
        """
        values = np.arange(m + 1) / m
        if calibration is not None:
            values, threshold = _mapped(values, calibration), _threshold_of(calibration, threshold)
        elif measure != "E-SC":
            raise UsageError(
                "to decide early, the confidence must be the answer's share of the draws (E-SC); "
                f"{measure} reads likelihoods, which draws that are left may change"
            )
        if threshold is None:
            raise UsageError(
                "to decide early, a threshold is needed: give abstain_below (--abstain-below), or a "
                "calibration that has one"
            )
        return cls(values, threshold, measure if calibration is None else CALIBRATED)

    def counts(self, *, linked: bool) -> Rule:
        """The same of counts."""
        enough = np.flatnonzero(self.confidences >= self.threshold)
        m = len(self.confidences) - 1
        return Rule(m, max(1, int(enough[0])) if len(enough) else m + 1, linked)


def _mapped(shares: Floats, calibration: Calibration) -> Floats:
    """The probabilities of shares, which must rise with them."""
    read = calibration.map.candidate
    if read.features == ("E-SC",) and read.kind != "constant":
        values = calibration.map.predict({"E-SC": shares})
        if (np.diff(values) >= 0).all():
            return values
    raise UsageError(
        "to decide early, the calibration's map must rise with the answer's share (E-SC) and read nothing "
        f"else; {read.name} does not, so that draws that are left may move its probability either way; leave "
        "the calibration out and give a threshold of the share"
    )


def _threshold_of(calibration: Calibration, threshold: float | None) -> float | None:
    if calibration.threshold is None:
        return threshold
    if calibration.threshold.threshold is None:
        raise UsageError(
            "no threshold of the calibration was shown to hold its risk, so that every answer abstains and "
            f"nothing is left to decide ({calibration.threshold.sentence})"
        )
    return calibration.threshold.threshold


@dataclass
class Drawn:
    """The draws of one question so far."""

    question: Question
    part: PartOfDraws
    texts: list[str] = field(default_factory=list)  # first answers
    failure: QuestionError | None = None
    cut: int = 0  # draws that reached the token limit


def draw_and_decide(
    model: Sampler,
    questions: Sequence[Question],
    rule: DecisionRule,
    sampling: Sampling,
    *,
    equivalence: Equivalence,
    linkage: str,
    progress: Callable[[int], None] | None = None,
) -> tuple[list[Drawn], int]:
    """Draw until each question is decided; return the draws, and the number of NLI calls.

    The decisions are those of all m draws: a question that is answered is answered with the same meaning,
    and one that abstains abstains. With the random numbers of each draw its own, the draws are the first of
    the m; over a server they are others, distributed alike.
    """
    exact = isinstance(equivalence, ExactMatch)
    counts = rule.counts(linked=linkage == "components" and not exact)
    verdicts = Verdicts(equivalence)
    drawn = [
        Drawn(question, PartOfDraws(question.question, counts, linkage=linkage, exact=exact))
        for question in questions
    ]
    undecided = drawn
    while undecided:
        for (_, first, m), group in groupby(sorted(undecided, key=_together), key=_together):
            _draw(model, list(group), replace(sampling, first=first, m=m))
        undecided = [one for one in undecided if one.failure is None]
        settle([one.part for one in undecided], verdicts)
        undecided = [one for one in undecided if one.part.next_draws]
        if progress is not None:
            progress(len(drawn) - len(undecided))
    return drawn, verdicts.calls


def _together(drawn: Drawn) -> tuple[bool, int, int]:
    """What questions that are sampled together share: a passage, draws so far, draws next."""
    return drawn.question.context is not None, len(drawn.texts), drawn.part.next_draws


def _draw(model: Sampler, group: Sequence[Drawn], sampling: Sampling) -> None:
    """Take further draws of some questions, with likelihoods: they settle ties."""
    ((sampled_of,),) = sample_runs(model, [drawn.question for drawn in group], sampling)
    for drawn, sampled in zip(group, sampled_of):
        drawn.failure = sampled.failure
        if drawn.failure is None:
            finished = [draw.finished for draw in sampled.draws]
            drawn.cut += finished.count(False)
            drawn.texts += [draw.text for draw in sampled.draws]
            forms = [normal_form(draw.text) for draw in sampled.draws]
            drawn.part.add(
                forms, [draw.log_likelihood for draw in sampled.draws], values_read(forms, finished)
            )
