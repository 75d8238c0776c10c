"""Correctness of rows (spec section 7): of given predictions, or of each measure's top cluster.

`semcal grade --audit` compares a grader with people's labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

from semcal import metrics
from semcal.engine.clustering import cluster_answers
from semcal.engine.equivalence import Equivalence, address_of
from semcal.errors import InputError, UsageError, shown
from semcal.pipeline.rows import (
    answers_of,
    clusters_of,
    identity,
    log_likelihoods_of,
    predictions_of,
    question_of,
    samples_of,
    top_clusters_of,
)
from semcal.qa.grading import Grade, Grader, RuleGrader, members_to_grade
from semcal.qa.normal_form import normal_form
from semcal.qa.questions import group_of, several
from semcal.qa.splits import question_ties
from semcal.registry import check_name

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
    known: dict[Asked, Grade] = {}
    asked = _Asked(known)
    work(asked)
    known |= dict(zip(known, cast("BatchGrader", grader).grade_all(list(known)), strict=True))
    return work(asked)


class _Asked:
    """Stands for a grader: keeps what is asked, and says what is known of it."""

    def __init__(self, known: dict[Asked, Grade]) -> None:
        self.known = known

    def grade(self, question: str, predictions: Sequence[str], references: Sequence[str]) -> Grade:
        return self.known.setdefault((question, tuple(predictions), tuple(references)), Grade(False, "none"))


class EntailmentGrader:
    """A prediction is right when it and a reference entail each other (spec section 7, `nli`).

    Equal normal forms always agree, different values never; the equivalence decides the rest.
    """

    def __init__(self, equivalence: Equivalence) -> None:
        self.equivalence = equivalence

    def grade(self, question: str, predictions: Sequence[str], references: Sequence[str]) -> Grade:
        """Return whether any prediction means the same as any reference."""
        (found,) = self.grade_all([(question, tuple(predictions), tuple(references))])
        return found

    def grade_all(self, asked: Sequence[Asked]) -> list[Grade]:
        """Return the verdict on each; pairs are asked in rounds, one of each answer that is not right yet."""
        waiting = {place: _pairs(*item) for place, item in enumerate(asked)}
        right = set()
        while pairs := {place: pair for place, rest in waiting.items() if (pair := next(rest, None))}:
            questions = [asked[place][0] for place in pairs]
            found = cluster_answers(questions, list(pairs.values()), self.equivalence).clusters
            right |= {place for place, clusters in zip(pairs, found) if len(clusters) == 1}
            waiting = {place: waiting[place] for place in pairs if place not in right}
        return [Grade(place in right, "nli" if place in right else "none") for place in range(len(asked))]


def _pairs(_: str, predictions: Sequence[str], references: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each prediction with each reference, in normal form; empty ones match nothing."""
    known = [form for form in map(normal_form, references) if form]
    return ((form, reference) for form in filter(None, map(normal_form, predictions)) for reference in known)


def as_grader(given: Any, equivalence: Equivalence) -> Grader:
    """Return what grades: "rules" (also for None), "nli" (by `equivalence`), a judge, or it is a grader."""
    if hasattr(given, "grade") and not isinstance(given, type):
        found: Grader = given
        return found
    if given is not None and not isinstance(given, str):
        raise UsageError(
            f'the grader is {shown(given)}; give "rules", "nli", "judge:openai:URL#MODEL" or an object with '
            "the method grade"
        )
    if given is not None and given.startswith("judge:"):
        from semcal.pipeline.judge import load_judge

        return load_judge(given)
    if check_name(given or "rules", GRADERS, what="grader") == "rules":
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


def check_gradable(row: Mapping[str, Any]) -> None:
    """Raise InputError unless the row can be graded."""
    identity(row)
    answers_of(row)
    _calibrated_answer(row)
    if predictions_of(row) is None:
        m = len(samples_of(row))
        top_clusters_of(row, len(clusters_of(row, m)))
        log_likelihoods_of(row, m)


def _calibrated_answer(row: Mapping[str, Any]) -> str | None:
    """The answer of a row that has its `probability` too."""
    if "answer" not in row or "probability" not in row:
        return None
    if not isinstance(row["answer"], str):
        raise InputError(f"'answer' beside 'probability' must be a text, got {shown(row['answer'])}")
    return row["answer"]


def grade_clusters(
    row: Mapping[str, Any], *, grader: Grader, seed: int = 0, limit: int = 4, likeliest: bool = False
) -> list[Grade]:
    """Grade each cluster of a row by some of its members, of which one right one is enough.

    The row has `id`, `answers`, `samples`, `clusters`, and `log_likelihoods` where the likeliest is wanted.
    `seed` draws at most `limit` members; with `likeliest` the most likely, of several the first, is among
    them.
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
    """Add `correct` and `rule` to a row with `answers`; InputError if a field is missing or malformed.

    A row with a `prediction` gets a bool and a text. One with `samples`, `clusters` and `top_cluster` gets
    both by measure (null where the measure is), and `cluster_correct`, a bool for each cluster. One with an
    `answer` and its `probability` gets `answer_correct`, a bool. `seed`,
    `limit` and `likeliest` are those of `grade_clusters`: which members are looked at depends on the seed,
    the question's id and the cluster alone.
    """
    question = str(row.get("question", ""))
    references = answers_of(row)
    predictions = predictions_of(row)
    answer = _calibrated_answer(row)
    if answer is not None:
        row = {**row, "answer_correct": grader.grade(question, [answer], references).correct}
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


def check_auditable(row: Mapping[str, Any]) -> None:
    """Raise InputError unless the row has a prediction, answers, a human label, and an id or a question."""
    if "question" in row:
        question_of(row)
    else:
        identity(row)
    answers_of(row)
    group_of(row)
    if predictions_of(row) is None:
        raise InputError("no 'prediction'; it is the answer that was labelled (--columns prediction=answer)")
    _human(row)


def _human(row: Mapping[str, Any]) -> bool | None:
    """What people said; None where they did not agree."""
    if "human" not in row:
        raise InputError(
            "no 'human'; it says whether people call the prediction right (--columns human=label)"
        )
    given = row["human"]
    if given is None or given in (0, 1):
        return None if given is None else bool(given)
    if isinstance(given, float) and 0 < given < 1:
        return None
    raise InputError(f"'human' must be true or false (1 or 0), or null if undecided, got {shown(given)}")


def judged_rows(rows: Sequence[Mapping[str, Any]], grader: Grader) -> list[dict[str, Any]]:
    """What people (`human`) and the grader (`correct`) say of each row, and its ties to others.

    Both are None where people are undecided; the grader is not asked then.
    """
    labels = [_human(row) for row in rows]
    asked = [
        (str(row.get("question", "")), predictions_of(row) or [], answers_of(row))
        for row, label in zip(rows, labels)
        if label is not None
    ]
    grades = iter(grade_together(grader, lambda one: [one.grade(*item) for item in asked]))
    return [
        {"correct": None if label is None else next(grades).correct, "human": label, "ties": _ties(row)}
        for row, label in zip(rows, labels)
    ]


def _ties(row: Mapping[str, Any]) -> Sequence[Any]:
    return question_ties(row) if "question" in row else (*question_ties(row), ("id", identity(row)))


def audit(judged: Sequence[Mapping[str, Any]], *, seed: int = 0) -> dict[str, Any]:
    """Compare grader and people over what `judged_rows` returns: `semcal.metrics.agreement` as a dict.

    Rows on which people are undecided do not count; answers to one question are resampled together.
    """
    decided = [one for one in judged if one["human"] is not None]
    if not decided:
        raise InputError("no row has a human label that is true or false; there is nothing to compare with")
    found = metrics.agreement(
        [one["correct"] for one in decided],
        [one["human"] for one in decided],
        groups=several(one["ties"] for one in decided),
        seed=seed,
    )
    figures = found.figures.items()
    return {
        "n": found.n,
        "undecided": len(judged) - found.n,
        **({} if found.groups is None else {"groups": found.groups}),
        **{name: one.estimate for name, one in figures},
        "counts": dict(found.counts),
        "se": {name: one.standard_error for name, one in figures},
        "interval": {name: [one.low, one.high] for name, one in figures},
    }
