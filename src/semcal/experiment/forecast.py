"""What a grid takes, before it is begun: jobs, answers, tokens and calls of each cell; a question is timed.

Data on the hub need not be there: the sizes of the settings stand for them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semcal.errors import ModelError
from semcal.experiment.grid_blocks import (
    candidates_of,
    expected_blocks,
    labelled_beside,
    nothing_to_choose,
)
from semcal.experiment.grid_settings import CALIBRATED, DataSet, GridSettings, Model
from semcal.experiment.question_sets import PARTS, Parts, essentials, load_parts, sizes_of_built_in
from semcal.models.language_model import PromptConfig
from semcal.models.sampling import CHARACTERS, SampleJob, SamplePass
from semcal.progress import duration
from semcal.recalibration.methods import FITTED
from semcal.steps import RecalibratorSource

if TYPE_CHECKING:
    from semcal.experiment.grid_state import GridState

#: Candidates of a method that are reckoned to be chosen for some measure or loss.
CHOSEN = 5


@dataclass(frozen=True)
class CellForecast:
    """What one model on one data set takes."""

    model: str
    dataset: str
    questions: dict[str, int]  # by part
    jobs: Counter[str]  # by stage
    answers: int  # drawn and greedy
    answer_tokens: int  # of these at most
    question_tokens: int | None  # of questions and passages, each read once; None where they are not here
    nli_calls: int  # at most: for every ordered pair of answers to a question


@dataclass(frozen=True)
class Forecast:
    """What a grid takes."""

    cells: tuple[CellForecast, ...]
    problems: int  # rows of the data that would be left out
    seconds: float | None  # that a first question took; None where it was not measured
    timing: str  # in words: what was timed, or why nothing was

    @property
    def jobs(self) -> Counter[str]:
        """The jobs of all cells, by stage."""
        return sum((cell.jobs for cell in self.cells), Counter())

    @property
    def questions(self) -> dict[str, int]:
        """The questions of all data sets, by part."""
        datasets = {cell.dataset: cell.questions for cell in self.cells}
        return {part: sum(sizes[part] for sizes in datasets.values()) for part in PARTS}

    def tree(self) -> dict[str, Any]:
        """As plain data."""
        totals = {"jobs": self.jobs, "questions": self.questions, "problems": self.problems}
        return {**totals, "cells": list(map(vars, self.cells)), "first_question_seconds": self.seconds}

    def lines(self) -> Iterator[str]:
        """In words."""
        jobs = ", ".join(f"{count} {stage}" for stage, count in self.jobs.items())
        yield f"jobs: {self.jobs.total()} ({jobs})"
        refused = f" (rows of the data that would be left out: {self.problems})" if self.problems else ""
        yield "questions: " + ", ".join(f"{n} {part}" for part, n in self.questions.items()) + refused
        for cell in self.cells:
            read = (
                f", about {cell.question_tokens:,} of questions and passages" if cell.question_tokens else ""
            )
            yield (
                f"{cell.model} on {cell.dataset}: {cell.answers:,} answers; tokens: at most "
                f"{cell.answer_tokens:,} of answers{read}; NLI calls: at most {cell.nli_calls:,}"
            )
        yield f"assumed: {CHOSEN} candidates of a method chosen for some measure or loss"
        yield f"time: {self.timing}"


def forecast(settings: GridSettings, open_state: Callable[[], GridState] | None = None) -> Forecast:
    """Count what a grid takes, and time the first test question of its first cell.

    Questions of data sets that are here are counted; of others a calibration-train part without a size counts
    as 60 000. `open_state` gives what loads the model of the first cell; without it nothing is timed.
    InputError if a data set that is here has too few questions.
    """
    parts = [_parts_here(dataset) for dataset in settings.datasets]
    cells = tuple(
        _cell(settings.of_model(model), model, dataset, questions)
        for model in settings.models
        for dataset, questions in zip(settings.datasets, parts)
    )
    problems = sum(len(questions.problems) for questions in parts if questions is not None)
    seconds, timing = _time_first_question(settings, cells[0], parts[0], open_state)
    return Forecast(cells, problems, seconds, timing)


def _parts_here(dataset: DataSet) -> Parts | None:
    """The questions of a data set that need not be fetched."""
    paths = (dataset.source, dataset.test_source or dataset.source)
    built_in = sizes_of_built_in(dataset.source) is not None
    return load_parts(dataset) if built_in or all(Path(path).exists() for path in paths) else None


def _cell(settings: GridSettings, model: Model, dataset: DataSet, parts: Parts | None) -> CellForecast:
    characters = 0
    if parts is None:
        sizes = {part: int(getattr(dataset, part) or 60_000) for part in PARTS}
        longest = settings.max_new_tokens(open_book="squad" in dataset.source.lower())
    else:
        sizes, longest = parts.sizes(), settings.max_new_tokens(open_book=parts.open_book)
        questions = (question for part in PARTS for question in parts.part(part))
        characters = sum(len(question.question) + len(question.context or "") for question in questions)
    jobs = expected_blocks(settings, sizes)
    chosen = {method: min(len(tried), CHOSEN) for method, tried in candidates_of(settings).items()}
    if settings.runs.refit:
        jobs["fit"] += (settings.runs.count - 1) * sum(chosen.get(method, 0) for method in FITTED)
    draws = _drawn(settings, sizes, chosen)
    return CellForecast(
        model=model.name,
        dataset=dataset.name,
        questions=sizes,
        jobs=jobs,
        answers=draws + sizes["test"],
        answer_tokens=(draws + sizes["test"]) * longest,
        question_tokens=None if parts is None else characters // CHARACTERS,
        nli_calls=0 if settings.equivalence == "exact" else draws * (settings.sampling.m - 1),
    )


def _drawn(settings: GridSettings, sizes: dict[str, int], chosen: dict[str, int]) -> int:
    """Answers that are drawn."""
    sampling, candidates = settings.sampling, candidates_of(settings)
    tried = {candidate.name for of_method in candidates.values() for candidate in of_method}
    validation = 0 if nothing_to_choose(settings, candidates) else sizes["validation"]
    labelled = labelled_beside(settings, validation) if CALIBRATED in settings.methods else 0
    moved = len(settings.datasets) - 1 if settings.extras.transfer else 0  # temperatures of other data sets
    more = max([0, *(count - sampling.m for count in settings.counts)]) * sampling.counts_runs
    return (
        validation * len(tried) * max([sampling.m, *settings.chosen_at])
        + min(labelled, sizes["calibration_train"]) * sampling.m
        + sizes["test"] * (sum(chosen.values()) + moved) * (settings.runs.count * sampling.m + more)
    )


def _time_first_question(
    settings: GridSettings,
    cell: CellForecast,
    parts: Parts | None,
    open_state: Callable[[], GridState] | None,
) -> tuple[float | None, str]:
    """Seconds that Base's answers to the first test question of the first cell take, in words as well."""
    model = settings.models[0]
    if model.is_server:
        return None, "not measured, since a server may charge for a first question"
    if parts is None or open_state is None:
        missing = cell.dataset if parts is None else cell.model
        return None, f"not measured, since {missing} is not on this machine"
    asking = PromptConfig(tuple(map(essentials, parts.few_shot)))
    passes = (SamplePass((RecalibratorSource("Base"),), settings.seeds[:1], settings.sampling.m),)
    longest = settings.max_new_tokens(open_book=parts.open_book)
    job, state, seconds = SampleJob(parts.test[:1], asking, passes, longest), open_state(), 0.0
    try:
        state.choose(model, settings.equivalence)
        for _ in range(2):  # the first time also loads the model, and reads what all prompts begin with
            begun = time.perf_counter()
            job(state, lambda _: None)
            seconds = time.perf_counter() - begun
    except ModelError as error:
        return None, f"not known: {error}"
    m, all_answers = settings.sampling.m, duration(cell.answers / settings.sampling.m * seconds)
    return seconds, (
        f"{model.name}, loaded for this, answered the first test question of {cell.dataset} {m} times in "
        f"{seconds:.2g} s: {all_answers} for all answers of this cell, less where they share a pass"
    )
