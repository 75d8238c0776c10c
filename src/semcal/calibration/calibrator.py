"""Learn the probability that an answer is correct from labeled questions (spec section 11).

`calibrate` samples a model; `calibrate_rows` learns from rows of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from semcal import inputs
from semcal.arrays import check_seed
from semcal.calibration.calibration import (
    Calibration,
    CalibrationConfig,
    answering_temperatures,
    as_calibration,
    calibration_config,
)
from semcal.calibration.compatibility import check_equivalence, check_sampled_by, equivalence_of
from semcal.calibration.features import OPTIONS, ScoreColumn, check_scored, find_score, scored_row
from semcal.calibration.learning import LearningOptions, MCurve, calibrate_rows, move_calibration
from semcal.calibration.samples import (
    SamplesOrigin,
    check_given,
    check_rows,
    keep_samples,
    measure_samples,
    origin_of,
    rows_at_temperatures,
)
from semcal.calibration.signals import (
    add_signals,
    asks_a_model,
    signals_named,
)
from semcal.calibration.thresholds import with_thresholds
from semcal.data.datasets import Questions, as_questions, name_of
from semcal.data.question import Question
from semcal.errors import InputError, QuestionError, UsageError, shown
from semcal.grading.grade import GRADERS, as_grader
from semcal.inputs import (
    CalibrationKeywords,
    ClusterKeywords,
    EquivalenceLike,
    ModelLike,
    PromptKeywords,
    Samples,
    SamplingKeywords,
    check_options,
    configured,
    options_of,
)
from semcal.measuring import measure_at
from semcal.models.clustering import ClusterConfig, match_at
from semcal.models.distribution import Temperature, temperature_of
from semcal.models.equivalence import Equivalence, ExactMatch
from semcal.models.prompting import PromptConfig
from semcal.models.protocols import Sampler
from semcal.models.sample import Sampling, SamplingConfig, add_stated_answers
from semcal.progress import ShowProgress, shown_progress
from semcal.recalibration.files import fitted_or_none
from semcal.recalibration.records import check_enough
from semcal.rows import (
    AnswerKind,
    Row,
    RowsAt,
    check_distinct,
    count_ends,
    failures_of,
    warn_of_cut_draws,
    warn_of_failures,
)
from semcal.store import Store

if TYPE_CHECKING:
    from semcal.models.protocols import AnyRecalibrator
    from semcal.recalibration.fit import RecalibratorLike


@dataclass(frozen=True)
class CalibrationRecord:
    """The origin of a fit, and the store of its unfinished work. Commands set it."""

    data: str | None = None  # name of the labeled questions; by default the name of the file
    versions: Mapping[str, str | None] = field(default_factory=dict)
    keep: Store | None = None  # finished questions, from which the same fit resumes
    on_bad_question: Callable[[QuestionError], None] | None = None  # by default a warning names them


class Calibrator:
    """Learn the probability that an answer is correct, from labeled questions or from stored samples.

    Parameters
    ----------
    config : CalibrationConfig, optional
        Answer, features, signals, risks, delta and grader; or give these as keywords.
    m_curve : bool or "auto"
        As in `semcal.calibrate`.
    record : CalibrationRecord, optional
        For programs that resume interrupted fits.
    **options
        The fields of `CalibrationConfig`; a wrong or unknown one raises its UsageError.

    Examples
    --------
    >>> from semcal.models.fakes import FakeLanguageModel
    >>> table = {f"Who built mill {i}?": {"Ana.": 0.9, "Bo.": 0.1} for i in range(60)}
    >>> labeled = [{"question": q, "answers": "Ana" if i % 3 else "Bo"} for i, q in enumerate(table)]
    >>> model, exact = FakeLanguageModel(table), ClusterConfig("exact")
    >>> calibration = Calibrator(delta=0.1).fit(model, labeled, cluster=exact)
    >>> calibration.report.n, calibration.report.base["accuracy"]
    (60, 0.667)
    """

    def __init__(
        self,
        config: CalibrationConfig | None = None,
        *,
        m_curve: MCurve = False,
        record: CalibrationRecord | None = None,
        **options: Unpack[CalibrationKeywords],
    ) -> None:
        self.config = calibration_config(config, dict(options), of="Calibrator")
        if m_curve not in (True, False, "auto"):
            raise UsageError(f"m_curve is {shown(m_curve)}; expected True, False or 'auto'")
        self.m_curve = m_curve
        self.record = record or CalibrationRecord()

    def fit(
        self,
        model: ModelLike,
        labeled: Questions,
        *,
        prompt: PromptConfig | None = None,
        sampling: SamplingConfig | None = None,
        cluster: ClusterConfig | None = None,
        recalibrator: RecalibratorLike | None = None,
        progress: ShowProgress = True,
    ) -> Calibration:
        """Sample answers to labeled questions, and learn from them; see `semcal.calibrate`."""
        # only now, as calibrations of stored samples do without transformers
        from semcal.recalibration.fit import recalibrator_and_prompt
        from semcal.recalibration.fit_data import provenance_of

        config, record, sampling = self.config, self.record, sampling or SamplingConfig()
        if config.score is not None:
            raise UsageError(
                f"score: {shown(config.score)} is a column of rows, and a model was given, whose samples are "
                "calibrated. Leave score out, or use features, or call fit_rows"
            )
        model, questions = inputs.as_model(model), labelled_questions(labeled, config.answer)
        cluster = inputs.load_cluster_config(cluster or ClusterConfig())
        config = replace(config, grader=as_grader(config.grader, cluster.judge))
        for signal in signals_named(config.signals):
            signal.check(model)
        check_enough(len(questions), of="to calibrate on")
        check_distinct(question.id for question in questions)
        inputs.checked_draws(sampling.m, config.answer)
        fitted, prompt = recalibrator_and_prompt(model, recalibrator, prompt)
        prompt, questions = prompt.settled(questions, record.on_bad_question)
        first: dict[float | None, AnyRecalibrator] = {1.0: Temperature(1.0)}
        if recalibrator is not None:
            fixed = fitted_or_none(fitted) is None and temperature_of(fitted)
            first = {fixed or None: fitted}
        recalibrators = first | {t: Temperature(t) for t in sampling.temperatures if t != 1.0}
        how = Sampling(tuple(recalibrators.values()), prompt, sampling)
        measured = self._sampled(model, questions, recalibrators, how, cluster, progress)
        answered = {row.id for row in next(iter(measured.values()))}
        questions = [question for question in questions if question.id in answered]
        check_enough(len(questions), of="with answers to calibrate on")
        provenance = provenance_of(
            model,
            questions,
            asking=prompt,
            data=record.data or name_of(labeled),
            seed=sampling.seed,
            versions=record.versions,
        )
        by = how.sampled_by(model, questions, "calibrate", list(recalibrators))
        samples = keep_samples(measured, questions, by)
        origin = SamplesOrigin(provenance, fitted_or_none(fitted), sampling.max_new_tokens, samples)
        bare = {t: [row.without("clusters") for row in part] for t, part in measured.items()}
        options = LearningOptions(sampling.seed, origin=origin, m_curve=self.m_curve, stored=bare)
        return calibrate_rows(measured, cluster, config, options)

    def _sampled(
        self,
        model: Sampler,
        questions: Sequence[Question],
        recalibrators: Mapping[float | None, AnyRecalibrator],
        how: Sampling,
        cluster: ClusterConfig,
        progress: ShowProgress,
    ) -> RowsAt:
        """Return the measured answers to the questions, with signals, and warn of cut samples."""
        from semcal.recalibration.select import sample_candidates

        config, record = self.config, self.record
        passes = 2 if asks_a_model(config.signals) else 1
        with shown_progress(progress, "calibrate", passes * len(questions)) as update:
            rows: RowsAt = sample_candidates(
                model,
                questions,
                recalibrators,
                how,
                cluster,
                progress=update,
                keep=record.keep,
                on_bad_question=record.on_bad_question,
            )
            if config.answer != "modal":
                rows = _with_stated(rows, model, config.answer, how, record.on_bad_question)
            measured = match_at(measure_at(rows), config.answer, cluster.judge)
            measured = add_signals(
                measured,
                config.signals,
                model,
                how.asking,
                config.answer,
                temperatures=answering_temperatures(measured),
                keep=record.keep,
                progress=update and (lambda n_asked: update(len(questions) + n_asked)),
            )
        warn_of_cut_draws(*count_ends(row for rows_of in rows.values() for row in rows_of))
        return measured

    def fit_rows(
        self,
        samples: Samples,
        *,
        cluster: ClusterConfig | None = None,
        m: int | None = None,
        temperatures: Sequence[float] | None = None,
        seed: int = 0,
        progress: ShowProgress = True,
    ) -> Calibration:
        """Learn from stored samples of labeled questions.

        Parameters
        ----------
        samples : file, DataFrame or dicts
            One row for each question: `question`, `samples`, `answers`; and `log_likelihoods`,
            `token_counts`, `temperatures`, `context` and `group` if they are known. Stored `clusters` are
            used. Or rows without samples: `probability`, `score` or the column `score` of the configuration,
            and `correct`; or `options` ({label: probability}) and `answers`.
        cluster : ClusterConfig, optional
            The settings of clustering.
        m : int, optional
            Use the first m samples at each temperature; all by default.
        temperatures : sequence of float, optional
            Temperatures whose samples are used beside the samples of the answer; all by default.
        seed : int
            Seed of the folds, and of the choice of held-out questions.
        progress
            As in `semcal.calibrate`.

        Returns
        -------
        Calibration

        Raises
        ------
        InputError, FitError, UsageError
            As in `semcal.calibrate`; also UsageError if `m` or `temperatures` do not fit the rows.
        """
        if m is not None:
            m = inputs.checked_draws(m, self.config.answer)
        rows = inputs.as_sample_rows(samples, scored=None if self.config.score is None else True)
        if (score := find_score(rows, self.config.score)) is not None:
            if m is not None or temperatures is not None or self.m_curve:
                raise UsageError(
                    "m, temperatures, m_curve: rows with a score have no samples. Leave them out"
                )
            check_rows(rows, partial(check_scored, score=score))
            return calibrate_scores(rows, score, self.config, seed=seed)
        if not any(row.has("samples") or row.has("clusters") for row in rows):
            names = ", ".join(name for name in rows[0] if name != "id")[:200]
            raise InputError(
                f"samples: the columns are {names}. Add the samples, or name the column of a score (score=…)"
            )
        cluster = inputs.load_cluster_config(cluster or ClusterConfig())
        config = replace(self.config, grader=as_grader(self.config.grader, cluster.judge))
        origin = origin_of(rows, samples if isinstance(samples, str | Path) else None)
        with shown_progress(progress, "calibrate", len(rows)) as update:
            measured = measure_samples(
                rows, cluster, m=m, temperatures=temperatures, answer=config.answer, progress=update
            )
        stored = rows_at_temperatures(rows, temperatures) if self.m_curve else None
        options = LearningOptions(seed, origin=origin, m_curve=self.m_curve, stored=stored)
        return calibrate_rows(measured, cluster, config, options)

    def move(
        self,
        calibration: Calibration | str | Path,
        samples: Samples,
        *,
        equivalence: EquivalenceLike | None = None,
        seed: int = 0,
        progress: ShowProgress = True,
    ) -> Calibration:
        """Move a calibration to new data with few labels, such as 30 to 200.

        The new labels refit two numbers: logit p becomes a + b logit p (docs/move.md). The report compares
        probabilities before the move, moved ones, and those learned from the new labels alone, out of fold.

        Parameters
        ----------
        calibration : Calibration, str or Path
            The calibration, or its directory. It sets all settings but `risks` and `delta`; its grader is
            used unless another one is given.
        samples : file, DataFrame or dicts
            Labeled rows of the new data as in `fit_rows`, sampled as the calibration says, or with its score.
        equivalence : str, Path or Equivalence, optional
            The equivalence of the calibration, if it is in another directory here.
        seed : int
            Seed of the folds.
        progress
            As in `semcal.calibrate`.

        Returns
        -------
        Calibration
            Without the thresholds of the old data. With `risks`, all new labels test a threshold of the share
            of samples, or of the score.

        Raises
        ------
        InputError, FitError
            If a row is invalid, or there are fewer than 5 answers.
        UsageError
            If a row was sampled otherwise than the calibration says, or if this object has settings that the
            calibration decides.
        """
        check_seed(seed)
        usual, own = CalibrationConfig(), ("answer", "features", "signals", "score")
        given = [name for name in own if getattr(self.config, name) != getattr(usual, name)]
        if given or self.m_curve:
            names = ", ".join([*given, *["m_curve"] * bool(self.m_curve)])
            raise UsageError(f"{names}: a moved calibration keeps its settings. Leave these options out")
        calibration = as_calibration(calibration)
        rows = inputs.as_sample_rows(samples, scored=calibration.score is not None)
        origin = name_of(samples)
        if calibration.score is not None:
            check_rows(rows, partial(check_scored, score=calibration.score))
            judge: Equivalence = ExactMatch()
            measured: RowsAt = {None: rows}
        else:
            for row in rows:
                check_sampled_by(row, calibration.provenance, calibration.recalibrator, calibration)
            name = equivalence_of(calibration, equivalence)
            cluster = inputs.load_cluster_config(replace(calibration.cluster, equivalence=name))
            check_equivalence(calibration, cluster.judge)
            judge = cluster.judge
            with shown_progress(progress, "calibrate", len(rows)) as update:
                measured = measure_samples(
                    rows,
                    cluster,
                    m=calibration.m,
                    answer=calibration.answer_kind,
                    progress=update,
                    read_by=calibration,
                )
        learned = calibration.grader or ""
        is_named = learned in GRADERS or learned.startswith("judge:")  # else an object graded
        grader = as_grader(self.config.grader or (learned if is_named else None), judge)
        moved, labels = move_calibration(calibration, measured, grader, seed=seed, data=origin)
        if not self.config.risks:
            return moved
        return with_thresholds(moved, labels, self.config, seed=seed)


class CalibrateKeywords(PromptKeywords, SamplingKeywords, ClusterKeywords, CalibrationKeywords, total=False):
    """The options of `calibrate`: the fields of the four configurations."""


def calibrate(
    model: ModelLike,
    labeled: Questions,
    *,
    recalibrator: RecalibratorLike | None = None,
    m_curve: MCurve = False,
    progress: ShowProgress = True,
    **options: Unpack[CalibrateKeywords],
) -> Calibration:
    """Learn the probability that an answer is correct, from labeled questions.

    Parameters
    ----------
    model : Sampler, str or Path
        The model that answers, as in `semcal.SemanticUQ`.
    labeled : file, DataFrame, dicts or Questions
        Columns: `question` and `answers`; optionally `id`, `context` and `group`. Use at least 100 questions,
        better 250.
    recalibrator : Fit, TokenDistribution, float, str or Path, optional
        Replaces T = 1: a temperature, the result of `semcal.fit`, or its directory.
    m_curve : bool or "auto"
        Also report the gain with fewer samples (`semcal.calibration.learning`). With "auto", learn from
        the smallest number of samples that loses at most one standard error of gain, which `ask` then uses.
    progress : bool or callable
        Whether to show a bar on a terminal or in a notebook; or a function of the number of finished
        questions. With `signals` each question counts twice.
    **options
        Fields of `semcal.PromptConfig` (`few_shot`, `system`, `template`), `semcal.SamplingConfig` (`m`,
        `seed`, `temperatures`, `max_new_tokens`, `truncation`, `answer_format`), `semcal.ClusterConfig`
        (`equivalence`, `linkage`, `merge_refusals`) and `semcal.CalibrationConfig` (`answer`, `features`,
        `signals`, `risk` or `risks`, `delta`, `grader`).

    Returns
    -------
    Calibration
        The argument of `semcal.SemanticUQ(model, calibration=…)`, with `report` and `save_pretrained`. The
        method is that of docs/calibration-method.md.

    Raises
    ------
    InputError
        If a row is invalid; the message names its place and the remedy.
    FitError
        If there are fewer than 5 labeled questions, or no groups can be held out for a threshold.
    UsageError
        If an argument is invalid or unknown, or the recalibrator is of another model or prompt.
    ModelError, ServerError
        If the model or the equivalence cannot be loaded, or its server cannot be reached.

    Examples
    --------
    >>> from semcal.models.fakes import FakeLanguageModel
    >>> table = {f"Who built mill {i}?": {"Ana.": 0.9, "Bo.": 0.1} for i in range(60)}
    >>> labeled = [{"question": q, "answers": "Ana" if i % 3 else "Bo"} for i, q in enumerate(table)]
    >>> calibration = calibrate(FakeLanguageModel(table), labeled)
    >>> calibration.report.n, calibration.report.base["accuracy"]
    (60, 0.667)
    """
    rest: dict[str, Any] = dict(options)
    prompt = configured(PromptConfig, None, rest)
    sampling = configured(SamplingConfig, None, rest)
    cluster = configured(ClusterConfig, None, rest)
    known = [*options_of(PromptConfig, SamplingConfig, ClusterConfig, CalibrationConfig), "risk"]
    check_options(rest, known, of="calibrate")
    calibrator = Calibrator(calibration_config(None, rest, of="calibrate"), m_curve=m_curve)
    return calibrator.fit(
        model,
        labeled,
        prompt=prompt,
        sampling=sampling,
        cluster=cluster,
        recalibrator=recalibrator,
        progress=progress,
    )


def _with_stated(
    rows: RowsAt,
    model: Sampler,
    kind: AnswerKind,
    sampling: Sampling,
    on_bad_question: Callable[[QuestionError], None] | None,
) -> RowsAt:
    """Add the greedy or given answers to the rows, and leave failures out."""
    added = iter(add_stated_answers(model, [row for part in rows.values() for row in part], kind, sampling))
    stated = {t: [next(added) for _ in part] for t, part in rows.items()}
    first = next(iter(stated.values()))
    failures = failures_of(first)
    if on_bad_question is None:
        warn_of_failures(failures, len(first))
    else:
        for error in failures.values():
            on_bad_question(error)
    return {t: [row for row in part if row.id not in failures] for t, part in stated.items()}


def labelled_questions(labeled: Questions, answer: AnswerKind) -> list[Question]:
    """Return questions with reference answers, or with given answers that people have judged."""
    if answer != "given":
        return as_questions(labeled, "labeled", labelled=True)
    questions = as_questions(labeled, "labeled")
    for question in questions:
        try:
            check_given(Row.of(question))
        except InputError as error:
            raise question.error(str(error)) from None
    return questions


def calibrate_scores(
    rows: Sequence[Row], score: ScoreColumn, config: CalibrationConfig | None = None, *, seed: int = 0
) -> Calibration:
    """Learn the probability that an answer is correct from a score of labeled rows without samples.

    Each row, accepted by `check_scored`, has `id`, the score, and `correct`; or `options` or an `answer`, and
    reference `answers`. Errors and warnings are those of `calibrate_rows`. UsageError for signals, which are
    of a model.
    """
    config = config or CalibrationConfig()
    if config.signals:
        raise UsageError("signals: they are of a model, and rows with a score have none. Leave them out")
    if config.answer == "greedy":
        raise UsageError("answer: 'greedy' is of samples, and rows with a score have none. Leave it out")
    exact = ExactMatch()
    usual = "exact" if any(OPTIONS in row.json for row in rows) else None  # options are labels
    grader = as_grader(config.grader or usual, exact)
    config = replace(config, answer="given", grader=grader, score=config.score or score.name)
    scored = [scored_row(row) for row in rows]
    return calibrate_rows({None: scored}, ClusterConfig(exact), config, LearningOptions(seed))
