"""Learn from labelled questions the probability that an answer is right (spec section 11).

`calibrate` asks a model; `calibrate_rows` learns from what it says, or from stored samples (`samples`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from semcal import inputs, metrics
from semcal.arrays import Floats
from semcal.calibration.calibration import Calibration, GradedExample, LabeledAnswers, Threshold
from semcal.calibration.configuration import APART, CalibrationConfig, answering_temperatures, grade_answers
from semcal.calibration.draws_curve import draws_curve
from semcal.calibration.features import AnswerFeatures, answered_rows, candidates_for, features_of
from semcal.calibration.problems import (
    problems_of_features,
    problems_of_labels,
    problems_of_rows,
    what_to_do_first,
)
from semcal.calibration.production import ProductionLabels, usable_features
from semcal.calibration.report import (
    ONE_PROBABILITY,
    AtThreshold,
    CalibrationReport,
    CandidateScore,
    CurvePoint,
    LikeAnswers,
    TemperatureScore,
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
    signals_named,
    signals_read,
)
from semcal.configuration import (
    CalibrationKeywords,
    ClusterKeywords,
    PromptKeywords,
    SamplingKeywords,
    check_options,
    configured,
    options_of,
)
from semcal.data.arguments import Questions, as_questions, name_of
from semcal.data.question import Question, several
from semcal.data.splits import question_ties
from semcal.errors import FitError, InputError, QuestionError, SemcalWarning, UndefinedWarning
from semcal.grading.grade import as_grader, grade_together, grader_record
from semcal.grading.rules import Grader
from semcal.inputs import ModelLike, Samples
from semcal.measuring import measure_at, wordings
from semcal.metrics.frequencies import Groups
from semcal.metrics.probability_maps import (
    FEW,
    FOLDS,
    Labelled,
    MapChoice,
    ProbabilityMap,
    choose_answers,
    choose_map,
    paired_difference,
    part_of,
    predict_out_of_fold,
)
from semcal.metrics.thresholds import likeliest_start
from semcal.models.clustering import ClusterConfig, match_at
from semcal.models.distribution import Temperature, temperature_of
from semcal.models.equivalence import ExactMatch
from semcal.models.prompting import PromptConfig
from semcal.models.protocols import Sampler
from semcal.models.sample import Sampling, SamplingConfig, add_stated_answers
from semcal.progress import ShowProgress, shown_progress
from semcal.recalibration.files import fitted_or_none
from semcal.recalibration.records import check_enough, warn_if_few
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

#: Of the learning curve: parts of the labels, random subsets of each, and the fewest labels that are tried.
PARTS, SUBSETS, FEWEST_LABELS = (0.25, 0.5, 0.75), 4, 25
#: Decimals of the probabilities that are stored for labeled answers.
DECIMALS = 6
#: Labelled questions that are counted together as like each other: at least so many, in at most ten groups.
LIKE, MOST_LIKE = 20, 10
#: The thresholds of which a report says what is answered from there on.
THRESHOLDS = (*(tenths / 10 for tenths in range(10)), 0.95)
#: What is said of one draw a question.
OF_ONE_DRAW = (
    "one draw a question: the answer is compared with it alone, and the rest is told by likelihoods; "
    "calibrate with ten, and --config calibration.m_curve=true says what one loses"
)
#: What is reported of Base and of the calibrated probability.
FIGURES = ("accuracy", "mean_confidence", "ace", "ace_floor", "ace_floor_95", "brier", "auroc", "gain")


@dataclass(frozen=True)
class CalibrationRecord:
    """The origin of a fit for the record, and the place of its unfinished work; commands set it."""

    data: str | None = None  # name of the labeled questions; that of the file by default
    versions: Mapping[str, str | None] = field(default_factory=dict)
    keep: Store | None = None  # of finished questions, from which the same fit resumes
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
        The fields of `CalibrationConfig`.

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
        m_curve: bool = False,
        progress: ShowProgress = True,
    ) -> Calibration:
        """Sample answers to labeled questions, and learn from them; parameters as of `semcal.calibrate`."""
        # only now, as calibrations of stored samples do without transformers
        from semcal.recalibration.fit import recalibrator_and_prompt
        from semcal.recalibration.fit_data import provenance_of
        from semcal.recalibration.select import sample_candidates

        config, record, sampling = self.config, self.record, sampling or SamplingConfig()
        model, questions = inputs.as_model(model), labelled_questions(labeled, config.answer)
        cluster = inputs.load_cluster_config(cluster or ClusterConfig())
        config = replace(config, grader=as_grader(config.grader, cluster.judge))
        for signal in signals_named(config.signals):
            signal.check(model)
        check_enough(len(questions), of="to calibrate on")
        check_distinct(question.id for question in questions)
        inputs.checked_draws(sampling.m, config.answer)
        fitted, asking = recalibrator_and_prompt(model, recalibrator, prompt)
        asking, questions = asking.settled(questions, record.on_bad_question)
        first: dict[float | None, AnyRecalibrator] = {1.0: Temperature(1.0)}
        if recalibrator is not None:
            fixed = fitted_or_none(fitted) is None and temperature_of(fitted)
            first = {fixed or None: fitted}
        under = first | {t: Temperature(t) for t in sampling.temperatures if t != 1.0}
        how = Sampling(tuple(under.values()), asking, sampling)
        passes = 2 if asks_a_model(config.signals) else 1
        with shown_progress(progress, "calibrate", passes * len(questions)) as update:
            rows: RowsAt = sample_candidates(
                model,
                questions,
                under,
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
                *(measured, config.signals, model, asking, config.answer),
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
            asking=asking,
            data=record.data or name_of(labeled),
            seed=sampling.seed,
            versions=record.versions,
        )
        by = how.sampled_by(model, questions, "calibrate", list(under))
        origin = SamplesOrigin(
            provenance,
            fitted_or_none(fitted),
            sampling.max_new_tokens,
            keep_samples(measured, questions, by),
        )
        calibration = calibrate_rows(measured, cluster, config, seed=sampling.seed, origin=origin)
        if not m_curve:
            return calibration
        bare = {t: [row.without("clusters") for row in part] for t, part in measured.items()}
        return calibration.with_draws_curve(draws_curve(bare, cluster, config, seed=sampling.seed))

    def fit_rows(
        self,
        samples: Samples,
        *,
        cluster: ClusterConfig | None = None,
        m: int | None = None,
        temperatures: Sequence[float] | None = None,
        seed: int = 0,
        m_curve: bool = False,
        progress: ShowProgress = True,
    ) -> Calibration:
        """Learn from stored samples of labeled questions.

        Parameters
        ----------
        samples : file, DataFrame or dicts
            A row for each question: `question`, `samples`, `answers`; `log_likelihoods`, `temperatures`,
            `context` and `group` if they are known. Rows that hold `clusters` are not clustered again.
        cluster : ClusterConfig, optional
        m : int, optional
            Use the first m samples at each temperature; all by default.
        temperatures : sequence of float, optional
            Temperatures whose samples are used beside those of the answer; all by default.
        seed : int
            Seed of the folds, and of the choice of held-out questions.
        m_curve, progress
            As of `semcal.calibrate`.

        Returns
        -------
        Calibration

        Raises
        ------
        InputError
            If a row cannot be used, with its place and what to do.
        """
        rows = inputs.as_sample_rows(samples)
        cluster = inputs.load_cluster_config(cluster or ClusterConfig())
        config = replace(self.config, grader=as_grader(self.config.grader, cluster.judge))
        origin = origin_of(rows, samples if isinstance(samples, str | Path) else None)
        with shown_progress(progress, "calibrate", len(rows)) as update:
            measured = measure_samples(
                *(rows, cluster), m=m, temperatures=temperatures, answer=config.answer, progress=update
            )
        calibration = calibrate_rows(measured, cluster, config, seed=seed, origin=origin)
        if not m_curve:
            return calibration
        stored = rows_at_temperatures(rows, temperatures)
        return calibration.with_draws_curve(draws_curve(stored, cluster, config, seed=seed))


def calibration_config(
    config: CalibrationConfig | None, options: dict[str, Any], *, of: str
) -> CalibrationConfig:
    """Return the configuration of these options, all of which must be its fields (or `risk`)."""
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
    m_curve: bool = False,
    progress: ShowProgress = True,
    **options: Unpack[CalibrateKeywords],
) -> Calibration:
    """Learn the probability that an answer is correct, from labeled questions.

    Parameters
    ----------
    model : Sampler, str or Path
        The model that answers: from `semcal.load_model`, or an argument of that.
    labeled : file, DataFrame, dicts or Questions
        `question` and `answers`; `id`, `context` and `group` where there are some. A hundred questions are a
        start, 250 are good.
    recalibrator : Fit, TokenDistribution, float, str or Path, optional
        Takes the place of T = 1: a temperature, or the result of `semcal.fit`, or its directory.
    m_curve : bool
        Also report the gain of fewer samples (`semcal.calibration.draws_curve`).
    progress : bool or callable
        A bar on a terminal or in a notebook, or a function of the number of questions that were sampled, and
        then, on top of these, of those that were asked about (`signals`).
    **options
        Fields of `semcal.PromptConfig` (`few_shot`, `system`, `template`), `semcal.SamplingConfig` (`m`,
        `seed`, `temperatures`, `max_new_tokens`, `truncation`, `answer_format`), `semcal.ClusterConfig`
        (`equivalence`, `linkage`, `merge_refusals`) and `semcal.CalibrationConfig` (`answer`, `features`,
        `signals`, `risk` or `risks`, `delta`, `grader`).

    Returns
    -------
    Calibration
        With `report`, `threshold` and `save_pretrained`; for `semcal.SemanticUQ(model, calibration=…)`.

    Raises
    ------
    InputError
        If a row cannot be used, with its place and what to do.
    FitError
        If there are fewer than 5 labeled questions.
    UsageError
        For a wrong argument.

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
    """The rows with the answers that are not read of their draws; those of failures are left out."""
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


def labelled_questions(labelled: Questions, answer: AnswerKind) -> list[Question]:
    """Return questions with reference answers, or with answers of their own that people have judged."""
    if answer != "given":
        return as_questions(labelled, "labelled", labelled=True)
    questions = as_questions(labelled, "labelled", given=True)
    for question in questions:
        try:
            check_given(Row.of(question))
        except InputError as error:
            raise question.error(str(error)) from None
    return questions


# ---- Learning ----------------------------------------------------------------------------------------------


def calibrate_rows(
    rows: RowsAt,
    cluster: ClusterConfig,
    config: CalibrationConfig | None = None,
    *,
    seed: int = 0,
    fixed_temperature: bool = False,
    origin: SamplesOrigin = NOWHERE,
    added: ProductionLabels | None = None,
) -> Calibration:
    """Learn the probability that an answer is right from the samples of labelled questions.

    `rows` is temperature → the same questions with `id`, `answers`, `samples`, `clusters` and the measures,
    clustered at each temperature by themselves (`measure_samples`). The first draws are those of the answer,
    with key None where they are under a recalibrator or of an unknown temperature; where they are at T = 1,
    and the temperature is not `fixed_temperature`, the answer comes from draws at another temperature if
    these gain more by one standard error. `cluster` is the configuration that clustered them, for the record
    (the revision of its equivalence is unknown if only a name is given). `seed` is that of the folds, and of
    the choice of held-out questions. Labels that are `added` count beside those of the rows.

    FitError below 5 labelled questions, InputError if an id occurs twice or a row has another number of
    draws. A warning below 50; where all answers are right or all wrong; where all have one share.
    """
    config, equivalence = config or CalibrationConfig(), cluster.equivalence
    judge = None if isinstance(equivalence, str | Path) else equivalence
    grader = as_grader(config.grader, judge or ExactMatch())
    labelled = next(iter(rows.values()))
    n = len(labelled)
    check_distinct(row.id for row in labelled)
    check_enough(n, of="to calibrate on")
    warn_if_few(n, of="to calibrate on")
    m = _number_of_draws(rows)
    answering, kind = answering_temperatures(rows, fixed=fixed_temperature), config.answer
    requested = config.requested
    for t in answering:
        check_any_signals(config.signals, answered_rows({t: rows[t], **rows}, kind))
    features_at = [features_of({t: rows[t], **rows}, kind, requested) for t in answering]
    correct_at = [grade_answers(features, labelled, grader, kind) for features in features_at]
    has_answer = np.all([[text is not None for text in at.answers] for at in features_at], axis=0)
    check_enough(int(has_answer.sum()), of="with an answer to calibrate on")
    grader_name, grader_revision = grader_record(grader)
    ties = [question_ties(row.json) for row in labelled]
    groups = several(ties)
    apart = kept_apart(n, groups, seed) if config.risks else np.zeros(n, dtype=bool)
    if added is not None:
        pooled = [_pooled(*of_rows, added) for of_rows in zip(features_at, correct_at)]
        features_at, correct_at = [list(part) for part in zip(*pooled)]
        groups, apart = _with_added(groups, apart, added)
        has_answer = np.concatenate([has_answer, np.ones(len(apart) - n, dtype=bool)])
    fitted, tested, without = ~apart & has_answer, apart & has_answer, ~apart & ~has_answer
    labels = [
        Labelled(features.values, correct, candidates_for(features)).part(fitted)
        for features, correct in zip(features_at, correct_at)
    ]
    learnt = _Learnt.from_labels(labels, None if groups is None else groups[fitted], seed)
    learnt = replace(learnt, without=[features.values["E-SC"][without] for features in features_at])
    place = learnt.place
    answered, features, correct = answering[place], features_at[place], correct_at[place]
    answer_rows = rows[answered]
    problems = (*problems_of_rows(labelled, ties, groups, apart), *problems_of_features(features))
    problems += () if added is None else added.problems
    first_lines = [*problems_of_labels(answer_rows, judge or cluster.address)]
    if m == 1:
        first_lines.append(OF_ONE_DRAW)
    first_lines += what_to_do_first(answer_rows, correct[fitted], origin.provenance)
    calibration = Calibration(
        map=learnt.map,
        further=_further(answer_rows, features, correct[:n], fitted[:n], grader),
        m=m,
        temperature=answered,
        temperatures=tuple(
            t for t in rows if t and t != answered and _needs(learnt.map, answer_rows, answered, t)
        ),
        equivalence=cluster.address,
        linkage=cluster.linkage,
        merge_refusals=cluster.merge_refusals,
        answer_format=_answer_format(rows),
        threshold=None,
        report=replace(
            learnt.report(answering, int(tested.sum()), problems, first=tuple(first_lines)),
            added=None if added is None else added.record,
            no_answer=int((~has_answer).sum()),
            no_answer_samples=count_ends(answer_rows)[2],
        ),
        max_new_tokens=origin.max_new_tokens,
        provenance=origin.provenance,
        equivalence_revision=None if judge is None else judge.revision,
        grader=grader_name,
        grader_revision=grader_revision,
        recalibrator=origin.recalibrator,
        samples=origin.samples,
        answer_kind=kind,
        columns=tuple(column for column in config.features if column.name in learnt.map.features),
        signals=signals_read(config.signals, learnt.map.features),
        examples=_examples(answer_rows, features, correct[:n], grader),
        ancestors=() if added is None else added.ancestors,
        open_book=None if origin.provenance is None else _open_book(labelled),
        labeled=learnt.labeled,
    )
    if not config.risks:
        return calibration
    scores, fitted_scores = (learnt.map.scores(part_of(features.values, part)) for part in (tested, fitted))
    thresholds = set_thresholds(
        scores,
        correct[tested],
        config.risks,
        config.delta,
        fitted=(fitted_scores, learnt.out_of_fold),
        groups=None if groups is None else groups[tested],
        seed=seed,
    )
    n_apart = int(apart.sum()) if groups is None else len(np.unique(groups[apart]))
    thresholds = tuple(_of_all(threshold, n_apart) for threshold in thresholds)
    several_risks = thresholds if len(thresholds) > 1 else ()
    return replace(calibration, threshold=thresholds[-1], thresholds=several_risks)


def _open_book(rows: Sequence[Row]) -> bool | None:
    """Whether all questions have a passage (True), or none (False); messages hold theirs themselves."""
    found = {None if row.has("messages") else row.context is not None for row in rows}
    return found.pop() if len(found) == 1 else None


def _answer_format(rows: RowsAt) -> str:
    """The format that all samples were read by; InputError if rows were read by several."""
    first, *others = dict.fromkeys(row.answer_format for part in rows.values() for row in part)
    if others:
        raise InputError(
            f"'answer_format' is {first!r} in some rows and {others[0]!r} in others. Sample or import "
            "all rows with one --answer-format"
        )
    return first


def _number_of_draws(rows: RowsAt) -> int:
    """The number of draws of each question at each temperature; InputError where they differ."""
    m = len(next(iter(rows.values()))[0].samples)
    for row in (row for rows_of in rows.values() for row in rows_of):
        if len(row.samples) != m:
            raise InputError(
                f"question {row.id!r} has {len(row.samples)} draws and others have {m}; a calibration is for "
                "one number of draws"
            )
    return m


def _pooled(
    features: AnswerFeatures, correct: Floats, added: ProductionLabels
) -> tuple[AnswerFeatures, Floats]:
    """The features that rows and added labels both have, and which answers are right: of both."""
    names = usable_features(features.values, added.features)
    values = {name: np.concatenate([features.values[name], added.features[name]]) for name in names}
    return replace(features, values=values), np.concatenate([correct, added.correct])


def _with_added(
    groups: Groups | None, apart: NDArray[np.bool_], added: ProductionLabels
) -> tuple[Groups | None, NDArray[np.bool_]]:
    """Groups, of which each added label is one, and what is kept apart."""
    if groups is not None:
        groups = np.concatenate([groups, groups.max() + 1 + np.arange(len(added.correct))])
    return groups, np.concatenate([apart & (not added.alone), added.apart])


def _examples(
    rows: Sequence[Row], features: AnswerFeatures, correct: Floats, grader: Grader
) -> tuple[GradedExample, ...]:
    """The first answer that is right, the first that is wrong, and the next ones up to three."""
    usable = [i for i in range(len(rows)) if features.answers[i] is not None]
    first = [next(i for i in usable if correct[i] == kind) for kind in (1.0, 0.0) if kind in correct[usable]]
    chosen = sorted(list(dict.fromkeys([*first, *usable]))[:3])
    answered = [(rows[i], features.answers[i] or "", bool(correct[i])) for i in chosen]
    return tuple(
        GradedExample(row.title, text, _reference(row, text, grader, matches=right), right)
        for row, text, right in answered
    )


def _reference(row: Row, text: str, grader: Grader, *, matches: bool) -> str | None:
    """The first reference of a question, or the first that the answer `matches`; None if it has none.

    A judge, which reads all references at once, is not asked again: its rules say which one matches.
    """
    if not row.is_labelled:
        return None
    question, references = row.question_or_empty, row.answers if matches else ()
    marks: Grader = getattr(grader, "rules", grader) if hasattr(grader, "judge") else grader
    matching = grade_together(
        marks, lambda one: [other for other in references if one.grade(question, [text], [other]).correct]
    )
    return (*matching, *row.answers)[0]


def _needs(chosen: ProbabilityMap, rows: Sequence[Row], answered: float | None, temperature: float) -> bool:
    """Whether further draws are read, or settle ties: sharper ones where likelihoods are unknown."""
    ties = any(row.measured.tied and len(row.measured.confidences) == 1 for row in rows)
    read = any(name.endswith(f" at T={temperature:g}") for name in chosen.features)
    return read or (ties and temperature < (1.0 if answered is None else answered))


def kept_apart(n: int, groups: Groups | None, seed: int) -> NDArray[np.bool_]:
    """Two in five of n questions, whole groups of them; FitError if one group holds more."""
    label = np.arange(n) if groups is None else groups
    sizes = np.bincount(label)
    if sizes.max() > max(1, APART * n):
        raise FitError(
            f"{sizes.max()} of {n} labelled questions share a passage or group, and the threshold needs two "
            "in five that share none with the others; label questions of more groups, or leave the risk out"
        )
    room, apart = APART * n, []
    for group in np.random.default_rng([seed, 2]).permutation(len(sizes)):
        if sizes[group] <= room:
            apart.append(group)
            room -= sizes[group]
    return np.isin(label, apart)


def set_threshold(
    scores: Floats,
    correct: Floats,
    risk: float,
    delta: float,
    *,
    fitted: tuple[Floats, Floats],
    groups: Groups | None = None,
    seed: int = 0,
) -> Threshold:
    """The loosest threshold that questions (N,) kept apart show to hold.

    Tests start where the `fitted` ones (M,) say that they pass: by scores, and probabilities out of fold.
    """
    fitted_scores, p = fitted
    questions = len(correct) if groups is None else len(np.unique(groups))
    start = likeliest_start(fitted_scores, 1 - p, questions, risk_limit=risk, delta=delta)
    test = metrics.risk_controlled_threshold(
        scores, correct, risk_limit=risk, delta=delta, start=start, groups=groups, seed=seed
    )
    bound = None if np.isnan(test.upper_bound) else test.upper_bound
    counts = test.questions, test.answered, test.errors
    return Threshold(test.threshold, risk, delta, *counts, bound, test.questions_needed, test.least_risk)


def set_thresholds(
    scores: Floats,
    correct: Floats,
    risks: Sequence[float],
    delta: float,
    *,
    fitted: tuple[Floats, Floats],
    groups: Groups | None = None,
    seed: int = 0,
) -> tuple[Threshold, ...]:
    """The threshold of each risk, strictest first: all hold together with probability 1 − `delta`.

    Each is tested at `delta` / k. Where a smaller risk is shown to hold from a lower threshold on, so is a
    larger one there: it takes that threshold, and none lies above a stricter one.
    """
    options = {"fitted": fitted, "groups": groups, "seed": seed}
    thresholds: list[Threshold] = []
    for risk in risks:
        found = set_threshold(scores, correct, risk, delta / len(risks), **options)  # type: ignore[arg-type]
        stricter = thresholds[-1] if thresholds else found
        held = [one.threshold for one in (found, stricter) if one.threshold is not None]
        if held and found.threshold != min(held):
            found = replace(stricter, risk_limit=risk)
        thresholds.append(found)
    return tuple(thresholds)


def _of_all(threshold: Threshold, n: int) -> Threshold:
    """The threshold with the coverage among all n questions kept apart, those without an answer included."""
    needed = threshold.questions_needed
    return replace(threshold, n=n, questions_needed=needed and -(-needed * n // threshold.n))


def _further(
    rows: Sequence[Row],
    features: AnswerFeatures,
    correct: Floats,
    fitted: NDArray[np.bool_],
    grader: Grader,
) -> float | None:
    """How often a further meaning is right where there is one and the answer is wrong: (k + 1) / (n + 2).

    None if n is 0: a verdict on the answer does not grade its other meanings.
    """
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


@dataclass(frozen=True)
class _Learnt:
    """The chosen map, and how good it and its rivals were."""

    place: int  # of the temperature that answers
    choices: list[MapChoice]  # at each of them
    share: Floats  # of the answers out of fold, and with `correct` at the temperature that their fold took
    out_of_fold: Floats
    correct: Floats
    labels_at: Sequence[Labelled]
    groups: Groups | None
    curve: tuple[CurvePoint, ...]
    without: Sequence[Floats] = ()  # by temperature the shares of "no answer" where it is the answer

    @property
    def map(self) -> ProbabilityMap:
        """What was learnt."""
        return self.choices[self.place].map

    @classmethod
    def from_labels(cls, labels_at: Sequence[Labelled], groups: Groups | None, seed: int) -> _Learnt:
        place, choices = choose_answers(labels_at, groups=groups, seed=seed)
        out, places = predict_out_of_fold(labels_at, groups=groups, seed=seed)
        values, labels, candidates = labels_at[place]
        share = np.choose(places, [at.features["E-SC"] for at in labels_at])
        correct = np.choose(places, [at.correct for at in labels_at])
        rng = np.random.default_rng([seed, 3])
        curve = []
        for share_of_labels in PARTS:
            size = round(share_of_labels * len(labels))
            if size < FEWEST_LABELS:
                continue
            above = []
            for _ in range(SUBSETS):
                part = rng.permutation(len(labels)) < size
                few = choose_map(part_of(values, part), labels[part], candidates, seed=seed, repeats=1)
                unused = part_of(values, ~part)
                above.append(_above(few.map.predict(unused), unused["E-SC"], labels[~part]))
            curve.append(CurvePoint(size, float(np.mean(above))))
        curve.append(CurvePoint(len(labels), _above(out, share, correct)))
        return cls(place, choices, share, out, correct, labels_at, groups, tuple(curve))

    @property
    def labeled(self) -> LabeledAnswers:
        """The answers that the map was fitted to."""
        features, correct, _ = self.labels_at[self.place]
        p, out = (np.round(values, DECIMALS) for values in (self.map.predict(features), self.out_of_fold))
        columns = p, correct == 1, out, self.correct == 1
        return LabeledAnswers(*(tuple(column.tolist()) for column in columns))

    def report(
        self, at: Sequence[float | None], apart: int, problems: Iterable[str], first: tuple[str, ...]
    ) -> CalibrationReport:
        """Figures beside those of Base, and what to be wary of: `problems` of the rows, and of the labels."""
        scores = [choice.score for choice in self.choices] if len(self.choices) > 1 else []
        # "no answer" is wrong: Base has its share there, and the calibrated probability is 0
        no_answer, at_one = self.without[self.place], self.without[0]
        calibrated = _figures(self.out_of_fold, self.correct, np.zeros_like(no_answer))
        base = _figures(self.share, self.correct, no_answer)
        if self.map.candidate.kind == "constant":  # then the share says what is likelier to be right
            calibrated["auroc"] = base["auroc"]
        report = CalibrationReport(
            n=len(self.correct),
            apart=apart,
            chosen=self.map.candidate.name,
            candidates=tuple(
                CandidateScore(
                    *(score.candidate.name, score.gain, score.above, score.standard_error),
                    weight=self.map.weight_of(score.candidate),
                )
                for score in self.choices[self.place].scores
            ),
            base=base,
            calibrated=calibrated,
            base_at_one=_figures(self.labels_at[0].features["E-SC"], self.labels_at[0].correct, at_one)
            if scores
            else None,
            temperatures=tuple(
                TemperatureScore(t, score.gain, above, error)
                for t, score in zip(at, scores)
                for above, error in [paired_difference(score.gains, scores[0].gains, self.groups)]
            ),
            first=first,
            like=tuple(_like_answers(self._scores_out_of_fold, self.correct)),
            at_thresholds=tuple(_at_thresholds(self._scores_out_of_fold, self.correct, len(no_answer))),
            learning_curve=self.curve,
            warnings=(*problems, *self._problems()),
        )
        for problem in report.warnings:
            warnings.warn(problem, SemcalWarning, stacklevel=4)
        return report

    @property
    def _scores_out_of_fold(self) -> Floats:
        return self.share if self.map.candidate.kind == "constant" else self.out_of_fold

    def _problems(self) -> list[str]:
        """What limits what could be learnt."""
        n, right = len(self.correct), int(self.correct.sum())
        problems = []
        if right in (0, n):
            problems.append(
                f"all {n} answers are {'right' if right else 'wrong'}, so that {ONE_PROBABILITY}; label "
                "more questions, or harder and easier ones"
            )
        elif min(right, n - right) < FEW:
            kind = "right" if right < n - right else "wrong"
            problems.append(
                f"only {min(right, n - right)} of {n} answers are {kind}, and a map takes {FEW} of each: "
                f"{ONE_PROBABILITY}; label more questions, or harder and easier ones"
            )
        units = n if self.groups is None else len(np.unique(self.groups))
        if units < FOLDS and right not in (0, n):
            problems.append(
                f"the {n} labelled questions make only {units} groups, and a map takes {FOLDS}: "
                f"{ONE_PROBABILITY}; label questions of more groups"
            )
        if np.ptp(self.share) == 0:
            problems.append(
                f"all {n} answers have the same share ({self.share[0]:g}), which tells none from another; "
                "see that the samples were drawn at a temperature above 0 and not copied"
            )
        return problems


def _like_answers(scores: Floats, correct: Floats) -> Iterator[LikeAnswers]:
    """Labelled questions by score: as many groups as have `LIKE` each, and equal scores in one group."""
    order = np.argsort(scores, kind="stable")
    values, n, start = scores[order], len(order), 0
    size = max(LIKE, -(-n // MOST_LIKE))
    while start < n:
        end = int(np.searchsorted(values, values[min(start + size, n) - 1], "right"))
        end = n if n - end < size else end
        right = int(correct[order[start:end]].sum())
        yield LikeAnswers(float(values[start]), float(values[end - 1]), end - start, right)
        start = end


def _at_thresholds(scores: Floats, correct: Floats, n_without: int) -> Iterator[AtThreshold]:
    """Each threshold that answers less than those below it; questions `without` an answer abstain."""
    n, before = len(scores) + n_without, -1
    for threshold in THRESHOLDS:
        passed = scores >= threshold
        if (answered := int(passed.sum())) not in (0, before):
            yield AtThreshold(threshold, answered, int((1 - correct[passed]).sum()), answered / n)
        before = answered


def _above(p: Floats, share: Floats, correct: Floats) -> float:
    """By how much the gain of p is above that of the share."""
    return float(np.mean((share - correct) ** 2 - (p - correct) ** 2))


def _figures(p: Floats, correct: Floats, wrong: Floats) -> dict[str, float | None]:
    """The figures of answers with probabilities p, and of `wrong` ones with theirs."""
    p, correct = np.concatenate([p, wrong]), np.concatenate([correct, np.zeros_like(wrong)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)
        values = metrics.summary(p, correct)
    return {
        name: None if np.isnan(values[name]) else float(values[name]) for name in FIGURES if name in values
    }
