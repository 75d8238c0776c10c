"""The learned map of a calibration: choice, figures, examples, moves, and gain by the number of samples."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from semcal import metrics
from semcal.arrays import Floats
from semcal.calibration.calibration import (
    Calibration,
    CalibrationConfig,
    GradedExample,
    LabeledAnswers,
    answering_temperatures,
    grade_answers,
    requested_features,
)
from semcal.calibration.features import (
    NEVER,
    SHARES,
    AnswerFeatures,
    answered_rows,
    candidates_for,
    features_of,
    order_by,
)
from semcal.calibration.report import (
    ONE_PROBABILITY,
    AtThreshold,
    CalibrationReport,
    CandidateScore,
    CurvePoint,
    DrawsPoint,
    LikeAnswers,
    MovedFrom,
    TemperatureScore,
    problems_of_rows,
)
from semcal.calibration.signals import SIGNALS
from semcal.calibration.thresholds import ThresholdLabels
from semcal.data.question import data_hash, several
from semcal.data.splits import question_ties
from semcal.errors import SemcalWarning, UndefinedWarning
from semcal.grading.grade import as_grader, grade_together, grader_record
from semcal.grading.rules import Grader
from semcal.measuring import measure_at
from semcal.metrics.frequencies import Groups
from semcal.metrics.probability_maps import (
    FEW,
    FOLDS,
    MOST,
    Labelled,
    MapChoice,
    Move,
    ProbabilityMap,
    choose_answers,
    choose_map,
    move_out_of_fold,
    paired_difference,
    part_of,
    predict_out_of_fold,
)
from semcal.models.clustering import ClusterConfig, cluster_missing, match_at
from semcal.models.equivalence import Equivalence, ExactMatch, Triple, margins_by
from semcal.recalibration.records import check_enough
from semcal.rows import AnswerKind, Row, RowsAt, check_distinct

#: Learning curve: shares of the labels, random subsets of each share, and the fewest labels.
PARTS, SUBSETS, FEWEST_LABELS = (0.25, 0.5, 0.75), 4, 25
#: Decimals of the probabilities that are stored for labeled answers.
DECIMALS = 6
#: Labeled questions with similar scores: at least so many in a group, in at most so many groups.
LIKE, MOST_LIKE = 20, 10
#: Thresholds for which the report counts the answered questions.
THRESHOLDS = (*(tenths / 10 for tenths in range(10)), 0.95)
#: The figures that are reported of Base and of the calibrated probability.
FIGURES = ("accuracy", "mean_confidence", "ace", "ace_floor", "ace_floor_95", "brier", "auroc", "gain")


@dataclass(frozen=True)
class LearnedMap:
    """The chosen map, with the scores of all candidates."""

    place: int  # the index of the temperature of the answers
    choices: list[MapChoice]  # for each temperature
    share: Floats  # shares of the answers, at the temperature that each fold chose
    out_of_fold: Floats  # probabilities of the answers, likewise
    correct: Floats
    labels_at: Sequence[Labelled]
    groups: Groups | None
    curve: tuple[CurvePoint, ...]
    without: Sequence[Floats] = ()  # for each temperature, the shares of "no answer" if it is the answer

    @property
    def map(self) -> ProbabilityMap:
        return self.choices[self.place].map

    @classmethod
    def from_labels(cls, labels_at: Sequence[Labelled], groups: Groups | None, seed: int) -> LearnedMap:
        place, choices = choose_answers(labels_at, groups=groups, seed=seed)
        out, places = predict_out_of_fold(labels_at, groups=groups, seed=seed)
        values, labels, candidates = labels_at[place]
        base, is_usable = candidates[0].features[0], candidates[0].fewest < NEVER
        share = np.choose(places, [at.features[base] for at in labels_at])
        correct = np.choose(places, [at.correct for at in labels_at])
        rng = np.random.default_rng([seed, 3])
        curve = []
        for share_of_labels in PARTS if len(labels) <= MOST else ():
            size = round(share_of_labels * len(labels))
            if size < FEWEST_LABELS:
                continue
            above = []
            for _ in range(SUBSETS):
                part = rng.permutation(len(labels)) < size
                few = choose_map(part_of(values, part), labels[part], candidates, seed=seed, repeats=1)
                unused = part_of(values, ~part)
                reference = unused[base] if is_usable else labels[part].mean()
                above.append(_above(few.map.predict(unused), reference, labels[~part]))
            curve.append(CurvePoint(size, float(np.mean(above))))
        reference = share if is_usable else correct.mean()
        curve.append(CurvePoint(len(labels), _above(out, reference, correct)))
        return cls(place, choices, share, out, correct, labels_at, groups, tuple(curve))

    @property
    def labeled(self) -> LabeledAnswers:
        features, correct, _ = self.labels_at[self.place]
        p, out = (np.round(values, DECIMALS) for values in (self.map.predict(features), self.out_of_fold))
        columns = p, correct == 1, out, self.correct == 1
        return LabeledAnswers(*(tuple(column.tolist()) for column in columns))

    def report(
        self, at: Sequence[float | None], held_out: int, problems: Iterable[str], first: tuple[str, ...]
    ) -> CalibrationReport:
        """Return the report, and warn of the problems of rows and labels."""
        scores = [choice.score for choice in self.choices] if len(self.choices) > 1 else []
        # "no answer" is wrong. Its confidence is its share in Base, and 0 with the calibration.
        no_answer, at_one = self.without[self.place], self.without[0]
        calibrated = figures_of(self.out_of_fold, self.correct, np.zeros_like(no_answer))
        base = base_figures(self.labels_at[0], self.share, self.correct, no_answer)
        scores_out_of_fold = self.out_of_fold
        if self.map.candidate.kind == "constant":  # then answers are ordered by their share
            calibrated["auroc"], scores_out_of_fold = base["auroc"], self.share
        report = CalibrationReport(
            n=len(self.correct),
            apart=held_out,
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
            base_at_one=figures_of(self.labels_at[0].features[SHARES[0]], self.labels_at[0].correct, at_one)
            if scores
            else None,
            temperatures=tuple(
                TemperatureScore(t, score.gain, above, error)
                for t, score in zip(at, scores)
                for above, error in [paired_difference(score.gains, scores[0].gains, self.groups)]
            ),
            first=first,
            like=tuple(like_answers(scores_out_of_fold, self.correct)),
            at_thresholds=tuple(at_thresholds(scores_out_of_fold, self.correct, len(no_answer))),
            learning_curve=self.curve,
            warnings=(*problems, *self._problems()),
        )
        for problem in report.warnings:
            warnings.warn(problem, SemcalWarning, stacklevel=4)
        return report

    def _problems(self) -> Iterator[str]:
        n, right = len(self.correct), int(self.correct.sum())
        if right in (0, n):
            yield (
                f"all {n} answers are {'correct' if right else 'wrong'}, so that {ONE_PROBABILITY}. Label "
                "more questions, or harder and easier ones"
            )
        elif min(right, n - right) < FEW:
            kind = "correct" if right < n - right else "wrong"
            yield (
                f"only {min(right, n - right)} of {n} answers are {kind}, and a map needs {FEW} of each: "
                f"{ONE_PROBABILITY}. Label more questions, or harder and easier ones"
            )
        units = n if self.groups is None else len(np.unique(self.groups))
        if units < FOLDS and right not in (0, n):
            yield (
                f"the {n} labeled questions form only {units} groups, and a map needs {FOLDS}: "
                f"{ONE_PROBABILITY}. Label questions of more groups"
            )
        yield from _one_value(self.labels_at[self.place].candidates[0].features[0], self.share)


def _one_value(base: str, share: Floats) -> Iterator[str]:
    """Yield the problem of answers whose confidence, the feature `base`, is the same."""
    name, remedy = repr(base), "it is the column that you mean, in the unit of the labeled rows"
    if base == SHARES[0]:
        name, remedy = "share", "the temperature of the samples is above 0, and that they are not copies"
    if np.ptp(share) == 0:
        yield (
            f"all {len(share)} answers have the same {name} ({share[0]:g}), which does not distinguish "
            f"them. Check that {remedy}"
        )


def like_answers(scores: Floats, correct: Floats) -> Iterator[LikeAnswers]:
    """Group labeled questions by score, `LIKE` or more in each group, and equal scores in one group."""
    order = np.argsort(scores, kind="stable")
    values, n, start = scores[order], len(order), 0
    size = max(LIKE, -(-n // MOST_LIKE))
    while start < n:
        end = int(np.searchsorted(values, values[min(start + size, n) - 1], "right"))
        end = n if n - end < size else end
        right = int(correct[order[start:end]].sum())
        yield LikeAnswers(float(values[start]), float(values[end - 1]), end - start, right)
        start = end


def at_thresholds(scores: Floats, correct: Floats, n_without: int) -> Iterator[AtThreshold]:
    """Yield each threshold that answers fewer questions than the one below; "no answer" abstains."""
    n, before = len(scores) + n_without, -1
    for threshold in THRESHOLDS:
        passed = scores >= threshold
        if (answered := int(passed.sum())) not in (0, before):
            yield AtThreshold(threshold, answered, int((1 - correct[passed]).sum()), answered / n)
        before = answered


def _above(p: Floats, share: Floats | float, correct: Floats) -> float:
    return float(np.mean((share - correct) ** 2 - (p - correct) ** 2))


def figures_of(p: Floats, correct: Floats, wrong: Floats) -> dict[str, float | None]:
    """Return the figures of answers with probabilities p, and of wrong answers, with `wrong`."""
    p, correct = np.concatenate([p, wrong]), np.concatenate([correct, np.zeros_like(wrong)])
    draws = 1000 if len(p) <= MOST else 100
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)
        values = metrics.summary(p, correct, draws=0)
    floor = metrics.noise_floor(p, correct, metric="ace", draws=draws)
    values |= {"ace_floor": floor.mean, "ace_floor_95": floor.quantile_95}
    return {
        name: None if np.isnan(values[name]) else float(values[name]) for name in FIGURES if name in values
    }


def base_figures(labels: Labelled, share: Floats, correct: Floats, wrong: Floats) -> dict[str, float | None]:
    """Return the figures of the confidence without a map; only its ranking if it is not a probability."""
    figures = figures_of(share, correct, wrong)
    if labels.candidates[0].fewest < NEVER:
        return figures
    return {name: value if name in ("accuracy", "auroc") else None for name, value in figures.items()}


def graded_examples(
    rows: Sequence[Row], features: AnswerFeatures, correct: Floats, grader: Grader
) -> tuple[GradedExample, ...]:
    """Return three examples: the first correct answer, the first wrong one, and the next."""
    texts = features.answers[: len(rows)]  # the text of a score alone is ""
    usable = [i for i, text in enumerate(texts) if text or (text == "" and rows[i].title)]
    first = [next(i for i in usable if correct[i] == kind) for kind in (1.0, 0.0) if kind in correct[usable]]
    chosen = sorted(list(dict.fromkeys([*first, *usable]))[:3])
    answered = [(rows[i], features.answers[i] or "", bool(correct[i])) for i in chosen]
    return tuple(
        GradedExample(row.title or row.id, text, _reference(row, text, grader, matches=matches), matches)
        for row, text, matches in answered
    )


def _reference(row: Row, text: str, grader: Grader, *, matches: bool) -> str | None:
    """Return the first reference of a question, or the first that the answer matches by the judge's rules."""
    if not row.is_labelled:
        return None
    question, references = row.question_or_empty, row.answers if matches else ()
    marks: Grader = getattr(grader, "rules", grader) if hasattr(grader, "judge") else grader
    matching = grade_together(
        marks, lambda one: [other for other in references if one.grade(question, [text], [other]).correct]
    )
    return (*matching, *row.answers)[0]


# ---- Moving a calibration to new data ----------------------------------------------------------------------

#: Labels from which on a move is not warned of.
FEW_LABELS = 30
#: Smallest difference of gains that a warning of a move names.
SLIGHT = 0.001


class OutOfFold(NamedTuple):
    """Probabilities (n,) of the answers by the calibration as it is, moved, and learned anew."""

    unmoved: Floats
    moved: Floats
    scratch: Floats


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
    ties = [question_ties(row.json) for row in labeled]
    groups = several(ties)
    of_answers = None if groups is None else groups[has_answer]
    part = Labelled(features.values, correct, candidates_for(features)).part(has_answer)
    unmoved = calibration.predict(features)[0][has_answer]
    move = Move.of(unmoved, part.correct)
    found = OutOfFold(
        unmoved,
        move_out_of_fold(unmoved, part.correct, groups=of_answers, seed=seed),
        predict_out_of_fold([part], groups=of_answers, seed=seed)[0],
    )
    problems = problems_of_rows(labeled, ties, groups, np.zeros_like(has_answer))
    without = features.values[calibration.base][~has_answer]
    report = _report_of_move(calibration, move, found, part, without, of_answers, problems)
    for problem in report.warnings:
        warnings.warn(problem, SemcalWarning, stacklevel=3)
    after = replace(calibration, moves=(*calibration.moves, move))
    p, shown = (values[has_answer] for values in after.predict(features))
    stored, out_of_fold = (tuple(np.round(values, DECIMALS).tolist()) for values in (p, found.moved))
    right = tuple((part.correct == 1).tolist())
    provenance = calibration.provenance
    if provenance is not None:
        questions = [row.to_question() for row in labeled]
        hashed = data_hash(questions)
        provenance = replace(provenance, data=data, data_hash=hashed, n_questions=len(questions), seed=seed)
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
        labeled=LabeledAnswers(stored, right, out_of_fold, right),
        examples=graded_examples(labeled, features, correct, grader),
    )
    order = order_by(features.ordering or calibration.base, part.features)
    n_tested = len(labeled) if groups is None else len(np.unique(groups))
    return moved_calibration, ThresholdLabels(
        order, part.correct, of_answers, shown=shown, ordering=features.ordering, n_tested=n_tested
    )


def _report_of_move(
    calibration: Calibration,
    move: Move,
    found: OutOfFold,
    part: Labelled,
    without: Floats,
    groups: Groups | None,
    problems: Iterable[str],
) -> CalibrationReport:
    """Compare the moved map with the old one and a new one; `without` are the shares of missing answers."""
    correct, problems = part.correct, [*problems]
    unmoved, moved, scratch = (figures_of(p, correct, np.zeros_like(without)) for p in found)
    old_gain, gain, gain_of_scratch = (p * (2 * correct - p) for p in found)
    ahead, error = paired_difference(gain_of_scratch, gain, groups)
    old_ahead, old_error = paired_difference(old_gain, gain, groups)
    if len(gain) < FEW_LABELS:
        problems.append(
            f"the move rests on only {len(gain)} labels, and two numbers need about {FEW_LABELS}. Label more"
        )
    if old_ahead > max(old_error, SLIGHT):
        problems.append(
            f"the calibration gains {old_ahead:.3f} ± {old_error:.3f} more before the move than after it. "
            "Keep it as it is, or label more"
        )
    if ahead > max(error, SLIGHT):
        problems.append(
            f"the new labels alone gain {ahead:.3f} ± {error:.3f} more than the moved calibration. Calibrate "
            "without --from (in Python, with fit_rows)"
        )
    base = part.features[calibration.base]
    problems += _one_value(calibration.base, base)
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
        learning_curve=(CurvePoint(len(gain), above),),
        warnings=tuple(problems),
        no_answer=len(without),
        like=tuple(like_answers(found.moved, correct)),
        at_thresholds=tuple(at_thresholds(found.moved, correct, len(without))),
        moved=MovedFrom(calibration.id, move.intercept, move.slope, unmoved, scratch),
        base_name=calibration.base,
    )


# ---- Gain by the number of samples -------------------------------------------------------------------------


class _Remembering:
    """An equivalence that keeps its verdicts in memory, since all numbers of samples share pairs."""

    def __init__(self, equivalence: Equivalence) -> None:
        self.name, self.revision = equivalence.name, equivalence.revision
        self.symmetric = getattr(equivalence, "symmetric", False)
        self._equivalence = equivalence
        self._margins: dict[Triple, float] = {}

    def entails(self, triples: Sequence[Triple]) -> list[bool]:
        return [margin > 0 for margin in self.margins(triples)]

    def margins(self, triples: Sequence[Triple]) -> list[float]:
        missing = [triple for triple in dict.fromkeys(triples) if triple not in self._margins]
        self._margins |= zip(missing, margins_by(self._equivalence, missing))
        return [self._margins[triple] for triple in triples]


#: Numbers of samples of the curve, up to the number at hand.
NUMBERS = (1, 2, 3, 5, 10)
TOKEN_SCORES = SIGNALS["token-scores"]


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
    first = next(iter(rows.values()))
    groups = several([question_ties(row.json) for row in first])
    m = min(row.m for part in rows.values() for row in part)
    numbers = [*(n for n in NUMBERS if n < m), m]
    if not isinstance(cluster.judge, ExactMatch):
        cluster = replace(cluster, equivalence=_Remembering(cluster.judge))
    config = replace(config, grader=as_grader(config.grader, cluster.judge))
    labels_with = partial(_labels, rows, cluster=cluster, config=config, fixed=fixed_temperature)
    gains = [_gains(*labels_with(n), groups, seed) for n in numbers[::-1]][::-1]
    return tuple(
        DrawsPoint(n, float(of_n.mean()), *paired_difference(of_n, gains[-1], groups))
        for n, of_n in zip(numbers, gains)
    )


def first_samples(rows: RowsAt, n: int, cluster: ClusterConfig, answer: AnswerKind) -> RowsAt:
    """Return the rows with their first n samples at each temperature, clustered, measured and matched."""
    taken = [row.take(range(n)) for part in rows.values() for row in part]
    clustered = iter(cluster_missing(taken, cluster))
    measured = measure_at({t: [next(clustered) for _ in part] for t, part in rows.items()})
    return match_at(measured, answer, cluster.judge)


def _labels(
    rows: RowsAt, n: int, *, cluster: ClusterConfig, config: CalibrationConfig, fixed: bool
) -> tuple[list[Labelled], list[list[bool]]]:
    """Return the labeled answers at each temperature with the first n samples, and a mask of answers."""
    measured = first_samples(rows, n, cluster, config.answer)
    labels, found = [], []
    for t in answering_temperatures(measured, fixed=fixed):
        at = {t: measured[t], **measured}
        is_known = any(item.token_scores is not None for item in answered_rows(at, config.answer))
        signals = [TOKEN_SCORES.name] if is_known else []
        features = features_of(at, config.answer, requested_features(config.features, signals))
        correct = grade_answers(features, measured[t], as_grader(config.grader, cluster.judge), config.answer)
        labels.append(Labelled(features.values, correct, candidates_for(features)))
        found.append([text is not None for text in features.answers])
    return labels, found


def _gains(
    labels: Sequence[Labelled], found: Sequence[Sequence[bool]], groups: Groups | None, seed: int
) -> Floats:
    """Return the gain of each question (N,) out of fold."""
    has_answer = np.all(found, axis=0)
    gains = np.zeros(len(has_answer))  # 0 without an answer
    if not has_answer.any():
        return gains
    labels = [of_place.part(has_answer) for of_place in labels]
    groups = None if groups is None else groups[has_answer]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SemcalWarning)
        p, places = predict_out_of_fold(labels, groups=groups, seed=seed)
    correct = labels[0].correct.copy()
    for place, of_place in enumerate(labels):
        correct[places == place] = of_place.correct[places == place]
    gains[has_answer] = p * (2 * correct - p)
    return gains
