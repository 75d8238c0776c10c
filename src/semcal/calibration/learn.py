"""Learn from the samples of labelled questions the probability that an answer is right (spec section 11)."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semcal import metrics
from semcal.calibration.answer_features import AnswerFeatures, candidates_for, features_of
from semcal.calibration.calibrated import Calibration, CalibrationReport, Threshold
from semcal.data.question import Ties, several
from semcal.data.splits import question_ties
from semcal.errors import FitError, InputError, SemcalWarning, UndefinedWarning
from semcal.grading.grade import grade_together, grader_record
from semcal.grading.rules import Grader, RuleGrader
from semcal.measuring import representative
from semcal.metrics.arguments import Floats, Groups
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
from semcal.models.equivalence import Equivalence, address_of
from semcal.models.language_model import PromptConfig
from semcal.recalibration.provenance import Provenance, check_enough, warn_if_few
from semcal.recalibration.saving import Fitted
from semcal.rows import Row, RowsAt, check_distinct

#: The share of the labelled questions that is kept apart for a threshold.
APART = 0.4
#: Of the learning curve: shares of the labels, random subsets of each, and the fewest labels that are tried.
SHARES, SUBSETS, FEWEST_LABELS = (0.25, 0.5, 0.75), 4, 25
#: Below this share of right answers a model is nearly always wrong.
HARDLY = 0.1
#: Between answers that were written into one cell.
LISTED = re.compile(r"\S\s*[;|]\s*\S")
#: What is reported of Base and of the calibrated probability.
FIGURES = ("accuracy", "mean_confidence", "ace", "ace_floor", "ace_floor_95", "brier", "auroc", "gain")


def calibrate_rows(
    rows: RowsAt,
    *,
    equivalence: Equivalence | str,
    linkage: str = "components",
    grader: Grader | None = None,
    risk: float | None = None,
    delta: float = 0.05,
    seed: int = 0,
    max_new_tokens: int | None = None,
    provenance: Provenance | None = None,
    recalibrator: Fitted | None = None,
    learn_temperature: bool = True,
) -> Calibration:
    """Learn the probability that an answer is right from the samples of labelled questions.

    `rows` is temperature → the same questions with `id`, `answers`, `samples`, `clusters` and the measures,
    clustered at each temperature by themselves. The first draws are those of the answer, with key None where
    they are under `recalibrator` or of an unknown temperature; where they are at T = 1, and unless
    `learn_temperature` is false, it comes from draws at another temperature if these gain more by one
    standard error. `equivalence` is what they were clustered with, for the record (its revision is unknown
    where only its name is given); `grader` decides whether the answer's one wording is right, by default the
    rules of spec section 7. `seed` is that of the folds and of what is kept apart.

    With `risk`, two in five of the questions (whole groups of them) are kept apart, and the loosest
    threshold is set on them whose error rate is shown to be at most `risk`, with probability 1 − `delta`.
    One question of each group counts there, since those of one group are not independent.

    FitError below 5 labelled questions, InputError if an id occurs twice or a row has another number of
    draws. A warning below 50; where all answers are right or all wrong; where all have one share.
    """
    first, labelled = next(iter(rows.items()))
    n = len(labelled)
    check_distinct(row.id for row in labelled)
    check_enough(n, of="to calibrate on")
    warn_if_few(n, of="to calibrate on")
    m = len(labelled[0].samples)
    for row in (row for rows_of in rows.values() for row in rows_of):
        if len(row.samples) != m:
            raise InputError(
                f"question {row.id!r} has {len(row.samples)} draws and others have {m}; a calibration is for "
                "one number of draws"
            )
    grader = grader or RuleGrader()
    answering = [t for t in rows if t == first or (first == 1.0 and learn_temperature)]
    features_at = [features_of({t: rows[t], **rows}) for t in answering]
    correct_at = [_grade(features, labelled, grader) for features in features_at]
    grader_name, grader_revision = grader_record(grader)
    ties = [question_ties(row.json) for row in labelled]
    groups = several(ties)
    apart = kept_apart(n, groups, seed) if risk is not None else np.zeros(n, dtype=bool)
    labels = [
        Labelled(features.values, correct, candidates_for(features)).part(~apart)
        for features, correct in zip(features_at, correct_at)
    ]
    learnt = _Learnt.from_labels(labels, None if groups is None else groups[~apart], seed)
    place = learnt.place
    answered, features, correct = answering[place], features_at[place], correct_at[place]
    answer_rows = rows[answered]
    problems = _problems(labelled, ties, groups, apart)
    first_lines = _to_say_first(answer_rows, correct[~apart], provenance)
    calibration = Calibration(
        map=learnt.map,
        further=_further(answer_rows, features, correct, ~apart, grader),
        m=m,
        temperature=answered,
        temperatures=tuple(
            t for t in rows if t and t != answered and _needs(learnt.map, answer_rows, answered, t)
        ),
        equivalence=equivalence if isinstance(equivalence, str) else address_of(equivalence),
        linkage=linkage,
        threshold=None,
        report=learnt.report(answering, int(apart.sum()), problems, first=tuple(first_lines)),
        max_new_tokens=max_new_tokens,
        provenance=provenance,
        equivalence_revision=None if isinstance(equivalence, str) else equivalence.revision,
        grader=grader_name,
        grader_revision=grader_revision,
        recalibrator=recalibrator,
        examples=_examples(answer_rows, features, correct),
    )
    if risk is None:
        return calibration
    scores, fitted_scores = (learnt.map.scores(part_of(features.values, part)) for part in (apart, ~apart))
    threshold = set_threshold(
        scores,
        correct[apart],
        risk,
        delta,
        fitted=(fitted_scores, learnt.out_of_fold),
        groups=None if groups is None else groups[apart],
        seed=seed,
    )
    return replace(calibration, threshold=threshold)


def _problems(
    rows: Sequence[Row], ties: Sequence[Ties], groups: Groups | None, apart: NDArray[np.bool_]
) -> Iterator[str]:
    """What looks wrong with the labelled rows, and with those `apart` for a threshold."""
    keys = Counter(tie for row_ties in ties for tie in row_ties if tie[0] == "question")
    repeated = sum(count for count in keys.values() if count > 1)
    if repeated:
        yield (
            f"{repeated} of {len(rows)} labelled questions are asked more than once: they count as fewer; "
            "take the copies out"
        )
    independent = int(apart.sum()) if groups is None else len(np.unique(groups[apart]))
    if independent < apart.sum():
        yield (
            f"of the {apart.sum()} questions kept apart some share a passage or group, which makes them "
            f"dependent: one of each group counts for the threshold, {independent} in all, and its promise "
            "is for questions of new groups, each as likely as another"
        )
    lists = [row for row in rows if len(row.answers) == 1 and LISTED.search(row.answers[0])]
    if lists:
        yield (
            f"{len(lists)} reference answers look like several in one ({lists[0].answers[0]!r}, id "
            f"{lists[0].id!r}): write them as a list, or right answers are graded as wrong"
        )


def _examples(
    rows: Sequence[Row], features: AnswerFeatures, correct: Floats
) -> tuple[Mapping[str, Any], ...]:
    """The first answer that is right, the first that is wrong, and the next ones up to three."""
    first = [int(np.argmax(correct == kind)) for kind in (1.0, 0.0) if kind in correct]
    chosen = sorted(list(dict.fromkeys([*first, *range(len(rows))]))[:3])
    return tuple(
        {
            "question": rows[i].question_or_empty,
            "answer": features.answers[i],
            "reference": rows[i].answers[0],
            "correct": bool(correct[i]),
        }
        for i in chosen
    )


def _needs(chosen: ProbabilityMap, rows: Sequence[Row], answered: float | None, temperature: float) -> bool:
    """Whether further draws are read, or settle ties: sharper ones where likelihoods are unknown."""
    ties = any(row.measured.tied and len(row.measured.confidences) == 1 for row in rows)
    read = any(name.endswith(f" at T={temperature:g}") for name in chosen.candidate.features)
    return read or (ties and temperature < (1.0 if answered is None else answered))


def _to_say_first(rows: Sequence[Row], correct: Floats, provenance: Provenance | None) -> Iterator[str]:
    """What a user should know before any figure, and what to do: a line each."""
    n, right = len(correct), int(correct.sum())
    helps = "give few-shot examples (--few-shot)"
    if right < HARDLY * n:
        yield f"the model is nearly always wrong ({right} of {n} are right): {helps}, or a larger model"
    differ = sum(len(row.clusters) == len(row.samples) for row in rows)
    if 2 * differ > len(rows):
        text = f"all draws differ on {differ} of {len(rows)} questions, so that shares say little"
        yield f"{text}: {helps}, or an equivalence model (--equivalence)"
    finished = [ended for row in rows if row.has("finished") for ended in row.finished]
    if 2 * finished.count(False) > len(finished):
        cut = f"{finished.count(False)} of {len(finished)} draws were cut at the token limit"
        yield f"{cut}: {helps} with short answers, or more tokens (--max-new-tokens)"
    if provenance is not None and not PromptConfig.from_description(provenance.prompt).few_shot:
        yield f"no few-shot examples were given: {helps}, or a model answers in sentences of its own"


def _grade(features: AnswerFeatures, rows: Sequence[Row], grader: Grader) -> Floats:
    answers = [(row.question_or_empty, [text], row.answers) for text, row in zip(features.answers, rows)]
    return np.array(
        grade_together(grader, lambda marks: [float(marks.grade(*answer).correct) for answer in answers])
    )


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


def _further(
    rows: Sequence[Row],
    features: AnswerFeatures,
    correct: Floats,
    fitted: NDArray[np.bool_],
    grader: Grader,
) -> float:
    """How often a further meaning is right where there is one and the answer is wrong: (k + 1) / (n + 2)."""
    wrong = np.flatnonzero(fitted & (correct == 0))
    further = []
    for i in map(int, wrong):
        row = rows[i]
        texts = [
            representative(row.samples, cluster, row.log_likelihoods)
            for k, cluster in enumerate(row.clusters)
            if k != features.meanings[i]
        ]
        if texts:
            further.append((row.question_or_empty, texts, row.answers))
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
    first: Labelled
    groups: Groups | None
    curve: tuple[Mapping[str, Any], ...]

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
        for part_size in SHARES:
            size = round(part_size * len(labels))
            if size < FEWEST_LABELS:
                continue
            above = []
            for _ in range(SUBSETS):
                part = rng.permutation(len(labels)) < size
                few = choose_map(part_of(values, part), labels[part], candidates, seed=seed, repeats=1)
                unused = part_of(values, ~part)
                above.append(_above(few.map.predict(unused), unused["E-SC"], labels[~part]))
            curve.append({"labels": size, "gain_above_base": float(np.mean(above))})
        curve.append({"labels": len(labels), "gain_above_base": _above(out, share, correct)})
        return cls(place, choices, share, out, correct, labels_at[0], groups, tuple(curve))

    def report(
        self, at: Sequence[float | None], apart: int, problems: Iterable[str], first: tuple[str, ...]
    ) -> CalibrationReport:
        """Figures beside those of Base, and what to be wary of: `problems` of the rows, and of the labels."""
        scores = [choice.score for choice in self.choices] if len(self.choices) > 1 else []
        calibrated, base = _figures(self.out_of_fold, self.correct), _figures(self.share, self.correct)
        if self.map.candidate.kind == "constant":  # then the share says what is likelier to be right
            calibrated["auroc"] = base["auroc"]
        report = CalibrationReport(
            n=len(self.correct),
            apart=apart,
            chosen=self.map.candidate.name,
            candidates=tuple(
                {
                    "name": score.candidate.name,
                    "gain": score.gain,
                    "above": score.above,
                    "standard_error": score.standard_error,
                }
                for score in self.choices[self.place].scores
            ),
            base=base,
            calibrated=calibrated,
            base_at_one=_figures(self.first.features["E-SC"], self.first.correct) if scores else None,
            temperatures=tuple(
                {"temperature": t, "gain": score.gain, "above": above, "standard_error": error}
                for t, score in zip(at, scores)
                for above, error in [paired_difference(score.gains, scores[0].gains, self.groups)]
            ),
            first=first,
            learning_curve=self.curve,
            warnings=(*problems, *self._problems()),
        )
        for problem in report.warnings:
            warnings.warn(problem, SemcalWarning, stacklevel=4)
        return report

    def _problems(self) -> list[str]:
        """What limits what could be learnt."""
        n, right = len(self.correct), int(self.correct.sum())
        problems = []
        if right in (0, n):
            problems.append(
                f"all {n} answers are {'right' if right else 'wrong'}, so that all get one "
                "probability; label more questions, or harder and easier ones"
            )
        elif min(right, n - right) < FEW:
            kind = "right" if right < n - right else "wrong"
            problems.append(
                f"only {min(right, n - right)} of {n} answers are {kind}, and a map takes {FEW} of each: all "
                "get one probability; label more questions, or harder and easier ones"
            )
        units = n if self.groups is None else len(np.unique(self.groups))
        if units < FOLDS and right not in (0, n):
            problems.append(
                f"the {n} labelled questions make only {units} groups, and a map takes {FOLDS}: all get one "
                "probability; label questions of more groups"
            )
        if np.ptp(self.share) == 0:
            problems.append(
                f"all {n} answers have the same share ({self.share[0]:g}), which tells none from another; "
                "see that the samples were drawn at a temperature above 0 and not copied"
            )
        return problems


def _above(p: Floats, share: Floats, correct: Floats) -> float:
    """By how much the gain of p is above that of the share."""
    return float(np.mean((share - correct) ** 2 - (p - correct) ** 2))


def _figures(p: Floats, correct: Floats) -> dict[str, float | None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)
        values = metrics.summary(p, correct)
    return {
        name: None if np.isnan(values[name]) else float(values[name]) for name in FIGURES if name in values
    }
