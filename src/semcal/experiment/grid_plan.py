"""The plan of a grid: the questions of its data sets, its candidates and blocks, and a forecast of its costs.

The forecast precedes the grid. For data on the hub that are not on this machine, it uses the sizes in the
settings.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from semcal.data.datasets import read_questions
from semcal.data.question import GROUP, Question, data_hash
from semcal.data.sources import ATLAS
from semcal.data.splits import SplitSizes, split_questions
from semcal.errors import InputError, ModelError, RowError, ServerError
from semcal.experiment.grid_settings import CALIBRATED, PARTS, DataSet, GridSettings, Model
from semcal.measures import MEASURES
from semcal.models.prompting import PromptConfig
from semcal.recalibration.methods import FITTED, FROM_SAMPLES, UNFITTED
from semcal.recalibration.select import GRID, Candidate, CandidateFit, candidate_fits
from semcal.rows import Json, Row, failures_of

if TYPE_CHECKING:
    from semcal.steps import WorkerState

#: The stages of a cell, in order; each depends on earlier ones.
STAGES = (
    "check",
    "features",
    "fit",
    "diagnose",
    "sample",
    "greedy",
    "cluster",
    "grade",
    "select",
    "measure",
    "nli",
    "calibrate",
    "apply",
)
#: Assumed number of candidates of a method that are chosen for some measure or loss.
CHOSEN = 5

# ---- Questions


@dataclass(frozen=True)
class Problem:
    """A rejected row of the data, or a rejected question."""

    dataset: str
    line: int | None  # of the source; None if a model rejects the question, which the reason names
    reason: str
    model: str | None = None  # the model that rejects the question; None for an invalid row
    row_id: str | int | None = None  # the row's id, if it has an id and a line

    def row(self) -> Json:
        """Return the row for problems.jsonl."""
        fields = asdict(self).items()
        return {key: value for key, value in fields if key not in ("model", "row_id") or value is not None}

    @property
    def where(self) -> str:
        """The data set, and the model that rejects the question."""
        return self.dataset if self.model is None else f"{self.dataset} with {self.model}"

    def __str__(self) -> str:
        if self.line is None:
            return f"{self.where}: {self.reason}"
        return f"{self.where}, {RowError(self.line, self.reason, self.row_id)}"


@dataclass(frozen=True)
class Parts:
    """The questions of one data set, by use; the parts are disjoint."""

    name: str
    few_shot: tuple[Question, ...]
    calibration_train: tuple[Question, ...]
    validation: tuple[Question, ...]
    test: tuple[Question, ...]
    problems: tuple[Problem, ...] = ()  # rows that are left out

    @cached_property
    def open_book(self) -> bool:
        """True if there are passages."""
        return any(question.context is not None for question in (*self.test, *self.calibration_train))

    def part(self, name: str) -> tuple[Question, ...]:
        """Return the questions of "calibration_train", "validation" or "test"."""
        return tuple(getattr(self, name))

    @cached_property
    def asking(self) -> PromptConfig:
        """The prompt settings."""
        return PromptConfig(tuple(map(essentials, self.few_shot)))

    def sizes(self) -> dict[str, int]:
        """Return the number of questions of each part."""
        return {part: len(self.part(part)) for part in PARTS}

    def described(self) -> Json:
        """Return sizes and hashes, which identify the questions of a run folder."""
        hashes = {part: data_hash(self.part(part)) for part in PARTS}
        return {"sizes": self.sizes(), "hashes": hashes, "few_shot": data_hash(self.few_shot)}


def load_parts(dataset: DataSet) -> Parts:
    """Read a data set and cut it into parts; InputError if it cannot be read or is too small."""
    if dataset.source in ATLAS:
        return _built_in(dataset)
    problems: list[Problem] = []
    source, test_source = _sources(dataset)
    pool = list(_usable(dataset, source, dataset.split, problems))
    own_test = None
    if dataset.test_source is not None or dataset.test_split is not None:
        own_test = list(_usable(dataset, test_source, dataset.test_split, problems))
    sizes = SplitSizes(
        dataset.calibration_train, dataset.validation or 2000, dataset.test or 2000, dataset.few_shot
    )
    try:
        cut = split_questions(pool, test_questions=own_test, sizes=sizes, seed=dataset.split_seed)
    except InputError as error:
        refused = f" ({len(problems)} rows were rejected, the first: {problems[0]})" if problems else ""
        raise InputError(f"data set {dataset.name!r}: {error}{refused}") from error
    return Parts(dataset.name, cut.few_shot, cut.calibration_train, cut.validation, cut.test, tuple(problems))


def _sources(dataset: DataSet) -> tuple[str, str]:
    """Return the sources of the questions and of the test questions; $NAME is read from the environment."""
    source = os.path.expandvars(dataset.source)
    test_source = os.path.expandvars(dataset.test_source or dataset.source)
    for path in (source, test_source):
        if path.startswith("$"):
            name = path.partition("/")[0]
            raise InputError(
                f"data set {dataset.name!r}: the variable {name} of {path} is not set. Set it to a folder."
            )
    return source, test_source


def _usable(dataset: DataSet, source: str, split: str | None, problems: list[Problem]) -> Iterator[Question]:
    """Return the usable questions of a source; its other rows are added to the problems."""
    for row in read_questions(
        source,
        subset=dataset.subset,
        split=split,
        columns=dataset.columns,
        answers_needed=True,
    ):
        if isinstance(row, RowError):
            problems.append(Problem(dataset.name, row.line, row.reason, row_id=row.row_id))
        elif row.messages:
            reason = "a grid has its own prompt, and the row has 'messages'; pass only 'question'"
            problems.append(Problem(dataset.name, row.line, reason, row_id=row.id))
        else:
            yield row


def _built_in(dataset: DataSet) -> Parts:
    embedded = resolve_name("semcal.demo.questions:load_set")(dataset.source)
    few_shot = embedded.few_shot if dataset.few_shot is None else embedded.few_shot[: dataset.few_shot]
    cut = []
    for part in PARTS:
        questions, count = getattr(embedded, part), getattr(dataset, part)
        if count is not None and count > len(questions):
            raise InputError(
                f"data set {dataset.name!r}: {dataset.source} has {len(questions)} questions for {part}, "
                f"expected {count}. Reduce the size in the settings."
            )
        cut.append(tuple(questions[:count]))
    return Parts(dataset.name, few_shot, *cut)


def essentials(question: Question) -> Question:
    """Return a question with only the fields that a step reads."""
    group = question.extra.get(GROUP)
    return replace(question, extra={} if group is None else {GROUP: group})


# ---- Candidates


def grid_temperatures() -> Mapping[str, float]:
    """Return name → temperature of the candidates of TS-grid."""
    return {f"T = {temperature:.3f}": temperature for temperature in GRID}


def known_temperatures() -> Mapping[str, float]:
    """Return name → temperature of the candidates that are not fitted."""
    unfitted = {name: t for name, method in UNFITTED.items() if (t := method.temperature) is not None}
    return {**unfitted, **grid_temperatures()}


def candidates_of(settings: GridSettings) -> dict[str, list[Candidate]]:
    """Return method → its candidates, in order; Calibrated has none."""
    candidates = {}
    for method in settings.methods:
        if method in FROM_SAMPLES:
            candidates[method] = [Candidate(name) for name in grid_temperatures()]
        elif method in FITTED:
            candidates[method] = [one for fit in fits_of(settings, [method]) for one in fit.candidates]
        elif method != CALIBRATED:
            candidates[method] = [Candidate(method)]
    return candidates


def nothing_to_choose(settings: GridSettings) -> bool:
    """Return whether each method has only one candidate, so that validation questions are not needed."""
    one_each = all(len(candidates) == 1 for candidates in candidates_of(settings).values())
    return one_each and len(settings.selection.measure_alphas) == 1


class CandidateChoice(BaseModel):
    """The candidate of a method for a measure, and the measure's parameter."""

    model_config = ConfigDict(frozen=True)

    candidate: str
    measure_alpha: float | None  # of T-SC and G-SC
    loss: str | None
    alpha: float | None  # of selective smoothing
    weight_decay: float | None

    @classmethod
    def of(cls, candidate: Candidate, measure_alpha: float | None) -> CandidateChoice:
        """Return the choice of a candidate with a parameter of the measure."""
        fields = asdict(candidate)
        return cls(candidate=fields.pop("name"), measure_alpha=measure_alpha, **fields)


#: Choices by method and measure.
Choices = Mapping[str, Mapping[str, CandidateChoice]]


class Selected(BaseModel):
    """The choices on validation questions, as `SelectStep` returns them."""

    model_config = ConfigDict(frozen=True)

    methods: Choices  # at m samples, from all candidates
    by_loss: Mapping[str, Choices] = {}  # from the candidates of one loss
    by_draws: Mapping[str, Choices] = {}  # at other numbers of samples
    table: list[Json] = []  # scores of all candidates


def only_choices(settings: GridSettings) -> Selected:
    """Return the choices of methods with a single candidate, without scores."""
    (alpha,) = settings.selection.measure_alphas
    methods = {
        method: {
            name: CandidateChoice.of(only, alpha if measure.parameter else None)
            for name, measure in MEASURES.items()
        }
        for method, (only,) in candidates_of(settings).items()
    }
    return Selected(methods=methods, by_draws={str(count): methods for count in settings.chosen_at})


def labelled_beside(settings: GridSettings, validation: int) -> int:
    """Return the number of calibration-train questions for Calibrated, besides validation questions."""
    return max(0, settings.calibrated.questions - validation)


def fits_of(settings: GridSettings, methods: Iterable[str]) -> list[CandidateFit]:
    """Return the fits of some methods in the first run."""
    fitting = settings.fitting
    return candidate_fits(
        [method for method in settings.methods if method in FITTED and method in methods],
        losses=fitting.losses,
        weight_decays=fitting.weight_decays,
        solver=fitting.solver,
    )


def refits_of(settings: GridSettings, names: Sequence[str]) -> list[CandidateFit]:
    """Return the fits of candidates in later runs; exact solutions have no seed, so runs share them."""
    if not settings.runs.refit:
        return []
    return [
        replace(fit, losses=(loss,), run=run)
        for run in range(1, settings.runs.count)
        for fit in fits_of(settings, FITTED)
        if fit.solver == "sgd"
        for loss, candidate in zip(fit.losses, fit.candidates)
        if candidate.name in names
    ]


# ---- Blocks, and their costs


def expected_blocks(settings: GridSettings, sizes: Mapping[str, int]) -> Counter[str]:
    """Return the number of blocks by stage of a model on a data set with parts of these sizes."""
    validation, test = block_count(settings, sizes["validation"]), block_count(settings, sizes["test"])
    extras = settings.extras
    chosen = nothing_to_choose(settings)
    sampled = test if chosen else validation + test
    blocks = Counter({"check": 1, "select": 1 - chosen, "greedy": test, "measure": test})
    blocks += Counter(dict.fromkeys(("sample", "cluster", "grade"), sampled))
    if set(settings.methods) & set(FITTED):
        fits = len(fits_of(settings, FITTED))
        blocks += Counter({"features": 1, "diagnose": int(extras.token_losses), "fit": fits})
    if CALIBRATED in settings.methods:
        more = labelled_beside(settings, 0 if chosen else sizes["validation"])
        labelled = block_count(settings, min(more, sizes["calibration_train"]))
        blocks += Counter({"sample": labelled, "cluster": labelled, "calibrate": 1, "apply": test})
    blocks["nli"] = test * extras.entailment * ("Base" in settings.methods)
    return +blocks


def block_count(settings: GridSettings, questions: int) -> int:
    """Return the number of blocks for a number of questions."""
    return -(-questions // settings.block)


@dataclass(frozen=True)
class CellForecast:
    """The forecast for one model on one data set."""

    model: str
    dataset: str
    questions: dict[str, int]  # by part
    jobs: Counter[str]  # by stage
    answers: int  # sampled and greedy answers
    answer_tokens: int  # maximum number of tokens of answers
    nli_calls: int  # maximum: one for every ordered pair of answers to a question


@dataclass(frozen=True)
class Forecast:
    """The forecast for a grid."""

    cells: tuple[CellForecast, ...]
    problems: int  # number of rows of the data that would be left out
    seconds: float | None  # seconds for the first question; None if not measured
    timing: str  # description of the timing, or the reason for none

    @property
    def jobs(self) -> Counter[str]:
        """The number of jobs of all cells, by stage."""
        return sum((cell.jobs for cell in self.cells), Counter())

    @property
    def questions(self) -> dict[str, int]:
        """The number of questions of all data sets, by part."""
        datasets = {cell.dataset: cell.questions for cell in self.cells}
        return {part: sum(sizes[part] for sizes in datasets.values()) for part in PARTS}

    def tree(self) -> Json:
        """Return the forecast as plain data."""
        totals = {"jobs": self.jobs, "questions": self.questions, "problems": self.problems}
        return {**totals, "cells": list(map(vars, self.cells)), "first_question_seconds": self.seconds}

    def lines(self) -> Iterator[str]:
        """Yield the forecast as lines of text."""
        jobs = ", ".join(f"{count} {stage}" for stage, count in self.jobs.items())
        yield f"jobs: {self.jobs.total()} ({jobs})"
        refused = f" (bad rows that would be left out: {self.problems})" if self.problems else ""
        yield "questions: " + ", ".join(f"{n} {part}" for part, n in self.questions.items()) + refused
        for cell in self.cells:
            yield (
                f"{cell.model} on {cell.dataset}: {cell.answers:,} answers of at most "
                f"{cell.answer_tokens:,} tokens; NLI calls: at most {cell.nli_calls:,}"
            )
        yield f"The numbers assume that {CHOSEN} candidates of each method are chosen by a measure or loss."
        yield f"time: {self.timing}"


def forecast(settings: GridSettings, open_state: Callable[[], WorkerState] | None = None) -> Forecast:
    """Count the work of a grid, and time the first test question of its first cell.

    The questions of data sets on this machine are counted; for others, a calibration-train part without a
    size counts as 60,000. `open_state` returns a loader of the first cell's model; without it, nothing is
    timed. InputError if a data set on this machine has too few questions.
    """
    parts = [
        load_parts(dataset)
        if dataset.source in ATLAS or all(map(os.path.exists, _sources(dataset)))
        else None
        for dataset in settings.datasets
    ]
    cells = tuple(
        _cell_forecast(settings.of_model(model), model, dataset, questions)
        for model in settings.models
        for dataset, questions in zip(settings.datasets, parts)
    )
    problems = sum(len(questions.problems) for questions in parts if questions is not None)
    seconds, timing = _time_first_question(settings, cells[0], parts[0], open_state)
    return Forecast(cells, problems, seconds, timing)


def _cell_forecast(
    settings: GridSettings, model: Model, dataset: DataSet, parts: Parts | None
) -> CellForecast:
    sampling = settings.sampling
    if parts is None:
        sizes = {part: int(getattr(dataset, part) or 60_000) for part in PARTS}
        longest = settings.max_new_tokens(open_book="squad" in dataset.source.lower())
    else:
        sizes, longest = parts.sizes(), settings.max_new_tokens(open_book=parts.open_book)
    jobs, candidates = expected_blocks(settings, sizes), candidates_of(settings)
    chosen = {method: min(len(tried), CHOSEN) for method, tried in candidates.items()}
    if settings.runs.refit:
        jobs["fit"] += (settings.runs.count - 1) * sum(chosen.get(method, 0) for method in FITTED)
    validation = 0 if nothing_to_choose(settings) else sizes["validation"]
    labelled = labelled_beside(settings, validation) if CALIBRATED in settings.methods else 0
    moved = len(settings.datasets) - 1 if settings.extras.transfer else 0  # temperatures of other data sets
    more = max([0, *(count - sampling.m for count in settings.counts)])
    draws = (
        validation * sum(map(len, candidates.values())) * max([sampling.m, *settings.chosen_at])
        + min(labelled, sizes["calibration_train"]) * sampling.m
        + sizes["test"] * (sum(chosen.values()) + moved) * (settings.runs.count * sampling.m + more)
    )
    return CellForecast(
        model=model.name,
        dataset=dataset.name,
        questions=sizes,
        jobs=jobs,
        answers=draws + sizes["test"],
        answer_tokens=(draws + sizes["test"]) * longest,
        nli_calls=0 if settings.equivalence == "exact" else draws * (sampling.m - 1),
    )


def _time_first_question(
    settings: GridSettings,
    cell: CellForecast,
    parts: Parts | None,
    open_state: Callable[[], WorkerState] | None,
) -> tuple[float | None, str]:
    """Return the seconds for Base's answers to the first cell's first test question, and a description."""
    from semcal.models.sample import SampleStep, Sampling, SamplingConfig
    from semcal.steps import RecalibratorSource

    model, m = settings.models[0], settings.sampling.m
    if model.may_charge:
        return None, "not measured, because a server may charge for it"
    if parts is None or open_state is None:
        missing = cell.dataset if parts is None else cell.model
        return None, f"not measured, because {missing} is not on this machine"
    longest = settings.max_new_tokens(open_book=parts.open_book)
    config = SamplingConfig(m, max_new_tokens=longest, answer_format=settings.sampling.answer_format)
    sampling = Sampling((), parts.asking, config, settings.seeds[:1])
    step = SampleStep(sampling, sources=(RecalibratorSource("Base"),))
    state, seconds = open_state(), 0.0
    try:
        state.choose((model, settings.equivalence))
        for _ in range(2):  # the first call also loads the model, and reads the common prefix of prompts
            begun = time.perf_counter()
            rows = step([Row.of(question) for question in parts.test[:1]], state, lambda _: None)
            seconds = time.perf_counter() - begun
            for failure in failures_of(rows).values():
                return None, f"unknown: {failure}"
    except (ModelError, ServerError) as error:
        return None, f"unknown: {error}"
    who = model.name if model.is_server else f"{model.name} (with loading)"
    return seconds, f"{m} answers of {who} to the first test question of {cell.dataset} took {seconds:.2g} s"
