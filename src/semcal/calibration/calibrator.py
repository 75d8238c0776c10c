"""Learn the probability that an answer is correct from labeled questions (spec section 11).

`calibrate` samples a model; `calibrate_rows` learns from rows of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack

import numpy as np
from numpy.typing import NDArray

from semcal import inputs
from semcal.arrays import Floats
from semcal.calibration.calibration import (
    Calibration,
    CalibrationConfig,
    answering_temperatures,
    as_calibration,
    grade_answers,
)
from semcal.calibration.compatibility import check_equivalence, check_sampled_by, equivalence_of
from semcal.calibration.features import (
    AnsweredRow,
    AnswerFeatures,
    ScoreColumn,
    answered_rows,
    candidates_for,
    check_scored,
    features_of,
    find_score,
    has_options,
    order_by,
    score_features,
    scored_row,
)
from semcal.calibration.map_report import (
    LearnedMap,
    draws_curve,
    enough_samples,
    first_samples,
    graded_examples,
    move_calibration,
)
from semcal.calibration.production import ProductionLabels, usable_features
from semcal.calibration.question_probe import QuestionProbe, learn_probe
from semcal.calibration.report import (
    problems_of_features,
    problems_of_labels,
    problems_of_rows,
    what_to_do_first,
)
from semcal.calibration.samples import (
    NOWHERE,
    SamplesOrigin,
    check_given,
    keep_samples,
    measure_samples,
    origin_of,
    rows_at_temperatures,
)
from semcal.calibration.signals import (
    add_signals,
    asks_a_model,
    check_any_signals,
    free_signals,
    signals_named,
    signals_read,
)
from semcal.calibration.thresholds import kept_apart, with_thresholds
from semcal.data.datasets import Questions, as_questions, name_of
from semcal.data.question import Question, several
from semcal.data.splits import question_ties
from semcal.errors import InputError, QuestionError, UsageError, shown
from semcal.grading.grade import GRADERS, as_grader, grade_together, grader_record
from semcal.grading.rules import Grader
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
from semcal.measuring import measure_at, wordings
from semcal.metrics.frequencies import Groups
from semcal.metrics.probability_maps import Labelled, ProbabilityMap, part_of
from semcal.models.clustering import ClusterConfig, match_at
from semcal.models.distribution import Temperature, temperature_of
from semcal.models.equivalence import Equivalence, ExactMatch
from semcal.models.prompting import PromptConfig
from semcal.models.protocols import Sampler
from semcal.models.sample import Sampling, SamplingConfig, add_stated_answers
from semcal.progress import ShowProgress, shown_progress
from semcal.recalibration.files import fitted_or_none
from semcal.recalibration.records import check_enough, warn_if_few
from semcal.rows import (
    QUESTION_PROBE,
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

#: Whether to report the gain with fewer samples, or also to use the fewest that suffice.
MCurve: TypeAlias = "bool | Literal['auto']"

if TYPE_CHECKING:
    from semcal.models.protocols import AnyRecalibrator
    from semcal.recalibration.fit import RecalibratorLike

#: A threshold is tested on all labels, by an ordering that no label chose, if there are fewer. With more, the
#: learned probability orders answers well enough to hold labels out for it.
MOST_LABEL_FREE = 1000
#: The advice for one sample of each question.
OF_ONE_DRAW = (
    "m = 1: the answer is compared with a single sample, and only likelihoods add information. Calibrate "
    "with m = 10; --config calibration.m_curve=true shows the loss with one sample"
)


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
        record: CalibrationRecord | None = None,
        **options: Unpack[CalibrationKeywords],
    ) -> None:
        self.config = calibration_config(config, dict(options), of="Calibrator")
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
        m_curve: MCurve = False,
        progress: ShowProgress = True,
    ) -> Calibration:
        """Sample answers to labeled questions, and learn from them; see `semcal.calibrate`."""
        # only now, as calibrations of stored samples do without transformers
        from semcal.recalibration.fit import recalibrator_and_prompt
        from semcal.recalibration.fit_data import provenance_of
        from semcal.recalibration.select import sample_candidates

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
                prompt,
                config.answer,
                temperatures=answering_temperatures(measured),
                keep=record.keep,
                progress=update and (lambda n_asked: update(len(questions) + n_asked)),
            )
        warn_of_cut_draws(*count_ends(row for rows_of in rows.values() for row in rows_of))
        answered = {row.id for row in next(iter(rows.values()))}
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
        return calibrate_with_curve(
            measured, bare if m_curve else None, cluster, config, m_curve, seed=sampling.seed, origin=origin
        )

    def fit_rows(
        self,
        samples: Samples,
        *,
        cluster: ClusterConfig | None = None,
        m: int | None = None,
        temperatures: Sequence[float] | None = None,
        seed: int = 0,
        m_curve: MCurve = False,
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
        m_curve, progress
            As in `semcal.calibrate`.

        Returns
        -------
        Calibration

        Raises
        ------
        InputError, FitError, UsageError
            As in `semcal.calibrate`; also UsageError if `m` or `temperatures` do not fit the rows.
        """
        rows = inputs.as_sample_rows(samples, scored=None if self.config.score is None else True)
        if (score := find_score(rows, self.config.score)) is not None:
            if m is not None or temperatures is not None or m_curve:
                raise UsageError(
                    "m, temperatures, m_curve: rows with a score have no samples. Leave them out"
                )
            _check_all_scored(rows, score)
            return calibrate_scores(rows, score, self.config, seed=seed)
        cluster = inputs.load_cluster_config(cluster or ClusterConfig())
        config = replace(self.config, grader=as_grader(self.config.grader, cluster.judge))
        origin = origin_of(rows, samples if isinstance(samples, str | Path) else None)
        with shown_progress(progress, "calibrate", len(rows)) as update:
            measured = measure_samples(
                rows, cluster, m=m, temperatures=temperatures, answer=config.answer, progress=update
            )
        stored = rows_at_temperatures(rows, temperatures) if m_curve else None
        return calibrate_with_curve(measured, stored, cluster, config, m_curve, seed=seed, origin=origin)

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
            If a row was sampled otherwise than the calibration says.
        """
        calibration = as_calibration(calibration)
        rows = inputs.as_sample_rows(samples, scored=calibration.score is not None)
        origin = name_of(samples)
        if calibration.score is not None:
            _check_all_scored(rows, calibration.score)
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
        return with_thresholds(
            replace(moved, ordering=labels.ordering),
            *(labels.order, labels.correct, self.config),
            groups=labels.groups,
            seed=seed,
            shown=labels.shown,
            n_tested=labels.n_tested,
        )


def calibration_config(
    config: CalibrationConfig | None, options: dict[str, Any], *, of: str
) -> CalibrationConfig:
    """Return the configuration with these options, which must be its fields or `risk`."""
    if (risk := options.pop("risk", None)) is not None:
        options["risks"] = risk
    config = configured(CalibrationConfig, config, options)
    check_options(options, [*options_of(CalibrationConfig), "risk"], of=of)
    return config


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
        Also report the gain with fewer samples (`semcal.calibration.map_report`). With "auto", learn from
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
    calibrator = Calibrator(calibration_config(None, rest, of="calibrate"))
    return calibrator.fit(
        model,
        labeled,
        prompt=prompt,
        sampling=sampling,
        cluster=cluster,
        recalibrator=recalibrator,
        m_curve=m_curve,
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
    questions = as_questions(labeled, "labeled", given=True)
    for question in questions:
        try:
            check_given(Row.of(question))
        except InputError as error:
            raise question.error(str(error)) from None
    return questions


def calibrate_with_curve(
    measured: RowsAt,
    stored: RowsAt | None,
    cluster: ClusterConfig,
    config: CalibrationConfig,
    m_curve: MCurve,
    **options: Any,
) -> Calibration:
    """Learn from measured rows, and with `m_curve` report the gain with fewer of the `stored` samples.

    With "auto", learn from the fewest samples that lose at most one standard error. `options` are those of
    `calibrate_rows`.
    """
    if stored is None:
        return calibrate_rows(measured, cluster, config, **options)
    seed, is_fixed = options.get("seed", 0), options.get("fixed_temperature", False)
    curve = draws_curve(stored, cluster, config, seed=seed, fixed_temperature=is_fixed)
    if m_curve == "auto":
        measured = first_samples(stored, enough_samples(curve), cluster, config.answer)
        options["choices"] = len(curve)
    return calibrate_rows(measured, cluster, config, **options).with_draws_curve(curve)


def calibrate_rows(
    rows: RowsAt,
    cluster: ClusterConfig,
    config: CalibrationConfig | None = None,
    *,
    seed: int = 0,
    fixed_temperature: bool = False,
    origin: SamplesOrigin = NOWHERE,
    added: ProductionLabels | None = None,
    score: ScoreColumn | None = None,
    choices: int = 1,
) -> Calibration:
    """Learn the probability that an answer is correct from the samples of labeled questions.

    Parameters
    ----------
    rows : mapping of temperature to rows
        The same questions at each temperature, from `measure_samples`: `id`, `answers`, `samples`, `clusters`
        and the measures, clustered at each temperature separately. The samples of the answer come first. The
        key None stands for a recalibrator or an unknown temperature.
    cluster : ClusterConfig
        The settings that clustered the rows. The revision of an equivalence without a model is unknown.
    config : CalibrationConfig, optional
        Answer, features, signals, risks, delta and grader.
    seed : int
        Seed of the folds, and of the choice of held-out questions.
    fixed_temperature : bool
        Whether the answer comes from the first samples. Otherwise, if these are at T = 1, the answer comes
        from another temperature whose gain is larger by one standard error.
    origin : SamplesOrigin
        The origin of the samples.
    added : ProductionLabels, optional
        Further labels, from production.
    score : ScoreColumn, optional
        The column that is calibrated in place of samples (see `calibrate_scores`).
    choices : int
        Number of versions of the rows, such as numbers of samples, from which the labels chose this one. The
        level of each threshold is divided by it.

    Raises
    ------
    FitError
        If there are fewer than 5 labeled questions.
    InputError
        If an id occurs twice, or numbers of samples differ.

    Warns
    -----
    SemcalWarning
        If there are fewer than 50 questions, if all answers are correct or all are wrong, or if all answers
        have one share.
    """
    config, equivalence = config or CalibrationConfig(), cluster.equivalence
    judge = None if isinstance(equivalence, str | Path) else equivalence
    grader = as_grader(config.grader, judge or ExactMatch())
    labeled = next(iter(rows.values()))
    check_distinct(row.id for row in labeled)
    check_enough(len(labeled), of="to calibrate on")
    warn_if_few(len(labeled), of="to calibrate on")
    m = 0 if score is not None else _samples_of_each(rows)
    answering = answering_temperatures(rows, fixed=fixed_temperature)
    ties = [question_ties(row.json) for row in labeled]
    split = _Split.of(several(ties), len(labeled), answering, score, config, seed)
    if score is None:
        graded = _Graded.of_samples(rows, answering, config, grader)
    else:
        graded = _Graded.of_scores(labeled, score, config, grader, split.teaching)
    check_enough(int(graded.has_answer.sum()), of="with an answer to calibrate on")
    graded.add_probes(split, seed)
    if added is not None:
        graded, split = graded.with_labels(added), split.with_labels(added)
    learned = graded.learn(split, seed)
    place = learned.place
    answered, answer_rows, features = answering[place], rows[answering[place]], graded.features[place]
    correct = graded.correct[place][: len(labeled)]
    taught = (split.teaching & graded.has_answer)[: len(labeled)]
    first_lines = [OF_ONE_DRAW] * (m == 1)
    if score is None:
        first_lines = [*problems_of_labels(answer_rows, judge or cluster.address), *first_lines]
        first_lines += what_to_do_first(answer_rows, correct[taught], origin.provenance)
    problems = (
        *problems_of_rows(labeled, ties, split.groups, split.testing),
        *problems_of_features(features),
    )
    problems += () if added is None else added.problems
    report = learned.report(
        answering, int((split.held_out & graded.has_answer).sum()), problems, first=tuple(first_lines)
    )
    grader_name, grader_revision = grader_record(grader)
    calibration = Calibration(
        map=learned.map,
        further=None if score else _further(answer_rows, features, correct, taught, grader),
        m=m,
        temperature=answered,
        temperatures=tuple(
            t for t in rows if t and t != answered and _needs(learned.map, answer_rows, answered, t)
        ),
        equivalence=cluster.address,
        linkage=cluster.linkage,
        merge_refusals=cluster.merge_refusals,
        answer_format=_answer_format(rows),
        threshold=None,
        report=replace(
            report,
            added=None if added is None else added.record,
            no_answer=int((~graded.has_answer).sum()),
            no_answer_samples=0 if score else count_ends(answer_rows)[2],
            base_name=features.base,
        ),
        max_new_tokens=origin.max_new_tokens,
        provenance=origin.provenance,
        equivalence_revision=None if judge is None else judge.revision,
        grader=grader_name,
        grader_revision=grader_revision,
        recalibrator=origin.recalibrator,
        samples=origin.samples,
        answer_kind=config.answer,
        columns=tuple(column for column in config.features if column.name in learned.map.features),
        signals=signals_read(graded.config.signals, learned.map.features),
        examples=graded_examples(answer_rows, features, correct, grader),
        ancestors=() if added is None else added.ancestors,
        open_book=None if origin.provenance is None else open_book_of(labeled),
        labeled=learned.labeled,
        score=graded.score,
        probe=graded.probes[place] if QUESTION_PROBE in learned.map.features else None,
    )
    if not config.risks:
        return calibration
    ordering = features.ordering if split.label_free else None
    used = split.testing & graded.has_answer
    values = part_of(features.values, used)
    scores = learned.map.scores(values)
    return with_thresholds(
        replace(calibration, ordering=ordering),
        *(order_by(ordering, values) if ordering else scores, graded.correct[place][used], config),
        groups=None if split.groups is None else split.groups[used],
        seed=seed,
        n_orderings=choices * (split.n_orderings if ordering else 1),
        shown=scores if ordering else None,
        # Coverage counts all questions that are tested, also those without an answer.
        n_tested=split.n_tested,
    )


@dataclass(frozen=True)
class _Split:
    """Masks (N,) of the labeled questions that are held out, and of those that test thresholds.

    With `label_free` all questions teach the map and test thresholds: the ordering of answers is one of
    `n_orderings` that no label changed. Each choice that labels make between orderings, of a temperature or a
    direction, divides the level.
    """

    groups: Groups | None
    held_out: NDArray[np.bool_]
    testing: NDArray[np.bool_]
    label_free: bool
    n_orderings: int

    @classmethod
    def of(
        cls,
        groups: Groups | None,
        n: int,
        answering: Sequence[float | None],
        score: ScoreColumn | None,
        config: CalibrationConfig,
        seed: int,
    ) -> _Split:
        n_orderings = len(answering) if score is None else 2 if score.falling is None else 1
        n_units = n if groups is None else int(groups.max()) + 1
        label_free = (score is not None and not config.features) or n_units * n_orderings < MOST_LABEL_FREE
        if config.risks and not label_free:
            held_out = testing = kept_apart(n, groups, seed)
        else:
            held_out, testing = np.zeros(n, dtype=bool), np.full(n, bool(config.risks))
        return cls(groups, held_out, testing, label_free, n_orderings)

    @property
    def teaching(self) -> NDArray[np.bool_]:
        return ~self.held_out

    @property
    def n_tested(self) -> int:
        """Number of questions, or of groups if there are any, that test thresholds."""
        return int(self.testing.sum()) if self.groups is None else len(np.unique(self.groups[self.testing]))

    def with_labels(self, added: ProductionLabels) -> _Split:
        """Append labels from production, each in a group of its own."""
        groups = self.groups
        if groups is not None:
            groups = np.concatenate([groups, groups.max() + 1 + np.arange(len(added.correct))])
        held_out, testing = (
            np.concatenate([own & (not added.alone), added.apart]) for own in (self.held_out, self.testing)
        )
        return replace(self, groups=groups, held_out=held_out, testing=testing)


@dataclass
class _Graded:
    """Features and grades (N,) of the answers to N questions, at each temperature that may answer."""

    config: CalibrationConfig  # with the signals that need no call
    features: list[AnswerFeatures]
    correct: list[Floats]
    has_answer: NDArray[np.bool_]
    answers: list[list[AnsweredRow]] = field(default_factory=list)
    score: ScoreColumn | None = None
    probes: list[QuestionProbe | None] = field(default_factory=list)

    @classmethod
    def of_samples(
        cls, rows: RowsAt, answering: Sequence[float | None], config: CalibrationConfig, grader: Grader
    ) -> _Graded:
        labeled, at_each = next(iter(rows.values())), [{t: rows[t], **rows} for t in answering]
        answers = [answered_rows(at, config.answer) for at in at_each]
        for at in answers:
            check_any_signals(config.signals, at)
        config = replace(config, signals=(*config.signals, *free_signals(config.signals, answers)))
        features = [features_of(at, config.answer, config.requested) for at in at_each]
        correct = [grade_answers(at, labeled, grader, config.answer) for at in features]
        return cls(config, features, correct, _has_answer(features), answers, None, [None] * len(features))

    @classmethod
    def of_scores(
        cls,
        labeled: Sequence[Row],
        score: ScoreColumn,
        config: CalibrationConfig,
        grader: Grader,
        teaching: NDArray[np.bool_],
    ) -> _Graded:
        """Grade rows with a score, whose direction and scale the teaching questions set."""
        raw = score.values(labeled)
        correct = grade_answers(
            score_features(labeled, raw, score, config.features), labeled, grader, "given"
        )
        score = score.learn(raw[teaching], correct[teaching])
        features = [score_features(labeled, raw, score, config.features)]
        return cls(config, features, [correct], _has_answer(features), score=score, probes=[None])

    def add_probes(self, split: _Split, seed: int) -> None:
        """Learn the probe of the question, if it is a signal, and add its probabilities to the features."""
        if QUESTION_PROBE in self.config.signals:
            teaching = split.teaching & self.has_answer
            for k, of_answers in enumerate(zip(self.features, self.answers, self.correct)):
                self.probes[k], self.features[k] = learn_probe(*of_answers, teaching, split.groups, seed)

    def with_labels(self, added: ProductionLabels) -> _Graded:
        """Append labels from production; all of them have an answer."""
        pooled = [_pooled(*of_rows, added) for of_rows in zip(self.features, self.correct)]
        features, correct = [list(part) for part in zip(*pooled)]
        has_answer = np.concatenate([self.has_answer, np.ones(len(added.correct), dtype=bool)])
        return replace(self, features=features, correct=correct, has_answer=has_answer)

    def learn(self, split: _Split, seed: int) -> LearnedMap:
        """Return the map learned from the teaching questions with an answer, at the best temperature."""
        fitted, without = split.teaching & self.has_answer, split.teaching & ~self.has_answer
        labels = [
            Labelled(features.values, correct, candidates_for(features)).part(fitted)
            for features, correct in zip(self.features, self.correct)
        ]
        learned = LearnedMap.from_labels(labels, None if split.groups is None else split.groups[fitted], seed)
        return replace(learned, without=[at.values[at.base][without] for at in self.features])


def _has_answer(features: Sequence[AnswerFeatures]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = np.all([[text is not None for text in at.answers] for at in features], axis=0)
    return found


def _samples_of_each(rows: RowsAt) -> int:
    m = len(next(iter(rows.values()))[0].samples)
    for row in (row for rows_of in rows.values() for row in rows_of):
        if m and len(row.samples) != m:
            raise InputError(
                f"question {row.id!r} has {len(row.samples)} samples, and others have {m}. Use the same "
                "number of samples for all questions"
            )
    return m


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
    grader = as_grader(config.grader or ("exact" if has_options(rows) else None), exact)
    config = replace(config, answer="given", grader=grader, score=score.name)
    scored = [scored_row(row) for row in rows]
    return calibrate_rows({None: scored}, ClusterConfig(exact), config, seed=seed, score=score)


def _check_all_scored(rows: Iterable[Row], score: ScoreColumn) -> None:
    for row in rows:
        try:
            check_scored(row, score)
        except InputError as error:
            raise InputError(f"question {shown(row.json.get('id'))}: {error}") from None


def open_book_of(rows: Sequence[Row]) -> bool | None:
    """Return whether all questions have a passage, or none has; None if mixed or in messages."""
    found = {None if row.has("messages") else row.context is not None for row in rows}
    return found.pop() if len(found) == 1 else None


def _answer_format(rows: RowsAt) -> str:
    first, *others = dict.fromkeys(row.answer_format for part in rows.values() for row in part)
    if others:
        raise InputError(
            f"'answer_format' is {first!r} in some rows and {others[0]!r} in others. Sample or import "
            "all rows with one --answer-format"
        )
    return first


def _pooled(
    features: AnswerFeatures, correct: Floats, added: ProductionLabels
) -> tuple[AnswerFeatures, Floats]:
    """Append the added labels to the features that both have, and to the grades."""
    names = usable_features(features.values, added.features)
    values = {name: np.concatenate([features.values[name], added.features[name]]) for name in names}
    return replace(features, values=values), np.concatenate([correct, added.correct])


def _needs(chosen: ProbabilityMap, rows: Sequence[Row], answered: float | None, temperature: float) -> bool:
    """Return whether the map reads samples at a temperature, or sharper samples settle ties there."""
    ties = any(row.measured.tied and len(row.measured.confidences) == 1 for row in rows)
    read = any(name.endswith(f" at T={temperature:g}") for name in chosen.features)
    return read or (ties and temperature < (1.0 if answered is None else answered))


def _further(
    rows: Sequence[Row],
    features: AnswerFeatures,
    correct: Floats,
    fitted: NDArray[np.bool_],
    grader: Grader,
) -> float | None:
    """Return how often another meaning is correct if the answer is wrong: (k + 1) / (n + 2), or None."""
    wrong = np.flatnonzero(fitted & (correct == 0))
    further = []
    for i in map(int, wrong):
        row = rows[i]
        texts = [
            text for k, text in enumerate(wordings(row)) if text is not None and k != features.meanings[i]
        ]
        if texts and row.is_labelled:
            further.append((row.question_or_empty, texts, row.answers))
    if not further:
        return None
    right = grade_together(grader, lambda marks: sum(marks.grade(*answer).correct for answer in further))
    return (right + 1) / (len(further) + 2)
