"""One model on one data set: the plan of its fits, of what is chosen on validation, and of its test rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from semcal.errors import FitError
from semcal.experiment.grid_candidates import (
    FITTED,
    Fits,
    candidates_of,
    fits_of,
    grid_temperatures,
    refits_of,
)
from semcal.experiment.grid_settings import GridSettings, Model
from semcal.experiment.paths import recalibrator_folder, slug
from semcal.experiment.question_sets import Parts, Problem
from semcal.experiment.shelf import row_of
from semcal.experiment.stages import Lines, Piece, Stages, hash_of
from semcal.pipeline.fitting import data_hash
from semcal.pipeline.workers import Plan
from semcal.qa.datasets import Question

__all__ = ["Cell", "Incomplete"]

Spec = dict[str, Any]


class Incomplete(Exception):
    """The blocks of other shards are needed to go on."""


@dataclass
class Cell:
    """A model on a data set.

    Attributes
    ----------
    settings : GridSettings
    model : Model
    parts : Parts
        The questions.
    identity : mapping
        What the model says of itself: `identify` in `semcal.experiment.fit_jobs`.
    stages : Stages
        The blocks of the run folder.
    scratch : str
        Folder for features and states of trainings, relative to the run folder.
    rank : int
        Of two tasks that could be begun, that of the lower rank is.
    """

    settings: GridSettings
    model: Model
    parts: Parts
    identity: Mapping[str, Any]
    stages: Stages
    scratch: str
    rank: int = 0
    problems: list[Problem] = field(default_factory=list)
    prompt: str = ""
    fitted: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    _left_out: set[tuple[str, str]] = field(default_factory=set)

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return f"{self.model.name} on {self.parts.name}"

    @cached_property
    def few_shot(self) -> list[Spec]:
        """The examples as rows."""
        return [row_of(question) for question in self.parts.few_shot]

    @property
    def whole(self) -> bool:
        """Whether features of whole sequences are needed."""
        return "ATS" in self.settings.methods

    def label(self, part: str, block: Any) -> dict[str, Any]:
        """What a block is a part of."""
        return {"model": self.model.name, "dataset": self.parts.name, "part": part, "block": block}

    def frozen(self, **more: Any) -> Spec:
        """What everything that the model does depends on."""
        name = self.parts.name
        return {
            "revision": self.identity["revision"],
            "prompt": self.identity["prompts"][name],
            "memory": self.settings.memory,
            **more,
        }

    def where(self, **more: Any) -> Spec:
        """Where the model is, and the examples that its prompt is made of."""
        return {"model": self.model.model_dump(), "few_shot": self.few_shot, **more}

    # Calibration

    def prepare(self) -> Plan[None]:
        """Check the questions, let the model read the calibration questions, and fit the temperatures."""
        yield from self._check()
        if set(self.settings.methods) & set(FITTED):
            if self._is_fitted():
                self.stages.step("features")
            else:
                yield from self._features()
            yield from self._fit(["TS"])

    def _is_fitted(self) -> bool:
        """Whether all fits are there, so that nothing needs the features."""
        pieces = map(self._fit_piece, fits_of(self.settings, FITTED))
        return all(self.stages.has("fit", piece) for piece in pieces)

    def _features(self) -> Plan[None]:
        label = self.label("calibration_train", 0)
        piece = Piece(self._calibration(), self._calibration_at(), label, (self._blocks,))
        yield from self.stages.rows("features", [piece], self.rank, everyone=True)

    def _check(self) -> Plan[None]:
        given = {name: [row_of(q) for q in self.parts.part(name)] for name in ("validation", "test")}
        given["calibration_train"] = [row_of(q) for q in self.parts.calibration_train]
        longest = self.settings.max_new_tokens(open_book=self.parts.open_book)
        hashes = {name: data_hash(self.parts.part(name)) for name in given}
        piece = Piece(
            self.frozen(longest=longest, hashes=hashes),
            self.where(parts=given),
            self.label("all", 0),
        )
        (lines,) = yield from self.stages.rows("check", [piece], self.rank, everyone=True)
        first, *bad = map(json.loads, lines or [])
        self.prompt = first["prompt"]
        self._left_out = {(row["part"], row["id"]) for row in bad}
        self.problems = [
            Problem(self.parts.name, None, f"question {row['id']!r}: {row['reason']}", self.model.name)
            for row in bad
        ]

        for part in ("validation", "test"):
            if not self.questions(part):
                raise FitError(f"no {part} question fits {self.name}; the first reason: {self.problems[0]}")

    def questions(self, part: str) -> list[Question]:
        """The questions of a part that fit the model."""
        return [q for q in self.parts.part(part) if (part, q.id) not in self._left_out]

    def _calibration(self) -> Spec:
        return self.frozen(whole=self.whole, data_hash=data_hash(self.parts.calibration_train))

    def _calibration_at(self) -> Spec:
        folder = f"{self.scratch}/features/{slug(self.model.name)}/{slug(self.parts.name)}"
        questions = f"{self.scratch}/questions/{slug(self.parts.name)}.jsonl"
        return self.where(features=folder, questions=questions)

    @property
    def _root(self) -> Path:
        return self.stages.store.root

    @property
    def _blocks(self) -> Path:
        return self._root / str(self._calibration_at()["features"]) / "blocks.jsonl"

    def _fit(self, methods: Sequence[str]) -> Plan[None]:
        yield from self._carry_out(fits_of(self.settings, methods))

    def refit(self, names: Sequence[str]) -> Plan[None]:
        """Fit candidates anew for the runs after the first, where the settings say so."""
        yield from self._carry_out(refits_of(self.settings, names))

    def _carry_out(self, fits: Sequence[Fits]) -> Plan[None]:
        pieces = [self._fit_piece(one) for one in fits]
        found = yield from self.stages.rows("fit", pieces, self.rank, everyone=True)
        for row in map(json.loads, chain.from_iterable(lines or [] for lines in found)):
            self.fitted[row["candidate"], row["run"]] = row

    def refitted(self, name: str) -> dict[int, float | None]:
        """Run → T of the fits of a candidate, where there are several."""
        found = {run: row["temperature"] for (one, run), row in self.fitted.items() if one == name}
        return dict(sorted(found.items())) if len(found) > 1 else {}

    def _fit_piece(self, fits: Fits) -> Piece:
        fitting = self.settings.fitting
        folders = {
            name: recalibrator_folder(self.model.name, self.parts.name, name, fits.run) for name in fits.names
        }
        inputs = {
            **self._calibration(),
            "method": fits.method,
            "solver": fits.solver,
            "losses": [list(point) for point in fits.losses],
            "weight_decay": fits.weight_decay,
            "learning_rate": fitting.learning_rate,
            "batch_size": fitting.batch_size,
            "warm_up": fitting.warm_up,
            "seed": self.settings.seeds[fits.run],
            "run": fits.run,
            "folders": folders,
        }
        where = {
            **self._calibration_at(),
            "dataset": self.parts.name,
            "trainings": f"{self.scratch}/trainings/{hash_of(inputs)}",
        }
        needs = tuple(self._root / folder / "calibration.json" for folder in folders.values())
        label = self.label("calibration_train", f"{', '.join(fits.names)} (run {fits.run})")
        return Piece(inputs, where, label, needs)

    def reference(self, name: str, run: int = 0) -> Spec:
        """A recalibrator as jobs are given it: the fit of a run, where runs have fits of their own."""
        if name in grid_temperatures():
            return {"name": name, "temperature": grid_temperatures()[name]}
        row = self.fitted.get((name, run)) or self.fitted.get((name, 0))
        return (
            {"name": name}
            if row is None
            else {key: row[key] for key in ("folder", "fingerprint")} | {"name": name}
        )

    @property
    def temperature(self) -> float | None:
        """T of TS with NLL; None where it is not fitted."""
        row = self.fitted.get(("TS NLL", 0))
        return None if row is None else row["temperature"]

    def diagnose(self) -> Plan[list[Spec]]:
        """What each candidate does to the tokens of validation answers, with what its fit says of it."""
        yield from self._fit([method for method in FITTED if method != "TS"])
        method_of = {one.name: m for m, given in candidates_of(self.settings).items() for one in given}
        names = [name for name, method in method_of.items() if method != "TS-grid"]
        if not self.fitted:
            return []
        plain = [name for name in names if (name, 0) not in self.fitted]
        piece = Piece(
            {
                **self._calibration(),
                "validation": [row_of(q) for q in self.parts.validation],
                "recalibrators": [self.reference(name) for name in names],
                "plain": plain,
            },
            self._calibration_at(),
            self.label("validation", "all candidates"),
        )
        (lines,) = yield from self.stages.rows("diagnose", [piece], self.rank, everyone=True)
        return [self._described(row, method_of) for row in map(json.loads, lines or [])]

    def _described(self, row: Spec, method_of: Mapping[str, str]) -> Spec:
        """An entry of `fits` in the file of selections."""
        candidate = next(
            one
            for given in candidates_of(self.settings).values()
            for one in given
            if one.name == row["candidate"]
        )
        fit = self.fitted.get(
            (candidate.name, 0), {"temperature": {"Base": 1.0, "SE": 0.5}.get(candidate.name)}
        )
        return {
            "candidate": candidate.name,
            "method": method_of[candidate.name],
            **{key: value for key, value in asdict(candidate).items() if key != "name"},
            "temperature": fit["temperature"],
            "at_bound": fit.get("at_bound"),
            "parameters": fit.get("parameters", 0),
            "train_nll": fit.get("train_nll", row.get("train_nll")),
            **{key: row[key] for key in ("validation_nll", "top_changed", "order_changed", "classes")},
        }

    # Blocks of questions

    def cut(self, part: str) -> list[tuple[int, list[Question]]]:
        """Blocks of a part with their numbers: cut by place in the data, less what does not fit the model."""
        size, left_out = self.settings.block, self._left_out
        whole = self.parts.part(part)
        blocks = [whole[start : start + size] for start in range(0, len(whole), size)]
        kept = [[q for q in block if (part, q.id) not in left_out] for block in blocks]
        return [(number, block) for number, block in enumerate(kept) if block]

    def sampled(self, part: str, passes: Sequence[Spec]) -> Plan[list[Lines | None]]:
        """Draw answers to the questions of a part."""
        sampling, open_book = self.settings.sampling, self.parts.open_book
        truncated = sampling.top_k is not None or sampling.top_p is not None
        how = {
            "passes": list(passes),
            "longest": self.settings.max_new_tokens(open_book=open_book),
            "truncation": {"top_k": sampling.top_k or 0, "top_p": sampling.top_p or 1.0}
            if truncated
            else None,
            "scored_in": sampling.scored_in if open_book else "whole prompt",
        }
        pieces = [
            Piece(
                self.frozen(questions=[row_of(q) for q in block], **how),
                self.where(),
                self.label(part, number),
            )
            for number, block in self.cut(part)
        ]
        return (yield from self.stages.rows("sample", pieces, self.rank))

    def clustered(self, part: str, sampled: Sequence[Lines | None]) -> Plan[list[Lines | None]]:
        """Group them by meaning."""
        clustering = self.settings.clustering
        how = {
            "judge": self.identity["equivalence"],
            "linkage": clustering.linkage,
            "merge_refusals": clustering.merge_refusals,
        }
        where = {"equivalence": self.settings.equivalence}
        pieces = self._after(part, sampled, where, **how)
        return (yield from self.stages.rows("cluster", pieces, self.rank))

    def graded(
        self, part: str, sampled: Sequence[Lines | None], clustered: Sequence[Lines | None]
    ) -> Plan[list[Lines | None]]:
        """Say which of the groups are right."""
        grading = self.settings.grading.model_dump()
        how = {"grading": grading, "seeds": list(self.settings.seeds)}
        pieces = self._after(part, sampled, {}, clustered=clustered, **how)
        return (yield from self.stages.rows("grade", pieces, self.rank))

    def _after(
        self,
        part: str,
        sampled: Sequence[Lines | None],
        where: Spec,
        clustered: Sequence[Lines | None] | None = None,
        **how: Any,
    ) -> list[Piece | None]:
        """Pieces on blocks that are sampled, and clustered if that is given."""
        pieces: list[Piece | None] = []
        for place, (number, block) in enumerate(self.cut(part)):
            lines = sampled[place]
            groups = None if clustered is None else clustered[place]
            if lines is None or (clustered is not None and groups is None):
                pieces.append(None)
                continue
            inputs = {
                "questions": [row_of(q) for q in block],
                "sampled": lines,
                "m": self.settings.sampling.m,
                **how,
            }
            if clustered is not None:
                inputs["clustered"] = groups
            pieces.append(Piece(inputs, where, self.label(part, number)))
        return pieces
