"""The learned map of a calibration: its choice, its figures out of fold, and graded examples."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from semcal import metrics
from semcal.arrays import Floats
from semcal.calibration.calibration import GradedExample, LabeledAnswers
from semcal.calibration.features import NEVER, SHARES, AnswerFeatures
from semcal.calibration.report import (
    ONE_PROBABILITY,
    AtThreshold,
    CalibrationReport,
    CandidateScore,
    CurvePoint,
    LikeAnswers,
    TemperatureScore,
)
from semcal.errors import SemcalWarning, UndefinedWarning
from semcal.grading.grade import grade_together
from semcal.grading.rules import Grader
from semcal.metrics.frequencies import Groups
from semcal.metrics.probability_maps import (
    FEW,
    FOLDS,
    MOST,
    Labelled,
    MapChoice,
    ProbabilityMap,
    choose_answers,
    choose_map,
    paired_difference,
    part_of,
    predict_out_of_fold,
)
from semcal.rows import Row

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
        if np.ptp(self.share) == 0:
            yield (
                f"all {n} answers have the same share ({self.share[0]:g}), which does not distinguish them. "
                "Check that the temperature of the samples is above 0, and that they are not copies"
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
    """Return the gain of p minus the gain of the share."""
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
    """Return the first reference of a question, or the first that the answer matches.

    A judge reads all references at once. It is not asked again; its rules find the matching reference.
    """
    if not row.is_labelled:
        return None
    question, references = row.question_or_empty, row.answers if matches else ()
    marks: Grader = getattr(grader, "rules", grader) if hasattr(grader, "judge") else grader
    matching = grade_together(
        marks, lambda one: [other for other in references if one.grade(question, [text], [other]).correct]
    )
    return (*matching, *row.answers)[0]
