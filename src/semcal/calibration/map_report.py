"""The learned map of a calibration: figures, moves, and gain by the number of samples."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from semcal import metrics
from semcal.arrays import Floats
from semcal.calibration.calibration import (
    Calibration,
    CalibrationConfig,
    LabeledAnswers,
    answering_temperatures,
    grade_answers,
    requested_features,
)
from semcal.calibration.features import (
    NEVER,
    SHARES,
    answered_rows,
    candidates_for,
    features_of,
    order_by,
)
from semcal.calibration.report import (
    AtThreshold,
    CalibrationReport,
    CandidateScore,
    DrawsPoint,
    LikeAnswers,
    MovedFrom,
    problems_of_rows,
)
from semcal.calibration.samples import measure_draws
from semcal.calibration.thresholds import ThresholdLabels
from semcal.data.question import data_hash, several
from semcal.data.splits import question_ties
from semcal.errors import SemcalWarning, UndefinedWarning
from semcal.grading.grade import as_grader, grader_record
from semcal.grading.rules import Grader
from semcal.metrics.frequencies import Groups
from semcal.metrics.probability_maps import (
    MOST,
    Labelled,
    Move,
    move_out_of_fold,
    paired_difference,
    predict_out_of_fold,
)
from semcal.models.clustering import ClusterConfig, cluster_missing
from semcal.recalibration.records import check_enough
from semcal.rows import RowsAt, check_distinct

#: Labeled questions with similar scores: at least so many in a group, in at most so many groups.
LIKE, MOST_LIKE = 20, 10
#: Thresholds for which the report counts the answered questions.
THRESHOLDS = (*(tenths / 10 for tenths in range(10)), 0.95)
#: The figures that are reported of Base and of the calibrated probability.
FIGURES = ("accuracy", "mean_confidence", "ace", "ace_floor", "ace_floor_95", "brier", "auroc", "gain")


def one_value(base: str, share: Floats) -> Iterator[str]:
    """Yield the problem of answers whose confidence, the feature `base`, is the same."""
    name, remedy = repr(base), "it is the column that you mean, in the unit of the labeled rows"
    if base == SHARES[0]:
        name = f"share ({share[0]:g})"  # a score is scaled here, so that its value is another one
        remedy = "the temperature of the samples is above 0, and that they are not copies"
    if np.ptp(share) == 0:
        yield (
            f"all {len(share)} answers have the same {name}, which does not distinguish them. Check that "
            f"{remedy}"
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


def figures_of(p: Floats, correct: Floats, wrong: Floats) -> dict[str, float | None]:
    """Return the figures of answers with probabilities p, and of wrong answers, with `wrong`."""
    p, correct = np.concatenate([p, wrong]), np.concatenate([correct, np.zeros_like(wrong)])
    draws = 1000 if len(p) <= MOST else 100
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)
        values = metrics.summary(p, correct, draws=0)
    floor = metrics.noise_floor(p, correct, metric="ace", draws=draws)
    values |= {"ace_floor": floor.mean, "ace_floor_95": floor.quantile_95}
    return {name: None if np.isnan(values[name]) else float(values[name]) for name in FIGURES}


def base_figures(labels: Labelled, share: Floats, correct: Floats, wrong: Floats) -> dict[str, float | None]:
    """Return the figures of the confidence without a map; only its ranking if it is not a probability."""
    figures = figures_of(share, correct, wrong)
    if labels.candidates[0].fewest < NEVER:
        return figures
    return {name: value if name in ("accuracy", "auroc") else None for name, value in figures.items()}


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
    ties = [question_ties(row.json) for row in labeled]
    groups = several(ties)
    of_answers = None if groups is None else groups[has_answer]
    part = Labelled(features.values, correct, candidates_for(features)).part(has_answer)
    unmoved = calibration.predict(features)[0][has_answer]
    move = Move.of(unmoved, part.correct)
    moved = move_out_of_fold(unmoved, part.correct, groups=of_answers, seed=seed)
    scratch, _ = predict_out_of_fold([part], groups=of_answers, seed=seed)
    problems = problems_of_rows(ties)
    without = features.values[calibration.base][~has_answer]
    found = unmoved, moved, scratch
    report = _report_of_move(calibration, move, found, part, without, of_answers, problems)
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
    problems: Iterable[str],
) -> CalibrationReport:
    """Compare the moved map with the old one and a new one.

    `found` has the probabilities (n,) of the answers by the calibration as it is, moved, and learned anew;
    `without` are the shares of missing answers.
    """
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
