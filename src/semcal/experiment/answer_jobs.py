"""Jobs of a grid on one block of questions: greedy answers, clusters and grades.

`semcal.pipeline.sample.SampleJob` draws the answers. Rows are told apart by (candidate, run, m, id), and
every job keeps the order of the rows that it is given.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from semcal.engine.clustering import cluster_answers
from semcal.errors import QuestionError
from semcal.experiment.grid_settings import Clustering, Grading
from semcal.pipeline.cluster import ClusterJob
from semcal.pipeline.grade import grade_clusters, grade_row
from semcal.pipeline.measure import measure_rows
from semcal.pipeline.prompting import PromptConfig
from semcal.pipeline.rows import FAILED
from semcal.pipeline.worker_state import RecalibratorSource, WorkerState
from semcal.qa.first_answer import first_answer
from semcal.qa.grading import members_to_grade
from semcal.qa.normal_form import normal_form, text_form
from semcal.qa.questions import Question
from semcal.workers import Progress

Rows = list[dict[str, Any]]
Lines = Sequence[str]


@dataclass(frozen=True)
class AnswerBlock:
    """A block of questions, and what is known of their answers so far: rows as JSON."""

    questions: tuple[Question, ...]
    m: int
    sampled: Lines
    clustered: Lines | None = None
    graded: Lines | None = None

    def key(self) -> dict[str, Any]:
        """Its content, as it names blocks."""
        known = {"sampled": self.sampled, "clustered": self.clustered, "graded": self.graded}
        return {
            "questions": [question.row() for question in self.questions],
            **{name: lines for name, lines in known.items() if lines is not None},
        }

    def drawn(self) -> Rows:
        """The rows with their questions, cut to each number of draws."""
        asked = {question.id: question.question for question in self.questions}
        rows = cut_to_counts(list(map(json.loads, self.sampled)), self.m)
        return [{**row, "question": asked[row["id"]]} for row in rows]

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows with questions, reference answers and clusters."""
        assert self.clustered is not None
        answers = {question.id: list(question.answers) for question in self.questions}
        for row, groups in zip(self.drawn(), map(json.loads, self.clustered), strict=True):
            assert row["id"] == groups["id"]
            yield {**row, **groups, "answers": answers[row["id"]]}

    def grades(self) -> Iterator[dict[str, Any]]:
        """The grades of the clusters of each row."""
        assert self.graded is not None
        return map(json.loads, self.graded)


def cut_to_counts(rows: Sequence[Mapping[str, Any]], m: int) -> Rows:
    """Cut rows to their first m draws, and those with `counts` to each of these as well.

    >>> drawn = {"samples": ["a", "b", "c"], "log_likelihoods": [-1, -2, -3], "likelihood": ["sampled"] * 3}
    >>> [one["samples"] for one in cut_to_counts([{"id": "1", "counts": [1, 3], **drawn}], 2)]
    [['a', 'b'], ['a'], ['a', 'b', 'c']]
    """
    drawn = ("samples", "log_likelihoods", "likelihood", "finished")
    return [
        {**row, "m": count, **{key: row[key] and row[key][:count] for key in drawn if key in row}}
        for row in rows
        for count in (m, *row.get("counts", ()))
    ]


@dataclass(frozen=True)
class GreedyPass:
    """The greedy answers ("greedy") and those of 4 beams ("beam") under one recalibrator."""

    source: RecalibratorSource
    run: int
    kinds: tuple[str, ...]

    def key(self) -> dict[str, Any]:
        """What it is, as it names blocks."""
        return {**self.source.key(), "run": self.run, "kinds": list(self.kinds)}


@dataclass(frozen=True)
class GreedyJob:
    """The most likely answers, token by token and by 4 beams, and whether they are right."""

    stage: ClassVar[str] = "greedy"
    questions: tuple[Question, ...]
    asking: PromptConfig
    passes: tuple[GreedyPass, ...]
    grading: Grading
    max_new_tokens: int

    def key(self) -> dict[str, Any]:
        """What its rows depend on beside the model."""
        return {
            "questions": [question.row() for question in self.questions],
            "recalibrators": [one.key() for one in self.passes],
            "grading": self.grading.model_dump(),
            "longest": self.max_new_tokens,
        }

    def __call__(self, state: WorkerState, progress: Progress) -> Rows:
        """Answer."""
        del progress
        model, grader = state.model, self.grading.grader()
        prompts = self.asking.prompts(model, self.questions)
        rows: Rows = []
        for one in self.passes:
            recalibrator = state.recalibrator(one.source)
            for kind in one.kinds:
                generate: Any = model.greedy if kind == "greedy" else state.language_model.beam
                found = generate(prompts, recalibrator=recalibrator, max_new_tokens=self.max_new_tokens)
                for question, generation in zip(self.questions, found):
                    row = {"id": question.id, "candidate": one.source.name, "run": one.run, "kind": kind}
                    if isinstance(generation, QuestionError):
                        rows.append({**row, FAILED: generation.reason})
                        continue
                    text = first_answer(generation.text, question.question).text
                    grade = grader.grade(question.question, [text], question.answers)
                    rows.append({**row, "text": text, "correct": grade.correct})
        return rows


@dataclass(frozen=True)
class ClusterAnswersJob:
    """The answers of each row by meaning, at each number of draws."""

    stage: ClassVar[str] = "cluster"
    block: AnswerBlock
    clustering: Clustering

    def key(self) -> dict[str, Any]:
        """What its rows depend on beside the equivalence."""
        return {**self.block.key(), "m": self.block.m, **self.clustering.model_dump()}

    def __call__(self, state: WorkerState, progress: Progress) -> Rows:
        """Cluster."""
        how = self.clustering
        found = ClusterJob(tuple(self.block.drawn()), how.linkage, how.merge_refusals)(state, progress)
        return [{key: row[key] for key in ("id", "normal_forms", "clusters")} for row in found.rows]


@dataclass(frozen=True)
class GradeJob:
    """Every cluster of each row graded by rules."""

    stage: ClassVar[str] = "grade"
    block: AnswerBlock
    grading: Grading
    seeds: tuple[int, ...]  # one a run

    def key(self) -> dict[str, Any]:
        """What its rows depend on."""
        how = {"m": self.block.m, "grading": self.grading.model_dump(), "seeds": list(self.seeds)}
        return {**self.block.key(), **how}

    def __call__(self, state: WorkerState, progress: Progress) -> Rows:
        """Grade."""
        del state, progress
        grader, rows = self.grading.grader(), []
        for row in self.block.rows():
            grades = grade_clusters(
                row,
                grader=grader,
                seed=self.seeds[row["run"]],
                limit=self.grading.members,
                likeliest=self.grading.choice == "likeliest",
            )
            correct, rule = [one.correct for one in grades], [one.rule for one in grades]
            rows.append({"id": row["id"], "correct": correct, "rule": rule})
        return rows


@dataclass(frozen=True)
class EntailmentJob:
    """What each measure puts first graded by entailment: rows with `top_cluster`, one verdict a measure."""

    stage: ClassVar[str] = "nli"
    needs: ClassVar[tuple[str, ...]] = (
        *("id", "question", "answers", "normal_forms", "clusters", "top_cluster"),
    )
    rows: tuple[Mapping[str, Any], ...]
    grading: Grading
    seed: int

    def key(self) -> dict[str, Any]:
        """What its rows depend on beside the equivalence."""
        return {"rows": list(self.rows), "grading": self.grading.model_dump(), "seed": self.seed}

    def __call__(self, state: WorkerState, progress: Progress) -> Rows:
        """Grade."""
        del progress
        pairs: dict[tuple[str, str, str], None] = {}
        pairs_of = [self._pairs(row) for row in self.rows]
        for of_row in pairs_of:
            for of_cluster in of_row.values():
                pairs |= dict.fromkeys(pair for pair in of_cluster if pair[1] and pair[2])
        found = cluster_answers(
            [pair[0] for pair in pairs], [pair[1:] for pair in pairs], state.equivalence
        ).clusters
        same = {pair for pair, clusters in zip(pairs, found) if len(clusters) == 1}
        return [
            {
                "id": row["id"],
                "correct_nli": {
                    measure: None if index is None else any(pair in same for pair in of_row[index])
                    for measure, index in row["top_cluster"].items()
                },
            }
            for row, of_row in zip(self.rows, pairs_of)
        ]

    def _pairs(self, row: Mapping[str, Any]) -> dict[int, list[tuple[str, str, str]]]:
        """The pairs of texts that decide on each cluster which a measure puts first."""
        found = {}
        for index in sorted({index for index in row["top_cluster"].values() if index is not None}):
            members = members_to_grade(
                row["clusters"][index], seed=self.seed, question_id=row["id"], limit=self.grading.members
            )
            found[index] = [
                (row["question"], row["normal_forms"][i], normal_form(reference))
                for i in members
                for reference in row["answers"]
            ]
        return found


@dataclass(frozen=True)
class TextFormsJob:
    """The samples of rows grouped, measured and graded again without normal forms (analyses.md, beyond).

    Linkage, the rule that different values are different meanings, and grading are those of the run: what is
    left out is the reading of numbers and dates before clustering, and nothing else. The text forms stand as
    `normal_forms`.
    """

    stage: ClassVar[str] = "plain"
    needs: ClassVar[tuple[str, ...]] = ("id", "question", "answers", "samples", "log_likelihoods")
    ADDED: ClassVar[tuple[str, ...]] = (
        *("id", "normal_forms", "clusters", "confidences", "semantic_entropy", "confidence", "top_cluster"),
        *("correct", "rule"),
    )
    rows: tuple[Mapping[str, Any], ...]
    measure_alphas: tuple[float, float]  # the a of T-SC and of G-SC
    clustering: Clustering
    grading: Grading
    seed: int

    def key(self) -> dict[str, Any]:
        """What its rows depend on beside the equivalence."""
        return {
            "rows": list(self.rows),
            "measure_alphas": list(self.measure_alphas),
            **self.clustering.model_dump(),
            "grading": self.grading.model_dump(),
            "seed": self.seed,
        }

    def __call__(self, state: WorkerState, progress: Progress) -> Rows:
        """Group, measure and grade."""
        del progress
        forms = [[text_form(text) for text in row["samples"]] for row in self.rows]
        found = cluster_answers(
            [row["question"] for row in self.rows],
            forms,
            state.equivalence,
            linkage=self.clustering.linkage,
            merge_refusals=self.clustering.merge_refusals,
            read_as=[[normal_form(text) for text in row["samples"]] for row in self.rows],
        )
        clustered = [
            {**row, "normal_forms": form, "clusters": clusters}
            for row, form, clusters in zip(self.rows, forms, found.clusters)
        ]
        t_alpha, g_alpha = self.measure_alphas
        grader, grading = self.grading.grader(), self.grading
        graded = (
            grade_row(
                row,
                grader=grader,
                seed=self.seed,
                limit=grading.members,
                likeliest=grading.choice == "likeliest",
            )
            for row in measure_rows(clustered, t_alpha=t_alpha, g_alpha=g_alpha, ties=self.clustering.ties)
        )
        return [{key: row[key] for key in self.ADDED} for row in graded]
