"""Base, SE and TS on the same questions: fit, sample, cluster, measure, grade, evaluate; resumable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from semcal.engine.equivalence import Equivalence
from semcal.engine.language_model import LanguageModel
from semcal.errors import StoreError, UsageError
from semcal.experiment.environment import Clock, environment, peak_memory_mb, versions
from semcal.experiment.evaluation import compare_methods, evaluate
from semcal.experiment.settings import Settings, deviations_from_paper
from semcal.experiment.store import Store, digest
from semcal.pipeline.cluster import cluster_rows
from semcal.pipeline.fitting import Fit, data_hash, fit
from semcal.pipeline.grade import grade_row
from semcal.pipeline.measure import measure_rows
from semcal.pipeline.prompting import Asking
from semcal.pipeline.sample import sample_questions
from semcal.qa.datasets import Question
from semcal.qa.first_answer import first_answer
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
    model : LanguageModel
        What answers.
    equivalence : Equivalence
        What decides which answers mean the same.
    out : Path
        The run folder; finished blocks in it are used again.
    settings : Settings
        How.
    progress : callable
        (label, total) → a context manager that yields a function of the number done.
    """

    model: LanguageModel
    equivalence: Equivalence
    out: Path
    settings: Settings
    progress: ProgressFactory
    clock: Clock = field(default_factory=Clock)
    calls: int = 0
    pairs: int = 0

    def run(self, sets: Sequence[QuestionSet]) -> dict[str, Any]:
        """Run every set, write the run folder, and return what is in its results.json."""
        self._claim_folder()
        found = [self._run_set(one) for one in sets]
        sizes = {one.name: (len(one.calibration_train), len(one.test)) for one in sets}
        deviations = deviations_from_paper(
            self.settings, model=self.model.name, equivalence=self.equivalence.name, sizes=sizes
        )
        results = {
            "schema": 1,
            "preset": self.settings.preset,
            "seed": self.settings.seed,
            "m": self.settings.m,
            "measures": list(MEASURES),
            "methods": list(METHODS),
            "model": {"name": self.model.name, "revision": self.model.revision},
            "equivalence": {"name": self.equivalence.name, "revision": self.equivalence.revision},
            "sets": [result for result, _ in found],
            "comparisons": [row for _, comparisons in found for row in comparisons],
            "deviations": [deviation.model_dump() for deviation in deviations],
        }
        self._write_json("results.json", results)
        cost = {"seconds": self.clock.seconds, "peak_memory_mb": peak_memory_mb(), "nli_calls": self.calls}
        self._write_json("environment.json", {**environment(), **cost})
        return results

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

    def _run_set(self, one: QuestionSet) -> tuple[dict[str, Any], Rows]:
        asking = Asking(one.few_shot)
        with self.clock.stage("fit"):
            fitted = self._fit(one)
        recalibrators: list[AnyRecalibrator] = [Base(), SE(), fitted.recalibrator]
        sampled = self._sample(one, asking, recalibrators)
        rows = self._finish(one, self._cluster(one, sampled))
        with self.clock.stage("evaluate"):
            result = self._summarise(one, fitted, rows)
            comparisons = [{"set": one.name, **row} for row in compare_methods(rows, self.settings)]
        with self.clock.stage("greedy"):
            result["greedy_accuracy"] = self._greedy_accuracy(one, asking)
        return result, comparisons

    def _fit(self, one: QuestionSet) -> Fit:
        """The temperature of a set, from the run folder if it is there already."""
        folder = self.out / "recalibrators" / one.name
        asking = Asking(one.few_shot)
        try:
            recalibrator, provenance = from_pretrained(folder)
            wanted = (self.model.revision, asking.hash(self.model), data_hash(one.calibration_train))
            found = (provenance.revision, provenance.prompt_hash, provenance.data_hash)
            if isinstance(recalibrator, TemperatureScaling) and found == wanted:
                return Fit(recalibrator, provenance, asking)
        except (UsageError, StoreError):
            pass  # not there yet, or cut short: fitted (again) below
        with self.progress(f"{one.name}: fit", len(one.calibration_train)) as update:
            fitted = fit(
                self.model,
                one.calibration_train,
                few_shot=one.few_shot,
                loss=self.settings.loss,
                alpha=self.settings.alpha,
                data=f"{one.name}, calibration-train",
                versions=versions(),
                progress=update,
            )
        fitted.save_pretrained(folder)
        return fitted

    def _blocks(self, one: QuestionSet) -> Iterator[tuple[int, tuple[Question, ...]]]:
        size = self.settings.block
        for start in range(0, len(one.test), size):
            yield start, tuple(one.test[start : start + size])

    def _key(self, asking: Asking, block: Sequence[Question], **more: Any) -> dict[str, Any]:
        settings = self.settings
        return {
            "model": self.model.revision,
            "prompt": asking.hash(self.model),
            "questions": data_hash(block),
            "seed": settings.seed,
            "m": settings.m,
            **more,
        }

    def _sample(
        self, one: QuestionSet, asking: Asking, recalibrators: Sequence[AnyRecalibrator]
    ) -> list[Rows]:
        """Blocks of rows; a block holds each of its questions once for each method."""
        longest = self.settings.max_new_tokens(open_book=one.open_book)
        how = {"recalibrators": [fingerprint(r) for r in recalibrators], "max_new_tokens": longest}
        blocks = []
        with self.clock.stage("sample"), self.progress(f"{one.name}: sample", len(one.test)) as update:
            for start, block in self._blocks(one):

                def draw(block: Sequence[Question] = block, start: int = start) -> Rows:
                    per_method = sample_questions(
                        self.model,
                        block,
                        recalibrators=recalibrators,
                        asking=asking,
                        m=self.settings.m,
                        seed=self.settings.seed,
                        max_new_tokens=longest,
                        progress=lambda n: update(start + n),
                    )
                    return [
                        {**question.row(), "method": method, **sampled.fields()}
                        for method, rows in zip(METHODS, per_method)
                        for question, sampled in zip(block, rows)
                    ]

                blocks.append(Store(self.out).rows("sample", self._key(asking, block, **how), draw))
                update(start + len(block))
        return blocks

    def _cluster(self, one: QuestionSet, blocks: Sequence[Rows]) -> Rows:
        how = {
            "equivalence": [self.equivalence.name, self.equivalence.revision],
            "linkage": self.settings.linkage,
        }
        clustered: Rows = []
        with self.clock.stage("cluster"), self.progress(f"{one.name}: cluster", len(blocks)) as update:
            for number, block in enumerate(blocks, start=1):

                def group(block: Rows = block) -> Rows:
                    rows, calls = cluster_rows(
                        block, equivalence=self.equivalence, linkage=self.settings.linkage
                    )
                    self.calls += calls
                    self.pairs += len(rows) * self.settings.m * (self.settings.m - 1)
                    keep = ("id", "method", "normal_forms", "clusters")
                    return [{key: row[key] for key in keep} for row in rows]

                found = Store(self.out).rows("cluster", {"sampled": digest(block), **how}, group)
                clustered += [{**row, **more} for row, more in zip(block, found)]
                update(number)
        return clustered

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

    def _summarise(self, one: QuestionSet, fitted: Fit, rows: dict[str, Rows]) -> dict[str, Any]:
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
                    **evaluate(rows[method], self.settings),
                }
                for method in METHODS
            },
        }

    def _greedy_accuracy(self, one: QuestionSet, asking: Asking) -> float:
        grader = RuleGrader()
        right = 0
        longest = self.settings.max_new_tokens(open_book=one.open_book)
        with self.progress(f"{one.name}: greedy answers", len(one.test)) as update:
            for start, block in self._blocks(one):

                def answer(block: Sequence[Question] = block) -> Rows:
                    generations = self.model.greedy(
                        asking.prompts(self.model, block), recalibrator=Base(), max_new_tokens=longest
                    )
                    texts = [first_answer(generation.text).text for generation in generations]
                    return [{"id": q.id, "greedy": text} for q, text in zip(block, texts)]

                rows = Store(self.out).rows(
                    "greedy", self._key(asking, block, max_new_tokens=longest), answer
                )
                right += sum(
                    grader.grade(q.question, [row["greedy"]], q.answers).correct
                    for q, row in zip(block, rows)
                )
                update(start + len(block))
        return right / len(one.test)


def _rows_path(name: str, method: str) -> str:
    return f"samples/{name}/{method}.jsonl"
