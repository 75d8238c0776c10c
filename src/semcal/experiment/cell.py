"""One model on one data set: its questions, its fits, and the blocks that it is worked through in."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from semcal.experiment.answer_jobs import AnswerBlock, ClusterAnswersJob, GradeJob
from semcal.experiment.fit_jobs import CalibrationSource, ModelIdentity
from semcal.experiment.grid_blocks import GridBlocks, Lines, PlannedBlock, RowsJob, grid_temperatures
from semcal.experiment.grid_settings import GridSettings, Model
from semcal.experiment.paths import SCRATCH, slug
from semcal.experiment.question_sets import Parts, Problem, essentials
from semcal.pipeline.prompting import PromptConfig
from semcal.pipeline.rows import FAILED
from semcal.pipeline.sample import SampleJob, SamplePass
from semcal.pipeline.worker_state import RecalibratorSource
from semcal.qa.questions import Question, data_hash


class AgainJob(RowsJob, Protocol):
    """A job on finished rows, of which it reads `needs`."""

    @property
    def needs(self) -> tuple[str, ...]: ...


@dataclass
class Cell:
    """A model on a data set."""

    settings: GridSettings
    model: Model
    parts: Parts
    known: Mapping[str, Any]  # what the models say of themselves, as `IdentifyJob` gives it
    blocks: GridBlocks
    priority: int = 0  # of its jobs
    not_served: Sequence[str] = ()  # methods and extras of the run that the model cannot serve
    problems: list[Problem] = field(default_factory=list)  # questions that do not fit, or a server failed at
    prompt: str = ""  # that of the first test question
    fitted: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)  # by candidate and run
    left_out: set[tuple[str, str]] = field(default_factory=set)  # parts and ids of the problems

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return f"{self.model.name} on {self.parts.name}"

    @property
    def root(self) -> Path:
        """The run folder."""
        return self.blocks.store.root

    @cached_property
    def asking(self) -> PromptConfig:
        """The prompt of the data set."""
        return PromptConfig(tuple(map(essentials, self.parts.few_shot)))

    @property
    def identity(self) -> ModelIdentity:
        """What everything that the model does depends on."""
        prompt = self.known["prompts"][self.parts.name]
        return ModelIdentity(self.known["revision"], prompt, self.settings.memory)

    @cached_property
    def calibration(self) -> CalibrationSource:
        """The calibration questions, and where their features lie."""
        return CalibrationSource(
            self.asking,
            questions=f"{SCRATCH}/questions/{slug(self.parts.name)}.jsonl",
            features=f"{SCRATCH}/features/{slug(self.model.name)}/{slug(self.parts.name)}",
            data_hash=data_hash(self.parts.calibration_train),
            whole="ATS" in self.settings.methods,
        )

    @property
    def max_new_tokens(self) -> int:
        """The longest generation."""
        return self.settings.max_new_tokens(open_book=self.parts.open_book)

    def block(
        self,
        job: RowsJob,
        part: str,
        block: Any,
        *,
        needs: tuple[Path, ...] = (),
        counted_as: str = "",
    ) -> PlannedBlock:
        """A block of rows: by the language model, by the equivalence, or by neither."""
        if job.stage in ("cluster", "nli", "plain"):
            depends: dict[str, Any] = {"judge": self.known["equivalence"]}
        else:
            alone = ("grade", "select", "measure", "apply")
            depends = {} if job.stage in alone else self.identity.key()
        label = {"model": self.model.name, "dataset": self.parts.name, "part": part, "block": block}
        equivalence = self.settings.equivalence
        return PlannedBlock(job, depends, label, self.model, equivalence, needs, counted_as)

    def questions(self, part: str) -> tuple[Question, ...]:
        """The questions of a part that fit the model."""
        return tuple(q for q in self.parts.part(part) if (part, q.id) not in self.left_out)

    def cut(self, part: str, first: int | None = None) -> list[tuple[int, tuple[Question, ...]]]:
        """Blocks of a part, or of its first questions, with their numbers.

        They are cut by place in the data; what does not fit the model is left out.
        """
        size = self.settings.block
        whole = self.parts.part(part)[:first]
        blocks = [whole[start : start + size] for start in range(0, len(whole), size)]
        kept = [tuple(essentials(q) for q in block if (part, q.id) not in self.left_out) for block in blocks]
        return [(number, block) for number, block in enumerate(kept) if block]

    def source(self, name: str, run: int = 0) -> RecalibratorSource:
        """A recalibrator as jobs are given it: the fit of a run, where runs have fits of their own."""
        if name in grid_temperatures():
            return RecalibratorSource(name, grid_temperatures()[name])
        row = self.fitted.get((name, run)) or self.fitted.get((name, 0)) or {}
        return RecalibratorSource(name, folder=row.get("folder"), fingerprint=row.get("fingerprint"))

    @property
    def temperature(self) -> float | None:
        """T of TS with NLL; None where it is not fitted."""
        row = self.fitted.get(("TS NLL", 0))
        return None if row is None else row["temperature"]

    def temperatures(self, name: str) -> list[float | None]:
        """T of a candidate in each run that has a fit of its own."""
        found = {run: row["temperature"] for (one, run), row in self.fitted.items() if one == name}
        return [found[run] for run in sorted(found)]

    def answered(
        self, part: str, passes: Sequence[SamplePass], before: Callable[[], None]
    ) -> list[AnswerBlock]:
        """Draw, cluster and grade answers to the questions of a part.

        `before` brings the recalibrators that this needs.
        """
        blocks, settings = self.clustered(part, passes, before), self.settings
        jobs = [GradeJob(block, settings.grading, settings.seeds) for block in blocks]
        return [replace(block, graded=lines) for block, lines in zip(blocks, self.done(part, jobs))]

    def clustered(
        self,
        part: str,
        passes: Sequence[SamplePass],
        before: Callable[[], None],
        first: int | None = None,
    ) -> list[AnswerBlock]:
        """Draw and cluster answers to the questions of a part, or to its first; as `answered`."""
        settings = self.settings
        sampled = self._sampled(part, passes, before, first)
        blocks = [
            AnswerBlock(questions, settings.sampling.m, lines)
            for (_, questions), lines in zip(self.cut(part, first), sampled)
        ]
        jobs = [ClusterAnswersJob(block, settings.clustering) for block in blocks]
        return [replace(block, clustered=lines) for block, lines in zip(blocks, self.done(part, jobs))]

    def _sampled(
        self, part: str, passes: Sequence[SamplePass], before: Callable[[], None], first: int | None
    ) -> list[Lines]:
        sampling = self.settings.sampling
        truncated = sampling.top_k is not None or sampling.top_p is not None
        jobs = [
            SampleJob(
                questions,
                self.asking,
                tuple(passes),
                self.max_new_tokens,
                truncation=(sampling.top_k or 0, sampling.top_p or 1.0) if truncated else None,
                scored_in=sampling.scored_in if self.parts.open_book else "whole prompt",
            )
            for _, questions in self.cut(part, first)
        ]
        blocks = self.done(part, jobs, before=before)
        ends = "".join(line.rpartition('"finished":')[2] for lines in blocks for line in lines)
        self.blocks.ends.append((ends.count("false"), ends.count("true")))
        return self.without_failed(part, blocks)

    def without_failed(self, part: str, blocks: Sequence[Lines]) -> list[Lines]:
        """Rows without the questions that a server failed to answer, which are left out from here on."""
        failed = {
            row["id"]: row[FAILED]
            for lines in blocks
            for line in lines
            if f'"{FAILED}"' in line and FAILED in (row := json.loads(line))
        }
        if not failed:
            return list(blocks)
        self.left_out |= {(part, id) for id in failed}
        self.problems += [
            Problem(self.parts.name, None, f"question {id!r}: {reason}", self.model.name)
            for id, reason in failed.items()
        ]
        return [[line for line in lines if json.loads(line)["id"] not in failed] for lines in blocks]

    def done(
        self, part: str, jobs: Sequence[RowsJob], before: Callable[[], None] | None = None
    ) -> list[Lines]:
        """The rows of one job for each block of a part."""
        planned = [self.block(job, part, number) for (number, _), job in zip(self.cut(part), jobs)]
        return self.blocks.rows(planned, self.priority, before=before)

    def again(
        self, blocks: Sequence[Lines], job_of: Callable[[tuple[dict[str, Any], ...]], AgainJob]
    ) -> list[list[dict[str, Any]]]:
        """Rows of the test questions, by block, with what a job on finished rows adds to each."""
        needs = job_of(()).needs
        rows = [[json.loads(line) for line in lines] for lines in blocks]
        jobs = [job_of(tuple({key: row[key] for key in needs} for row in block)) for block in rows]
        return [
            [{**row, **json.loads(line)} for row, line in zip(block, lines, strict=True)]
            for block, lines in zip(rows, self.done("test", jobs))
        ]

    def remove_features(self) -> None:
        """With `keep: chosen`, remove the states of the calibration questions."""
        if self.settings.keep == "chosen":
            _remove_states(self.root / self.calibration.features)

    def remove_fits(self, which: Collection[tuple[str, int]]) -> None:
        """With `keep: chosen`, remove features and some fits; what is needed again is fitted again."""
        self.remove_features()
        for key in which if self.settings.keep == "chosen" else ():
            shutil.rmtree(self.root / self.fitted[key]["folder"], ignore_errors=True)


def _remove_states(folder: Path) -> None:
    """Remove a folder of features so that a kill in between leaves none that look finished.

    A process that has mapped the file may hold on to it for a while. Cutting it short frees its space now;
    nobody reads it any more.
    """
    (folder / "blocks.jsonl").unlink(missing_ok=True)
    with suppress(FileNotFoundError):
        os.truncate(folder / "states.bin", 0)
    shutil.rmtree(folder, ignore_errors=True)
