"""What a worker of a grid holds: models, recalibrators and features, each loaded when a job needs it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from semcal.data.datasets import load_questions
from semcal.experiment.fit_jobs import CalibrationSource
from semcal.experiment.grid_settings import Model
from semcal.models.equivalence import Equivalence
from semcal.models.language_model import Sampler
from semcal.models.loading import load_equivalence, load_model
from semcal.recalibration.attentive import CalibrationFeatures
from semcal.recalibration.calibration_set import CalibrationSet, calibration_features
from semcal.recalibration.exact_fit import LogPartitionTable, tabulate
from semcal.servers.sampler import load_server
from semcal.servers.settings import ServerSettings, read_api_key
from semcal.steps import WorkerState


@dataclass
class Calibration:
    """Labelled questions as one model reads them, with their features and log-partition table."""

    labelled: CalibrationSet
    features: CalibrationFeatures
    table: LogPartitionTable | None = None


class GridState(WorkerState):
    """One language model at a time, and one set of features; a job says by `choose` which model it needs.

    Recalibrators and calibration questions are read from the run folder `folder`; `load_model` and
    `load_equivalence` give the language model of a `Model` and the equivalence of a name.
    """

    def __init__(
        self,
        folder: Path,
        load_model: Callable[[Model], Sampler],
        load_equivalence: Callable[[str], Equivalence],
    ) -> None:
        super().__init__(folder=folder)
        self._load_model = load_model
        self._load_equivalence = load_equivalence
        self._chosen: tuple[Model | None, str] = None, "exact"
        self._loaded: tuple[Model | None, str | None] = None, None
        self._calibration: tuple[Any, Calibration] | None = None

    def choose(self, model: Model, equivalence: str) -> None:
        """Say which models the next job needs; each is loaded when it is used."""
        self._chosen = model, equivalence

    @property
    def model(self) -> Sampler:
        """The language model that was chosen, or a server."""
        chosen, _ = self._chosen
        if self._loaded[0] != chosen or self._language_model is None:
            assert chosen is not None
            self._clear_model()  # the old model goes before the new one comes
            self._language_model = self._load_model(chosen)
            self._loaded = chosen, self._loaded[1]
        return self._language_model

    @property
    def equivalence(self) -> Equivalence:
        """The equivalence that was chosen."""
        _, chosen = self._chosen
        if self._loaded[1] != chosen or self._equivalence is None:
            self._equivalence = self._load_equivalence(chosen)
            self._loaded = self._loaded[0], chosen
        return self._equivalence

    def clear(self) -> None:
        """Hold nothing any more; what is needed again is loaded again."""
        self._equivalence = None
        self._clear_model()

    def _clear_model(self) -> None:
        self._language_model = self._calibration = None
        self._fitted.clear()
        gc.collect()

    def calibration(self, source: CalibrationSource) -> Calibration:
        """The calibration questions; their features are made where they are not there yet."""
        model = self.language_model
        states = self.folder / source.features / "states.bin"
        if self._calibration is None or self._calibration[0] != (source, _file(states)):
            self._calibration = None
            labelled = self._labelled(source)
            features = calibration_features(
                model,
                labelled,
                asking=source.asking,
                whole=source.whole,
                store=self.folder / source.features,
            )
            self._calibration = (source, _file(states)), Calibration(labelled, features)
        return self._calibration[1]

    def _labelled(self, source: CalibrationSource) -> CalibrationSet:
        """The labelled questions without those that do not fit the model, which the check has reported."""
        questions = load_questions(self.folder / source.questions, answers_needed=True)
        return CalibrationSet.of(
            self.language_model, questions, asking=source.asking, on_bad_question=lambda _: None
        )

    def table(self, source: CalibrationSource) -> LogPartitionTable:
        """The log-partition table of the features, for fits by gradient steps."""
        calibration = self.calibration(source)
        if calibration.table is None:
            calibration.table = tabulate(calibration.features, self.language_model.logits)
        return calibration.table


def _file(path: Path) -> int | None:
    """What tells a file from one of the same name that was removed; None if it is not there."""
    return path.stat().st_ino if path.exists() else None


def open_grid_state(
    folder: str | Path,
    *,
    device: str | None = None,
    nli_device: str | None = None,
    memory: str | int | None = None,
    api_key_file: Path | None = None,
) -> GridState:
    """A state that loads models by their names; NLI verdicts are shared through a file in the run folder.

    `memory` is what keys and values of a batch may take, such as "2GB".
    """

    def load(model: Model) -> Sampler:
        if model.is_server:
            options = {} if model.server is None else model.server.model_dump()
            return load_server(model.path, ServerSettings(**options, api_key=read_api_key(api_key_file)))
        return load_model(
            model.path, device=device, dtype=model.dtype, revision=model.revision, memory=memory
        )

    cache = Path(folder) / "verdicts.sqlite"
    return GridState(Path(folder), load, partial(load_equivalence, device=nli_device or device, cache=cache))
