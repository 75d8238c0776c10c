"""The method Calibrated of a cell: learnt from labelled questions, applied to Base's answers of every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from semcal.experiment.answer_jobs import AnswerBlock
from semcal.experiment.calibration_jobs import ApplyJob, CalibrateJob
from semcal.experiment.cell import Cell, Incomplete
from semcal.experiment.grid_blocks import Lines
from semcal.experiment.grid_candidates import known_temperatures, labelled_beside
from semcal.experiment.paths import calibrated_path, calibration_folder, rows_path
from semcal.pipeline.sample import SamplePass

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

    Parameters
    ----------
    cell : Cell
    labelled : sequence of AnswerBlock
        The labelled questions.
    asked : mapping
        File → finished rows of the test questions, a list a block.
    with_se : bool
        Whether the labelled questions were also drawn at the temperature of SE.

    Returns
    -------
    dict
        File → its lines, a list a block.

    Raises
    ------
    Incomplete
        Where blocks of other shards are missing.
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
    )
    needs = (cell.root / folder / "calibration.json",)
    planned = cell.block(job, "calibration_train", "all", needs=needs)
    (lines,) = cell.blocks.rows([planned], cell.priority, everyone=True)
    return lines or []
