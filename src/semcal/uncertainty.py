"""Ask questions with `SemanticUQ` or `semcal ask`: sample, cluster, measure, and apply a calibration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from semcal import inputs
from semcal.arrays import as_option
from semcal.calibration.calibration import Calibration, as_calibration
from semcal.calibration.compatibility import (
    check_answer_format,
    check_answer_kind,
    check_beside,
    check_equivalence,
    check_model,
    equivalence_of,
)
from semcal.calibration.fields import FieldCalibration, as_field_calibration
from semcal.calibration.signals import add_signals, signals_named
from semcal.data.datasets import Questions, as_cell, as_questions
from semcal.data.question import Question
from semcal.errors import QuestionError, UsageError
from semcal.fields.rows import STRUCTURED_TOKENS, check_to_sample, document_step, system_message
from semcal.grading.grade import as_grader
from semcal.inputs import (
    ClusterKeywords,
    ModelLike,
    PromptKeywords,
    SamplingKeywords,
    check_options,
    configured,
    options_of,
)
from semcal.measures import MEASURES
from semcal.measuring import MeasureOptions, measure_at
from semcal.models.clustering import ClusterConfig, cluster_rows, match_at
from semcal.models.distribution import Temperature
from semcal.models.equivalence import count_invalid
from semcal.models.prompting import PromptConfig
from semcal.models.protocols import check_likelihoods
from semcal.models.sample import (
    Sampled,
    Sampling,
    SamplingConfig,
    add_stated_answers,
    row_to_ask,
    sample_runs,
)
from semcal.progress import ShowProgress, shown_progress
from semcal.recalibration.fit import RecalibratorLike, recalibrator_and_prompt
from semcal.registry import check_name
from semcal.results import Answer, FieldResults, Results, answers_of, judge_documents
from semcal.rows import (
    FAILED,
    AnswerKind,
    Row,
    RowsAt,
    as_answer_kind,
    check_distinct,
    count_ends,
    failures_of,
    warn_of_cut_draws,
    warn_of_failures,
)
from semcal.steps import Step, WorkerState
from semcal.workers import Progress

if TYPE_CHECKING:
    from semcal.models.protocols import AnyRecalibrator

#: Keywords that a calibration sets itself.
OF_CALIBRATION = (
    "m linkage merge_refusals max_new_tokens recalibrator truncation measure few_shot system template "
    "vary abstain_below prompt sampling cluster temperatures"
)


class UQKeywords(PromptKeywords, SamplingKeywords, ClusterKeywords, total=False):
    """Options of `SemanticUQ`: the fields of the configurations, and the options of measures and answers."""

    measure: str | None
    abstain_below: float | None
    t_alpha: float
    g_alpha: float
    force: bool
    answer: AnswerKind | None


class AskKeywords(UQKeywords, total=False):
    """Options of `ask_many` and `check`: all keywords of `SemanticUQ`."""

    calibration: Calibration | FieldCalibration | str | Path | None
    recalibrator: RecalibratorLike | None
    prompt: PromptConfig | None
    sampling: SamplingConfig | None
    cluster: ClusterConfig | None


def _settings_of(
    calibration: Calibration, rest: dict[str, Any], given: Mapping[str, Any]
) -> tuple[SamplingConfig, ClusterConfig]:
    """Return the configurations of a calibration, and take what it sets out of the other options."""
    if calibration.score is not None:
        raise UsageError(
            f"calibration: it is of the score {calibration.base!r} of rows, not of samples. "
            "Use semcal measure, or Calibration.apply"
        )
    check_beside(calibration, {name: given[name] for name in OF_CALIBRATION.split() if name in given})
    check_answer_kind(calibration, rest.get("answer"))
    check_answer_format(calibration, rest.pop("answer_format", None))
    judge = equivalence_of(calibration, rest.pop("equivalence", None))
    sampling = replace(calibration.sampling, seed=rest.pop("seed", 0))
    rest["answer"] = calibration.answer_kind
    return sampling, replace(calibration.cluster, equivalence=judge)


class SemanticUQ:
    """Answer questions with a language model, and state the confidence of each answer.

    Parameters
    ----------
    model : Sampler, str or Path
        A model of `semcal.load_model` or `semcal.load_server`, or an argument of these functions.
    calibration : Calibration, str or Path, optional
        Turns the confidence into the probability that the answer is correct. A directory, a hub id or "atlas"
        is loaded. The calibration sets prompt, recalibrator, sampling, clustering and threshold; passing
        these as well is an error.
    recalibrator : Fit, TokenDistribution, ATS, float, str or Path, optional
        The result of `semcal.fit` or its directory, which also sets the few-shot examples; or a temperature.
        By default T = 1, the distribution of the model.
    prompt : PromptConfig, optional
        Or its fields as keywords: `few_shot`, `system`, `template`.
    sampling : SamplingConfig, optional
        Or its fields as keywords: `m` (at least 2), `seed`, `max_new_tokens`, `truncation`, `answer_format`.
    cluster : ClusterConfig, optional
        Or its fields as keywords: `equivalence`, `linkage`, `merge_refusals`.
    measure : str, optional
        The measure that chooses the answer and is its confidence; "E-SC" by default.
    abstain_below : float, optional
        The threshold. An answer with a lower confidence abstains.
    t_alpha, g_alpha : float
        The parameter of T-SC and of G-SC.
    force : bool
        Apply a recalibrator or calibration that was made for another model, prompt or revision of the
        equivalence.
    answer : {"modal", "greedy"}, optional
        The most frequent meaning of the samples, or the model's answer at T = 0, which costs one more sample.
        By default the kind of the calibration, or "modal". For given answers use `check`.

    Attributes
    ----------
    costs : Counter
        Numbers so far: of samples (`draws`), and of those that were `cut` at the token limit, have no answer
        (`none`), or have an answer that is none of the labels (`invalid`); of `calls` of the equivalence, and
        of all ordered `pairs` of answers.

    Raises
    ------
    UsageError
        If the recalibrator or calibration was made for another model or prompt, if m is 1, or if an option is
        set by the calibration.

    Warns
    -----
    SemcalWarning
        If the origin of a calibration is unknown, or if `force` applies a calibration or recalibrator that
        was made for another model or prompt.

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
        calibration: Calibration | FieldCalibration | str | Path | None = None,
        recalibrator: RecalibratorLike | None = None,
        prompt: PromptConfig | None = None,
        sampling: SamplingConfig | None = None,
        cluster: ClusterConfig | None = None,
        **options: Unpack[UQKeywords],
    ) -> None:
        rest: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        known = options_of(PromptConfig, SamplingConfig, ClusterConfig)
        known += ["measure", "abstain_below", "t_alpha", "g_alpha", "answer", "calibration", "recalibrator"]
        check_options(rest, known, of="SemanticUQ")
        force = bool(rest.pop("force", False))
        self.model = model = inputs.as_model(model)
        self.calibration = None if calibration is None else as_calibration(calibration)
        if self.calibration is not None:
            of_objects = {"prompt": prompt, "sampling": sampling, "cluster": cluster}
            given = {**rest, **of_objects, "recalibrator": recalibrator}
            sampling, cluster = _settings_of(self.calibration, rest, given)
        prompt = configured(PromptConfig, prompt, rest)
        sampling = configured(SamplingConfig, sampling, rest)
        cluster = configured(ClusterConfig, cluster, rest)
        self.answer_kind = as_answer_kind(rest.get("answer") or "modal")
        self.m = inputs.checked_draws(sampling.m, "modal" if self.calibration is None else self.answer_kind)
        first, asked = recalibrator_and_prompt(model, recalibrator, replace(prompt, force=force))
        self.recalibrators: dict[float | None, AnyRecalibrator] = {None: first}  # the first gives the answer
        if self.calibration is not None:
            check_model(self.calibration, model, force=force)
            if not prompt.few_shot and asked.template is None:
                asked = replace(self.calibration.prompt, force=force)
            self.recalibrators = self.calibration.recalibrators
            for signal in signals_named(self.calibration.signals):
                signal.check(model)
        self.cluster = inputs.load_cluster_config(cluster)
        self.equivalence = self.cluster.judge
        if self.calibration is not None:
            check_equivalence(self.calibration, self.equivalence, force=force)
        self.sampling = Sampling(tuple(self.recalibrators.values()), asked, sampling)
        self.measure = check_name(rest.get("measure") or "E-SC", MEASURES, what="measure")
        self.threshold = rest.get("abstain_below")
        if self.threshold is not None:
            expected = "a number from 0 to 1, such as 0.5"
            self.threshold = as_option(self.threshold, "abstain_below", expected, low=-1e-9, high=1 + 1e-9)
        self.costs = Counter[str]()
        self.options = MeasureOptions(rest.get("t_alpha", 0.5), rest.get("g_alpha", 0.5))
        check_likelihoods(model, self.recalibrator, self.measure)

    @property
    def asking(self) -> PromptConfig:
        """The prompt settings: the template, and the few-shot examples before every question."""
        return self.sampling.asking

    @property
    def recalibrator(self) -> AnyRecalibrator:
        """The recalibrator used to sample the answer."""
        return next(iter(self.recalibrators.values()))

    def ask(self, question: Question | str | Mapping[str, object] | Sequence[Mapping[str, object]]) -> Answer:
        """Ask one question: a text, messages, a dict or a `Question`.

        The random numbers are derived from the seed and the text of the question, so that repeating a
        question repeats the answer. Errors are as in `semcal.ask_many`.
        """
        return self.ask_many(as_questions([question], "the question"), progress=False)[0]

    def check(self, question: Question | str | Mapping[str, object], answer: str) -> Answer:
        """Return the confidence in an answer that another program, or a person, has given to a question.

        With a calibration that was learned with ``answer="given"`` the confidence is a probability. Otherwise
        it is the share of samples that mean the same as the answer. Errors are as in `semcal.check`.
        """
        return self.check_many(as_questions([question], "the question"), [answer], progress=False)[0]

    def check_many(
        self, questions: Questions, answers: Sequence[str], *, progress: ShowProgress = True
    ) -> Results:
        """Return the confidence in one given answer to each of many questions, as in `semcal.check`."""
        items, texts = as_questions(questions), list(answers)
        if len(texts) != len(items) or not all(isinstance(text, str) for text in texts):
            raise UsageError(
                f"answers: {len(texts)} answers to {len(items)} questions. Pass one text for each question"
            )
        check_answer_kind(self.calibration, "given")
        given = [
            replace(question, extra={**question.extra, "answer": text})
            for question, text in zip(items, texts)
        ]
        return self._ask_many(given, "given", progress)

    def ask_many(self, questions: Questions, *, progress: ShowProgress = True) -> Results:
        """Ask many questions with distinct ids; open-book and closed-book questions may be mixed.

        Parameters and errors are as in `semcal.ask_many`. Questions that a server did not answer are left out
        with a warning, and are listed in `failures` of the results.
        """
        return self._ask_many(questions, self.answer_kind, progress)

    def _ask_many(self, questions: Questions, kind: AnswerKind, progress: ShowProgress) -> Results:
        before = Counter(self.costs)
        results = self.answer_all(questions, progress=progress, kind=kind)
        new = self.costs - before
        warn_of_cut_draws(new["cut"], new["draws"], new["none"])
        warn_of_failures(results.failures, len(results) + len(results.failures))
        return results

    def answer_all(
        self, questions: Questions, *, progress: ShowProgress = True, kind: AnswerKind | None = None
    ) -> Results:
        """Ask many questions without warnings of failures, for answers of this `kind`.

        Unlike in `ask_many`, no answers at all are not an error.
        """
        kind = kind or self.answer_kind
        questions = as_questions(questions)
        check_distinct(question.id for question in questions)
        with shown_progress(progress, "ask", len(questions)) as update:
            (run,) = sample_runs(self.model, questions, self.sampling, progress=update)
            rows, failures = self._measured(questions, run, kind)
        if self.calibration is None:
            why = f"a sample has no likelihood, which {self.measure} needs. Use E-SC (--measure E-SC)"
            lacking = [row.id for row in rows[None] if self.measure not in row.measured.confidence]
            failures |= {name: QuestionError(name, why) for name in lacking}
            rows = {None: [row for row in rows[None] if row.id not in failures]}
        answers = answers_of(rows, self.measure, self.calibration, self.threshold, kind)
        return Results(
            answers,
            rows,
            grader=as_grader(None, self.equivalence),
            cluster=self.cluster,
            failures=failures,
            kind=kind,
        )

    def _measured(
        self, questions: Sequence[Question], run: Sequence[Sequence[Sampled]], kind: AnswerKind
    ) -> tuple[RowsAt, dict[str, QuestionError]]:
        """Return the measured rows of the samples ``run[recalibrator][question]``, and the failures."""
        rows = [
            sampled.add_to(row_to_ask(question), tokens=True)
            for of_recalibrator in run
            for question, sampled in zip(questions, of_recalibrator)
        ]
        if kind != "modal":
            rows = add_stated_answers(self.model, rows, kind, self.sampling)
        failures = failures_of(rows)
        rows, calls = cluster_rows([row for row in rows if row.id not in failures], self.cluster)
        cut, draws, none = count_ends(rows)
        self.costs.update(
            calls=calls,
            pairs=len(rows) * self.m * (self.m - 1),
            draws=draws,
            cut=cut,
            none=none,
            invalid=sum(count_invalid(self.equivalence, row.texts) for row in rows),
        )
        n = len(rows) // len(self.recalibrators)
        split = {t: rows[k * n : (k + 1) * n] for k, t in enumerate(self.recalibrators)}
        measured = match_at(measure_at(split, self.options), kind, self.equivalence)
        if self.calibration is not None:
            measured = add_signals(measured, self.calibration.signals, self.model, self.asking, kind)
        return measured, failures


def ask_many(
    model: ModelLike,
    questions: Questions,
    *,
    progress: ShowProgress = True,
    **options: Unpack[AskKeywords],
) -> Results:
    """Ask a model many questions.

    Parameters
    ----------
    model : Sampler, str or Path
        As in `semcal.SemanticUQ`, such as "atlas", the small model of the package.
    questions : list of str, file, DataFrame, dicts or Questions
        Columns: `question`; optionally `id`, `context` and `group`; and reference `answers`, which grade.
    progress : bool or callable
        True for a bar on a terminal or in a notebook, or a function of the number of finished questions.
    **options
        Keywords of `semcal.SemanticUQ`: `calibration`, `equivalence`, `recalibrator`, `m`, `seed`, …

    Returns
    -------
    Results
        One `semcal.Answer` for each question, in order; failed questions are in `failures` instead.

    Raises
    ------
    InputError
        If a question is invalid or an id occurs twice; the first QuestionError if no question was answered.
    UsageError
        If an option is unknown or invalid, or the calibration is of another model or prompt.
    ModelError, ServerError, StoreError
        If the model, its server or the calibration cannot be loaded or reached.

    Examples
    --------
    >>> from semcal.models.fakes import FakeLanguageModel
    >>> model = FakeLanguageModel({"Who wrote it?": {"Ana": 1.0}, "Who sang it?": {"Bo": 0.5, "Cy": 0.5}})
    >>> ask_many(model, [{"question": "Who wrote it?", "answers": "Ana"}, {"question": "Who sang it?"}])
    Results(2 answers, 1 graded; E-SC: accuracy 1.000, confidence 1.000, gain 1.000; meanings by 'default')
    """
    if (fields := as_field_calibration(options.get("calibration"))) is not None:
        return _ask_documents(model, questions, None, fields, progress, dict(options))
    return SemanticUQ(model, **options).ask_many(questions, progress=progress)


def check(
    model: ModelLike,
    questions: Questions,
    answers: Sequence[Any],
    *,
    progress: ShowProgress = True,
    **options: Unpack[AskKeywords],
) -> Results:
    """Return the confidence in answers that another program, or a person, has given.

    Parameters
    ----------
    model : Sampler, str or Path
        The model whose samples are compared with each answer, as in `semcal.ask_many`.
    questions, answers : sequences of equal length
        Questions as in `semcal.ask_many`, and one answer text for each question; with a calibration of
        fields, one document for each question: an object, its JSON, or an object of a pydantic class.
    progress, **options
        As in `semcal.ask_many`; a `calibration` must have been learned with ``answer="given"``.

    Returns
    -------
    Results
        One `semcal.Answer` for each question, in order, with the given answer as its text. Its confidence is
        the share of samples that mean the same, or with a calibration the probability that it is correct.

    Raises
    ------
    UsageError
        If the numbers of questions and answers differ, or the calibration is of another kind of answer.
    InputError, ModelError, ServerError, StoreError
        As in `semcal.ask_many`.

    Examples
    --------
    >>> from semcal.models.fakes import FakeLanguageModel
    >>> model = FakeLanguageModel({"Who wrote it?": {"Ana": 0.9, "Bo": 0.1}})
    >>> for answer in check(model, ["Who wrote it?"] * 2, ["Ana", "Cy"], equivalence="exact"):
    ...     print(answer, answer.explanation, sep="; ")
    Answer('Ana', confidence=0.9); 9 of 10 samples say Ana, 1 says Bo
    Answer('Cy', confidence=0); none of 10 samples says Cy, 9 say Ana, 1 says Bo
    """
    if (fields := as_field_calibration(options.get("calibration"))) is not None:
        return _ask_documents(model, questions, answers, fields, progress, dict(options))
    return SemanticUQ(model, **options).check_many(questions, answers, progress=progress)


def _ask_documents(
    model: ModelLike,
    questions: Any,
    answers: Sequence[Any] | None,
    calibration: FieldCalibration,
    progress: ShowProgress,
    options: dict[str, Any],
) -> FieldResults:
    """Sample documents for each question, and judge their fields, or those of given documents."""
    options = {name: value for name, value in options.items() if value is not None and name != "calibration"}
    check_options(options, [*options_of(PromptConfig), "prompt", "seed", "max_new_tokens"], of="fields")
    schema, sampler = calibration.parsed, inputs.as_model(model)
    if isinstance(questions, Sequence) and not isinstance(questions, str):
        questions = [{"question": one} if isinstance(one, str) else one for one in questions]
    rows = inputs.as_sample_rows(questions, "questions", of_documents=partial(check_to_sample, schema))
    if answers is not None:
        if calibration.answer_kind != "given" or len(answers) != len(rows):
            raise UsageError(
                f"answers: {len(answers)} answers to {len(rows)} questions, and a calibration of "
                f"{calibration.answer_kind} answers. Pass one for each question, and calibrate given answers"
            )
        rows = [row.set(answer=as_cell(answer)) for row, answer in zip(rows, answers)]
    seed, limit = options.pop("seed", 0), options.pop("max_new_tokens", STRUCTURED_TOKENS)
    if not {"prompt", "system", "template"} & options.keys():
        options["system"] = system_message(sampler, schema)
    prompt = configured(PromptConfig, options.pop("prompt", None), options)
    config = SamplingConfig(calibration.m, seed, 1.0, limit, answer_format="whole")
    step = document_step(schema, config, calibration.answer_kind, Temperature(1.0), prompt)
    with shown_progress(progress, "ask", len(rows)) as update:
        sampled = step(rows, WorkerState(sampler, None), update or (lambda _: None))
    failures = failures_of(sampled)
    warn_of_failures(failures, len(rows))
    read = [row for row in sampled if row.failure is None]
    return judge_documents(read, calibration, calibration.cluster, failures)


@dataclass(frozen=True)
class AskStep(Step):
    """Step that asks the question of each row in several ways, and writes one record for each way.

    A way is a set of options of `SemanticUQ`. The costs count `calls` of the NLI model out of all `pairs`,
    samples (`draws`, `cut` at the token limit, `none` and `invalid`).
    """

    name: ClassVar[str] = "ask"
    needs: ClassVar[tuple[str, ...]] = ("model", "equivalence")
    ways: tuple[AskKeywords, ...]

    def __call__(self, rows: Sequence[Row], models: WorkerState, progress: Progress) -> list[Row]:
        """Return the records of each question; a question that a server did not answer is marked."""
        questions = [row.to_question() for row in rows]
        common: AskKeywords = {"equivalence": models.equivalence}
        uqs = [SemanticUQ(models.model, **way | common) for way in self.ways]
        results = []
        for uq in uqs:
            results.append(uq.answer_all(questions, progress=progress))
            models.costs.update(uq.costs)
        by_id = [{answer.id: answer for answer in answers} for answers in results]
        failures = {name: error for answers in results for name, error in answers.failures.items()}
        return [
            row.set(**{FAILED: failures[row.id].reason})
            if row.id in failures
            else Row((record := answers[row.id].record(uq.recalibrator)) | question.row() | record)
            for row, question in zip(rows, questions)
            for uq, answers in zip(uqs, by_id)
        ]
