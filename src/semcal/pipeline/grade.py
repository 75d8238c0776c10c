"""Correctness of rows (spec section 7): of given predictions, or of each measure's top cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from semcal.engine.clustering import cluster_answers
from semcal.engine.equivalence import Equivalence
from semcal.errors import UsageError, shown
from semcal.pipeline.rows import (
    answers_of,
    clusters_of,
    identity,
    log_likelihoods_of,
    predictions_of,
    samples_of,
    top_clusters_of,
)
from semcal.qa.grading import Grade, Grader, RuleGrader, members_to_grade
from semcal.qa.normal_form import normal_form
from semcal.registry import check_name

__all__ = ["EntailmentGrader", "as_grader", "check_gradable", "grade_clusters", "grade_row"]


class EntailmentGrader:
    """A prediction is right when it and a reference entail each other (spec section 7, `nli`).

    Parameters
    ----------
    equivalence : Equivalence
        Decides entailment; equal normal forms always agree, different values never.

    Examples
    --------
    >>> from semcal.engine import load_equivalence
    >>> EntailmentGrader(load_equivalence("exact")).grade("How many?", ["Twenty."], ["20"])
    Grade(correct=True, rule='nli')
    """

    def __init__(self, equivalence: Equivalence) -> None:
        self.equivalence = equivalence

    def grade(self, question: str, predictions: Sequence[str], references: Sequence[str]) -> Grade:
        """Return whether any prediction means the same as any reference."""
        right = any(
            self._same(question, normal_form(prediction), normal_form(reference))
            for prediction in predictions
            for reference in references
        )
        return Grade(right, "nli" if right else "none")

    def _same(self, question: str, prediction: str, reference: str) -> bool:
        if not prediction or not reference:
            return False
        (clusters,) = cluster_answers([question], [[prediction, reference]], self.equivalence).clusters
        return len(clusters) == 1


def as_grader(given: Any, equivalence: Equivalence) -> Grader:
    """Return what grades: "rules" (also for None), "nli" (by `equivalence`), or a grader as it is."""
    if hasattr(given, "grade") and not isinstance(given, type):
        found: Grader = given
        return found
    if given is not None and not isinstance(given, str):
        raise UsageError(
            f'the grader is {shown(given)}; give "rules", "nli" or an object with the method grade'
        )
    if check_name(given or "rules", ("rules", "nli"), what="grader") == "rules":
        return RuleGrader()
    if equivalence.name == "exact":
        raise UsageError('the grader "nli" needs an NLI model; give it as the equivalence')
    return EntailmentGrader(equivalence)


def check_gradable(row: Mapping[str, Any]) -> None:
    """Raise InputError unless the row can be graded."""
    identity(row)
    answers_of(row)
    if predictions_of(row) is None:
        m = len(samples_of(row))
        top_clusters_of(row, len(clusters_of(row, m)))
        log_likelihoods_of(row, m)


def grade_clusters(
    row: Mapping[str, Any], *, grader: Grader, seed: int = 0, limit: int = 4, likeliest: bool = False
) -> list[Grade]:
    """Grade each cluster of a row by some of its members, of which one right one is enough.

    Parameters
    ----------
    row : mapping
        With `id`, `answers`, `samples`, `clusters`, and `log_likelihoods` where the likeliest is wanted.
    grader : Grader
        What decides whether a text is a right answer.
    seed : int
        Draws the members.
    limit : int
        How many at most.
    likeliest : bool
        Whether the most likely member is among them in any case; of several the first.
    """
    samples, references = samples_of(row), answers_of(row)
    clusters = clusters_of(row, len(samples))
    known = log_likelihoods_of(row, len(samples)) if likeliest else None
    return [
        grader.grade(
            str(row.get("question", "")),
            [
                samples[i]
                for i in members_to_grade(
                    cluster,
                    seed=seed,
                    question_id=identity(row),
                    limit=limit,
                    first=None if known is None else max(cluster, key=known.__getitem__),
                )
            ],
            references,
        )
        for cluster in clusters
    ]


def grade_row(
    row: Mapping[str, Any], *, grader: Grader, seed: int = 0, limit: int = 4, likeliest: bool = False
) -> dict[str, Any]:
    """Add `correct` and `rule` to a row.

    Parameters
    ----------
    row : mapping
        With `answers` and either `prediction`, or `samples`, `clusters` and `top_cluster`.
    grader : Grader
        What decides whether a text is a right answer.
    seed : int
        Chooses the members of a cluster that are looked at; the choice depends on the seed, the
        question's id and the cluster alone.
    limit, likeliest
        As for `grade_clusters`.

    Returns
    -------
    dict
        For predictions `correct: bool` and `rule: str`. For clusters `correct` and `rule` by measure
        (null where the measure is), and `cluster_correct`, a bool for each cluster.

    Raises
    ------
    InputError
        If a field is missing or malformed.
    """
    question = str(row.get("question", ""))
    references = answers_of(row)
    predictions = predictions_of(row)
    if predictions is not None:
        grade = grader.grade(question, predictions, references)
        return {**row, "correct": grade.correct, "rule": grade.rule}
    grades = grade_clusters(row, grader=grader, seed=seed, limit=limit, likeliest=likeliest)
    top = top_clusters_of(row, len(grades))
    return {
        **row,
        "correct": {name: None if index is None else grades[index].correct for name, index in top.items()},
        "rule": {name: None if index is None else grades[index].rule for name, index in top.items()},
        "cluster_correct": [grade.correct for grade in grades],
    }
