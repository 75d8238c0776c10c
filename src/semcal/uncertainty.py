"""Ask questions: sample, cluster, measure, and apply a calibration: `SemanticUQ`, and `semcal ask`.

Where it is decided early (`decide`), the draws are taken in rounds, and are the first of the m that would be
taken otherwise: as few draws and NLI pairs as say whether a question is answered, and with what.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from numbers import Real
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypedDict, Unpack, cast

import numpy as np

from semcal import inputs
from semcal.calibration.calibrated import (
    Calibration,
    as_calibration,
    check_answer_format,
    check_answer_kind,
    check_beside,
    check_equivalence,
    check_model,
    equivalence_of,
)
from semcal.calibration.signals import add_signals, signals_named
from semcal.data.question import Question
from semcal.data.template import TemplateLike
from semcal.errors import QuestionError, SemcalWarning, UsageError, naming_extra, shown
from semcal.grading.grade import as_grader
from semcal.inputs import EquivalenceLike, ModelLike, Questions
from semcal.meaning.answer import AnswerFormat
from semcal.measures import MEASURES
from semcal.measuring import MeasureOptions, likeliest, measure_at, representative
from semcal.metrics.frequencies import Floats
from semcal.models.clustering import (
    LINKAGES,
    Grouping,
    QuestionSearch,
    Verdicts,
    cluster_rows,
    finish,
    grow,
    match_at,
)
from semcal.models.equivalence import ExactMatch, count_invalid, form_by
from semcal.models.language_model import Capabilities, PromptConfig, Sampler, check_likelihoods
from semcal.models.sampling import Sampled, Sampling, add_stated_answers, row_to_ask, sample_runs
from semcal.progress import ShowProgress, shown_progress
from semcal.recalibration.fitted import RecalibratorLike, recalibrator_and_prompt
from semcal.registry import check_name
from semcal.results import Answer, Meaning, Results, answers_of
from semcal.rows import (
    CALIBRATED,
    FAILED,
    AnswerKind,
    Row,
    RowsAt,
    as_answer_kind,
    check_distinct,
    failures_of,
    warn_of_cut_draws,
    warn_of_failures,
)
from semcal.steps import WorkerState
from semcal.text.values import values_differ, values_read
from semcal.workers import Progress

if TYPE_CHECKING:
    from semcal.models.drawing import Truncation
    from semcal.recalibration.attentive import AnyRecalibrator

#: Fewer draws than this are warned about.
FEW = 5


class SemanticUQ:
    """Sample, cluster, measure: a language model that says how sure it is of what it means.

    Parameters
    ----------
    model : Sampler, str or Path
        From `semcal.load_model`, or what that takes; or a fake.
    calibration : Calibration, str or Path, optional
        Makes the confidence a probability; a directory, a hub id or "atlas" is loaded. It brings its prompt,
        recalibrator, temperatures, m, equivalence, linkage and threshold, which are refused beside it.
    recalibrator : Fit, Recalibrator, ATS, float, str or Path, optional
        From `semcal.fit`, or where that was saved; it brings its few-shot examples with it. Or a temperature:
        the model's own distribution (T = 1) by default.
    equivalence : Equivalence or str, optional
        Decides which answers mean the same: the embedded model by default, "exact", labels
        ("among:spam,ham"), or an NLI model or its directory.
    few_shot : file, DataFrame, dicts or Questions, optional
        Answered examples before every question; by default those that the recalibrator was fitted with.
    system : str, optional
        A system message in place of the built-in one; "" for none.
    template : file, dict or Template, optional
        `system`, and `user` with {question} and {context}: the form of the prompt.
    m : int, optional
        Draws per question, at least 2; 10 by default.
    seed : int
        Random seed.
    max_new_tokens : int, optional
        Limit of a generation: 10 without a passage and 32 with one, by default.
    answer_format : str, optional
        The rule that reads the answer in a generation: "auto" (by default, or that of the calibration),
        "first", "final", "whole", "json", "json:/POINTER" or "regex:PATTERN" (`semcal.meaning.answer`).
    truncation : Truncation, optional
        Top-k and top-p while sampling; none by default.
    linkage : {"components", "greedy", "complete"}, optional
        How pairs become clusters; "components" by default.
    measure : str, optional
        The measure that chooses the answer and is its confidence; "E-SC" by default.
    abstain_below : float, optional
        The threshold below which an answer abstains.
    t_alpha, g_alpha : float
        The parameter of T-SC and of G-SC.
    force : bool
        Apply a recalibrator or calibration that was made for another model, prompt or revision of the
        equivalence.
    answer : {"modal", "greedy"}, optional
        The most frequent meaning of the draws (by default), or what the model says at T = 0, which is one
        more draw; or that of the calibration. For answers that are given use `check`.
    decide : bool
        Stop sampling, and comparing answers, as soon as what is left cannot change whether a question is
        answered, and with which meaning. The confidence is then known within bounds. Needs a threshold of
        E-SC, or of a calibration that rises with it and reads nothing else.

    `draws`, `cut_draws` (at the limit), `invalid_draws` (none of the labels) and `nli_calls` count those so
    far, and `pairs` all ordered pairs of answers. UsageError if the recalibrator or calibration was made for
    another model or prompt, m is 1, or the calibration sets what is given beside it; SemcalWarning below 5
    draws, where a calibration of stored samples cannot be checked, and where `force` applies one that was
    made for another model or prompt.

    Examples
    --------
    >>> from semcal.models.fakes import FakeLanguageModel
    >>> model = FakeLanguageModel({"Who wrote it?": {"Ana Velis": 0.9, "Bo Tarn": 0.1}})
    >>> answer = SemanticUQ(model, equivalence="exact", abstain_below=0.7).ask("Who wrote it?")
    >>> answer
    Answer('Ana Velis', confidence=0.9, abstained=False)
    """

    def __init__(
        self,
        model: ModelLike,
        *,
        calibration: Calibration | str | Path | None = None,
        recalibrator: RecalibratorLike | None = None,
        equivalence: EquivalenceLike | None = None,
        few_shot: Questions | None = None,
        system: str | None = None,
        template: TemplateLike | None = None,
        m: int | None = None,
        seed: int = 0,
        max_new_tokens: int | None = None,
        answer_format: str | None = None,
        truncation: Truncation | None = None,
        linkage: str | None = None,
        measure: str | None = None,
        abstain_below: float | None = None,
        t_alpha: float = 0.5,
        g_alpha: float = 0.5,
        force: bool = False,
        answer: AnswerKind | None = None,
        decide: bool = False,
    ) -> None:
        self.model = model = inputs.as_model(model)
        if calibration is not None:
            calibration = as_calibration(calibration)
            check_beside(
                calibration,
                {
                    "m": m,
                    "linkage": linkage,
                    "max_new_tokens": max_new_tokens,
                    "recalibrator": recalibrator,
                    "truncation": truncation,
                    "measure": measure,
                    "few_shot": few_shot,
                    "system": system,
                    "template": template,
                    "abstain_below": abstain_below,
                },
            )
            check_answer_kind(calibration, answer)
            check_answer_format(calibration, answer_format)
            answer, answer_format = calibration.answer_kind, calibration.answer_format
            m, linkage, max_new_tokens = calibration.m, calibration.linkage, calibration.max_new_tokens
            equivalence = equivalence_of(calibration, equivalence)
        self.calibration = calibration
        self.answer_kind = as_answer_kind(answer or "modal")
        m = 10 if m is None else m
        self.m = inputs.checked_draws(m, "modal" if calibration is None else self.answer_kind)
        if self.m > 1:  # of one draw the calibration says what it loses
            _warn_if_few(self.m)
        under, asking = recalibrator_and_prompt(
            model, recalibrator, few_shot, system=system, template=template, force=force
        )
        self.recalibrators: dict[float | None, AnyRecalibrator] = {None: under}  # the first gives the answer
        if calibration is not None:
            check_model(calibration, model, force=force)
            if few_shot is None and asking.template is None:
                asking = replace(calibration.asking, force=force)
            self.recalibrators = calibration.recalibrators
            for signal in signals_named(calibration.signals):
                signal.check(model)
        self.equivalence = inputs.as_equivalence(equivalence)
        if calibration is not None:
            check_equivalence(calibration, self.equivalence, force=force)
        if truncation is not None:
            with naming_extra("truncation"):
                from semcal.models.drawing import Truncation

            if not isinstance(truncation, Truncation):
                raise UsageError(
                    f"truncation is {shown(truncation)}; give semcal.models.Truncation(top_p=0.9)"
                )
        self.sampling = Sampling(
            *(tuple(self.recalibrators.values()), asking, self.m, (seed,), max_new_tokens, truncation),
            answer_format=AnswerFormat(answer_format or "auto"),
        )
        self.linkage = check_name(linkage or "components", LINKAGES, what="linkage")
        self.measure = check_name(measure or "E-SC", MEASURES, what="measure")
        self.threshold = _checked_threshold(abstain_below)
        self.draws = self.cut_draws = self.invalid_draws = self.nli_calls = self.pairs = 0
        self.options = MeasureOptions(t_alpha, g_alpha)
        check_likelihoods(model, self.recalibrator, self.measure)
        self.rule = None
        if decide and self.answer_kind != "modal":
            raise UsageError(
                f"to decide early, the answer must be the most frequent meaning; {self.answer_kind} answers "
                "are compared with all draws"
            )
        if decide:
            self.rule = DecisionRule.of(self.m, self.measure, self.threshold, calibration, self.linkage)

    @property
    def asking(self) -> PromptConfig:
        """The template of the prompt, and the few-shot examples before every question."""
        return self.sampling.asking

    @property
    def recalibrator(self) -> AnyRecalibrator:
        """What the answer is sampled under."""
        return next(iter(self.recalibrators.values()))

    def ask(
        self,
        question: Question | str | Mapping[str, object] | Sequence[Mapping[str, object]],
        *,
        context: str | None = None,
    ) -> Answer:
        """Ask one question, a text with its passage if there is one, messages, a dict or a `Question`.

        The random numbers are derived from the seed and the question's text: the same question gets
        the same answer again.
        """
        (question,) = inputs.as_questions([question], "the question")
        question = question if context is None else replace(question, context=context)
        return self.ask_many([question], progress=False)[0]  # which raises if that failed

    def check(
        self, question: Question | str | Mapping[str, object], answer: str, *, context: str | None = None
    ) -> Answer:
        """Return how likely an answer is right that another program, or a person, has given to a question.

        As `ask`: its confidence is the probability of a calibration that was learnt with ``answer="given"``,
        else the share of the draws that mean the same, 0 if none does.
        """
        (question,) = inputs.as_questions([question], "the question")
        question = question if context is None else replace(question, context=context)
        return self.check_many([question], [answer], progress=False)[0]

    def check_many(
        self, questions: Questions, answers: Sequence[str], *, progress: ShowProgress = True
    ) -> Results:
        """Check an answer to each of many questions: `check`, and `ask_many` for the rest."""
        items, texts = inputs.as_questions(questions), list(answers)
        if len(texts) != len(items) or not all(isinstance(text, str) for text in texts):
            raise UsageError(f"give a text to each question: {len(items)} questions, {len(texts)} answers")
        check_answer_kind(self.calibration, "given")
        if self.rule is not None:
            raise UsageError("to check answers, leave decide out: they are compared with all draws")
        given = [
            replace(question, extra={**question.extra, "answer": text})
            for question, text in zip(items, texts)
        ]
        return self._ask_many(given, "given", progress)

    def ask_many(self, questions: Questions, *, progress: ShowProgress = True) -> Results:
        """Ask many questions with distinct ids; open-book and closed-book questions may be mixed.

        Questions and `progress` are those of `semcal.ask_many`. Questions to which a server gave no answers
        are left out with a warning, and stand in the results' `failures`.
        """
        return self._ask_many(questions, self.answer_kind, progress)

    def _ask_many(self, questions: Questions, kind: AnswerKind, progress: ShowProgress) -> Results:
        cut, draws = self.cut_draws, self.draws
        results = self.answer_all(questions, progress=progress, kind=kind)
        warn_of_cut_draws(self.cut_draws - cut, self.draws - draws)
        warn_of_failures(results.failures, len(results) + len(results.failures))
        return results

    def answer_all(
        self, questions: Questions, *, progress: ShowProgress = True, kind: AnswerKind | None = None
    ) -> Results:
        """As `ask_many`, without a warning; no answers at all are no error. `kind` is that of the answers."""
        kind = kind or self.answer_kind
        questions = inputs.as_questions(questions, given=kind == "given")
        check_distinct(question.id for question in questions)
        with shown_progress(progress, "ask", len(questions)) as update:
            if self.rule is not None:
                answers, failures = self._decide(questions, self.rule, update)
                return self._results(answers, {None: [answer.row for answer in answers]}, failures, kind)
            (run,) = sample_runs(self.model, questions, self.sampling, progress=update)
            rows, failures = self._measured(questions, run, kind)
        if self.calibration is None:
            why = f"a draw has no likelihood, which {self.measure} reads; E-SC needs none (--measure E-SC)"
            lacking = [row.id for row in rows[None] if self.measure not in row.measured.confidence]
            failures |= {name: QuestionError(name, why) for name in lacking}
            rows = {None: [row for row in rows[None] if row.id not in failures]}
        answers = answers_of(rows, self.measure, self.calibration, self.threshold, kind)
        return self._results(answers, rows, failures, kind)

    def _results(
        self,
        answers: Sequence[Answer],
        rows: RowsAt,
        failures: Mapping[str, QuestionError],
        kind: AnswerKind,
    ) -> Results:
        (seed,) = self.sampling.seeds
        clustering = Grouping(self.equivalence, self.linkage)
        return Results(
            answers,
            rows,
            grader=as_grader(None, self.equivalence),
            clustering=clustering,
            seed=seed,
            failures=failures,
            kind=kind,
        )

    def _decide(
        self, questions: Sequence[Question], rule: DecisionRule, progress: Callable[[int], None] | None
    ) -> tuple[list[Answer], dict[str, QuestionError]]:
        """The questions answered with the draws that decide, and the failures of those that are left out."""
        clustering = Grouping(self.equivalence, self.linkage)
        decided, calls = draw_and_decide(self.model, questions, rule, self.sampling, clustering, progress)
        self.nli_calls += calls
        self._count(len(decided), sum(len(item.texts) for item in decided), sum(item.cut for item in decided))
        self.invalid_draws += sum(count_invalid(self.equivalence, item.texts) for item in decided)
        failures = {item.question.id: item.failure for item in decided if item.failure is not None}
        name = None if self.calibration is None else self.calibration.id
        answers = [replace(item.answer(rule), calibration=name) for item in decided if item.failure is None]
        return answers, failures

    def _count(self, n_questions: int, draws: int, cut_draws: int) -> None:
        self.draws += draws
        self.cut_draws += cut_draws
        self.pairs += n_questions * self.m * (self.m - 1)

    def _measured(
        self, questions: Sequence[Question], run: Sequence[Sequence[Sampled]], kind: AnswerKind
    ) -> tuple[RowsAt, dict[str, QuestionError]]:
        """The draws of ``[recalibrator][question]``, clustered apart and measured; and those that failed."""
        rows = [
            sampled.add_to(row_to_ask(question), tokens=True)
            for sampled_under in run
            for question, sampled in zip(questions, sampled_under)
        ]
        if kind != "modal":
            rows = add_stated_answers(self.model, rows, kind, self.sampling)
        failures = failures_of(rows)
        clustered = cluster_rows(
            [row for row in rows if row.id not in failures],
            equivalence=self.equivalence,
            linkage=self.linkage,
        )
        rows = clustered.rows
        self.nli_calls += clustered.calls
        self._count(len(rows), len(rows) * self.m, sum(row.finished.count(False) for row in rows))
        self.invalid_draws += sum(count_invalid(self.equivalence, row.samples) for row in rows)
        n = len(rows) // len(self.recalibrators)
        split = {t: rows[k * n : (k + 1) * n] for k, t in enumerate(self.recalibrators)}
        measured = match_at(measure_at(split, self.options), kind, self.equivalence)
        if self.calibration is not None:
            measured = add_signals(measured, self.calibration.signals, self.model, self.asking, kind)
        return measured, failures


class UQOptions(TypedDict, total=False):
    """The options of `SemanticUQ`."""

    calibration: Calibration | str | Path | None
    recalibrator: RecalibratorLike | None
    equivalence: EquivalenceLike | None
    few_shot: Questions | None
    system: str | None
    template: TemplateLike | None
    m: int | None
    seed: int
    max_new_tokens: int | None
    answer_format: str | None
    truncation: Truncation | None
    linkage: str | None
    measure: str | None
    abstain_below: float | None
    t_alpha: float
    g_alpha: float
    force: bool
    answer: AnswerKind | None
    decide: bool


def ask_many(
    model: ModelLike,
    questions: Questions | None = None,
    *,
    progress: ShowProgress = True,
    **options: Unpack[UQOptions],
) -> Results:
    """Ask a model many questions.

    Parameters
    ----------
    model : Sampler, str or Path
        From `semcal.load_model`, or what that takes; "atlas" is the small one that comes with the package.
    questions : list of str, file, DataFrame, dicts or Questions
        `question`; `id`, `context`, `group` where there are some; `answers`, and they are graded. For a
        release the questions may stand first, and a model (by default "atlas") behind them, with a warning.
    progress : bool or callable
        A bar on a terminal or in a notebook, or a function of the number of questions that are answered.
    **options
        Of `semcal.SemanticUQ`: `calibration`, `equivalence`, `recalibrator`, `m`, `seed`, …

    Examples
    --------
    >>> from semcal.models.fakes import FakeLanguageModel
    >>> model = FakeLanguageModel({"Who wrote it?": {"Ana": 1.0}, "Who sang it?": {"Bo": 0.5, "Cy": 0.5}})
    >>> ask_many(model, [{"question": "Who wrote it?", "answers": "Ana"}, {"question": "Who sang it?"}])
    Results(2 answers, 1 graded; E-SC: accuracy 1.000, confidence 1.000, gain 1.000; meanings by 'default')
    """
    if _is_sampler(questions) or _are_questions(model):
        warnings.warn("give the model first: semcal.ask_many(model, questions)", SemcalWarning, stacklevel=2)
        model, questions = cast("ModelLike", questions or "atlas"), cast("Questions", model)
    if questions is None:
        raise UsageError("no questions; give semcal.ask_many(model, questions)")
    return SemanticUQ(model, **options).ask_many(questions, progress=progress)


def check(
    model: ModelLike,
    questions: Questions,
    answers: Sequence[str],
    *,
    progress: ShowProgress = True,
    **options: Unpack[UQOptions],
) -> Results:
    """Say how likely answers are right that another program, or a person, has given.

    Parameters
    ----------
    model : Sampler, str or Path
        The witness, whose draws are compared with each answer; as in `semcal.ask_many`.
    questions, answers : sequences of one length
        As in `semcal.ask_many`, and a text to each.
    **options
        Of `semcal.SemanticUQ`: a `calibration` that was learnt with ``answer="given"``, `equivalence`, `m`, …

    Examples
    --------
    >>> from semcal.models.fakes import FakeLanguageModel
    >>> model = FakeLanguageModel({"Who wrote it?": {"Ana": 0.9, "Bo": 0.1}})
    >>> for answer in check(model, ["Who wrote it?"] * 2, ["Ana", "Cy"], equivalence="exact"):
    ...     print(answer, answer.explanation, sep="; ")
    Answer('Ana', confidence=0.9); 9 of 10 draws say Ana and 1 says Bo
    Answer('Cy', confidence=0); none of 10 draws says Cy, 9 say Ana and 1 says Bo
    """
    return SemanticUQ(model, **options).check_many(questions, answers, progress=progress)


def _is_sampler(argument: object) -> bool:
    """Whether an argument is a model, and no name of one."""
    return isinstance(getattr(argument, "capabilities", None), Capabilities)


def _are_questions(argument: object) -> bool:
    """Whether a first argument cannot be a model: a table, a list, or a file of a table's kind."""
    if isinstance(argument, str | Path):
        return Path(argument).suffix in {".jsonl", ".json", ".csv", ".tsv", ".parquet"}
    return not isinstance(argument, type) and not _is_sampler(argument) and isinstance(argument, Iterable)


def _warn_if_few(m: int) -> None:
    if m < FEW:
        warnings.warn(
            f"m = {m} is few: a share is a multiple of {1 / m:.2f} and hardly tells sure from unsure; "
            f"sample at least {FEW}, better 10",
            SemcalWarning,
            stacklevel=3,
        )


def _checked_threshold(threshold: float | None) -> float | None:
    if threshold is not None and not (isinstance(threshold, Real) and 0 <= threshold <= 1):
        raise UsageError(f"abstain_below must be in [0, 1], got {shown(threshold)}")
    return threshold


@dataclass(frozen=True)
class AskStep:
    """Asks the questions of rows in some ways (options of `SemanticUQ`): its records stand together.

    It counts `calls` of the NLI model of all `pairs`, `draws` of `all` that would have been taken, and those
    `cut` at the token limit.
    """

    name: ClassVar[str] = "ask"
    ways: tuple[UQOptions, ...]

    def __call__(self, rows: Sequence[Row], models: WorkerState, progress: Progress) -> list[Row]:
        """Ask; what else the rows of the questions hold comes last."""
        questions = [row.to_question() for row in rows]
        common: UQOptions = {"equivalence": models.equivalence}
        uqs = [SemanticUQ(models.model, **way | common) for way in self.ways]
        results = []
        for uq in uqs:
            results.append(uq.answer_all(questions, progress=progress))
            models.costs.update(
                calls=uq.nli_calls,
                pairs=uq.pairs,
                draws=uq.draws,
                all=len(questions) * uq.m,
                cut=uq.cut_draws,
                invalid=uq.invalid_draws,
            )
        by_id = [{answer.id: answer for answer in answers} for answers in results]
        failures = {name: error for answers in results for name, error in answers.failures.items()}
        return [
            row.set(**{FAILED: failures[row.id].reason})
            if row.id in failures
            else Row((record := answers[row.id].record(uq.recalibrator)) | question.row() | record)
            for row, question in zip(rows, questions)
            for uq, answers in zip(uqs, by_id)
        ]


# ---- Deciding early ----------------------------------------------------------------------------------------


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
        n_draws = sum(len(group.draws) for group in groups)
        new = tuple(range(n_draws, n_draws + further))
        differ = [Group(group.draws, empty=group.empty) for group in groups]
        merged = [Group(group.draws, empty=group.empty) for group in groups if not group.open]
        if union := _union(group for group in groups if group.open):
            merged.append(Group(union))
        outcomes = (_joined(merged, new), _joined(differ, new), [*differ, *(Group((i,)) for i in new)])
        return any(self.outcome(groups_then).answered is not None for groups_then in outcomes)

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
        cls,
        m: int,
        measure: str,
        threshold: float | None,
        calibration: Calibration | None,
        linkage: str = "components",
    ) -> DecisionRule:
        """That of some settings.

        UsageError unless there is a threshold, the confidence rises with the answer's share and reads
        nothing else, and further draws part no meaning.
        """
        if linkage == "complete":
            why = "with complete a further draw may part answers that were one meaning"
            raise UsageError(f"to decide early, give linkage components or greedy: {why}")
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
    if calibration.thresholds:
        raise UsageError(
            "to decide early, one threshold is needed, and the calibration has several, between which "
            "answers are reviewed; calibrate with one risk"
        )
    if calibration.threshold.threshold is None:
        raise UsageError(
            "no threshold of the calibration was shown to hold its risk, so that every answer abstains and "
            f"nothing is left to decide ({calibration.threshold.sentence})"
        )
    return calibration.threshold.threshold


@dataclass
class OpenQuestion:
    """A question until it is decided, and its draws so far."""

    question: Question
    part: PartOfDraws
    form: Callable[[str], str]  # makes the normal form of an answer
    texts: list[str] = field(default_factory=list)  # first answers
    failure: QuestionError | None = None
    cut: int = 0  # draws that reached the token limit

    @property
    def batch(self) -> tuple[bool, int, int]:
        """What questions that are sampled together share: a passage, draws so far, draws next."""
        return self.question.context is not None, len(self.texts), self.part.next_draws

    def add(self, sampled: Sampled) -> None:
        """Take further draws."""
        self.failure = sampled.failure
        if self.failure is None:
            finished = [draw.finished for draw in sampled.draws]
            self.cut += finished.count(False)
            self.texts += [draw.text for draw in sampled.draws]
            forms = [self.form(draw.text) for draw in sampled.draws]
            likely = [draw.log_likelihood for draw in sampled.draws]
            self.part.add(forms, likely, values_read(forms, finished))

    def answer(self, rule: DecisionRule) -> Answer:
        """What was decided early; the confidence is known where its bounds agree."""
        outcome, part = self.part.outcome, self.part
        complete = len(self.texts) == part.rule.m and not any(group.open for group in part.groups)
        tied = len(part.tied(outcome)) if complete else 1
        leading, *rivals = sorted(part.groups, key=lambda group: group is not outcome.answer)
        meanings = tuple(
            Meaning(
                representative(self.texts, group.draws, part.log_likelihoods),
                None,
                None,
                tuple(self.texts[i] for i in group.draws),
            )
            for group in [leading, *sorted(rivals, key=lambda group: group.rank, reverse=True)]
        )
        low, high = (float(rule.confidences[count]) for count in (outcome.low, outcome.high))
        row = Row({**self.question.row(), "samples": self.texts, "log_likelihoods": None, "clusters": None})
        return Answer(
            id=self.question.id,
            question=self.question.question,
            text=meanings[0].text,
            confidence=low if low == high else None,
            measure=rule.measure,
            abstained=not outcome.answered,
            threshold=rule.threshold,
            entropy=None,
            meanings=meanings,
            by_measure={},
            row=row,
            bounds=(low, high),
            tied=tied if tied > 1 else None,
            m=len(rule.confidences) - 1,
        )


def draw_and_decide(
    model: Sampler,
    questions: Sequence[Question],
    rule: DecisionRule,
    sampling: Sampling,
    clustering: Grouping,
    progress: Callable[[int], None] | None = None,
) -> tuple[list[OpenQuestion], int]:
    """Draw until each question is decided; return the draws, and the number of NLI calls.

    The decisions are those of all m draws: a question that is answered is answered with the same meaning,
    and one that abstains abstains. With the random numbers of each draw its own, the draws are the first of
    the m, with likelihoods, which settle ties; over a server they are others, distributed alike.
    """
    exact = isinstance(clustering.equivalence, ExactMatch)
    counts = rule.counts(linked=clustering.linkage == "components" and not exact)
    verdicts = Verdicts(clustering.equivalence)
    decided = [
        OpenQuestion(
            question,
            PartOfDraws(question.question, counts, linkage=clustering.linkage, exact=exact),
            form_by(clustering.equivalence),
        )
        for question in questions
    ]
    undecided = decided
    batch_of = attrgetter("batch")
    while undecided:
        for (_, first, m), batch in groupby(sorted(undecided, key=batch_of), key=batch_of):
            items = list(batch)
            draws = replace(sampling, first=first, m=m)
            ((sampled,),) = sample_runs(model, [item.question for item in items], draws)
            for item, further in zip(items, sampled):
                item.add(further)
        undecided = [item for item in undecided if item.failure is None]
        settle([item.part for item in undecided], verdicts)
        undecided = [item for item in undecided if item.part.next_draws]
        if progress is not None:
            progress(len(decided) - len(undecided))
    return decided, verdicts.calls
