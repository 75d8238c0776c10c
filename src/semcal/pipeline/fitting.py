"""A temperature from labelled questions: one pass of the frozen model, then the exact solve (spec 6)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from semcal.engine.language_model import LanguageModel
from semcal.errors import FitError, QuestionError
from semcal.pipeline.prompting import Asking
from semcal.qa.datasets import Question, load_questions
from semcal.recalibration import Provenance, Suffixes, TemperatureScaling, save_pretrained
from semcal.recalibration.temperature import Batch
from semcal.records import dumps

__all__ = ["Fit", "calibration_features", "data_hash", "fit", "fit_features"]

#: Answer positions whose logits are held at once.
POSITIONS = 2048


@dataclass(frozen=True)
class Fit:
    """A fitted recalibrator, what it was fitted on, and the prompt that goes with it.

    Attributes
    ----------
    recalibrator : TemperatureScaling
        Fitted: `recalibrator.temperature_`.
    provenance : Provenance
        Model, prompt, data and versions.
    asking : Asking
        The few-shot examples that stood before every question.
    """

    recalibrator: TemperatureScaling
    provenance: Provenance
    asking: Asking

    @property
    def temperature(self) -> float:
        """The fitted temperature."""
        return self.recalibrator.temperature_

    def save_pretrained(self, directory: str | Path) -> Path:
        """Write `directory`/calibration.json, which `semcal ask --recalibrator` reads."""
        return save_pretrained(self.recalibrator, directory, provenance=self.provenance)


def data_hash(questions: Sequence[Question]) -> str:
    """Hash of ids, questions, passages and reference answers, in order."""
    content = [[q.id, q.question, q.context, list(q.answers)] for q in questions]
    return hashlib.sha256(dumps(content).encode()).hexdigest()[:32]


def calibration_features(
    model: LanguageModel,
    questions: Sequence[Question],
    *,
    asking: Asking,
    on_bad_question: Callable[[QuestionError], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[Suffixes, list[Question]]:
    """Run the frozen model once over the reference answers of the questions.

    Returns
    -------
    Suffixes and list of Question
        And the questions that they belong to: all but those that went to `on_bad_question`.

    Raises
    ------
    FitError
        If there is no question, or one has no reference answer.
    QuestionError
        For a question that with its longest answer does not fit the model, before any is run; unless
        there is an `on_bad_question`, which then gets it.
    """
    if not questions:
        raise FitError("there are no labelled questions to fit a temperature to")
    for question in questions:
        if not question.answers:
            raise FitError(
                f"question {question.id!r} has no reference answer; every calibration question needs one"
            )
    prompts = asking.prompts(model, questions)
    encoded = [(q, prompt, asking.answers(model, q)) for q, prompt in zip(questions, prompts)]
    while encoded:
        kept, prompts, answers = map(list, zip(*encoded))
        try:
            return model.features(prompts, answers, progress=progress), kept
        except QuestionError as error:
            if on_bad_question is None:
                raise
            on_bad_question(error)
            encoded = [one for one in encoded if one[0].id != error.question_id]
    raise FitError("none of the labelled questions fits the model; see the reasons above")


def fit_features(
    model: LanguageModel,
    features: Suffixes,
    *,
    loss: str = "NLL",
    alpha: float | None = None,
    questions: torch.Tensor | None = None,
) -> TemperatureScaling:
    """Fit TS to stored features, or to some `questions` (indices) of them.

    The head of the model turns them into logits a few at a time.
    """
    weights, rows, targets = features.token_weights(), features.predicting_rows(), features.targets
    if questions is not None:
        kept = torch.isin(features.answer_question[features.token_answer()], questions)
        weights, rows, targets = weights[kept], rows[kept], targets[kept]

    def batches() -> Iterator[Batch]:
        for start in range(0, len(targets), POSITIONS):
            part = slice(start, start + POSITIONS)
            logits = model.logits(features.states[rows[part]])
            yield logits, targets[part].to(logits.device), weights[part].to(logits.device)

    return TemperatureScaling(loss=loss, alpha=alpha).fit_batches(batches)


def fit(
    model: LanguageModel,
    questions: Sequence[Question] | str | Path,
    *,
    few_shot: Sequence[Question] = (),
    loss: str = "NLL",
    alpha: float | None = None,
    data: str | None = None,
    versions: dict[str, str | None] | None = None,
    on_bad_question: Callable[[QuestionError], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Fit:
    """Fit one temperature to labelled questions.

    Parameters
    ----------
    model : LanguageModel
        The frozen model.
    questions : sequence of Question, or a file
        Labelled questions; a few hundred are enough. All reference answers of a question count, with
        equal weights that add up to one question.
    few_shot : sequence of Question
        Examples that stand before every question, while fitting and afterwards.
    loss : {"NLL", "SS"}
        Negative log-likelihood, or selective smoothing with its `alpha`.
    data : str, optional
        Where the questions come from, for the record; the file's name by default.
    versions : dict, optional
        Package versions for the record.
    on_bad_question : callable, optional
        Gets the QuestionError of a question that is too long for the model, which is then left out; by
        default it is raised.
    progress : callable, optional
        Called with the number of questions that the model has read.

    Returns
    -------
    Fit
        With `temperature`, `recalibrator` and `save_pretrained`.
    """
    if isinstance(questions, (str, Path)):
        data, questions = data or str(Path(questions).name), load_questions(questions)
    asking = Asking(tuple(few_shot))
    features, questions = calibration_features(
        model, questions, asking=asking, on_bad_question=on_bad_question, progress=progress
    )
    recalibrator = fit_features(model, features, loss=loss, alpha=alpha)
    provenance = Provenance(
        model=model.name,
        revision=model.revision,
        prompt=asking.describe(),
        prompt_hash=asking.hash(model),
        data=data or "questions given in Python",
        data_hash=data_hash(questions),
        n_questions=len(questions),
        versions=versions or {},
    )
    return Fit(recalibrator, provenance, asking)
