"""The first half of a cell: check the questions, fit every candidate, and see what the fits do."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

from semcal.errors import FitError
from semcal.experiment.cell import Cell
from semcal.experiment.environment import fit_label
from semcal.experiment.fit_jobs import CheckJob, DiagnoseJob, FeaturesJob, FitJob
from semcal.experiment.grid_blocks import (
    FITTED,
    PlannedBlock,
    candidates_of,
    fits_of,
    known_temperatures,
    refits_of,
)
from semcal.experiment.paths import recalibrator_folder
from semcal.experiment.question_sets import PARTS, Problem, essentials
from semcal.pipeline.select import Candidate, CandidateFit
from semcal.pipeline.worker_state import RecalibratorSource
from semcal.qa.questions import data_hash

Spec = dict[str, Any]


def prepare(cell: Cell) -> None:
    """Check the questions, let the model read the calibration questions, and fit the temperatures."""
    _check(cell)
    first = ["TS"] if cell.settings.keep == "chosen" else FITTED
    if any(not cell.blocks.has(_block(cell, fits)) for fits in fits_of(cell.settings, first)):
        _read(cell)
    elif set(cell.settings.methods) & set(FITTED):
        cell.blocks.step("features")
    _fit(cell, fits_of(cell.settings, ["TS"]))


def _check(cell: Cell) -> None:
    """Find the questions that do not fit the model."""
    parts = {part: cell.parts.part(part) for part in PARTS}
    hashes = {part: data_hash(questions) for part, questions in parts.items()}
    bare = {part: tuple(map(essentials, questions)) for part, questions in parts.items()}
    job = CheckJob(cell.asking, bare, hashes, cell.max_new_tokens)
    (lines,) = cell.blocks.rows([cell.block(job, "all", 0)], cell.priority)
    first, *bad = map(json.loads, lines)
    cell.prompt = first["prompt"]
    cell.left_out = {(row["part"], row["id"]) for row in bad}
    cell.problems = [
        Problem(cell.parts.name, None, f"question {row['id']!r}: {row['reason']}", cell.model.name)
        for row in bad
    ]
    for part in ("validation", "test"):
        if not cell.questions(part):
            raise FitError(f"no {part} question fits {cell.name}; the first reason: {cell.problems[0]}")


def _read(cell: Cell) -> None:
    """Let the model read the calibration questions."""
    needs = (cell.root / cell.calibration.features / "blocks.jsonl",)
    block = cell.block(FeaturesJob(cell.calibration), "calibration_train", 0, needs=needs)
    cell.blocks.rows([block], cell.priority)


def refit(cell: Cell, names: Sequence[str]) -> None:
    """Fit candidates anew for the runs after the first, where the settings say so."""
    _fit(cell, refits_of(cell.settings, names))


def fit_again(cell: Cell, wanted: Iterable[RecalibratorSource]) -> None:
    """Fit again those of some recalibrators that were not kept."""
    folders = {one.folder for one in wanted if one.folder is not None}
    gone = {folder for folder in folders if not (cell.root / folder / "calibration.json").exists()}
    if not gone:
        return
    names = [f"{name} (run {run})" for (name, run), row in cell.fitted.items() if row["folder"] in gone]
    cell.blocks.on_remade(
        f"{cell.name}: {len(gone)} recalibrators that were not kept are needed again; the calibration "
        "questions are read again, and they are fitted again: "
        f"{', '.join(names[:4])}{', …' * (len(names) > 4)}"
    )
    known = {name for name, _ in cell.fitted}
    every = [*fits_of(cell.settings, FITTED), *refits_of(cell.settings, sorted(known))]
    _fit(cell, [one for one in every if gone & set(_folders(cell, one).values())], kept=True)


def _fit(cell: Cell, fits: Sequence[CandidateFit], *, kept: bool = False) -> None:
    """Do the fits that are not done; with `kept` those as well whose recalibrators were not kept."""
    blocks = [_block(cell, one, kept=kept) for one in fits]
    found = cell.blocks.rows(blocks, cell.priority, before=lambda: _read(cell))
    for row in map(json.loads, chain.from_iterable(found)):
        cell.fitted[row["candidate"], row["run"]] = row


def _folders(cell: Cell, fits: CandidateFit) -> dict[str, str]:
    """Where each candidate of a fit lies."""
    return {
        name: recalibrator_folder(cell.model.name, cell.parts.name, name, fits.run) for name in fits.names
    }


def _block(cell: Cell, fits: CandidateFit, *, kept: bool = False) -> PlannedBlock:
    fitting, folders = cell.settings.fitting, _folders(cell, fits)
    job = FitJob(
        cell.calibration,
        cell.identity,
        cell.parts.name,
        fits,
        fitting.learning_rate_for(len(cell.parts.calibration_train)),
        fitting.batch_size,
        fitting.warm_up,
        cell.settings.seeds[fits.run],
        folders,
    )
    needs = (cell.root / folder / "calibration.json" for folder in folders.values())
    return cell.block(
        job,
        "calibration_train",
        f"{', '.join(fits.names)} (run {fits.run})",
        needs=tuple(needs) if kept or cell.settings.keep == "all" else (),
        counted_as=fit_label(cell.model.name, fits.method),
    )


def diagnose(cell: Cell) -> list[Spec]:
    """What each candidate does to the tokens of validation answers, with what its fit says of it."""
    _fit(cell, fits_of(cell.settings, [method for method in FITTED if method != "TS"]))
    known = {
        one.name: (method, one)
        for method, given in candidates_of(cell.settings).items()
        if method != "TS-grid"
        for one in given
    }
    if not cell.fitted:
        return []
    if not cell.settings.extras.token_losses:
        return [_described(cell, {"candidate": name}, *known[name]) for name in known]
    sources = tuple(cell.source(name) for name in known)
    job = DiagnoseJob(
        cell.calibration,
        tuple(map(essentials, cell.parts.validation)),
        sources,
        unfitted=tuple(name for name in known if (name, 0) not in cell.fitted),
    )

    def needed() -> None:
        _read(cell)
        fit_again(cell, sources)

    block = cell.block(job, "validation", "all candidates")
    (lines,) = cell.blocks.rows([block], cell.priority, before=needed)
    return [_described(cell, row, *known[row["candidate"]]) for row in map(json.loads, lines)]


def _described(cell: Cell, row: Mapping[str, Any], method: str, candidate: Candidate) -> Spec:
    """An entry of `fits` in the file of selections."""
    unfitted = {"temperature": known_temperatures().get(candidate.name), "train_nll": row.get("train_nll")}
    fit = cell.fitted.get((candidate.name, 0), unfitted)
    return {
        "candidate": candidate.name,
        "method": method,
        **{key: value for key, value in asdict(candidate).items() if key != "name"},
        "temperature": fit["temperature"],
        "at_bound": fit.get("at_bound"),
        "parameters": fit.get("parameters", 0),
        "train_nll": fit["train_nll"],
        **{key: row.get(key) for key in ("validation_nll", "top_changed", "order_changed", "classes")},
    }
