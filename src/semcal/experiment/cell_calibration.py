"""The method Calibrated of a cell: learnt from labelled questions, applied to Base's answers of every run."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from semcal.errors import SemcalWarning
from semcal.experiment.answer_jobs import AnswerBlock
from semcal.experiment.cell import Cell, Incomplete
from semcal.experiment.environment import versions
from semcal.experiment.fit_jobs import ModelIdentity
from semcal.experiment.grid_blocks import Lines, known_temperatures, labelled_beside
from semcal.experiment.grid_settings import Calibrating, Grading
from semcal.experiment.paths import calibrated_path, calibration_folder, rows_path
from semcal.experiment.row_jobs import passage_and_group
from semcal.pipeline.measure import measure_rows
from semcal.pipeline.prompting import PromptConfig
from semcal.pipeline.sample import SamplePass
from semcal.pipeline.worker_state import WorkerState
from semcal.qa.questions import Question, data_hash
from semcal.workers import Progress

if TYPE_CHECKING:
    from semcal.pipeline.measure import RowsAt
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
    ties: str = "likelier"

    def key(self) -> dict[str, Any]:
        """What its rows depend on beside the model."""
        names = ("m", "seed", "equivalence", "linkage", "dataset", "max_new_tokens", "folder", "ties")
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
                {t: measure_rows(drawn[name], ties=self.ties) for t, name in self.candidates.items()},
                learn_temperature=False,  # Calibrated gives Base's answers
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


Blocks = Sequence[AnswerBlock | None]


def labelled_blocks(cell: Cell, validation: Sequence[AnswerBlock]) -> Blocks:
    """Blocks of the labelled questions, answered and clustered; None where one is not there.

    They are those of `validation`, if these questions are asked anyway, and then the first of
    calibration-train, which Base alone is asked.
    """
    settings = cell.settings
    further = labelled_beside(settings, sum(len(block.questions) for block in validation))
    if not further:
        return validation
    base = SamplePass((cell.source("Base"),), settings.seeds[:1], settings.sampling.m, (0,), ())
    return [*validation, *cell.clustered("calibration_train", [base], lambda: None, further)]


def calibrated_rows(
    cell: Cell, labelled: Blocks, asked: Mapping[str, Sequence[Lines]], *, with_se: bool
) -> dict[str, list[Lines]]:
    """Learn a calibration once, and give Base's test answers of every run their probabilities.

    `asked` is file → finished rows of the test questions, a list a block; what is returned, file → its
    lines. `with_se`: the labelled questions were also drawn at the temperature of SE. Incomplete where
    blocks of other shards are missing.
    """
    names, settings = (cell.model.name, cell.parts.name), cell.settings
    known = known_temperatures()
    candidates = {known[name]: name for name in ("Base", *["SE"] * with_se)}
    folder = calibration_folder(*names)
    learnt = _learnt(cell, labelled, candidates, folder)
    runs = range(settings.runs.count)
    files = [[asked[rows_path(*names, name, run)] for name in candidates.values()] for run in runs]
    jobs = [
        ApplyJob(
            folder,
            learnt,
            tuple(dict(zip(candidates, (of_one[place] for of_one in of_run))) for of_run in files),
            settings.grading,
        )
        for place in range(len(cell.cut("test")))
    ]
    found: dict[str, list[Lines]] = {calibrated_path(*names, run): [] for run in runs}
    for lines, (_, block) in zip(cell.done("test", jobs), cell.cut("test")):
        if lines is None:
            raise Incomplete
        for run, of_run in enumerate(found.values()):
            of_run.append(lines[run * len(block) : (run + 1) * len(block)])
    return found


def _learnt(cell: Cell, labelled: Blocks, candidates: Mapping[float, str], folder: str) -> Lines:
    """The row of the calibration."""
    settings = cell.settings
    known = tuple(block for block in labelled if block is not None)
    if len(known) < len(labelled):
        raise Incomplete
    job = CalibrateJob(
        known,
        settings.sampling.m,
        candidates,
        settings.calibrated,
        settings.grading,
        settings.seeds[0],
        cell.identity,
        cell.asking,
        settings.equivalence,
        settings.clustering.linkage,
        cell.parts.name,
        cell.max_new_tokens,
        folder,
        settings.clustering.ties,
    )
    needs = (cell.root / folder / "calibration.json",)
    planned = cell.block(job, "calibration_train", "all", needs=needs)
    (lines,) = cell.blocks.rows([planned], cell.priority, everyone=True)
    return lines or []
