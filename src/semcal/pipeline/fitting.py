"""A recalibrator from labelled questions: one pass of the frozen model, then the fit (spec section 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semcal.engine.language_model import LanguageModel, Prompt
from semcal.errors import FitError, QuestionError, UsageError
from semcal.pipeline.feature_store import FeatureStore, Manifest
from semcal.pipeline.prompting import Asking
from semcal.pipeline.stored_fits import METHODS, check_method, fit_stored, mean_loss_of
from semcal.qa.datasets import Question, data_hash, load_questions
from semcal.qa.questions import group_ties, several
from semcal.recalibration import (
    CalibrationFeatures,
    Fitted,
    Provenance,
    TemperatureScaling,
    TrainingCallbacks,
    TrainingStore,
    check_enough,
    save_pretrained,
    warn_if_few,
)

__all__ = [
    "METHODS",
    "CalibrationSet",
    "Fit",
    "calibration_features",
    "check_method",
    "fit",
    "fit_stored",
    "mean_loss_of",
]


@dataclass(frozen=True)
class Fit:
    """A fitted recalibrator, what it was fitted on, and the prompt that goes with it.

    Attributes
    ----------
    recalibrator : TemperatureScaling, ATS or Platt
        Fitted.
    provenance : Provenance
        Model, prompt, data and versions.
    asking : Asking
        The few-shot examples that stood before every question.
    report : mapping
        What is known about the fit: losses before and after, standard error of T, steps.
    """

    recalibrator: Fitted
    provenance: Provenance
    asking: Asking
    report: Mapping[str, Any] = field(default_factory=dict)

    @property
    def temperature(self) -> float:
        """The fitted temperature of TS; UsageError for a method that has no single one."""
        if isinstance(self.recalibrator, TemperatureScaling):
            return self.recalibrator.temperature_
        raise UsageError(f"{self.recalibrator.method} has no single temperature")

    def save_pretrained(self, directory: str | Path) -> Path:
        """Write `directory`/calibration.json, which `semcal ask --recalibrator` reads."""
        return save_pretrained(self.recalibrator, directory, provenance=self.provenance)


@dataclass(frozen=True)
class CalibrationSet:
    """Labelled questions as a model reads them: prompts, and the token ids of their reference answers."""

    questions: tuple[Question, ...]
    prompts: tuple[Prompt, ...]
    answers: tuple[list[tuple[int, ...]], ...]

    @classmethod
    def of(
        cls,
        model: LanguageModel,
        questions: Sequence[Question],
        *,
        asking: Asking,
        on_bad_question: Callable[[QuestionError], None] | None = None,
        fitted_to: bool = True,
    ) -> CalibrationSet:
        """Encode questions, and leave out those that are too long for the model or that it cannot encode.

        Raises
        ------
        FitError
            If one has no reference answer, or fewer are left than a fit needs (of questions that are not
            `fitted_to`, none).
        QuestionError
            For the first question that with its longest answer does not fit the model, unless there is an
            `on_bad_question`, which then gets every such error.
        """
        _check_labelled(questions, fitted_to=fitted_to)
        read: list[tuple[Question, Prompt, list[tuple[int, ...]]]] = []
        bad: set[str] = set()

        def leave_out(error: QuestionError) -> None:
            if on_bad_question is None:
                raise error
            on_bad_question(error)
            bad.add(error.question_id)

        for one in questions:
            try:
                read.append((one, asking.prompts(model, [one])[0], asking.answers(model, one)))
            except QuestionError as error:
                leave_out(error)
        for misfit in model.invalid_prompts([prompt for _, prompt, _ in read], [given for *_, given in read]):
            leave_out(misfit)
        kept = [row for row in read if row[0].id not in bad]
        if not kept:
            raise FitError("none of the labelled questions fits the model; see the reasons above")
        if fitted_to:
            check_enough(len(kept), of="that fit the model")
        left, prompts, answers = zip(*kept)
        return cls(left, prompts, answers)

    def groups(self) -> NDArray[np.intp] | None:
        """The group of each question: those on one passage or with one value in the field `group`; None where
        each is its own.
        """
        return several(map(group_ties, self.questions))

    def manifest(self, model: LanguageModel, *, asking: Asking, whole: bool) -> Manifest:
        """What a store of the features will hold, and how large it will be."""
        return Manifest.of(
            model,
            self.prompts,
            self.answers,
            data_hash=data_hash(self.questions),
            prompt_hash=asking.hash(model),
            whole=whole,
        )

    def training_store(
        self, model: LanguageModel, folder: Path | None, *, asking: Asking, whole: bool
    ) -> TrainingStore | None:
        """Where the states of trainings on these questions are kept; None without a folder."""
        if folder is None:
            return None
        return TrainingStore(folder, asdict(self.manifest(model, asking=asking, whole=whole)))

    def provenance(
        self,
        model: LanguageModel,
        *,
        asking: Asking,
        data: str,
        seed: int,
        versions: Mapping[str, str | None],
    ) -> Provenance:
        """What a recalibrator that is fitted to these questions is valid for."""
        return Provenance(
            model=model.name,
            revision=model.revision,
            prompt=asking.describe(),
            prompt_hash=asking.hash(model),
            data=data,
            data_hash=data_hash(self.questions),
            n_questions=len(self.questions),
            seed=seed,
            versions=versions,
        )


def _check_labelled(questions: Sequence[Question], *, fitted_to: bool) -> None:
    if fitted_to:
        check_enough(len(questions))
    for question in questions:
        if not question.answers:
            raise FitError(
                f"question {question.id!r} has no reference answer; every calibration question needs one"
            )


def calibration_features(
    model: LanguageModel,
    labelled: CalibrationSet,
    *,
    asking: Asking,
    whole: bool = False,
    store: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> CalibrationFeatures:
    """Run the frozen model once over the reference answers, or read what an earlier run has kept.

    Parameters
    ----------
    whole : bool
        Whether the states of whole sequences are kept, as ATS needs them.
    store : Path, optional
        A folder for the states, mapped from there and resumed; in memory without.
    """
    if store is None:
        return model.features(labelled.prompts, labelled.answers, whole=whole, progress=progress)
    manifest = labelled.manifest(model, asking=asking, whole=whole)
    return FeatureStore(store, manifest).fill(model, labelled.prompts, labelled.answers, progress=progress)


def fit(
    model: LanguageModel,
    questions: Sequence[Question] | str | Path,
    *,
    method: str = "TS",
    solver: str | None = None,
    few_shot: Sequence[Question] = (),
    loss: str = "NLL",
    alpha: float | None = None,
    weight_decay: float = 0.0,
    learning_rate: float | None = None,
    seed: int = 0,
    store: Path | None = None,
    data: str | None = None,
    versions: dict[str, str | None] | None = None,
    on_bad_question: Callable[[QuestionError], None] | None = None,
    progress: Callable[[int], None] | None = None,
    on_step: Callable[[int, int], None] | None = None,
    keep: Path | None = None,
) -> Fit:
    """Fit a recalibrator to labelled questions.

    Parameters
    ----------
    model : LanguageModel
        The frozen model.
    questions : sequence of Question, or a file
        Labelled questions, 5 at least; a few hundred are enough for TS. All reference answers of a question
        count, with equal weights that add up to one question; with solver sgd one is drawn in each epoch.
    method : {"TS", "ATS", "Platt"}
        Which recalibrator.
    solver : {"exact", "sgd"}, optional
        exact for TS by default; the paper's schedule of gradient steps is sgd, the only one of the others.
    few_shot : sequence of Question
        Examples that stand before every question, while fitting and afterwards.
    loss : {"NLL", "SS"}
        Negative log-likelihood, or selective smoothing with its `alpha`.
    weight_decay : float
        Of sgd.
    learning_rate : float, optional
        Of sgd; by default the paper's, which needs many questions to get anywhere.
    seed : int
        Of sgd, and of the resampling behind the interval of T.
    store : Path, optional
        A folder for the hidden states of whole sequences, for sets that are too large for memory and for
        further fits by any method.
    data : str, optional
        Where the questions come from, for the record; the file's name by default.
    versions : dict, optional
        Package versions for the record.
    on_bad_question : callable, optional
        Gets the QuestionError of a question that is too long for the model, which is then left out; by
        default it is raised.
    progress : callable, optional
        Called with the number of questions that the model has read.
    on_step : callable, optional
        Called with the number of finished steps of sgd and of all steps.
    keep : Path, optional
        A folder for the state of a training by sgd: one that was killed goes on from there, to the same
        bytes. What lies there is not removed at the end.

    Returns
    -------
    Fit
        With `recalibrator`, `temperature` (TS) and `save_pretrained`.

    Raises
    ------
    FitError
        If there are fewer than 5 labelled questions, or the fit fails.

    Warns
    -----
    SemcalWarning
        Below 50 labelled questions.
    """
    check_method(method, solver, loss, alpha)
    if isinstance(questions, (str, Path)):
        data, questions = data or str(Path(questions).name), load_questions(questions, answers_needed=True)
    asking = Asking(tuple(few_shot))
    labelled = CalibrationSet.of(model, questions, asking=asking, on_bad_question=on_bad_question)
    warn_if_few(len(labelled.questions))
    whole = method == "ATS" or store is not None
    features = calibration_features(
        model, labelled, asking=asking, whole=whole, store=store, progress=progress
    )
    recalibrator, report = fit_stored(
        model,
        features,
        method=method,
        solver=solver,
        loss=loss,
        alpha=alpha,
        weight_decay=weight_decay,
        learning_rate=learning_rate,
        seed=seed,
        groups=labelled.groups(),
        callbacks=TrainingCallbacks(
            on_step, labelled.training_store(model, keep, asking=asking, whole=whole)
        ),
    )
    provenance = labelled.provenance(
        model, asking=asking, data=data or "questions given in Python", seed=seed, versions=versions or {}
    )
    return Fit(recalibrator, provenance, asking, {**report, "n_tokens": len(features.targets)})
