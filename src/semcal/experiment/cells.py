"""One model on one data set: its questions, its fits, and the blocks that it is worked through in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from semcal.experiment.grid_candidates import grid_temperatures
from semcal.experiment.grid_settings import GridSettings, Model
from semcal.experiment.paths import slug
from semcal.experiment.question_sets import Parts, Problem, row_of
from semcal.experiment.stages import Lines, Piece, Stages
from semcal.qa.datasets import Question, data_hash

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
    problems : list of Problem
        Questions that do not fit the model; `left_out` holds their parts and ids.
    prompt : str
        That of the first test question.
    fitted : dict of (candidate, run) to dict
        What the jobs that fit have told.
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
    left_out: set[tuple[str, str]] = field(default_factory=set)

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return f"{self.model.name} on {self.parts.name}"

    @cached_property
    def few_shot(self) -> list[Spec]:
        """The examples as rows."""
        return [row_of(question) for question in self.parts.few_shot]

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

    def calibration(self) -> Spec:
        """What features and fits depend on."""
        return self.frozen(whole="ATS" in self.settings.methods, data_hash=self._data_hash)

    @cached_property
    def _data_hash(self) -> str:
        return data_hash(self.parts.calibration_train)

    def calibration_at(self) -> Spec:
        """Where features and calibration questions lie."""
        folder = f"{self.scratch}/features/{slug(self.model.name)}/{slug(self.parts.name)}"
        questions = f"{self.scratch}/questions/{slug(self.parts.name)}.jsonl"
        return self.where(features=folder, questions=questions)

    def questions(self, part: str) -> list[Question]:
        """The questions of a part that fit the model."""
        return [q for q in self.parts.part(part) if (part, q.id) not in self.left_out]

    def reference(self, name: str, run: int = 0) -> Spec:
        """A recalibrator as jobs are given it: the fit of a run, where runs have fits of their own."""
        if name in grid_temperatures():
            return {"name": name, "temperature": grid_temperatures()[name]}
        row = self.fitted.get((name, run)) or self.fitted.get((name, 0)) or {}
        return {"name": name, **{key: row[key] for key in ("folder", "fingerprint") if key in row}}

    @property
    def temperature(self) -> float | None:
        """T of TS with NLL; None where it is not fitted."""
        row = self.fitted.get(("TS NLL", 0))
        return None if row is None else row["temperature"]

    def temperatures(self, name: str) -> list[float | None]:
        """T of a candidate in each run that has a fit of its own."""
        found = {run: row["temperature"] for (one, run), row in self.fitted.items() if one == name}
        return [found[run] for run in sorted(found)]

    def cut(self, part: str) -> list[tuple[int, list[Question]]]:
        """Blocks of a part with their numbers: cut by place in the data, less what does not fit the model."""
        size, left_out = self.settings.block, self.left_out
        whole = self.parts.part(part)
        blocks = [whole[start : start + size] for start in range(0, len(whole), size)]
        kept = [[q for q in block if (part, q.id) not in left_out] for block in blocks]
        return [(number, block) for number, block in enumerate(kept) if block]

    def sampled(self, part: str, passes: Sequence[Spec], before: Callable[[], None]) -> list[Lines | None]:
        """Draw answers to the questions of a part; `before` brings the recalibrators that this needs."""
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
        return self.stages.rows("sample", pieces, self.rank, before=before)

    def clustered(self, part: str, sampled: Sequence[Lines | None]) -> list[Lines | None]:
        """Group them by meaning."""
        clustering = self.settings.clustering
        how = {
            "judge": self.identity["equivalence"],
            "linkage": clustering.linkage,
            "merge_refusals": clustering.merge_refusals,
        }
        where = {"equivalence": self.settings.equivalence}
        pieces = self._after(part, sampled, where, **how)
        return self.stages.rows("cluster", pieces, self.rank)

    def graded(
        self, part: str, sampled: Sequence[Lines | None], clustered: Sequence[Lines | None]
    ) -> list[Lines | None]:
        """Say which of the groups are right."""
        grading = self.settings.grading.model_dump()
        how = {"grading": grading, "seeds": list(self.settings.seeds)}
        pieces = self._after(part, sampled, {}, clustered=clustered, **how)
        return self.stages.rows("grade", pieces, self.rank)

    def again(
        self, stage: str, parts: Sequence[Lines], needed: Sequence[str], **how: Any
    ) -> list[list[dict[str, Any]] | None]:
        """Rows of the test questions with what a stage that reads `needed` of them adds to each.

        Parameters
        ----------
        stage : str
        parts : sequence of lists of JSON
            The rows by block; a block that is not there is empty.
        needed : sequence of str
            Keys of a row.
        how
            What else the stage depends on.

        Returns
        -------
        list of lists of dict, or None
            None for a block that is not there.
        """
        rows = [[json.loads(line) for line in lines] for lines in parts]
        where = {"equivalence": self.settings.equivalence}
        pieces = [
            Piece(
                {"rows": [{key: row[key] for key in needed} for row in block], **how},
                where,
                self.label("test", number),
            )
            if block
            else None
            for number, block in enumerate(rows)
        ]
        found = self.stages.rows(stage, pieces, self.rank)
        return [
            None
            if lines is None
            else [{**row, **json.loads(line)} for row, line in zip(block, lines, strict=True)]
            for block, lines in zip(rows, found)
        ]

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
