"""Structured answers of a service: sampled documents, the probabilities of their fields, and their grades."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semcal.calibration.fields import FieldCalibration, FieldStep, is_right
from semcal.data.question import Question
from semcal.errors import QuestionError
from semcal.fields.rows import DOCUMENT, add_fields, grade_fields
from semcal.files import dumps
from semcal.models.clustering import ClusterConfig
from semcal.models.equivalence import Equivalence
from semcal.models.prompting import PromptConfig
from semcal.models.protocols import AnyRecalibrator, Sampler
from semcal.models.sample import SampleStep, Sampling
from semcal.results import Answer
from semcal.rows import AnswerKind, Row, failures_of
from semcal.steps import WorkerState


@dataclass(frozen=True)
class DocumentResults:
    """The answers to questions whose answers are documents, as `Results` has other answers."""

    answers: Sequence[Answer]
    failures: Mapping[str, QuestionError]

    def __iter__(self) -> Iterator[Answer]:
        return iter(self.answers)

    @property
    def rows_at(self) -> Mapping[None, Sequence[Row]]:
        """The rows of the answers."""
        return {None: [answer.row for answer in self.answers]}


class DocumentSource:
    """Stand in for `SemanticUQ` if the calibration is of the fields of structured answers."""

    def __init__(
        self, model: Sampler, equivalence: Equivalence, calibration: FieldCalibration, sampling: Sampling
    ) -> None:
        self.model, self.equivalence = model, equivalence
        self.calibration, self.sampling, self.m = calibration, sampling, calibration.m
        self.recalibrators: dict[float | None, AnyRecalibrator] = {None: sampling.recalibrators[0]}

    @property
    def asking(self) -> PromptConfig:
        """The prompt settings."""
        return self.sampling.asking

    def answer_all(self, questions: Sequence[Question], *, kind: AnswerKind) -> DocumentResults:
        """Sample documents; a given document stands in the question's `extra`."""
        step = SampleStep(self.sampling, full=True, answer="modal" if kind == "given" else kind)
        state = WorkerState(self.model, self.equivalence)
        rows = step([Row.of(question) for question in questions], state, lambda _: None)
        failures = failures_of(rows)
        # the origin of the samples was checked when the service started, and by the coverage of the request
        sampled = [row.without("sampled_by") for row in rows if row.id not in failures]
        if kind == "given":
            given = {question.id: question.extra["answer"] for question in questions}
            sampled = [row.set(answer=given[row.id]) for row in sampled]
        return DocumentResults(self.read(sampled), failures)

    def read(self, rows: Sequence[Row]) -> list[Answer]:
        """Return the documents of samples, with the probabilities of their fields, as `semcal ask` does."""
        cluster = ClusterConfig(self.equivalence, self.calibration.linkage)
        return [self._answer(row) for row in FieldStep(self.calibration, cluster)(rows)]

    def _answer(self, row: Row) -> Answer:
        document, is_missing = row[DOCUMENT], row["answer"] is None
        return Answer(
            id=row.id,
            question=row.question,
            text=None if is_missing else dumps(row["answer"]),
            confidence=document["probability"],
            measure="Calibrated",
            abstained=None if document["accepted"] is None else not document["accepted"],
            threshold=self.calibration.limit,
            entropy=None,
            meanings=(),
            by_measure={},
            row=row,
            answer_kind=self.calibration.answer_kind,
            calibration=self.calibration.id,
        )


def is_correct(document: str, reference: Mapping[str, Any], calibration: FieldCalibration) -> bool:
    """Return whether all labeled fields of a logged document are correct.

    InputError if the reference is invalid.
    """
    row = Row({"id": "", "samples": [document], "answer": document, "answers": reference})
    (graded,) = add_fields([row], None, calibration.parsed, "given")
    return is_right(grade_fields(graded, calibration.parsed), calibration.fields)
