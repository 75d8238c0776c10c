"""Base, SE and TS on the same questions: fit, sample, cluster, measure, grade, evaluate; resumable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar

from semcal.errors import StoreError, UsageError
from semcal.experiment.environment import Clock, environment, versions
from semcal.experiment.evaluation import CompareJob, EvaluateJob
from semcal.experiment.settings import Settings, deviations_from_paper
from semcal.pipeline.cluster import Clustered, ClusterJob
from semcal.pipeline.executor import Executor, Job
from semcal.pipeline.fitting import Fit
from semcal.pipeline.grade import grade_row
from semcal.pipeline.jobs import FitJob, IdentifyJob, Identity, MethodsJob
from semcal.pipeline.measure import measure_rows
from semcal.pipeline.prompting import Asking
from semcal.pipeline.store import Store, digest
from semcal.pipeline.worker_state import WorkerState
from semcal.qa.datasets import Question, data_hash
from semcal.qa.grading import RuleGrader
from semcal.recalibration import (
    SE,
    AnyRecalibrator,
    Base,
    TemperatureScaling,
    fingerprint,
    from_pretrained,
)
from semcal.records import dumps, write_rows, writing
from semcal.semantics import MEASURES

__all__ = ["METHODS", "Comparison", "QuestionSet"]

METHODS = ("Base", "SE", "TS")
Rows = list[dict[str, Any]]
Key = dict[str, Any]
Result = TypeVar("Result")
#: What clustering adds to rows, and what tells them apart.
CLUSTERED = ("id", "method", "normal_forms", "clusters")
ProgressFactory = Callable[[str, int | None], AbstractContextManager[Callable[[int], None]]]


class QuestionSet(Protocol):
    """Questions of one kind, cut into disjoint parts."""

    @property
    def name(self) -> str: ...
    @property
    def open_book(self) -> bool: ...
    @property
    def few_shot(self) -> tuple[Question, ...]: ...
    @property
    def calibration_train(self) -> tuple[Question, ...]: ...
    @property
    def test(self) -> tuple[Question, ...]: ...


@dataclass
class Comparison:
    """One run folder in the making.

    Parameters
    ----------
    executor : Executor
        Who does the work, each holding the models; this process itself needs none. The results are the same,
        whoever it is.
    out : Path
        The run folder; finished blocks in it are used again.
    settings : Settings
        How.
    progress : callable
        (label, total) → a context manager that yields a function of the number done.
    meanwhile : callable
        What this process has to do anyway, done while the executor is at its first tasks.
    """

    executor: Executor[WorkerState]
    out: Path
    settings: Settings
    progress: ProgressFactory
    clock: Clock = field(default_factory=Clock)
    meanwhile: Callable[[], object] = lambda: None
    calls: int = 0
    pairs: int = 0
    _held: Identity | None = None
    _step: Callable[[], None] = lambda: None

    @property
    def held(self) -> Identity:
        """Which models the executor holds; known when a set has begun."""
        assert self._held is not None
        return self._held

    def run(self, sets: Sequence[QuestionSet]) -> dict[str, Any]:
        """Run every set, write the run folder, and return what is in its results.json."""
        self._claim_folder()
        found = self._carry_out(sets)
        sizes = {one.name: (len(one.calibration_train), len(one.test)) for one in sets}
        deviations = deviations_from_paper(
            self.settings, model=self.held.model, equivalence=self.held.equivalence, sizes=sizes
        )
        results = {
            "schema": 1,
            "preset": self.settings.preset,
            "seed": self.settings.seed,
            "m": self.settings.m,
            "measures": list(MEASURES),
            "methods": list(METHODS),
            "model": {"name": self.held.model, "revision": self.held.revision},
            "equivalence": {"name": self.held.equivalence, "revision": self.held.equivalence_revision},
            "sets": [result for result, _ in found],
            "comparisons": [row for _, comparisons in found for row in comparisons],
            "deviations": [deviation.model_dump() for deviation in deviations],
        }
        self._write_json("results.json", results)
        self.clock.add(self.executor.seconds)
        self.write_costs()
        return results

    def write_costs(self) -> None:
        """Write the environment record: versions, machine, and what the run has cost so far."""
        cost = {
            "cpu_seconds": self.clock.seconds,
            "seconds": self.clock.elapsed,
            "processes": self.executor.n_workers,
            **self.executor.peak_memory.record(),
            "nli_calls": self.calls,
        }
        self._write_json("environment.json", {**environment(), **cost})

    def _carry_out(self, sets: Sequence[QuestionSet]) -> list[tuple[dict[str, Any], Rows]]:
        """All sets at once, the longest first."""
        rank = {one.name: place for place, one in enumerate(sorted(sets, key=_length, reverse=True))}
        steps = sum(2 + len(METHODS) + 2 * len(self._blocks(one)) for one in sets)
        with self.progress("compare", steps) as update:
            steps_done = count(1)
            self._step = lambda: update(next(steps_done))
            self.meanwhile()
            return self.executor.run_together([partial(self._compare, one, rank[one.name]) for one in sets])

    def _claim_folder(self) -> None:
        """Write the settings; refuse a folder that holds a run with others."""
        path = self.out / "settings.json"
        content = dumps(self.settings.model_dump(), indent=2) + "\n"
        if path.exists() and path.read_text(encoding="utf-8") != content:
            raise UsageError(
                f"{self.out} holds a run with other settings; use --fresh to start again, or another --out"
            )
        with writing(path) as handle:
            handle.write(content)

    def _write_json(self, name: str, content: Any) -> None:
        with writing(self.out / name) as handle:
            handle.write(dumps(content, indent=1) + "\n")

    def _compare(self, one: QuestionSet, rank: int) -> tuple[dict[str, Any], Rows]:
        asking = Asking(one.few_shot)
        held = self.executor.submit(IdentifyJob(asking), stage="fit", priority=rank).result()
        self._held = held
        fitted = self._fit(one, asking, held, rank)
        methods = dict(zip(METHODS, (Base(), SE(), fitted.recalibrator)))
        sampled = self._sample(one, asking, held, methods, rank)
        clustered = self._cluster(sampled, rank)
        rows = self._finish(one, clustered)
        evaluations = [EvaluateJob(rows[method], self.settings) for method in METHODS]
        jobs: list[Job] = [*evaluations, CompareJob(rows, self.settings)]
        begun = [
            self.executor.submit(job, stage="evaluate", then=self._stepped, priority=rank) for job in jobs
        ]
        *evaluated, comparisons = [future.result() for future in begun]
        result = self._summarise(one, fitted, dict(zip(METHODS, evaluated)))
        result["greedy_accuracy"] = _greedy_accuracy(one, rows["Base"])
        return result, [{"set": one.name, **row} for row in comparisons]

    def _stepped(self, result: Result) -> Result:
        """Progress the progress of one more step."""
        self._step()
        return result

    def _fit(self, one: QuestionSet, asking: Asking, held: Identity, rank: int) -> Fit:
        """The temperature of a set, from the run folder if it is there already."""
        folder = self.out / "recalibrators" / one.name
        try:
            recalibrator, provenance = from_pretrained(folder)
            wanted = (held.revision, held.prompt, data_hash(one.calibration_train))
            found = (provenance.revision, provenance.prompt_hash, provenance.data_hash)
            if isinstance(recalibrator, TemperatureScaling) and found == wanted:
                return self._stepped(Fit(recalibrator, provenance, asking))
        except (UsageError, StoreError):
            pass  # not there yet, or cut short: fitted (again) below
        job = FitJob(
            one.calibration_train,
            asking,
            loss=self.settings.loss,
            alpha=self.settings.alpha,
            data=f"{one.name}, calibration-train",
            versions=versions(),
        )
        fitted = self.executor.submit(job, stage="fit", then=self._stepped, priority=rank).result()
        assert isinstance(fitted, Fit)
        fitted.save_pretrained(folder)
        return fitted

    def _blocks(self, one: QuestionSet) -> list[tuple[Question, ...]]:
        size = self.settings.block
        return [tuple(one.test[start : start + size]) for start in range(0, len(one.test), size)]

    def _key(self, held: Identity, block: Sequence[Question], **more: Any) -> Key:
        settings = self.settings
        return {
            "model": held.revision,
            "prompt": held.prompt,
            "questions": data_hash(block),
            "seed": settings.seed,
            "m": settings.m,
            **more,
        }

    def _stage(
        self,
        stage: str,
        jobs: Sequence[tuple[Key, Job]],
        rank: int,
        rows_of: Callable[[Any], Rows] = list,
    ) -> list[Rows]:
        """The blocks of a stage: those that the run folder holds, and the others done now and kept there."""
        store = Store(self.out)

        def keep(key: Key, result: Any) -> Rows:
            return self._stepped(store.keep(stage, key, rows_of(result)))

        found = [store.find(stage, key) for key, _ in jobs]
        for rows in found:
            if rows is not None:
                self._step()
        begun = {
            number: self.executor.submit(job, stage=stage, then=partial(keep, key), priority=rank)
            for number, (key, job) in enumerate(jobs)
            if found[number] is None
        }
        return [begun[n].result() if rows is None else rows for n, rows in enumerate(found)]

    def _sample(
        self,
        one: QuestionSet,
        asking: Asking,
        held: Identity,
        methods: Mapping[str, AnyRecalibrator],
        rank: int,
    ) -> list[Rows]:
        """Blocks of rows; a block holds each of its questions once for each method."""
        settings = self.settings
        longest = settings.max_new_tokens(open_book=one.open_book)
        how = {"recalibrators": [fingerprint(r) for r in methods.values()], "max_new_tokens": longest}
        jobs = [
            (
                self._key(held, block, **how),
                MethodsJob(block, methods, asking, settings.m, settings.seed, longest),
            )
            for block in self._blocks(one)
        ]
        return self._stage("sample", jobs, rank)

    def _cluster(self, blocks: Sequence[Rows], rank: int) -> Rows:
        how = {
            "equivalence": [self.held.equivalence, self.held.equivalence_revision],
            "linkage": self.settings.linkage,
        }

        def kept(clustered: Clustered) -> Rows:
            self.calls += clustered.calls
            self.pairs += len(clustered.rows) * self.settings.m * (self.settings.m - 1)
            return [{key: row[key] for key in CLUSTERED} for row in clustered.rows]

        jobs = [
            ({"sampled": digest(block), **how}, ClusterJob(_read_by_clustering(block), self.settings.linkage))
            for block in blocks
        ]
        found = self._stage("cluster", jobs, rank, kept)
        return [{**row, **more} for block, rows in zip(blocks, found) for row, more in zip(block, rows)]

    def _finish(self, one: QuestionSet, clustered: Rows) -> dict[str, Rows]:
        """Measure and grade, and write the rows of each method."""
        grader = RuleGrader()
        with self.clock.stage("measure and grade"):
            measured = measure_rows(clustered, t_alpha=self.settings.t_alpha, g_alpha=self.settings.g_alpha)
            graded = [grade_row(row, grader=grader, seed=self.settings.seed) for row in measured]
        rows = {method: [row for row in graded if row["method"] == method] for method in METHODS}
        for method, of_method in rows.items():
            dropped = "prompt_token_ids"
            write_rows(
                self.out / _rows_path(one.name, method),
                ({key: value for key, value in row.items() if key != dropped} for row in of_method),
            )
        return rows

    def _summarise(
        self, one: QuestionSet, fitted: Fit, evaluated: Mapping[str, dict[str, Any]]
    ) -> dict[str, Any]:
        recalibrator = fitted.recalibrator
        assert isinstance(recalibrator, TemperatureScaling)
        certificate = recalibrator.certificate_
        temperatures = dict(zip(METHODS, (1.0, 0.5, recalibrator.temperature_)))
        return {
            "name": one.name,
            "open_book": one.open_book,
            "n": len(one.test),
            "fit": {
                "method": "TS",
                "loss": recalibrator.loss,
                "alpha": recalibrator.alpha,
                "temperature": recalibrator.temperature_,
                "at_bound": certificate.at_bound,
                "n_questions": fitted.provenance.n_questions,
                "n_tokens": recalibrator.n_tokens_,
                "nll_before": certificate.loss_at_one,
                "nll_after": certificate.loss,
            },
            "methods": {
                method: {
                    "temperature": temperatures[method],
                    "rows": _rows_path(one.name, method),
                    **evaluated[method],
                }
                for method in METHODS
            },
        }


def _greedy_accuracy(one: QuestionSet, rows: Rows) -> float:
    grader = RuleGrader()
    right = [grader.grade(q.question, [row["greedy"]], q.answers).correct for q, row in zip(one.test, rows)]
    return sum(right) / len(right)


def _rows_path(name: str, method: str) -> str:
    return f"samples/{name}/{method}.jsonl"


def _length(one: QuestionSet) -> int:
    """Characters of a set, by which its work is guessed."""
    parts = (one.few_shot * len(one.test), one.calibration_train, one.test)
    return sum(len(q.question) + len(q.context or "") for part in parts for q in part)


def _read_by_clustering(rows: Rows) -> tuple[dict[str, Any], ...]:
    """Rows without what clustering does not read and would only be sent to and fro."""
    return tuple({key: row[key] for key in ("id", "question", "method", "samples")} for row in rows)
