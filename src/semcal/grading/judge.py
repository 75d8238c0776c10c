"""A grader that asks a language model behind a server about the answers that the rules reject."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from semcal.errors import UsageError, shown
from semcal.grading.rules import BatchGrader, Grade, Grader, GradeRequest, RuleGrader
from semcal.models.equivalence import CachedEquivalence, Equivalence
from semcal.servers.entailment import EntailmentTask, load_verdicts
from semcal.servers.settings import PREFIX, ServerSettings

#: Prefix of the name of a judge: judge:openai:URL#MODEL.
JUDGE = "judge:"
JUDGEMENT = EntailmentTask(
    "judgement",
    ("correct", "incorrect"),
    """\
Compare an answer to a question with reference answers. The answer is correct if it says what one of the
references says, in whatever words, and nothing that contradicts it. Rely on the references, not on what
you know.

Question: {question}
Reference answers:
{second}
Answer: {first}

Reply with one word: correct or incorrect.""",
)


class JudgeGrader(BatchGrader):
    """A grader that accepts a prediction if rules accept it, or else if a judge accepts it.

    `judge` is an equivalence that decides triples (question, prediction, references, one per line).
    """

    def __init__(self, judge: Equivalence, rules: Grader | None = None) -> None:
        self.judge = judge
        self.rules = rules or RuleGrader()

    def grade_all(self, requests: Sequence[GradeRequest]) -> list[Grade]:
        """Return the verdict on each request; the judge gets all requests that the rules reject at once."""
        grades = [self.rules.grade(*request) for request in requests]
        pending = {k: list(_triples(*requests[k])) for k, grade in enumerate(grades) if not grade.correct}
        triples = list(dict.fromkeys(triple for group in pending.values() for triple in group))
        correct = dict(zip(triples, self.judge.entails(triples), strict=True))
        for k, group in pending.items():
            if any(correct[triple] for triple in group):
                grades[k] = Grade(True, "judge")
        return grades


def _triples(
    question: str, predictions: Sequence[str], references: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    listed = "\n".join(f"- {' '.join(text.split())}" for text in references if text.strip())
    for text in predictions:
        if listed and text.strip():
            yield question, " ".join(text.split()), listed


def load_judge(
    name: str,
    *,
    rules: Grader | None = None,
    settings: ServerSettings | None = None,
    cache: str | Path | None = None,
) -> JudgeGrader:
    """Connect to judge:openai:URL#MODEL; `cache` is the file of verdicts, which equivalences share."""
    server = name.removeprefix(JUDGE)
    if not server.startswith(PREFIX):
        raise UsageError(f"--grader: {shown(name)} has no server. Pass {JUDGE}{PREFIX}URL#MODEL")
    judge = load_verdicts(server, settings, task=JUDGEMENT)
    return JudgeGrader(judge if cache is None else CachedEquivalence(judge, cache), rules)
