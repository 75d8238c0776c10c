"""The report of a calibration: candidates, choice, figures, problems, and sentences about them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from semcal import metrics
from semcal.arrays import Floats
from semcal.calibration.features import MOST_LACKING, NEVER, SHARES, AnswerFeatures, lacking_share
from semcal.errors import InputError, UndefinedWarning, shown
from semcal.metrics.probability_maps import MOST, Labelled
from semcal.models.equivalence import Equivalence, ExactMatch, count_invalid
from semcal.rows import Row
from semcal.text.normal_form import normal_form

Share = Annotated[float, Field(ge=0, le=1)]
LabelCount = Annotated[int, Field(ge=0)]
#: Warnings with these words explain why no map was learned.
ONE_PROBABILITY = "all get one probability"


@dataclass(frozen=True)
class CandidateScore:
    """The cross-validated gain of a candidate map."""

    name: str
    gain: float
    above: float  # the gain minus the gain without a map
    standard_error: float
    weight: Share = 0.0  # in the weighted mean of maps


@dataclass(frozen=True)
class DrawsPoint:
    """The cross-validated gain with the first m samples at each temperature."""

    m: int
    gain: float
    above: float  # the gain minus the gain with all samples
    standard_error: float


@dataclass(frozen=True)
class LikeAnswers:
    """Labeled questions with similar probabilities out of fold (shares, if the map is a constant)."""

    low: Share
    high: Share
    n: LabelCount
    right: LabelCount


@dataclass(frozen=True)
class AtThreshold:
    """Labeled questions answered at a threshold, out of fold (by shares, if the map is a constant)."""

    threshold: Share
    answered: LabelCount
    wrong: LabelCount
    coverage: Share  # answered / all questions that the map was fitted to, and those without an answer


@dataclass(frozen=True)
class AddedLabels:
    """Labels from production, and their use in a calibration that was learned again."""

    fit: LabelCount  # used to fit the map
    apart: LabelCount  # audited, used for the threshold
    unlabelled: LabelCount  # audited replies without a label
    left_out: Mapping[str, LabelCount]  # reason → number of labels that are not used
    assumed_wrong: LabelCount = 0  # used for the threshold without a label, and counted as wrong

    @property
    def labeled(self) -> int:
        """The number of labels that were used."""
        return self.fit + self.apart - self.assumed_wrong


@dataclass(frozen=True)
class MovedFrom:
    """The calibration that was moved to new data, and its figures there beside learning from scratch."""

    calibration: str  # the id
    intercept: float  # a in a + b logit p
    slope: float  # b
    unmoved: Mapping[str, float | None]  # accuracy, mean_confidence, ace, … of its probabilities
    scratch: Mapping[str, float | None]  # of maps learned from the new labels alone, out of fold

    @property
    def in_words(self) -> str:
        """The change of the probability, in a sentence."""
        return (
            f"Moved from the calibration {self.calibration}: logit p became {self.intercept:.2f} + "
            f"{self.slope:.2f} logit p."
        )


@dataclass(frozen=True)
class CalibrationReport:
    """The candidates, the chosen map and its figures; calibrated figures are out of fold."""

    n: int  # labeled questions that the map was fitted to
    apart: int  # labeled questions held out for the threshold
    chosen: str
    candidates: tuple[CandidateScore, ...]
    base: Mapping[str, float | None]  # accuracy, mean_confidence, ace, …; None if undefined
    calibrated: Mapping[str, float | None]
    warnings: tuple[str, ...] = ()
    #: Further labeled questions, whose most frequent meaning is "no answer". All are wrong.
    no_answer: LabelCount = 0
    no_answer_samples: LabelCount = 0  # of all labeled questions, at the temperature of the answer
    base_at_one: Mapping[str, float | None] | None = None  # at T = 1, if other temperatures were tried
    first: tuple[str, ...] = ()  # a suggestion of labels, and samples that are none of them
    like: tuple[LikeAnswers, ...] = ()  # ascending; all labeled questions that the map was fitted to
    draws_curve: tuple[DrawsPoint, ...] = ()  # if requested; the last point is for all samples
    added: AddedLabels | None = None  # included in `n` and `apart`
    at_thresholds: tuple[AtThreshold, ...] = ()  # ascending; without a guarantee for other questions
    moved: MovedFrom | None = None  # if a calibration was moved to new data
    base_name: str = "E-SC"  # the confidence that Base is: the share of samples, or a column of scores

    @property
    def base_in_words(self) -> str:
        """The confidence that Base is, in words."""
        return "the share of samples" if self.base_name == "E-SC" else f"the score {self.base_name!r}"

    def like_answers(self, score: float) -> LikeAnswers | None:
        """Return the labeled questions whose scores are the nearest to this one; None if there are none."""
        return min(self.like, key=lambda one: max(one.low - score, score - one.high, 0.0), default=None)

    @property
    def reference(self) -> str:
        """The probability that gains are compared with: Base, or one for all if Base is no probability."""
        return "one probability for all answers" if self.base.get("gain") is None else self.base_in_words

    @property
    def why(self) -> str:
        """The choice of the map, with its lead over the alternatives, in a sentence or two."""
        if self.moved is not None:
            return self.moved.in_words
        if self.chosen.startswith("constant"):
            p = (sum(one.right for one in self.like) + 1) / (self.n + 2)
            reason = next((one for one in self.warnings if ONE_PROBABILITY in one), None)
            usual = f"No map is better than one probability for all answers, {p:.3f}"
            why = usual if reason is None else f"All answers have the probability {p:.3f}: {reason}"
            return f"{why}. Answers are ordered by {self.base_in_words}, which thresholds are compared with."
        chosen = next(candidate for candidate in self.candidates if candidate.name == self.chosen)
        n_maps = sum(candidate.weight > 0 for candidate in self.candidates)
        averaged = ""
        if n_maps > 1:
            averaged = (
                f" Probabilities are the mean of {n_maps} maps, weighted by their gain; this map has the "
                f"weight {chosen.weight:.2f}."
            )
        if self.chosen.startswith("none"):
            return f"The probability is {self.base_in_words}, as good as any map that was learned.{averaged}"
        return (
            f"The probability comes from the map {self.chosen}. Its cross-validated gain is "
            f"{chosen.above:+.3f} ± {chosen.standard_error:.3f} above the gain of {self.reference}.{averaged}"
        )

    @property
    def fewer_samples(self) -> str | None:
        """The smallest number of samples that loses at most one standard error of gain, in a sentence."""
        if not any(point.m > 1 for point in self.draws_curve[:-1]):
            return None
        at_hand, m = self.draws_curve[-1], enough_samples(self.draws_curve)
        if m == at_hand.m:
            return f"With fewer than {m} samples, the gain falls by more than one standard error."
        enough = next(point for point in self.draws_curve if point.m == m)
        by = f"{abs(enough.above):.3f} ± {enough.standard_error:.3f}"
        side = "higher" if enough.above > 0 else "lower"
        return f"With {m} samples (--m {m}), the gain is {by} {side} than with {at_hand.m}."


def enough_samples(curve: Sequence[DrawsPoint]) -> int:
    """Return the smallest number of samples, above 1, that loses at most one standard error of gain.

    >>> enough_samples([DrawsPoint(2, 0.3, -0.04, 0.01), DrawsPoint(5, 0.33, -0.01, 0.01)])
    5
    """
    return next(point.m for point in curve if point.m > 1 and point.above >= -point.standard_error)


# ---- Figures ---------------------------------------------------------------------------------------------

#: Labeled questions with similar scores: at least so many in a group, in at most so many groups.
LIKE, MOST_LIKE = 20, 10
#: Thresholds for which the report counts the answered questions.
THRESHOLDS = (*(tenths / 10 for tenths in range(10)), 0.95)
#: The figures that are reported of Base and of the calibrated probability.
FIGURES = ("accuracy", "mean_confidence", "ace", "ace_floor", "ace_floor_95", "brier", "auroc", "gain")


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


# ---- Problems of labeled rows, and advice ------------------------------------------------------------------

#: Labels of a set: at most so many, each the reference of at least so many questions.
MOST_LABELS, FEWEST_QUESTIONS = 8, 5


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


def problems_of_features(features: AnswerFeatures) -> Iterator[str]:
    """Yield requested features that are left out."""
    for name in features.optional:
        if (share := lacking_share(features, name)) > MOST_LACKING:
            yield f"{100 * share:.0f}% of the questions have no {name!r}, which is left out"


def check_references(row: Row, among: ExactMatch) -> None:
    """Raise InputError for a reference that is not one of the labels."""
    references = row.answers if row.is_labelled else ()
    if unknown := [answer for answer in references if not among.form(answer)]:
        labels = ", ".join(among.labels)
        raise InputError(f"'answers': the reference {shown(unknown[0])} is not one of the labels {labels}")


def problems_of_labels(rows: Sequence[Row], equivalence: Equivalence | str) -> Iterator[str]:
    """Yield the number of samples that are none of the labels; InputError for such a reference."""
    if not isinstance(equivalence, ExactMatch):
        if suggestion := suggest_labels(row.answers for row in rows if row.is_labelled):
            yield suggestion
        return
    if not equivalence.labels:
        return
    for row in rows:
        try:
            check_references(row, equivalence)
        except InputError as error:
            raise row.error(str(error)) from None
    texts = [text for row in rows for text in row.texts]
    if invalid := count_invalid(equivalence, texts):
        labels = ", ".join(equivalence.labels)
        yield f"{invalid} of {len(texts)} samples are none of the labels {labels}, and count as no answer"


def suggest_labels(references: Iterable[Sequence[str]]) -> str | None:
    """Suggest --answers-among if the references of a set of questions are few strings.

    >>> suggest_labels([["Yes"], ["no"]] * 10)
    "the references of 20 questions are 2 labels. Pass --answers-among 'Yes,no'...
    >>> suggest_labels([["Yes"], ["Lima"]]) is None
    True
    """
    counts, spelled = Counter[str](), dict[str, str]()
    for answers in references:
        forms = {normal_form(answer): answer for answer in reversed(answers)}
        counts.update(forms.keys())
        spelled |= {form: text for form, text in forms.items() if form not in spelled}
        if len(forms) > 1 or len(counts) > MOST_LABELS:
            return None
    if (
        len(counts) < 2
        or min(counts.values()) < FEWEST_QUESTIONS
        or any("," in text for text in spelled.values())
    ):
        return None
    return (
        f"the references of {counts.total()} questions are {len(counts)} labels. Pass --answers-among "
        f"{shown(','.join(spelled.values()))} to compare answers with these labels only"
    )
