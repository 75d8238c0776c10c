"""The first half of a cell's plan: check the questions, fit every candidate, and see what the fits do."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

from semcal.errors import FitError
from semcal.experiment.cells import Cell
from semcal.experiment.costs import fit_label
from semcal.experiment.grid_candidates import (
    FITTED,
    Fits,
    candidates_of,
    fits_of,
    known_temperatures,
    refits_of,
)
from semcal.experiment.paths import recalibrator_folder
from semcal.experiment.question_sets import PARTS, Problem, row_of
from semcal.experiment.selection import Candidate
from semcal.experiment.stages import Piece
from semcal.experiment.store import digest
from semcal.pipeline.crews import Plan
from semcal.qa.datasets import data_hash

__all__ = ["diagnose", "fitted_again", "prepare", "refit"]

Spec = dict[str, Any]


def prepare(cell: Cell) -> Plan[None]:
    """Check the questions, let the model read the calibration questions, and fit the temperatures."""
    yield from _check(cell)
    first = ["TS"] if cell.settings.keep == "chosen" else FITTED
    if any(not cell.stages.has("fit", _piece(cell, fits)) for fits in fits_of(cell.settings, first)):
        yield from _features(cell)
    elif set(cell.settings.methods) & set(FITTED):
        cell.stages.step("features")
    yield from _carry_out(cell, fits_of(cell.settings, ["TS"]))


def _check(cell: Cell) -> Plan[None]:
    """Find the questions that do not fit the model."""
    longest = cell.settings.max_new_tokens(open_book=cell.parts.open_book)
    piece = Piece(
        cell.frozen(longest=longest, hashes={part: data_hash(cell.parts.part(part)) for part in PARTS}),
        cell.where(parts={part: [row_of(q) for q in cell.parts.part(part)] for part in PARTS}),
        cell.label("all", 0),
    )
    (lines,) = yield from cell.stages.rows("check", [piece], cell.rank, everyone=True)
    first, *bad = map(json.loads, lines or [])
    cell.prompt = first["prompt"]
    cell.left_out = {(row["part"], row["id"]) for row in bad}
    cell.problems = [
        Problem(cell.parts.name, None, f"question {row['id']!r}: {row['reason']}", cell.model.name)
        for row in bad
    ]
    for part in ("validation", "test"):
        if not cell.questions(part):
            raise FitError(f"no {part} question fits {cell.name}; the first reason: {cell.problems[0]}")


def _features(cell: Cell) -> Plan[None]:
    at = cell.calibration_at()
    needs = (cell.stages.store.root / at["features"] / "blocks.jsonl",)
    piece = Piece(cell.calibration(), at, cell.label("calibration_train", 0), needs)
    yield from cell.stages.rows("features", [piece], cell.rank, everyone=True)


def refit(cell: Cell, names: Sequence[str]) -> Plan[None]:
    """Fit candidates anew for the runs after the first, where the settings say so."""
    yield from _carry_out(cell, refits_of(cell.settings, names))


def fitted_again(cell: Cell, wanted: Iterable[Mapping[str, Any]]) -> Plan[None]:
    """Fit again those of some recalibrators (as `Cell.reference` gives them) that were not kept."""
    folders = {one["folder"] for one in wanted if "folder" in one}
    root = cell.stages.store.root
    gone = {folder for folder in folders if not (root / folder / "calibration.json").exists()}
    if not gone:
        return
    names = [f"{name} (run {run})" for (name, run), row in cell.fitted.items() if row["folder"] in gone]
    cell.stages.say(
        f"{cell.name}: {len(gone)} recalibrators that were not kept are needed again; the calibration "
        "questions are read again, and they are fitted again: "
        f"{', '.join(names[:4])}{', …' * (len(names) > 4)}"
    )
    known = {name for name, _ in cell.fitted}
    every = [*fits_of(cell.settings, FITTED), *refits_of(cell.settings, sorted(known))]
    yield from _carry_out(
        cell, [one for one in every if gone & set(_folders(cell, one).values())], whole=True
    )


def _carry_out(cell: Cell, fits: Sequence[Fits], *, whole: bool = False) -> Plan[None]:
    """Do the fits that are not done; with `whole` those as well whose recalibrators were not kept."""
    pieces = [_piece(cell, one, whole=whole) for one in fits]
    found = yield from cell.stages.rows(
        "fit", pieces, cell.rank, everyone=True, before=lambda: _features(cell)
    )
    for row in map(json.loads, chain.from_iterable(lines or [] for lines in found)):
        cell.fitted[row["candidate"], row["run"]] = row


def _folders(cell: Cell, fits: Fits) -> dict[str, str]:
    """Where each candidate of a fit lies."""
    return {
        name: recalibrator_folder(cell.model.name, cell.parts.name, name, fits.run) for name in fits.names
    }


def _piece(cell: Cell, fits: Fits, *, whole: bool = False) -> Piece:
    fitting, folders = cell.settings.fitting, _folders(cell, fits)
    inputs = {
        **cell.calibration(),
        "method": fits.method,
        "solver": fits.solver,
        "losses": [list(point) for point in fits.losses],
        "weight_decay": fits.weight_decay,
        "learning_rate": fitting.learning_rate_for(len(cell.parts.calibration_train)),
        "batch_size": fitting.batch_size,
        "warm_up": fitting.warm_up,
        "seed": cell.settings.seeds[fits.run],
        "run": fits.run,
        "folders": folders,
    }
    where = {
        **cell.calibration_at(),
        "dataset": cell.parts.name,
        "trainings": f"{cell.scratch}/trainings/{digest(inputs)}",
    }
    needs = (cell.stages.store.root / folder / "calibration.json" for folder in folders.values())
    kept = tuple(needs) if whole or cell.settings.keep == "all" else ()
    label = cell.label("calibration_train", f"{', '.join(fits.names)} (run {fits.run})")
    return Piece(inputs, where, label, kept, spent_on=fit_label(cell.model.name, fits.method))


def diagnose(cell: Cell) -> Plan[list[Spec]]:
    """What each candidate does to the tokens of validation answers, with what its fit says of it."""
    yield from _carry_out(cell, fits_of(cell.settings, [method for method in FITTED if method != "TS"]))
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
    plain = [name for name in known if (name, 0) not in cell.fitted]
    references = [cell.reference(name) for name in known]
    piece = Piece(
        {
            **cell.calibration(),
            "validation": [row_of(q) for q in cell.parts.validation],
            "recalibrators": references,
            "plain": plain,
        },
        cell.calibration_at(),
        cell.label("validation", "all candidates"),
    )

    def needed() -> Plan[None]:
        yield from _features(cell)
        yield from fitted_again(cell, references)

    (lines,) = yield from cell.stages.rows("diagnose", [piece], cell.rank, everyone=True, before=needed)
    return [_described(cell, row, *known[row["candidate"]]) for row in map(json.loads, lines or [])]


def _described(cell: Cell, row: Mapping[str, Any], method: str, candidate: Candidate) -> Spec:
    """An entry of `fits` in the file of selections."""
    plain = {"temperature": known_temperatures().get(candidate.name), "train_nll": row.get("train_nll")}
    fit = cell.fitted.get((candidate.name, 0), plain)
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
