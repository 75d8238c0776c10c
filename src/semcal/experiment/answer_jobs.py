"""Jobs of a grid on one block of questions: sample, greedy, cluster, grade, and grading by entailment.

Rows are told apart by (candidate, run, m, id). Every job keeps the order of the rows that it is given.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from semcal.engine.clustering import cluster_answers
from semcal.engine.drawing import Truncation
from semcal.experiment.grid_settings import Grading
from semcal.experiment.question_sets import questions_of
from semcal.experiment.shelf import Shelf
from semcal.pipeline.cluster import cluster_rows
from semcal.pipeline.grade import grade_clusters
from semcal.pipeline.processes import Tell
from semcal.pipeline.prompting import Asking
from semcal.pipeline.sample import sample_runs, scored_without_passages
from semcal.qa.first_answer import first_answer
from semcal.qa.grading import members_to_grade
from semcal.qa.normal_form import normal_form

__all__ = ["cluster", "clustered", "cut_to_counts", "grade", "greedy", "nli", "sample"]

Rows = list[dict[str, Any]]
Spec = Mapping[str, Any]


def sample(shelf: Shelf, spec: Spec, tell: Tell) -> Rows:
    """Draw answers: for each pass, run and candidate all questions of the block."""
    del tell
    model, questions = shelf.model(spec), questions_of(spec["questions"])
    asking = Asking(questions_of(spec["few_shot"]))
    rows: Rows = []
    for one in spec["passes"]:
        recalibrators = [shelf.recalibrator(reference) for reference in one["recalibrators"]]
        runs = sample_runs(
            model,
            questions,
            recalibrators=recalibrators,
            seeds=one["seeds"],
            asking=asking,
            m=one["m"],
            max_new_tokens=spec["longest"],
            truncation=Truncation(**spec["truncation"]) if spec["truncation"] else None,
        )
        for run, sampled in zip(one["runs"], runs):
            if spec["scored_in"] == "prompt without passage":
                sampled = scored_without_passages(
                    model, questions, sampled, recalibrators=recalibrators, asking=asking
                )
            for reference, of_candidate in zip(one["recalibrators"], sampled):
                rows += [
                    {
                        "id": question.id,
                        "candidate": reference["name"],
                        "run": run,
                        **({"counts": one["counts"]} if one["counts"] else {}),
                        "samples": [draw.text for draw in found.draws],
                        "log_likelihoods": [draw.log_likelihood for draw in found.draws],
                        "likelihood": [draw.likelihood for draw in found.draws],
                    }
                    for question, found in zip(questions, of_candidate)
                ]
    return rows


def cut_to_counts(rows: Sequence[Mapping[str, Any]], m: int) -> Rows:
    """Cut rows to their first m draws, and those with `counts` to each of these as well.

    Examples
    --------
    >>> drawn = {"samples": ["a", "b", "c"], "log_likelihoods": [-1, -2, -3], "likelihood": ["sampled"] * 3}
    >>> [one["samples"] for one in cut_to_counts([{"id": "1", "counts": [1, 3], **drawn}], 2)]
    [['a', 'b'], ['a'], ['a', 'b', 'c']]
    """
    drawn = ("samples", "log_likelihoods", "likelihood")
    return [
        {**row, "m": count, **{key: row[key][:count] for key in drawn}}
        for row in rows
        for count in (m, *row.get("counts", ()))
    ]


def greedy(shelf: Shelf, spec: Spec, tell: Tell) -> Rows:
    """The most likely answers, token by token and by 4 beams, and whether they are right."""
    del tell
    model, questions = shelf.model(spec), questions_of(spec["questions"])
    prompts = Asking(questions_of(spec["few_shot"])).prompts(model, questions)
    grader = Grading(**spec["grading"]).grader()
    rows: Rows = []
    for reference in spec["recalibrators"]:
        how = {"recalibrator": shelf.recalibrator(reference), "max_new_tokens": spec["longest"]}
        for kind in reference["kinds"]:
            generate = model.greedy if kind == "greedy" else model.beam
            for question, generation in zip(questions, generate(prompts, **how)):
                text = first_answer(generation.text).text
                rows.append(
                    {
                        "id": question.id,
                        "candidate": reference["name"],
                        "run": reference["run"],
                        "kind": kind,
                        "text": text,
                        "correct": grader.grade(question.question, [text], question.answers).correct,
                    }
                )
    return rows


def cluster(shelf: Shelf, spec: Spec, tell: Tell) -> Rows:
    """Group the answers of each row by meaning, at each number of draws."""
    del tell
    asked = {question.id: question.question for question in questions_of(spec["questions"])}
    rows = cut_to_counts(_parsed(spec["sampled"]), spec["m"])
    found, _ = cluster_rows(
        [{**row, "question": asked[row["id"]]} for row in rows],
        equivalence=shelf.judge(spec),
        linkage=spec["linkage"],
        merge_refusals=spec["merge_refusals"],
    )
    return [{key: row[key] for key in ("id", "normal_forms", "clusters")} for row in found]


def grade(shelf: Shelf, spec: Spec, tell: Tell) -> Rows:
    """Grade every cluster of each row by rules."""
    del shelf, tell
    grading = Grading(**spec["grading"])
    grader = grading.grader()
    rows: Rows = []
    for row in clustered(spec):
        grades = grade_clusters(
            row,
            grader=grader,
            seed=spec["seeds"][row["run"]],
            limit=grading.members,
            likeliest=grading.choice == "likeliest",
        )
        correct, rule = [one.correct for one in grades], [one.rule for one in grades]
        rows.append({"id": row["id"], "correct": correct, "rule": rule})
    return rows


def clustered(spec: Spec) -> Iterator[dict[str, Any]]:
    """The rows of a block with question, samples and clusters."""
    asked = {question.id: question for question in questions_of(spec["questions"])}
    rows = cut_to_counts(_parsed(spec["sampled"]), spec["m"])
    for row, groups in zip(rows, _parsed(spec["clustered"]), strict=True):
        question = asked[row["id"]]
        assert row["id"] == groups["id"]
        yield {**row, **groups, "question": question.question, "answers": list(question.answers)}


def nli(shelf: Shelf, spec: Spec, tell: Tell) -> Rows:
    """Grade by entailment what each measure puts first: rows with `top_cluster`, one verdict a measure."""
    del tell
    judge, seed, limit = shelf.judge(spec), spec["seed"], spec["grading"]["members"]
    rows = spec["rows"]
    pairs: dict[tuple[str, str, str], None] = {}
    looked_at = []
    for row in rows:
        chosen = {index for index in row["top_cluster"].values() if index is not None}
        of_row = {}
        for index in sorted(chosen):
            members = members_to_grade(row["clusters"][index], seed=seed, question_id=row["id"], limit=limit)
            of_row[index] = [
                (row["question"], row["normal_forms"][i], normal_form(reference))
                for i in members
                for reference in row["answers"]
            ]
            pairs |= dict.fromkeys(pair for pair in of_row[index] if pair[1] and pair[2])
        looked_at.append(of_row)
    found = cluster_answers([pair[0] for pair in pairs], [pair[1:] for pair in pairs], judge).clusters
    same = {pair for pair, clusters in zip(pairs, found) if len(clusters) == 1}
    return [
        {
            "id": row["id"],
            "correct_nli": {
                measure: None if index is None else any(pair in same for pair in of_row[index])
                for measure, index in row["top_cluster"].items()
            },
        }
        for row, of_row in zip(rows, looked_at)
    ]


def _parsed(lines: Sequence[str]) -> Rows:
    return [json.loads(line) for line in lines]
