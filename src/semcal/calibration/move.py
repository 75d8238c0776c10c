"""Moving a calibration to new data: two numbers are learned from a few new labels."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from semcal.arrays import Floats
from semcal.calibration.calibration import Calibration, LabeledAnswers
from semcal.calibration.configuration import grade_answers
from semcal.calibration.features import NEVER, candidates_for, order_by
from semcal.calibration.map_report import (
    DECIMALS,
    at_thresholds,
    base_figures,
    figures_of,
    graded_examples,
    like_answers,
)
from semcal.calibration.problems import problems_of_rows
from semcal.calibration.report import CalibrationReport, CandidateScore, CurvePoint, MovedFrom
from semcal.data.question import data_hash, several
from semcal.data.splits import question_ties
from semcal.errors import SemcalWarning
from semcal.grading.grade import grader_record
from semcal.grading.rules import Grader
from semcal.metrics.frequencies import Groups
from semcal.metrics.probability_maps import (
    Labelled,
    Move,
    move_out_of_fold,
    paired_difference,
    predict_out_of_fold,
)
from semcal.recalibration.records import check_enough
from semcal.rows import RowsAt, check_distinct

#: Labels from which on a move is not warned of.
FEW_LABELS = 30


class ThresholdLabels(NamedTuple):
    """The labels of n answers that test a threshold."""

    ordering: str | None  # the feature that orders answers, which no new label chose
    order: Floats  # (n,)
    correct: Floats  # (n,)
    shown: Floats  # (n,) moved probabilities
    groups: Groups | None
    n_tested: int  # questions, or groups of questions, with those without an answer


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
    unmoved, base = calibration.predict(features)[0][has_answer], part.features[calibration.base]
    move = Move.of(unmoved, part.correct)
    moved = move_out_of_fold(unmoved, part.correct, groups=of_answers, seed=seed)
    scratch, _ = predict_out_of_fold([part], groups=of_answers, seed=seed)
    without = np.zeros(len(labeled) - len(moved))  # "no answer" is wrong
    figures = {
        name: figures_of(p, part.correct, without)
        for name, p in {"unmoved": unmoved, "moved": moved, "scratch": scratch}.items()
    }
    gains = {name: p * (2 * part.correct - p) for name, p in {"moved": moved, "scratch": scratch}.items()}
    ahead, error = paired_difference(gains["scratch"], gains["moved"], of_answers)
    problems = [*problems_of_rows(labeled, ties, groups, np.zeros_like(has_answer))]
    if len(moved) < FEW_LABELS:
        problems.append(
            f"the move rests on only {len(moved)} labels, and two numbers need about {FEW_LABELS}. Label more"
        )
    if ahead > error:
        problems.append(
            f"the new labels alone gain {ahead:.3f} ± {error:.3f} more than the moved calibration. Calibrate "
            "without --from (in Python, with fit_rows)"
        )
    after = replace(calibration, moves=(*calibration.moves, move))
    p, shown = (values[has_answer] for values in after.predict(features))
    rounded = (tuple(np.round(values, DECIMALS).tolist()) for values in (p, moved))
    right = tuple((part.correct == 1).tolist())
    stored, out_of_fold = rounded
    reference = base if part.candidates[0].fewest < NEVER else part.correct.mean()
    above, standard_error = paired_difference(
        gains["moved"], reference * (2 * part.correct - reference), of_answers
    )
    chosen = calibration.report.chosen
    report = CalibrationReport(
        n=len(moved),
        apart=0,
        chosen=chosen,
        candidates=(CandidateScore(chosen, float(gains["moved"].mean()), above, standard_error, 1.0),),
        base=base_figures(part, base, part.correct, features.values[calibration.base][~has_answer]),
        calibrated=figures["moved"],
        learning_curve=(CurvePoint(len(moved), above),),
        warnings=tuple(problems),
        no_answer=len(without),
        like=tuple(like_answers(moved, part.correct)),
        at_thresholds=tuple(at_thresholds(moved, part.correct, len(without))),
        moved=MovedFrom(calibration.id, move.intercept, move.slope, figures["unmoved"], figures["scratch"]),
        base_name=calibration.base,
    )
    for problem in problems:
        warnings.warn(problem, SemcalWarning, stacklevel=3)
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
        features.ordering, order, part.correct, shown, of_answers, n_tested
    )
