"""Learn a calibration from labeled rows: split, grades, map, calibration and thresholds, in this order."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from semcal.arrays import Floats, check_seed
from semcal.calibration.calibration import (
    Calibration,
    CalibrationConfig,
    LabeledAnswers,
    answering_temperatures,
    grade_answers,
    requested_features,
)
from semcal.calibration.features import (
    MOST_LACKING,
    NEVER,
    SHARES,
    AnsweredRow,
    ScoreColumn,
    answered_rows,
    candidates_for,
    features_of,
    order_by,
    score_features,
)
from semcal.calibration.production import ProductionLabels
from semcal.calibration.report import (
    ONE_PROBABILITY,
    CalibrationReport,
    CandidateScore,
    DrawsPoint,
    MovedFrom,
    at_thresholds,
    base_figures,
    enough_samples,
    figures_of,
    like_answers,
    one_value,
    problems_of_features,
    problems_of_labels,
)
from semcal.calibration.samples import SamplesOrigin, measure_draws
from semcal.calibration.signals import (
    QuestionProbe,
    check_any_signals,
    free_signals,
    learn_probe,
    signals_read,
)
from semcal.calibration.thresholds import ThresholdLabels, kept_apart, with_thresholds
from semcal.data.question import data_hash, several
from semcal.data.splits import question_ties
from semcal.errors import InputError, SemcalWarning
from semcal.grading.grade import as_grader, grade_together, grader_record
from semcal.grading.rules import Grader
from semcal.measuring import wordings
from semcal.metrics.frequencies import Groups
from semcal.metrics.probability_maps import (
    FEW,
    FOLDS,
    Labelled,
    Move,
    choose_answers,
    move_out_of_fold,
    paired_difference,
    part_of,
    predict_out_of_fold,
)
from semcal.metrics.ranking import auroc
from semcal.models.clustering import ClusterConfig, cluster_missing
from semcal.models.equivalence import ExactMatch
from semcal.recalibration.records import check_enough, warn_if_few
from semcal.rows import QUESTION_PROBE, Row, RowsAt, check_distinct, count_ends

#: Whether to report the gain with fewer samples, or also to use the fewest that suffice.
MCurve: TypeAlias = "bool | Literal['auto']"
#: A threshold is tested on all labels, by an ordering that no label chose, if there are fewer. With more, the
#: learned probability orders answers well enough to hold labels out for it.
MOST_LABEL_FREE = 1000


@dataclass(frozen=True)
class LearningOptions:
    """Options of `calibrate_rows`."""

    seed: int = 0  # of the folds, and of the choice of held-out questions
    fixed_temperature: bool = False  # the answer comes from the first samples
    origin: SamplesOrigin = field(default_factory=SamplesOrigin)
    added: ProductionLabels | None = None
    m_curve: MCurve = False  # as in `semcal.calibrate`
    #: The rows whose first samples the curve uses, clustered again unless they hold `clusters`; by default
    #: the rows themselves.
    stored: RowsAt | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed)


def calibrate_rows(
    rows: RowsAt,
    cluster: ClusterConfig,
    config: CalibrationConfig | None = None,
    options: LearningOptions | None = None,
) -> Calibration:
    """Learn the probability that an answer is correct from labeled rows of samples, or of a score.

    The rows are those of `measure_samples`: the same questions, clustered at each temperature separately. The
    samples of the answer come first. The key None stands for a recalibrator, an unknown temperature, or rows
    with the score of `config`. FitError for fewer than 5 labeled questions.
    """
    config, options = config or CalibrationConfig(), options or LearningOptions()
    curve: tuple[DrawsPoint, ...] = ()
    n_choices = 1
    if options.m_curve:
        stored, is_fixed = options.stored or rows, options.fixed_temperature
        curve = draws_curve(stored, cluster, config, seed=options.seed, fixed_temperature=is_fixed)
        if options.m_curve == "auto":
            m = enough_samples(curve)
            first: RowsAt = {t: [row.take(range(m)) for row in part] for t, part in stored.items()}
            rows = measure_draws(first, cluster, config.answer)
            n_choices = len(curve)  # labels chose among these numbers of samples
    learned = _LearnedRows(rows, cluster, config, options)
    calibration = learned.calibration(curve)
    if not config.risks:
        return calibration
    return with_thresholds(calibration, learned.threshold_labels(n_choices), config, seed=options.seed)


class _LearnedRows:
    """The map that was learned from labeled rows, with their split, their grades and the report.

    Masks (N,) and grades (N,) are of the labeled rows, then of the labels from production. `features`,
    `correct`, `probes`, `labels_at` and `choices` have an entry for each temperature that may answer.
    """

    def __init__(
        self, rows: RowsAt, cluster: ClusterConfig, config: CalibrationConfig, options: LearningOptions
    ) -> None:
        self.rows, self.cluster, self.options = rows, cluster, options
        self.labeled = labeled = next(iter(rows.values()))
        check_distinct(row.id for row in labeled)
        check_enough(len(labeled), of="to calibrate on")
        warn_if_few(len(labeled), of="to calibrate on")
        self.score = None if config.score is None else ScoreColumn.parse(config.score)
        if self.score is None:
            _check_samples(rows)
        #: The equivalence that was loaded; None if only its name is known.
        self.judge = None if isinstance(cluster.equivalence, str | Path) else cluster.equivalence
        self.grader = as_grader(config.grader, self.judge or ExactMatch())
        self.answering = answering_temperatures(rows, fixed=options.fixed_temperature)
        self.groups = several([question_ties(row.json) for row in labeled])
        self._split(config)
        self._grade(config)
        if options.added is not None:
            self._append(options.added)
        self._learn()

    def _split(self, config: CalibrationConfig) -> None:
        """Choose the questions that are held out, and those that test thresholds.

        If thresholds are label-free, all questions teach the map and test thresholds: the ordering of answers
        is one of `n_orderings` that no label changed. Each choice that labels make between orderings, of a
        temperature or a direction, divides the level.
        """
        n, score = len(self.labeled), self.score
        self.n_orderings = len(self.answering) if score is None else 2 if score.falling is None else 1
        n_units = n if self.groups is None else int(self.groups.max()) + 1
        is_alone = score is not None and not config.features
        self.label_free = is_alone or n_units * self.n_orderings < MOST_LABEL_FREE
        self.held_out, self.testing = np.zeros(n, dtype=bool), np.full(n, bool(config.risks))
        if config.risks and not self.label_free:
            self.held_out = self.testing = kept_apart(n, self.groups, self.options.seed)

    def _grade(self, config: CalibrationConfig) -> None:
        """Read the features of the answers at each temperature, and grade the answers."""
        labeled, answered = self.labeled, list[list[AnsweredRow]]()
        if self.score is None:
            at_each = [{t: self.rows[t], **self.rows} for t in self.answering]
            answered = [answered_rows(at, config.answer) for at in at_each]
            for at in answered:
                check_any_signals(config.signals, at)
            config = replace(config, signals=(*config.signals, *free_signals(config.signals, answered)))
            self.features = [features_of(at, config.answer, config.requested) for at in at_each]
            self.correct = [grade_answers(at, labeled, self.grader, config.answer) for at in self.features]
        else:  # the teaching questions set the direction and the scale of the score
            raw, teaching = self.score.values(labeled), ~self.held_out
            unscaled = score_features(labeled, raw, self.score, config.features)
            self.correct = [grade_answers(unscaled, labeled, self.grader, "given")]
            self.score = self.score.learn(raw[teaching], self.correct[0][teaching])
            self.features = [score_features(labeled, raw, self.score, config.features)]
        self.config = config  # with the signals that need no call
        has_text = [[text is not None for text in at.answers] for at in self.features]
        self.has_answer: NDArray[np.bool_] = np.all(has_text, axis=0)
        check_enough(int(self.has_answer.sum()), of="with an answer to calibrate on")
        self.probes: list[QuestionProbe | None] = [None] * len(self.features)
        if QUESTION_PROBE in config.signals:
            fitted, seed = ~self.held_out & self.has_answer, self.options.seed
            for k, of_answers in enumerate(zip(self.features, answered, self.correct)):
                self.probes[k], self.features[k] = learn_probe(*of_answers, fitted, self.groups, seed)

    def _append(self, added: ProductionLabels) -> None:
        """Append labels from production, which all have an answer, each in a group of its own.

        Features that fewer than four in five of the replies have are left out.
        """
        n = len(added.correct)
        for k, at in enumerate(self.features):
            values = {
                name: np.append(own, added.features[name])
                for name, own in at.values.items()
                if name in added.features and np.isnan(added.features[name]).mean() <= MOST_LACKING
            }
            self.features[k] = replace(at, values=values)
            self.correct[k] = np.append(self.correct[k], added.correct)
        self.has_answer = np.append(self.has_answer, np.ones(n, dtype=bool))
        if self.groups is not None:
            self.groups = np.append(self.groups, self.groups.max() + 1 + np.arange(n))
        self.held_out, self.testing = (
            np.append(own & (not added.alone), added.apart) for own in (self.held_out, self.testing)
        )

    def _learn(self) -> None:
        """Choose the map and the temperature of the answers, and predict the fitted answers out of fold."""
        fitted, seed = ~self.held_out & self.has_answer, self.options.seed
        self.labels_at = [
            Labelled(at.values, correct, candidates_for(at)).part(fitted)
            for at, correct in zip(self.features, self.correct)
        ]
        self.groups_fitted = groups = None if self.groups is None else self.groups[fitted]
        self.place, self.choices = choose_answers(self.labels_at, groups=groups, seed=seed)
        self.map, self.answered_at = self.choices[self.place].map, self.answering[self.place]
        self.answers = self.rows[self.answered_at]
        self.out_of_fold, places = predict_out_of_fold(self.labels_at, groups=groups, seed=seed)
        # shares and grades out of fold are of the temperature that the fold chose
        base = self.features[0].base
        self.share = np.choose(places, [at.features[base] for at in self.labels_at])
        self.correct_out_of_fold = np.choose(places, [at.correct for at in self.labels_at])
        n = len(self.labeled)
        self.own_correct, self.own_fitted = self.correct[self.place][:n], fitted[:n]

    def calibration(self, curve: tuple[DrawsPoint, ...]) -> Calibration:
        """Return the calibration without thresholds; the `curve` of fewer samples is for its report."""
        added, origin, map_ = self.options.added, self.options.origin, self.map
        is_score = self.score is not None
        labels = self.labels_at[self.place]
        grader_name, grader_revision = grader_record(self.grader)
        return Calibration(
            map=map_,
            further=None if is_score else self._further(),
            m=0 if is_score else len(self.labeled[0].samples),
            temperature=self.answered_at,
            temperatures=tuple(t for t in self.rows if t and t != self.answered_at and self._needs(t)),
            equivalence=self.cluster.address,
            linkage=self.cluster.linkage,
            merge_refusals=self.cluster.merge_refusals,
            answer_format=_answer_format(self.rows),
            threshold=None,
            report=self._report(curve),
            max_new_tokens=origin.max_new_tokens,
            provenance=origin.provenance,
            equivalence_revision=None if self.judge is None else self.judge.revision,
            grader=grader_name,
            grader_revision=grader_revision,
            recalibrator=origin.recalibrator,
            samples=origin.samples,
            answer_kind=self.config.answer,
            columns=tuple(column for column in self.config.features if column.name in map_.features),
            signals=signals_read(self.config.signals, map_.features),
            ancestors=() if added is None else added.ancestors,
            open_book=None if origin.provenance is None else open_book_of(self.labeled),
            labeled=LabeledAnswers.of(
                map_.predict(labels.features), labels.correct, self.out_of_fold, self.correct_out_of_fold
            ),
            score=self.score,
            probe=self.probes[self.place] if QUESTION_PROBE in map_.features else None,
        )

    def _needs(self, temperature: float) -> bool:
        """Return whether the map reads samples at a temperature, or sharper samples settle ties there."""
        ties = any(row.measured.tied and len(row.measured.confidences) == 1 for row in self.answers)
        read = any(name.endswith(f" at T={temperature:g}") for name in self.map.features)
        return read or (ties and temperature < (1.0 if self.answered_at is None else self.answered_at))

    def _further(self) -> float | None:
        """Return how often another meaning is correct if the answer is wrong: (k + 1) / (n + 2), or None."""
        further = []
        for i in map(int, np.flatnonzero(self.own_fitted & (self.own_correct == 0))):
            row, meaning = self.answers[i], self.features[self.place].meanings[i]
            texts = [text for k, text in enumerate(wordings(row)) if text is not None and k != meaning]
            if texts and row.is_labelled:
                further.append((row.question_or_empty, texts, row.answers))
        if not further:
            return None
        right = grade_together(
            self.grader, lambda marks: sum(marks.grade(*answer).correct for answer in further)
        )
        return (right + 1) / (len(further) + 2)

    def _report(self, curve: tuple[DrawsPoint, ...]) -> CalibrationReport:
        """Return the report, and warn of the problems of rows and labels."""
        added = self.options.added
        out, correct, share = self.out_of_fold, self.correct_out_of_fold, self.share
        # "no answer" is wrong. Its confidence is its share in Base, and 0 with the calibration.
        is_without = ~self.held_out & ~self.has_answer
        at_one, no_answer = (
            at.values[at.base][is_without] for at in (self.features[0], self.features[self.place])
        )
        calibrated = figures_of(out, correct, np.zeros_like(no_answer))
        base = base_figures(self.labels_at[0], share, correct, no_answer)
        order = out
        if self.map.candidate.kind == "constant":  # then answers are ordered by their share
            calibrated["auroc"], order = base["auroc"], share
        base_at_one = None
        if len(self.choices) > 1:
            base_at_one = figures_of(self.labels_at[0].features[SHARES[0]], self.labels_at[0].correct, at_one)
        report = CalibrationReport(
            n=len(correct),
            apart=int((self.held_out & self.has_answer).sum()),
            chosen=self.map.candidate.name,
            candidates=tuple(
                CandidateScore(
                    score.candidate.name,
                    score.gain,
                    score.above,
                    score.standard_error,
                    weight=self.map.weight_of(score.candidate),
                )
                for score in self.choices[self.place].scores
            ),
            base=base,
            calibrated=calibrated,
            base_at_one=base_at_one,
            first=()
            if self.score
            else tuple(problems_of_labels(self.answers, self.judge or self.cluster.address)),
            like=tuple(like_answers(order, correct)),
            at_thresholds=tuple(at_thresholds(order, correct, len(no_answer))),
            warnings=tuple(self._problems()),
            draws_curve=curve,
            added=None if added is None else added.record,
            no_answer=int((~self.has_answer).sum()),
            no_answer_samples=0 if self.score else count_ends(self.answers)[2],
            base_name=self.features[0].base,
        )
        for problem in report.warnings:
            warnings.warn(problem, SemcalWarning, stacklevel=5)
        return report

    def _problems(self) -> Iterator[str]:
        """Yield the problems of rows, features, labels from production, grades, and shares."""
        yield from problems_of_features(self.features[self.place])
        yield from () if self.options.added is None else self.options.added.problems
        n, right = len(self.correct_out_of_fold), int(self.correct_out_of_fold.sum())
        units = n if self.groups_fitted is None else len(np.unique(self.groups_fitted))
        if min(right, n - right) < FEW or units < FOLDS:
            yield (
                f"{right} of {n} answers in {units} groups of questions are correct, and a map needs {FEW} "
                f"correct and {FEW} wrong answers in {FOLDS} groups, so that {ONE_PROBABILITY}. Label more "
                "questions, or harder and easier ones"
            )
        yield from one_value(self.features[0].base, self.share)
        if self.score is not None and self.map.candidate.kind == "constant" and right not in (0, n):
            ranking, other = auroc(self.share, self.correct_out_of_fold), self.score.opposite
            if ranking < 0.5:
                yield (
                    f"a better {self.score.name!r} is more often wrong (AUROC {ranking:.2f}), so that "
                    f"{ONE_PROBABILITY}. Pass {other}, or the name alone"
                )

    def threshold_labels(self, n_choices: int) -> ThresholdLabels:
        """Return the labels that test thresholds, in the order that no label chose, or of the map.

        `n_choices` is the number of versions of the rows from which labels chose this one.
        """
        used, features = self.testing & self.has_answer, self.features[self.place]
        values = part_of(features.values, used)
        scores = self.map.scores(values)
        ordering = features.ordering if self.label_free else None
        groups = self.groups
        return ThresholdLabels(
            order_by(ordering, values) if ordering else scores,
            self.correct[self.place][used],
            groups=None if groups is None else groups[used],
            n_orderings=n_choices * (self.n_orderings if ordering else 1),
            shown=scores if ordering else None,
            ordering=ordering,
            # Coverage counts all questions or groups that are tested, also those without an answer.
            n_tested=int(self.testing.sum()) if groups is None else len(np.unique(groups[self.testing])),
        )


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


# ---- Moving a calibration to new data ----------------------------------------------------------------------

#: Labels from which on a move is not warned of.
FEW_LABELS = 30
#: Smallest difference of gains that a warning of a move names.
SLIGHT = 0.001


def move_calibration(
    calibration: Calibration, rows: RowsAt, grader: Grader, *, seed: int = 0, data: str = ""
) -> tuple[Calibration, ThresholdLabels]:
    """Return a calibration that is moved to labeled rows, and the labels that can test a threshold.

    The rows are those that `calibration.apply` takes (see `Calibrator.move`).
    """
    features, labeled = calibration.read(rows)
    check_distinct(row.id for row in labeled)
    correct = grade_answers(features, labeled, grader, calibration.answer_kind)
    has_answer = np.array([text is not None for text in features.answers])
    check_enough(int(has_answer.sum()), of="to move a calibration to")
    groups = several([question_ties(row.json) for row in labeled])
    of_answers = None if groups is None else groups[has_answer]
    part = Labelled(features.values, correct, candidates_for(features)).part(has_answer)
    unmoved = calibration.predict(features)[0][has_answer]
    move = Move.of(unmoved, part.correct)
    moved = move_out_of_fold(unmoved, part.correct, groups=of_answers, seed=seed)
    scratch, _ = predict_out_of_fold([part], groups=of_answers, seed=seed)
    without = features.values[calibration.base][~has_answer]
    found = unmoved, moved, scratch
    report = _report_of_move(calibration, move, found, part, without, of_answers)
    for problem in report.warnings:
        warnings.warn(problem, SemcalWarning, stacklevel=3)
    after = replace(calibration, moves=(*calibration.moves, move))
    p, shown = (values[has_answer] for values in after.predict(features))
    provenance = calibration.provenance
    if provenance is not None:
        hashed = data_hash([row.to_question() for row in labeled])
        provenance = replace(provenance, data=data, data_hash=hashed, n_questions=len(labeled), seed=seed)
    grader_name, grader_revision = grader_record(grader)
    moved_calibration = replace(
        after,
        report=report,
        threshold=None,
        thresholds=(),
        ordering=None,
        provenance=provenance,
        grader=grader_name,
        grader_revision=grader_revision,
        samples=None,
        samples_sha256=None,
        labeled=LabeledAnswers.of(p, part.correct, moved, part.correct),
    )
    order = order_by(features.ordering or calibration.base, part.features)
    n_tested = len(labeled) if groups is None else len(np.unique(groups))
    return moved_calibration, ThresholdLabels(
        order, part.correct, of_answers, shown=shown, ordering=features.ordering, n_tested=n_tested
    )


def _report_of_move(
    calibration: Calibration,
    move: Move,
    found: tuple[Floats, Floats, Floats],
    part: Labelled,
    without: Floats,
    groups: Groups | None,
) -> CalibrationReport:
    """Compare the moved map with the old one and a new one.

    `found` has the probabilities (n,) of the answers by the calibration as it is, moved, and learned anew;
    `without` are the shares of missing answers.
    """
    correct, problems = part.correct, list[str]()
    unmoved, moved, scratch = (figures_of(p, correct, np.zeros_like(without)) for p in found)
    old_gain, gain, gain_of_scratch = (p * (2 * correct - p) for p in found)
    if len(gain) < FEW_LABELS:
        problems.append(
            f"the move rests on only {len(gain)} labels, and two numbers need about {FEW_LABELS}. Label more"
        )
    for other, what, remedy in (
        (old_gain, "the calibration before the move", "Keep it as it is, or label more"),
        (gain_of_scratch, "a calibration of the new labels alone", "Calibrate without --from"),
    ):
        ahead, error = paired_difference(other, gain, groups)
        if ahead > max(error, SLIGHT):
            problems.append(f"{what} gains {ahead:.3f} ± {error:.3f} more than the moved one. {remedy}")
    base = part.features[calibration.base]
    problems += one_value(calibration.base, base)
    reference = base if part.candidates[0].fewest < NEVER else correct.mean()
    above, standard_error = paired_difference(gain, reference * (2 * correct - reference), groups)
    chosen = calibration.report.chosen
    return CalibrationReport(
        n=len(gain),
        apart=0,
        chosen=chosen,
        candidates=(CandidateScore(chosen, float(gain.mean()), above, standard_error, 1.0),),
        base=base_figures(part, base, correct, without),
        calibrated=moved,
        warnings=tuple(problems),
        no_answer=len(without),
        like=tuple(like_answers(found[1], correct)),
        at_thresholds=tuple(at_thresholds(found[1], correct, len(without))),
        moved=MovedFrom(calibration.id, move.intercept, move.slope, unmoved, scratch),
        base_name=calibration.base,
    )


# ---- Gain by the number of samples -------------------------------------------------------------------------


#: Numbers of samples of the curve, up to the number at hand.
NUMBERS = (1, 2, 3, 5, 10)


def draws_curve(
    rows: RowsAt,
    cluster: ClusterConfig,
    config: CalibrationConfig,
    *,
    seed: int = 0,
    fixed_temperature: bool = False,
) -> tuple[DrawsPoint, ...]:
    """Return the gain out of fold with the first 1, 2, 3, 5, 10 and all samples at each temperature.

    Rows of labeled questions hold all samples. Each number of samples is clustered (unless rows hold
    `clusters`), answered, graded and learned from separately. Token scores are features if they are known.
    Other signals are left out, since the model was asked about other answers. A question without an answer
    has probability 0 and gain 0. `above` is the paired difference to all samples, with its standard error
    over questions or groups.
    """
    groups = several([question_ties(row.json) for row in next(iter(rows.values()))])
    m = min(row.m for part in rows.values() for row in part)
    numbers = [*(n for n in NUMBERS if n < m), m]
    taken = [row.take(range(n)) for n in numbers for part in rows.values() for row in part]
    clustered = iter(cluster_missing(taken, cluster))  # together, as all numbers share pairs
    grader, gains = as_grader(config.grader, cluster.judge), []
    for _ in numbers:
        part_of_samples: RowsAt = {t: [next(clustered) for _ in part] for t, part in rows.items()}
        measured = measure_draws(part_of_samples, cluster, config.answer)
        gains.append(_gains(measured, config, grader, groups, seed, fixed=fixed_temperature))
    return tuple(
        DrawsPoint(n, float(of_n.mean()), *paired_difference(of_n, gains[-1], groups))
        for n, of_n in zip(numbers, gains)
    )


def _gains(
    rows: RowsAt,
    config: CalibrationConfig,
    grader: Grader,
    groups: Groups | None,
    seed: int,
    *,
    fixed: bool,
) -> Floats:
    """Return the gain of each question (N,) out of fold, 0 without an answer."""
    labels, found = [], []
    for t in answering_temperatures(rows, fixed=fixed):
        at = {t: rows[t], **rows}
        is_known = any(item.token_scores is not None for item in answered_rows(at, config.answer))
        signals = ["token-scores"] if is_known else []
        features = features_of(at, config.answer, requested_features(config.features, signals))
        correct = grade_answers(features, rows[t], grader, config.answer)
        labels.append(Labelled(features.values, correct, candidates_for(features)))
        found.append([text is not None for text in features.answers])
    has_answer = np.all(found, axis=0)
    gains = np.zeros(len(has_answer))
    if not has_answer.any():
        return gains
    labels = [of_place.part(has_answer) for of_place in labels]
    groups = None if groups is None else groups[has_answer]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SemcalWarning)
        p, places = predict_out_of_fold(labels, groups=groups, seed=seed)
    correct = np.choose(places, [of_place.correct for of_place in labels])
    gains[has_answer] = p * (2 * correct - p)
    return gains
