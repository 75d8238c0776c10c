"""The run folder of a grid: its paths, its state, and a finished run.

Analyses, tables, figures and the page use only `FinishedRun`, so they need no model.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from semcal.errors import InputError, StoreError, UsageError
from semcal.experiment.grid_plan import STAGES, expected_blocks
from semcal.experiment.grid_settings import (
    CALIBRATED,
    FILE,
    PARTS,
    GridSettings,
    read_settings,
    slug,
)
from semcal.files import clear_folder, own_files, read_object
from semcal.measures import MEASURES
from semcal.rows import Json
from semcal.store import read_block

#: The sizes and hashes of the parts of every data set.
QUESTIONS = "questions.json"
#: The folder of calibration questions and features.
SCRATCH = "work"


def recalibrator_folder(model: str, dataset: str, candidate: str, run: int = 0) -> str:
    """Return the folder of a recalibrator; refits of later runs are inside the folder of the first run.

    >>> recalibrator_folder("llama", "trivia", "TS NLL")
    'recalibrators/llama/trivia/TS_NLL'
    """
    base = f"recalibrators/{slug(model)}/{slug(dataset)}/{slug(candidate)}"
    return base if run == 0 else f"{base}/run{run}"


def calibration_folder(model: str, dataset: str) -> str:
    """Return the calibration folder of a model and data set, for `semcal ask --calibration`."""
    return f"calibrations/{slug(model)}/{slug(dataset)}"


def calibrated_path(model: str, dataset: str, run: int) -> str:
    """Return the file of the test answers of a run with their calibrated probabilities."""
    return f"{calibration_folder(model, dataset)}/run{run}.jsonl"


def selection_path(model: str, dataset: str) -> str:
    """Return the file of the choices for a model and data set."""
    return f"selection/{slug(model)}/{slug(dataset)}.json"


def rows_path(model: str, dataset: str, candidate: str, run: int, count: int | None = None) -> str:
    """Return the file of the rows of a candidate with m samples, or with another `count`.

    >>> rows_path("llama", "trivia", "TS SS 0.1", 2, 25)
    'samples/llama/trivia/TS_SS_0.1/run2.n25.jsonl'
    """
    draws = "" if count is None else f".n{count}"
    return str(Path("samples", slug(model), slug(dataset), slug(candidate), f"run{run}{draws}.jsonl"))


@dataclass(frozen=True)
class RunState:
    """The progress of a run."""

    planned: Counter[str]  # blocks by stage
    missing: Counter[str]
    n_pairs: int  # pairs of a model and a data set
    n_written: int  # pairs with written rows
    damaged: tuple[str, ...]  # errors of damaged blocks

    @property
    def complete(self) -> bool:
        """True if nothing is missing or damaged."""
        return not self.damaged and self.n_written == self.n_pairs and not self.missing.total()


def state_of(folder: Path) -> RunState:
    """Read all blocks of a run folder, and return its state; UsageError for another folder."""
    if not is_grid_run(folder):
        raise UsageError(f"{folder}: {FILE} is missing. Pass a run folder, or run `semcal run CONFIG`.")
    settings, path = read_settings(folder / FILE), folder / QUESTIONS
    remedy = "delete it and run the same command again"
    described = read_object(path, remedy=remedy) if path.exists() else {}
    damaged, places = [], set()
    for stage in STAGES:
        for block in sorted((folder / "blocks" / stage).glob("*.jsonl")):
            try:
                _, label = read_block(block)
            except StoreError as error:
                damaged.append(str(error))
            else:  # a block may have been made twice, for other inputs
                place = json.dumps([label.get("part"), label.get("block")])
                places.add((label.get("model"), label.get("dataset"), stage, place))
    found = Counter(place[:3] for place in places)
    planned, missing = Counter[str](), Counter[str]()
    pairs = list(product(settings.models, settings.datasets))
    for model, dataset in pairs:
        sizes = {part: getattr(dataset, part) or 0 for part in PARTS}
        expected = expected_blocks(settings, described.get(dataset.name, {}).get("sizes", sizes))
        planned += expected
        missing += expected - Counter({stage: found[model.name, dataset.name, stage] for stage in expected})
    written = sum((folder / selection_path(model.name, dataset.name)).exists() for model, dataset in pairs)
    return RunState(planned, missing, len(pairs), written, tuple(damaged))


def forget(folder: Path) -> None:
    """Clear a run folder; UsageError for another folder."""
    if is_grid_run(folder):
        clear_folder(folder)
    elif folder.exists() and own_files(folder):
        raise UsageError(f"--fresh: {folder} is not a run folder ({FILE} is missing). Pass another --out.")


StoredRows = list[dict[str, Any]]
ModelDataset = tuple[str, str]

#: The schema of results.json.
RESULTS_SCHEMA = 4
AGAIN = "run `semcal run` again"


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A run folder of the grid."""

    folder: Path
    settings: GridSettings
    selections: Mapping[ModelDataset, Json] = field(repr=False)  # of (model, data set): under selection/
    part: ModelDataset | None = None  # a single pair to look at; all pairs by default

    @property
    def models(self) -> list[str]:
        """The models, in the order of the settings."""
        return [model.name for model in self.settings.models]

    @property
    def datasets(self) -> list[str]:
        """The data sets, in the order of the settings."""
        return [dataset.name for dataset in self.settings.datasets]

    @property
    def methods(self) -> list[str]:
        """The methods with test answers of the pairs, in the order of the settings.

        Calibrated, and methods that none of the models supports, are left out.
        """
        served = [self.selections[pair]["methods"] for pair in self.pairs]
        names = [name for name in self.settings.methods if name != CALIBRATED]
        return [name for name in names if any(name in methods for methods in served)]

    @property
    def calibrated(self) -> bool:
        """True if Calibrated is among the methods."""
        return CALIBRATED in self.settings.methods

    @cached_property
    def measures(self) -> list[str]:
        """The measures that a selection of the pairs has for all methods, in the paper's order."""
        choices_of_pairs = [self.selections[pair]["methods"].values() for pair in self.pairs]
        return [
            name
            for name in MEASURES
            if any(all(name in choice for choice in choices) for choices in choices_of_pairs)
        ]

    @property
    def left_out(self) -> dict[str, list[str]]:
        """Model → the methods and extras that it does not support."""
        left_out = {model: self.selections[model, self.datasets[0]].get("left_out") for model in self.models}
        return {model: list(names) for model, names in left_out.items() if names}

    @property
    def runs(self) -> int:
        """The number of runs."""
        return self.settings.runs.count

    @property
    def m(self) -> int:
        """The number of samples per question."""
        return self.settings.sampling.m

    @property
    def pairs(self) -> list[ModelDataset]:
        """The (model, data set) pairs, with the data sets of one model together."""
        if self.part is not None:
            return [self.part]
        return list(product(self.models, self.datasets))

    def parts(self) -> list[FinishedRun]:
        """Return the run for each of its pairs alone."""
        return [replace(self, part=pair) for pair in self.pairs]

    def refused(self) -> StoredRows:
        """Return the rejected rows of the data: {dataset, line, reason}."""
        path = self.folder / "problems.jsonl"
        return _rows(path) if path.exists() else []

    def open_book(self, dataset: str) -> bool:
        """Return whether the questions of a data set have a passage."""
        return bool(self.selections[self.models[0], dataset]["open_book"])

    def choice(
        self, model: str, dataset: str, method: str, measure: str, *, draws: int | None = None
    ) -> Json:
        """Return the choice of a method for a measure: candidate, its settings, and measure_alpha.

        With `draws`, return the choice at this number of samples; that at m unless candidates were chosen
        there.
        """
        selection = self.selections[model, dataset]
        methods = selection.get("by_draws", {}).get(str(draws), selection["methods"])
        choice: Json = methods[method][measure]
        return choice

    def samples_path(
        self, model: str, dataset: str, candidate: str, run: int, *, draws: int | None = None
    ) -> Path:
        """Return the file of rows; with `draws`, of another number of samples than m."""
        return self.folder / rows_path(model, dataset, candidate, run, None if draws == self.m else draws)

    def rows(
        self, model: str, dataset: str, candidate: str, run: int = 0, *, draws: int | None = None
    ) -> StoredRows:
        """Read the test rows of a candidate and run, in the data set's order; `draws` if not m (figure 6).

        StoreError if the file is missing or damaged, or its number of questions differs from the selection.
        """
        path = self.samples_path(model, dataset, candidate, run, draws=draws)
        if not path.is_file():
            raise StoreError(f"{path} is missing: {AGAIN}")
        rows = _rows(path)
        expected = self.selections[model, dataset]["sizes"]["test"]
        if len(rows) != expected:
            raise StoreError(
                f"{path} holds {len(rows)} questions, expected {expected}: delete it and {AGAIN}"
            )
        return rows

    def calibration(self, model: str, dataset: str) -> Json:
        """Return the content of the calibration of a model and data set; StoreError if missing or damaged."""
        path = self.folder / calibration_folder(model, dataset) / "calibration.json"
        if not path.is_file():
            raise StoreError(f"{path} is missing: {AGAIN}")
        return read_object(path, remedy=f"delete it and {AGAIN}")

    def calibrated_rows(self, model: str, dataset: str, run: int = 0) -> StoredRows:
        """Return the test answers of a run with their calibrated probabilities, in the data set's order.

        Rows {id, text, meaning, probability, probabilities, abstained, share, correct} hold Base's answers in
        their most frequent wording, and their correctness. Errors are those of `rows`.
        """
        path = self.folder / calibrated_path(model, dataset, run)
        expected = self.selections[model, dataset]["sizes"]["test"]
        rows = _rows(path) if path.is_file() else []
        if len(rows) != expected:
            raise StoreError(f"{path} holds {len(rows)} questions, expected {expected}: {AGAIN}")
        return rows


def is_grid_run(folder: Path) -> bool:
    """Return whether a folder holds a run of the grid (and not, for example, of `semcal demo`)."""
    return (folder / FILE).is_file()


def read_finished(folder: Path) -> FinishedRun:
    """Read settings and selections of a run folder; rows are read later.

    InputError if settings.yaml is missing. StoreError, which names the file, if the settings or a selection
    are missing or damaged.
    """
    folder = Path(folder)
    if not is_grid_run(folder):
        raise InputError(f"{folder}: settings.yaml is missing. Pass a folder of `semcal run`.")
    path = folder / FILE
    try:
        settings = read_settings(path)
    except UsageError as error:
        raise StoreError(f"{path} was edited or is of another version ({error}): {AGAIN}") from error
    run = FinishedRun(folder, settings, {})
    return replace(run, selections={pair: _selection(run, *pair) for pair in run.pairs})


def _selection(run: FinishedRun, model: str, dataset: str) -> Json:
    path = run.folder / selection_path(model, dataset)
    if not path.is_file():
        raise StoreError(f"{path} is missing: {AGAIN}")
    selection = read_object(path, remedy=f"delete it and {AGAIN}")
    lacking = [key for key in ("sizes", "open_book", "methods") if key not in selection]
    needed = {*run.settings.methods} - {CALIBRATED, *selection.get("left_out", ())}
    if lacking or not selection["methods"].keys() >= needed:
        names = ", ".join(lacking) or "some of the run's methods"
        raise StoreError(f"{path} lacks {names}: delete it and {AGAIN}")
    return selection


def _rows(path: Path) -> StoredRows:
    try:
        rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is damaged ({error}): delete it and {AGAIN}") from error
    return rows


def read_results(folder: Path) -> Json:
    """Return the content of results.json; StoreError if missing, damaged or of another schema."""
    path = folder / "results.json"
    if not path.is_file():
        raise StoreError(f"{path} is missing: run `semcal report {folder}`")
    remedy = f"run `semcal report {folder}`"
    results = read_object(path, remedy=remedy)
    if results.get("schema") != RESULTS_SCHEMA:
        raise StoreError(f"{path} has schema {results.get('schema')!r}, expected {RESULTS_SCHEMA}: {remedy}")
    return results


def read_environment(folder: Path) -> dict[str, Any]:
    """Return the recorded versions, machine and times; empty if there is no record, StoreError if damaged."""
    path = folder / "environment.json"
    return read_object(path, remedy="delete it; it holds no results") if path.exists() else {}
