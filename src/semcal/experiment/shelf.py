"""What a process that works for a grid holds: models, recalibrators, features, each read when needed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semcal.engine.equivalence import Equivalence
from semcal.engine.language_model import LanguageModel
from semcal.engine.loading import load_equivalence, load_model
from semcal.errors import QuestionError, StoreError
from semcal.experiment.grid_settings import Model
from semcal.experiment.question_sets import questions_of
from semcal.pipeline.fitting import CalibrationSet, calibration_features
from semcal.pipeline.prompting import Asking
from semcal.qa.datasets import load_questions
from semcal.recalibration import (
    SE,
    AnyRecalibrator,
    Base,
    CalibrationFeatures,
    LogPartitionTable,
    Temperature,
    fingerprint,
    from_pretrained,
    tabulate,
)

__all__ = ["Calibration", "Shelf", "open_shelf"]

Spec = Mapping[str, Any]


@dataclass
class Calibration:
    """Labelled questions as one model reads them, with their features and table."""

    asking: Asking
    labelled: CalibrationSet
    features: CalibrationFeatures
    table: LogPartitionTable | None = None


class Shelf:
    """What jobs of a grid are given.

    One language model is kept at a time, and one set of features.

    Parameters
    ----------
    folder : Path
        The run folder, from which recalibrators and calibration questions are read.
    load_model : callable
        Gives the language model of a `Model`.
    load_judge : callable
        Gives the equivalence of a name.
    """

    def __init__(
        self,
        folder: Path,
        load_model: Callable[[Model], LanguageModel],
        load_judge: Callable[[str], Equivalence],
    ) -> None:
        self.folder = folder
        self._load_model = load_model
        self._load_judge = load_judge
        self._model: tuple[Model, LanguageModel] | None = None
        self._judge: tuple[str, Equivalence] | None = None
        self._recalibrators: dict[str, AnyRecalibrator] = {}
        self._calibration: tuple[Any, Calibration] | None = None

    def model(self, spec: Spec) -> LanguageModel:
        """The language model of a job."""
        wanted = Model(**spec["model"])
        if self._model is None or self._model[0] != wanted:
            if self._model is not None:
                self._clear_model()  # the old model goes before the new one comes
            self._model = wanted, self._load_model(wanted)
        return self._model[1]

    def clear(self) -> None:
        """Hold nothing any more; what is asked for again is read again."""
        self._judge = None
        self._clear_model()

    def _clear_model(self) -> None:
        self._model = self._calibration = None
        self._recalibrators.clear()
        gc.collect()

    def judge(self, spec: Spec) -> Equivalence:
        """The equivalence of a job."""
        name = spec["equivalence"]
        if self._judge is None or self._judge[0] != name:
            self._judge = name, self._load_judge(name)
        return self._judge[1]

    def recalibrator(self, reference: Spec) -> AnyRecalibrator:
        """What a reference stands for: nothing fitted, a temperature, or what lies in the run folder.

        Raises
        ------
        StoreError
            If what lies there is damaged or another one.
        """
        if "temperature" in reference:
            return Temperature(reference["temperature"])
        if "folder" not in reference:
            return {"Base": Base, "SE": SE}[reference["name"]]()
        wanted = reference["fingerprint"]
        if wanted not in self._recalibrators:
            found, _ = from_pretrained(self.folder / reference["folder"])
            if fingerprint(found) != wanted:
                raise StoreError(
                    f"{self.folder / reference['folder']} holds another recalibrator than the one that this "
                    "run was made with; delete the folder blocks/fit and run the same command again"
                )
            self._recalibrators[wanted] = found
        return self._recalibrators[wanted]

    def calibration(self, spec: Spec) -> Calibration:
        """The calibration questions of a job; their features are made where they are not there yet."""
        model = self.model(spec)
        states = self.folder / spec["features"] / "states.bin"
        key = (spec["questions"], spec["data_hash"], spec["features"], _file(states))
        if self._calibration is None or self._calibration[0] != key:
            self._calibration = None
            asking = Asking(questions_of(spec["few_shot"]))
            labelled = self.labelled(spec, asking)
            features = calibration_features(
                model, labelled, asking=asking, whole=spec["whole"], store=self.folder / spec["features"]
            )
            self._calibration = (*key[:3], _file(states)), Calibration(asking, labelled, features)
        return self._calibration[1]

    def labelled(self, spec: Spec, asking: Asking) -> CalibrationSet:
        """The labelled questions of a job without those that do not fit the model."""

        def leave_out(error: QuestionError) -> None:
            del error  # told by the job that checks all questions

        questions = load_questions(self.folder / spec["questions"], answers_needed=True)
        return CalibrationSet.of(self.model(spec), questions, asking=asking, on_bad_question=leave_out)

    def table(self, spec: Spec) -> LogPartitionTable:
        """The table of a job's features, for fits by gradient steps."""
        found = self.calibration(spec)
        if found.table is None:
            found.table = tabulate(found.features, self.model(spec).logits)
        return found.table


def _file(path: Path) -> int | None:
    """What tells a file from one of the same name that was removed; None if it is not there."""
    return path.stat().st_ino if path.exists() else None


def open_shelf(
    folder: str | Path,
    *,
    device: str | None = None,
    nli_device: str | None = None,
    memory: str | int | None = None,
) -> Shelf:
    """A shelf that loads models by their names; NLI verdicts are shared through a file in the run folder.

    Parameters
    ----------
    folder : str or Path
        The run folder.
    device, nli_device : str, optional
        Where the language model and the NLI model run.
    memory : str or int, optional
        What keys and values of a batch may take, such as "2GB".
    """

    def load(model: Model) -> LanguageModel:
        return load_model(
            model.path, device=device, dtype=model.dtype, revision=model.revision, memory=memory
        )

    def judge(name: str) -> Equivalence:
        return load_equivalence(name, device=nli_device or device, cache=Path(folder) / "verdicts.sqlite")

    return Shelf(Path(folder), load, judge)
