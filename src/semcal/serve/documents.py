"""Structured answers of a service: sampled documents with their fields, and their grades."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from semcal.calibration.fields import FieldCalibration, is_right
from semcal.data.question import Question
from semcal.errors import QuestionError
from semcal.fields.rows import add_fields, grade_fields
from semcal.models.clustering import ClusterConfig
from semcal.models.equivalence import Equivalence
from semcal.models.prompting import PromptConfig
from semcal.models.protocols import AnyRecalibrator, Sampler
from semcal.models.sample import SampleStep, Sampling
from semcal.results import FieldResults, judge_documents
from semcal.rows import AnswerKind, Row, failures_of
from semcal.steps import WorkerState


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

    def answer_all(self, questions: Sequence[Question], *, kind: AnswerKind) -> FieldResults:
        """Sample documents; a given document stands in the question's `extra`, and stays in its row."""
        step = SampleStep(self.sampling, full=True, answer="greedy" if kind == "greedy" else "modal")
        state = WorkerState(self.model, self.equivalence)
        rows = step([Row.of(question) for question in questions], state, lambda _: None)
        failures = failures_of(rows)
        # the origin of the samples was checked when the service started, and by the coverage of the request
        sampled = [row.without("sampled_by") for row in rows if row.id not in failures]
        return self.read(sampled, failures)

    def read(self, rows: Sequence[Row], failures: Mapping[str, QuestionError] | None = None) -> FieldResults:
        """Return the documents of samples, with the probabilities of their fields, as `semcal ask` does."""
        cluster = ClusterConfig(self.equivalence, self.calibration.linkage)
        return judge_documents(rows, self.calibration, cluster, failures)


def is_correct(document: str, reference: Mapping[str, Any], calibration: FieldCalibration) -> bool:
    """Return whether all labeled fields of a logged document are correct.

    InputError if the reference is invalid.
    """
    row = Row({"id": "", "samples": [document], "answer": document, "answers": reference})
    (graded,) = add_fields([row], None, calibration.parsed, "given")
    return is_right(grade_fields(graded, calibration.parsed), calibration.fields)
