"""Steps of a grid on calibration questions: checks, features, fits, and their effects on tokens.

`GridState` is the state of a worker: models, recalibrators and features, each loaded when a step needs it.
The effects of recalibrators on the tokens of reference answers (paper, section 5) are computed from stored
features in one pass over the logits for all recalibrators.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from semcal.arrays import Floats
from semcal.data.datasets import load_questions
from semcal.data.question import Question, plain_text
from semcal.errors import QuestionError, StoreError
from semcal.experiment.grid_settings import Model
from semcal.inputs import load_equivalence
from semcal.models.distribution import Base, Temperature, fingerprint, temperature_of
from semcal.models.equivalence import Equivalence
from semcal.models.load import load_model
from semcal.models.prompting import PromptConfig
from semcal.models.protocols import AnyRecalibrator, LanguageModel, Sampler, SampleRequest, StateReader
from semcal.recalibration.files import from_pretrained
from semcal.recalibration.methods import RECALIBRATORS, make_unfitted
from semcal.recalibration.select import CandidateFit
from semcal.rows import Json, Row
from semcal.servers.settings import ServerSettings, read_api_key
from semcal.steps import RecalibratorSource, Step, WorkerState
from semcal.workers import versions

if TYPE_CHECKING:
    from torch import Tensor

    from semcal.models.features import FitFeatures
    from semcal.recalibration.exact_solver import LogPartitionTable
    from semcal.recalibration.fit_data import FitData

Bools = NDArray[np.bool_]
#: Maximum number of logits in memory, per recalibrator.
CHUNK = 4_000_000

# ---- The state of a worker


@dataclass(frozen=True)
class CalibrationSource:
    """The calibration questions of a data set, and the folder of their features in the run folder."""

    asking: PromptConfig
    questions: str
    features: str
    data_hash: str
    whole: bool  # whether the states of all tokens are stored

    def key(self) -> Json:
        """Return the settings that the features depend on, except the model."""
        return {"whole": self.whole, "data_hash": self.data_hash}


@dataclass
class CalibrationTables:
    """Labeled questions as a model reads them, with their features and log-partition table."""

    source: CalibrationSource
    labelled: FitData
    features: FitFeatures
    table: LogPartitionTable | None = None


class GridState(WorkerState):
    """One language model and one set of features at a time; jobs select their models with `choose`.

    Recalibrators and calibration questions are read from the run folder `folder`. `load_model` and
    `load_equivalence` return the language model of a `Model` and the equivalence of a name.
    """

    def __init__(
        self,
        folder: Path,
        load_model: Callable[[Model], Sampler],
        load_equivalence: Callable[[str], Equivalence],
    ) -> None:
        super().__init__(folder=folder)
        self._load_model, self._load_equivalence = load_model, load_equivalence
        self._chosen: tuple[Model | None, str] = None, "exact"
        self._calibration: CalibrationTables | None = None
        self._fitted: dict[str, AnyRecalibrator] = {}

    def choose(self, models: tuple[Model, str]) -> None:
        """Select the model and the equivalence of the next job; each is loaded on first use."""
        (model, equivalence), self._chosen = self._chosen, models
        if models[0] != model:
            self._clear_model()
        if models[1] != equivalence:
            self._equivalence = None

    @property
    def model(self) -> Sampler:
        """The selected language model, or a server."""
        if self._language_model is None:
            assert self._chosen[0] is not None
            self._language_model = self._load_model(self._chosen[0])
        return self._language_model

    @property
    def equivalence(self) -> Equivalence:
        """The selected equivalence."""
        if self._equivalence is None:
            self._equivalence = self._load_equivalence(self._chosen[1])
        return self._equivalence

    def clear(self) -> None:
        """Release everything; it is loaded again on demand."""
        self._equivalence = None
        self._clear_model()

    def _clear_model(self) -> None:
        self._language_model = self._calibration = None
        self._fitted.clear()
        gc.collect()

    def recalibrator(self, source: RecalibratorSource) -> AnyRecalibrator:
        """Return the recalibrator of a source; StoreError if the stored one is damaged or differs."""
        if source.temperature is not None:
            return Temperature(source.temperature)
        if source.folder is None or source.fingerprint is None:
            return make_unfitted(source.name)
        if source.fingerprint not in self._fitted:
            recalibrator, _ = from_pretrained(self.folder / source.folder)
            if fingerprint(recalibrator) != source.fingerprint:
                raise StoreError(
                    f"{self.folder / source.folder} holds another recalibrator than this run's. Delete the "
                    "folder blocks/fit, and run the same command again."
                )
            self._fitted[source.fingerprint] = recalibrator
        return self._fitted[source.fingerprint]

    def calibration(self, source: CalibrationSource) -> CalibrationTables:
        """Return the calibration questions; missing features are computed.

        Questions that do not fit the model are left out; the check has reported them.
        """
        from semcal.recalibration.fit_data import FitData, fit_features

        model, folder = self.language_model, self.folder / source.features
        if self._calibration is None or self._calibration.source != source:
            self._calibration = None  # before the next features are loaded
            questions = load_questions(self.folder / source.questions, answers_needed=True)
            labelled = FitData.of(model, questions, asking=source.asking, on_bad_question=lambda _: None)
            features = fit_features(model, labelled, asking=source.asking, whole=source.whole, store=folder)
            self._calibration = CalibrationTables(source, labelled, features)
        return self._calibration

    def table(self, source: CalibrationSource) -> LogPartitionTable:
        """Return the log-partition table of the features, for fits by gradient steps."""
        from semcal.recalibration.exact_solver import tabulate

        calibration = self.calibration(source)
        if calibration.table is None:
            calibration.table = tabulate(calibration.features, self.language_model.logits)
        return calibration.table


def open_grid_state(
    folder: str | Path,
    *,
    device: str | None = None,
    nli_device: str | None = None,
    memory: str | int | None = None,
    api_key_file: Path | None = None,
) -> GridState:
    """Return a state that loads models by name; a file in the run folder shares NLI verdicts.

    `memory` is the limit for keys and values of a batch, such as "2GB".
    """
    from semcal.servers.sampler import load_server

    for module in ("fit_data", "exact_solver"):  # now, so that no job's time includes it
        import_module(f"semcal.recalibration.{module}")

    def load(model: Model) -> Sampler:
        if model.is_server:
            options = {} if model.server is None else model.server.model_dump()
            return load_server(model.path, ServerSettings(**options, api_key=read_api_key(api_key_file)))
        return load_model(
            model.path, device=device, dtype=model.dtype, revision=model.revision, memory=memory
        )

    cache = Path(folder) / "verdicts.sqlite"
    return GridState(Path(folder), load, partial(load_equivalence, device=nli_device or device, cache=cache))


# ---- Identities of models, and checks of questions


class Identities(BaseModel):
    """The identities of the models of a cell."""

    model_config = ConfigDict(frozen=True)

    revision: str
    equivalence: tuple[str, str]  # name and revision
    prompts: dict[str, str]  # hash of the prompt of a data set


@dataclass(frozen=True)
class IdentifyStep(Step):
    """Step that returns the revisions of the models, and the hashes of the prompts of all data sets."""

    name: ClassVar[str] = "identify"
    needs: ClassVar[tuple[str, ...]] = ("model", "equivalence")
    asking: Mapping[str, PromptConfig]

    def __call__(self, _: object, models: WorkerState, *__: object) -> list[Row]:
        model, equivalence = models.model, models.equivalence
        identities = Identities(
            revision=model.revision,
            equivalence=(equivalence.name, equivalence.revision),
            prompts={name: asking.hash(model) for name, asking in self.asking.items()},
        )
        return [Row(identities.model_dump())]


@dataclass(frozen=True)
class CheckStep(Step):
    """Step that returns the prompt of the first test question, and all questions that the model cannot read.

    Each row names its `part` of the data.
    """

    name: ClassVar[str] = "check"
    needs: ClassVar[tuple[str, ...]] = ("model",)
    asking: PromptConfig
    max_new_tokens: int

    def __call__(self, rows: Sequence[Row], models: WorkerState, *_: object) -> list[Row]:
        model, parts = models.model, dict[str, list[Question]]()
        for row in rows:
            parts.setdefault(row["part"], []).append(row.to_question())
        invalid = self._unreadable if model.capabilities.states else self._unaskable
        refused = [
            Row({"part": part, "id": error.question_id, "reason": error.reason})
            for part, questions in parts.items()
            for error in invalid(models, questions)
        ]
        first = parts.get("test", ())[:1]
        return [Row({"prompt": self._written(model, first[0]) if first else ""}), *refused]

    def _unreadable(self, models: WorkerState, questions: Sequence[Question]) -> list[QuestionError]:
        """Yield questions that do not fit with one of their answers, or with a sampled answer."""
        model, longest = models.language_model, tuple(range(self.max_new_tokens))
        read, errors = self.asking.read(model, questions)
        answers = [[*answers, longest] for *_, answers in read]
        return errors + model.invalid_prompts([prompt for _, prompt, _ in read], answers)

    def _unaskable(self, models: WorkerState, questions: Sequence[Question]) -> list[QuestionError]:
        """Yield questions that a server cannot answer, as far as is known beforehand."""
        prompts = self.asking.prompts(models.model, questions)
        request = SampleRequest(prompts, [Base()], max_new_tokens=self.max_new_tokens)
        return models.model.invalid_prompts_for_sampling(request)

    def _written(self, model: Sampler, question: Question) -> str:
        """Return a prompt with its special tokens, or as plain text if there is no tokenizer."""
        tokenizer = getattr(model, "tokenizer", None)
        if tokenizer is None:
            return plain_text(self.asking.chat(question))
        (prompt,) = self.asking.prompts(model, [question])
        return str(tokenizer.decode(prompt.token_ids, skip_special_tokens=False))


# ---- Features and fits


@dataclass(frozen=True)
class FeaturesStep(Step):
    """Step in which the model reads the calibration questions into the folder of features."""

    name: ClassVar[str] = "features"
    needs: ClassVar[tuple[str, ...]] = ("model",)
    source: CalibrationSource

    def __call__(self, _: object, models: GridState, *__: object) -> list[Row]:
        calibration = models.calibration(self.source)
        n_questions, n_tokens = len(calibration.labelled.questions), len(calibration.features.targets)
        return [Row({"questions": n_questions, "tokens": n_tokens})]


class KeptFit(BaseModel):
    """A fitted and stored candidate."""

    model_config = ConfigDict(frozen=True)

    candidate: str
    run: int
    folder: str  # folder, relative to the run folder
    fingerprint: str
    temperature: float | None
    at_bound: bool | None
    parameters: int
    train_nll: float


@dataclass(frozen=True)
class FitStep(Step):
    """Step that fits and stores the candidates of one method, one row for each."""

    name: ClassVar[str] = "fit"
    needs: ClassVar[tuple[str, ...]] = ("model",)
    source: CalibrationSource
    dataset: str
    fit: CandidateFit
    learning_rate: float | None
    batch_size: int
    warm_up: float
    seed: int
    folders: Mapping[str, str]  # candidate → its folder, relative to the run folder

    def __call__(self, _: object, models: GridState, *__: object) -> list[Row]:
        from semcal.recalibration.exact_solver import mean_loss_of
        from semcal.recalibration.files import save_pretrained
        from semcal.recalibration.fit_data import provenance_of
        from semcal.recalibration.select import fit_candidate

        calibration, model = models.calibration(self.source), models.language_model
        provenance = provenance_of(
            model,
            calibration.labelled.questions,
            asking=self.source.asking,
            data=f"{self.dataset}, calibration-train",
            seed=self.seed,
            versions=versions(),
        )
        fitted = fit_candidate(
            model,
            calibration.features,
            self.fit,
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            warm_up=self.warm_up,
            seed=self.seed,
            table=models.table(self.source) if self.fit.reads_table else None,
        )
        fits = []
        for candidate, recalibrator in fitted.items():
            folder = self.folders[candidate.name]
            save_pretrained(recalibrator, models.folder / folder, provenance=provenance)
            fit = KeptFit(
                candidate=candidate.name,
                run=self.fit.run,
                folder=folder,
                fingerprint=fingerprint(recalibrator),
                temperature=temperature_of(recalibrator),
                at_bound=_at_bound(recalibrator),
                parameters=_parameter_count(recalibrator),
                train_nll=mean_loss_of(model, calibration.features, recalibrator),
            )
            fits.append(Row(fit.model_dump()))
        return fits


def _at_bound(recalibrator: AnyRecalibrator) -> bool | None:
    from semcal.recalibration.recalibrators import TemperatureScaling

    if isinstance(recalibrator, TemperatureScaling) and recalibrator.sgd_ is None:
        return recalibrator.certificate_.at_bound
    return None


def _parameter_count(recalibrator: AnyRecalibrator) -> int:
    import torch

    if isinstance(recalibrator, torch.nn.Module):
        return sum(weight.numel() for weight in recalibrator.parameters())
    return RECALIBRATORS[recalibrator.method].parameters


# ---- Effects of fits on the tokens of answers


@dataclass(frozen=True)
class DiagnoseStep(Step):
    """Step that computes the effects of each candidate on the tokens of validation answers."""

    name: ClassVar[str] = "diagnose"
    needs: ClassVar[tuple[str, ...]] = ("model",)
    source: CalibrationSource
    recalibrators: tuple[RecalibratorSource, ...]
    unfitted: tuple[str, ...]  # candidates that no fit has scored on the calibration answers

    def __call__(self, rows: Sequence[Row], models: GridState, *_: object) -> list[Row]:
        from semcal.recalibration.exact_solver import mean_loss_of
        from semcal.recalibration.fit_data import FitData, fit_features

        model, asking = models.language_model, self.source.asking
        held_out = FitData.of(
            model,
            [row.to_question() for row in rows],
            asking=asking,
            on_bad_question=lambda _: None,
            fitted_to=False,
        )
        states = fit_features(model, held_out, asking=asking, whole=self.source.whole)
        recalibrators = {source.name: models.recalibrator(source) for source in self.recalibrators}
        train = models.calibration(self.source).features
        train_nll = {name: mean_loss_of(model, train, recalibrators[name]) for name in self.unfitted}
        diagnosed = []
        for name, effects in token_effects(model, states, recalibrators).items():
            row: dict[str, object] = {"candidate": name}
            row |= {"train_nll": train_nll[name]} if name in train_nll else {}
            row |= {"validation_nll": effects.mean_nll}
            row |= {key: float(getattr(effects, key).mean()) for key in ("top_changed", "order_changed")}
            diagnosed.append(Row(row))
        return diagnosed


@dataclass(frozen=True, eq=False)
class TokenEffects:
    """The effects of one recalibrator on the N tokens of the reference answers."""

    nll: Floats  # (N,) −log p of each token, nats
    top_changed: Bools  # (N,) whether the most likely token changed
    order_changed: Bools  # (N,) whether the ten most likely tokens or their order changed
    weights: Floats  # (N,) weights; the references of a question have equal weights, with sum 1

    @property
    def mean_nll(self) -> float:
        """Mean over tokens, with the weights of the fit."""
        return float(np.average(self.nll, weights=self.weights))


def order_changes(before: Tensor, after: Tensor, *, top: int = 10) -> tuple[Tensor, Tensor]:
    """Find changes of the most likely tokens under a map of logits (or log-probabilities) (N, V).

    Return two arrays (N,) of bool: the most likely token changes; the `top` most likely tokens or their order
    change. New or dissolved ties are not changes: an order changes if two tokens swap places.
    """
    count = min(top, before.shape[1])
    order = before.topk(count, dim=1).indices
    scores = after.gather(1, order)
    highest_other = after.scatter(1, order, -math.inf).amax(1)
    ties = before.gather(1, order).diff(dim=1) == 0
    swapped = ((scores.diff(dim=1) > 0) & ~ties).any(1) | (highest_other > scores.amin(1))
    return after.amax(1) > scores[:, 0], swapped


def token_effects(
    model: LanguageModel, features: FitFeatures, recalibrators: Mapping[str, AnyRecalibrator]
) -> dict[str, TokenEffects]:
    """Return the effects of each recalibrator, by name, on the tokens of the reference answers.

    `features` must be of whole sequences if there is an ATS among the recalibrators; only the head of the
    model is used.
    """
    import torch

    from semcal.models.features import inverse_temperatures

    rows, weights = features.predicting_rows(), features.token_weights().numpy()
    parts: dict[str, list[tuple[Tensor, ...]]] = {name: [] for name in recalibrators}
    effects = {}
    with torch.no_grad():
        beta = {
            name: inverse_temperatures(recalibrator, features)
            for name, recalibrator in recalibrators.items()
            if isinstance(recalibrator, StateReader)
        }
        width = model.logits(features.states[rows[:1]]).shape[1]
        for part in torch.split(torch.arange(len(rows)), max(1, CHUNK // width)):
            logits = model.logits(features.states[rows[part]]).float()
            targets = features.targets[part, None].to(logits.device)
            for name, recalibrator in recalibrators.items():
                if isinstance(recalibrator, StateReader):
                    scored = recalibrator.log_probs(logits, beta[name][part].to(logits.device))
                else:
                    scored = recalibrator.log_probs(logits)
                parts[name].append((-scored.gather(1, targets)[:, 0], *order_changes(logits, scored)))
        for name, of_parts in parts.items():
            nll, top, order = (torch.cat(column).cpu().numpy() for column in zip(*of_parts))
            effects[name] = TokenEffects(nll.astype(np.float64), top, order, weights)
    return effects
