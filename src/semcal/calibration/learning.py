"""Learn a calibration from labeled rows: split, grades, map, calibration and thresholds, in this order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from semcal.arrays import Floats
from semcal.calibration.calibration import (
    Calibration,
    CalibrationConfig,
    answering_temperatures,
    grade_answers,
)
from semcal.calibration.features import (
    AnsweredRow,
    AnswerFeatures,
    ScoreColumn,
    answered_rows,
    candidates_for,
    features_of,
    order_by,
    score_features,
)
from semcal.calibration.map_report import LearnedMap, graded_examples
from semcal.calibration.production import ProductionLabels, usable_features
from semcal.calibration.question_probe import QuestionProbe, learn_probe
from semcal.calibration.report import (
    CalibrationReport,
    problems_of_features,
    problems_of_labels,
    problems_of_rows,
    what_to_do_first,
)
from semcal.calibration.samples import NOWHERE, SamplesOrigin
from semcal.calibration.signals import check_any_signals, free_signals, signals_read
from semcal.calibration.thresholds import ThresholdLabels, kept_apart, with_thresholds
from semcal.data.question import Ties, several
from semcal.data.splits import question_ties
from semcal.errors import InputError
from semcal.grading.grade import as_grader, grade_together, grader_record
from semcal.grading.rules import Grader
from semcal.measuring import wordings
from semcal.metrics.frequencies import Groups
from semcal.metrics.probability_maps import Labelled, ProbabilityMap, part_of
from semcal.models.clustering import ClusterConfig
from semcal.models.equivalence import Equivalence, ExactMatch
from semcal.recalibration.records import check_enough, warn_if_few
from semcal.rows import QUESTION_PROBE, Row, RowsAt, check_distinct, count_ends

#: A threshold is tested on all labels, by an ordering that no label chose, if there are fewer. With more, the
#: learned probability orders answers well enough to hold labels out for it.
MOST_LABEL_FREE = 1000
#: The advice for one sample of each question.
OF_ONE_DRAW = (
    "m = 1: the answer is compared with a single sample, and only likelihoods add information. Calibrate "
    "with m = 10; --config calibration.m_curve=true shows the loss with one sample"
)


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
    options = LearningOptions(seed, fixed_temperature, origin, added)
    return learn_from_rows(rows, cluster, config or CalibrationConfig(), options)


@dataclass(frozen=True)
class LearningOptions:
    """Options of `learn_from_rows`: those of `calibrate_rows`, and two more.

    Attributes
    ----------
    score : ScoreColumn, optional
        The column that is calibrated in place of samples.
    choices : int
        Number of versions of the rows, such as numbers of samples, from which the labels chose this one. The
        level of each threshold is divided by it.
    """

    seed: int = 0
    fixed_temperature: bool = False
    origin: SamplesOrigin = NOWHERE
    added: ProductionLabels | None = None
    score: ScoreColumn | None = None
    choices: int = 1


def learn_from_rows(
    rows: RowsAt, cluster: ClusterConfig, config: CalibrationConfig, options: LearningOptions
) -> Calibration:
    """Learn from labeled rows of samples, as `calibrate_rows` does, or of a score."""
    learned = _Learned.of(rows, cluster, config, options)
    calibration = learned.calibration()
    if not config.risks:
        return calibration
    return with_thresholds(calibration, learned.threshold_labels(), config, seed=options.seed)


@dataclass(frozen=True)
class _Learned:
    """The map that was learned from labeled rows, with the rows, their split and their grades."""

    rows: RowsAt
    cluster: ClusterConfig
    grader: Grader
    options: LearningOptions
    answering: Sequence[float | None]  # the temperatures that may answer
    ties: Sequence[Ties]  # of each question
    split: _Split
    graded: _Graded
    choice: LearnedMap

    @classmethod
    def of(
        cls, rows: RowsAt, cluster: ClusterConfig, config: CalibrationConfig, options: LearningOptions
    ) -> _Learned:
        labeled, score, added = next(iter(rows.values())), options.score, options.added
        check_distinct(row.id for row in labeled)
        check_enough(len(labeled), of="to calibrate on")
        warn_if_few(len(labeled), of="to calibrate on")
        if score is None:
            _check_samples(rows)
        grader = as_grader(config.grader, _judge_of(cluster) or ExactMatch())
        answering = answering_temperatures(rows, fixed=options.fixed_temperature)
        ties = [question_ties(row.json) for row in labeled]
        split = _Split.of(several(ties), len(labeled), answering, score, config, options.seed)
        if score is None:
            graded = _Graded.of_samples(rows, answering, config, grader)
        else:
            graded = _Graded.of_scores(labeled, score, config, grader, split.teaching)
        check_enough(int(graded.has_answer.sum()), of="with an answer to calibrate on")
        graded.add_probes(split, options.seed)
        if added is not None:
            graded, split = graded.with_labels(added), split.with_labels(added)
        choice = graded.learn(split, options.seed)
        return cls(rows, cluster, grader, options, answering, ties, split, graded, choice)

    @property
    def labeled(self) -> Sequence[Row]:
        return next(iter(self.rows.values()))

    @property
    def answered(self) -> float | None:
        """The temperature of the answers."""
        return self.answering[self.choice.place]

    @property
    def answers(self) -> Sequence[Row]:
        return self.rows[self.answered]

    @property
    def features(self) -> AnswerFeatures:
        return self.graded.features[self.choice.place]

    @property
    def correct(self) -> Floats:
        """The grades of the labeled rows, without labels from production."""
        return self.graded.correct[self.choice.place][: len(self.labeled)]

    @property
    def taught(self) -> NDArray[np.bool_]:
        return (self.split.teaching & self.graded.has_answer)[: len(self.labeled)]

    def calibration(self) -> Calibration:
        """Return the calibration without thresholds."""
        options, added, map_ = self.options, self.options.added, self.choice.map
        origin, judge, config = options.origin, _judge_of(self.cluster), self.graded.config
        grader_name, grader_revision = grader_record(self.grader)
        is_score = options.score is not None
        others = (t for t in self.rows if t and t != self.answered)
        return Calibration(
            map=map_,
            further=None if is_score else self._further(),
            m=0 if is_score else len(self.labeled[0].samples),
            temperature=self.answered,
            temperatures=tuple(t for t in others if _needs(map_, self.answers, self.answered, t)),
            equivalence=self.cluster.address,
            linkage=self.cluster.linkage,
            merge_refusals=self.cluster.merge_refusals,
            answer_format=_answer_format(self.rows),
            threshold=None,
            report=self._report(),
            max_new_tokens=origin.max_new_tokens,
            provenance=origin.provenance,
            equivalence_revision=None if judge is None else judge.revision,
            grader=grader_name,
            grader_revision=grader_revision,
            recalibrator=origin.recalibrator,
            samples=origin.samples,
            answer_kind=config.answer,
            columns=tuple(column for column in config.features if column.name in map_.features),
            signals=signals_read(config.signals, map_.features),
            examples=graded_examples(self.answers, self.features, self.correct, self.grader),
            ancestors=() if added is None else added.ancestors,
            open_book=None if origin.provenance is None else open_book_of(self.labeled),
            labeled=self.choice.labeled,
            score=self.graded.score,
            probe=self.graded.probes[self.choice.place] if QUESTION_PROBE in map_.features else None,
        )

    def _report(self) -> CalibrationReport:
        added, split, has_answer = self.options.added, self.split, self.graded.has_answer
        is_score = self.options.score is not None
        first: list[str] = []
        if not is_score:
            first += problems_of_labels(self.answers, _judge_of(self.cluster) or self.cluster.address)
            first += [OF_ONE_DRAW] * (len(self.labeled[0].samples) == 1)
            provenance = self.options.origin.provenance
            first += what_to_do_first(self.answers, self.correct[self.taught], provenance)
        problems = [
            *problems_of_rows(self.labeled, self.ties, split.groups, split.testing),
            *problems_of_features(self.features),
            *(() if added is None else added.problems),
        ]
        held_out = int((split.held_out & has_answer).sum())
        return replace(
            self.choice.report(self.answering, held_out, problems, first=tuple(first)),
            added=None if added is None else added.record,
            no_answer=int((~has_answer).sum()),
            no_answer_samples=0 if is_score else count_ends(self.answers)[2],
            base_name=self.features.base,
        )

    def threshold_labels(self) -> ThresholdLabels:
        """Return the labels that test thresholds, in the order that no label chose, or of the map."""
        split = self.split
        used = split.testing & self.graded.has_answer
        values = part_of(self.features.values, used)
        scores = self.choice.map.scores(values)
        ordering = self.features.ordering if split.label_free else None
        return ThresholdLabels(
            order_by(ordering, values) if ordering else scores,
            self.graded.correct[self.choice.place][used],
            groups=None if split.groups is None else split.groups[used],
            n_orderings=self.options.choices * (split.n_orderings if ordering else 1),
            shown=scores if ordering else None,
            ordering=ordering,
            # Coverage counts all questions that are tested, also those without an answer.
            n_tested=split.n_tested,
        )

    def _further(self) -> float | None:
        """Return how often another meaning is correct if the answer is wrong: (k + 1) / (n + 2), or None."""
        further = []
        for i in map(int, np.flatnonzero(self.taught & (self.correct == 0))):
            row, meaning = self.answers[i], self.features.meanings[i]
            texts = [text for k, text in enumerate(wordings(row)) if text is not None and k != meaning]
            if texts and row.is_labelled:
                further.append((row.question_or_empty, texts, row.answers))
        if not further:
            return None
        right = grade_together(
            self.grader, lambda marks: sum(marks.grade(*answer).correct for answer in further)
        )
        return (right + 1) / (len(further) + 2)


def _judge_of(cluster: ClusterConfig) -> Equivalence | None:
    """Return the equivalence that was loaded; None if only its name is known."""
    return None if isinstance(cluster.equivalence, str | Path) else cluster.equivalence


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


def _check_samples(rows: RowsAt) -> None:
    m = len(next(iter(rows.values()))[0].samples)
    for at, row in ((t, row) for t, rows_of in rows.items() for row in rows_of):
        if m and len(row.samples) != m:
            where = "" if at is None else f" at T = {at:g}"
            raise InputError(
                f"question {row.id!r} has {len(row.samples)} samples{where}, and others have {m}. Use the "
                "same number of samples for all questions, and at all temperatures"
            )


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
