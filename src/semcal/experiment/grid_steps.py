"""Steps of a grid: checks, features and fits, then answers, choices, measures and calibrated probabilities.

`GridState` is the state of a worker: models, recalibrators and features, each loaded when a step needs it.
The effects of recalibrators on the tokens of reference answers (paper, section 5) are computed from stored
features in one pass over the logits for all recalibrators. The steps of `semcal.models.sample` and
`semcal.models.clustering` sample and cluster answers. Rows of answers are identified by (candidate, run, m,
id), and every step keeps their order.
"""

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from semcal.arrays import Floats
from semcal.data.datasets import load_questions
from semcal.data.question import GROUP, Question, data_hash, plain_text
from semcal.errors import QuestionError, SemcalWarning, ServerError, StoreError
from semcal.experiment.grid_plan import CandidateChoice, Choices, Selected
from semcal.experiment.grid_settings import Calibrating, ClusteringSettings, Grading, Model
from semcal.grading.grade import EntailmentGrader, Members, grade_clusters, grade_texts, grade_together
from semcal.grading.rules import Grader, members_to_grade
from semcal.inputs import load_equivalence
from semcal.meaning.answer import AnswerFormat
from semcal.measuring import MeasureOptions, measure_rows
from semcal.models.distribution import Base, Temperature, fingerprint, temperature_of
from semcal.models.equivalence import Equivalence
from semcal.models.load import load_model
from semcal.models.prompting import PromptConfig
from semcal.models.protocols import AnyRecalibrator, LanguageModel, Sampler, SampleRequest, StateReader
from semcal.models.sample import SampleStep, read_answer
from semcal.recalibration.files import from_pretrained
from semcal.recalibration.methods import RECALIBRATORS, make_unfitted
from semcal.recalibration.select import Candidate, CandidateFit, Selection, select, under_alphas
from semcal.rows import FAILED, Json, Row, Rows, failures_of
from semcal.servers.settings import ServerSettings, read_api_key
from semcal.steps import RecalibratorSource, Step, WorkerState
from semcal.workers import Progress, versions

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

    from semcal.recalibration.exact_solver import inverse_temperatures

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


# ---- Answers


def cut_to_counts(rows: Rows, m: int) -> list[Row]:
    """Cut rows to their first m samples, and rows with `counts` also to each of these numbers.

    >>> row = Row({"id": "1", "counts": [1, 3], "samples": ["a", "b", "c"], "log_likelihoods": [-1, -2, -3]})
    >>> [cut.samples for cut in cut_to_counts([row], 2)]
    [['a', 'b'], ['a'], ['a', 'b', 'c']]
    """
    return [
        row.take(range(min(count, len(row.samples)))).set(m=count)
        for row in rows
        for count in (m, *row.json.get("counts", ()))
    ]


def _answered(rows: list[Row]) -> list[Row]:
    """Return the rows; ServerError if a server answered no question, so that the block is not stored."""
    failures = list(failures_of(rows).values())
    if failures and len(failures) == len({row.id for row in rows}):
        raise ServerError(
            f"the server answered none of {len(failures)} questions of a block, first {failures[0]}. Run the "
            "same command again to resume, or remove these questions from the data."
        )
    return rows


@dataclass(frozen=True)
class SamplePasses(Step):
    """Step that samples the answers of several passes of the model, one after another."""

    name: ClassVar[str] = "sample"
    needs: ClassVar[tuple[str, ...]] = ("model",)
    passes: tuple[SampleStep, ...]

    def __call__(self, rows: Rows, models: WorkerState, progress: Progress) -> list[Row]:
        return _answered([row for one in self.passes for row in one(rows, models, progress)])


@dataclass(frozen=True)
class GreedyPass:
    """The greedy answers ("greedy") and those of 4 beams ("beam") with one recalibrator."""

    source: RecalibratorSource
    run: int
    kinds: tuple[str, ...]


@dataclass(frozen=True)
class GreedyStep(Step):
    """Step that decodes the most likely answers, token by token and with 4 beams, and grades them."""

    name: ClassVar[str] = "greedy"
    needs: ClassVar[tuple[str, ...]] = ("model",)
    asking: PromptConfig
    passes: tuple[GreedyPass, ...]
    grading: Grading
    max_new_tokens: int
    answer_format: AnswerFormat

    def __call__(self, rows: Rows, models: WorkerState, *_: object) -> list[Row]:
        model, grader = models.model, self.grading.grader()
        questions = [row.to_question() for row in rows]
        prompts = self.asking.prompts(model, questions)
        answers = []
        for greedy_pass in self.passes:
            recalibrator, name = models.recalibrator(greedy_pass.source), greedy_pass.source.name
            for kind in greedy_pass.kinds:
                generate: Any = model.greedy if kind == "greedy" else models.language_model.beam
                generations = generate(prompts, recalibrator=recalibrator, max_new_tokens=self.max_new_tokens)
                for question, generation in zip(questions, generations):
                    row = Row({"id": question.id, "candidate": name, "run": greedy_pass.run, "kind": kind})
                    if isinstance(generation, QuestionError):
                        answers.append(Row({**row.json, FAILED: generation.reason}))
                        continue
                    found = read_answer(self.answer_format, question, generation)
                    text = None if found is None else found.text
                    grade = grade_texts(grader, question.question, [text], question.answers)
                    answers.append(row.set(text=text, correct=grade.correct))
        return _answered(answers)


def members_of(row: Row, grading: Grading, seed: int) -> Members | None:
    """Return the rule that chooses the graded members of a cluster, None to grade the answer."""
    if grading.choice == "given":
        return None
    return partial(members_to_grade, seed=seed, question_id=row.id, limit=grading.members)


@dataclass(frozen=True)
class GradeMeaningsStep(Step):
    """Step that grades every cluster of each row by rules."""

    name: ClassVar[str] = "grade"
    needs: ClassVar[tuple[str, ...]] = ()
    grading: Grading
    seeds: tuple[int, ...]  # one for each run

    def __call__(self, rows: Rows, *_: object) -> list[Row]:
        """Return the rows with `correct` and `rule` of each cluster."""
        grader, graded = self.grading.grader(), []
        for row in rows:
            members = members_of(row, self.grading, self.seeds[row["run"]])
            grades = grade_clusters(row, grader=grader, members=members).values()
            correct, rule = [grade.correct for grade in grades], [grade.rule for grade in grades]
            graded.append(row.set(correct=correct, rule=rule))
        return graded


@dataclass(frozen=True)
class EntailmentStep(Step):
    """Step that grades the answer of each measure by entailment: one verdict each, in `correct_nli`."""

    name: ClassVar[str] = "nli"
    needs: ClassVar[tuple[str, ...]] = ("equivalence",)
    grading: Grading
    seed: int

    def __call__(self, rows: Rows, models: WorkerState, *_: object) -> list[Row]:
        verdicts = grade_together(
            EntailmentGrader(models.equivalence), lambda marks: [self._verdicts(row, marks) for row in rows]
        )
        return [row.set(correct_nli=correct) for row, correct in zip(rows, verdicts)]

    def _verdicts(self, row: Row, grader: Grader) -> dict[str, bool | None]:
        top, members = row["top_cluster"], members_of(row, self.grading, self.seed)
        chosen = sorted({index for index in top.values() if index is not None})
        grades = grade_clusters(row, grader=grader, members=members, only=chosen)
        return {measure: None if index is None else grades[index].correct for measure, index in top.items()}


# ---- Choice and measures

Graded = dict[str, list[list[Row]]]
"""Candidate → for each a of T-SC and G-SC the graded rows of all questions."""
LOSSES = ("NLL", "SS")


@dataclass(frozen=True)
class SelectStep(Step):
    """Step that chooses candidates at each number of samples, from all losses and from each loss alone."""

    name: ClassVar[str] = "select"
    needs: ClassVar[tuple[str, ...]] = ()
    candidates: Mapping[str, Sequence[Candidate]]  # by method
    m: int
    counts: tuple[int, ...]  # further numbers of samples
    measure_alphas: tuple[float, ...]
    by: str
    ties: str = "likelier"

    def __call__(self, rows: Rows, *_: object) -> list[Row]:
        graded = self._graded(rows)
        at_m = self._select(graded[self.m], self.candidates)
        by_loss = {
            loss: {
                method: [candidate for candidate in tried if candidate.loss == loss]
                for method, tried in self.candidates.items()
            }
            for loss in LOSSES
        }
        selected = Selected(
            methods=_choices(at_m),
            by_loss={loss: _choices(self._select(graded[self.m], of)) for loss, of in by_loss.items()},
            by_draws={
                str(count): _choices(self._select(graded[count], self.candidates)) for count in self.counts
            },
            table=[
                {"method": method, **row} for method, selection in at_m.items() for row in selection.table()
            ],
        )
        return [Row(selected.model_dump())]

    def _select(self, graded: Graded, candidates: Mapping[str, Sequence[Candidate]]) -> dict[str, Selection]:
        """Return the selection of each method with candidates."""
        return {
            method: select(
                {candidate: graded[candidate.name] for candidate in tried},
                measure_alphas=self.measure_alphas,
                by=self.by,
            )
            for method, tried in candidates.items()
            if tried
        }

    def _graded(self, rows: Rows) -> dict[int, Graded]:
        """Return number of samples → the rows of each candidate."""
        groups: dict[tuple[int, str], list[Row]] = {}
        for row in rows:
            groups.setdefault((row["m"], row["candidate"]), []).append(row)
        graded: dict[int, Graded] = {}
        keys = ("id", "samples", "clusters", "log_likelihoods")
        for (count, name), of_group in groups.items():
            bare = [Row({key: row[key] for key in keys if key in row}) for row in of_group]
            verdicts = [row["correct"] for row in of_group]
            graded.setdefault(count, {})[name] = under_alphas(bare, verdicts, self.measure_alphas, self.ties)
        return graded


def _choices(selections: Mapping[str, Selection]) -> Choices:
    return {
        method: {
            measure: CandidateChoice.of(entry.candidate, entry.measure_alpha)
            for measure, entry in selection.chosen.items()
        }
        for method, selection in selections.items()
    }


#: Keys of finished rows: of the question, of its samples, and of their measures.
ASKED_KEYS = ("id", "question", "answers", "context", GROUP)
SAMPLED_KEYS = ("candidate", "run", "samples", "log_likelihoods", "likelihood", "normal_forms", "clusters")
MEASURED_KEYS = ("confidences", "semantic_entropy", "confidence", "top_cluster")


@dataclass(frozen=True)
class GridMeasureStep(Step):
    """Step that measures blocks of test questions in groups by candidate, run and number of samples.

    The rows of greedy and beam answers have a `kind`.
    """

    name: ClassVar[str] = "measure"
    needs: ClassVar[tuple[str, ...]] = ()
    measure_alphas: Mapping[str, Sequence[float]]  # candidate → the a of T-SC and of G-SC
    measure_alphas_at: Mapping[str, Mapping[str, Sequence[float]]]  # at other numbers of samples
    model: str
    dataset: str
    ties: str = "likelier"

    def __call__(self, rows: Rows, *_: object) -> list[Row]:
        groups: dict[tuple[str, int, int], list[Row]] = {}
        greedy: dict[tuple[str, str, int, str], Json] = {}
        for row in rows:
            if "kind" in row:
                greedy[row["kind"], row["candidate"], row["run"], row["id"]] = row
            else:
                groups.setdefault((row["candidate"], row["run"], row["m"]), []).append(row)
        finished = []
        for (candidate, _run, count), of_group in groups.items():
            alphas = self.measure_alphas_at.get(str(count), self.measure_alphas)[candidate]
            measured = measure_rows(of_group, MeasureOptions(alphas[0], alphas[1], ties=self.ties))
            finished += [self._finished(row, greedy) for row in measured]
        return finished

    def _finished(self, row: Row, greedy: Mapping[tuple[str, str, int, str], Json]) -> Row:
        """Return a finished row; its greedy answer is Base's if the method keeps the argmax."""
        name, run, id = row["candidate"], row["run"], row["id"]

        def answer(kind: str) -> Json | None:
            return greedy.get((kind, name, run, id)) or greedy.get((kind, name, 0, id))

        single, beam = answer("greedy") or greedy["greedy", "Base", 0, id], answer("beam")
        finished = {key: row[key] for key in ASKED_KEYS if key in row}
        finished |= {"model": self.model, "dataset": self.dataset}
        finished |= {key: row[key] for key in (*SAMPLED_KEYS, *MEASURED_KEYS)}
        for key in ("correct", "rule"):
            finished[key] = {
                measure: None if index is None else row[key][index]
                for measure, index in row["top_cluster"].items()
            }
        finished |= {"greedy": single["text"], "greedy_correct": single["correct"]}
        if beam:
            finished |= {"beam": beam["text"], "beam_correct": beam["correct"]}
        return Row(finished)


# ---- The method Calibrated


@dataclass(frozen=True)
class CalibrateStep(Step):
    """Step that learns the probability that Base's answer is correct, and stores it in the run folder."""

    name: ClassVar[str] = "calibrate"
    needs: ClassVar[tuple[str, ...]] = ("model",)
    m: int
    temperatures: Mapping[str, float]  # temperatures of the candidates; that of the answer first
    settings: Calibrating
    grading: Grading
    clustering: ClusteringSettings
    equivalence: str
    seed: int
    revision: str
    prompt_hash: str
    asking: PromptConfig
    dataset: str
    max_new_tokens: int
    folder: str  # folder of the calibration, relative to the run folder

    def __call__(self, rows: Rows, models: WorkerState, *_: object) -> list[Row]:
        """Learn from the first questions."""
        from semcal.calibration.calibration import CalibrationConfig
        from semcal.calibration.learning import LearningOptions, calibrate_rows
        from semcal.calibration.samples import SamplesOrigin
        from semcal.models.clustering import ClusterConfig
        from semcal.recalibration.files import Provenance

        labelled = set(list(dict.fromkeys(row.id for row in rows))[: self.settings.questions])
        drawn: dict[str, list[Row]] = {name: [] for name in self.temperatures}
        for row in rows:
            if row.id in labelled and (row["m"], row["run"]) == (self.m, 0) and row["candidate"] in drawn:
                drawn[row["candidate"]].append(row)
        questions = [row.to_question() for row in drawn[next(iter(drawn))]]
        provenance = Provenance(
            model=models.model.name,
            revision=self.revision,
            prompt=self.asking.describe(),
            prompt_hash=self.prompt_hash,
            data=f"{self.dataset}, labeled questions of the run",
            data_hash=data_hash(questions),
            n_questions=len(questions),
            seed=self.seed,
            versions=versions(),
        )
        origin = SamplesOrigin(provenance, max_new_tokens=self.max_new_tokens)
        learning = LearningOptions(self.seed, fixed_temperature=True, origin=origin)  # with Base's answers
        options = MeasureOptions(ties=self.clustering.ties)
        # the grid has warned of few questions; the report has the other warnings
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SemcalWarning)
            calibration = calibrate_rows(
                {t: measure_rows(drawn[name], options) for name, t in self.temperatures.items()},
                ClusterConfig(self.equivalence, self.clustering.linkage, self.clustering.merge_refusals),
                CalibrationConfig(
                    risks=() if self.settings.risk is None else self.settings.risk,
                    delta=self.settings.delta,
                    grader=self.grading.grader(),
                ),
                learning,
            )
        calibration.save_pretrained(models.folder / self.folder)
        learned = {
            "temperatures": list(calibration.temperatures),
            "map": asdict(calibration.map),
            "further": calibration.further,
            "threshold": None if calibration.threshold is None else asdict(calibration.threshold),
            "report": asdict(calibration.report),
        }
        return [Row(learned)]


@dataclass(frozen=True)
class ApplyStep(Step):
    """Step that returns Base's test answers in one wording, with the probability that each is correct.

    Rows are finished rows, run after run; the temperature of the answer comes first.
    """

    name: ClassVar[str] = "apply"
    needs: ClassVar[tuple[str, ...]] = ()
    folder: str  # folder of the calibration, relative to the run folder
    learned: str  # hash of the calibration
    temperatures: Mapping[str, float]  # temperatures of the candidates
    grading: Grading

    def __call__(self, rows: Rows, models: WorkerState, *_: object) -> list[Row]:
        from semcal.calibration.calibration import Calibration

        calibration = Calibration.from_pretrained(models.folder / self.folder)
        runs: dict[int, dict[float | None, list[Row]]] = {}
        for row in rows:
            at = runs.setdefault(row["run"], {})
            at.setdefault(self.temperatures[row["candidate"]], []).append(row)
        grader = self.grading.grader()
        answers = []
        for rows_at in runs.values():
            for row, decided in zip(next(iter(rows_at.values())), calibration.apply(rows_at)):
                grade = grade_texts(grader, row["question"], [decided.text], row["answers"])
                share = len(row["clusters"][decided.meaning]) / len(row["samples"])
                stored = asdict(decided)
                del stored["features"]  # known from the samples of the row
                answers.append(Row({"id": row["id"], **stored, "share": share, "correct": grade.correct}))
        return answers
