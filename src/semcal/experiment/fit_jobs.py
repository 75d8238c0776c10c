"""Jobs of a grid on calibration questions: what a model can read, features, fits, and their effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict

from semcal.data.question import Question, plain_text
from semcal.errors import QuestionError
from semcal.experiment.token_classes import token_classes
from semcal.installation import versions
from semcal.models.language_model import LanguageModel, PromptConfig, Sampler, SampleRequest
from semcal.recalibration.choosing import Candidate, CandidateFit
from semcal.recalibration.methods import RECALIBRATORS
from semcal.steps import RecalibratorSource, WorkerState
from semcal.workers import Progress

if TYPE_CHECKING:
    from semcal.experiment.grid_state import GridState
    from semcal.recalibration.attentive import AnyRecalibrator
    from semcal.recalibration.saving import Fitted


Rows = list[dict[str, Any]]
Point = tuple[str, float | None]


@dataclass(frozen=True)
class ModelIdentity:
    """What everything that a model does with the questions of a data set depends on."""

    revision: str
    prompt: str  # hash of how it is asked
    memory: str | int | None  # of a batch, as the settings have it

    def key(self) -> dict[str, Any]:
        """What it is, as it names blocks."""
        return asdict(self)


@dataclass(frozen=True)
class CalibrationSource:
    """The calibration questions of a data set, and where their features lie (relative to the run folder)."""

    asking: PromptConfig
    questions: str
    features: str
    data_hash: str
    whole: bool  # whether the states of all tokens are kept

    def key(self) -> dict[str, Any]:
        """What the features depend on beside the model."""
        return {"whole": self.whole, "data_hash": self.data_hash}


class Identities(BaseModel):
    """What the models of a cell say of themselves."""

    model_config = ConfigDict(frozen=True)

    revision: str
    equivalence: tuple[str, str]  # name and revision
    prompts: dict[str, str]  # hash of how the questions of a data set are asked


class Fit(BaseModel):
    """A candidate that was fitted and kept."""

    model_config = ConfigDict(frozen=True)

    candidate: str
    run: int
    folder: str  # relative to the run folder
    fingerprint: str
    temperature: float | None
    at_bound: bool | None
    parameters: int
    train_nll: float


@dataclass(frozen=True)
class IdentifyJob:
    """Revisions of the models, and hashes of the prompts of all data sets."""

    stage: ClassVar[str] = "identify"
    asking: Mapping[str, PromptConfig]

    def __call__(self, state: WorkerState, progress: Progress) -> Rows:
        """Identify."""
        del progress
        model, equivalence = state.model, state.equivalence
        identities = Identities(
            revision=model.revision,
            equivalence=(equivalence.name, equivalence.revision),
            prompts={name: asking.hash(model) for name, asking in self.asking.items()},
        )
        return [identities.model_dump()]


@dataclass(frozen=True)
class CheckJob:
    """The prompt of the first test question, and every question that the model cannot be asked."""

    stage: ClassVar[str] = "check"
    asking: PromptConfig
    parts: Mapping[str, Sequence[Question]]
    hashes: Mapping[str, str]  # of the parts
    max_new_tokens: int

    def key(self) -> dict[str, Any]:
        """What its rows depend on beside the model."""
        return {"longest": self.max_new_tokens, "hashes": self.hashes}

    def __call__(self, state: WorkerState, progress: Progress) -> Rows:
        """Check."""
        del progress
        model = state.model
        bad_of = self._that_are_not_read if model.capabilities.states else self._that_are_not_asked
        rows: Rows = []
        for part, questions in self.parts.items():
            bad = bad_of(state, questions)
            rows += [{"part": part, "id": error.question_id, "reason": error.reason} for error in bad]
        first = self.parts["test"][:1]
        return [{"prompt": self._written(model, first[0]) if first else ""}, *rows]

    def _that_are_not_read(self, state: WorkerState, questions: Sequence[Question]) -> list[QuestionError]:
        """Questions that do not fit with one of their answers, or a drawn one, behind them."""
        model, longest = state.language_model, tuple(range(self.max_new_tokens))
        read, bad = self.asking.read(model, questions)
        answers = [[*answers, longest] for *_, answers in read]
        return bad + model.invalid_prompts([prompt for _, prompt, _ in read], answers)

    def _that_are_not_asked(self, state: WorkerState, questions: Sequence[Question]) -> list[QuestionError]:
        """Questions that a server cannot be asked, as far as is known beforehand."""
        from semcal.recalibration.temperature import Base

        prompts = self.asking.prompts(state.model, questions)
        request = SampleRequest(prompts, [Base()], max_new_tokens=self.max_new_tokens)
        return state.model.invalid_prompts_for_sampling(request)

    def _written(self, model: Sampler, question: Question) -> str:
        """A prompt with its special tokens written out; as plain text where there is no tokenizer."""
        tokenizer = getattr(model, "tokenizer", None)
        if tokenizer is None:
            return plain_text(self.asking.chat(question))
        (prompt,) = self.asking.prompts(model, [question])
        return str(tokenizer.decode(prompt.token_ids, skip_special_tokens=False))


@dataclass(frozen=True)
class FeaturesJob:
    """The model reads the calibration questions, into the folder for features."""

    stage: ClassVar[str] = "features"
    source: CalibrationSource

    def key(self) -> dict[str, Any]:
        """What its rows depend on beside the model."""
        return self.source.key()

    def __call__(self, state: GridState, progress: Progress) -> Rows:
        """Read."""
        del progress
        calibration = state.calibration(self.source)
        return [
            {"questions": len(calibration.labelled.questions), "tokens": len(calibration.features.targets)}
        ]


@dataclass(frozen=True)
class FitJob:
    """Candidates of one method, fitted and kept in the run folder; a row for each."""

    stage: ClassVar[str] = "fit"
    source: CalibrationSource
    identity: ModelIdentity
    dataset: str
    fit: CandidateFit
    learning_rate: float | None
    batch_size: int
    warm_up: float
    seed: int
    folders: Mapping[str, str]  # candidate → where it is kept, relative to the run folder

    def key(self) -> dict[str, Any]:
        """What its rows depend on beside the model."""
        names = ("learning_rate", "batch_size", "warm_up", "seed", "folders")
        return {
            **self.source.key(),
            **asdict(self.fit),
            "losses": [list(loss) for loss in self.fit.losses],
            **{name: getattr(self, name) for name in names},
        }

    def __call__(self, state: GridState, progress: Progress) -> Rows:
        """Fit."""
        from semcal.recalibration.attentive import fingerprint
        from semcal.recalibration.calibration_set import provenance_of
        from semcal.recalibration.fitting import mean_loss_of
        from semcal.recalibration.saving import save_pretrained
        from semcal.recalibration.temperature import temperature_of

        del progress
        calibration, model = state.calibration(self.source), state.language_model
        provenance = provenance_of(
            model,
            calibration.labelled.questions,
            asking=self.source.asking,
            data=f"{self.dataset}, calibration-train",
            seed=self.seed,
            versions=versions(),
        )
        rows: Rows = []
        for candidate, recalibrator in self._fitted(state).items():
            folder = self.folders[candidate.name]
            save_pretrained(recalibrator, state.folder / folder, provenance=provenance)
            fit = Fit(
                candidate=candidate.name,
                run=self.fit.run,
                folder=folder,
                fingerprint=fingerprint(recalibrator),
                temperature=temperature_of(recalibrator),
                at_bound=_at_bound(recalibrator),
                parameters=_parameters(recalibrator),
                train_nll=mean_loss_of(model, calibration.features, recalibrator),
            )
            rows.append(fit.model_dump())
        return rows

    def _fitted(self, state: GridState) -> dict[Candidate, Fitted]:
        from semcal.recalibration.choosing import fit_candidate

        return fit_candidate(
            state.language_model,
            state.calibration(self.source).features,
            self.fit,
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            warm_up=self.warm_up,
            seed=self.seed,
            table=state.table(self.source) if self.fit.reads_table else None,
        )


def _at_bound(recalibrator: AnyRecalibrator) -> bool | None:
    from semcal.recalibration.temperature import TemperatureScaling

    if isinstance(recalibrator, TemperatureScaling) and recalibrator.sgd_ is None:
        return recalibrator.certificate_.at_bound
    return None


def _parameters(recalibrator: AnyRecalibrator) -> int:
    import torch

    if isinstance(recalibrator, torch.nn.Module):
        return sum(weight.numel() for weight in recalibrator.parameters())
    return RECALIBRATORS[recalibrator.method].parameters


@dataclass(frozen=True)
class DiagnoseJob:
    """What each candidate does to the tokens of the validation answers (semcal.experiment.diagnosis)."""

    stage: ClassVar[str] = "diagnose"
    source: CalibrationSource
    validation: tuple[Question, ...]
    recalibrators: tuple[RecalibratorSource, ...]
    unfitted: tuple[str, ...]  # those of them that no fit has scored on the calibration answers

    def key(self) -> dict[str, Any]:
        """What its rows depend on beside the model."""
        return {
            **self.source.key(),
            "validation": [question.row() for question in self.validation],
            "recalibrators": [source.key() for source in self.recalibrators],
            "plain": list(self.unfitted),
        }

    def __call__(self, state: GridState, progress: Progress) -> Rows:
        """Diagnose."""
        from semcal.experiment.diagnosis import token_effects
        from semcal.recalibration.calibration_set import CalibrationSet, calibration_features
        from semcal.recalibration.fitting import mean_loss_of

        del progress
        model, asking = state.language_model, self.source.asking
        held_out = CalibrationSet.of(
            model, self.validation, asking=asking, on_bad_question=lambda _: None, fitted_to=False
        )
        states = calibration_features(model, held_out, asking=asking, whole=self.source.whole)
        recalibrators = {source.name: state.recalibrator(source) for source in self.recalibrators}
        classes = _classes(model, held_out.answers)
        train = state.calibration(self.source).features
        train_nll = {name: mean_loss_of(model, train, recalibrators[name]) for name in self.unfitted}
        return [
            {
                "candidate": name,
                **({"train_nll": train_nll[name]} if name in train_nll else {}),
                "validation_nll": effects.mean_nll,
                "top_changed": float(effects.top_changed.mean()),
                "order_changed": float(effects.order_changed.mean()),
                "classes": effects.by_class(classes) if classes else {},
            }
            for name, effects in token_effects(model, states, recalibrators).items()
        ]


def _classes(model: LanguageModel, answers: Sequence[Sequence[tuple[int, ...]]]) -> list[str]:
    """The class of each token of the answers; none where the model has no tokenizer."""
    tokenizer, chat = getattr(model, "tokenizer", None), getattr(model, "format", None)
    if tokenizer is None or chat is None:
        return []
    return [
        name
        for of_question in answers
        for answer in of_question
        for name in token_classes(
            tokenizer.convert_ids_to_tokens(answer), end_of_turn=[token in chat.stops for token in answer]
        )
    ]
