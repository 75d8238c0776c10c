"""Encoded labeled questions, and the provenance of fits to them (spec section 6)."""

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
    """Encoded labeled questions: prompts, and the token ids of their reference answers."""

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
        """Encode questions, and omit questions that are too long for the model or cannot be encoded.

        FitError if a question has no reference answer, or fewer than 5 questions are left (fewer than 1 if
        not `fitted_to`). QuestionErrors are passed to `on_bad_question`; without it the first is raised.
        """
        if fitted_to:
            check_enough(len(questions))
        for question in questions:
            if not question.answers:
                raise FitError(
                    f"questions: {question.id!r} has no reference answer. Add one to every labeled question"
                )
        read, bad = asking.read(model, questions)
        bad += model.invalid_prompts([prompt for _, prompt, _ in read], [answers for *_, answers in read])
        for error in bad:
            if on_bad_question is None:
                raise error
            on_bad_question(error)
        left_out = {error.question_id for error in bad}
        usable = [row for row in read if row[0].id not in left_out]
        if not usable:
            raise FitError("questions: the model can encode none of them. See the reasons above")
        if fitted_to:
            check_enough(len(usable), of="that fit the model")
        return cls(*zip(*usable))

    def groups(self) -> NDArray[np.intp] | None:
        """Return the group (passage or field `group`) of each question; None without groups."""
        return several(map(group_ties, self.questions))

    def manifest(self, model: LanguageModel, *, asking: PromptConfig, whole: bool) -> Manifest:
        """Return the manifest of the features of these questions."""
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
    """Return the provenance of a recalibrator or calibration from these questions, all of one template."""
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


def fit_features(
    model: LanguageModel,
    labelled: FitData,
    *,
    asking: PromptConfig,
    whole: bool = False,
    store: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> FitFeatures:
    """Run the frozen model once over the reference answers, or read the states that an earlier call stored.

    `whole` keeps the states of whole sequences, which ATS needs. `store` is a folder for the states, which
    are mapped from there; without it they stay in memory.
    """
    if store is None:
        return model.features(labelled.prompts, labelled.answers, whole=whole, progress=progress)
    from semcal.recalibration.feature_store import stored_features

    manifest = labelled.manifest(model, asking=asking, whole=whole)
    return stored_features(store, manifest, model, labelled.prompts, labelled.answers, progress=progress)
