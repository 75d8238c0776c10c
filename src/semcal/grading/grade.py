"""Grade the predictions of rows, or the answer of each measure (spec section 7).

`semcal grade --audit` compares a grader with human labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

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

#: Names of graders.
GRADERS = ("rules", "exact", "letter", "nli", "judge:openai:URL#MODEL")
_Result = TypeVar("_Result")
Members: TypeAlias = Callable[[Sequence[int]], Sequence[int]]
"""Function from a cluster to its samples that are graded."""


def grade_together(grader: Grader, work: Callable[[Grader], _Result]) -> _Result:
    """Return ``work(grader)``; a `BatchGrader` gets all requests of `work` at once.

    The requests of `work` must not depend on grades: `work` runs twice, the first time to record the
    requests.
    """
    if not isinstance(grader, BatchGrader):
        return work(grader)
    recorder = _Recorder()
    work(recorder)
    recorder |= dict(zip(recorder, grader.grade_all(list(recorder)), strict=True))
    return work(recorder)


class _Recorder(dict[GradeRequest, Grade]):
    """A grader that records requests and returns their known grades."""

    def grade(self, question: str, predictions: Sequence[str], references: Sequence[str]) -> Grade:
        return self.setdefault((question, tuple(predictions), tuple(references)), Grade(False, "none"))


class EntailmentGrader(BatchGrader):
    """A grader that accepts a prediction if it and a reference entail each other (spec section 7, `nli`).

    Equal normal forms always match, different values never match; the equivalence decides all other pairs.
    """

    def __init__(self, equivalence: Equivalence) -> None:
        self.equivalence = equivalence

    def grade_all(self, requests: Sequence[GradeRequest]) -> list[Grade]:
        """Return the verdict on each request, in rounds of one pair for each answer not yet correct."""
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
    """Pair each prediction with each reference, empty texts left out."""
    stated = [reference for reference in references if normal_form(reference)]
    return ((text, reference) for text in predictions if normal_form(text) for reference in stated)


def as_grader(grader: Any, equivalence: Equivalence) -> Grader:
    """Return the grader of a name, or a given grader unchanged.

    None means "rules", or "exact" if answers are labels; "nli" uses `equivalence`.
    """
    if hasattr(grader, "grade") and not isinstance(grader, type):
        return cast("Grader", grader)
    if grader is not None and not isinstance(grader, str):
        raise UsageError(
            f'grader: {shown(grader)} is not a grader. Pass "rules", "exact", "letter", "nli", '
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
        raise UsageError('grader: "nli" requires an NLI model. Pass one as the equivalence (--equivalence)')
    return EntailmentGrader(equivalence)


def rule_grader(name: str, *, rouge: bool = False) -> RuleGrader:
    """Return the grader with all rules, or with the single rule "exact" or "letter"."""
    return RuleGrader(rouge=rouge) if name == "rules" else RuleGrader(rules=(name,))


def grader_record(grader: Grader) -> tuple[str, str | None]:
    """Return the name of a grader and the revision of its model, for the record of a calibration.

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
        if row.has("answer") and not row.has("samples"):
            raise InputError(
                "'prediction' and 'samples' are missing. Name the column of the answer: --columns "
                "prediction=answer"
            )
        _ = row.samples, row.top_clusters, row.log_likelihoods


def grade_texts(
    grader: Grader, question: str, texts: Sequence[str | None], references: Sequence[str]
) -> Grade:
    """Grade the texts of one answer, of which one correct text is enough; None (no answer) is wrong."""
    found = [text for text in texts if text is not None]
    return grader.grade(question, found, references) if found else Grade(False, "empty")


def grade_answer(grader: Grader, row: Row, text: str | None, kind: AnswerKind) -> bool:
    """Return whether an answer is correct: by the human verdict on a given answer, else by references."""
    if kind == "given" and (verdict := row.verdict) is not None:
        return verdict
    return grade_texts(grader, row.question_or_empty, [text], row.answers).correct


def grade_clusters(
    row: Row, *, grader: Grader, members: Members | None = None, only: Iterable[int] | None = None
) -> dict[int, Grade]:
    """Grade clusters of a row (all, or `only` some) by their most frequent wording.

    The row has `id`, `answers`, `samples`, `clusters`, and `log_likelihoods` if known. With `members`, one
    correct text among the chosen members of a cluster is enough.
    """
    texts = [[text] for text in wordings(row)]
    if members is not None:
        texts = [[row.samples[i] for i in members(cluster)] for cluster in row.clusters]
    chosen = range(len(texts)) if only is None else only
    return {k: grade_texts(grader, row.question_or_empty, texts[k], row.answers) for k in chosen}


def grade_row(row: Row, *, grader: Grader, kind: AnswerKind = "modal") -> Row:
    """Add `correct` and `rule` to a row with `answers`; InputError if a field is missing or malformed.

    - A row with a `prediction` gets a bool and a text.
    - A row with `samples`, `clusters` and `top_cluster` gets both by measure (null if the measure is null),
      and `cluster_correct`: one bool per cluster, by the most frequent wording of the cluster.
    - A row with an `answer` and its `probability`, or whose `kind` of answer is not "modal", gets
      `answer_correct`, a bool. If people have judged the answer, it is their verdict in `correct`; then no
      reference answers are needed, and `correct` is null for each measure.
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
    """A step that grades rows with `grade_row`; the grader gets all requests of a block at once."""

    name: ClassVar[str] = "grade"
    grader: Grader

    def __call__(self, rows: Sequence[Row], *_: object) -> list[Row]:
        """Return the graded rows."""
        return grade_together(self.grader, lambda marks: [grade_row(row, grader=marks) for row in rows])


# ---- Comparison with people


def check_auditable(row: Row) -> None:
    """Raise InputError unless the row has a prediction, answers, a human label, and an id or a question."""
    _ = row.question if row.has("question") or row.has("messages") else row.id
    _ = row.answers, row.group
    if row.predictions is None:
        raise InputError(
            "'prediction' is missing. Name the column of the labeled answer: --columns prediction=answer"
        )
    _ = row.human


def audit(rows: Sequence[Row], grader: Grader, *, seed: int = 0) -> dict[str, Any]:
    """Compare a grader with people: shares of answers with their intervals, Cohen's kappa and the counts.

    Rows without a decided human label do not count; answers to one question are resampled together.
    """
    decided = [row for row in rows if row.human is not None]
    if not decided:
        raise InputError("human: no row has the label true or false. Add labels to compare with")

    def grade(marks: Grader) -> list[bool]:
        return [
            marks.grade(row.question_or_empty, row.predictions or [], row.answers).correct for row in decided
        ]

    ours = np.array(grade_together(grader, grade))
    theirs = np.array([bool(row.human) for row in decided])
    shares = {"agreement": ours == theirs, "accuracy": ours, "human_accuracy": theirs}
    groups = several(map(_ties, decided))
    resampled = metrics.joint_bootstrap(
        {name: (share, share) for name, share in shares.items()},
        metrics=["accuracy"],
        groups=groups,
        seed=seed,
    )
    figures = {name: resampled.interval(name, "accuracy") for name in shares}
    difference = resampled.contrast("accuracy", "accuracy") - resampled.contrast("human_accuracy", "accuracy")
    figures["accuracy_difference"] = difference.interval()
    cells = {
        "both_right": ours & theirs,
        "grader_only": ours & ~theirs,
        "human_only": ~ours & theirs,
        "both_wrong": ~(ours | theirs),
    }
    return {
        "n": len(decided),
        "undecided": len(rows) - len(decided),
        **({} if groups is None else {"groups": int(groups.max()) + 1}),
        "kappa": _kappa(ours, theirs),
        **{name: figure.estimate for name, figure in figures.items()},
        "counts": {name: int(cell.sum()) for name, cell in cells.items()},
        "se": {name: figure.standard_error for name, figure in figures.items()},
        "interval": {name: [figure.low, figure.high] for name, figure in figures.items()},
    }


def _kappa(ours: NDArray[np.bool_], theirs: NDArray[np.bool_]) -> float:
    """Return Cohen's kappa, the agreement beyond chance; NaN if people gave one verdict only."""
    if theirs.all() or not theirs.any():
        return math.nan
    by_chance = ours.mean() * theirs.mean() + (~ours).mean() * (~theirs).mean()
    return float(((ours == theirs).mean() - by_chance) / (1 - by_chance))


def _ties(row: Row) -> Ties:
    ties = question_ties(row.json)
    return tuple(ties) if row.has("question") or row.has("messages") else (*ties, ("id", row.id))
