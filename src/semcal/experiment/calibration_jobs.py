"""Jobs of the method Calibrated: what is learnt from labelled questions, and the test answers under it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from semcal.errors import SemcalWarning
from semcal.experiment.answer_jobs import AnswerBlock
from semcal.experiment.environment import versions
from semcal.experiment.fit_jobs import ModelIdentity
from semcal.experiment.grid_settings import Calibrating, Grading
from semcal.experiment.row_jobs import passage_and_group
from semcal.pipeline.executor import Progress
from semcal.pipeline.measure import measure_rows
from semcal.pipeline.prompting import PromptConfig
from semcal.pipeline.worker_state import WorkerState
from semcal.qa.questions import Question, data_hash

if TYPE_CHECKING:  # jobs are made by processes that need no torch
    from semcal.pipeline.sample_features import RowsAt
    from semcal.recalibration.provenance import Provenance

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class CalibrateJob:
    """The probability that Base's answer is right, learnt from labelled questions; kept in the run folder."""

    stage: ClassVar[str] = "calibrate"
    blocks: tuple[AnswerBlock, ...]
    m: int
    candidates: Mapping[float, str]  # temperature → whose draws are read at it; those of the answer first
    how: Calibrating
    grading: Grading
    seed: int
    identity: ModelIdentity
    asking: PromptConfig
    equivalence: str
    linkage: str
    dataset: str
    max_new_tokens: int
    folder: str  # where the calibration is kept, relative to the run folder

    def key(self) -> dict[str, Any]:
        """What its rows depend on beside the model."""
        names = ("m", "seed", "equivalence", "linkage", "dataset", "max_new_tokens", "folder")
        return {
            "blocks": [block.key() for block in self.blocks],
            "candidates": {f"{t:g}": name for t, name in self.candidates.items()},
            "how": self.how.model_dump(),
            "grading": self.grading.model_dump(),
            **{name: getattr(self, name) for name in names},
        }

    def __call__(self, state: WorkerState, progress: Progress) -> Rows:
        """Learn."""
        from semcal.pipeline.calibrate_rows import calibrate_rows

        del progress
        asked = {question.id: question for block in self.blocks for question in block.questions}
        chosen = dict(list(asked.items())[: self.how.questions])
        drawn: dict[str, Rows] = {name: [] for name in self.candidates.values()}
        for row in (row for block in self.blocks for row in block.rows()):
            if row["id"] in chosen and (row["m"], row["run"]) == (self.m, 0) and row["candidate"] in drawn:
                drawn[row["candidate"]].append({**row, **passage_and_group(chosen[row["id"]])})
        with warnings.catch_warnings():  # of few questions the grid has warned; the rest is in the report
            warnings.simplefilter("ignore", SemcalWarning)
            found = calibrate_rows(
                {t: measure_rows(drawn[name]) for t, name in self.candidates.items()},
                equivalence=self.equivalence,
                linkage=self.linkage,
                grader=self.grading.grader(),
                risk=self.how.risk,
                delta=self.how.delta,
                seed=self.seed,
                max_new_tokens=self.max_new_tokens,
                provenance=self._provenance(state, list(chosen.values())),
            )
        found.save_pretrained(state.folder / self.folder)
        threshold = None if found.threshold is None else asdict(found.threshold)
        return [
            {
                "temperatures": list(found.temperatures),
                "map": asdict(found.map),
                "further": found.further,
                "threshold": threshold,
                "report": asdict(found.report),
            }
        ]

    def _provenance(self, state: WorkerState, labelled: Sequence[Question]) -> Provenance:
        from semcal.recalibration.provenance import Provenance

        return Provenance(
            model=state.model.name,
            revision=self.identity.revision,
            prompt=self.asking.describe(),
            prompt_hash=self.identity.prompt,
            data=f"{self.dataset}, labelled questions of the run",
            data_hash=data_hash(labelled),
            n_questions=len(labelled),
            seed=self.seed,
            versions=versions(),
        )


@dataclass(frozen=True)
class ApplyJob:
    """Base's answers to a block of test questions in one wording, and the probability that each is right."""

    stage: ClassVar[str] = "apply"
    folder: str  # of the calibration, relative to the run folder
    calibration: Sequence[str]  # its row, as JSON
    #: For each run: temperature → finished rows as JSON, those of the answer first.
    runs: Sequence[Mapping[float, Sequence[str]]]
    grading: Grading

    def key(self) -> dict[str, Any]:
        """What its rows depend on."""
        return {
            "folder": self.folder,
            "calibration": list(self.calibration),
            "runs": [{f"{t:g}": list(lines) for t, lines in rows.items()} for rows in self.runs],
            "grading": self.grading.model_dump(),
        }

    def __call__(self, state: WorkerState, progress: Progress) -> Rows:
        """Apply."""
        from semcal.pipeline.calibrated import Calibration

        del progress
        calibration = Calibration.from_pretrained(state.folder / self.folder)
        grader, found = self.grading.grader(), []
        for lines_at in self.runs:
            rows: RowsAt = {t: list(map(json.loads, lines)) for t, lines in lines_at.items()}
            for row, one in zip(next(iter(rows.values())), calibration.apply(rows)):
                grade = grader.grade(row["question"], [one.text], row["answers"])
                share = len(row["clusters"][one.meaning]) / len(row["samples"])
                found.append({"id": row["id"], **asdict(one), "share": share, "correct": grade.correct})
        return found
