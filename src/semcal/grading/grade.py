"""Correctness of rows (spec section 7): of predictions, or of the wording that each measure answers.

`semcal grade --audit` compares a grader with people's labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, TypeVar, cast

from semcal import metrics
from semcal.data.question import Ties, several
from semcal.data.splits import question_ties
from semcal.errors import InputError, UsageError, shown
from semcal.grading.rules import BatchGrader, Grade, Grader, GradeRequest, RuleGrader
from semcal.measuring import wordings
from semcal.models.clustering import cluster_answers
from semcal.models.equivalence import Equivalence, ExactMatch, address_of
from semcal.registry import check_name
from semcal.rows import AnswerKind, Grades, Row
from semcal.steps import Step
from semcal.text.normal_form import normal_form

#: The graders that have a name.
GRADERS = ("rules", "exact", "letter", "nli", "judge:openai:URL#MODEL")
_Result = TypeVar("_Result")
Members: TypeAlias = Callable[[Sequence[int]], Sequence[int]]
"""Cluster → those of its samples that are graded."""


def grade_together(grader: Grader, work: Callable[[Grader], _Result]) -> _Result:
    """Return ``work(grader)``; all that it grades is graded at once if the grader is a `BatchGrader`.

    What `work` grades must not depend on other grades of it: it is called twice, first to see what it asks.
    """
    if not isinstance(grader, BatchGrader):
        return work(grader)
    recorder = _Recorder()
    work(recorder)
    recorder |= dict(zip(recorder, grader.grade_all(list(recorder)), strict=True))
    return work(recorder)


class _Recorder(dict[GradeRequest, Grade]):
    """Stands for a grader: keeps what is asked, and says what is known of it."""

    def grade(self, question: str, predictions: Sequence[str], references: Sequence[str]) -> Grade:
        return self.setdefault((question, tuple(predictions), tuple(references)), Grade(False, "none"))


class EntailmentGrader(BatchGrader):
    """A prediction is right when it and a reference entail each other (spec section 7, `nli`).

    Equal normal forms always agree, different values never; the equivalence decides the rest.
    """

    def __init__(self, equivalence: Equivalence) -> None:
        self.equivalence = equivalence

    def grade_all(self, requests: Sequence[GradeRequest]) -> list[Grade]:
        """Return the verdict on each; pairs are asked in rounds, one of each answer that is not right yet."""
        waiting = {place: _pairs(*request) for place, request in enumerate(requests)}
        correct = set()
        while pairs := {place: pair for place, queue in waiting.items() if (pair := next(queue, None))}:
            questions = [requests[place][0] for place in pairs]
            clustering = cluster_answers(questions, list(pairs.values()), self.equivalence)
            correct |= {place for place, clusters in zip(pairs, clustering.clusters) if len(clusters) == 1}
            waiting = {place: waiting[place] for place in pairs if place not in correct}
        return [
            Grade(place in correct, "nli" if place in correct else "none") for place in range(len(requests))
        ]


def _pairs(_: str, predictions: Sequence[str], references: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Pair each prediction with each reference; empty ones match nothing."""
    stated = [reference for reference in references if normal_form(reference)]
    return ((text, reference) for text in predictions if normal_form(text) for reference in stated)


def as_grader(grader: Any, equivalence: Equivalence) -> Grader:
    """Return what grades: "rules" (also for None), "exact" (for None, where answers are labels), "nli" (by
    `equivalence`), a judge, or it is a grader.
    """
    if hasattr(grader, "grade") and not isinstance(grader, type):
        return cast("Grader", grader)
    if grader is not None and not isinstance(grader, str):
        raise UsageError(
            f'the grader is {shown(grader)}; give "rules", "exact", "letter", "nli", '
            '"judge:openai:URL#MODEL" or an object with the method grade'
        )
    if grader is not None and grader.startswith("judge:"):
        from semcal.grading.judge import load_judge

        return load_judge(grader)
    usual = "rules"
    if isinstance(equivalence, ExactMatch) and (equivalence.letter or equivalence.labels):
        usual = "letter" if equivalence.letter else "exact"
    if (name := check_name(grader or usual, GRADERS, what="grader")) != "nli":
        return rule_grader(name)
    if isinstance(equivalence, ExactMatch):
        raise UsageError('the grader "nli" needs an NLI model; give it as the equivalence (--equivalence)')
    return EntailmentGrader(equivalence)


def rule_grader(name: str, *, rouge: bool = False) -> RuleGrader:
    """Return the grader by rules: all rules, or the one rule of "exact" or "letter"."""
    return RuleGrader(rouge=rouge) if name == "rules" else RuleGrader(rules=(name,))


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
    if isinstance(grader, RuleGrader):
        return grader.rules[0] if grader.rules in (("exact",), ("letter",)) else "rules", None
    return type(grader).__name__, None


def check_gradable(row: Row) -> None:
    """Raise InputError unless the row can be graded."""
    _ = row.id, row.decision
    if row.decision is None or row.verdict is None:
        _ = row.answers
    if row.predictions is None:
        _ = row.samples, row.top_clusters, row.log_likelihoods


def grade_texts(
    grader: Grader, question: str, texts: Sequence[str | None], references: Sequence[str]
) -> Grade:
    """Grade the texts of one answer, of which one correct one is enough; None, no answer, is wrong."""
    found = [text for text in texts if text is not None]
    return grader.grade(question, found, references) if found else Grade(False, "empty")


def grade_answer(grader: Grader, row: Row, text: str | None, kind: AnswerKind) -> bool:
    """Say whether a row's answer is right: by people's verdict on one that is given, else by references."""
    if kind == "given" and row.verdict is not None:
        return row.verdict
    return grade_texts(grader, row.question_or_empty, [text], row.answers).correct


def grade_clusters(
    row: Row, *, grader: Grader, members: Members | None = None, only: Iterable[int] | None = None
) -> dict[int, Grade]:
    """Grade clusters of a row (all, or `only` some) by their commonest wordings, as answers are given.

    The row has `id`, `answers`, `samples`, `clusters`, and `log_likelihoods` if they are known. With
    `members` one correct text of those that this function chooses of a cluster is enough.
    """
    texts = [[text] for text in wordings(row)]
    if members is not None:
        texts = [[row.samples[i] for i in members(cluster)] for cluster in row.clusters]
    chosen = range(len(texts)) if only is None else only
    return {k: grade_texts(grader, row.question_or_empty, texts[k], row.answers) for k in chosen}


def grade_row(row: Row, *, grader: Grader, kind: AnswerKind = "modal") -> Row:
    """Add `correct` and `rule` to a row with `answers`; InputError if a field is missing or malformed.

    A row with a `prediction` gets a bool and a text. One with `samples`, `clusters` and `top_cluster` gets
    both by measure (null where the measure is), and `cluster_correct`, a bool for each cluster: each is
    graded by its commonest wording. One with an `answer` and its `probability`, or whose answer is of another
    `kind` than the samples' modal one, gets `answer_correct`, a bool: what it had as `correct` if people have
    judged its answer, for which it needs no reference answers (then there is null by measure).
    """
    predictions, decision, answer_correct = row.predictions, row.decision, None
    if decision is not None:
        own: AnswerKind = "given" if predictions is None else "modal"
        answer_correct = grade_answer(grader, row, decision.answer, own)
    elif kind != "modal" and predictions is None:
        answer_correct = grade_answer(grader, row, row.stated_answer(kind).text, kind)
    if answer_correct is not None and predictions is None and not row.is_labelled:
        return row.add(Grades(answer_correct=answer_correct, correct=dict.fromkeys(row.top_clusters)))
    if predictions is not None:
        grade = grader.grade(row.question_or_empty, predictions, row.answers)
        return row.add(Grades(answer_correct=answer_correct, correct=grade.correct, rule=grade.rule))
    grades = grade_clusters(row, grader=grader)
    top = {name: None if k is None else grades[k] for name, k in row.top_clusters.items()}
    return row.add(
        Grades(
            answer_correct=answer_correct,
            correct={name: None if grade is None else grade.correct for name, grade in top.items()},
            rule={name: None if grade is None else grade.rule for name, grade in top.items()},
            cluster_correct=[grade.correct for grade in grades.values()],
        )
    )


@dataclass(frozen=True)
class GradeStep(Step):
    """Grades rows: `grade_row`; all that a grader is asked about a block is asked at once."""

    name: ClassVar[str] = "grade"
    grader: Grader

    def __call__(self, rows: Sequence[Row], *_: object) -> list[Row]:
        """Grade."""
        return grade_together(self.grader, lambda marks: [grade_row(row, grader=marks) for row in rows])


# ---- Comparison with people


def check_auditable(row: Row) -> None:
    """Raise InputError unless the row has a prediction, answers, a human label, and an id or a question."""
    _ = row.question if row.has("question") or row.has("messages") else row.id
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

    def grade(marks: Grader) -> list[bool | None]:
        return [
            None
            if label is None
            else marks.grade(row.question_or_empty, row.predictions or [], row.answers).correct
            for row, label in zip(rows, labels)
        ]

    return list(map(Judgement, grade_together(grader, grade), labels, map(_ties, rows)))


def _ties(row: Row) -> Ties:
    ties = question_ties(row.json)
    return tuple(ties) if row.has("question") or row.has("messages") else (*ties, ("id", row.id))


def audit(judgements: Sequence[Judgement], *, seed: int = 0) -> dict[str, Any]:
    """Compare grader and people over what `judge_rows` returns: `semcal.metrics.agreement` as a dict.

    Rows on which people are undecided do not count; answers to one question are resampled together.
    """
    decided = [judgement for judgement in judgements if judgement.human is not None]
    if not decided:
        raise InputError("no row has a human label that is true or false; there is nothing to compare with")
    agreement = metrics.agreement(
        [bool(judgement.correct) for judgement in decided],
        [bool(judgement.human) for judgement in decided],
        groups=several(judgement.ties for judgement in decided),
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
