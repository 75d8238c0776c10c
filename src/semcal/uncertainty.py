"""Ask questions: sample, cluster, measure, and apply a calibration: `SemanticUQ`, and `semcal ask`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, cast

from semcal.calibration.apply import (
    as_calibration,
    check_beside,
    check_equivalence,
    check_model,
    equivalence_of,
)
from semcal.calibration.calibrated import Calibration
from semcal.data.question import Question
from semcal.deciding import DecisionRule, Drawn, draw_and_decide
from semcal.errors import QuestionError, SemcalWarning, UsageError, shown
from semcal.grading.rules import RuleGrader
from semcal.inputs import (
    EquivalenceLike,
    ModelLike,
    Questions,
    as_equivalence,
    as_model,
    as_questions,
    checked_draws,
)
from semcal.measures import MEASURES
from semcal.measuring import MeasureOptions, measure_at, representative
from semcal.models.clustering import LINKAGES, cluster_rows
from semcal.models.drawing import Truncation
from semcal.models.language_model import Capabilities, PromptConfig, check_likelihoods
from semcal.models.sampling import Sampled, Sampling, row_to_ask, sample_runs
from semcal.progress import ShowProgress, shown_progress
from semcal.recalibration.attentive import AnyRecalibrator
from semcal.recalibration.fitting import RecalibratorLike, recalibrator_and_prompt
from semcal.registry import check_name
from semcal.results import Answer, Meaning, Results, answer_of
from semcal.rows import (
    FAILED,
    Row,
    RowsAt,
    check_distinct,
    failures_of,
    warn_of_cut_draws,
    warn_of_failures,
)
from semcal.steps import WorkerState
from semcal.workers import Progress

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
        Decides which answers mean the same: the embedded model by default, "exact", or an NLI model or its
        directory.
    few_shot : file, DataFrame, dicts or Questions, optional
        Answered examples before every question; by default those that the recalibrator was fitted with.
    m : int, optional
        Draws per question, at least 2; 10 by default.
    seed : int
        Random seed.
    max_new_tokens : int, optional
        Limit of a generation: 10 without a passage and 32 with one, by default.
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
    decide : bool
        Stop sampling, and comparing answers, as soon as what is left cannot change whether a question is
        answered, and with which meaning. The confidence is then known within bounds. Needs a threshold of
        E-SC, or of a calibration that rises with it and reads nothing else.

    `draws`, `cut_draws` (at the limit) and `nli_calls` count those so far, and `pairs` all ordered pairs
    of answers. UsageError if the recalibrator or calibration was made for another model or prompt, m is 1, or
    the calibration sets what is given beside it; SemcalWarning below 5 draws, where a calibration of stored
    samples cannot be checked, and where `force` applies one that was made for another model or prompt.

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
        m: int | None = None,
        seed: int = 0,
        max_new_tokens: int | None = None,
        truncation: Truncation | None = None,
        linkage: str | None = None,
        measure: str | None = None,
        abstain_below: float | None = None,
        t_alpha: float = 0.5,
        g_alpha: float = 0.5,
        force: bool = False,
        decide: bool = False,
    ) -> None:
        self.model = model = as_model(model)
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
                    "abstain_below": abstain_below,
                },
            )
            m, linkage, max_new_tokens = calibration.m, calibration.linkage, calibration.max_new_tokens
            equivalence = equivalence_of(calibration, equivalence)
        self.calibration = calibration
        self.m = _warn_if_few(checked_draws(10 if m is None else m))
        asking, self.recalibrators = self._distribution(recalibrator, few_shot, force=force)
        self.equivalence = as_equivalence(equivalence)
        if calibration is not None:
            check_equivalence(calibration, self.equivalence, force=force)
        if truncation is not None and not isinstance(truncation, Truncation):
            raise UsageError(f"truncation is {shown(truncation)}; give semcal.models.Truncation(top_p=0.9)")
        self.sampling = Sampling(
            tuple(self.recalibrators.values()), asking, self.m, (seed,), max_new_tokens, truncation
        )
        self.linkage = check_name(linkage or "components", LINKAGES, what="linkage")
        self.measure = check_name(measure or "E-SC", MEASURES, what="measure")
        self.threshold = _checked_threshold(abstain_below)
        self.draws = self.cut_draws = self.nli_calls = self.pairs = 0
        self.options = MeasureOptions(t_alpha, g_alpha)
        check_likelihoods(model, self.recalibrator, self.measure)
        if decide and self.linkage == "complete":
            why = "with complete a further draw may part answers that were one meaning"
            raise UsageError(f"to decide early, give linkage components or greedy: {why}")
        self.rule = DecisionRule.of(self.m, self.measure, self.threshold, calibration) if decide else None

    def _distribution(
        self, recalibrator: RecalibratorLike | None, few_shot: Questions | None, *, force: bool
    ) -> tuple[PromptConfig, dict[float | None, AnyRecalibrator]]:
        """The prompt, and what answers are sampled under: the first gives the answer."""
        under, asking = recalibrator_and_prompt(self.model, recalibrator, few_shot, force=force)
        if self.calibration is None:
            return asking, {None: under}
        check_model(self.calibration, self.model, force=force)
        asking = self.calibration.asking if few_shot is None else asking
        return asking, self.calibration.recalibrators

    @property
    def asking(self) -> PromptConfig:
        """The few-shot examples before every question."""
        return self.sampling.asking

    @property
    def recalibrator(self) -> AnyRecalibrator:
        """What the answer is sampled under."""
        return next(iter(self.recalibrators.values()))

    def ask(self, question: Question | str | Mapping[str, Any], *, context: str | None = None) -> Answer:
        """Ask one question, a text with its passage if there is one, a dict or a `Question`.

        The random numbers are derived from the seed and the question's text: the same question gets
        the same answer again.
        """
        (question,) = as_questions([question], "the question")
        question = question if context is None else replace(question, context=context)
        return self.ask_many([question], progress=False)[0]  # which raises if that failed

    def ask_many(self, questions: Questions, *, progress: ShowProgress = True) -> Results:
        """Ask many questions with distinct ids; open-book and closed-book questions may be mixed.

        Questions and `progress` are those of `semcal.ask_many`. Questions to which a server gave no answers
        are left out with a warning, and stand in the results' `failures`.
        """
        cut, draws = self.cut_draws, self.draws
        results = self.answer_all(questions, progress=progress)
        warn_of_cut_draws(self.cut_draws - cut, self.draws - draws)
        warn_of_failures(results.failures, len(results) + len(results.failures))
        return results

    def answer_all(self, questions: Questions, *, progress: ShowProgress = True) -> Results:
        """As `ask_many`, without a warning; no answers at all are no error."""
        questions = as_questions(questions)
        check_distinct(question.id for question in questions)
        with shown_progress(progress, "ask", len(questions)) as update:
            if self.rule is not None:
                answers, failures = self._decide(questions, self.rule, update)
                return self._results(answers, {None: [answer.row for answer in answers]}, failures)
            (run,) = sample_runs(self.model, questions, self.sampling, progress=update)
            rows, failures = self._measured(questions, run)
        if self.calibration is None:
            failures |= {row.id: self._unmeasured(row.id) for row in rows[None] if self._lacks(row)}
            rows = {None: [row for row in rows[None] if row.id not in failures]}
        first = next(iter(rows.values()))
        threshold = self.threshold
        if self.calibration is not None and self.calibration.threshold is not None:
            threshold = self.calibration.limit
        calibrated = [None] * len(first) if self.calibration is None else self.calibration.apply(rows)
        answers = [answer_of(row, self.measure, one, threshold) for row, one in zip(first, calibrated)]
        return self._results(answers, rows, failures)

    def _results(
        self, answers: Sequence[Answer], rows: RowsAt, failures: Mapping[str, QuestionError]
    ) -> Results:
        (seed,) = self.sampling.seeds
        return Results(
            answers,
            rows,
            grader=RuleGrader(),
            equivalence=self.equivalence,
            linkage=self.linkage,
            seed=seed,
            failures=failures,
        )

    def _lacks(self, row: Row) -> bool:
        """Whether the draws of a row lack the likelihoods that the measure reads."""
        return self.measure not in row.measured.confidence

    def _unmeasured(self, question_id: str) -> QuestionError:
        why = f"a draw has no likelihood, which {self.measure} reads; E-SC needs none (--measure E-SC)"
        return QuestionError(question_id, why)

    def _decide(
        self, questions: Sequence[Question], rule: DecisionRule, progress: Callable[[int], None] | None
    ) -> tuple[list[Answer], dict[str, QuestionError]]:
        """The questions answered with the draws that decide, and the failures of those that are left out."""
        drawn, calls = draw_and_decide(
            self.model,
            questions,
            rule,
            self.sampling,
            equivalence=self.equivalence,
            linkage=self.linkage,
            progress=progress,
        )
        self.nli_calls += calls
        self.draws += sum(len(one.texts) for one in drawn)
        self.cut_draws += sum(one.cut for one in drawn)
        self.pairs += len(drawn) * self.m * (self.m - 1)
        failures = {one.question.id: one.failure for one in drawn if one.failure is not None}
        return [decided_answer(one, rule) for one in drawn if one.failure is None], failures

    def _measured(
        self, questions: Sequence[Question], run: Sequence[Sequence[Sampled]]
    ) -> tuple[RowsAt, dict[str, QuestionError]]:
        """The draws of ``[recalibrator][question]``, clustered apart and measured; and those that failed."""
        rows = [
            one.add_to(row_to_ask(question), tokens=True)
            for of in run
            for question, one in zip(questions, of)
        ]
        failures = failures_of(rows)
        clustered = cluster_rows(
            [row for row in rows if row.id not in failures],
            equivalence=self.equivalence,
            linkage=self.linkage,
        )
        rows = clustered.rows
        self.nli_calls += clustered.calls
        self.draws += len(rows) * self.m
        self.cut_draws += sum(row.finished.count(False) for row in rows)
        self.pairs += len(rows) * self.m * (self.m - 1)
        n = len(rows) // len(self.recalibrators)
        split = {t: rows[k * n : (k + 1) * n] for k, t in enumerate(self.recalibrators)}
        return measure_at(split, self.options), failures


def decided_answer(drawn: Drawn, rule: DecisionRule) -> Answer:
    """What was decided early; the confidence is known where its bounds agree."""
    outcome, part = drawn.part.outcome, drawn.part
    complete = len(drawn.texts) == part.rule.m and not any(group.open for group in part.groups)
    tied = len(part.tied(outcome)) if complete else 1
    leading, *others = sorted(part.groups, key=lambda group: group is not outcome.answer)
    meanings = [
        Meaning(
            representative(drawn.texts, group.draws, part.log_likelihoods),
            None,
            None,
            tuple(drawn.texts[i] for i in group.draws),
        )
        for group in [leading, *sorted(others, key=lambda group: group.rank, reverse=True)]
    ]
    low, high = (float(rule.confidences[count]) for count in (outcome.low, outcome.high))
    row = Row({**drawn.question.row(), "samples": drawn.texts, "log_likelihoods": None, "clusters": None})
    return Answer(
        id=drawn.question.id,
        question=drawn.question.question,
        text=meanings[0].text,
        confidence=low if low == high else None,
        measure=rule.measure,
        abstained=not outcome.answered,
        threshold=rule.threshold,
        entropy=None,
        meanings=tuple(meanings),
        by_measure={},
        row=row,
        bounds=(low, high),
        tied=tied if tied > 1 else None,
        m=len(rule.confidences) - 1,
    )


def ask_many(
    model: ModelLike,
    questions: Questions | None = None,
    *,
    progress: ShowProgress = True,
    **options: Any,
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


def _is_sampler(argument: object) -> bool:
    """Whether an argument is a model, and no name of one."""
    return isinstance(getattr(argument, "capabilities", None), Capabilities)


def _are_questions(argument: object) -> bool:
    """Whether a first argument cannot be a model: a table, a list, or a file of a table's kind."""
    if isinstance(argument, str | Path):
        return Path(argument).suffix in {".jsonl", ".json", ".csv", ".tsv", ".parquet"}
    return not isinstance(argument, type) and not _is_sampler(argument) and isinstance(argument, Iterable)


def _warn_if_few(m: int) -> int:
    if m < FEW:
        warnings.warn(
            f"m = {m} is few: a share is a multiple of {1 / m:.2f} and hardly tells sure from unsure; "
            f"sample at least {FEW}, better 10",
            SemcalWarning,
            stacklevel=3,
        )
    return m


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
    ways: tuple[Mapping[str, Any], ...]

    def __call__(self, rows: Sequence[Row], models: WorkerState, progress: Progress) -> list[Row]:
        """Ask; what else the rows of the questions hold comes last."""
        questions = [row.to_question() for row in rows]
        uqs = [SemanticUQ(models.model, equivalence=models.equivalence, **way) for way in self.ways]
        results = []
        for uq in uqs:
            results.append(uq.answer_all(questions, progress=progress))
            models.costs.update(
                calls=uq.nli_calls,
                pairs=uq.pairs,
                draws=uq.draws,
                all=len(questions) * uq.m,
                cut=uq.cut_draws,
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
