"""How a probability is learnt: its options, where answers come from, and which of them are right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from semcal.arrays import Floats, as_option
from semcal.calibration.calibrated import requested_features
from semcal.calibration.features import AnswerFeatures, ColumnFeature
from semcal.grading.grade import grade_answer, grade_together
from semcal.grading.rules import Grader, RuleGrader
from semcal.rows import AnswerKind, Row, RowsAt, as_answer_kind

#: The share of the labels that is kept apart for a threshold.
APART = 0.4


@dataclass(frozen=True)
class Learning:
    """How a probability is learnt, and the risk that a threshold keeps to; UsageError if a share is none.

    With `risk`, two in five of the questions (whole groups of them) are kept apart, and the loosest
    threshold is set on them whose error rate is shown to be at most `risk`, with probability 1 − `delta`.
    One question of each group counts there, since those of one group are not independent. Several risks get a
    threshold each, with probability 1 − `delta` for all together.
    """

    risk: float | Sequence[float] | None = None
    delta: float = 0.05
    seed: int = 0  # of the folds, and of what is kept apart
    grader: Grader = field(default_factory=RuleGrader)  # decides whether the answer's one wording is right
    learn_temperature: bool = True  # whether answers may come from other draws than those at T = 1
    answer: AnswerKind = "modal"  # which answer the probability is of
    columns: tuple[ColumnFeature, ...] = ()  # of the rows, as further features
    signals: tuple[str, ...] = ()  # as further features, too

    def __post_init__(self) -> None:
        for risk in self.risks:
            as_option(risk, "risk", "a share between 0 and 1, such as 0.1", low=0, high=1)
        as_answer_kind(self.answer)
        _ = requested_features(self.columns, self.signals)
        as_option(self.delta, "delta", "a share between 0 and 1, such as 0.05", low=0, high=1)

    @property
    def risks(self) -> tuple[float, ...]:
        """The risks that are asked for, the strictest first."""
        if isinstance(self.risk, Sequence) and not isinstance(self.risk, str):
            return tuple(sorted(set(self.risk)))
        return () if self.risk is None else (self.risk,)


def answering_temperatures(rows: RowsAt, learning: Learning) -> list[float | None]:
    """Return the temperatures that the answer may come from."""
    first = next(iter(rows))
    return [t for t in rows if t == first or (first == 1.0 and learning.learn_temperature)]


def grade_answers(features: AnswerFeatures, rows: Sequence[Row], learning: Learning) -> Floats:
    """Return whether each answer is right: what people say of one that is given, else by its references."""
    answered, kind = list(zip(rows, features.answers)), learning.answer
    return np.array(
        grade_together(
            learning.grader, lambda marks: [float(grade_answer(marks, *pair, kind)) for pair in answered]
        )
    )
