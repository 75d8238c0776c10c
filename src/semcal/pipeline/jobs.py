"""Blocks of questions as jobs that any process can do: it holds the models, a job brings the rest along."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from semcal.pipeline.executor import Progress
from semcal.pipeline.fitting import Fit, fit
from semcal.pipeline.prompting import Asking
from semcal.pipeline.sample import sample_questions
from semcal.pipeline.worker_state import WorkerState
from semcal.qa.datasets import Question
from semcal.recalibration import AnyRecalibrator, Greedy

__all__ = ["FitJob", "IdentifyJob", "Identity", "MethodsJob"]

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class MethodsJob:
    """Rows of questions with answers sampled under several methods: all under the first, then the next.

    The greedy answer to each question is drawn on the way and stands in each of its rows as `greedy`.

    Attributes
    ----------
    questions, asking, m, seed, max_new_tokens
        As in `semcal.pipeline.sample.sample_questions`.
    methods : mapping of str to Recalibrator or ATS
        Rows under each have its name as `method`.
    """

    questions: tuple[Question, ...]
    methods: Mapping[str, AnyRecalibrator]
    asking: Asking
    m: int
    seed: int
    max_new_tokens: int

    def __call__(self, state: WorkerState, progress: Progress) -> Rows:
        """Sample."""
        found = sample_questions(
            state.model,
            self.questions,
            recalibrators=[*self.methods.values(), Greedy()],
            asking=self.asking,
            m=self.m,
            seed=self.seed,
            max_new_tokens=self.max_new_tokens,
            progress=progress,
        )
        greedy = [one.draws[0].text for one in found.pop()]
        return [
            {**question.row(), "method": method, **sampled.fields(), "greedy": text}
            for method, rows in zip(self.methods, found)
            for question, sampled, text in zip(self.questions, rows, greedy)
        ]


@dataclass(frozen=True)
class FitJob:
    """A fit of TS by its exact solver."""

    questions: tuple[Question, ...]
    asking: Asking
    loss: str
    alpha: float | None
    data: str
    versions: Mapping[str, str | None]

    def __call__(self, state: WorkerState, progress: Progress) -> Fit:
        """Fit."""
        return fit(
            state.model,
            self.questions,
            few_shot=self.asking.few_shot,
            loss=self.loss,
            alpha=self.alpha,
            data=self.data,
            versions=dict(self.versions),
            progress=progress,
        )


@dataclass(frozen=True)
class Identity:
    """What results depend on of what a process holds.

    Attributes
    ----------
    model, revision : str
        Of the language model.
    prompt : str
        Hash of how it is asked.
    equivalence, equivalence_revision : str
        Of what decides which answers mean the same.
    """

    model: str
    revision: str
    prompt: str
    equivalence: str
    equivalence_revision: str


@dataclass(frozen=True)
class IdentifyJob:
    """Says which models a process holds, for one that holds none."""

    asking: Asking

    def __call__(self, state: WorkerState, _: Progress) -> Identity:
        """Identify."""
        model, judge = state.model, state.equivalence
        return Identity(model.name, model.revision, self.asking.hash(model), judge.name, judge.revision)
