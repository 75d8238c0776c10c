"""Labelled questions as a model reads them, and the origin of what is fitted to them (spec section 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from semcal.data.question import Question, data_hash, group_ties, several
from semcal.errors import FitError, QuestionError
from semcal.models.prompting import PromptConfig
from semcal.models.protocols import AnswerReader, LanguageModel, Prompt, Sampler
from semcal.recalibration.files import Provenance
from semcal.recalibration.records import check_enough

if TYPE_CHECKING:
    from semcal.models.features import FitFeatures
    from semcal.recalibration.feature_store import Manifest


@dataclass(frozen=True)
class FitData:
    """Labelled questions as a model reads them: prompts, and the token ids of their reference answers."""

    questions: tuple[Question, ...]
    prompts: tuple[Prompt, ...]
    answers: tuple[list[tuple[int, ...]], ...]

    @classmethod
    def of(
        cls,
        model: AnswerReader,
        questions: Sequence[Question],
        *,
        asking: PromptConfig,
        on_bad_question: Callable[[QuestionError], None] | None = None,
        fitted_to: bool = True,
    ) -> FitData:
        """Encode questions, and leave out those that are too long for the model or that it cannot encode.

        FitError if one has no reference answer, or fewer are left than a fit needs (none, where the questions
        are not `fitted_to`). QuestionErrors go to `on_bad_question`; without it the first is raised.
        """
        _check_labelled(questions, fitted_to=fitted_to)
        read, bad = asking.read(model, questions)
        bad += model.invalid_prompts([prompt for _, prompt, _ in read], [answers for *_, answers in read])
        for error in bad:
            if on_bad_question is None:
                raise error
            on_bad_question(error)
        left_out = {error.question_id for error in bad}
        usable = [row for row in read if row[0].id not in left_out]
        if not usable:
            raise FitError("none of the labelled questions fits the model; see the reasons above")
        if fitted_to:
            check_enough(len(usable), of="that fit the model")
        return cls(*zip(*usable))

    def groups(self) -> NDArray[np.intp] | None:
        """The group (passage, or value of the field `group`) of each question; None where each is its own."""
        return several(map(group_ties, self.questions))

    def manifest(self, model: LanguageModel, *, asking: PromptConfig, whole: bool) -> Manifest:
        """What the stored features will hold, and their size."""
        from semcal.recalibration.feature_store import Manifest

        return Manifest.of(
            model,
            self.prompts,
            self.answers,
            data_hash=data_hash(self.questions),
            prompt_hash=asking.hash(model),
            whole=whole,
        )


def provenance_of(
    model: Sampler,
    questions: Sequence[Question],
    *,
    asking: PromptConfig,
    data: str,
    seed: int,
    versions: Mapping[str, str | None],
    server: Mapping[str, Any] | None = None,
) -> Provenance:
    """What a recalibrator or calibration made with these questions, all of one template, is valid for."""
    asking, _ = asking.settled(questions)
    other_names = sorted(getattr(getattr(model, "client", None), "other_names", ()))
    return Provenance(
        model=model.name,
        revision=model.revision,
        prompt=asking.describe(),
        prompt_hash=asking.hash(model),
        data=data,
        data_hash=data_hash(questions),
        n_questions=len(questions),
        seed=seed,
        versions=versions,
        server={**(server or {}), **({"answered_as": other_names} if other_names else {})},
    )


def _check_labelled(questions: Sequence[Question], *, fitted_to: bool) -> None:
    if fitted_to:
        check_enough(len(questions))
    for question in questions:
        if not question.answers:
            raise FitError(
                f"question {question.id!r} has no reference answer; every labeled question needs one"
            )


def fit_features(
    model: LanguageModel,
    labelled: FitData,
    *,
    asking: PromptConfig,
    whole: bool = False,
    store: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> FitFeatures:
    """Run the frozen model once over the reference answers, or read what an earlier call has stored.

    `whole` keeps the states of whole sequences, as ATS needs them. `store` is a folder that they are written
    to and mapped from; without it they stay in memory.
    """
    if store is None:
        return model.features(labelled.prompts, labelled.answers, whole=whole, progress=progress)
    from semcal.recalibration.feature_store import stored_features

    manifest = labelled.manifest(model, asking=asking, whole=whole)
    return stored_features(store, manifest, model, labelled.prompts, labelled.answers, progress=progress)
