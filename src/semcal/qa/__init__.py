"""Questions and answers as text: data sets, splits, prompts, normal form, grading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semcal.registry import attribute

if TYPE_CHECKING:
    from semcal.qa.datasets import load_questions, read_questions
    from semcal.qa.grading import Grade, Grader, RuleGrader
    from semcal.qa.questions import Question, Turn, chat, plain_text
    from semcal.qa.splits import Splits, SplitSizes, split_questions

#: Name → the module that holds it, imported when the name is first used.
_ADDRESSES = {
    "Grade": "grading",
    "Grader": "grading",
    "Question": "questions",
    "RuleGrader": "grading",
    "SplitSizes": "splits",
    "Splits": "splits",
    "Turn": "questions",
    "chat": "questions",
    "load_questions": "datasets",
    "plain_text": "questions",
    "read_questions": "datasets",
    "split_questions": "splits",
}

__all__ = [
    "Grade",
    "Grader",
    "Question",
    "RuleGrader",
    "SplitSizes",
    "Splits",
    "Turn",
    "chat",
    "load_questions",
    "plain_text",
    "read_questions",
    "split_questions",
]


def __getattr__(name: str) -> Any:
    return attribute(__name__, _ADDRESSES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
