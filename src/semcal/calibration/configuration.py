"""Settings of a calibration: answers, features, signals, risks and grader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from semcal.arrays import Floats, as_option
from semcal.calibration.features import AnswerFeatures, ColumnFeature, Feature
from semcal.calibration.signals import signals_named
from semcal.errors import UsageError, shown
from semcal.grading.grade import grade_answer, grade_together
from semcal.grading.rules import Grader
from semcal.rows import AnswerKind, Row, RowsAt, as_answer_kind

#: Share of the labels that is held out for a threshold, if not all of them test it.
APART = 0.4


@dataclass(frozen=True, init=False)
class CalibrationConfig:
    """Settings for learning the probability that an answer is correct, and the risks of thresholds.

    Attributes
    ----------
    answer : {"modal", "greedy", "given"}
        The answer that the probability is for: the most frequent meaning of the samples, the model's answer
        at T = 0, or the `answer` of each row, from any program.
    features : sequence of str
        Numeric columns of the rows as further features: "NAME", or "NAME:falling" if larger values never
        raise the probability.
    signals : sequence of {"self-assessment", "p-true", "verbalised", "token-scores", "question-probe"}
        Statements of the model about its answer as further features (`semcal.calibration.signals`).
    risks : float or sequence of float
        Largest allowed shares of wrong answers among the answers above a threshold. Fewer than 1,000 labeled
        questions (500 if they also choose the temperature of the answer) all test the thresholds, in the
        order of the share of samples; of more, two in five, in whole groups, are held out for this.
    delta : float
        Probability that any of the risks is exceeded.
    grader : Grader, {"rules", "exact", "letter", "nli"} or "judge:openai:URL#MODEL", optional
        Decides whether an answer is correct: by default the rules, or equality if answers are labels.
    score : str, optional
        Numeric column of rows that is calibrated in place of the share of samples: "NAME", whose direction is
        learned, "NAME:rising" or "NAME:falling". By default `probability` or `score` of rows without samples.

    Raises
    ------
    UsageError
        If a share is not between 0 and 1, if an answer kind or signal is unknown, or if two features have
        one name.

    Examples
    --------
    >>> CalibrationConfig(risks=[0.2, 0.1], features=["length:falling"]).risks
    (0.1, 0.2)
    """

    answer: AnswerKind
    features: tuple[ColumnFeature, ...]
    signals: tuple[str, ...]
    risks: tuple[float, ...]  # the smallest first
    delta: float
    grader: Grader | str | None
    score: str | None

    def __init__(
        self,
        answer: AnswerKind = "modal",
        features: Sequence[str | ColumnFeature] = (),
        signals: Sequence[str] = (),
        risks: float | Sequence[float] = (),
        delta: float = 0.05,
        grader: Grader | str | None = None,
        score: str | None = None,
    ) -> None:
        columns = (one if isinstance(one, ColumnFeature) else ColumnFeature.parse(one) for one in features)
        as_option(delta, "delta", "a share between 0 and 1, such as 0.05", low=0, high=1)
        shares = risks if isinstance(risks, Sequence) and not isinstance(risks, str) else (risks,)
        for risk in shares:
            as_option(risk, "risk", "a share between 0 and 1, such as 0.1", low=0, high=1)
        fields = {
            "answer": as_answer_kind(answer),
            "features": tuple(columns),
            "signals": tuple(signals),
            "risks": tuple(sorted(set(shares))),
            "delta": delta,
            "grader": grader,
            "score": score,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        _ = self.requested

    @property
    def requested(self) -> list[Feature]:
        """The features of columns and signals."""
        return requested_features(self.features, self.signals)


def requested_features(columns: Sequence[ColumnFeature], signals: Sequence[str]) -> list[Feature]:
    """Return the features of columns and signals; UsageError if two have one name."""
    features = [column.feature for column in columns]
    features += [feature for signal in signals_named(signals) for feature in signal.features]
    names = [feature.name for feature in features]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"feature: {shown(name)} is given twice. Rename the column")
    return features


def answering_temperatures(rows: RowsAt, *, fixed: bool = False) -> list[float | None]:
    """Return the temperatures that the answer may come from: only the first if it is `fixed` or not 1."""
    first = next(iter(rows))
    return [first] if fixed or first != 1.0 else list(rows)


def grade_answers(features: AnswerFeatures, rows: Sequence[Row], grader: Grader, kind: AnswerKind) -> Floats:
    """Return whether each answer is correct, by people's verdict on a given answer, else by references."""
    answered = list(zip(rows, features.answers))
    return np.array(
        grade_together(grader, lambda marks: [float(grade_answer(marks, *pair, kind)) for pair in answered])
    )
