"""Correctness of rows (spec section 7): of given predictions, or of each measure's top cluster.

`semcal grade --audit` compares a grader with people's labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar, cast

from semcal import metrics
from semcal.data.question import Ties, several
from semcal.data.splits import question_ties
from semcal.errors import InputError, UsageError, shown
from semcal.grading.rules import Grade, Grader, RuleGrader, members_to_grade
from semcal.models.clustering import cluster_answers
from semcal.models.equivalence import Equivalence, address_of
from semcal.registry import check_name
from semcal.rows import Grades, Row
from semcal.text.normal_form import normal_form

#: The graders that have a name.
GRADERS = ("rules", "nli", "judge:openai:URL#MODEL")
#: Question, predictions and references, as `Grader.grade` takes them.
Asked = tuple[str, tuple[str, ...], tuple[str, ...]]
Worked = TypeVar("Worked")


class BatchGrader(Grader, Protocol):
    """A grader that is quicker where it grades many answers at once."""

    def grade_all(self, asked: Sequence[Asked]) -> list[Grade]:
        """Return the verdict on each, the same as `grade`."""
        ...


def grade_together(grader: Grader, work: Callable[[Grader], Worked]) -> Worked:
    """Return ``work(grader)``; all that it grades is graded at once if the grader is a `BatchGrader`.

    What `work` grades must not depend on other grades of it: it is called twice, first to see what it asks.
    """
    if not hasattr(grader, "grade_all"):
        return work(grader)
    grades: dict[Asked, Grade] = {}
    recorder = _Recorder(grades)
    work(recorder)
    grades |= dict(zip(grades, cast("BatchGrader", grader).grade_all(list(grades)), strict=True))
    return work(recorder)


class _Recorder:
    """Stands for a grader: keeps what is asked, and says what is known of it."""

    def __init__(self, grades: dict[Asked, Grade]) -> None:
        self.grades = grades

    def grade(self, question: str, predictions: Sequence[str], references: Sequence[str]) -> Grade:
        return self.grades.setdefault((question, tuple(predictions), tuple(references)), Grade(False, "none"))


class EntailmentGrader:
    """A prediction is right when it and a reference entail each other (spec section 7, `nli`).

    Equal normal forms always agree, different values never; the equivalence decides the rest.
    """

    def __init__(self, equivalence: Equivalence) -> None:
        self.equivalence = equivalence

    def grade(self, question: str, predictions: Sequence[str], references: Sequence[str]) -> Grade:
        """Return whether any prediction means the same as any reference."""
        (grade,) = self.grade_all([(question, tuple(predictions), tuple(references))])
        return grade

    def grade_all(self, asked: Sequence[Asked]) -> list[Grade]:
        """Return the verdict on each; pairs are asked in rounds, one of each answer that is not right yet."""
        waiting = {place: _pairs(*item) for place, item in enumerate(asked)}
        right = set()
        while pairs := {place: pair for place, queue in waiting.items() if (pair := next(queue, None))}:
            questions = [asked[place][0] for place in pairs]
            clustering = cluster_answers(questions, list(pairs.values()), self.equivalence)
            right |= {place for place, clusters in zip(pairs, clustering.clusters) if len(clusters) == 1}
            waiting = {place: waiting[place] for place in pairs if place not in right}
        return [Grade(place in right, "nli" if place in right else "none") for place in range(len(asked))]


def _pairs(_: str, predictions: Sequence[str], references: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each prediction with each reference, in normal form; empty ones match nothing."""
    forms = [form for form in map(normal_form, references) if form]
    return ((form, reference) for form in filter(None, map(normal_form, predictions)) for reference in forms)


def as_grader(grader: Any, equivalence: Equivalence) -> Grader:
    """Return what grades: "rules" (also for None), "nli" (by `equivalence`), a judge, or it is a grader."""
    if hasattr(grader, "grade") and not isinstance(grader, type):
        return cast("Grader", grader)
    if grader is not None and not isinstance(grader, str):
        raise UsageError(
            f'the grader is {shown(grader)}; give "rules", "nli", "judge:openai:URL#MODEL" or an object with '
            "the method grade"
        )
    if grader is not None and grader.startswith("judge:"):
        from semcal.grading.judge import load_judge

        return load_judge(grader)
    if check_name(grader or "rules", GRADERS, what="grader") == "rules":
        return RuleGrader()
    if equivalence.name == "exact":
        raise UsageError('the grader "nli" needs an NLI model; give it as the equivalence (--equivalence)')
    return EntailmentGrader(equivalence)


def grader_record(grader: Grader) -> tuple[str, str | None]:
    """What a calibration keeps of a grader: its name, and the revision of the model that it asks, if any.

    >>> grader_record(RuleGrader())
    ('rules', None)
    """
    judge = getattr(grader, "judge", None)
    if judge is not None:
        return f"judge:{address_of(judge)}", judge.revision
    if isinstance(grader, EntailmentGrader):
        return "nli", grader.equivalence.revision
    return "rules" if isinstance(grader, RuleGrader) else type(grader).__name__, None


def check_gradable(row: Row) -> None:
    """Raise InputError unless the row can be graded."""
    _ = row.id, row.answers, row.decision
    if row.predictions is None:
        _ = row.samples, row.top_clusters, row.log_likelihoods


def grade_clusters(
    row: Row, *, grader: Grader, seed: int = 0, limit: int = 4, likeliest: bool = False
) -> list[Grade]:
    """Grade each cluster of a row by some of its members, of which one right one is enough.

    The row has `id`, `answers`, `samples`, `clusters`, and `log_likelihoods` where the likeliest is wanted.
    `seed` draws at most `limit` members; with `likeliest` the most likely, of several the first, is among
    them.
    """
    samples, references, clusters = row.samples, row.answers, row.clusters
    likely = row.log_likelihoods if likeliest else None
    return [
        grader.grade(
            row.question_or_empty,
            [
                samples[i]
                for i in members_to_grade(
                    cluster,
                    seed=seed,
                    question_id=row.id,
                    limit=limit,
                    first=None if likely is None else max(cluster, key=likely.__getitem__),
                )
            ],
            references,
        )
        for cluster in clusters
    ]


def grade_row(row: Row, *, grader: Grader, seed: int = 0, limit: int = 4, likeliest: bool = False) -> Row:
    """Add `correct` and `rule` to a row with `answers`; InputError if a field is missing or malformed.

    A row with a `prediction` gets a bool and a text. One with `samples`, `clusters` and `top_cluster` gets
    both by measure (null where the measure is), and `cluster_correct`, a bool for each cluster. One with an
    `answer` and its `probability` gets `answer_correct`, a bool. `seed`, `limit` and `likeliest` are those of
    `grade_clusters`: which members are looked at depends on the seed, the question's id and the cluster
    alone.
    """
    question, references, predictions = row.question_or_empty, row.answers, row.predictions
    decision = row.decision
    answer_correct = (
        None if decision is None else grader.grade(question, [decision.answer], references).correct
    )
    if predictions is not None:
        grade = grader.grade(question, predictions, references)
        return row.add(Grades(answer_correct=answer_correct, correct=grade.correct, rule=grade.rule))
    grades = grade_clusters(row, grader=grader, seed=seed, limit=limit, likeliest=likeliest)
    top = row.top_clusters
    return row.add(
        Grades(
            answer_correct=answer_correct,
            correct={name: None if k is None else grades[k].correct for name, k in top.items()},
            rule={name: None if k is None else grades[k].rule for name, k in top.items()},
            cluster_correct=[grade.correct for grade in grades],
        )
    )


@dataclass(frozen=True)
class GradeStep:
    """Grades rows: `grade_row`; all that a grader is asked about a block is asked at once."""

    name: ClassVar[str] = "grade"
    grader: Grader
    seed: int = 0

    def __call__(self, rows: Sequence[Row], *_: object) -> list[Row]:
        """Grade."""
        return grade_together(
            self.grader, lambda marks: [grade_row(row, grader=marks, seed=self.seed) for row in rows]
        )


# ---- Comparison with people


def check_auditable(row: Row) -> None:
    """Raise InputError unless the row has a prediction, answers, a human label, and an id or a question."""
    _ = row.question if row.has("question") else row.id
    _ = row.answers, row.group
    if row.predictions is None:
        raise InputError("no 'prediction'; it is the answer that was labelled (--columns prediction=answer)")
    _ = row.human


@dataclass(frozen=True)
class Judgement:
    """What people and a grader say of one prediction; both None where people are undecided."""

    correct: bool | None
    human: bool | None
    ties: Ties  # to other rows


def judge_rows(rows: Sequence[Row], grader: Grader) -> list[Judgement]:
    """Ask the grader about the predictions that people agree on."""
    labels = [row.human for row in rows]
    asked = [
        (row.question_or_empty, row.predictions or [], row.answers)
        for row, label in zip(rows, labels)
        if label is not None
    ]
    grades = iter(grade_together(grader, lambda marks: [marks.grade(*item) for item in asked]))
    return [
        Judgement(None if label is None else next(grades).correct, label, _ties(row))
        for row, label in zip(rows, labels)
    ]


def _ties(row: Row) -> Ties:
    ties = question_ties(row.json)
    return tuple(ties) if row.has("question") else (*ties, ("id", row.id))


def audit(judgements: Sequence[Judgement], *, seed: int = 0) -> dict[str, Any]:
    """Compare grader and people over what `judge_rows` returns: `semcal.metrics.agreement` as a dict.

    Rows on which people are undecided do not count; answers to one question are resampled together.
    """
    decided = [one for one in judgements if one.human is not None]
    if not decided:
        raise InputError("no row has a human label that is true or false; there is nothing to compare with")
    agreement = metrics.agreement(
        [bool(one.correct) for one in decided],
        [bool(one.human) for one in decided],
        groups=several(one.ties for one in decided),
        seed=seed,
    )
    figures = agreement.figures.items()
    return {
        "n": agreement.n,
        "undecided": len(judgements) - agreement.n,
        **({} if agreement.groups is None else {"groups": agreement.groups}),
        **{name: figure.estimate for name, figure in figures},
        "counts": dict(agreement.counts),
        "se": {name: figure.standard_error for name, figure in figures},
        "interval": {name: [figure.low, figure.high] for name, figure in figures},
    }
